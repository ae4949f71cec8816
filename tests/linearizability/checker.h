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
#include <span>
#include <string>
#include <unordered_map>
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
/// kept is the outcome of a step. A configuration takes about 200 bytes, its state and one bit for each operation: the
/// default keeps a history of 1000 operations with states of 100 bytes below 1.6 GB and a minute. Histories of the
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
///   static bool are_alike(const Operation&, const Operation&)  of two that never returned: step() makes no difference
///                                                              between them
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
  using Bits = std::vector<uint64_t>;  ///< one for each operation
  /// Which operations have taken effect, and what they led to. With those that never returned the search is the same
  /// from here on; and where it led nowhere, it does so with fewer of them left.
  struct Configuration {
    Bits done;  ///< of those that have returned
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
    spent_.resize(done_.size());
    find_alike();
  }
  /// Of operations that never returned and are alike, the first one that is left stands for all.
  void find_alike() {
    before_.resize(history_.size(), SIZE_MAX);
    std::vector<size_t> pending;
    for (const Event& event : std::span(events_).subspan(1)) {
      if (!event.is_call || has_returned(event.operation)) continue;
      const auto alike = std::find_if(pending.rbegin(), pending.rend(), [&](size_t other) {
        return Model::are_alike(history_[other], history_[event.operation]);
      });
      if (alike != pending.rend()) before_[event.operation] = *alike;
      pending.push_back(event.operation);
    }
  }

  /// Lets it take effect now. False: it cannot, or not in this turn, or that has led nowhere before.
  bool try_operation(size_t operation) {
    if (turn_ >= Turn::kReturned && has_returned(operation) != (turn_ == Turn::kReturned)) return false;
    if (before_[operation] != SIZE_MAX && !is_done(before_[operation])) return false;
    State after = state_;
    if (!Model::step(history_[operation], after)) return false;
    if (!has_returned(operation) && after == state_) return false;  // as if it never took effect
    if (turn_ == Turn::kExplaining) {
      State explained = after;
      if (!Model::step(history_[blocked_], explained)) return false;
    }
    flip(operation);
    if (!note_configuration(after)) {
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

  /// False: it was there before, with as many of those left that never returned.
  bool note_configuration(const State& state) {
    std::vector<Bits>& before = seen_[{done_, state}];
    const auto is_within = [](const Bits& a, const Bits& b) {
      for (size_t i = 0; i < a.size(); i++) {
        if ((a[i] & ~b[i]) != 0) return false;
      }
      return true;
    };
    if (std::any_of(before.begin(), before.end(), [&](const Bits& one) { return is_within(one, spent_); }))
      return false;
    std::erase_if(before, [&](const Bits& one) { return is_within(spent_, one); });
    before.push_back(spent_);
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
  void flip(size_t operation) {
    (has_returned(operation) ? done_ : spent_)[operation / 64] ^= uint64_t{1} << operation % 64;
  }
  bool is_done(size_t operation) const {
    return ((has_returned(operation) ? done_ : spent_)[operation / 64] >> operation % 64 & 1) != 0;
  }
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
  Bits done_;                   ///< of those that have returned
  Bits spent_;                  ///< of those that never returned
  std::vector<size_t> before_;  ///< of one that never returned: the one before that is like it; SIZE_MAX: none
  std::vector<Step> order_;
  std::unordered_map<Configuration, std::vector<Bits>, Hash> seen_;  ///< each with sets of operations like `spent_`
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
