// The cheapest way that we know to pass 32 B from one thread to another: 64-byte cells that contain the sequence
// number, and no shared index. Each side keeps its own position. Standard library only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace limits {

constexpr size_t kMessageBytes = 32;

struct alignas(64) Cell {
  std::atomic<uint64_t> sequence;  ///< 1 + position of the message in this cell
  std::byte bytes[kMessageBytes];
};
static_assert(sizeof(Cell) == 64);

/// One direction. The writer must never be kCells messages ahead of the reader. The user ensures that by counting the
/// outstanding messages.
template <size_t kCells>
struct Ring {
  Cell cells[kCells] = {};
  void put(uint64_t position, const std::byte* bytes) {
    Cell& cell = cells[position % kCells];
    std::memcpy(cell.bytes, bytes, kMessageBytes);
    cell.sequence.store(position + 1, std::memory_order_release);
  }
  bool has(uint64_t position) const {
    return cells[position % kCells].sequence.load(std::memory_order_acquire) == position + 1;
  }
  bool try_get(uint64_t position, std::byte* bytes) const {
    if (!has(position)) return false;
    std::memcpy(bytes, cells[position % kCells].bytes, kMessageBytes);
    return true;
  }
};

}  // namespace limits
