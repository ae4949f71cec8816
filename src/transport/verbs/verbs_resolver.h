// Makes address handles in threads of their own. On RoCE the kernel resolves the peer's neighbour when a handle is
// made, which takes a second if there is no answer, and an endpoint must not block. Hosts take turns, so that a host
// with many silent addresses delays another host only by the lookups that run already. Transport layer.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "base/thread_safety.h"
#include "rdma/handles.h"

namespace tern::transport {

class VerbsResolver {
 public:
  static constexpr size_t kThreadsMax = 4;

  /// The lookup of a handle. A resolving thread changes it until `state` is no longer kRunning.
  struct Lookup {
    enum class State : uint8_t { kRunning, kMade, kFailed };
    std::atomic<State> state{State::kRunning};
    std::atomic<bool> is_wanted{true};  ///< the owner clears it when it no longer needs the handle
    ibv_ah_attr route;
    rdma::AddressHandle handle;  ///< once kMade
  };

  /// `done` is called in a resolving thread after each lookup, and must be thread-safe. The domain must outlive the
  /// object.
  VerbsResolver(ibv_pd* domain, std::function<void()> done) : domain_(domain), done_(std::move(done)) {}
  VerbsResolver(const VerbsResolver&) = delete;
  VerbsResolver& operator=(const VerbsResolver&) = delete;
  /// Waits for running lookups, a few seconds at most. Must not be called in a forked child, which has none of the
  /// threads.
  ~VerbsResolver();

  /// Begins a lookup for the peer at `host`. If the system has no thread, the lookup is over when this returns. Null:
  /// no memory.
  std::shared_ptr<Lookup> start(const ibv_ah_attr& route, std::string_view host);

 private:
  void run();
  void make(Lookup& lookup);
  std::shared_ptr<Lookup> take() REQUIRES(mutex_);

  ibv_pd* const domain_;
  const std::function<void()> done_;
  base::Mutex mutex_;
  base::Condition changed_;
  std::multimap<std::string, std::shared_ptr<Lookup>> waiting_ GUARDED_BY(mutex_);  ///< by host, oldest first
  std::string last_host_ GUARDED_BY(mutex_);  ///< the host whose lookup began last
  size_t idle_ GUARDED_BY(mutex_) = 0;        ///< threads that wait for work
  bool is_over_ GUARDED_BY(mutex_) = false;
  size_t started_ = 0;
  std::array<std::thread, kThreadsMax> threads_;
};

}  // namespace tern::transport
