// MsgBuf: the memory of one message, owned by exactly one side at a time. Standard library only.
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

}  // namespace tern
