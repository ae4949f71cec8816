// The timers of an endpoint (Endpoint::after()). Owner thread only. No clock: time is an argument.
#pragma once

#include <cstdint>
#include <vector>

#include <tern/detail/export.h>
#include <tern/detail/inline_function.h>

namespace tern::rpc {

class TERN_API Timers {
 public:
  /// False: there is no memory, and `then` is as it was.
  [[nodiscard]] bool add(uint64_t at_ns, detail::InlineFunction<>& then);
  /// Of the earliest timer; UINT64_MAX: there is none.
  uint64_t next_ns() const { return timers_.empty() ? UINT64_MAX : timers_.front().at_ns; }
  /// Runs the timers that are due, the earliest first, and timers of one time in the order in which they were added. A
  /// timer that another timer adds runs in a later call, because one without delay would keep the loop for ever.
  void run(uint64_t now_ns);
  void clear() { timers_.clear(); }
  /// CHECKs the order.
  void check_invariants() const;

 private:
  struct Timer {
    uint64_t at_ns;
    uint64_t sequence;
    detail::InlineFunction<> then;
  };
  static bool is_later(const Timer& a, const Timer& b);

  std::vector<Timer> timers_;  ///< a heap, the earliest first
  uint64_t sequence_ = 0;      ///< of the next timer
};

}  // namespace tern::rpc
