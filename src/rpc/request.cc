// How a handler answers, from whatever thread it is in.

#include <tern/request.h>

#include <cstring>

#include "rpc/endpoint_core.h"
#include "rpc/mailbox.h"

namespace tern {

using rpc::Incoming;

namespace {

/// The record goes home: at once in the owner's thread, through the mailbox from others.
void go_home(Incoming* incoming) {
  if (incoming->mailbox->is_owner()) [[likely]] {
    incoming->core->on_answered(incoming);
  } else {
    incoming->mailbox->push_answered(incoming);
  }
}

/// Room for a response where the endpoint's own cannot be had: in another thread, or not at all.
[[gnu::noinline]] Result<std::span<std::byte>> respond_elsewhere(Incoming* incoming, size_t len_bytes) {
  if (incoming == nullptr) return Status(Code::kMisuse, "this Request was answered or moved from");
  if (len_bytes > memory::Arena::kMessageBytesMax) return Status(Code::kTooLarge, "a message has at most 1 GiB");
  if (incoming->response != nullptr) detail::release_buffer(incoming->response);
  incoming->response = incoming->mailbox->arena.alloc(len_bytes);
  if (incoming->response == nullptr) {
    return Status(Code::kNoMemory, "no memory for the response: see memory_limit_bytes");
  }
  return std::span(incoming->response->data(), len_bytes);
}

}  // namespace

std::span<const std::byte> Request::bytes() const {
  if (incoming_ == nullptr) return {};
  if (!incoming_->mailbox->is_owner() && !incoming_->is_stable.load(std::memory_order_acquire) &&
      !incoming_->mailbox->make_stable(incoming_)) {
    return {};
  }
  return {incoming_->data, incoming_->bytes};
}

Result<std::span<std::byte>> Request::response(size_t len_bytes) {
  if (incoming_ != nullptr && len_bytes <= memory::Arena::kMessageBytesMax && incoming_->mailbox->is_owner())
      [[likely]] {
    return incoming_->core->stage_response(incoming_, len_bytes);
  }
  return respond_elsewhere(incoming_, len_bytes);
}

void Request::respond() {
  Incoming* incoming = std::exchange(incoming_, nullptr);
  if (incoming == nullptr) [[unlikely]]
    return;
  if (incoming->mailbox->is_owner()) [[likely]]
    return incoming->core->on_responded(incoming);
  incoming->answer = Incoming::Answer::kResponse;
  if (incoming->response == nullptr) incoming->response = incoming->mailbox->arena.alloc(0);
  if (incoming->response == nullptr) {
    incoming->answer = Incoming::Answer::kFailure;
    incoming->failure = wire::FailureCode::kNoMemory;
  }
  incoming->mailbox->push_answered(incoming);
}

void Request::respond(MsgBuf&& reply) {
  if (incoming_ == nullptr) return;
  if (!reply) return drop();
  if (!incoming_->mailbox->arena.owns(reply.buffer())) {
    auto room = response(reply.bytes().size());
    if (room.ok()) {
      std::memcpy(room->data(), reply.bytes().data(), room->size());
      return respond();
    }
    incoming_->answer = Incoming::Answer::kFailure;
    incoming_->failure = wire::FailureCode::kNoMemory;
    return go_home(std::exchange(incoming_, nullptr));
  }
  if (incoming_->response != nullptr) detail::release_buffer(incoming_->response);
  incoming_->response = reply.take();
  incoming_->answer = Incoming::Answer::kResponse;
  go_home(std::exchange(incoming_, nullptr));
}

void Request::fail(uint16_t app_code) {
  if (incoming_ == nullptr) return;
  incoming_->answer = Incoming::Answer::kFailure;
  incoming_->failure = wire::FailureCode::kApplication;
  incoming_->app_code = app_code;
  go_home(std::exchange(incoming_, nullptr));
}

Duration Request::time_left() const {
  if (incoming_ == nullptr || incoming_->deadline_ns == UINT64_MAX) return Duration::max();
  return Duration(static_cast<int64_t>(incoming_->deadline_ns)) - incoming_->mailbox->environment.now();
}

bool Request::is_cancelled() const {
  return incoming_ == nullptr || incoming_->is_cancelled.load(std::memory_order_relaxed);
}

void Request::drop() {
  incoming_->answer = Incoming::Answer::kDropped;
  incoming_->failure = wire::FailureCode::kNoResponse;
  go_home(std::exchange(incoming_, nullptr));
}

}  // namespace tern
