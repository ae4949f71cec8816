// Little-endian fields in packets and messages: reads untrusted bytes, and writes bytes. Wire layer; allocates nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.h"

namespace tern::wire {

/// Reads fields in order. Past the end it reads zeros, and failed() is true from then on.
class FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T number() {
    uint64_t value = 0;
    if (!has(sizeof(T))) return 0;
    for (size_t i = 0; i < sizeof(T); i++) value |= static_cast<uint64_t>(bytes_[at_ + i]) << (8 * i);
    at_ += sizeof(T);
    return static_cast<T>(value);
  }
  void raw(void* to, size_t size) {
    if (!has(size)) return;
    std::memcpy(to, bytes_.data() + at_, size);
    at_ += size;
  }
  bool is_exact() const { return !failed_ && at_ == bytes_.size(); }
  bool failed() const { return failed_; }

 private:
  bool has(size_t size) {
    if (bytes_.size() - at_ < size) failed_ = true;
    return !failed_;
  }
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  bool failed_ = false;
};

/// Writes fields in order. The memory must be large enough for them.
class FieldWriter {
 public:
  explicit FieldWriter(std::span<std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  void number(T value) {
    CHECK(at_ + sizeof(T), <=, bytes_.size());
    for (size_t i = 0; i < sizeof(T); i++)
      bytes_[at_ + i] = static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i));
    at_ += sizeof(T);
  }
  void raw(const void* from, size_t size) {
    CHECK(at_ + size, <=, bytes_.size());
    std::memcpy(bytes_.data() + at_, from, size);
    at_ += size;
  }
  void pad_to(size_t size) {
    CHECK(at_, <=, size);
    std::fill(bytes_.begin() + static_cast<ptrdiff_t>(at_), bytes_.begin() + static_cast<ptrdiff_t>(size),
              std::byte{0});
    at_ = size;
  }
  size_t size() const { return at_; }

 private:
  std::span<std::byte> bytes_;
  size_t at_ = 0;
};

}  // namespace tern::wire
