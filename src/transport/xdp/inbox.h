// Frames for an endpoint that other endpoints have taken from a queue. Transport layer; any thread puts frames in, and
// the endpoint's thread takes them out.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include "base/thread_safety.h"
#include "base/wait.h"
#include "transport/xdp/frame.h"

namespace tern::transport::xdp {

class Inbox {
 public:
  static constexpr uint32_t kFramesMax = 512;

  /// False: no descriptors are left.
  [[nodiscard]] bool open() { return wake_.open(); }
  /// From arm() until disarm(): readable when a frame has come, or after wake_if_armed().
  int descriptor() const { return wake_.descriptor(); }

  /// Puts a frame in. False: the inbox has `frames_max` or kFramesMax frames already, or is shut; the caller keeps the
  /// frame.
  bool push(const Frame& frame, uint32_t frames_max) {
    {
      const base::MutexLock lock(mutex_);
      if (is_shut_ || count_ >= std::min(frames_max, kFramesMax)) return false;
      frames_[(first_ + count_) % kFramesMax] = frame;
      ++count_;
      has_some_.store(true, std::memory_order_seq_cst);
    }
    wake_if_armed();
    return true;
  }
  /// Wakes the endpoint if it is armed. An endpoint that is not armed sees the caller's writes of
  /// std::memory_order_seq_cst after its next arm().
  void wake_if_armed() {
    if (is_armed_.load(std::memory_order_seq_cst)) wake_.wake();
  }

  // The endpoint's thread.

  bool is_empty() const { return !has_some_.load(std::memory_order_relaxed); }
  uint32_t pop(std::span<Frame> frames) {
    const base::MutexLock lock(mutex_);
    uint32_t taken = 0;
    for (; taken < frames.size() && count_ != 0; ++taken, --count_) {
      frames[taken] = frames_[first_];
      first_ = (first_ + 1) % kFramesMax;
    }
    has_some_.store(count_ != 0, std::memory_order_relaxed);
    return taken;
  }
  /// Call it before sleeping. False: frames are waiting.
  bool arm() {
    is_armed_.store(true, std::memory_order_seq_cst);
    return !has_some_.load(std::memory_order_seq_cst);
  }
  void disarm() {
    is_armed_.store(false, std::memory_order_relaxed);
    wake_.clear();
  }
  /// From now on the inbox accepts frames.
  void begin() {
    const base::MutexLock lock(mutex_);
    is_shut_ = false;
  }
  /// From now on the inbox accepts no frames.
  void shut() {
    const base::MutexLock lock(mutex_);
    is_shut_ = true;
  }

 private:
  base::Mutex mutex_;
  std::array<Frame, kFramesMax> frames_ GUARDED_BY(mutex_);
  uint32_t first_ GUARDED_BY(mutex_) = 0;
  uint32_t count_ GUARDED_BY(mutex_) = 0;
  bool is_shut_ GUARDED_BY(mutex_) = true;
  std::atomic<bool> has_some_{false};
  std::atomic<bool> is_armed_{false};
  base::WakeEvent wake_;
};

}  // namespace tern::transport::xdp
