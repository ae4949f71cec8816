// ZeroMQ as a peer: a DEALER and a ROUTER, because a REQ has one request in flight only. Both wait in the library,
// whose I/O thread is pinned to the same CPU: spinning would keep that one from running.
#include <zmq.h>

#include "peer.h"

namespace {

using peers::Bytes;
using peers::die;

void check(bool is_well, const char* what) {
  if (!is_well) die("%s: %s", what, zmq_strerror(zmq_errno()));
}

struct Message {
  zmq_msg_t raw;
  Message() { zmq_msg_init(&raw); }
  ~Message() { zmq_msg_close(&raw); }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  Bytes bytes() { return {static_cast<const std::byte*>(zmq_msg_data(&raw)), zmq_msg_size(&raw)}; }
};

void* make_socket(int type) {
  void* context = zmq_ctx_new();
  void* socket = context == nullptr ? nullptr : zmq_socket(context, type);
  check(socket != nullptr, "no socket");
  const int64_t size_max = -1;  // no limit
  check(zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &size_max, sizeof size_max) == 0, "no limit of messages");
  return socket;
}

class ZeroMq {
 public:
  static constexpr const char* kName = "zeromq";
  static constexpr std::array kTransports = {"ipc", "tcp"};
  static constexpr std::array kWaits = {"block"};

  template <class Ready>
  static void serve(const std::string& transport, const Ready& ready) {
    void* socket = make_socket(ZMQ_ROUTER);
    // A name in the abstract namespace, which leaves no file behind.
    const std::string wanted =
        transport == "tcp" ? "tcp://127.0.0.1:*" : "ipc://@tern-peer-" + std::to_string(getpid());
    check(zmq_bind(socket, wanted.c_str()) == 0, "no listening socket");
    char endpoint[256];
    size_t size = sizeof endpoint;
    check(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &size) == 0, "no address");
    ready(transport == "tcp" ? std::string(endpoint) : wanted);
    while (true) {
      Message client, request;
      check(zmq_msg_recv(&client.raw, socket, 0) >= 0 && zmq_msg_recv(&request.raw, socket, 0) >= 0, "no request");
      const peers::Head head = peers::answer(request.bytes());
      check(zmq_msg_send(&client.raw, socket, ZMQ_SNDMORE) >= 0, "no answer");
      check(zmq_send(socket, &head, sizeof head, 0) >= 0, "no answer");
    }
  }

  ZeroMq(const std::string&, const std::string& address) : socket_(make_socket(ZMQ_DEALER)) {
    check(zmq_connect(socket_, address.c_str()) == 0, "no connection");
  }

  /// A large request is not copied: the memory stays as it is until the response has come.
  void send(Bytes request) {
    constexpr size_t kCopiedBytesMax = 4096;
    if (request.size() <= kCopiedBytesMax) {
      check(zmq_send(socket_, request.data(), request.size(), 0) >= 0, "a request was refused");
      return;
    }
    zmq_msg_t message;
    void* data = const_cast<std::byte*>(request.data());  // it only reads
    check(zmq_msg_init_data(
              &message, data, request.size(), [](void*, void*) {}, nullptr) == 0,
          "no message");
    check(zmq_msg_send(&message, socket_, 0) >= 0, "a request was refused");
  }

  template <class OnResponse>
  void receive(const OnResponse& on_response) {
    Message response;
    check(zmq_msg_recv(&response.raw, socket_, 0) >= 0, "no response");
    do {
      on_response(response.bytes());
    } while (zmq_msg_recv(&response.raw, socket_, ZMQ_DONTWAIT) >= 0);
    check(zmq_errno() == EAGAIN, "no response");
  }

 private:
  void* socket_;
};

}  // namespace

int main(int argc, char** argv) { return peers::run_main<ZeroMq>(argc, argv); }
