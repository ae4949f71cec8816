// Messages of little-endian integers and bytes, back to back. A reader must not trust any length in a message.
// Standard library only; no state.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

namespace programs {

using Bytes = std::span<const std::byte>;

static_assert(std::endian::native == std::endian::little, "Reader and Writer copy integers as they are");

inline Bytes as_bytes(std::string_view text) { return std::as_bytes(std::span(text)); }
inline std::string_view as_text(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

/// Parses a message from its beginning. A read fails if the rest of the message is too short for it.
class Reader {
 public:
  explicit Reader(Bytes message) : rest_(message) {}

  template <class Integer>
  [[nodiscard]] bool read(Integer& to) {
    if (rest_.size() < sizeof(to)) return false;
    std::memcpy(&to, rest_.data(), sizeof(to));
    rest_ = rest_.subspan(sizeof(to));
    return true;
  }
  [[nodiscard]] bool read(Bytes& to, size_t len_bytes) {
    if (rest_.size() < len_bytes) return false;
    to = rest_.first(len_bytes);
    rest_ = rest_.subspan(len_bytes);
    return true;
  }
  /// Reads a length of type Length, and then that number of bytes.
  template <class Length>
  [[nodiscard]] bool read_text(std::string_view& to) {
    Length len_bytes;
    Bytes bytes;
    if (!read(len_bytes) || !read(bytes, len_bytes)) return false;
    to = as_text(bytes);
    return true;
  }
  Bytes rest() const { return rest_; }

 private:
  Bytes rest_;
};

/// Fills a message of exactly the right size from its beginning.
class Writer {
 public:
  explicit Writer(std::span<std::byte> message) : at_(message.data()) {}

  template <class Integer>
  Writer& write(Integer value) {
    std::memcpy(at_, &value, sizeof(value));
    at_ += sizeof(value);
    return *this;
  }
  Writer& write(Bytes bytes) { return write(bytes.data(), bytes.size()); }
  Writer& write(const void* bytes, size_t len_bytes) {
    if (len_bytes != 0) std::memcpy(at_, bytes, len_bytes);
    at_ += len_bytes;
    return *this;
  }
  /// Writes a length of type Length, and then the bytes. A Length must be able to hold the text's size.
  template <class Length>
  Writer& write_text(std::string_view text) {
    return write(static_cast<Length>(text.size())).write(text.data(), text.size());
  }

 private:
  std::byte* at_;
};

/// Parses a message that is one integer; nullopt if the message has another size.
template <class Integer>
std::optional<Integer> parse_integer(Bytes message) {
  Integer value;
  Reader reader(message);
  if (!reader.read(value) || !reader.rest().empty()) return std::nullopt;
  return value;
}

/// 64 bits that depend on each bit of `value` (the finalizer of splitmix64).
constexpr uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

}  // namespace programs
