// A linearizability checker: may the operations of a history have taken effect one at a time, each at a moment between
// its call and its return, with its results? The algorithm is that of Wing and Gong ("Testing and verifying concurrent
// objects", 1993), with the cache of Lowe ("Testing for linearizability", 2017) in the form of porcupine. A list
// contains calls and returns. An operation is lifted from the list when it takes effect, and goes back when the search
// from there has failed. The checker knows no key, value or network: the model defines the operations. Test code.
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

/// The return of an operation whose client gave up. It may take effect at any time after its call, or never.
inline constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

enum class Verdict : uint8_t {
  kLinearizable,
  kNotLinearizable,
  kUnknown,  ///< the search was given up at its limit; a test counts this as a failure
};

/// The bound of a search's time and memory. A step examines one event, and keeps at most one configuration. A
/// configuration takes about 200 bytes, its state and one bit for each operation. The default keeps a history of 1000
/// operations with states of 100 bytes below 1.6 GB and a minute. Histories of the tests take less than a thousandth of
/// it.
struct Limits {
  uint64_t steps_max = 4'000'000;
};

struct Result {
  Verdict verdict = Verdict::kLinearizable;
  uint64_t steps = 0;
  /// If the verdict is not kLinearizable: the operations of the longest order that was found, by their index in the
  /// history, and the operation whose return stops every order.
  std::vector<size_t> longest;
  size_t stuck = SIZE_MAX;
};

/// The time at which an operation takes effect, where there is a choice.
enum class Order : uint8_t {
  kLateShort,  ///< as late as possible; an operation without a return only if it explains the next return at once
  /// As late as possible, which leaves most ways open, but not for an operation that returned long after its effect.
  kLate,
  kEarly,  ///< as early as possible, except for an operation without a return
};

/// The search. A Model has
///   struct Operation { uint64_t called, returned; ... }   times of one clock for the whole history; kNever: no return
///   struct State                                          with ==; a value-initialised one is the initial state
///   static size_t hash(const State&)
///   static bool step(const Operation&, State&)            changes the state; false: the results differ. An operation
///                                                         without a return has no results, and is never refused
///   static bool are_alike(const Operation&, const Operation&)  for two operations without a return: step() makes no
///                                                              difference between them
/// A call at the time of a return counts as earlier, so the two operations overlap.
template <class Model>
class Search {
 public:
  using Operation = typename Model::Operation;
  using State = typename Model::State;

  /// kLateShort suffices for most histories with a short search. Only the other orders can give kNotLinearizable.
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
      // The operation of the next return must take effect now, or after others.
      blocked_ = events_[at].operation;
      if (turn_ == Turn::kNext) {
        if (!try_operation(blocked_)) turn_ = Turn::kExplaining;
        at = next_[kHead];
      } else if (turn_ == Turn::kExplaining || (turn_ == Turn::kReturned && !is_short_ && last_resorts_ > 0)) {
        turn_ = turn_ == Turn::kExplaining ? Turn::kReturned : Turn::kAny;
        at = next_[kHead];
      } else {  // the operation that took effect last was wrong
        if (order_.size() >= result_.longest.size()) note_longest();
        if (order_.empty()) return end(Verdict::kNotLinearizable);
        at = undo();
      }
    }
    return end(Verdict::kLinearizable);
  }

 private:
  static constexpr size_t kHead = 0;  ///< head of the list, which is a ring

  /// The operations to try next, in this order. An operation that takes effect as late as possible leaves most ways
  /// open.
  enum class Turn : uint8_t {
    kNext,        ///< the operation of the next return
    kExplaining,  ///< an operation after which the next return's operation could take effect
    kReturned,    ///< any operation with a return
    kAny,         ///< any operation without a return
  };

  struct Event {
    uint64_t time = 0;
    size_t operation = 0;
    bool is_call = false;
  };
  using Bits = std::vector<uint64_t>;  ///< one bit for each operation
  /// The operations that have taken effect, and their result. With equal operations without a return, the search from
  /// here on is the same. A search that has failed also fails with fewer of those operations left.
  struct Configuration {
    Bits done;  ///< operations with a return that have taken effect
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

  /// An operation that has taken effect, and the state before it.
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
  /// Of alike operations without a return, only the first remaining one is tried.
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

  /// Lets the operation take effect now. False: it cannot, it does not belong to this turn, or the search from there
  /// has failed before.
  bool try_operation(size_t operation) {
    if (turn_ >= Turn::kReturned && has_returned(operation) != (turn_ == Turn::kReturned)) return false;
    if (before_[operation] != SIZE_MAX && !is_done(before_[operation])) return false;
    State after = state_;
    if (!Model::step(history_[operation], after)) return false;
    if (!has_returned(operation) && after == state_) return false;  // equal to a history in which it never took effect
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

  /// Notes the configuration. False: it was noted before with at least as many remaining operations without a return.
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

  /// Undoes the last operation. Returns the event from which the search continues.
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
  std::vector<Event> events_;  ///< by time, after the head
  /// Neighbours of an event in the list; those at the time of lifting if it was lifted.
  std::vector<size_t> next_, previous_;
  std::vector<size_t> call_, return_;  ///< events of an operation; kHead: none
  size_t last_resorts_ = 0;            ///< calls in the list whose operation has no return
  size_t unreturned_ = 0;              ///< returns in the list
  State state_{};
  Turn turn_ = first_turn_;
  size_t blocked_ = 0;          ///< the operation of the next return
  Bits done_;                   ///< operations with a return that have taken effect
  Bits spent_;                  ///< operations without a return that have taken effect
  std::vector<size_t> before_;  ///< for an operation without a return: the previous alike one; SIZE_MAX: none
  std::vector<Step> order_;
  /// For each configuration: sets of operations like `spent_`.
  std::unordered_map<Configuration, std::vector<Bits>, Hash> seen_;
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
