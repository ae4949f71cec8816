// Access to the driver for a queue, mostly by one thread and rarely by another. Transport layer.
//
// A thread that has a queue for itself enters with a store and a load, without an atomic read-modify-write (20 cycles
// each on x86, four times a round trip). Another thread first makes a claim, calls membarrier(2), which orders the
// memory accesses of all threads of the process, and waits until the first thread is outside. While there are claims,
// all threads take locks.
#pragma once

#include <rte_pause.h>
#include <sched.h>

#include <atomic>
#include <cstdint>

namespace tern::transport {

/// A thread's place inside a gate. One for each user of a gate.
class QueueUser {
 public:
  bool is_inside() const { return is_inside_.load(std::memory_order_acquire); }

 private:
  friend class QueueGate;
  std::atomic<bool> is_inside_{false};
};

/// The gate of a receive queue or a send queue. While there is no claim, at most one user enters.
class QueueGate {
 public:
  /// Must be called before all other members; may be called again. False: this kernel has no membarrier(2), and all
  /// gates of the process must stay claimed.
  static bool prepare();

  /// Does not wait. False: another thread is inside.
  bool try_enter(QueueUser& user) {
    user.is_inside_.store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(
        std::memory_order_seq_cst);  // only for the compiler; the claiming thread's membarrier(2) orders the processor
    if (claims_.load(std::memory_order_acquire) == 0) [[likely]]
      return true;
    user.is_inside_.store(false, std::memory_order_release);
    return try_lock();
  }
  /// Like try_enter(), but waits for some microseconds.
  bool enter(QueueUser& user) {
    for (uint32_t tries = 0; !try_enter(user); ++tries) {
      if (tries == kTriesMax) return false;
      rte_pause();
    }
    return true;
  }
  void leave(QueueUser& user) {
    if (user.is_inside_.load(std::memory_order_relaxed)) [[likely]] {
      user.is_inside_.store(false, std::memory_order_release);
    } else {
      unlock();
    }
  }

  /// From now on until unclaim() all threads take locks. wait_for() must be called for the user that may be inside. Any
  /// thread.
  void claim() { claims_.fetch_add(1, std::memory_order_seq_cst); }
  void unclaim() { claims_.fetch_sub(1, std::memory_order_seq_cst); }
  /// Call it between claim() and wait_for(), once for any number of gates. It makes one system call.
  static void order_memory();
  static void wait_for(const QueueUser& user) {
    while (user.is_inside()) sched_yield();
  }

  /// The lock of a thread that is not a user of the gate, under a claim.
  bool try_lock() { return !is_locked_.exchange(true, std::memory_order_acquire); }
  void lock() {
    while (!try_lock()) sched_yield();
  }
  void unlock() { is_locked_.store(false, std::memory_order_release); }

 private:
  static constexpr uint32_t kTriesMax = 200;

  std::atomic<uint32_t> claims_{0};
  std::atomic<bool> is_locked_{false};
};

}  // namespace tern::transport
