// A thread of a mesh: an endpoint that keeps small RPCs with random peers in flight. It runs in virtual time, or in a
// real thread. That thread owns the endpoint, and makes all calls whose comment does not say otherwise.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "run.h"

namespace programs {

/// The load of one thread of the mesh.
struct MeshLoad {
  uint32_t batch = 3;    ///< requests that are issued together; the next batch follows when all are answered
  uint32_t window = 60;  ///< requests in flight; a multiple of `batch`
  uint32_t size = 32;    ///< bytes of a request and of its response
  uint8_t session_window = 8;
  /// Not null: real time; latencies are in ticks, and count while the run is recording. Null: virtual time; latencies
  /// are in ns.
  const Run* run = nullptr;
  uint32_t calls_per_sample = 1;  ///< the latency of one in this number of calls is measured
};

class MeshThread {
 public:
  static constexpr uint16_t kEcho = 1;
  using Fail = std::function<void(const std::string& what, tern::Status status)>;

  MeshThread(tern::Endpoint& endpoint, const MeshLoad& load, uint64_t seed, Fail fail)
      : endpoint_(endpoint), load_(load), fail_(std::move(fail)), random_(seed) {
    calls_.resize(load.window);
    batches_.resize(load.window / load.batch);
  }

  tern::Status prepare() {
    for (size_t i = 0; i < calls_.size(); ++i) {
      Call& call = calls_[i];
      call.batch = static_cast<uint32_t>(i / load_.batch);
      call.request = endpoint_.alloc_msgbuf(load_.size);
      call.response = endpoint_.alloc_msgbuf(load_.size);
      if (!call.request || !call.response) {
        return {tern::Code::kNoMemory, "there is no memory for messages; try a smaller --size or --window"};
      }
      std::fill(call.request.bytes().begin(), call.request.bytes().end(), std::byte{0x5a});
    }
    return {};
  }
  tern::Status connect(const std::string& peer, tern::Duration timeout) {
    tern::SessionOptions options;
    options.window = load_.session_window;
    options.connect_timeout = timeout;
    auto session = endpoint_.create_session(peer, options);
    if (!session.ok()) return session.status();
    sessions_.push_back(*session);
    return {};
  }
  size_t sessions() const { return sessions_.size(); }
  bool is_open() {
    while (open_ < sessions_.size() && endpoint_.is_open(sessions_[open_])) ++open_;
    return open_ == sessions_.size();
  }
  /// Starts to issue batches, until stop(). Any thread.
  tern::Status start() {
    return endpoint_.post([this] {
      for (uint32_t batch = 0; batch < batches_.size(); ++batch) issue(batch);
    });
  }
  /// Stops issuing batches. Any thread.
  tern::Status stop() {
    return endpoint_.post([this] {
      is_stopping_ = true;
      if (in_flight_ == 0) has_stopped_.store(true, std::memory_order_release);
    });
  }
  /// True if stop() was called and nothing is in flight any more. Any thread.
  bool has_stopped() const { return has_stopped_.load(std::memory_order_acquire); }
  /// Latencies of calls that end from now on go to `latencies`. Null: they are not recorded.
  void set_recording(tern::microbench::Percentiles* latencies) { latencies_ = latencies; }
  /// Any thread.
  Totals totals() const { return progress_.totals(); }

 private:
  static constexpr uint64_t kNotSampled = UINT64_MAX;
  struct Call {
    tern::MsgBuf request, response;
    uint64_t number = 0;
    uint64_t began = kNotSampled;
    uint32_t batch = 0;
  };

  uint64_t now() const {
    return load_.run != nullptr ? tern::microbench::Ticks::now() : static_cast<uint64_t>(endpoint_.now().count());
  }
  void issue(uint32_t batch) {
    for (uint32_t i = 0; i < load_.batch; ++i) {
      Call& call = calls_[batch * load_.batch + i];
      const auto target = static_cast<size_t>(((random_() >> 32) * sessions_.size()) >> 32);
      call.number = ++issued_;
      number_request(call.request, call.number);
      call.began = call.number % load_.calls_per_sample == 0 ? now() : kNotSampled;
      auto accepted =
          endpoint_.enqueue_request(sessions_[target], kEcho, std::move(call.request), std::move(call.response),
                                    [this, &call](tern::Completion& done) { on_done(call, done); });
      if (!accepted.ok()) return fail_("a call was refused", accepted.status());
      ++batches_[batch];
      ++in_flight_;
    }
  }
  void on_done(Call& call, tern::Completion& done) {
    --in_flight_;
    const tern::Status status = check_echo(done, load_.size, call.number);
    if (status.ok()) [[likely]] {
      if (call.began != kNotSampled) sample(call);
      progress_.count_completed();
    } else if (may_fail(status)) {
      progress_.count_failed();
    } else {
      return fail_("a call", status);
    }
    call.request = std::move(done.request);
    call.response = std::move(done.response);
    if (call.response.bytes().size() != load_.size && !call.response.resize(load_.size)) [[unlikely]] {
      return fail_("a call", kNotHome);
    }
    if (--batches_[call.batch] == 0 && !is_stopping_) issue(call.batch);
    if (is_stopping_ && in_flight_ == 0) has_stopped_.store(true, std::memory_order_release);
  }
  void sample(const Call& call) {
    const bool is_recording = load_.run == nullptr || load_.run->is_recording();
    if (latencies_ != nullptr && is_recording) latencies_->add(now() - call.began);
    progress_.retransmissions.store(endpoint_.counters().retransmissions, std::memory_order_relaxed);
  }

  static constexpr tern::Status kNotHome{tern::Code::kNoMemory, "a response buffer has not come home"};

  tern::Endpoint& endpoint_;
  const MeshLoad load_;
  const Fail fail_;
  std::mt19937_64 random_;
  std::vector<tern::Session> sessions_;
  size_t open_ = 0;  ///< all sessions before this index are open
  std::vector<Call> calls_;
  std::vector<uint32_t> batches_;  ///< by batch: number of calls that are not answered yet
  uint64_t issued_ = 0;
  uint64_t in_flight_ = 0;
  bool is_stopping_ = false;
  std::atomic<bool> has_stopped_{false};
  tern::microbench::Percentiles* latencies_ = nullptr;
  Progression progress_;
};

}  // namespace programs
