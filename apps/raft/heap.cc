#include "heap.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "libraft.h"

namespace replicated {

namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kIsWatched = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool kIsWatched = true;
#else
constexpr bool kIsWatched = false;
#endif
#else
constexpr bool kIsWatched = false;
#endif

constexpr size_t kUnitBytes = 16;
constexpr size_t kListedUnits = 32;  ///< maximum size of pieces that have a list; longer pieces come from malloc()
constexpr size_t kSlabBytes = 64u << 10;

/// The header before the memory of a piece.
struct alignas(kUnitBytes) Piece {
  size_t units;  ///< 0: from malloc()
  Piece* next;   ///< in its list
};

struct Lists {
  Piece* free[kListedUnits + 1] = {};
  std::byte* slab = nullptr;  ///< memory from which new pieces are cut
  size_t slab_bytes = 0;
};
thread_local constinit Lists lists;

Piece* cut(size_t units) {
  const size_t bytes = sizeof(Piece) + units * kUnitBytes;
  if (lists.slab_bytes < bytes) {
    auto* const slab = static_cast<std::byte*>(std::malloc(kSlabBytes));
    if (slab == nullptr) return nullptr;
    lists.slab = slab;
    lists.slab_bytes = kSlabBytes;
  }
  auto* const piece = new (lists.slab) Piece{units, nullptr};
  lists.slab += bytes;
  lists.slab_bytes -= bytes;
  return piece;
}

void* get(void*, size_t bytes) {
  const size_t units = std::max<size_t>((bytes + kUnitBytes - 1) / kUnitBytes, 1);
  Piece* piece;
  if (bytes > kListedUnits * kUnitBytes) [[unlikely]] {
    auto* const memory = bytes < SIZE_MAX / 2 ? std::malloc(sizeof(Piece) + bytes) : nullptr;
    piece = memory != nullptr ? new (memory) Piece{0, nullptr} : nullptr;
  } else if (piece = lists.free[units]; piece != nullptr) [[likely]] {
    lists.free[units] = piece->next;
  } else {
    piece = cut(units);
  }
  return piece != nullptr ? piece + 1 : nullptr;
}

void give(void*, void* memory) {
  if (memory == nullptr) return;
  Piece* const piece = static_cast<Piece*>(memory) - 1;
  if (piece->units == 0) [[unlikely]]
    return std::free(piece);
  piece->next = lists.free[piece->units];
  lists.free[piece->units] = piece;
}

void* get_zeroed(void*, size_t count, size_t bytes) {
  size_t all;
  if (__builtin_mul_overflow(count, bytes, &all)) return nullptr;
  void* const memory = get(nullptr, all);
  if (memory != nullptr) std::memset(memory, 0, all);
  return memory;
}

void* get_more(void*, void* memory, size_t bytes) {
  if (memory == nullptr) return get(nullptr, bytes);
  Piece* const piece = static_cast<Piece*>(memory) - 1;
  if (piece->units == 0) {
    if (bytes >= SIZE_MAX / 2) return nullptr;
    auto* const moved = static_cast<Piece*>(std::realloc(piece, sizeof(Piece) + bytes));
    return moved != nullptr ? moved + 1 : nullptr;
  }
  void* const more = get(nullptr, bytes);
  if (more == nullptr) return nullptr;
  std::memcpy(more, memory, std::min(bytes, piece->units * kUnitBytes));
  give(nullptr, memory);
  return more;
}

}  // namespace

void use_own_heap() {
  static raft_heap heap = {
      .data = nullptr,
      .malloc = get,
      .free = give,
      .calloc = get_zeroed,
      .realloc = get_more,
      .aligned_alloc = [](void*, size_t alignment, size_t bytes) { return std::aligned_alloc(alignment, bytes); },
      .aligned_free = [](void*, size_t, void* memory) { std::free(memory); }};
  if constexpr (!kIsWatched) raft_heap_set(&heap);
}

}  // namespace replicated
