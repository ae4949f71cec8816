// gRPC as a peer: its asynchronous C++ interface with completion queues, polled or waited for, unary calls on one
// channel. Messages are byte buffers, as generic stubs have them: protobuf would only add to it.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>

#include "peer.h"

namespace {

using peers::Bytes;
using peers::die;

/// As long as `bytes` stay, if they are many; else a copy.
grpc::ByteBuffer buffer_of(Bytes bytes) {
  constexpr size_t kCopiedBytesMax = 4096;
  const grpc::Slice slice = bytes.size() <= kCopiedBytesMax
                                ? grpc::Slice(bytes.data(), bytes.size())
                                : grpc::Slice(bytes.data(), bytes.size(), grpc::Slice::STATIC_SLICE);
  return grpc::ByteBuffer(&slice, 1);
}

/// Calls on_bytes with the bytes in one piece, as a program wants them.
template <class OnBytes>
void with_bytes(const grpc::ByteBuffer& buffer, const OnBytes& on_bytes) {
  grpc::Slice slice;
  if (!buffer.TrySingleSlice(&slice).ok() && !buffer.DumpToSingleSlice(&slice).ok()) die("an unreadable message");
  on_bytes(Bytes(reinterpret_cast<const std::byte*>(slice.begin()), slice.size()));
}

/// One call after the other, in the thread that polls the queue.
class Call {
 public:
  Call(grpc::AsyncGenericService& service, grpc::ServerCompletionQueue& queue) : service_(service), queue_(queue) {
    wait();
  }
  void on_event(bool is_well) {
    switch (state_) {
      case State::kWaiting:
        if (!is_well) die("no more requests");
        state_ = State::kReading;
        turn_->stream.Read(&turn_->request, this);
        return;
      case State::kReading:
        if (!is_well) return wait();
        with_bytes(turn_->request, [&](Bytes request) { turn_->head = peers::answer(request); });
        state_ = State::kFinishing;
        turn_->stream.WriteAndFinish(buffer_of(std::as_bytes(std::span(&turn_->head, 1))), {}, grpc::Status::OK, this);
        return;
      case State::kFinishing:
        return wait();
    }
  }

 private:
  enum class State { kWaiting, kReading, kFinishing };
  struct Turn {
    grpc::GenericServerContext context;
    grpc::GenericServerAsyncReaderWriter stream{&context};
    grpc::ByteBuffer request;
    peers::Head head;
  };

  void wait() {
    turn_ = std::make_unique<Turn>();
    state_ = State::kWaiting;
    service_.RequestCall(&turn_->context, &turn_->stream, &queue_, &queue_, this);
  }

  grpc::AsyncGenericService& service_;
  grpc::ServerCompletionQueue& queue_;
  std::unique_ptr<Turn> turn_;
  State state_ = State::kWaiting;
};

class Grpc {
 public:
  static constexpr const char* kName = "grpc";
  static constexpr std::array kTransports = {"unix", "tcp"};
  static constexpr std::array kWaits = {"poll", "block"};

  template <class Ready>
  static void serve(const std::string& transport, const Ready& ready) {
    grpc::AsyncGenericService service;
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(-1);
    builder.RegisterAsyncGenericService(&service);
    // A name in the abstract namespace, which leaves no file behind.
    const std::string name = "unix-abstract:tern-peer-" + std::to_string(getpid());
    int port = 0;
    builder.AddListeningPort(transport == "tcp" ? "127.0.0.1:0" : name, grpc::InsecureServerCredentials(), &port);
    const auto queue = builder.AddCompletionQueue();
    const auto server = builder.BuildAndStart();
    if (server == nullptr) die("no listening socket");
    std::deque<Call> calls;
    while (calls.size() < FLAGS_window) calls.emplace_back(service, *queue);
    ready(transport == "tcp" ? "127.0.0.1:" + std::to_string(port) : name);
    void* call = nullptr;
    for (bool is_well = false; next(*queue, call, is_well);) static_cast<Call*>(call)->on_event(is_well);
  }

  Grpc(const std::string&, const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetMaxSendMessageSize(-1);
    stub_ = std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  }
  /// Drops the calls that are still in flight.
  ~Grpc() {
    for (const auto& turn : turns_) turn->context.TryCancel();
    queue_.Shutdown();
    void* tag = nullptr;
    for (bool is_well = false; queue_.Next(&tag, &is_well);) {
    }
  }
  Grpc(const Grpc&) = delete;
  Grpc& operator=(const Grpc&) = delete;

  void send(Bytes request) {
    size_t index = turns_.size();
    if (idle_.empty()) {
      turns_.emplace_back();
    } else {
      index = idle_.back();
      idle_.pop_back();
    }
    auto& turn = turns_[index];
    turn = std::make_unique<Turn>();
    turn->index = index;
    turn->reader = stub_->PrepareUnaryCall(&turn->context, "/tern.Peer/Call", buffer_of(request), &queue_);
    turn->reader->StartCall();
    turn->reader->Finish(&turn->response, &turn->status, turn.get());
  }

  template <class OnResponse>
  void receive(const OnResponse& on_response) {
    void* tag = nullptr;
    bool is_well = false;
    if (!next(queue_, tag, is_well)) die("no response");
    do {
      auto& turn = *static_cast<Turn*>(tag);
      if (!turn.status.ok()) die("no response: %s", turn.status.error_message().c_str());
      with_bytes(turn.response, on_response);
      idle_.push_back(turn.index);
    } while (queue_.AsyncNext(&tag, &is_well, gpr_time_0(GPR_CLOCK_MONOTONIC)) == grpc::CompletionQueue::GOT_EVENT);
  }

 private:
  struct Turn {
    size_t index = 0;
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
    grpc::ByteBuffer response;
    grpc::Status status;
  };

  /// Waits for an event. False if there will be none.
  static bool next(grpc::CompletionQueue& queue, void*& tag, bool& is_well) {
    if (FLAGS_wait == "block") return queue.Next(&tag, &is_well);
    auto status = grpc::CompletionQueue::TIMEOUT;
    while (status == grpc::CompletionQueue::TIMEOUT) {
      status = queue.AsyncNext(&tag, &is_well, gpr_time_0(GPR_CLOCK_MONOTONIC));
    }
    return status == grpc::CompletionQueue::GOT_EVENT;
  }

  std::unique_ptr<grpc::GenericStub> stub_;
  grpc::CompletionQueue queue_;
  std::deque<std::unique_ptr<Turn>> turns_;
  std::vector<size_t> idle_;
};

}  // namespace

int main(int argc, char** argv) { return peers::run_main<Grpc>(argc, argv); }
