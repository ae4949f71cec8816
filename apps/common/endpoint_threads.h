// Threads that each run one endpoint until they are stopped. The main thread calls all members, unless a member's
// comment says otherwise.
#pragma once

#include <tern/endpoint.h>
#include <tern/nexus.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "any_rpc.h"
#include "flags.h"
#include "sides.h"

namespace programs {

class EndpointThreads {
 public:
  EndpointThreads() = default;
  EndpointThreads(const EndpointThreads&) = delete;
  EndpointThreads& operator=(const EndpointThreads&) = delete;
  ~EndpointThreads() { stop(); }

  /// Creates endpoints 0 to `count` - 1 of `nexus`, the i-th in a thread that is pinned to cpus[i % size]. That thread
  /// calls prepare(endpoint, i), which returns a tern::Status, before its loop. Returns when every loop runs, or when
  /// one has ended. The result is empty if every loop runs, otherwise an error message. Must be called at most once.
  template <class Prepare>
  std::string start(tern::Nexus& nexus, size_t count, const std::vector<int>& cpus, Role role, tern::RpcOptions rpc,
                    Prepare prepare) {
    endpoints_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      rpc.endpoint_id = static_cast<uint16_t>(i);
      const bool has_thread = add_thread(threads_, cpus[i % cpus.size()], [this, &nexus, i, role, rpc, prepare] {
        const tern::Status status = run(nexus, i, role, rpc, prepare);
        std::lock_guard lock(mutex_);
        if (!status.ok()) problem_ = "endpoint " + std::to_string(i) + ": " + std::string(status.message());
        ++ended_;
      });
      if (!has_thread) return kNoThread;
    }
    while (ready_ + ended_ < count && problem().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::string why = problem();
    if (!why.empty()) stop();
    return why;
  }
  /// True after an endpoint's loop has ended. Any thread.
  bool has_ended() const { return ended_ > 0; }
  /// True after the loops of all endpoints have ended. Any thread.
  bool have_all_ended() const { return ended_ == threads_.size(); }
  /// Calls f(endpoint, i) in the loop of each endpoint that runs. Does not wait. Returns false if an endpoint has no
  /// memory for it.
  template <class F>
  [[nodiscard]] bool post_all(F f) {
    std::lock_guard lock(mutex_);
    bool is_posted = true;
    for (size_t i = 0; i < endpoints_.size(); ++i) {
      tern::Endpoint* const endpoint = endpoints_[i];
      if (endpoint == nullptr) continue;
      is_posted = endpoint->post([f, endpoint, i]() mutable { f(*endpoint, i); }).ok() && is_posted;
    }
    return is_posted;
  }
  void stop() {
    {
      std::lock_guard lock(mutex_);
      is_stopped_ = true;
      for (tern::Endpoint* endpoint : endpoints_) {
        if (endpoint != nullptr) endpoint->stop();
      }
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  /// Why an endpoint ended by itself; empty if none did. Any thread.
  std::string problem() {
    std::lock_guard lock(mutex_);
    return problem_;
  }

 private:
  template <class Prepare>
  tern::Status run(tern::Nexus& nexus, size_t i, Role role, const tern::RpcOptions& options, const Prepare& prepare) {
    auto rpc = create_rpc(nexus, options, role);
    if (!rpc.ok()) return rpc.status();
    tern::Status status = prepare((*rpc)->endpoint(), i);
    if (!status.ok()) return status;
    {
      std::lock_guard lock(mutex_);
      if (is_stopped_) return {};
      endpoints_[i] = &(*rpc)->endpoint();
    }
    ++ready_;
    status = (*rpc)->run_event_loop();
    std::lock_guard lock(mutex_);
    endpoints_[i] = nullptr;
    return status;
  }

  std::vector<std::thread> threads_;
  std::atomic<size_t> ready_{0};
  std::atomic<size_t> ended_{0};
  std::mutex mutex_;
  std::vector<tern::Endpoint*> endpoints_;  ///< by id; null: the endpoint's loop does not run
  bool is_stopped_ = false;
  std::string problem_;
};

}  // namespace programs
