// What kv's client threads and its main thread know of each other: what to do, how far they are, what they have done.
#pragma once

#include <tern/duration.h>

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
  uint64_t writers = 1;  ///< client threads of all processes; key k is owned by the (k % writers)-th
  double get_share = 0;
  double multi_get_share = 0;  ///< of the GETs
  size_t multi_get_keys = 0;
  double skew = 0;
  ValueSizes sizes;
  size_t window = 0;
  tern::Duration deadline = tern::Duration::max();  ///< of each call while kRunning
  tern::Duration reconnect = {};                    ///< for so long it tries to reach a server that has gone
  uint64_t seed = 0;
};

enum class Stage : uint8_t { kConnecting, kLoading, kRunning, kReadingBack };

/// What the client threads and the main thread tell each other. Any thread.
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

/// What a client thread has done. All but the operations themselves count for every stage.
struct ClientReport {
  /// Of the operations of kRunning, from issue to answer, without refused or lost attempts: the last million.
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
  double seconds = 0;  ///< of kRunning
  uint64_t values_checked = 0;
  uint64_t keys_read_back = 0;
  uint64_t refused_overloaded = 0;
  uint64_t refused_full = 0;
  uint64_t expired = 0;  ///< attempts whose deadline passed
  uint64_t lost = 0;     ///< attempts without an answer: the session ended, or the server dropped the request
  uint64_t reconnects = 0;
};

}  // namespace kv
