// Request: the argument of a handler, with which it answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include <tern/detail/export.h>
#include <tern/detail/request_front.h>
#include <tern/duration.h>
#include <tern/msgbuf.h>
#include <tern/session.h>
#include <tern/status.h>

namespace tern {

/// A request that waits for its answer. Move-only. It may be kept after the handler has returned, and answered later by
/// any thread; one thread at a time may call its members, the destructor included. If it is destroyed without an
/// answer, its client gets kNoResponse. An answer does nothing if the endpoint is gone or the client has cancelled.
class Request {
 public:
  /// For the library: the argument of a handler. Until it is moved, only the handler's thread has it, and its members
  /// need no synchronization.
  explicit Request(detail::RequestFront* front) : front_(front), place_(Place::kInHandler) {}
  /// `other` is afterwards like an answered Request: its members do nothing.
  Request(Request&& other) noexcept : front_(other.leave_handler()) {}
  /// Drops the request that this one had (kNoResponse). `other` is afterwards like an answered Request.
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

  /// The request message, without alignment. In a handler that runs in the event loop it may lie in the transport's
  /// receive buffer: the span is valid until the handler returns or the Request ends, whichever comes first; respond()
  /// and fail() end it. If the handler keeps the Request, the library copies the message then, and bytes() returns the
  /// copy, which is valid as long as the Request. If there is no memory for the copy, the client gets kNoMemory,
  /// bytes() is empty, and is_cancelled() is true.
  std::span<const std::byte> bytes() const {
    if (place_ == Place::kElsewhere) [[unlikely]]
      return bytes(front_);
    return {front_->data, front_->bytes};
  }
  /// bytes() as characters, for a message that is text.
  std::string_view text() const { return detail::text_of(bytes()); }
  /// As bytes(), but the span is valid as long as the Request: a message that lies in a receive buffer is copied now.
  /// Empty if there is no memory for the copy.
  std::span<const std::byte> stable_bytes() const { return stable_bytes(front_); }
  /// Returns the request message in a MsgBuf of the endpoint, to keep it, to send it on or to answer with it. bytes()
  /// is empty afterwards. A message in one packet (over UDP of up to 64 kB, where the path carries such packets) is
  /// copied once, out of the receive buffer (over shm: one of at most 8 KiB). A longer one is not copied. Over shm the
  /// first long message of a type is copied, too, unless RpcOptions::memory_limit_bytes is set: it has arrived in
  /// memory that peers cannot read, and later ones do not. kNoMemory: nothing has changed. kMisuse: already answered,
  /// or moved from.
  Result<MsgBuf> take_message() { return take_message(front_); }
  /// Memory for a response of `len_bytes`: the preallocated buffer if that is large enough, otherwise one from the
  /// arena. A second call replaces the first, unless it fails. kTooLarge: above 1 GiB. kNoMemory. kMisuse: already
  /// answered, or moved from.
  Result<std::span<std::byte>> response(size_t len_bytes) {
    detail::Buffer* buffer = place_ != Place::kElsewhere ? front_->space : nullptr;
    if (buffer != nullptr && len_bytes < buffer->writable_end) [[likely]] {
      place_ = Place::kHasAnswer;
      buffer->revoke_lease();
      buffer->length_bytes = static_cast<uint32_t>(len_bytes);
    } else {
      buffer = find_buffer(front_, len_bytes);
      if (buffer == nullptr) return no_buffer(front_, len_bytes);
      if (place_ == Place::kHasAnswer) place_ = Place::kInHandler;
    }
    return std::span(buffer->data(), len_bytes);
  }
  /// Sends the memory of response() as the response; an empty response if it was not called. Ends the Request.
  void respond() {
    if (place_ == Place::kHasAnswer) [[likely]] {
      end()->progress = detail::RequestFront::Progress::kAnswered;
    } else {
      respond(end());
    }
  }
  /// Sends `reply`, which moves to the library, without a copy. A MsgBuf of another endpoint is copied. An empty MsgBuf
  /// drops the request (kNoResponse). Ends the Request.
  void respond(MsgBuf&& reply) {
    if (front_ != nullptr) respond(end(), std::move(reply));
  }
  /// Sends `reply`, which may be the response to other requests at the same time. The library shares it until the
  /// client has reported the response as received, has used its slot for another request, or has not asked for the
  /// response for 25 s. A SharedBuf of another endpoint is copied. An empty one drops the request (kNoResponse). Ends
  /// the Request. RpcOptions::response_budget_bytes does not count it: share messages that the program keeps anyway,
  /// and pass on the others as a MsgBuf.
  void respond(const SharedBuf& reply) {
    if (front_ != nullptr) respond(end(), reply);
  }
  /// Ends the Request: the client's continuation gets kRefused and `app_code`. Do not use the code 0, which means a
  /// refusal by the library.
  void fail(uint16_t app_code) { fail(end(), app_code); }
  /// The time until the client's deadline; zero or less after it, and zero if is_cancelled(); Duration::max() if there
  /// is none.
  Duration time_left() const { return time_left(front_); }
  /// True if no client waits for the answer: it has cancelled, its deadline has passed there, or its session has ended.
  bool is_cancelled() const { return is_cancelled(front_); }
  /// The client's session. In the endpoint's thread, Endpoint::session_info() returns the client's address. For an
  /// answered Request the result names no session.
  Session session() const { return session(front_); }

 private:
  enum class Place : uint8_t {
    kElsewhere,  ///< moved (any thread may have it, and its handler may have returned), or ended
    kInHandler,  ///< the argument of its handler
    kHasAnswer,  ///< as kInHandler, and response() has returned the preallocated buffer
  };
  // The implementations of the members. They take the front by value, so that a Request stays in registers.
  TERN_API static std::span<const std::byte> bytes(detail::RequestFront* front);
  TERN_API static std::span<const std::byte> stable_bytes(detail::RequestFront* front);
  TERN_API static Result<MsgBuf> take_message(detail::RequestFront* front);
  TERN_API static detail::Buffer* find_buffer(detail::RequestFront* front, size_t len_bytes);
  TERN_API static Status no_buffer(detail::RequestFront* front, size_t len_bytes);
  TERN_API static void respond(detail::RequestFront* front);
  TERN_API static void respond(detail::RequestFront* front, MsgBuf&& reply);
  TERN_API static void respond(detail::RequestFront* front, const SharedBuf& reply);
  static void respond_copy(detail::RequestFront* front, std::span<const std::byte> bytes);
  TERN_API static void fail(detail::RequestFront* front, uint16_t app_code);
  TERN_API static Duration time_left(const detail::RequestFront* front);
  TERN_API static bool is_cancelled(const detail::RequestFront* front);
  TERN_API static Session session(const detail::RequestFront* front);
  TERN_API static void drop(detail::RequestFront* front);
  /// The handler moves its Request, perhaps to another thread. `has_answer`: the preallocated buffer has the response,
  /// and leaves the slot, so that the next request does not use it.
  TERN_API static void leave_handler(detail::RequestFront* front, bool has_answer);

  detail::RequestFront* end() {
    place_ = Place::kElsewhere;
    return std::exchange(front_, nullptr);
  }
  detail::RequestFront* leave_handler() {
    if (place_ != Place::kElsewhere) leave_handler(front_, place_ == Place::kHasAnswer);
    return end();
  }

  detail::RequestFront* front_;
  Place place_ = Place::kElsewhere;
};

}  // namespace tern
