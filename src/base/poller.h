// The threads of this process that poll, by CPU, so that a thread that polls in vain knows whether others need its CPU.
#pragma once

#include <cstdint>

#include <tern/detail/export.h>

namespace tern::base {

/// A thread that polls. It counts on its CPU from enter() to leave(). One thread. A child of fork() begins without
/// counted threads. Times are of one monotonic clock, in ns.
class TERN_API Poller {
 public:
  /// Foreign threads may use this much of the time for which a CPU was lent; or half of that time, if that is longer.
  static constexpr uint64_t kForeignNs = 200'000;

  Poller() = default;
  ~Poller() { leave(since_ns_); }
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  /// The thread polls from now on. Costs some 20 ns.
  void enter(uint64_t now_ns);
  /// The thread does not poll, or is about to sleep. Must follow enter(), or is without effect.
  void leave(uint64_t now_ns);
  /// To be called often between enter() and leave(): the other threads then know that this one has had the CPU.
  void note(uint64_t now_ns) {
    if (now_ns - since_ns_ >= kNoteNs) note_now(now_ns);
  }
  /// The number of threads that count on the CPU of this one, which enters.
  uint32_t count_here();
  /// True if another thread counts on the CPU of this one, which should lend it the CPU. False: there is none, or
  /// foreign threads use what is lent.
  bool has_company(uint64_t now_ns);
  /// has_company() is true, and this thread now lends its CPU. end_lending() follows.
  void begin_lending(uint64_t now_ns);
  /// This thread has its CPU again. If foreign threads used it too long, no thread lends the CPU for a while. They stop
  /// and begin together, because a thread that polls and does not lend the CPU looks to the others like a foreign one.
  /// Returns for how long other threads that count here are taken to have used the CPU: all that time, or less if
  /// foreign ones used it too long.
  uint64_t end_lending(uint64_t now_ns);

 private:
  static constexpr int kNowhere = -1;
  static constexpr uint64_t kNoteNs = 50'000;
  void move_here();
  void note_used(uint64_t now_ns);
  void note_now(uint64_t now_ns);

  int cpu_ = kNowhere;           ///< where this thread counts
  uint64_t since_ns_ = 0;        ///< has had the CPU since then; while it lends it: lent since then
  uint64_t used_before_ns_ = 0;  ///< while it lends the CPU: what all had used when that began
};

}  // namespace tern::base
