#include "session/windows.h"

#include <algorithm>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "unit/failing_new.h"

namespace {
bool has_memory = true;
}  // namespace

bool tern::test::allocation_fails() noexcept { return !has_memory; }

namespace tern::session {
namespace {

TEST(ExpandNumber, nearest_to_the_reference) {
  constexpr uint64_t kWrap = 1u << 24;
  for (uint64_t near :
       {uint64_t{1}, uint64_t{1000}, kWrap - 1, kWrap, kWrap + 1, 5 * kWrap + 77, (uint64_t{1} << 40) + 3}) {
    for (int64_t distance : {int64_t{0}, int64_t{1}, int64_t{-1}, int64_t{255}, int64_t{-255}, int64_t{(1 << 23) - 1},
                             int64_t{-(1 << 23)}}) {
      const uint64_t full = near + static_cast<uint64_t>(distance);
      if (static_cast<int64_t>(full) < 0) continue;
      EXPECT_EQ(expand_number(static_cast<uint32_t>(full) & wire::kNumberMask, near), full) << near << " " << distance;
    }
  }
}

/// A naive model of IndexWindow and IndexSet.
class IndexModel {
 public:
  bool is_within(uint32_t index) const { return index >= base_ && index < base_ + IndexWindow::kSpan; }
  bool insert(uint32_t index) {
    if (!is_within(index) || !members_.insert(index).second) return false;
    while (members_.erase(base_) != 0) base_++;
    return true;
  }
  bool contains(uint32_t index) const { return index < base_ || members_.count(index) != 0; }
  uint32_t base() const { return base_; }

 private:
  uint32_t base_ = 0;
  std::set<uint32_t> members_;
};

TEST(IndexWindow, agrees_with_a_sliding_set) {
  std::mt19937 random(1);
  for (uint32_t spread : {3u, 70u, 1024u, 1100u}) {
    IndexWindow window;
    IndexModel model;
    for (int step = 0; step < 30'000; step++) {
      const uint32_t from = model.base() < 5 ? 0 : model.base() - 5;
      const uint32_t index = random() % 4 == 0 ? model.base() : from + random() % spread;
      ASSERT_EQ(window.contains(index), model.contains(index)) << index;
      ASSERT_EQ(window.insert(index), model.insert(index)) << index;
      ASSERT_EQ(window.base(), model.base());
      ASSERT_TRUE(window.contains(index) || !model.is_within(index));
    }
    EXPECT_GT(model.base(), 3000u);
  }
}

TEST(IndexWindow, nothing_beyond_the_span) {
  IndexWindow window;
  EXPECT_TRUE(window.insert(IndexWindow::kSpan - 1));
  EXPECT_FALSE(window.insert(IndexWindow::kSpan));
  EXPECT_FALSE(window.contains(IndexWindow::kSpan));  // shares a bit with 0
  EXPECT_TRUE(window.insert(0));
  EXPECT_EQ(window.base(), 1u);
  EXPECT_TRUE(window.insert(IndexWindow::kSpan));
  EXPECT_FALSE(window.is_within(0));
}

TEST(IndexSet, agrees_with_a_set) {
  std::mt19937 random(2);
  IndexSet set;
  std::set<uint32_t> model;
  uint32_t from = 0;
  for (int step = 0; step < 50'000; step++) {
    if (model.empty() || *model.begin() > from) from += random() % 3;
    if (!model.empty()) from = std::min(from, *model.begin());
    const uint32_t index = from + random() % IndexWindow::kSpan;
    if (random() % 2 == 0) {
      set.insert(index);
      model.insert(index);
    } else {
      const uint32_t victim = !model.empty() && random() % 2 == 0 ? *model.begin() : index;
      set.erase(victim);
      model.erase(victim);
    }
    ASSERT_EQ(set.empty(), model.empty());
    if (!model.empty()) {
      ASSERT_EQ(set.lowest(from), *model.begin());
    }
    ASSERT_EQ(set.contains(index), model.count(index) != 0);
  }
  EXPECT_GT(from, IndexWindow::kSpan);
}

TEST(IndexSet, lowest_wraps_around_the_ring) {
  IndexSet set;
  set.insert(1500);
  EXPECT_EQ(set.lowest(1000), 1500u);
  EXPECT_EQ(set.lowest(500), 1500u);
  set.insert(1023);
  EXPECT_EQ(set.lowest(1000), 1023u);
}

uint32_t low(uint64_t full) { return static_cast<uint32_t>(full) & wire::kNumberMask; }

/// A window with the pool that it takes memory from.
struct PooledWindow {
  explicit PooledWindow(uint32_t first = 1) : window(first) {}
  ~PooledWindow() {
    window.give_back(pool);
    EXPECT_EQ(pool.taken(), 0u);
  }
  uint64_t largest() const { return window.largest(); }
  uint64_t admit(uint32_t number24) const { return window.admit(number24); }
  void insert(uint64_t full) {
    ASSERT_TRUE(window.reserve(full, pool));
    window.insert(full, pool);
  }
  void bitmap(uint64_t (&words)[NumberWindow::kWords]) const { window.bitmap(words); }
  bool has_bits() const { return pool.taken() != 0; }

