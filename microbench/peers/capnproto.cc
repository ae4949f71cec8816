// Cap'n Proto as a peer: two-party RPC over one connection, an event loop a side. Calls in flight are promises. Large
// requests are not copied into their messages. With --wait=poll the loops are polled, else they sleep in epoll.
#include <capnp/message.h>
#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <peer.capnp.h>  // generated

#include <optional>

#include "peer.h"

namespace {

using peers::Bytes;
using peers::die;
using peers::capnp_idl::Echo;

/// Messages of every size that Cap'n Proto has; by default a reader stops after 64 MB.
capnp::ReaderOptions reader_options() {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = uint64_t{1} << 60;
  return options;
}

struct EchoServer final : Echo::Server {
  kj::Promise<void> call(CallContext context) override {
    const capnp::Data::Reader request = context.getParams().getRequest();
    const peers::Head head = peers::answer(std::as_bytes(std::span(request.begin(), request.size())));
    context.releaseParams();
    auto results = context.initResults(capnp::MessageSize{8, 0});
    results.setNumber(head.number);
    results.setSlot(head.slot);
    results.setSize(head.size);
    results.setPattern(head.pattern);
    return kj::READY_NOW;
  }
};

/// Does it; an exception ends the program.
template <class Do>
void guarded(const char* what, const Do& act) {
  try {
    act();
  } catch (const kj::Exception& error) {
    die("%s: %s", what, error.getDescription().cStr());
  }
}

class CapnProto : kj::TaskSet::ErrorHandler {
 public:
  static constexpr const char* kName = "capnproto";
  static constexpr std::array kTransports = {"unix", "tcp"};
  static constexpr std::array kWaits = {"poll", "block"};

  template <class Ready>
  [[noreturn]] static void serve(const std::string& transport, const Ready& ready) {
    guarded("the server failed", [&] {
      kj::AsyncIoContext io = kj::setupAsyncIo();
      // A name in the abstract namespace, which leaves no file behind.
      const std::string name = "unix-abstract:tern-peer-" + std::to_string(getpid());
      const std::string wanted = transport == "tcp" ? "127.0.0.1:0" : name;
      auto own_address = io.provider->getNetwork().parseAddress(wanted.c_str()).wait(io.waitScope);
      auto listener = own_address->listen();
      ready(transport == "tcp" ? "127.0.0.1:" + std::to_string(listener->getPort()) : name);
      auto stream = listener->accept().wait(io.waitScope);
      capnp::TwoPartyVatNetwork network(*stream, capnp::rpc::twoparty::Side::SERVER, reader_options());
      auto system = capnp::makeRpcServer(network, kj::heap<EchoServer>());
      while (FLAGS_wait == "poll") io.waitScope.poll();
      kj::NEVER_DONE.wait(io.waitScope);
    });
    die("no more requests");
  }

  CapnProto(const std::string&, const std::string& address) {
    guarded("no connection", [&] {
      auto server_address = io_.provider->getNetwork().parseAddress(address.c_str()).wait(io_.waitScope);
      stream_ = server_address->connect().wait(io_.waitScope);
      network_.emplace(*stream_, capnp::rpc::twoparty::Side::CLIENT, reader_options());
      system_.emplace(capnp::makeRpcClient(*network_));
      capnp::MallocMessageBuilder message(4);
      auto server = message.initRoot<capnp::rpc::twoparty::VatId>();
      server.setSide(capnp::rpc::twoparty::Side::SERVER);
      echo_.emplace(system_->bootstrap(server).castAs<Echo>());
    });
  }

  void send(Bytes request) {
    guarded("a request was refused", [&] {
      const capnp::Data::Reader data(reinterpret_cast<const kj::byte*>(request.data()), request.size());
      if (request.size() <= kCopiedBytesMax) {
        auto call = echo_->callRequest(capnp::MessageSize{4 + request.size() / sizeof(capnp::word), 0});
        call.setRequest(data);
        start(call);
      } else {
        auto call = echo_->callRequest(capnp::MessageSize{8, 0});
        call.adoptRequest(
            capnp::Orphanage::getForMessageContaining(Echo::CallParams::Builder(call)).referenceExternalData(data));
        start(call);
      }
    });
  }

  template <class OnResponse>
  void receive(const OnResponse& on_response) {
    guarded("no response", [&] {
      if (FLAGS_wait == "poll") {
        while (responses_.empty()) io_.waitScope.poll();
      } else if (responses_.empty()) {
        auto waiting = kj::newPromiseAndFulfiller<void>();
        has_response_ = kj::mv(waiting.fulfiller);
        waiting.promise.wait(io_.waitScope);
      }
    });
    for (const peers::Head& head : responses_) on_response(std::as_bytes(std::span(&head, 1)));
    responses_.clear();
  }

 private:
  static constexpr size_t kCopiedBytesMax = 4096;

  template <class Call>
  void start(Call& call) {
    tasks_.add(call.send().then([this](capnp::Response<Echo::CallResults>&& response) {
      responses_.push_back({response.getNumber(), response.getSlot(), response.getSize(), response.getPattern()});
      if (has_response_.get() != nullptr) has_response_->fulfill();
    }));
  }
  void taskFailed(kj::Exception&& error) override { die("no response: %s", error.getDescription().cStr()); }

  kj::AsyncIoContext io_ = kj::setupAsyncIo();
  kj::Own<kj::AsyncIoStream> stream_;
  std::optional<capnp::TwoPartyVatNetwork> network_;
  std::optional<capnp::RpcSystem<capnp::rpc::twoparty::VatId>> system_;
  std::optional<Echo::Client> echo_;
  std::vector<peers::Head> responses_;
  kj::Own<kj::PromiseFulfiller<void>> has_response_;  ///< of the newest receive() that has slept
  kj::TaskSet tasks_{*this};
};

}  // namespace

int main(int argc, char** argv) { return peers::run_main<CapnProto>(argc, argv); }
