#include "base/pool.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <set>
#include <vector>

#include "unit/base/resident_bytes.h"

namespace tern::base {
namespace {

struct alignas(64) Item {
  explicit Item(uint64_t v) : value(v) { alive++; }
  ~Item() { alive--; }
  uint64_t value;
  char rest[700] = {};
  static inline int alive = 0;
};

TEST(PoolTest, take__constructs_at_aligned_places_of_their_own) {
  Pool<Item> pool;
  std::vector<Item*> items;
  for (uint64_t i = 0; i < 20000; i++) {
    items.push_back(pool.take(i));
    ASSERT_NE(items.back(), nullptr);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(items.back()) % 64, 0u);
  }
  EXPECT_EQ(std::set<Item*>(items.begin(), items.end()).size(), items.size());
  for (uint64_t i = 0; i < items.size(); i++) ASSERT_EQ(items[i]->value, i);
  EXPECT_EQ(Item::alive, 20000);
  for (Item* item : items) pool.give(item);
  EXPECT_EQ(Item::alive, 0);
  EXPECT_EQ(pool.taken(), 0u);
}

TEST(PoolTest, give__makes_room_for_the_next) {
  Pool<Item> pool;
  std::vector<Item*> items;
  size_t bytes = 0;
  for (int round = 0; round < 3; round++) {
    for (uint64_t i = 0; i < 5000; i++) items.push_back(pool.take(i));
    if (round == 0) bytes = pool.bytes();
    EXPECT_EQ(pool.bytes(), bytes);
    for (Item* item : items) pool.give(item);
    items.clear();
  }
}

TEST(PoolTest, trim__gives_back_what_no_object_needs) {
  Pool<Item> pool;
  pool.trim();
  pool.give(pool.take(1));
  const size_t bytes = pool.bytes();
  pool.trim();
  EXPECT_EQ(pool.bytes(), bytes);
  for (int round = 0; round < 3; round++) {
    std::vector<Item*> items;
    for (uint64_t i = 0; i < 20000; i++) items.push_back(pool.take(i));
    for (uint64_t i = 0; i < items.size(); i++) ASSERT_EQ(items[i]->value, i);
    while (items.size() > 1) {
      pool.give(items.back());
      items.pop_back();
    }
    pool.trim();
    EXPECT_GT(pool.bytes(), 20000 * sizeof(Item)) << "an object is taken";
    pool.give(items.back());
    pool.trim();
    EXPECT_EQ(pool.bytes(), bytes);
  }
}

#ifndef TERN_IS_SANITIZED  // a sanitizer's allocator keeps notes of these pages
TEST(PoolTest, take__touches_no_huge_page_for_one_object) {
  constexpr size_t kPools = 16, kObjects = 4097;  // the last object is in a slab of one huge page
  const size_t before = resident_bytes();
  if (before == 0) GTEST_SKIP() << "no /proc/self/statm here";
  std::array<Pool<Item>, kPools> pools;
  std::array<std::vector<Item*>, kPools> items;
  for (size_t i = 0; i < kPools; i++) {
    for (uint64_t n = 0; n < kObjects; n++) items[i].push_back(pools[i].take(n));
    ASSERT_GE(pools[i].bytes(), kObjects * sizeof(Item) + kHugeSlabBytes / 2);
  }
  EXPECT_LT(resident_bytes(), before + kPools * (kObjects * sizeof(Item) + kHugeSlabBytes / 2));
  for (size_t i = 0; i < kPools; i++) {
    for (Item* item : items[i]) pools[i].give(item);
  }
}
#endif

TEST(PoolTest, bytes__are_at_most_twice_those_taken_and_a_huge_page) {
  Pool<Item> pool;
  std::vector<Item*> items;
  for (uint64_t i = 0; i < 30000; i++) {
    items.push_back(pool.take(i));
    const size_t taken = items.size() * sizeof(Item);
    ASSERT_LE(pool.bytes(), taken + std::min(std::max(taken, 64 * sizeof(Item)), kHugeSlabBytes));
  }
  for (Item* item : items) pool.give(item);
}

TEST(PoolTest, slab__large_ones_are_whole_huge_pages) {
  for (const size_t bytes : {kHugeSlabBytes, kHugeSlabBytes + 1}) {
    void* slab = map_slab(bytes);
    ASSERT_NE(slab, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(slab) % kHugeSlabBytes, 0u);
    std::memset(slab, 1, bytes);
    unmap_slab(slab, bytes);
  }
  void* small = map_slab(100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(small) % 64, 0u);
  unmap_slab(small, 100);
}

}  // namespace
}  // namespace tern::base
