// Request: what a handler gets, and how it answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <tern/detail/export.h>
#include <tern/environment.h>
#include <tern/msgbuf.h>
#include <tern/status.h>

namespace tern {
namespace rpc {
struct Incoming;
}

/// A request that waits for its answer. Move-only; may be kept after the handler has returned, and answered later
/// from any thread: every member, the destructor included, may be called by any one thread at a time. Destroyed
/// unanswered, its client gets kNoResponse. After its endpoint is gone, or its client has cancelled, answering does
/// nothing.
class Request {
 public:
  explicit Request(rpc::Incoming* incoming) : incoming_(incoming) {}  ///< for the library
  Request(Request&& other) noexcept : incoming_(std::exchange(other.incoming_, nullptr)) {}
  Request& operator=(Request&& other) noexcept {
    if (this != &other) {
      if (incoming_ != nullptr) drop();
      incoming_ = std::exchange(other.incoming_, nullptr);
    }
    return *this;
  }
  ~Request() {
    if (incoming_ != nullptr) [[unlikely]]
      drop();
  }

  /// The request message. In a dispatch-mode handler it may be the transport's receive buffer: a span taken there
  /// ends when the handler returns. If the request is kept, the library copies the message then; bytes() afterwards
  /// names the copy, which lives as long as the Request.
  TERN_API std::span<const std::byte> bytes() const;
  /// Memory for an answer of `len_bytes`: preallocated where it fits, else from the arena. A second call replaces the
  /// first. kTooLarge: above 1 GiB. kNoMemory. kMisuse: already answered or moved from.
  TERN_API Result<std::span<std::byte>> response(size_t len_bytes);
  /// Sends what response() gave; an empty answer if it was never called. Ends the Request.
  TERN_API void respond();
  /// Sends `reply`, which moves to the library. A MsgBuf of another endpoint is copied. An empty MsgBuf drops the
  /// request (kNoResponse), for there is nothing to send. Ends the Request.
  TERN_API void respond(MsgBuf&& reply);
  /// The client's continuation gets kRefused and `app_code`. Ends the Request.
  TERN_API void fail(uint16_t app_code);
  /// Until the client's deadline; Duration::max() if it has none, zero or less once it has passed.
  TERN_API Duration time_left() const;
  /// The client has cancelled, its deadline has passed there, or its session is gone: nobody waits for the answer.
  TERN_API bool is_cancelled() const;

 private:
  TERN_API void drop();
  rpc::Incoming* incoming_;
};

}  // namespace tern
