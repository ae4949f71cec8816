#include "cc/timing_wheel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace tern::cc {
namespace {

constexpr uint64_t kSlotNs = TimingWheel::kSlotNs;
constexpr uint64_t kHorizonNs = TimingWheel::kHorizonNs;

std::vector<uint32_t> departures(TimingWheel& wheel, uint64_t now_ns) {
  std::vector<uint32_t> names;
  wheel.run(now_ns, [&](uint32_t name) { names.push_back(name); });
  wheel.check_invariants();
  return names;
}

TEST(TimingWheel, departs_in_order_and_not_before_its_time) {
  TimingWheel wheel;
  EXPECT_TRUE(wheel.empty());
  ASSERT_TRUE(wheel.add(0, 3000, 3));
  ASSERT_TRUE(wheel.add(0, 1000, 1));
  ASSERT_TRUE(wheel.add(0, 2000, 2));
  ASSERT_TRUE(wheel.add(0, 1001, 11));
  wheel.check_invariants();
  EXPECT_EQ(wheel.size(), 4u);
  EXPECT_GE(wheel.next_ns(), 1000u);
  EXPECT_LT(wheel.next_ns(), 1000 + kSlotNs);
  EXPECT_TRUE(departures(wheel, 999).empty());
  EXPECT_EQ(departures(wheel, 1001 + kSlotNs), (std::vector<uint32_t>{1, 11}));
  EXPECT_EQ(departures(wheel, 1'000'000), (std::vector<uint32_t>{2, 3}));
  EXPECT_TRUE(wheel.empty());
}

TEST(TimingWheel, past_times_leave_at_the_next_run) {
  TimingWheel wheel;
  EXPECT_TRUE(departures(wheel, 5'000'000).empty());
  ASSERT_TRUE(wheel.add(5'000'000, 10, 1));
  EXPECT_EQ(departures(wheel, 5'000'000 + kSlotNs), (std::vector<uint32_t>{1}));
}

TEST(TimingWheel, time_beyond_the_horizon_is_checked_again) {
  TimingWheel wheel;
  const uint64_t at_ns = 5 * kHorizonNs + 77;
  ASSERT_TRUE(wheel.add(0, at_ns, 9));
  uint32_t looks = 0;
  while (wheel.next_ns() < at_ns) {
    EXPECT_TRUE(departures(wheel, wheel.next_ns()).empty());
    ASSERT_LT(++looks, 10u);
  }
  EXPECT_GE(looks, 4u);
  EXPECT_EQ(departures(wheel, wheel.next_ns()), (std::vector<uint32_t>{9}));
}

TEST(TimingWheel, may_be_added_to_while_it_runs) {
  TimingWheel wheel;
  ASSERT_TRUE(wheel.add(0, 1000, 1));
  ASSERT_TRUE(wheel.add(0, 1000, 2));
  std::vector<uint32_t> names;
  wheel.run(2000, [&](uint32_t name) {
    names.push_back(name);
    if (name < 10) {  // these are due already, and leave now or in the next run()
      ASSERT_TRUE(wheel.add(2000, 1000, name + 10));
    }
  });
  wheel.run(2000 + kSlotNs, [&](uint32_t name) { names.push_back(name); });
  EXPECT_EQ(names, (std::vector<uint32_t>{1, 2, 11, 12}));
  wheel.check_invariants();
}

/// The wheel against a sorted list with exact times: an entry leaves once, not early, and at most one slot after the
/// first run() that was late enough.
TEST(TimingWheel, agrees_with_a_sorted_list) {
#ifdef TERN_IS_SANITIZED
  constexpr uint64_t kSeeds = 4;
#else
  constexpr uint64_t kSeeds = 20;
#endif
  for (uint64_t seed = 1; seed <= kSeeds; seed++) {
    std::mt19937_64 random(seed);
    TimingWheel wheel;
    struct Entry {
      uint64_t at_ns;
      uint32_t name;
    };
    std::vector<Entry> list;
    uint64_t now_ns = random() % 1'000'000'000;
    uint32_t next_name = 0;
    for (int step = 0; step < 3000; step++) {
      if (random() % 3 != 0) {
        uint64_t wait_ns = random() % 5000;
        if (random() % 8 == 0) wait_ns = random() % (3 * kHorizonNs);
        if (random() % 64 == 0) wait_ns = 0;
        const Entry entry = {now_ns + wait_ns, next_name++};
        ASSERT_TRUE(wheel.add(now_ns, entry.at_ns, entry.name));
        list.push_back(entry);
      } else {
        const bool is_late = random() % 16 == 0;
        now_ns += is_late ? random() % (2 * kHorizonNs) : random() % 3000;
        uint64_t earlier_ns = 0;
        wheel.run(now_ns, [&](uint32_t name) {
          const auto it = std::find_if(list.begin(), list.end(), [&](const Entry& e) { return e.name == name; });
          ASSERT_NE(it, list.end()) << "left twice, or was never there";
          ASSERT_LE(it->at_ns, now_ns) << "left early";
          // Entries beyond the horizon leave together with earlier ones if run() is late.
          ASSERT_TRUE(is_late || earlier_ns <= it->at_ns + kSlotNs) << "out of order";
          earlier_ns = std::max(earlier_ns, it->at_ns);
          list.erase(it);
        });
        for (const Entry& entry : list) ASSERT_GT(entry.at_ns + kSlotNs, now_ns) << "left behind, seed " << seed;
      }
      wheel.check_invariants();
      ASSERT_EQ(wheel.size(), list.size());
      if (list.empty()) continue;
      const auto first =
          std::min_element(list.begin(), list.end(), [](const Entry& a, const Entry& b) { return a.at_ns < b.at_ns; });
      ASSERT_LE(wheel.next_ns(), std::max(first->at_ns, now_ns) + kSlotNs) << "would be woken too late";
    }
  }
}

}  // namespace
}  // namespace tern::cc
