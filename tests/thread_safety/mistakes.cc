// Mistakes that clang's -Wthread-safety must refuse, one for each number: see check.
#include <deque>

#include "base/thread_safety.h"

#ifndef MISTAKE
#define MISTAKE 0  // none: the file compiles
#endif

namespace tern::base {

class Queue {
 public:
  void push(int value) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    values_.push_back(value);
    not_empty_.notify_one();
#if MISTAKE == 1  // a field after its lock was released
    lock.unlock();
    values_.clear();
#elif MISTAKE == 2  // the same mutex twice
    push(value);
#endif
  }

  int pop() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (values_.empty()) not_empty_.wait(mutex_);
    return take();
  }

  int pop_in_turns() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    lock.unlock();
    lock.lock();
#if MISTAKE == 3  // the lock taken again although it is held
    lock.lock();
#endif
    return take();
  }

  bool is_empty() EXCLUDES(mutex_) {
#if MISTAKE != 4  // a field without its lock
    MutexLock lock(mutex_);
#endif
    return values_.empty();
  }

  int try_pop() EXCLUDES(mutex_) {
    if (!mutex_.try_lock()) return -1;
    const int value = values_.empty() ? -1 : take();
#if MISTAKE != 5  // a function that returns with the lock held
    mutex_.unlock();
#endif
    return value;
  }

  int take_without_lock() {
#if MISTAKE == 6  // a function that requires the lock, without it
    return take();
#else
    return 0;
#endif
  }

  void wait_without_lock() {
#if MISTAKE == 7  // a wait without the lock
    not_empty_.wait(mutex_);
#endif
  }

  template <class F>
  static void run(F&& function) {
    function();
  }
  void clear_in_lambda() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    run([this] {
#if MISTAKE != 8  // a field in a lambda that does not say who holds its lock
      mutex_.assert_held();
#endif
      values_.clear();
    });
  }

  void on_event() {
#if MISTAKE != 9  // a thread's field in a function that does not say which thread runs it
    owner_.assume();
#endif
    events_++;
  }

 private:
  int take() REQUIRES(mutex_) {
    const int value = values_.front();
    values_.pop_front();
    return value;
  }

  Mutex mutex_;
  Condition not_empty_;
  std::deque<int> values_ GUARDED_BY(mutex_);
  ThreadRole owner_;
  int events_ GUARDED_BY(owner_) = 0;
};

}  // namespace tern::base
