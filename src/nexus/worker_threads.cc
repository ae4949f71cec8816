#include "nexus/worker_threads.h"

#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "base/thread_safety.h"
#include "base/threads.h"
#include "base/try.h"

namespace tern::nexus {

namespace {
class StdWorkerPool final : public WorkerPool {
 public:
  explicit StdWorkerPool(size_t queue_limit) : queue_limit_(queue_limit) {}
  ~StdWorkerPool() override {
    if (!threads_.is_here()) return;
    {
      base::MutexLock lock(mutex_);
      stopping_ = true;
    }
    has_work_->notify_all();
    for (std::thread& thread : *threads_) thread.join();
  }

  bool start(size_t threads) {
    if (!base::try_reserve(*threads_, threads)) return false;
    for (size_t i = 0; i < threads; i++) {
      std::thread thread;
      if (!base::start_thread(thread, "tern-worker", [this] { run(); })) return false;
      threads_->push_back(std::move(thread));
    }
    return true;
  }

  bool submit(std::function<void()> task) override {
    const bool is_queued = submit_later(std::move(task));
    if (is_queued) flush();
    return is_queued;
  }
  bool submit_later(std::function<void()> task) override {
    base::MutexLock lock(mutex_);
    if (queue_->size() >= queue_limit_) return false;
    return base::try_grow([&] {
      mutex_.assert_held();
      queue_->push_back(std::move(task));
    });
  }
  void flush() override { has_work_->notify_one(); }

 private:
  void run() {
    while (true) {
      std::function<void()> task;
      bool has_slept = false;
      bool has_more;
      {
        base::MutexLock lock(mutex_);
        while (!stopping_ && queue_->empty()) {
          has_work_->wait(mutex_);
          has_slept = true;
        }
        if (queue_->empty()) return;
        task = std::move(queue_->front());
        queue_->pop_front();
        has_more = !queue_->empty();
      }
      // Each thread that was woken wakes another one, as long as tasks wait. Often the first few run all tasks.
      if (has_slept && has_more) has_work_->notify_one();
      task();
    }
  }

  const size_t queue_limit_;
  base::Mutex mutex_;
  base::OfThisProcess<base::Condition> has_work_;
  base::OfThisProcess<std::deque<std::function<void()>>> queue_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  base::OfThisProcess<std::vector<std::thread>> threads_;
};
}  // namespace

Result<std::unique_ptr<WorkerPool>> start_worker_threads(size_t threads, size_t queue_limit) {
  std::unique_ptr<StdWorkerPool> pool;
  if (!base::try_grow([&] { pool = std::make_unique<StdWorkerPool>(queue_limit); })) {
    return Status{Code::kNoMemory, "no memory for worker threads"};
  }
  if (!pool->start(threads)) return base::kNoThread;
  return std::unique_ptr<WorkerPool>(std::move(pool));
}

}  // namespace tern::nexus
