// memcpy for the sizes of small messages, without a call.
#pragma once

#include <cstddef>
#include <cstring>

namespace tern::base {

/// As memcpy: reads and writes nothing beyond `len` bytes, ranges do not overlap.
inline void copy_bytes(std::byte* to, const std::byte* from, size_t len) {
  if (len - 16 > 16) [[unlikely]] {            // not 16 to 32
    if (len != 0) std::memcpy(to, from, len);  // null pointers may come with 0 bytes
    return;
  }
  std::byte head[16], tail[16];
  std::memcpy(head, from, 16);
  std::memcpy(tail, from + len - 16, 16);
  std::memcpy(to, head, 16);
  std::memcpy(to + len - 16, tail, 16);
}

}  // namespace tern::base
