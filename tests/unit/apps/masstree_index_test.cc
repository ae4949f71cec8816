// The index: its results in one thread, and in several threads at a time. No test measures time.

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "../apps/masstree/backend.h"
#include "../apps/masstree/keys.h"
#include "../apps/masstree/model.h"

using namespace ordered;

namespace {

#ifdef TERN_IS_SANITIZED
constexpr uint64_t kReads = 10'000;
#else
constexpr uint64_t kReads = 100'000;
#endif

std::vector<std::pair<uint64_t, uint64_t>> scan_of(Index& index, uint64_t after, size_t limit) {
  std::vector<std::pair<uint64_t, uint64_t>> visited;
  const size_t count =
      index.scan(after, limit, [&](uint64_t key, uint64_t value) { visited.emplace_back(key, value); });
  EXPECT_EQ(count, visited.size());
  return visited;
}

}  // namespace

TEST(OrderedIndex, get__returns_the_last_put_value) {
  Index index(10);
  EXPECT_EQ(index.get(5), std::nullopt);
  EXPECT_EQ(index.put(5, 50), Put::kInserted);
  EXPECT_EQ(index.get(5), 50u);
  EXPECT_EQ(index.put(5, 51), Put::kUpdated);
  EXPECT_EQ(index.get(5), 51u);
  EXPECT_EQ(index.get(4), std::nullopt);
  EXPECT_EQ(index.get(6), std::nullopt);
}

TEST(OrderedIndex, scan__greater_keys_in_order_up_to_the_limit) {
  Index index(10);
  EXPECT_TRUE(scan_of(index, 0, 5).empty());
  for (const uint64_t key : {7ull, 0ull, ~0ull, 3ull}) (void)index.put(key, key + 1);
  using Pairs = std::vector<std::pair<uint64_t, uint64_t>>;
  EXPECT_EQ(scan_of(index, 0, 10), (Pairs{{3, 4}, {7, 8}, {~0ull, 0}}));
  EXPECT_EQ(scan_of(index, 1, 2), (Pairs{{3, 4}, {7, 8}}));
  EXPECT_EQ(scan_of(index, 3, 1), (Pairs{{7, 8}}));
  EXPECT_TRUE(scan_of(index, ~0ull, 10).empty());
  EXPECT_TRUE(scan_of(index, 0, 0).empty());
}

TEST(OrderedIndex, random_keys__as_a_map) {
  Index index(1 << 16);
  std::map<uint64_t, uint64_t> model;
  Random random(1);
  for (uint64_t i = 0; i < 20'000; i++) {
    const uint64_t key = key_of(1, random.below(5000));
    EXPECT_EQ(index.put(key, i), model.contains(key) ? Put::kUpdated : Put::kInserted);
    model[key] = i;
    const uint64_t other = key_of(1, random.below(5000));
    const auto found = model.find(other);
    ASSERT_EQ(index.get(other), found == model.end() ? std::nullopt : std::optional(found->second));
    if (i % 64 != 0) continue;
    std::vector<std::pair<uint64_t, uint64_t>> expected;
    for (auto at = model.upper_bound(other); at != model.end() && expected.size() < 128; ++at) expected.push_back(*at);
    ASSERT_EQ(scan_of(index, other, 128), expected);
  }
}

TEST(OrderedIndex, put__refuses_new_keys_when_full_and_updates_old_ones) {
  Index index(2);
  EXPECT_EQ(index.put(1, 10), Put::kInserted);
  EXPECT_EQ(index.put(2, 20), Put::kInserted);
  EXPECT_EQ(index.put(3, 30), Put::kFull);
  EXPECT_EQ(index.get(3), std::nullopt);
  EXPECT_EQ(index.put(2, 21), Put::kUpdated);
  EXPECT_EQ(index.put(3, 30), Put::kFull) << "a refusal takes no place, and gives none back";
  EXPECT_EQ(scan_of(index, 0, 10).size(), 2u);
}

/// Threads insert the same keys at the same time. Each key is new once, and the number of keys never exceeds the limit.
TEST(OrderedIndex, put__threads_that_insert_the_same_keys) {
  constexpr uint64_t kKeys = 2000, kLimit = 1500;
  Index index(kLimit);
  std::atomic<uint64_t> inserted{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; t++) {
    threads.emplace_back([&] {
      for (uint64_t i = 0; i < kKeys; i++) {
        if (index.put(key_of(2, i), i) == Put::kInserted) inserted++;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(inserted, scan_of(index, 0, kKeys).size() + (index.get(0) ? 1 : 0));
  EXPECT_LE(inserted, kLimit);
  EXPECT_GE(inserted, kLimit - 3) << "places that were taken for a moment only";
}

/// Two writers, a reader and a scanner at the same time. Every answer must be one that the model allows.
TEST(OrderedIndex, answers_beside_writers__as_the_model_allows) {
  constexpr uint64_t kKeys = 2000, kInserts = 500, kWriters = 2;
  constexpr uint32_t kLimit = 128;
  Index index(kKeys + kInserts);
  for (uint64_t i = 0; i < kKeys; i++) ASSERT_EQ(index.put(key_of(3, i), value_of(key_of(3, i), 1)), Put::kInserted);
  Model model(3, kKeys, kInserts);
  for (size_t position = 0; position < model.size(); position++) {
    ASSERT_EQ(model.take_over(position, index.get(model.key(position))), "");
  }
  ASSERT_EQ(model.count(), kKeys);

  std::atomic<size_t> reading{2};
  std::vector<std::thread> threads;
  for (uint64_t writer = 0; writer < kWriters; writer++) {
    threads.emplace_back([&, writer] {
      for (Random random(writer); reading > 0;) {
        const size_t position = random.below(model.size() / kWriters) * kWriters + writer;
        const uint32_t version = model.issue(position);
        const Put expected = version == 1 ? Put::kInserted : Put::kUpdated;
        EXPECT_EQ(index.put(model.key(position), value_of(model.key(position), version)), expected);
        model.acknowledged(position, version);
      }
    });
  }
  threads.emplace_back([&] {
    Random random(7);
    for (uint64_t i = 0; i < kReads; i++) {
      const size_t position = random.below(model.size());
      const uint32_t floor = model.floor(position);
      EXPECT_EQ(model.read(position, floor, index.get(model.key(position))), "");
    }
    --reading;
  });
  threads.emplace_back([&] {
    Random random(8);
    Model::ScanBegin begin;
    for (uint64_t i = 0; i < kReads / 16; i++) {
      model.begin_scan(begin, random.below(model.size()), kLimit);
      ScanAnswer answer = {0, model.key(begin.position), 0};
      answer.count = static_cast<uint32_t>(index.scan(answer.last, kLimit, [&](uint64_t key, uint64_t value) {
        answer.last = key;
        answer.sum += value;
      }));
      EXPECT_EQ(model.check_scan(begin, answer), "");
    }
    --reading;
  });
  for (std::thread& thread : threads) thread.join();
  for (size_t position = 0; position < model.size(); position++) {
    EXPECT_FALSE(model.is_pending(position));
    ASSERT_EQ(model.read(position, model.floor(position), index.get(model.key(position))), "");
  }
}
