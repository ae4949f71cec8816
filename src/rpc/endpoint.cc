// The public face of an endpoint: forwards to its core.

#include <tern/coroutine.h>
#include <tern/endpoint.h>

#include <cstdio>
#include <cstdlib>

#include "rpc/fast_path.h"

namespace tern {

Result<Session> Endpoint::create_session(std::string_view uri, SessionOptions options) {
  return core_->create_session(uri, options);
}
Status Endpoint::destroy_session(Session session) { return core_->destroy_session(session); }
SessionInfo Endpoint::session_info(Session session) const { return core_->session_info(session); }
void Endpoint::prefetch(Session session) const { core_->prefetch(session); }
MsgBuf Endpoint::alloc_msgbuf(size_t len_bytes) { return core_->alloc_msgbuf(len_bytes); }
Status Endpoint::cancel(CallId call) { return core_->cancel(call); }
Status Endpoint::cancel_timer(TimerId timer) { return core_->cancel_timer(timer); }
Duration Endpoint::now() const { return core_->now(); }
void Endpoint::stop() { core_->stop(); }
const EndpointCounters& Endpoint::counters() const { return core_->counters(); }
Status Endpoint::dump_trace(std::string_view file) const { return core_->dump_trace(file); }
uint64_t Endpoint::link_bytes_per_sec() const { return core_->link_bytes_per_sec(); }
uint16_t Endpoint::id() const { return core_->id(); }

Status Endpoint::add_handler(uint16_t type, std::unique_ptr<Handler> handler, HandlerOptions options) {
  return core_->add_handler(type, std::move(handler), options);
}
Status Endpoint::add_listener(std::unique_ptr<Listener> listener) { return core_->add_listener(std::move(listener)); }
Endpoint::Started Endpoint::start_call(Session session, uint32_t type, detail::Buffer* request,
                                       detail::Buffer* response) {
  return core_->start_call(session, type, request, response);
}
Endpoint::Started Endpoint::start_deadline_call(Session session, uint32_t type, detail::Buffer* request,
                                                detail::Buffer* response, Duration deadline) {
  return core_->start_timed_call(session, type, request, response, deadline);
}
Endpoint::Continuation* Endpoint::start_plain_call(Session session, uint8_t type, detail::Buffer* request,
                                                   detail::Buffer* response, uint32_t len_bytes) {
  return core_->start_plain_call(session, type, request, response, len_bytes);
}
Status Endpoint::refusal() const { return core_->refusal(); }
Result<TimerId> Endpoint::add_timer(Duration delay, detail::InlineFunction<> then) {
  return core_->add_timer(delay, std::move(then));
}
Status Endpoint::add_post(detail::InlineFunction<> then) { return core_->add_post(std::move(then)); }

Result<bool> Endpoint::wait_for_open(Session session, detail::SessionWaiter* waiter) {
  return core_->wait_for_open(session, waiter);
}
void Endpoint::stop_waiting(Session session, detail::SessionWaiter* waiter) { core_->stop_waiting(session, waiter); }

void CallAwaitable::destroyed_in_flight() {
  std::fputs(
      "tern: a coroutine was destroyed while it waited for a call, whose answer would be written to freed memory: let "
      "the call end first (Endpoint::cancel() ends it)\n",
      stderr);
  std::abort();
}

namespace detail {

void task_has_a_waiter() noexcept {
  std::fputs(
      "tern: two coroutines wait for one task (co_await task, when_all, quorum): let one of them wait, and tell the "
      "other\n",
      stderr);
  std::abort();
}

}  // namespace detail
}  // namespace tern
