#include "transport/shm/shm_closer.h"

#include <sys/socket.h>

#include <atomic>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "base/process.h"
#include "base/thread_safety.h"
#include "base/threads.h"
#include "base/try.h"

namespace tern::transport::shm {

namespace {

class Closer {
 public:
  size_t size() const { return size_.load(std::memory_order_relaxed); }
  bool is_here() const { return process_ == base::process_number(); }

  void close(base::Descriptor connection) EXCLUDES(mutex_) {
    {
      base::MutexLock lock(mutex_);
      if (!base::try_reserve(waiting_, waiting_.size() + 1)) return;  // `connection` is closed here
      waiting_.push_back(std::move(connection));
      size_++;
      // A thread that runs may be in a close that does not end. It gets one more connection, and no second one.
      if (threads_ != 0 && waiting_.size() == 1) return;
      threads_++;
    }
    std::thread thread;
    if (base::start_thread(thread, "tern-close", [this] { run(); })) return thread.detach();
    run();
  }

 private:
  void run() EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    while (!waiting_.empty()) {
      base::Descriptor connection = std::move(waiting_.back());
      waiting_.pop_back();
      lock.unlock();
      connection.reset();
      size_--;
      lock.lock();
    }
    threads_--;
  }

  const uint32_t process_ = base::process_number();
  std::atomic<size_t> size_{0};
  base::Mutex mutex_;
  std::vector<base::Descriptor> waiting_ GUARDED_BY(mutex_);
  size_t threads_ GUARDED_BY(mutex_) = 0;
};

/// Never destroyed, because its threads may outlive main(). A forked child, which has no threads, makes its own.
std::atomic<Closer*> closer{nullptr};

Closer* find_or_make() {
  Closer* known = closer.load(std::memory_order_acquire);
  if (known != nullptr && known->is_here()) return known;
  auto* made = new (std::nothrow) Closer;
  if (made == nullptr || closer.compare_exchange_strong(known, made, std::memory_order_acq_rel)) return made;
  delete made;
  return known;
}

}  // namespace

size_t connections_to_close() {
  const Closer* known = closer.load(std::memory_order_acquire);
  return known != nullptr && known->is_here() ? known->size() : 0;
}

void close_elsewhere(base::Descriptor connection) {
  if (!connection) return;
  ::shutdown(connection.get(), SHUT_RDWR);  // so that the other side need not wait for the close
  if (Closer* its = find_or_make(); its != nullptr) its->close(std::move(connection));
}

}  // namespace tern::transport::shm
