// Programs written for eRPC: the Nexus. See docs/erpc-migration.md.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <system_error>

#include <tern/nexus.h>

#include "msg_buffer.h"
#include "util/timer.h"

namespace erpc {

class Nexus {
 public:
  /// `local_uri`: "HOST:PORT", where peers find this process. Throws std::runtime_error.
  explicit Nexus(const std::string& local_uri, size_t numa_node = 0, size_t num_bg_threads = 0)
      : local_uri_(local_uri), background_threads_(num_bg_threads), freq_ghz_(measure_rdtsc_freq()) {
    _unused(numa_node);  // memory is on the node of the thread that makes an Rpc
    rt_assert(num_bg_threads <= kMaxBgThreads, "Too many background threads");
    tern::NexusOptions options;
    options.worker_threads = std::max<size_t>(num_bg_threads, 1);
    options.worker_queue_limit = SIZE_MAX;  // eRPC has no limit of background requests that wait
    options.liveness_timeout = std::max<tern::Duration>(options.liveness_timeout, failure_delay());
    auto nexus = tern::Nexus::create("tern://" + local_uri, options);
    if (!nexus.ok()) throw std::runtime_error(std::string(nexus.status().message()));
    nexus_ = std::move(*nexus);
  }

  /// Must be called before the first Rpc is made; otherwise -EPERM. -EINVAL: no function. -EEXIST: the type has a
  /// function.
  int register_req_func(uint8_t type, erpc_req_func_t function, ReqFuncType kind = ReqFuncType::kForeground) {
    const bool is_background = kind == ReqFuncType::kBackground;
    if (has_rpcs_ || (is_background && background_threads_ == 0)) return -EPERM;
    if (function == nullptr) return -EINVAL;
    if (functions_[type].function != nullptr) return -EEXIST;
    functions_[type] = {function, is_background};
    return 0;
  }

 private:
  template <class T>
  friend class Rpc;
  /// The silence of a server after which its sessions end, and the time from a session's end until the program is
  /// informed. eRPC's newest commit never detects the death of a server: processes that are stopped for seconds
  /// continue, and programs that end at about the same time rely on that. TERN_ERPC_FAILURE_MS sets another time.
  /// Throws std::runtime_error.
  static std::chrono::milliseconds failure_delay() {
    uint32_t milliseconds = 5000;
    if (const char* const set = std::getenv("TERN_ERPC_FAILURE_MS")) {
      const char* const end = set + std::strlen(set);
      const auto [rest, error] = std::from_chars(set, end, milliseconds);
      rt_assert(error == std::errc() && rest == end && milliseconds <= 3'600'000,
                "TERN_ERPC_FAILURE_MS: must be a number of milliseconds from 0 to 3600000");
    }
    return std::chrono::milliseconds(milliseconds);
  }
  struct Function {
    erpc_req_func_t function = nullptr;
    bool is_background = false;
  };

  /// eRPC's thread id of the calling thread: background threads from 0, the others after them.
  size_t thread_id(bool is_background) {
    struct Id {
      uint64_t nexus = 0;
      size_t id = 0;
    };
    static thread_local Id own;
    if (own.nexus != serial_) {
      own = {serial_, is_background ? next_background_++ : background_threads_ + next_foreground_++};
    }
    return own.id;
  }

  /// From 1; an address may be that of an earlier Nexus.
  static uint64_t next_serial() {
    static std::atomic<uint64_t> last{0};
    return ++last;
  }

  const uint64_t serial_ = next_serial();
  const std::string local_uri_;
  const size_t background_threads_;
  const double freq_ghz_;
  std::unique_ptr<tern::Nexus> nexus_;
  std::array<Function, 256> functions_;
  std::atomic<bool> has_rpcs_{false};
  std::atomic<size_t> next_background_{0}, next_foreground_{0};
};

}  // namespace erpc
