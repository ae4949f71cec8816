// memcpy for small messages, without a call, and for large ones out of another CPU's cache.
#pragma once

#include <cstddef>
#include <cstring>

#include <tern/detail/export.h>

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

/// copy_bytes() where `readable` bytes can be read at `from` and written at `to`, whatever `len` is. If `len` is no
/// more, all of them are copied, because a copy of constant length needs fewer instructions.
template <size_t readable>
[[gnu::always_inline]] inline void copy_padded(std::byte* to, const std::byte* from, size_t len) {
  if constexpr (readable != 0) {
    if (len <= readable) [[likely]] {
      std::memcpy(to, from, readable);
      return;
    }
  }
  copy_bytes(to, from, len);
}

/// As memcpy, for kilobytes that another CPU has written. For such sizes the C library takes `rep movsb`, which is slow
/// where lines come out of another cache: 64 kB at a time out of a near CPU's, 4 kB pages, 28 GB/s (Zen 4) where plain
/// vectors make 35; AVX2 and AVX-512 are no faster than these.
TERN_API void copy_large(std::byte* to, const std::byte* from, size_t len);

}  // namespace tern::base
