// A linearizability checker: may the operations of a history have taken effect one at a time, each at a moment between
// its call and its return, with the results that they had? The algorithm of Wing and Gong ("Testing and verifying
// concurrent objects", 1993), with the cache of Lowe ("Testing for linearizability", 2017) in the form that porcupine
// gave it: a list of calls and returns, from which an operation is lifted when it takes effect and to which it goes
// back when that led nowhere. It knows no key, no value and no network: the model says what an operation does. Test
// code.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace linearizability {

/// The return of an operation whose client gave up: it may take effect at any time after its call, or never.
inline constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

enum class Verdict : uint8_t {
  kLinearizable,
  kNotLinearizable,
  kUnknown,  ///< the search was given up at its limit; for a test that is a failure
};

/// The bound of a search, of its time and its memory: a step takes one look at one event, and a configuration that is
/// kept is the outcome of a step. A configuration takes about 100 bytes, its state and one bit for each operation: the
/// default keeps a history of 1000 operations with states of 100 bytes below 1.3 GB and a minute. Histories of the
/// tests take less than a thousandth of it.
struct Limits {
  uint64_t steps_max = 4'000'000;
};

struct Result {
  Verdict verdict = Verdict::kLinearizable;
  uint64_t steps = 0;
  /// If the verdict is not kLinearizable: the operations of the longest order that was found, by their index in the
  /// history, and the one whose return no order gets past.
  std::vector<size_t> longest;
  size_t stuck = SIZE_MAX;
};

/// When an operation takes effect, as far as there is a choice.
enum class Order : uint8_t {
  kLateShort,  ///< as late as it can; one that never returned only if that explains the next return at once
  kLate,       ///< as late as it can: which leaves most ways open, but not for one that returned long after its effect
  kEarly,      ///< as early as it can, but for one that never returned
};

/// The search. A Model has
///   struct Operation { uint64_t called, returned; ... }   times of any clock that is the history's only one; kNever
///   struct State                                          with ==, what a value-initialised one has is the beginning
///   static size_t hash(const State&)
///   static bool step(const Operation&, State&)            changes the state; false: the results say otherwise. An
///                                                         operation that never returned has no results, and is never
///                                                         refused
/// Operations with one time at both ends overlap: a call at the time of a return counts as before it.
template <class Model>
class Search {
 public:
  using Operation = typename Model::Operation;
  using State = typename Model::State;

  /// kLateShort is enough for most histories, and the search is short; but only the others can say kNotLinearizable.
  Search(const std::vector<Operation>& history, Limits limits, Order order)
      : history_(history),
        limits_(limits),
        is_short_(order == Order::kLateShort),
        first_turn_(order == Order::kEarly ? Turn::kReturned : Turn::kNext) {
    make_list();
  }

  Result run() {
    size_t at = next_[kHead];
    while (unreturned_ > 0) {
      if (result_.steps++ == limits_.steps_max) return end(Verdict::kUnknown);
      if (events_[at].is_call) {
        at = turn_ != Turn::kNext && try_operation(events_[at].operation) ? next_[kHead] : next_[at];
        continue;
      }
      // The next return: its operation must take effect now, or after others.
      blocked_ = events_[at].operation;
      if (turn_ == Turn::kNext) {
        if (!try_operation(blocked_)) turn_ = Turn::kExplaining;
        at = next_[kHead];
      } else if (turn_ == Turn::kExplaining || (turn_ == Turn::kReturned && !is_short_ && last_resorts_ > 0)) {
        turn_ = turn_ == Turn::kExplaining ? Turn::kReturned : Turn::kAny;
        at = next_[kHead];
      } else {  // what took effect last was not the right one
        if (order_.size() >= result_.longest.size()) note_longest();
        if (order_.empty()) return end(Verdict::kNotLinearizable);
        at = undo();
      }
    }
    return end(Verdict::kLinearizable);
  }

 private:
  static constexpr size_t kHead = 0;  ///< of the list, which is a ring

  /// What is tried next, in this order. An operation that takes effect no earlier than it must leaves most ways open.
  enum class Turn : uint8_t {
    kNext,        ///< the operation of the next return
    kExplaining,  ///< one after which that one could take effect
    kReturned,    ///< any one that has returned
    kAny,         ///< any one that has not
  };

  struct Event {
    uint64_t time = 0;
    size_t operation = 0;
    bool is_call = false;
  };
  /// Which operations have taken effect, and what they led to: from here on the search is the same.
  struct Configuration {
    std::vector<uint64_t> done;
    State state;
    bool operator==(const Configuration&) const = default;
  };
  struct Hash {
    size_t operator()(const Configuration& configuration) const {
      size_t hash = Model::hash(configuration.state);
      for (const uint64_t word : configuration.done) hash = (hash ^ word) * 0x9e3779b97f4a7c15 + (hash >> 29);
      return hash;
    }
  };

