// A mutex and annotations with which clang's -Wthread-safety proves at compile time which lock guards which field
// (https://clang.llvm.org/docs/ThreadSafetyAnalysis.html). For other compilers the annotations are empty.
//
// std::mutex of libstdc++ has no annotations, so that the flag accepts any use of it. Code in src uses Mutex instead.
// tests/thread_safety proves that the flag refuses each mistake, and that src has no other mutex.
#pragma once

#include <condition_variable>
#include <mutex>

#ifdef __clang__
#define TERN_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define TERN_THREAD_ATTRIBUTE(x)
#endif

/// A field that must be read and written only with `lock` held.
#define GUARDED_BY(lock) TERN_THREAD_ATTRIBUTE(guarded_by(lock))
/// A function that must be called with the locks held, and leaves them held.
#define REQUIRES(...) TERN_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
/// A function that takes the locks itself. A caller that already holds one would deadlock.
#define EXCLUDES(...) TERN_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
/// A function that the analysis skips. A comment says why it needs no lock.
#define NO_THREAD_SAFETY_ANALYSIS TERN_THREAD_ATTRIBUTE(no_thread_safety_analysis)
// For classes that are locks, and their functions.
#define CAPABILITY(kind) TERN_THREAD_ATTRIBUTE(capability(kind))
#define SCOPED_CAPABILITY TERN_THREAD_ATTRIBUTE(scoped_lockable)
#define ACQUIRE(...) TERN_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) TERN_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define RELEASE(...) TERN_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define ASSERT_CAPABILITY(lock) TERN_THREAD_ATTRIBUTE(assert_capability(lock))

namespace tern::base {

/// std::mutex, visible to the analysis.
class CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() ACQUIRE() { mutex_.lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }
  bool try_lock() TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  /// Tells the analysis that the mutex is held here, where it cannot see that: in a lambda, or where no other thread
  /// knows the object yet. Does nothing.
  void assert_held() const ASSERT_CAPABILITY(this) {}

 private:
  friend class Condition;
  std::mutex mutex_;
};

/// Holds a mutex until the end of its scope, except between unlock() and lock().
class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() RELEASE() {
    if (is_locked_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() RELEASE() {
    mutex_.unlock();
    is_locked_ = false;
  }
  void lock() ACQUIRE() {
    mutex_.lock();
    is_locked_ = true;
  }

 private:
  Mutex& mutex_;
  bool is_locked_ = true;
};

/// std::condition_variable for a Mutex.
class Condition {
 public:
  /// Releases the mutex, waits for a notification, and takes the mutex again. May return without a notification, so the
  /// caller must test its condition in a loop.
  void wait(Mutex& mutex) REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

/// Represents a thread as a lock that costs nothing. A field that only this thread may use is GUARDED_BY its role. Each
/// function that the thread enters from outside begins with assume().
class CAPABILITY("thread") ThreadRole {
 public:
  void assume() const ASSERT_CAPABILITY(this) {}
};

}  // namespace tern::base
