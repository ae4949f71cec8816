#include "transport/verbs/verbs_resolver.h"

#include <utility>

#include "base/threads.h"
#include "base/try.h"

namespace tern::transport {

VerbsResolver::~VerbsResolver() {
  {
    base::MutexLock lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  for (size_t i = 0; i < started_; ++i) threads_[i].join();
}

std::shared_ptr<VerbsResolver::Lookup> VerbsResolver::start(const ibv_ah_attr& route, std::string_view host) {
  std::shared_ptr<Lookup> lookup;
  size_t waiting = 0, idle = 0;
  const bool is_queued = base::try_grow([&] {
    lookup = std::make_shared<Lookup>();
    lookup->route = route;
    base::MutexLock lock(mutex_);
    std::erase_if(waiting_, [](const auto& other) { return !other.second->is_wanted.load(std::memory_order_relaxed); });
    waiting_.emplace(host, lookup);
    waiting = waiting_.size();
    idle = idle_;
  });
  if (!is_queued) return nullptr;
  if (waiting > idle && started_ < kThreadsMax) {
    if (base::start_thread(threads_[started_], "tern-verbs", [this] { run(); })) started_++;
    if (started_ == 0) {
      {
        base::MutexLock lock(mutex_);
        waiting_.clear();
      }
      make(*lookup);
      return lookup;
    }
  }
  changed_.notify_one();
  return lookup;
}

/// Returns the oldest lookup of the next host.
std::shared_ptr<VerbsResolver::Lookup> VerbsResolver::take() {
  const auto next = waiting_.upper_bound(last_host_);
  auto taken = waiting_.extract(next != waiting_.end() ? next : waiting_.begin());
  last_host_ = std::move(taken.key());
  return std::move(taken.mapped());
}

void VerbsResolver::make(Lookup& lookup) {
  lookup.handle.reset(ibv_create_ah(domain_, &lookup.route));
  const bool is_made = lookup.handle != nullptr;
  lookup.state.store(is_made ? Lookup::State::kMade : Lookup::State::kFailed, std::memory_order_release);
}

void VerbsResolver::run() {
  base::MutexLock lock(mutex_);
  while (true) {
    while (waiting_.empty() && !is_over_) {
      idle_++;
      changed_.wait(mutex_);
      idle_--;
    }
    if (is_over_) return;
    const std::shared_ptr<Lookup> lookup = take();
    lock.unlock();
    if (lookup->is_wanted.load(std::memory_order_relaxed)) {
      make(*lookup);
      done_();
    }
    lock.lock();
  }
}

}  // namespace tern::transport
