// The answers of handlers, from any thread.

#include <tern/request.h>

#include <cstring>

#include "rpc/handlers.h"
#include "rpc/mailbox.h"

namespace tern {

using rpc::Incoming;

namespace {

Incoming* record_of(detail::RequestFront* front) { return static_cast<Incoming*>(front); }
const Incoming* record_of(const detail::RequestFront* front) { return static_cast<const Incoming*>(front); }

/// Gives the record back to its endpoint: at once in the owner's thread, through the mailbox from other threads.
void go_home(Incoming* incoming) {
  if (incoming->mailbox->is_owner()) [[likely]] {
    incoming->handlers->on_answered(incoming);
  } else {
    incoming->mailbox->push_answered(incoming);
  }
}

void fail_with(Incoming* incoming, wire::FailureCode code, uint16_t app_code) {
  incoming->set_failed(code);
  incoming->app_code = app_code;
  go_home(incoming);
}

/// Must return true before `data` and `bytes` are read: only the owner may read a message that is not stable. False:
/// there is no memory for a copy.
bool make_readable(Incoming* incoming) {
  return incoming->mailbox->is_owner() || incoming->mailbox->make_stable(incoming);
}

}  // namespace

std::span<const std::byte> Request::bytes(detail::RequestFront* front) {
  Incoming* incoming = record_of(front);
  if (incoming == nullptr) return {};
  return make_readable(incoming) ? std::span(incoming->data, incoming->bytes) : std::span<const std::byte>();
}

std::span<const std::byte> Request::stable_bytes(detail::RequestFront* front) {
  Incoming* incoming = record_of(front);
  if (incoming == nullptr) return {};
  const bool is_stable = incoming->mailbox->make_stable(incoming);
  return is_stable ? std::span(incoming->data, incoming->bytes) : std::span<const std::byte>();
}

Result<MsgBuf> Request::take_message(detail::RequestFront* front) {
  Incoming* incoming = record_of(front);
  if (incoming == nullptr) return Status(Code::kMisuse, "this Request was answered or moved from");
  const Status no_memory(Code::kNoMemory,
                         "no memory for the message: free some, or raise RpcOptions::memory_limit_bytes");
  if (!make_readable(incoming)) return no_memory;
  const std::span message(incoming->data, incoming->bytes);
  memory::Arena& arena = incoming->mailbox->arena;
  detail::Buffer* buffer = nullptr;
  if (incoming->is_stable() && incoming->copy != nullptr && arena.owns(incoming->copy)) {
    buffer = std::exchange(incoming->copy, nullptr);
  } else {
    buffer = incoming->mailbox->alloc(message.size());
    if (buffer == nullptr) return no_memory;
    if (incoming->type != Incoming::kNoType) incoming->mailbox->note_taken(incoming->type);
    base::copy_bytes(buffer->data(), message.data(), message.size());
  }
  buffer->length_bytes = incoming->bytes;
  incoming->data = nullptr;
  incoming->bytes = 0;
  incoming->place.store(Incoming::Place::kStable, std::memory_order_release);  // no bytes are left to copy
  return MsgBuf(buffer);
}

void Request::leave_handler(detail::RequestFront* front, bool has_answer) {
  Incoming* incoming = record_of(front);
  incoming->note_session();
  if (has_answer) incoming->response = incoming->handlers->take_response_buffer(incoming, 0);
}

detail::Buffer* Request::find_buffer(detail::RequestFront* front, size_t len_bytes) {
  Incoming* incoming = record_of(front);
  if (incoming == nullptr || len_bytes > memory::Arena::kMessageBytesMax) return nullptr;
  const bool is_owner = incoming->mailbox->is_owner();
  detail::Buffer* const before = incoming->response;
  detail::Buffer* buffer = before != nullptr && before->capacity_bytes >= len_bytes ? before : nullptr;
  if (before == nullptr && is_owner) buffer = incoming->handlers->take_response_buffer(incoming, len_bytes);
  if (buffer == nullptr) buffer = incoming->mailbox->alloc(len_bytes);
  if (buffer == nullptr) return nullptr;  // an earlier answer stays
  if (before != nullptr && before != buffer) detail::release_buffer(before);
  if (is_owner) incoming->space = nullptr;  // the answer is not there
  buffer->length_bytes = static_cast<uint32_t>(len_bytes);
  return incoming->response = buffer;
}

Status Request::no_buffer(detail::RequestFront* front, size_t len_bytes) {
  if (front == nullptr) return {Code::kMisuse, "this Request was answered or moved from"};
  if (len_bytes > memory::Arena::kMessageBytesMax) return {Code::kTooLarge, "a message may have at most 1 GiB"};
  return {Code::kNoMemory, "no memory for the response: free some, or raise RpcOptions::memory_limit_bytes"};
}

void Request::respond(detail::RequestFront* front) {
  Incoming* incoming = record_of(front);
  if (incoming == nullptr) return;
  if (incoming->response == nullptr && find_buffer(incoming, 0) == nullptr) {
    return fail_with(incoming, wire::FailureCode::kNoMemory, 0);
  }
  incoming->answer = Incoming::Answer::kResponse;
  go_home(incoming);
}

void Request::respond(detail::RequestFront* front, MsgBuf&& reply) {
  if (!reply) return drop(front);
  Incoming* incoming = record_of(front);
  if (!incoming->mailbox->arena.owns(reply.buffer())) return respond_copy(incoming, std::as_const(reply).bytes());
  if (incoming->response != nullptr) detail::release_buffer(incoming->response);
  incoming->response = reply.take();
  respond(incoming);
}

void Request::respond(detail::RequestFront* front, const SharedBuf& reply) {
  if (!reply) return drop(front);
  Incoming* incoming = record_of(front);
  if (!incoming->mailbox->arena.owns(reply.buffer())) return respond_copy(incoming, reply.bytes());
  if (incoming->response != nullptr) detail::release_buffer(incoming->response);
  incoming->response = reply.share();
  respond(incoming);
}

/// Answers with a copy of a message of another endpoint.
void Request::respond_copy(detail::RequestFront* front, std::span<const std::byte> bytes) {
  Incoming* incoming = record_of(front);
  detail::Buffer* buffer = find_buffer(incoming, bytes.size());
  if (buffer == nullptr) return fail_with(incoming, wire::FailureCode::kNoMemory, 0);
  if (!bytes.empty()) std::memcpy(buffer->data(), bytes.data(), bytes.size());
  respond(incoming);
}

void Request::fail(detail::RequestFront* front, uint16_t app_code) {
  if (front != nullptr) fail_with(record_of(front), wire::FailureCode::kApplication, app_code);
}

Duration Request::time_left(const detail::RequestFront* front) {
  const Incoming* incoming = record_of(front);
  if (is_cancelled(front)) return Duration(0);  // the environment may be gone
  if (!incoming->has_deadline()) return Duration::max();
  return Duration(static_cast<int64_t>(incoming->deadline_ns)) - incoming->mailbox->environment.now();
}

bool Request::is_cancelled(const detail::RequestFront* front) {
  return front == nullptr || record_of(front)->is_cancelled.load(std::memory_order_relaxed);
}

Session Request::session(const detail::RequestFront* front) {
  return front == nullptr ? Session{} : Session{record_of(front)->session_name()};
}

void Request::drop(detail::RequestFront* front) {
  Incoming* incoming = record_of(front);
  incoming->answer = Incoming::Answer::kDropped;
  incoming->failure = wire::FailureCode::kNoResponse;
  go_home(incoming);
}

}  // namespace tern
