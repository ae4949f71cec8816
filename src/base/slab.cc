#include "base/slab.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace tern::base {

namespace {
constexpr std::align_val_t kAlignment{64};

size_t in_huge_pages(size_t bytes) { return (bytes + kHugeSlabBytes - 1) & ~(kHugeSlabBytes - 1); }
}  // namespace

void* map_slab(size_t bytes) {
  if (bytes < kHugeSlabBytes) return ::operator new(bytes, kAlignment, std::nothrow);
  bytes = in_huge_pages(bytes);
  // The system aligns to small pages only. Therefore map one more huge page, and unmap the memory outside of the
  // aligned range.
  void* const taken =
      mmap(nullptr, bytes + kHugeSlabBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (taken == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(taken);
  const size_t before = -reinterpret_cast<uintptr_t>(begin) & (kHugeSlabBytes - 1);
  if (before != 0) munmap(begin, before);
  munmap(begin + before + bytes, kHugeSlabBytes - before);
  (void)madvise(begin + before, bytes, MADV_HUGEPAGE);  // without huge pages, small pages serve
  return begin + before;
}

void unmap_slab(void* slab, size_t bytes) {
  if (bytes < kHugeSlabBytes) return ::operator delete(slab, kAlignment);
  munmap(slab, in_huge_pages(bytes));
}

}  // namespace tern::base
