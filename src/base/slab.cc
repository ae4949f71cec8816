#include "base/slab.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <new>

#include "base/transparent_pages.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif

namespace tern::base {

namespace {
constexpr std::align_val_t kAlignment{64};

size_t in_huge_pages(size_t bytes) { return (bytes + kHugeSlabBytes - 1) & ~(kHugeSlabBytes - 1); }

/// Linux before 6.1 has no MADV_COLLAPSE, and would make a slab huge only after a while.
std::atomic<bool> can_collapse{true};

/// Returns whole huge pages of address space, aligned to one. Null: there is no memory.
void* map_aligned(size_t bytes) {
  // The system aligns to small pages only. Therefore map one more huge page, and unmap the memory outside of the
  // aligned range.
  void* const taken =
      mmap(nullptr, bytes + kHugeSlabBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (taken == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(taken);
  const size_t before = -reinterpret_cast<uintptr_t>(begin) & (kHugeSlabBytes - 1);
  if (before != 0) munmap(begin, before);
  munmap(begin + before + bytes, kHugeSlabBytes - before);
  return begin + before;
}
}  // namespace

void* map_slab(size_t bytes) {
  if (bytes < kHugeSlabBytes) return ::operator new(bytes, kAlignment, std::nothrow);
  bytes = in_huge_pages(bytes);
  void* const slab = map_aligned(bytes);
  if (slab != nullptr) (void)madvise(slab, bytes, MADV_HUGEPAGE);  // without huge pages, small pages serve
  return slab;
}

void* map_slab_in_small_pages() {
  if (!can_collapse.load(std::memory_order_relaxed)) return map_slab(kHugeSlabBytes);
  void* const slab = map_aligned(kHugeSlabBytes);
  if (slab != nullptr) (void)madvise(slab, kHugeSlabBytes, MADV_NOHUGEPAGE);  // where all memory gets huge pages
  return slab;
}

void make_huge(void* slab) {
  if (!may_become_transparent(false)) return;  // MADV_COLLAPSE does not ask
  if (madvise(slab, kHugeSlabBytes, MADV_HUGEPAGE) != 0) return;
  if (madvise(slab, kHugeSlabBytes, MADV_COLLAPSE) != 0 && errno == EINVAL) {
    can_collapse.store(false, std::memory_order_relaxed);
  }
}

void unmap_slab(void* slab, size_t bytes) {
  if (bytes < kHugeSlabBytes) return ::operator delete(slab, kAlignment);
  munmap(slab, in_huge_pages(bytes));
}

void forget_pages(void* begin, size_t bytes) {
  const uintptr_t mask = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)) - 1;
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + mask) & ~mask;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(begin) + bytes) & ~mask;
  if (first < end) (void)madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}

}  // namespace tern::base
