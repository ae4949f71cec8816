#include "base/copy.h"

namespace tern::base {

void copy_large(std::byte* to, const std::byte* from, size_t len) {
  using Vector [[gnu::vector_size(16)]] = long long;
  constexpr size_t kLineBytes = 4 * sizeof(Vector), kPageBytes = 4096;
  while (len >= kLineBytes) {
    // The hardware's prefetchers stop at the end of a page. This prefetch begins the next page.
    const size_t piece = len < kPageBytes ? len & ~(kLineBytes - 1) : kPageBytes;
    if (piece < len) __builtin_prefetch(from + piece);
    for (const std::byte* const end = from + piece; from != end; from += kLineBytes, to += kLineBytes) {
      Vector a, b, c, d;  // four variables stay in registers; an array would be in memory
      std::memcpy(&a, from, sizeof a);
      std::memcpy(&b, from + 16, sizeof b);
      std::memcpy(&c, from + 32, sizeof c);
      std::memcpy(&d, from + 48, sizeof d);
      std::memcpy(to, &a, sizeof a);
      std::memcpy(to + 16, &b, sizeof b);
      std::memcpy(to + 32, &c, sizeof c);
      std::memcpy(to + 48, &d, sizeof d);
    }
    len -= piece;
  }
  if (len != 0) std::memcpy(to, from, len);
}

}  // namespace tern::base