  NumberWindow::Pool pool;
  NumberWindow window;
};

TEST(NumberWindow, agrees_with_a_set_across_the_wrap) {
  std::mt19937 random(3);
  for (uint64_t start : {uint64_t{0}, (uint64_t{1} << 24) - 300, (uint64_t{1} << 32) - 300}) {
    PooledWindow window;
    std::set<uint64_t> model;
    uint64_t largest = start;
    EXPECT_EQ(window.admit(low(NumberWindow::kAheadMax + 1)), 0u);  // no honest peer is so far ahead
    if (start != 0) {
      for (uint64_t full = 0; full < start;) {
        full = std::min(start, full + NumberWindow::kAheadMax);
        window.insert(window.admit(low(full)));
        model.insert(full);
      }
      ASSERT_EQ(window.largest(), start);
    }
    for (int step = 0; step < 20'000; step++) {
      uint64_t full = largest + 1;
      switch (random() % 8) {
        case 0:
          full = largest + 1 + random() % 5;
          break;
        case 1:
          full = largest - std::min<uint64_t>(largest - 1, random() % 300);
          break;
        case 2:
          if (random() % 100 == 0) full = largest + random() % 1000;
          break;
      }
      if (full == 0) continue;
      const bool is_new = largest < full + NumberWindow::kSpan && model.count(full) == 0;
      ASSERT_EQ(window.admit(low(full)), is_new ? full : 0) << full << " after " << largest;
      if (is_new) {
        window.insert(full);
        model.insert(full);
        largest = std::max(largest, full);
      }
      ASSERT_EQ(window.largest(), largest);
      if (step % 16 != 0) continue;
      uint64_t words[NumberWindow::kWords];
      window.bitmap(words);
      for (uint64_t back = 0; back < NumberWindow::kSpan && back < largest; back++) {
        ASSERT_EQ((words[back / 64] >> (63 - back % 64)) & 1, model.count(largest - back))
            << back << " from " << largest;
      }
    }
  }
}

TEST(NumberWindow, zero_and_numbers_before_the_first_are_not_admitted) {
  PooledWindow window;
  EXPECT_EQ(window.admit(0), 0u);
  EXPECT_EQ(window.admit(wire::kNumberMask), 0u);  // -1
  EXPECT_EQ(window.admit(wire::kNumberMask - 300), 0u);
  window.insert(window.admit(1));
  EXPECT_EQ(window.admit(0), 0u);
  EXPECT_EQ(window.admit(wire::kNumberMask), 0u);
  EXPECT_EQ(window.admit(2), 2u);
}

TEST(NumberWindow, jump_clears_the_numbers_it_passes) {
  PooledWindow window;
  for (uint64_t n = 1; n <= 600; n++) window.insert(n);
  window.insert(600 + 512 + 5);  // uses the same words of the ring
  uint64_t words[NumberWindow::kWords];
  window.bitmap(words);
  EXPECT_EQ(words[0], uint64_t{1} << 63);
  for (size_t i = 1; i < NumberWindow::kWords; i++) EXPECT_EQ(words[i], 0u);
  EXPECT_EQ(window.admit(600 + 512), 600u + 512);
}

/// Compares a window with the set of all numbers that it has admitted.
class NumberModel {
 public:
  explicit NumberModel(uint32_t first) : window_(first), first_(first), largest_(first - 1) {}
  uint64_t first() const { return first_; }
  uint64_t largest() const { return largest_; }
  void receive(uint64_t full, bool is_accepted) {
    const bool is_near = full > largest_ ? full - largest_ <= NumberWindow::kAheadMax
                                         : largest_ - full < NumberWindow::kSpan && arrived_.count(full) == 0;
    ASSERT_EQ(window_.admit(low(full)), is_near ? full : 0) << full << " after " << largest_ << " from " << first_;
    if (!is_near) return;
    if (!is_accepted) {  // dropped after reserve()
      ASSERT_TRUE(window_.window.reserve(full, window_.pool));
      return;
    }
    arrived_.insert(full);
    if (full == largest_ + 1 && full % 2 == 0) {
      window_.window.insert_next();
    } else {
      window_.insert(full);
      ASSERT_EQ(window_.has_bits(), has_difference(std::max(largest_, full)));
    }
    largest_ = std::max(largest_, full);
    ASSERT_EQ(window_.largest(), largest_);
    ASSERT_EQ(window_.window.count(), largest_ + 1 - first_);
  }
  void check_bitmap() const {
    uint64_t words[NumberWindow::kWords];
    window_.bitmap(words);
    for (uint64_t back = 0; back < NumberWindow::kSpan; back++) {
      ASSERT_EQ((words[back / 64] >> (63 - back % 64)) & 1, arrived_.count(largest_ - back))
          << back << " of " << largest_;
    }
  }

