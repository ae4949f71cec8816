// nng as a peer: REQ and REP, with a context for each request in flight, because a REQ socket has one only. Requests
// and responses are carried by the library's own threads, which are pinned to the side's CPU; its caller sleeps
// meanwhile.
#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>

#include <condition_variable>
#include <deque>
#include <mutex>

#include "peer.h"

namespace {

using peers::Bytes;
using peers::die;

void check(int error, const char* what) {
  if (error != 0) die("%s: %s", what, nng_strerror(error));
}

Bytes bytes_of(nng_msg* message) {
  return {static_cast<const std::byte*>(nng_msg_body(message)), nng_msg_len(message)};
}

/// A message with these bytes. nng has no message around memory of the caller: it copies.
nng_msg* message_of(Bytes bytes) {
  nng_msg* message = nullptr;
  check(nng_msg_alloc(&message, bytes.size()), "no message");
  std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(nng_msg_body(message)));
  return message;
}

/// One request after the other, by callbacks in the library's threads.
struct Server {
  enum class State { kReceiving, kAnswering };
  nng_ctx context = NNG_CTX_INITIALIZER;
  nng_aio* aio = nullptr;
  State state = State::kReceiving;

  void start(nng_socket socket) {
    check(nng_ctx_open(&context, socket), "no context");
    check(nng_aio_alloc(
              &aio, [](void* self) { static_cast<Server*>(self)->on_done(); }, this),
          "no operation");
    nng_ctx_recv(context, aio);
  }
  void on_done() {
    const int error = nng_aio_result(aio);
    if (state == State::kReceiving) {
      check(error, "no request");
      nng_msg* request = nng_aio_get_msg(aio);
      const peers::Head head = peers::answer(bytes_of(request));
      nng_msg_free(request);
      nng_aio_set_msg(aio, message_of(std::as_bytes(std::span(&head, 1))));
      state = State::kAnswering;
      nng_ctx_send(context, aio);
    } else {
      if (error != 0) nng_msg_free(nng_aio_get_msg(aio));  // the client has gone
      state = State::kReceiving;
      nng_ctx_recv(context, aio);
    }
  }
};

class Nng {
 public:
  static constexpr const char* kName = "nng";
  static constexpr std::array kTransports = {"ipc", "tcp"};
  static constexpr std::array kWaits = {"block"};

  template <class Ready>
  static void serve(const std::string& transport, const Ready& ready) {
    nng_socket socket;
    check(nng_rep0_open(&socket), "no socket");
    allow_large(socket);
    const std::string url =
        transport == "tcp" ? "tcp://127.0.0.1:0" : "abstract://tern-peer-" + std::to_string(getpid());
    nng_listener listener;
    check(nng_listener_create(&listener, socket, url.c_str()), "no listener");
    check(nng_listener_start(listener, 0), "no listening socket");
    std::deque<Server> servers(FLAGS_window);
    for (Server& server : servers) server.start(socket);
    if (transport == "tcp") {
      int port = 0;
      check(nng_listener_get_int(listener, NNG_OPT_TCP_BOUND_PORT, &port), "no port");
      ready("tcp://127.0.0.1:" + std::to_string(port));
    } else {
      ready(url);
    }
    while (true) pause();
  }

  Nng(const std::string&, const std::string& address) : calls_(FLAGS_window) {
    check(nng_req0_open(&socket_), "no socket");
    allow_large(socket_);
    check(nng_dial(socket_, address.c_str(), nullptr, 0), "no connection");
    for (Call& call : calls_) {
      call.client = this;
      check(nng_ctx_open(&call.context, socket_), "no context");
      check(nng_ctx_set_ms(call.context, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE), "no timeout");
      check(nng_aio_alloc(
                &call.aio, [](void* self) { static_cast<Call*>(self)->on_done(); }, &call),
            "no operation");
      idle_.push_back(&call);
    }
  }
  ~Nng() {
    nng_close(socket_);
    for (Call& call : calls_) nng_aio_free(call.aio);  // waits for its callback
  }
  Nng(const Nng&) = delete;
  Nng& operator=(const Nng&) = delete;

  void send(Bytes request) {
    Call* call = idle_.back();
    idle_.pop_back();
    call->is_sent = false;
    nng_aio_set_msg(call->aio, message_of(request));
    nng_ctx_send(call->context, call->aio);
  }

  template <class OnResponse>
  void receive(const OnResponse& on_response) {
    std::vector<Call*> done;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !done_.empty(); });
      done.swap(done_);
    }
    for (Call* call : done) {
      nng_msg* response = nng_aio_get_msg(call->aio);
      on_response(bytes_of(response));
      nng_msg_free(response);
      idle_.push_back(call);
    }
  }

 private:
  struct Call {
    Nng* client = nullptr;
    nng_ctx context = NNG_CTX_INITIALIZER;
    nng_aio* aio = nullptr;
    bool is_sent = false;

    void on_done() {
      const int error = nng_aio_result(aio);
      if (error == NNG_ECLOSED || error == NNG_ECANCELED) return;  // the run is over
      check(error, is_sent ? "no response" : "a request was refused");
      if (!is_sent) {
        is_sent = true;
        return nng_ctx_recv(context, aio);
      }
      const std::lock_guard lock(client->mutex_);
      client->done_.push_back(this);
      client->changed_.notify_one();
    }
  };

  static void allow_large(nng_socket socket) {
    check(nng_socket_set_size(socket, NNG_OPT_RECVMAXSZ, 0), "no limit of messages");
  }

  nng_socket socket_ = NNG_SOCKET_INITIALIZER;
  std::deque<Call> calls_;
  std::vector<Call*> idle_;  ///< the client's thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Call*> done_;  ///< under mutex_
};

}  // namespace

int main(int argc, char** argv) { return peers::run_main<Nng>(argc, argv); }
