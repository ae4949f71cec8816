// The threads of this process that poll, by CPU, so that a thread that polls in vain knows whether others need its CPU.
#pragma once

#include <cstdint>

#include <tern/detail/export.h>

namespace tern::base {

/// A thread that polls. It counts on its CPU from enter() to leave(). One thread. A child of fork() begins without
/// counted threads.
class TERN_API Poller {
 public:
  /// Another thread that was lent the CPU works, or lends it on after about this long.
  static constexpr uint64_t kTurnNs = 200'000;

  Poller() = default;
  ~Poller() { leave(); }
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  /// The thread polls from now on. Costs some 20 ns.
  void enter();
  /// The thread does not poll, or is about to sleep.
  void leave();
  /// The number of threads that count on the CPU of this one, which enters.
  uint32_t count_here();
  /// True if another thread counts on the CPU of this one, which should lend it the CPU. False: there is none, or
  /// foreign threads use what is lent.
  bool has_company(uint64_t now_ns);
  /// This thread has lent its CPU for `lent_ns`, until `now_ns`. If that is longer than the others would have taken, no
  /// thread lends the CPU for a while. They stop and begin together, because a thread that polls and does not lend the
  /// CPU looks to the others like a foreign one. Returns how much of `lent_ns` the other threads have probably used.
  uint64_t note_lent(uint64_t lent_ns, uint64_t now_ns);

 private:
  static constexpr int kNowhere = -1;
  int cpu_ = kNowhere;  ///< where this thread counts
};

}  // namespace tern::base
