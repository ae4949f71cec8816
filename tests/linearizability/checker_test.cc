// The checker: histories with a known verdict, and all small histories against a checker that tries every order.
#include "linearizability/checker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "linearizability/key_value.h"

namespace linearizability {
namespace {

using Kind = Register::Kind;
using Operation = Register::Operation;
using Answer = Register::Answer;
using History = std::vector<Operation>;

Operation put(uint64_t called, uint64_t returned, const char* value) {
  return {.kind = Kind::kPut, .value = value, .called = called, .returned = returned};
}
Operation erase(uint64_t called, uint64_t returned, Answer answer = Answer::kDone) {
  return {.kind = Kind::kErase, .called = called, .returned = returned, .answer = answer};
}
Operation get(uint64_t called, uint64_t returned, std::optional<std::string> found) {
  return {.kind = Kind::kGet, .called = called, .returned = returned, .found = std::move(found)};
}
Operation swap(uint64_t called, uint64_t returned, const char* expected, const char* value, Answer answer) {
  return {.kind = Kind::kSwap,
          .value = value,
          .expected = expected,
          .called = called,
          .returned = returned,
          .answer = answer};
}

bool is_linearizable(const History& history) {
  const Verdict verdict = check<Register>(history).verdict;
  EXPECT_NE(verdict, Verdict::kUnknown);
  // check() uses this search only if the others give kUnknown.
  EXPECT_EQ((Search<Register>(history, {}, Order::kEarly).run().verdict), verdict);
  return verdict == Verdict::kLinearizable;
}

/// By definition: tries every order of every set of operations that contains all operations with a return.
bool is_linearizable_by_force(const History& history) {
  for (size_t set = 0; set < size_t{1} << history.size(); set++) {
    std::vector<size_t> order;
    bool holds_all = true;
    for (size_t i = 0; i < history.size(); i++) {
      if (set >> i & 1) {
        order.push_back(i);
      } else {
        holds_all = holds_all && history[i].returned == kNever;
      }
    }
    if (!holds_all) continue;
    do {
      Register::State state;
      bool is_legal = true;
      for (size_t i = 0; i < order.size() && is_legal; i++) {
        for (size_t j = i + 1; j < order.size(); j++) {
          is_legal = is_legal && history[order[j]].returned >= history[order[i]].called;
        }
        is_legal = is_legal && Register::step(history[order[i]], state);
      }
      if (is_legal) return true;
    } while (std::next_permutation(order.begin(), order.end()));
  }
  return false;
}

std::string text(const History& history) {
  std::string lines;
  for (const auto& operation : history) lines += Register::text(operation) + "\n";
  return lines;
}

TEST(Checker, no_operations_are_linearizable) { EXPECT_TRUE(is_linearizable({})); }

TEST(Checker, reads_of_the_last_write_are_linearizable) {
  EXPECT_TRUE(
      is_linearizable({get(1, 2, std::nullopt), put(3, 4, "a"), get(5, 6, "a"), put(7, 8, "b"), get(9, 10, "b")}));
}

TEST(Checker, stale_read_is_not_linearizable) {
  EXPECT_FALSE(is_linearizable({put(1, 2, "a"), put(3, 4, "b"), get(5, 6, "a")}));
}

TEST(Checker, read_during_a_write_may_see_either_value) {
  for (const char* value : {"a", "b"}) EXPECT_TRUE(is_linearizable({put(1, 2, "a"), put(3, 6, "b"), get(4, 5, value)}));
}

TEST(Checker, values_never_go_back_between_two_reads) {
  EXPECT_FALSE(is_linearizable({put(1, 2, "a"), put(3, 10, "b"), get(4, 5, "b"), get(6, 7, "a")}));
  EXPECT_TRUE(is_linearizable({put(1, 2, "a"), put(3, 10, "b"), get(4, 7, "b"), get(6, 8, "a")}));
}

TEST(Checker, acknowledged_write_that_is_lost_is_not_linearizable) {
  EXPECT_FALSE(is_linearizable({put(1, 2, "a"), get(3, 4, std::nullopt)}));
}

TEST(Checker, write_without_return_may_take_effect_later_or_never) {
  EXPECT_TRUE(is_linearizable({put(1, 2, "a"), put(3, kNever, "b"), get(4, 5, "a"), get(6, 7, "b")}));
  EXPECT_TRUE(is_linearizable({put(1, 2, "a"), put(3, kNever, "b"), get(4, 5, "a"), get(6, 7, "a")}));
}

TEST(Checker, write_without_return_takes_effect_once) {
  EXPECT_FALSE(is_linearizable({put(1, kNever, "b"), get(2, 3, "b"), put(4, 5, "a"), get(6, 7, "a"), get(8, 9, "b")}));
}

TEST(Checker, write_has_no_effect_before_its_call) {
  EXPECT_FALSE(is_linearizable({get(1, 2, "a"), put(3, kNever, "a")}));
}

TEST(Checker, command_executed_twice_is_not_linearizable) {
  EXPECT_FALSE(is_linearizable({put(1, 2, "a"), put(3, 4, "b"), get(5, 6, "a")}));
  EXPECT_FALSE(is_linearizable({put(1, 2, "a"), swap(3, 4, "a", "b", Answer::kDifferent), get(5, 6, "b")}));
  EXPECT_FALSE(is_linearizable({put(1, 2, "a"), erase(3, 4, Answer::kNotFound), get(5, 6, std::nullopt)}));
}

TEST(Checker, one_of_two_swaps_wins) {
  EXPECT_TRUE(
      is_linearizable({put(1, 2, "a"), swap(3, 6, "a", "b", Answer::kDone), swap(4, 5, "a", "c", Answer::kDifferent)}));
  EXPECT_FALSE(
      is_linearizable({put(1, 2, "a"), swap(3, 6, "a", "b", Answer::kDone), swap(4, 5, "a", "c", Answer::kDone)}));
}

TEST(Checker, erased_key_is_not_found) {
  EXPECT_TRUE(is_linearizable({put(1, 2, "a"), erase(3, 4), get(5, 6, std::nullopt), erase(7, 8, Answer::kNotFound)}));
  EXPECT_FALSE(is_linearizable({put(1, 2, "a"), erase(3, 4), get(5, 6, "a")}));
  EXPECT_TRUE(is_linearizable({swap(1, 2, "", "a", Answer::kNotFound), get(3, 4, std::nullopt)}));
}

TEST(Checker, call_at_the_time_of_a_return_overlaps) {
  EXPECT_TRUE(is_linearizable({put(1, 2, "a"), get(2, 3, std::nullopt)}));
}

TEST(Checker, keys_are_apart) {
  Operation other = put(3, 4, "b");
  other.key = 1;
  EXPECT_EQ(check_keys({put(1, 2, "a"), other, get(5, 6, "a")}), "");
  Operation stale = get(7, 8, "a");
  stale.key = 1;
  const std::string finding = check_keys({put(1, 2, "a"), other, get(5, 6, "a"), stale});
  EXPECT_NE(finding.find("key 1 is not linearizable"), std::string::npos) << finding;
  EXPECT_NE(finding.find("no place for\n  client 0: get -> 'a' [7, 8]"), std::string::npos) << finding;
}

/// This needs the cache: there are 14! orders, but only 2^14 sets of operations that have taken effect.
TEST(Checker, orders_that_lead_to_one_state_are_tried_once) {
  History history;
  for (uint64_t i = 0; i < 14; i++) history.push_back(put(i, 1000, i % 2 == 0 ? "a" : "b"));
  history.push_back(get(1001, 1002, "c"));
  const Result result = check<Register>(history);
  EXPECT_EQ(result.verdict, Verdict::kNotLinearizable);
  EXPECT_LT(result.steps, 2'000'000u);
}

/// There are 2^40 sets of operations that have taken effect, so the search gives up.
TEST(Checker, search_beyond_its_limit_is_unknown) {
  History history;
  for (uint64_t i = 0; i < 40; i++) history.push_back(put(i, 1000, "a"));
  history.push_back(get(1001, 1002, "none of them"));
  const Result result = check<Register>(history, {.steps_max = 100'000});
  EXPECT_EQ(result.verdict, Verdict::kUnknown);
  EXPECT_EQ(result.steps, 100'001u);
  EXPECT_NE(check_keys(history, {.steps_max = 1000}).find("was not decided in 1001 steps"), std::string::npos);
}

TEST(Checker, thousand_operations_of_ten_clients_take_few_steps) {
  std::mt19937_64 random(1);
  History history;
  std::string value;
  struct Client {
    Operation operation;
    uint64_t effect = 0, end = 0;
    bool is_busy = false, has_effect = false;
  };
  std::vector<Client> clients(10);
  // A correct register, in which each operation takes effect at a random moment between its call and its return.
  Register::State state;
  for (uint64_t time = 1; history.size() < 1000; time++) {
    for (Client& client : clients) {
      if (!client.is_busy && random() % 10 == 0) {
        value = std::to_string(time) + "." + std::to_string(&client - clients.data());
        client.operation = random() % 2 == 0 ? put(time, kNever, value.c_str()) : get(time, kNever, {});
        client.effect = time + random() % 20;
        client.end = client.effect + random() % 20;
        client.is_busy = true;
        client.has_effect = false;
      }
      if (!client.is_busy) continue;
      if (!client.has_effect && time >= client.effect) {
        client.operation.found = state;
        (void)Register::step(client.operation, state);
        client.has_effect = true;
      }
      if (client.has_effect && time > client.end) {
        client.operation.returned = time;
        history.push_back(client.operation);
        client.is_busy = false;
      }
    }
  }
  const Result result = check<Register>(history);
  EXPECT_EQ(result.verdict, Verdict::kLinearizable);
  EXPECT_LT(result.steps, 1'000'000u);
}

/// The leader of these clients was cut off: their commands took effect, and the answers came much later, after other
/// commands.
TEST(Checker, effects_long_before_their_return_are_found) {
  History history = {put(1, 2, "a"), swap(3, 9'000, "a", "b", Answer::kDone), get(4, 5, "a"),
                     swap(6, 8'000, "c", "d", Answer::kDifferent), erase(7, 9'500, Answer::kDone)};
  for (uint64_t i = 0; i < 4; i++) history.push_back(put(1, kNever, ("lost " + std::to_string(i)).c_str()));
  for (uint64_t i = 0; i < 200; i++) {
    const std::string value = std::to_string(i);
    history.push_back(put(10 + 10 * i, 13 + 10 * i, value.c_str()));
    history.push_back(put(11 + 10 * i, 14 + 10 * i, "other"));
    history.push_back(get(12 + 10 * i, 15 + 10 * i, i % 2 == 0 ? "other" : value.c_str()));
  }
  EXPECT_EQ(check_keys(history, {.steps_max = 50'000}), "");
  history.push_back(get(9'600, 9'601, "d"));
  EXPECT_NE(check_keys(history, {.steps_max = 50'000}), "");
}

/// Twenty clients have died, and no result shows that any of their writes was executed.
TEST(Checker, writes_without_return_and_trace_take_few_steps) {
  History history = {put(1, 2, "a")};
  for (uint64_t i = 0; i < 20; i++) history.push_back(put(10 + i, kNever, ("lost " + std::to_string(i)).c_str()));
  for (uint64_t i = 0; i < 100; i++) history.push_back(get(100 + 2 * i, 101 + 2 * i, "a"));
  EXPECT_EQ(check_keys(history, {.steps_max = 10'000}), "");
  // A late result shows one of the writes. Another write shows only by a missing value.
  history.push_back(get(1001, 1002, "lost 7"));
  history.push_back(swap(1003, 1004, "lost 7", "b", Answer::kDifferent));
  EXPECT_EQ(check_keys(history), "");
  history.push_back(get(1005, 1006, "a"));
  EXPECT_NE(check_keys(history, {.steps_max = 10'000}), "");
}

/// There would be 2^24 sets of these operations. Only the number of each kind that has taken effect matters, and a
/// smaller number is never worse.
TEST(Checker, alike_writes_without_return_are_counted) {
  History history = {put(1, 2, "a")};
  for (uint64_t i = 0; i < 8; i++) {
    history.push_back(erase(10 + i, kNever));
    history.push_back(put(20 + i, kNever, ("lost " + std::to_string(i)).c_str()));
    history.push_back(swap(30 + i, kNever, "a", ("lost, too " + std::to_string(i)).c_str(), Answer::kDone));
  }
  for (uint64_t i = 0; i < 4; i++) {
    history.push_back(erase(100 + 10 * i, 104 + 10 * i, Answer::kDone));
    history.push_back(get(101 + 10 * i, 105 + 10 * i, std::nullopt));
    history.push_back(swap(102 + 10 * i, 106 + 10 * i, "a", "b", Answer::kDifferent));
  }
  EXPECT_EQ(check_keys(history, {.steps_max = 20'000}), "");
  history.push_back(get(500, 501, "a"));
  const std::string finding = check_keys(history, {.steps_max = 20'000});
  EXPECT_NE(finding.find("is not linearizable"), std::string::npos) << finding;
}

/// All histories of `count` operations of `kinds`: every order of their calls and returns, with every set of operations
/// that never return.
class AllHistories {
 public:
  AllHistories(size_t count, std::vector<Operation> kinds, bool gives_up)
      : count_(count), kinds_(std::move(kinds)), gives_up_(gives_up) {}

  void compare() {
    History history;
    order(history, 1);
  }
  size_t linearizable = 0, others = 0;

 private:
  /// Adds the next event: one more call, or one of the missing returns.
  void order(History& history, uint64_t time) {
    size_t open = 0;
    for (const auto& operation : history) open += operation.returned == kNever;
    if (history.size() == count_ && (open == 0 || gives_up_)) look(history, 0);
    if (history.size() < count_) {
      history.push_back({.called = time});
      order(history, time + 1);
      history.pop_back();
    }
    for (size_t i = 0; i < history.size(); i++) {
      if (history[i].returned != kNever) continue;
      history[i].returned = time;
      order(history, time + 1);
      history[i].returned = kNever;
    }
  }
  /// Tries every kind of operation at every place.
  void look(History& history, size_t place) {
    if (place == history.size()) {
      const bool expected = is_linearizable_by_force(history);
      ASSERT_EQ(is_linearizable(history), expected) << text(history);
      ASSERT_EQ(check_keys(history) == "", expected) << text(history);
      (expected ? linearizable : others)++;
      return;
    }
    for (const Operation& kind : kinds_) {
      const uint64_t called = history[place].called, returned = history[place].returned;
      // Without a return, the answer makes no difference.
      if (returned == kNever && (kind.answer != Answer::kDone || kind.found == "b")) continue;
      history[place] = kind;
      history[place].called = called;
      history[place].returned = returned;
      look(history, place + 1);
      if (testing::Test::HasFatalFailure()) return;
    }
  }

  const size_t count_;
  const std::vector<Operation> kinds_;
  const bool gives_up_;
};

std::vector<Operation> every_kind() {
  std::vector<Operation> kinds = {put(0, 0, "a"), put(0, 0, "b"), erase(0, 0), erase(0, 0, Answer::kNotFound)};
  for (const Answer answer : {Answer::kDone, Answer::kNotFound, Answer::kDifferent}) {
    kinds.push_back(swap(0, 0, "a", "b", answer));
  }
  for (const char* found : {"a", "b"}) kinds.push_back(get(0, 0, found));
  kinds.push_back(get(0, 0, std::nullopt));
  return kinds;
}

TEST(Checker, agrees_with_every_order_of_up_to_three_operations) {
  for (const size_t count : {1, 2, 3}) {
    AllHistories all(count, every_kind(), true);
    all.compare();
    ASSERT_GT(all.linearizable, 0u);
    ASSERT_GT(all.others, 0u);
  }
}

#ifndef TERN_IS_SANITIZED  // where they take long, and what they run is the same
TEST(Checker, agrees_with_every_order_of_four_operations) {
  AllHistories all(4, {put(0, 0, "a"), swap(0, 0, "a", "b", Answer::kDone), get(0, 0, "a"), get(0, 0, "b")}, true);
  all.compare();
  EXPECT_GT(all.linearizable, 10'000u);
  EXPECT_GT(all.others, 10'000u);
}

/// Six operations have too many histories, so the test draws some of them.
TEST(Checker, agrees_with_every_order_of_six_random_operations) {
  const std::vector<Operation> kinds = every_kind();
  std::mt19937_64 random(1);
  size_t linearizable = 0;
  for (int i = 0; i < 5000; i++) {
    std::vector<uint64_t> times(12);
    std::iota(times.begin(), times.end(), 1);
    std::shuffle(times.begin(), times.end(), random);
    History history;
    for (size_t j = 0; j < 6; j++) {
      history.push_back(kinds[random() % kinds.size()]);
      history[j].called = std::min(times[2 * j], times[2 * j + 1]);
      history[j].returned = random() % 6 == 0 ? kNever : std::max(times[2 * j], times[2 * j + 1]);
    }
    const bool expected = is_linearizable_by_force(history);
    ASSERT_EQ(is_linearizable(history), expected) << text(history);
    linearizable += expected;
  }
  EXPECT_GT(linearizable, 100u);
  EXPECT_LT(linearizable, 4900u);
}
#endif

}  // namespace
}  // namespace linearizability
