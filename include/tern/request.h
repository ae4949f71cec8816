// Request: what a handler gets, and how it answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <tern/detail/export.h>
#include <tern/detail/request_front.h>
#include <tern/duration.h>
#include <tern/msgbuf.h>
#include <tern/status.h>

namespace tern {

/// A request that waits for its answer. Move-only; may be kept after the handler has returned, and answered later
/// from any thread: every member, the destructor included, may be called by any one thread at a time. Destroyed
/// unanswered, its client gets kNoResponse. After its endpoint is gone, or its client has cancelled, answering does
/// nothing.
class Request {
 public:
  /// For the library: what a handler is called with. Until it is moved it is its handler's alone, and does without the
  /// questions that come up once another thread may have it.
  explicit Request(detail::RequestFront* front) : front_(front), place_(Place::kInHandler) {}
  /// `other` is as an answered one afterwards: what is called on it does nothing.
  Request(Request&& other) noexcept : front_(other.leave_handler()) {}
  /// Drops what this one had (kNoResponse); `other` is as an answered one afterwards.
  Request& operator=(Request&& other) noexcept {
    if (this != &other) {
      if (front_ != nullptr) drop(end());
      front_ = other.leave_handler();
    }
    return *this;
  }
  ~Request() {
    if (front_ != nullptr) [[unlikely]]
      drop(front_);
  }

  /// The request message, at any alignment. In a dispatch-mode handler it may be the transport's receive buffer: a span
  /// taken there ends when the handler returns. If the request is kept, the library copies the message then; bytes()
  /// afterwards names the copy, which lives as long as the Request.
  std::span<const std::byte> bytes() const {
    if (place_ == Place::kElsewhere) [[unlikely]]
      return bytes(front_);
    return {front_->data, front_->bytes};
  }
  /// Memory for an answer of `len_bytes`: preallocated where it fits, else from the arena. A second call replaces the
  /// first. kTooLarge: above 1 GiB. kNoMemory. kMisuse: already answered or moved from.
  Result<std::span<std::byte>> response(size_t len_bytes) {
    detail::Buffer* room = place_ != Place::kElsewhere ? front_->room : nullptr;
    if (room != nullptr && len_bytes <= room->capacity_bytes) [[likely]] {
      place_ = Place::kHasAnswer;
      room->revoke_lease();
      room->length_bytes = static_cast<uint32_t>(len_bytes);
    } else {
      if (place_ == Place::kHasAnswer) place_ = Place::kInHandler;
      room = find_room(front_, len_bytes);
      if (room == nullptr) return no_room(front_, len_bytes);
    }
    return std::span(room->data(), len_bytes);
  }
  /// Sends what response() gave; an empty answer if it was never called. Ends the Request.
  void respond() {
    if (place_ == Place::kHasAnswer) [[likely]] {
      end()->progress = detail::RequestFront::Progress::kAnswered;
    } else {
      respond(end());
    }
  }
  /// Sends `reply`, which moves to the library. A MsgBuf of another endpoint is copied. An empty MsgBuf drops the
  /// request (kNoResponse), for there is nothing to send. Ends the Request.
  void respond(MsgBuf&& reply) {
    if (front_ != nullptr) respond(end(), std::move(reply));
  }
  /// The client's continuation gets kRefused and `app_code`: not 0, so that it can tell this from a refusal of the
  /// library. Ends the Request.
  void fail(uint16_t app_code) { fail(end(), app_code); }
  /// Until the client's deadline; Duration::max() if it has none, zero or less once it has passed.
  Duration time_left() const { return time_left(front_); }
  /// The client has cancelled, its deadline has passed there, or its session is gone: nobody waits for the answer.
  bool is_cancelled() const { return is_cancelled(front_); }

 private:
  enum class Place : uint8_t {
    kElsewhere,  ///< moved: any thread may have it, and its handler may have returned. Or ended
    kInHandler,  ///< what its handler was called with
    kHasAnswer,  ///< likewise, and response() has given out `room`
  };
  // The members proper, by value: a Request that never leaves its handler stays in registers.
  TERN_API static std::span<const std::byte> bytes(detail::RequestFront* front);
  TERN_API static detail::Buffer* find_room(detail::RequestFront* front, size_t len_bytes);
  TERN_API static Status no_room(detail::RequestFront* front, size_t len_bytes);
  TERN_API static void respond(detail::RequestFront* front);
  TERN_API static void respond(detail::RequestFront* front, MsgBuf&& reply);
  TERN_API static void fail(detail::RequestFront* front, uint16_t app_code);
  TERN_API static Duration time_left(const detail::RequestFront* front);
  TERN_API static bool is_cancelled(const detail::RequestFront* front);
  TERN_API static void drop(detail::RequestFront* front);
  /// The answer that it has, if any, goes with it: the handler's room will be somebody else's.
  TERN_API static void take_room(detail::RequestFront* front);

  detail::RequestFront* end() {
    place_ = Place::kElsewhere;
    return std::exchange(front_, nullptr);
  }
  detail::RequestFront* leave_handler() {
    if (place_ == Place::kHasAnswer) take_room(front_);
    return end();
  }

  detail::RequestFront* front_;
  Place place_ = Place::kElsewhere;
};

}  // namespace tern
