// MsgBuf: the memory of one message, with one owner at a time. SharedBuf: a message of several calls or responses.
// Standard library only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include <tern/detail/buffer.h>

namespace tern {

namespace detail {
inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
}  // namespace detail

/// Move-only owner of a message buffer of an endpoint's arena. A MsgBuf is empty if it was moved from, or if there was
/// no memory. One thread at a time may use it. Any thread may destroy it, also after its endpoint is gone. Exception:
/// while another thread destroys the endpoint, the endpoint's owner must not destroy it.
class MsgBuf {
 public:
  MsgBuf() = default;
  explicit MsgBuf(detail::Buffer* buffer) : buffer_(buffer) {}  ///< for the library
  /// `other` is empty afterwards.
  MsgBuf(MsgBuf&& other) noexcept : buffer_(std::exchange(other.buffer_, nullptr)) {}
  /// Releases the buffer that this one had; `other` is empty afterwards.
  MsgBuf& operator=(MsgBuf&& other) noexcept {
    if (this != &other) {
      reset();
      buffer_ = std::exchange(other.buffer_, nullptr);
    }
    return *this;
  }
  ~MsgBuf() { reset(); }

  /// False: empty.
  explicit operator bool() const { return buffer_ != nullptr; }
  /// The bytes of the message, up to its length. Empty for an empty MsgBuf.
  std::span<std::byte> bytes() {
    return buffer_ != nullptr ? std::span(buffer_->data(), buffer_->length_bytes) : std::span<std::byte>();
  }
  /// The bytes of the message, read-only.
  std::span<const std::byte> bytes() const {
    return buffer_ != nullptr ? std::span(std::as_const(*buffer_).data(), buffer_->length_bytes)
                              : std::span<const std::byte>();
  }
  /// bytes() as characters, for a message that is text.
  std::string_view text() const { return detail::text_of(bytes()); }
  /// The largest length that resize() accepts: at least the length at allocation.
  size_t capacity() const { return buffer_ != nullptr ? buffer_->capacity_bytes : 0; }
  /// Sets the length; the bytes stay as they are. Beyond capacity() it returns false, and nothing changes.
  [[nodiscard]] bool resize(size_t len_bytes) {
    if (buffer_ == nullptr || len_bytes > buffer_->capacity_bytes) return false;
    buffer_->length_bytes = static_cast<uint32_t>(len_bytes);
    return true;
  }

  detail::Buffer* buffer() const { return buffer_; }                  ///< for the library
  detail::Buffer* take() { return std::exchange(buffer_, nullptr); }  ///< for the library

 private:
  void reset() {
    if (buffer_ != nullptr) detail::release_buffer(std::exchange(buffer_, nullptr));
  }
  detail::Buffer* buffer_ = nullptr;
};

/// A message that may be the request of several calls of its endpoint, and the response to several requests, at the
/// same time: Endpoint::enqueue_request() and Request::respond() accept one in place of a MsgBuf. Copies share the same
/// memory, which must not be written. The memory returns to the arena when the last copy and the last call have ended,
/// and each client has the response, unless take() takes it back before. Different threads may use different copies at
/// the same time.
class SharedBuf {
 public:
  SharedBuf() = default;
  /// Takes the buffer of `message`, which is empty afterwards. If `message` is empty, so is this.
  explicit SharedBuf(MsgBuf&& message) : buffer_(message.take()) {
    if (buffer_ != nullptr) buffer_->begin_sharing();
  }
  SharedBuf(const SharedBuf& other) : buffer_(other.share()) {}                              ///< the same message
  SharedBuf(SharedBuf&& other) noexcept : buffer_(std::exchange(other.buffer_, nullptr)) {}  ///< leaves `other` empty
  SharedBuf& operator=(SharedBuf other) noexcept {  ///< replaces the message by that of `other`
    std::swap(buffer_, other.buffer_);
    return *this;
  }
  ~SharedBuf() {
    if (buffer_ != nullptr) detail::release_buffer(buffer_);
  }

  /// False: empty.
  explicit operator bool() const { return buffer_ != nullptr; }
  /// The message. Empty for an empty SharedBuf.
  std::span<const std::byte> bytes() const {
    return buffer_ != nullptr ? std::span(std::as_const(*buffer_).data(), buffer_->length_bytes)
                              : std::span<const std::byte>();
  }
  /// bytes() as characters, for a message that is text.
  std::string_view text() const { return detail::text_of(bytes()); }
  /// Returns the memory for writing if there is no other copy, and no call or response uses it; this SharedBuf is then
  /// empty. Otherwise the result is empty, and nothing changes.
  MsgBuf take() {
    if (buffer_ == nullptr || buffer_->sharers.load(std::memory_order_acquire) != 1) return MsgBuf();
    buffer_->end_sharing();
    buffer_->revoke_lease();
    return MsgBuf(std::exchange(buffer_, nullptr));
  }

  detail::Buffer* buffer() const { return buffer_; }  ///< for the library
  detail::Buffer* share() const {                     ///< for the library: makes the caller an owner, too
    if (buffer_ != nullptr) buffer_->sharers.fetch_add(1, std::memory_order_relaxed);
    return buffer_;
  }

 private:
  detail::Buffer* buffer_ = nullptr;
};

}  // namespace tern
