// Address handles, made in threads of their own. On RoCE the kernel looks up the peer's neighbour when a handle is
// made, which takes a second if nobody answers, and an endpoint must not block. Hosts take turns, so that one with many
// silent addresses delays another's by the lookups that run, no more. Transport layer.
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

  /// A handle to be. A resolving thread changes it until `state` says otherwise.
  struct Lookup {
    enum class State : uint8_t { kRunning, kMade, kFailed };
    std::atomic<State> state{State::kRunning};
    std::atomic<bool> is_wanted{true};  ///< cleared by the owner: nobody waits for it any more
    ibv_ah_attr route;
    rdma::AddressHandle handle;  ///< once kMade
  };

  /// `done` is called in a resolving thread after each lookup, and must be safe there. The domain outlives the object.
  VerbsResolver(ibv_pd* domain, std::function<void()> done) : domain_(domain), done_(std::move(done)) {}
  VerbsResolver(const VerbsResolver&) = delete;
  VerbsResolver& operator=(const VerbsResolver&) = delete;
  /// Waits for lookups that run, a few seconds at most. Not in a forked child, which has none of the threads.
  ~VerbsResolver();

  /// `host`: who wants it. If the system gives no thread, the lookup is over when this returns. Null: no memory.
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
  std::string last_host_ GUARDED_BY(mutex_);                                        ///< whose lookup began last
  size_t idle_ GUARDED_BY(mutex_) = 0;                                              ///< threads that wait for work
  bool is_over_ GUARDED_BY(mutex_) = false;
  size_t started_ = 0;
  std::array<std::thread, kThreadsMax> threads_;
};

}  // namespace tern::transport
