// MsgBuf: the memory of one message, owned by exactly one side at a time. SharedBuf: a message in several calls.
// Standard library only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <tern/detail/buffer.h>

namespace tern {

/// Move-only owner of a message buffer of an endpoint's arena. An empty one holds nothing: it was
/// moved from, or there was no memory. Used by one thread at a time; may be destroyed by any thread,
/// also after its endpoint is gone.
class MsgBuf {
 public:
  MsgBuf() = default;
  explicit MsgBuf(detail::Buffer* buffer) : buffer_(buffer) {}  ///< for the library
  /// `other` is empty afterwards.
  MsgBuf(MsgBuf&& other) noexcept : buffer_(std::exchange(other.buffer_, nullptr)) {}
  /// Releases what this one had; `other` is empty afterwards.
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
  /// The message: as many bytes as its length. Empty for an empty MsgBuf.
  std::span<std::byte> bytes() {
    return buffer_ != nullptr ? std::span(buffer_->data(), buffer_->length_bytes) : std::span<std::byte>();
  }
  /// The same, to be read only.
  std::span<const std::byte> bytes() const {
    return buffer_ != nullptr ? std::span(std::as_const(*buffer_).data(), buffer_->length_bytes)
                              : std::span<const std::byte>();
  }
  /// The largest length that resize() accepts: at least what was asked for at allocation.
  size_t capacity() const { return buffer_ != nullptr ? buffer_->capacity_bytes : 0; }
  /// Sets the length; the bytes stay as they are. False, and nothing changes, beyond capacity().
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

/// A message that may be the request of several calls of its endpoint at once: enqueue_request() takes one in place of
/// a MsgBuf. Copies share the same memory, which must not be written. It goes back to the arena when the last copy and
/// the last call with it have ended, unless take() brings it home before. Copies may be in several threads, each used
/// by one thread at a time.
class SharedBuf {
 public:
  SharedBuf() = default;
  /// `message` is empty afterwards. Of an empty one: empty.
  explicit SharedBuf(MsgBuf&& message) : buffer_(message.take()) {
    if (buffer_ == nullptr) return;
    buffer_->sharers.store(1, std::memory_order_relaxed);
    buffer_->in_use = detail::Buffer::kShared;
  }
  SharedBuf(const SharedBuf& other) : buffer_(other.buffer_) {  ///< the same message
    if (buffer_ != nullptr) buffer_->sharers.fetch_add(1, std::memory_order_relaxed);
  }
  SharedBuf(SharedBuf&& other) noexcept : buffer_(std::exchange(other.buffer_, nullptr)) {}  ///< leaves `other` empty
  SharedBuf& operator=(SharedBuf other) noexcept {  ///< the message of `other`, in place of this one
    std::swap(buffer_, other.buffer_);
    return *this;
  }
  ~SharedBuf() {
    if (buffer_ == nullptr || buffer_->sharers.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    buffer_->in_use = detail::Buffer::kOwned;
    detail::release_buffer(buffer_);
  }

  /// False: empty.
  explicit operator bool() const { return buffer_ != nullptr; }
  /// The message. Empty for an empty SharedBuf.
  std::span<const std::byte> bytes() const {
    return buffer_ != nullptr ? std::span(std::as_const(*buffer_).data(), buffer_->length_bytes)
                              : std::span<const std::byte>();
  }
  /// The memory, to write again, if there is no other copy and no call has it. This is empty then. Otherwise the result
  /// is empty, and nothing changes.
  MsgBuf take() {
    if (buffer_ == nullptr || buffer_->sharers.load(std::memory_order_acquire) != 1) return MsgBuf();
    buffer_->in_use = detail::Buffer::kOwned;
    buffer_->revoke_lease();
    return MsgBuf(std::exchange(buffer_, nullptr));
  }

  detail::Buffer* buffer() const { return buffer_; }  ///< for the library

 private:
  detail::Buffer* buffer_ = nullptr;
};

}  // namespace tern
