// Requests that wait for their handler, and the expected run time of a handler.
// Rpc layer. No I/O, no clock: time is an argument.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/linked_list.h"

namespace tern::rpc {

struct Incoming;

/// The recent run time of one request type's handler, measured for requests with deadlines only. Any thread. If threads
/// add samples at the same time, some may be lost, which changes little.
class HandlerTime {
 public:
  HandlerTime() = default;
  HandlerTime(HandlerTime&& other) noexcept
      : recent_ns_(other.recent_ns_.load(std::memory_order_relaxed)),
        lasts_until_ns_(other.lasts_until_ns_.load(std::memory_order_relaxed)) {}
  HandlerTime& operator=(HandlerTime&&) = delete;

  /// The expected run time, ns. 0: it is not known, or too old to refuse requests because of it.
  uint64_t expected_ns(uint64_t now_ns) const {
    const uint64_t recent_ns = recent_ns_.load(std::memory_order_relaxed);
    return now_ns > lasts_until_ns_.load(std::memory_order_relaxed) ? 0 : recent_ns;
  }
  void add(uint64_t begin_ns, uint64_t end_ns) { add(begin_ns, end_ns, expected_ns(begin_ns)); }
  /// `recent_ns`: expected_ns(begin_ns).
  void add(uint64_t begin_ns, uint64_t end_ns, uint64_t recent_ns) {
    const uint64_t sample_ns = end_ns - std::min(begin_ns, end_ns);
    if (recent_ns == 0) [[unlikely]]
      return add_first(end_ns, sample_ns);
    const uint64_t counted_ns = std::min(sample_ns, kJumpTimes * recent_ns);
    const uint64_t mean_ns = recent_ns - recent_ns / kWeight + counted_ns / kWeight;
    recent_ns_.store(mean_ns, std::memory_order_relaxed);
    lasts_until_ns_.store(end_ns + std::max(kLastsNs, kLastsTimes * mean_ns), std::memory_order_relaxed);
  }

 private:
  /// Weight of the mean. A run counts as at most kJumpTimes the mean, also as an old one, because a run that the system
  /// interrupted, even for a second, must not cause refusals of the next requests.
  static constexpr uint64_t kWeight = 8;
  static constexpr uint64_t kJumpTimes = 4;
  /// There are no new measurements while every request is refused. One request then runs after kLastsNs or kLastsTimes
  /// the mean, whichever is longer, so that such runs take a sixteenth of the CPU at most. The very first run, which
  /// may have to load and to prepare much, lasts for kLastsNs only.
  static constexpr uint64_t kLastsNs = 100'000'000;
  static constexpr uint64_t kLastsTimes = 16;

  /// Adds the very first run, or the first one after the mean was forgotten.
  void add_first(uint64_t end_ns, uint64_t sample_ns) {
    const uint64_t before_ns = recent_ns_.load(std::memory_order_relaxed);
    const uint64_t mean_ns = before_ns == 0 ? sample_ns : std::min(sample_ns, kJumpTimes * before_ns);
    const uint64_t lasts_ns = before_ns == 0 ? kLastsNs : std::max(kLastsNs, kLastsTimes * mean_ns);
    recent_ns_.store(mean_ns, std::memory_order_relaxed);
    lasts_until_ns_.store(end_ns + lasts_ns, std::memory_order_relaxed);
  }

  std::atomic<uint64_t> recent_ns_{0};
  std::atomic<uint64_t> lasts_until_ns_{0};
};

/// The order in which requests run: the order of arrival as long as all are in time. Once a request has waited too
/// long, the newest request runs first until no request waits, because in order of arrival each request would run when
/// its time is nearly over, and its answer would be late.
class WaitingRequests {
 public:
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Incoming* newest() const { return list_.last(); }  ///< null: no request waits
  void add(Incoming* request);
  /// Removes a request that ended while it waited.
  void remove(Incoming* request, uint64_t now_ns);
  struct Next {
    Incoming* request = nullptr;  ///< null: no request waits
    bool is_late = false;         ///< the request can no longer finish in time, and must be refused
  };
  Next take(uint64_t now_ns);
  void check_invariants() const;

 private:
  struct InWaiting {
    static base::ListLinks<Incoming>& of(Incoming& request);
    static const base::ListLinks<Incoming>& of(const Incoming& request);
  };
  void unlink(Incoming* request);

  base::LinkedList<Incoming, InWaiting> list_;
  size_t size_ = 0;
  bool is_behind_ = false;
};

}  // namespace tern::rpc
