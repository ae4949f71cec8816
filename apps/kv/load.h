// The state that kv's client threads and its main thread share: the work to do, the progress, and the results.
#pragma once

#include <tern/duration.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "workload.h"

namespace kv {

using Clock = std::chrono::steady_clock;

struct LoadOptions {
  std::string server;  ///< URI of its Nexus
  uint64_t keys = 0;
  uint64_t writers = 1;  ///< client threads of all processes; the (k % writers)-th of them owns key k
  double get_share = 0;
  double multi_get_share = 0;  ///< share of the GETs that are multi-gets
  size_t multi_get_keys = 0;
  double skew = 0;
  ValueSizes sizes;
  size_t window = 0;
  tern::Duration deadline = tern::Duration::max();  ///< of each call while kRunning
  tern::Duration reconnect = {};                    ///< time for which it tries to reach a server that has gone
  uint64_t seed = 0;
};

enum class Stage : uint8_t { kConnecting, kLoading, kRunning, kReadingBack };

/// The messages between the client threads and the main thread. Any thread.
struct LoadControl {
  std::atomic<Stage> stage{Stage::kLoading};  ///< written by the main thread
  std::atomic<size_t> loaded{0};              ///< threads that wait for kRunning
  std::atomic<bool> has_failed{false};

  void fail(std::string sentence) {
    std::lock_guard lock(mutex_);
    if (problem_.empty()) problem_ = std::move(sentence);
    has_failed = true;
  }
  std::string problem() {
    std::lock_guard lock(mutex_);
    return problem_;
  }

 private:
  std::mutex mutex_;
  std::string problem_;
};

/// The results of a client thread. The counters include every stage, but the latencies only kRunning.
struct ClientReport {
  /// The latencies of the last million operations that ended in kRunning, from issue to answer, without refused or lost
  /// attempts.
  struct Latencies {
    static constexpr size_t kKept = 1u << 20;
    std::vector<uint32_t> ns;
    uint64_t count = 0;  ///< operations, kept or not
    void add(uint32_t one) {
      if (ns.size() < kKept) {
        ns.push_back(one);
      } else {
        ns[count % kKept] = one;
      }
      ++count;
    }
  };
  std::array<Latencies, kMultiGet + 1> by_type;
  double seconds = 0;  ///< length of kRunning
  uint64_t values_checked = 0;
  uint64_t keys_read_back = 0;
  uint64_t keys_not_stored = 0;  ///< of those that were to be read back: the server has no value
  uint64_t refused_overloaded = 0;
  uint64_t refused_full = 0;
  uint64_t expired = 0;  ///< attempts whose deadline passed
  uint64_t lost = 0;     ///< attempts without an answer: the session ended, or the server dropped the request
  uint64_t reconnects = 0;

  /// Whether an operation of kRunning was answered, or any met a full store.
  bool has_results() const {
    return refused_full > 0 ||
           std::any_of(by_type.begin(), by_type.end(), [](const Latencies& of_type) { return of_type.count > 0; });
  }
};

}  // namespace kv
