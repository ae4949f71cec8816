// The timers of an endpoint (Endpoint::after()). Owner thread only. No clock: time is an argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <tern/detail/export.h>
#include <tern/detail/inline_function.h>

namespace tern::rpc {

/// A heap of times. Each element names the place of its timer's function, and each place has its timer's index in the
/// heap, so that a timer can be removed from the middle.
class TERN_API Timers {
 public:
  /// Adds a timer. Returns its name, for cancel(). 0: there is no memory, or 2^24 timers wait; `then` has not changed.
  [[nodiscard]] uint64_t add(uint64_t at_ns, detail::InlineFunction<>& then);
  /// Destroys the function of a timer that has not run. False: there is no such timer. Does not allocate.
  bool cancel(uint64_t name);
  /// Time of the earliest timer. UINT64_MAX: there is no timer.
  uint64_t next_ns() const { return heap_.empty() ? UINT64_MAX : heap_.front().at_ns; }
  /// Runs the due timers, the earliest first. Timers with equal times run in the order in which they were added. A
  /// timer that another timer adds runs in a later call, because timers without delay could otherwise occupy the loop
  /// for ever.
  void run(uint64_t now_ns);
  /// Destroys the functions of all timers.
  void clear();
  /// CHECKs the heap's order, and the places.
  void check_invariants() const;

 private:
  /// The low bits of a name are the place, the others count the timers. No name is used twice in 2^40 timers.
  static constexpr unsigned kPlaceBits = 24;
  static constexpr uint64_t kPlaceMask = (uint64_t{1} << kPlaceBits) - 1;
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Timer {
    uint64_t at_ns;
    uint64_t sequence;
    uint32_t place;
  };
  struct Place {
    detail::InlineFunction<> then;
    uint64_t name = 0;           ///< name of its timer; 0: the place is free
    uint32_t heap_index = 0;     ///< of a timer: its index in heap_
    uint32_t next_free = kNone;  ///< of a free place: the next free place
  };
  static bool is_earlier(const Timer& a, const Timer& b) {
    return a.at_ns != b.at_ns ? a.at_ns < b.at_ns : a.sequence < b.sequence;
  }
  void put(size_t index, const Timer& timer);
  void move_up(size_t index, const Timer& timer);
  void move_down(size_t index, const Timer& timer);
  detail::InlineFunction<> take(size_t index);

  std::vector<Timer> heap_;  ///< a binary heap, the earliest timer first
  std::vector<Place> places_;
  uint32_t first_free_ = kNone;
  uint64_t sequence_ = 1;  ///< sequence number of the next timer
};

}  // namespace tern::rpc