  /// An operation that has taken effect, and how it was before.
  struct Step {
    size_t operation = 0;
    State state;
    Turn turn = Turn::kNext;
    size_t blocked = 0;
  };

  void make_list() {
    events_.push_back({});
    for (size_t i = 0; i < history_.size(); i++) {
      events_.push_back({history_[i].called, i, true});
      if (history_[i].returned == kNever) {
        last_resorts_++;
        continue;
      }
      events_.push_back({history_[i].returned, i, false});
      unreturned_++;
    }
    std::sort(events_.begin() + 1, events_.end(), [](const Event& a, const Event& b) {
      return std::pair(a.time, !a.is_call) < std::pair(b.time, !b.is_call);
    });
    call_.resize(history_.size());
    return_.resize(history_.size(), kHead);
    for (size_t i = 0; i < events_.size(); i++) {
      next_.push_back((i + 1) % events_.size());
      previous_.push_back((i + events_.size() - 1) % events_.size());
      if (i != kHead) (events_[i].is_call ? call_ : return_)[events_[i].operation] = i;
    }
    done_.resize((history_.size() + 63) / 64);
  }

  /// Lets it take effect now. False: it cannot, or not in this turn, or that has led nowhere before.
  bool try_operation(size_t operation) {
    if (turn_ >= Turn::kReturned && has_returned(operation) != (turn_ == Turn::kReturned)) return false;
    State after = state_;
    if (!Model::step(history_[operation], after)) return false;
    if (!has_returned(operation) && after == state_) return false;  // as if it never took effect
    if (turn_ == Turn::kExplaining) {
      State explained = after;
      if (!Model::step(history_[blocked_], explained)) return false;
    }
    flip(operation);
    if (!seen_.insert({done_, after}).second) {
      flip(operation);
      return false;
    }
    order_.push_back({operation, std::exchange(state_, std::move(after)), turn_, blocked_});
    turn_ = first_turn_;
    unlink(call_[operation]);
    if (has_returned(operation)) {
      unlink(return_[operation]);
      unreturned_--;
    } else {
      last_resorts_--;
    }
    return true;
  }

  /// Takes the last one back; the event from which the search goes on.
  size_t undo() {
    Step& step = order_.back();
    const size_t operation = step.operation;
    state_ = std::move(step.state);
    turn_ = step.turn;
    blocked_ = step.blocked;
    order_.pop_back();
    flip(operation);
    if (has_returned(operation)) {
      link(return_[operation]);
      unreturned_++;
    } else {
      last_resorts_++;
    }
    link(call_[operation]);
    if (turn_ != Turn::kNext) return next_[call_[operation]];
    turn_ = Turn::kExplaining;
    return next_[kHead];
  }

  bool has_returned(size_t operation) const { return return_[operation] != kHead; }
  void flip(size_t operation) { done_[operation / 64] ^= uint64_t{1} << operation % 64; }
  void unlink(size_t event) {
    next_[previous_[event]] = next_[event];
    previous_[next_[event]] = previous_[event];
  }
  void link(size_t event) { next_[previous_[event]] = previous_[next_[event]] = event; }

  void note_longest() {
    result_.longest.clear();
    for (const Step& step : order_) result_.longest.push_back(step.operation);
    result_.stuck = blocked_;
  }
  Result end(Verdict verdict) {
    result_.verdict = verdict;
    return std::move(result_);
  }

  const std::vector<Operation>& history_;
  const Limits limits_;
  const bool is_short_;
  const Turn first_turn_;
  std::vector<Event> events_;            ///< by time, after the head
  std::vector<size_t> next_, previous_;  ///< of an event in the list; as they were when it was lifted
  std::vector<size_t> call_, return_;    ///< of an operation: its events; kHead: it has none
  size_t last_resorts_ = 0;              ///< calls in the list without a return
  size_t unreturned_ = 0;                ///< returns in the list
  State state_{};
  Turn turn_ = first_turn_;
  size_t blocked_ = 0;          ///< the operation of the next return
  std::vector<uint64_t> done_;  ///< a bit for each operation
  std::vector<Step> order_;
  std::unordered_set<Configuration, Hash> seen_;
  Result result_;
};

template <class Model>
Result check(const std::vector<typename Model::Operation>& history, Limits limits = {}) {
  Result result = Search<Model>(history, limits, Order::kLateShort).run();
  if (result.verdict == Verdict::kLinearizable) return result;
  result = Search<Model>(history, limits, Order::kLate).run();
  if (result.verdict != Verdict::kUnknown) return result;
  Result early = Search<Model>(history, limits, Order::kEarly).run();
  return early.verdict != Verdict::kUnknown ? early : result;
}

}  // namespace linearizability
