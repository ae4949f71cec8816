// Apache Thrift as a peer: the binary protocol over a buffered transport, with the generated code as templates of both,
// and a server that answers one connection in one thread. Calls in flight are send_call() before recv_call(). Thrift's
// sockets sleep in the kernel; with --wait=poll those of this file spin. Each message leaves by a call of the kernel.
#include <Echo.h>  // generated from peer.thrift
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/server/TSimpleServer.h>
#include <thrift/transport/TBufferTransports.h>
#include <thrift/transport/TServerSocket.h>
#include <thrift/transport/TSocket.h>

#include <memory>

#include "peer.h"

namespace {

using apache::thrift::TConfiguration;
using apache::thrift::TException;
using apache::thrift::protocol::TBinaryProtocolFactoryT;
using apache::thrift::protocol::TBinaryProtocolT;
using apache::thrift::server::TServerEventHandler;
using apache::thrift::server::TSimpleServer;
using apache::thrift::transport::TBufferedTransport;
using apache::thrift::transport::TServerSocket;
using apache::thrift::transport::TSocket;
using apache::thrift::transport::TTransport;
using apache::thrift::transport::TTransportException;
using apache::thrift::transport::TTransportFactory;
using peers::Bytes;
using peers::die;

/// Messages of every size that a peer may have; by default 100 MB.
std::shared_ptr<TConfiguration> configuration() {
  return std::make_shared<TConfiguration>(std::numeric_limits<int>::max());
}

/// Spins until it has bytes, or sleeps as Thrift's own.
struct Socket : TSocket {
  using TSocket::TSocket;
  uint32_t read_virt(uint8_t* bytes, uint32_t size) override {
    if (FLAGS_wait == "block") return TSocket::read_virt(bytes, size);
    while (true) {
      const ssize_t got = recv(getSocketFD(), bytes, size, MSG_DONTWAIT);
      if (got >= 0) return static_cast<uint32_t>(got);
      if (errno != EAGAIN && errno != EINTR) throw TTransportException(TTransportException::UNKNOWN, "recv()", errno);
    }
  }
};
struct ServerSocket : TServerSocket {
  using TServerSocket::TServerSocket;
  std::shared_ptr<TSocket> createSocket(int fd) override { return std::make_shared<Socket>(fd); }
};

/// Many small messages a call of the kernel. By default a buffer has 512 bytes.
std::shared_ptr<TBufferedTransport> buffered(std::shared_ptr<TTransport> socket) {
  constexpr uint32_t kBufferBytes = 1 << 16;
  return std::make_shared<TBufferedTransport>(std::move(socket), kBufferBytes, configuration());
}
struct BufferedFactory : TTransportFactory {
  std::shared_ptr<TTransport> getTransport(std::shared_ptr<TTransport> socket) override { return buffered(socket); }
};

struct Handler : peers::thrift_idl::EchoIf {
  void call(std::string& response, const std::string& request) override {
    const peers::Head head = peers::answer(std::as_bytes(std::span(request)));
    response.assign(reinterpret_cast<const char*>(&head), sizeof head);
  }
};

template <class Ready>
struct Listening : TServerEventHandler {
  explicit Listening(const Ready& on_listening) : ready(on_listening) {}
  void preServe() override { ready(); }
  Ready ready;
};

class Thrift {
 public:
  static constexpr const char* kName = "thrift";
  static constexpr std::array kTransports = {"unix", "tcp"};
  static constexpr std::array kWaits = {"poll", "block"};
  using Message = std::string;

  template <class Ready>
  [[noreturn]] static void serve(const std::string& transport, const Ready& ready) try {
    const bool is_tcp = transport == "tcp";
    // A name in the abstract namespace, which leaves no file behind.
    const std::string name = std::string(1, '\0') + "tern-peer-" + std::to_string(getpid());
    const auto socket = is_tcp ? std::make_shared<ServerSocket>("127.0.0.1", 0) : std::make_shared<ServerSocket>(name);
    using Protocols = TBinaryProtocolFactoryT<TBufferedTransport>;
    using Processor = peers::thrift_idl::EchoProcessorT<TBinaryProtocolT<TBufferedTransport>>;
    TSimpleServer server(std::make_shared<Processor>(std::make_shared<Handler>()), socket,
                         std::make_shared<BufferedFactory>(), std::make_shared<Protocols>());
    const auto tell = [&] { ready(is_tcp ? std::to_string(socket->getPort()) : name); };
    server.setServerEventHandler(std::make_shared<Listening<decltype(tell)>>(tell));
    server.serve();
    die("no more requests");
  } catch (const TException& error) {
    die("the server failed: %s", error.what());
  }

  Thrift(const std::string& transport, const std::string& address)
      : socket_(transport == "tcp" ? std::make_shared<Socket>("127.0.0.1", std::stoi(address), configuration())
                                   : std::make_shared<Socket>(address, configuration())),
        client_(std::make_shared<TBinaryProtocolT<TBufferedTransport>>(buffered(socket_))) {
    guarded("no connection", [&] { socket_->open(); });
  }

  void send(const std::string& request) {
    guarded("a request was refused", [&] { client_.send_call(request); });
  }

  /// One response; others stay in the transport's buffer.
  template <class OnResponse>
  void receive(const OnResponse& on_response) {
    guarded("no response", [&] { client_.recv_call(response_); });
    on_response(std::as_bytes(std::span(response_)));
  }

 private:
  template <class Do>
  static void guarded(const char* what, const Do& act) {
    try {
      act();
    } catch (const TException& error) {
      die("%s: %s", what, error.what());
    }
  }

  std::shared_ptr<Socket> socket_;
  peers::thrift_idl::EchoClientT<TBinaryProtocolT<TBufferedTransport>> client_;
  std::string response_;
};

}  // namespace

int main(int argc, char** argv) { return peers::run_main<Thrift>(argc, argv); }
