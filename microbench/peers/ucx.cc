// UCX active messages as a peer: one worker a side, which is polled. Over shared memory it may use every way that it
// finds (posix, sysv, cma); over TCP the loopback device.
#include <ucp/api/ucp.h>

#include <memory>

#include "peer.h"

namespace {

using peers::Bytes;
using peers::die;

enum MessageId : unsigned { kRequest = 1, kResponse = 2 };

void check(ucs_status_t status, const char* what) {
  if (status != UCS_OK) die("%s: %s", what, ucs_status_string(status));
}

/// A running operation, or none if it is complete; frees itself.
void check_operation(ucs_status_ptr_t operation, const char* what) {
  if (UCS_PTR_IS_ERR(operation)) check(UCS_PTR_STATUS(operation), what);
}
void free_operation(void* operation, ucs_status_t status, void*) {
  check(status, "a message was not sent");
  ucp_request_free(operation);
}

ucp_worker_h make_worker(const std::string& transport) {
  ucp_config_t* config = nullptr;
  check(ucp_config_read(nullptr, nullptr, &config), "no configuration");
  check(ucp_config_modify(config, "TLS", transport == "shm" ? "shm,self" : "tcp,self"), "no such transport");
  if (transport == "tcp") check(ucp_config_modify(config, "NET_DEVICES", "lo"), "no loopback device");
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM;
  ucp_context_h context = nullptr;
  check(ucp_init(&params, config, &context), "no context");
  ucp_config_release(config);
  ucp_worker_params_t worker_params = {};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h worker = nullptr;
  check(ucp_worker_create(context, &worker_params, &worker), "no worker");
  return worker;
}

void set_handler(ucp_worker_h worker, MessageId id, ucp_am_recv_callback_t handler, void* self) {
  ucp_am_handler_param_t param = {};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.id = id;
  param.cb = handler;
  param.arg = self;
  check(ucp_worker_set_am_recv_handler(worker, &param), "no handler");
}

void send_message(ucp_ep_h endpoint, MessageId id, Bytes bytes, uint32_t flags) {
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = free_operation;
  param.flags = flags;
  check_operation(ucp_am_send_nbx(endpoint, id, nullptr, 0, bytes.data(), bytes.size(), &param),
                  "a message was refused");
}

class Server {
 public:
  explicit Server(ucp_worker_h worker) : worker_(worker), answers_(kAnswers) {
    set_handler(worker_, kRequest, on_request, this);
  }
  void poll() { ucp_worker_progress(worker_); }

 private:
  static constexpr size_t kAnswers = 2048;  ///< twice the largest window: UCX may still send an answer from here

  static ucs_status_t on_request(void* self, const void*, size_t, void* data, size_t bytes,
                                 const ucp_am_recv_param_t* param) {
    auto& server = *static_cast<Server*>(self);
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) die("a request without a way back");
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
      server.respond(param->reply_ep, {static_cast<const std::byte*>(data), bytes});
      return UCS_OK;
    }
    // Its bytes are still with the client. Large requests come one at a time, or take turns in one buffer each.
    auto large = server.idle_.empty() ? std::make_unique<Large>() : std::move(server.idle_.back());
    if (!server.idle_.empty()) server.idle_.pop_back();
    large->server = &server;
    large->reply_to = param->reply_ep;
    if (large->bytes.size() < bytes) large->bytes.resize(bytes);
    large->size = bytes;
    ucp_request_param_t how = {};
    how.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    how.cb.recv_am = [](void* operation, ucs_status_t status, size_t, void* of) {
      check(status, "a large request was not received");
      ucp_request_free(operation);
      on_received(std::unique_ptr<Large>(static_cast<Large*>(of)));
    };
    how.user_data = large.get();
    Large* const raw = large.release();
    const ucs_status_ptr_t operation = ucp_am_recv_data_nbx(server.worker_, data, raw->bytes.data(), bytes, &how);
    check_operation(operation, "a large request was not received");
    if (operation == nullptr) on_received(std::unique_ptr<Large>(raw));
    return UCS_INPROGRESS;  // the descriptor stays with the operation
  }

  /// A request that is fetched out of the client's memory.
  struct Large {
    Server* server = nullptr;
    ucp_ep_h reply_to = nullptr;
    std::vector<std::byte> bytes;
    size_t size = 0;
  };

  static void on_received(std::unique_ptr<Large> large) {
    Server& server = *large->server;
    server.respond(large->reply_to, Bytes(large->bytes).first(large->size));
    server.idle_.push_back(std::move(large));
  }

  void respond(ucp_ep_h to, Bytes request) {
    peers::Head& head = answers_[answered_++ % kAnswers];
    head = peers::answer(request);
    send_message(to, kResponse, std::as_bytes(std::span(&head, 1)), 0);
  }

  ucp_worker_h worker_;
  std::vector<peers::Head> answers_;
  size_t answered_ = 0;
  std::vector<std::unique_ptr<Large>> idle_;
};

class Ucx {
 public:
  static constexpr const char* kName = "ucx";
  static constexpr std::array kTransports = {"shm", "tcp"};
  static constexpr std::array kWaits = {"poll"};

  template <class Ready>
  static void serve(const std::string& transport, const Ready& ready) {
    Server server(make_worker_and_tell(transport, ready));
    while (true) server.poll();
  }

  Ucx(const std::string& transport, const std::string& address) : worker_(make_worker(transport)) {
    set_handler(worker_, kResponse, on_response, this);
    ucp_ep_params_t params = {};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    check(ucp_ep_create(worker_, &params, &endpoint_), "no connection");
  }

  void send(Bytes request) { send_message(endpoint_, kRequest, request, UCP_AM_SEND_FLAG_REPLY); }

  template <class OnResponse>
  void receive(const OnResponse& on_response) {
    while (responses_.empty()) ucp_worker_progress(worker_);
    for (const peers::Head& head : responses_) on_response(std::as_bytes(std::span(&head, 1)));
    responses_.clear();
  }

 private:
  /// The address is bytes, not text.
  template <class Ready>
  static ucp_worker_h make_worker_and_tell(const std::string& transport, const Ready& ready) {
    ucp_worker_h worker = make_worker(transport);
    ucp_address_t* address = nullptr;
    size_t bytes = 0;
    check(ucp_worker_get_address(worker, &address, &bytes), "no address");
    ready(std::string_view(reinterpret_cast<const char*>(address), bytes));
    return worker;
  }

  static ucs_status_t on_response(void* self, const void*, size_t, void* data, size_t bytes,
                                  const ucp_am_recv_param_t* param) {
    peers::Head head;
    if (bytes != sizeof head || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
      die("a response has %zu bytes", bytes);
    }
    std::memcpy(&head, data, sizeof head);
    static_cast<Ucx*>(self)->responses_.push_back(head);
    return UCS_OK;
  }

  ucp_worker_h worker_;
  ucp_ep_h endpoint_ = nullptr;
  std::vector<peers::Head> responses_;
};

}  // namespace

int main(int argc, char** argv) { return peers::run_main<Ucx>(argc, argv); }