 private:
  bool has_difference(uint64_t largest) const {
    for (uint64_t full = largest; full + NumberWindow::kSpan > largest; full--) {
      if ((full >= first_) != (arrived_.count(full) != 0)) return true;
    }
    return false;
  }

  PooledWindow window_;
  const uint64_t first_;
  std::set<uint64_t> arrived_;
  uint64_t largest_;
};

TEST(NumberWindow, agrees_with_a_set_in_any_order) {
  std::mt19937 random(5);
  for (int run = 0; run < 30; run++) {
    // Half of the first numbers are soon followed by the wrap of the 24 bits.
    const uint32_t below_wrap = random() % 2 == 0 ? random() % 600 : random() % (1u << 24);
    NumberModel model(static_cast<uint32_t>(kNumberBase) + wire::kNumberMask - below_wrap);
    const uint32_t disorder = 1u << random() % 12;  // on average, a number out of order comes after as many in order
    for (int step = 0; step < 2000; step++) {
      uint64_t full = model.largest() + 1;
      if (random() % disorder == 0) {
        switch (random() % 8) {
          case 0:
          case 1:
            full += 1 + random() % 4;
            break;
          case 2:
            full += random() % 400;
            break;
          case 3:
            full = model.first() - random() % 300;
            break;
          case 4:
            if (random() % 16 == 0) full = model.largest() + NumberWindow::kAheadMax - 1 + random() % 3;
            break;
          case 5:
            full -= 1 + random() % 4;
            break;
          default:
            full -= random() % 300;
        }
      }
      ASSERT_NO_FATAL_FAILURE(model.receive(full, random() % 16 != 0));
      if (step % 8 != 0) continue;
      ASSERT_NO_FATAL_FAILURE(model.check_bitmap());
    }
  }
}

TEST(NumberWindow, takes_memory_only_while_a_gap_is_in_the_window) {
  PooledWindow window;
  for (uint64_t n = 1; n <= 300; n++) window.insert(n);
  EXPECT_FALSE(window.has_bits());
  window.insert(303);
  EXPECT_TRUE(window.has_bits());
  window.insert(302);
  EXPECT_TRUE(window.has_bits());
  window.insert(301);
  EXPECT_FALSE(window.has_bits()) << "the gap is filled";
  EXPECT_EQ(window.admit(301), 0u);

  window.insert(305);
  for (uint64_t n = 306; n < 304 + NumberWindow::kSpan; n++) window.insert(n);
  EXPECT_EQ(window.admit(304), 304u);
  EXPECT_TRUE(window.has_bits());
  window.insert(304 + NumberWindow::kSpan);
  EXPECT_FALSE(window.has_bits()) << "the gap is too old";
  EXPECT_EQ(window.admit(304), 0u);
}

TEST(NumberWindow, number_before_the_first_is_known_until_it_is_too_old) {
  PooledWindow window(1000);
  for (uint64_t n = 1000; n < 1100; n++) window.insert(n);
  EXPECT_EQ(window.admit(999), 999u);
  EXPECT_FALSE(window.has_bits());
  window.insert(999);
  EXPECT_TRUE(window.has_bits());
  EXPECT_EQ(window.admit(999), 0u);
  EXPECT_EQ(window.admit(998), 998u);
  for (uint64_t n = 1100; n <= 999 + NumberWindow::kSpan; n++) window.insert(n);
  EXPECT_FALSE(window.has_bits());
}

TEST(NumberWindow, without_memory_only_the_next_number_can_be_inserted) {
  PooledWindow window;
  window.insert(1);
  has_memory = false;
  const bool next = window.window.reserve(2, window.pool);
  const bool after_gap = window.window.reserve(3, window.pool);
  has_memory = true;
  EXPECT_TRUE(next);
  EXPECT_FALSE(after_gap);
  window.insert(2);
  EXPECT_EQ(window.admit(1), 0u);
  EXPECT_EQ(window.admit(3), 3u);
}

TEST(ArrivedBitmap, reads_what_a_number_window_says) {
  PooledWindow window;
  for (uint64_t n : {1u, 2u, 3u, 100u, 101u, 230u}) window.insert(n);
  uint64_t words[NumberWindow::kWords];
  window.bitmap(words);
  for (uint64_t& word : words) word = wire::to_little_endian(word);
  std::byte payload[sizeof(words) + 1];
  std::memcpy(payload + 1, words, sizeof(words));  // unaligned
  const ArrivedBitmap arrived(payload + 1, NumberWindow::kWords);
  EXPECT_EQ(arrived.words(), NumberWindow::kWords);
  for (uint64_t n = 1; n <= 230; n++) {
    EXPECT_EQ(arrived.contains(230 - n), n <= 3 || n == 100 || n == 101 || n == 230) << n;
  }
  EXPECT_FALSE(arrived.contains(64 * NumberWindow::kWords)) << "beyond its end";
  EXPECT_FALSE(ArrivedBitmap(payload + 1, 1).contains(100)) << "beyond its end";
}

}  // namespace
}  // namespace tern::session
