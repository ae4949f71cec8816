#include "../apps/raft/heap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "../apps/raft/libraft.h"

namespace {

struct Piece {
  std::span<uint8_t> bytes;
  uint8_t fill;

  bool is_intact() const {  // by memcmp(), which sanitizers do not slow down
    return bytes.empty() || (bytes[0] == fill && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
  }
};

Piece make_piece(void* memory, size_t bytes, uint8_t fill) {
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % alignof(std::max_align_t), 0u);
  Piece piece = {{static_cast<uint8_t*>(memory), bytes}, fill};
  std::fill(piece.bytes.begin(), piece.bytes.end(), fill);
  return piece;
}

/// Allocates pieces of lengths around the longest one that has a free list, and of one slab and more. No piece may
/// overlap another one.
void use_heap(uint32_t seed) {
  std::mt19937 random(seed);
  const auto draw_bytes = [&random] { return random() % (random() % 20 == 0 ? 100'000 : 600); };
  std::vector<Piece> pieces;
  for (int i = 0; i < 50'000; i++) {
    const size_t bytes = draw_bytes();
    const auto fill = static_cast<uint8_t>(random());
    const size_t at = pieces.empty() ? 0 : random() % pieces.size();
    switch (pieces.size() < 50 ? random() % 2 : random() % 5) {
      case 0:
        pieces.push_back(make_piece(raft_malloc(bytes), bytes, fill));
        break;
      case 1: {
        void* const memory = raft_calloc(bytes / 8 + 1, 8);
        EXPECT_TRUE((Piece{{static_cast<uint8_t*>(memory), (bytes / 8 + 1) * 8}, 0}).is_intact());
        pieces.push_back(make_piece(memory, bytes, fill));
        break;
      }
      case 2: {
        Piece& piece = pieces[at];
        ASSERT_TRUE(piece.is_intact());
        auto* const moved = static_cast<uint8_t*>(raft_realloc(piece.bytes.data(), bytes));
        EXPECT_TRUE((Piece{{moved, std::min(bytes, piece.bytes.size())}, piece.fill}).is_intact());
        if (bytes == 0) raft_free(moved);
        piece = bytes == 0 ? make_piece(raft_malloc(1), 1, fill) : make_piece(moved, bytes, fill);
        break;
      }
      default:
        ASSERT_TRUE(pieces[at].is_intact());
        raft_free(pieces[at].bytes.data());
        pieces[at] = pieces.back();
        pieces.pop_back();
    }
  }
  for (const Piece& piece : pieces) {
    ASSERT_TRUE(piece.is_intact());
    raft_free(piece.bytes.data());
  }
}

TEST(Heap, pieces_do_not_touch_each_other) {
  replicated::use_own_heap();
  raft_free(nullptr);
  use_heap(1);
  std::thread other([] { use_heap(2); });
  use_heap(3);
  other.join();
}

/// A piece goes to the free lists of the thread that frees it.
TEST(Heap, memory_of_one_thread_may_be_freed_by_another) {
  replicated::use_own_heap();
  std::vector<Piece> pieces;
  std::thread([&pieces] {
    for (size_t bytes = 1; bytes < 1000; bytes++) {
      pieces.push_back(make_piece(raft_malloc(bytes), bytes, static_cast<uint8_t>(bytes)));
    }
  }).join();
  for (const Piece& piece : pieces) {
    EXPECT_TRUE(piece.is_intact());
    raft_free(piece.bytes.data());
  }
  use_heap(4);
}

}  // namespace
