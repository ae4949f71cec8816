// The event queue against a sorted list of all added events.

#include "sim/network/event_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace tern::sim {
namespace {

struct Log {
  EventQueue queue;
  std::vector<std::pair<Picoseconds, uint64_t>> ran;
  static void run(void* context, uint64_t argument) {
    Log& log = *static_cast<Log*>(context);
    log.ran.emplace_back(log.queue.now(), argument);
  }
  void add(Picoseconds at, uint64_t name) { queue.add(at, &Log::run, this, name); }
  void run_all() {
    while (queue.step(UINT64_MAX - 1)) {
    }
  }
};
using Ran = std::vector<std::pair<Picoseconds, uint64_t>>;

TEST(EventQueue, step__without_events_moves_the_clock) {
  EventQueue queue;
  EXPECT_TRUE(queue.empty());
  EXPECT_FALSE(queue.step(500));
  EXPECT_EQ(queue.now(), 500u);
  EXPECT_FALSE(queue.step(400)) << "not back";
  EXPECT_EQ(queue.now(), 500u);
}

TEST(EventQueue, step__runs_only_due_events) {
  Log log;
  log.add(100, 1);
  log.add(90'000'000'000, 2);
  EXPECT_EQ(log.queue.size(), 2u);
  EXPECT_FALSE(log.queue.step(99));
  EXPECT_EQ(log.queue.now(), 99u);
  EXPECT_TRUE(log.queue.step(100));
  EXPECT_EQ(log.queue.now(), 100u);
  EXPECT_FALSE(log.queue.step(89'999'999'999));
  EXPECT_TRUE(log.queue.step(UINT64_MAX));
  EXPECT_EQ(log.queue.now(), 90'000'000'000u);
  EXPECT_TRUE(log.queue.empty());
  EXPECT_EQ(log.ran, (Ran{{100, 1}, {90'000'000'000, 2}}));
}

TEST(EventQueue, equal_times_run_in_the_order_of_add) {
  Log log;
  const Picoseconds at = 500'000'000;  // beyond the calendar's horizon at first
  log.add(at, 1);
  log.add(at + 1, 4);
  log.add(at, 2);
  EXPECT_FALSE(log.queue.step(at - 1000));
  log.add(at, 3);  // within the horizon now
  log.add(at - 1, 0);
  log.run_all();
  EXPECT_EQ(log.ran, (Ran{{at - 1, 0}, {at, 1}, {at, 2}, {at, 3}, {at + 1, 4}}));
}

TEST(EventQueue, an_event_may_add_for_now) {
  Log log;
  struct Chain {
    Log& log;
    uint64_t left;
    static void run(void* context, uint64_t argument) {
      Chain& chain = *static_cast<Chain*>(context);
      Log::run(&chain.log, argument);
      if (chain.left-- > 0) chain.log.queue.add(chain.log.queue.now(), &Chain::run, &chain, argument + 1);
    }
  } chain{log, 3};
  log.queue.add(7, &Chain::run, &chain, 10);
  log.add(7, 1);
  log.run_all();
  EXPECT_EQ(log.ran, (Ran{{7, 10}, {7, 1}, {7, 11}, {7, 12}, {7, 13}}));
}

/// Random events, some of which add others while they run. The test compares the executed events with a list of all
/// events, sorted by time, and events of equal time by the order of add().
class Model {
 public:
  explicit Model(uint64_t seed) : random_(seed) {}

  void add_some(size_t count) {
    for (size_t i = 0; i < count; i++) add();
  }
  void check() {
    std::stable_sort(added_.begin(), added_.end(), [](auto& a, auto& b) { return a.first < b.first; });
    EXPECT_EQ(ran_, added_);
  }
  EventQueue& queue() { return queue_; }
  uint64_t random() { return random_(); }
  size_t added() const { return added_.size(); }
  size_t ran() const { return ran_.size(); }
  /// Returns the time of the earliest event that has not run.
  Picoseconds next() const { return *waiting_.begin(); }

 private:
  void add() {
    // Distances of all scales: in the same bucket, in the next ones, around the calendar's horizon, and far beyond it.
    constexpr Picoseconds kDistances[] = {1, 600, 40'000, 1'000'000, 67'108'864, 134'217'728, 1'000'000'000};
    Picoseconds distance = random_() % kDistances[random_() % std::size(kDistances)];
    if (random_() % 8 == 0) distance &= ~Picoseconds{0xffff};  // many equal times
    const uint64_t name = added_.size();
    added_.emplace_back(queue_.now() + distance, name);
    waiting_.insert(queue_.now() + distance);
    queue_.add(queue_.now() + distance, &Model::run, this, name);
  }
  static void run(void* context, uint64_t name) {
    Model& model = *static_cast<Model*>(context);
    model.waiting_.erase(model.waiting_.find(model.added_[name].first));
    model.ran_.emplace_back(model.queue_.now(), name);
    if (model.added_.size() < 20'000) model.add_some(model.random_() % 3);
  }

  EventQueue queue_;
  std::mt19937_64 random_;
  Ran added_;
  Ran ran_;
  std::multiset<Picoseconds> waiting_;
};

TEST(EventQueue, random_events_run_as_in_the_model) {
  for (uint64_t seed = 1; seed <= 20; seed++) {
    Model model(seed);
    model.add_some(1 + model.random() % 200);
    while (!model.queue().empty()) {
      const Picoseconds next = model.next();
      const Picoseconds until = model.queue().now() + model.random() % 2'000'000;
      const bool is_due = next <= until;
      ASSERT_EQ(model.queue().step(until), is_due);
      ASSERT_EQ(model.queue().now(), is_due ? next : until);
      ASSERT_EQ(model.queue().size(), model.added() - model.ran());
      // No event has the time `now` here.
      if (!is_due && model.added() < 20'000) model.add_some(model.random() % 4);
    }
    ASSERT_GT(model.ran(), 0u);
    model.check();
  }
}

TEST(EventQueue, the_whole_round_of_the_calendar_is_in_order) {
  // Single events at every distance across the horizon. Each position of now must lead to the right bucket.
  for (Picoseconds start = 0; start < 80'000'000; start += 1'277'777) {
    for (Picoseconds distance = 0; distance < 140'000'000; distance += 7'999'999) {
      Log log;
      EXPECT_FALSE(log.queue.step(start));
      log.add(start + distance, 1);
      if (distance > 0) {
        ASSERT_FALSE(log.queue.step(start + distance - 1));
      }
      ASSERT_TRUE(log.queue.step(start + distance));
      ASSERT_EQ(log.queue.now(), start + distance);
      ASSERT_TRUE(log.queue.empty());
    }
  }
}

TEST(EventQueue, events_run_in_order_while_their_density_changes) {
  // Dense events make the calendar's buckets narrow, sparse ones make them wide again, and events of either kind are in
  // the queue meanwhile. Some have equal times, also across the calendar's horizon.
  std::mt19937_64 random(1);
  Log log;
  Ran added;
  const auto add = [&](Picoseconds at) {
    added.emplace_back(at, added.size());
    log.add(at, added.back().second);
  };
  for (int phase = 0; phase < 6; phase++) {
    const bool is_dense = phase % 2 == 0;
    const Picoseconds span = is_dense ? 20'000 : 4'000'000;
    for (int round = 0; round < (is_dense ? 10 : 200); round++) {
      const Picoseconds now = log.queue.now();
      for (int i = 0; i < (is_dense ? 2000 : 200); i++) {
        const Picoseconds at = now + random() % span;
        add(i % 4 == 0 ? std::max(now, at & ~Picoseconds{0xff}) : at);
      }
      for (int i = 0; i < 8; i++) add((now / 32'000'000 + 1 + random() % 4) * 32'000'000);
      while (log.queue.step(now + span / 2)) {
      }
    }
  }
  log.run_all();
  std::stable_sort(added.begin(), added.end(), [](auto& a, auto& b) { return a.first < b.first; });
  EXPECT_EQ(log.ran, added);
}

TEST(EventQueueDeathTest, add__of_the_past_is_a_bug) {
  Log log;
  EXPECT_FALSE(log.queue.step(10));
  EXPECT_DEATH(log.add(9, 1), "9 against 10");
}

}  // namespace
}  // namespace tern::sim
