// The public names of eRPC over the transport that TERN_ERPC_TRANSPORT names, as a program written for eRPC uses them.
// Two Rpcs in one process, whose loops one thread runs in turn.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <mutex>

#include "own_loopback.h"

#include <tern/compat/erpc/rpc.h>
#include <tern/compat/erpc/util/numautils.h>

namespace {

using CRpc = erpc::Rpc<erpc::CTransport>;

constexpr uint8_t kEcho = 1, kDynamic = 2, kLater = 3, kBackground = 4, kAsk = 5, kBackgroundLater = 6, kBlocked = 7,
                  kCount = 8;
constexpr auto kPatience = std::chrono::seconds(60);

struct Event {
  int session;
  erpc::SmEventType type;
  erpc::SmErrType error;
};

/// The object that an eRPC program passes as context.
struct Context {
  CRpc* rpc = nullptr;
  std::vector<Event> events;
  std::vector<erpc::ReqHandle*> kept;
  std::atomic<erpc::ReqHandle*> kept_in_background{nullptr};
  std::atomic<size_t> background_etid{SIZE_MAX};
  std::atomic<bool> may_answer{false};
  size_t continuations = 0;
  std::vector<size_t> tags;
  // State of kAsk, whose handler calls another server.
  int session = -1;
  uint8_t request_type = kEcho;
  std::mutex mutex;
  /// Buffers of the context's requests, each followed by its response; guarded by the mutex.
  std::deque<erpc::MsgBuffer> buffers;
};

void on_session(int session, erpc::SmEventType type, erpc::SmErrType error, void* context) {
  static_cast<Context*>(context)->events.push_back({session, type, error});
}
void on_done(void* context, void* tag) {
  auto* c = static_cast<Context*>(context);
  c->continuations++;
  c->tags.push_back(reinterpret_cast<size_t>(tag));
}

void echo(erpc::ReqHandle* handle, void* context) {
  const erpc::MsgBuffer* request = handle->get_req_msgbuf();
  CRpc::resize_msg_buffer(&handle->pre_resp_msgbuf_, request->get_data_size());
  std::memcpy(handle->pre_resp_msgbuf_.buf_, request->buf_, request->get_data_size());
  static_cast<Context*>(context)->rpc->enqueue_response(handle, &handle->pre_resp_msgbuf_);
}
/// The request contains the size of the response.
void respond_dynamically(erpc::ReqHandle* handle, void* context) {
  auto* c = static_cast<Context*>(context);
  size_t bytes = 0;
  std::memcpy(&bytes, handle->get_req_msgbuf()->buf_, sizeof(bytes));
  handle->dyn_resp_msgbuf_ = c->rpc->alloc_msg_buffer_or_die(bytes);
  std::memset(handle->dyn_resp_msgbuf_.buf_, 'd', bytes);
  c->rpc->enqueue_response(handle, &handle->dyn_resp_msgbuf_);
}
void keep(erpc::ReqHandle* handle, void* context) { static_cast<Context*>(context)->kept.push_back(handle); }
void echo_in_background(erpc::ReqHandle* handle, void* context) {
  auto* c = static_cast<Context*>(context);
  EXPECT_TRUE(c->rpc->in_background());
  c->background_etid = c->rpc->get_etid();
  const size_t bytes = handle->get_req_msgbuf()->get_data_size();
  erpc::MsgBuffer spare = c->rpc->alloc_msg_buffer_or_die(bytes);  // a background thread may allocate, too
  std::memcpy(spare.buf_, handle->get_req_msgbuf()->buf_, bytes);
  handle->dyn_resp_msgbuf_ = spare;
  c->rpc->enqueue_response(handle, &handle->dyn_resp_msgbuf_);
}
void keep_in_background(erpc::ReqHandle* handle, void* context) {
  static_cast<Context*>(context)->kept_in_background = handle;
}
void echo_when_allowed(erpc::ReqHandle* handle, void* context) {
  static_cast<Context*>(context)->may_answer.wait(false);
  echo(handle, context);
}
/// Responds with the size of the request.
void respond_with_size(erpc::ReqHandle* handle, void* context) {
  const size_t bytes = handle->get_req_msgbuf()->get_data_size();
  CRpc::resize_msg_buffer(&handle->pre_resp_msgbuf_, sizeof(bytes));
  std::memcpy(handle->pre_resp_msgbuf_.buf_, &bytes, sizeof(bytes));
  static_cast<Context*>(context)->rpc->enqueue_response(handle, &handle->pre_resp_msgbuf_);
}
/// Sends a request on the endpoint's own session from a background thread, and answers its own request.
void ask_in_background(erpc::ReqHandle* handle, void* context) {
  auto* c = static_cast<Context*>(context);
  {
    const std::lock_guard lock(c->mutex);
    erpc::MsgBuffer& request = c->buffers.emplace_back(c->rpc->alloc_msg_buffer_or_die(4));
    std::memcpy(request.buf_, "bang", 4);
    erpc::MsgBuffer& response = c->buffers.emplace_back(c->rpc->alloc_msg_buffer_or_die(4));
    c->rpc->enqueue_request(c->session, c->request_type, &request, &response, on_done, nullptr);
  }
  CRpc::resize_msg_buffer(&handle->pre_resp_msgbuf_, 0);
  c->rpc->enqueue_response(handle, &handle->pre_resp_msgbuf_);
}

/// A free port for a Nexus. An eRPC program must know its number.
std::string free_uri() {
  auto nexus = tern::Nexus::create("tern://" + tern::test::own_loopback() + ":0");
  EXPECT_TRUE(nexus.ok());
  return (*nexus)->uri().substr(std::string_view("tern://").size());
}

class Erpc : public ::testing::Test {
 protected:
  Erpc() { setenv("TERN_ERPC_FAILURE_MS", "100", 1); }
  static void register_all(erpc::Nexus& nexus) {
    EXPECT_EQ(nexus.register_req_func(kEcho, echo), 0);
    EXPECT_EQ(nexus.register_req_func(kDynamic, respond_dynamically), 0);
    EXPECT_EQ(nexus.register_req_func(kLater, keep, erpc::ReqFuncType::kForeground), 0);
    EXPECT_EQ(nexus.register_req_func(kBackground, echo_in_background, erpc::ReqFuncType::kBackground), 0);
    EXPECT_EQ(nexus.register_req_func(kAsk, ask_in_background, erpc::ReqFuncType::kBackground), 0);
    EXPECT_EQ(nexus.register_req_func(kBackgroundLater, keep_in_background, erpc::ReqFuncType::kBackground), 0);
    EXPECT_EQ(nexus.register_req_func(kBlocked, echo_when_allowed, erpc::ReqFuncType::kBackground), 0);
    EXPECT_EQ(nexus.register_req_func(kCount, respond_with_size), 0);
  }
  void start_server() {
    server_nexus = std::make_unique<erpc::Nexus>(server_uri, 0, 2);
    register_all(*server_nexus);
    server = std::make_unique<CRpc>(server_nexus.get(), &at_server, 0, on_session);
    at_server.rpc = server.get();
  }
  void start_client() {
    client_nexus = std::make_unique<erpc::Nexus>(client_uri, 0, 1);
    register_all(*client_nexus);
    client = std::make_unique<CRpc>(client_nexus.get(), &at_client, 7, on_session);
    at_client.rpc = client.get();
  }
  void start() {
    start_server();
    start_client();
  }
  template <class F>
  bool run_until(F&& is_true) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (!is_true()) {
      if (server != nullptr) server->run_event_loop_once();
      if (client != nullptr) client->run_event_loop_once();
      if (std::chrono::steady_clock::now() > until) {
        ADD_FAILURE() << "timed out";
        return false;
      }
    }
    return true;
  }
  int open(uint8_t id = 0) {
    const int session = client->create_session(server_uri, id);
    EXPECT_GE(session, 0);
    if (session >= 0) run_until([&] { return client->is_connected(session); });
    return session;
  }
  erpc::MsgBuffer message(std::string_view text) {
    erpc::MsgBuffer buffer = client->alloc_msg_buffer_or_die(std::max<size_t>(text.size(), 1));
    CRpc::resize_msg_buffer(&buffer, text.size());
    std::memcpy(buffer.buf_, text.data(), text.size());
    return buffer;
  }
  static std::string text_of(const erpc::MsgBuffer& buffer) {
    return {reinterpret_cast<const char*>(buffer.buf_), buffer.get_data_size()};
  }
  /// Runs one request to its end. `response` has the answer.
  void ask(int session, uint8_t type, erpc::MsgBuffer& request, erpc::MsgBuffer& response, size_t tag = 0) {
    const size_t before = at_client.continuations;
    client->enqueue_request(session, type, &request, &response, on_done, reinterpret_cast<void*>(tag));
    run_until([&] { return at_client.continuations == before + 1; });
  }

  const std::string server_uri = free_uri(), client_uri = free_uri();
  Context at_server, at_client;
  std::unique_ptr<erpc::Nexus> server_nexus, client_nexus;
  std::unique_ptr<CRpc> server, client;
};

}  // namespace
