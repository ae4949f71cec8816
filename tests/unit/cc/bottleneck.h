// A small model for tests of controllers: flows with windows and pacers of their own, one FIFO queue for all their
// packets, and answers that take no space. It runs in virtual time, with the same result on every machine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <queue>
#include <vector>

#include "cc/controller.h"
#include "cc/pacer.h"

namespace tern::cc {

struct Bottleneck {
  uint64_t bits_per_sec = 25'000'000'000;
  uint64_t base_rtt_ns = 6'000;
  uint32_t packet_bytes = 1024;
  uint32_t overhead_bytes = 24;  ///< overhead of a frame: preamble, gap, checksum
  uint32_t credits = 32;         ///< a flow's limit besides its window
  uint64_t mark_above_bytes = UINT64_MAX;
  uint32_t lost_per_10000 = 0;
  uint64_t jitter_ns = 0;  ///< each answer is late by up to this
  uint32_t target_ns = 30'000;
  uint32_t far_ns = 90'000;

  Path path() const { return {bits_per_sec / 8, packet_bytes, target_ns, far_ns}; }
  uint64_t serialization_ps(uint64_t bytes) const {
    return (bytes + overhead_bytes) * 8 * 1'000'000'000'000 / bits_per_sec;
  }
};

template <class C>
class BottleneckModel {
 public:
  template <class Make>
  BottleneckModel(const Bottleneck& bottleneck, uint32_t flows, Make&& make) : bottleneck_(bottleneck) {
    for (uint32_t i = 0; i < flows; i++) flows_.push_back({make(i), Pacer(1000 + i)});
  }

  uint64_t now_ns() const { return now_ps_ / 1000; }
  C& controller(uint32_t flow) { return flows_[flow].controller; }
  /// Starts a flow, which sends whenever it may, or stops it.
  void set_active(uint32_t flow, bool is_active) {
    flows_[flow].is_active = is_active;
    if (is_active) send(flow);
  }
  void set_all_active(bool is_active) {
    for (uint32_t i = 0; i < flows_.size(); i++) set_active(i, is_active);
  }
  /// These flows neither send nor receive for that long, like those of a descheduled host.
  void pause(uint32_t flow, uint64_t ns) { flows_[flow].paused_until_ps = now_ps_ + ns * 1000; }
  void run_for(uint64_t ns) {
    const uint64_t until = now_ps_ + ns * 1000;
    while (!events_.empty() && events_.top().at_ps <= until) {
      const Event event = events_.top();
      events_.pop();
      now_ps_ = event.at_ps;
      Flow& flow = flows_[event.flow];
      if (now_ps_ < flow.paused_until_ps && event.kind != Kind::kArrival) {
        events_.push({flow.paused_until_ps, sequence_++, event.flow, event.kind, event.sent_ns, event.is_marked});
        continue;
      }
      if (event.kind == Kind::kArrival) {
        on_arrival(event);
        continue;
      }
      if (event.kind == Kind::kAnswer) on_answer(event);
      if (event.kind == Kind::kLoss) on_loss(event);
      if (event.kind == Kind::kDeparture) flow.is_waiting = false;
      send(event.flow);
    }
    now_ps_ = until;
  }

  // -- Statistics since the last reset() --
  void reset() {
    start_ps_ = now_ps_;
    rtts_ns_.clear();
    for (Flow& flow : flows_) flow.answered = 0;
  }
  /// The used share of the bottleneck's capacity.
  double utilization() const {
    uint64_t packets = 0;
    for (const Flow& flow : flows_) packets += flow.answered;
    return static_cast<double>(packets * bottleneck_.serialization_ps(bottleneck_.packet_bytes)) /
           static_cast<double>(now_ps_ - start_ps_);
  }
  /// Returns the share of the whole bottleneck's capacity that the flow has used.
  double share(uint32_t flow) const {
    return static_cast<double>(flows_[flow].answered * bottleneck_.serialization_ps(bottleneck_.packet_bytes)) /
           static_cast<double>(now_ps_ - start_ps_);
  }
  double jain() const {
    double sum = 0, squares = 0;
    uint32_t count = 0;
    for (const Flow& flow : flows_) {
      if (!flow.is_active) continue;
      sum += static_cast<double>(flow.answered);
      squares += static_cast<double>(flow.answered) * static_cast<double>(flow.answered);
      count++;
    }
    return sum * sum / (count * squares);
  }
  uint64_t rtt_ns(double quantile) {
    if (rtts_ns_.empty()) return 0;
    const auto rank = static_cast<size_t>(quantile * static_cast<double>(rtts_ns_.size() - 1));
    std::nth_element(rtts_ns_.begin(), rtts_ns_.begin() + static_cast<ptrdiff_t>(rank), rtts_ns_.end());
    return rtts_ns_[rank];
  }

 private:
  enum class Kind : uint8_t { kArrival, kAnswer, kLoss, kDeparture };
  struct Event {
    uint64_t at_ps;
    uint64_t sequence;
    uint32_t flow;
    Kind kind;
    uint64_t sent_ns;
    bool is_marked;
    bool operator<(const Event& other) const {  // the earliest is on top
      return at_ps != other.at_ps ? at_ps > other.at_ps : sequence > other.sequence;
    }
  };
  struct Flow {
    C controller;
    Pacer pacer;
    bool is_active = false;
    bool is_waiting = false;  ///< waits for its departure time
    uint32_t in_flight = 0;
    uint64_t answered = 0;
    uint64_t nic_free_ps = 0;
    uint64_t paused_until_ps = 0;
    uint64_t sampled_ns = 0;
    uint64_t latest_rtt_ns = 0;
    uint64_t min_rtt_ns = UINT64_MAX;
  };

  void send(uint32_t index) {
    Flow& flow = flows_[index];
    while (flow.is_active && !flow.is_waiting) {
      const Allowance allowance = flow.controller.allowance();
      if (flow.in_flight >= std::min(allowance.window_packets, bottleneck_.credits)) return;
      const bool is_paced = allowance.bytes_per_sec != kUnlimited;
      if (is_paced && flow.pacer.departure_ns() > now_ns()) {
        flow.is_waiting = true;
        flow.pacer.wait();
        events_.push({flow.pacer.departure_ns() * 1000, sequence_++, index, Kind::kDeparture, 0, false});
        return;
      }
      if (is_paced) {
        flow.pacer.on_sent(now_ns(), bottleneck_.packet_bytes, 1, allowance);
      }
      flow.in_flight++;
      // The packet passes the flow's own interface, which is as fast as the bottleneck, and then the queue.
      const uint64_t serialization_ps = bottleneck_.serialization_ps(bottleneck_.packet_bytes);
      flow.nic_free_ps = std::max(flow.nic_free_ps, now_ps_) + serialization_ps;
      if (bottleneck_.lost_per_10000 != 0 && next_random() % 10000 < bottleneck_.lost_per_10000) {
        // The next packet's answer reveals the loss, a little later.
        events_.push({flow.nic_free_ps + bottleneck_.base_rtt_ns * 1000 + 10'000'000, sequence_++, index, Kind::kLoss,
                      now_ns(), false});
        continue;
      }
      events_.push({flow.nic_free_ps, sequence_++, index, Kind::kArrival, now_ns(), false});
    }
  }
  void on_arrival(const Event& event) {
    const uint64_t serialization_ps = bottleneck_.serialization_ps(bottleneck_.packet_bytes);
    const uint64_t backlog_ps = free_ps_ > now_ps_ ? free_ps_ - now_ps_ : 0;
    const bool is_marked = backlog_ps / serialization_ps * bottleneck_.packet_bytes > bottleneck_.mark_above_bytes;
    free_ps_ = std::max(free_ps_, now_ps_) + serialization_ps;
    events_.push({free_ps_ - serialization_ps + bottleneck_.base_rtt_ns * 1000 + jitter_ps(), sequence_++, event.flow,
                  Kind::kAnswer, event.sent_ns, is_marked});
  }

  void on_answer(const Event& event) {
    Flow& flow = flows_[event.flow];
    flow.in_flight--;
    flow.answered++;
    const uint64_t rtt_ns = now_ns() - event.sent_ns;
    rtts_ns_.push_back(rtt_ns);
    flow.latest_rtt_ns = rtt_ns;
    flow.min_rtt_ns = std::min(flow.min_rtt_ns, rtt_ns);
    if (now_ns() == flow.sampled_ns) return;
    flow.sampled_ns = now_ns();
    const Allowance allowance = flow.controller.allowance();
    const bool is_calm =
        allowance.window_packets >= bottleneck_.credits && allowance.bytes_per_sec == kUnlimited && !event.is_marked;
    if (is_calm && rtt_ns < flow.controller.calm_below_ns()) return;
    flow.controller.on_rtt({now_ns(), rtt_ns, flow.min_rtt_ns, event.is_marked, bottleneck_.credits});
  }
  void on_loss(const Event& event) {
    Flow& flow = flows_[event.flow];
    flow.in_flight--;
    flow.controller.on_loss({now_ns(), flow.latest_rtt_ns, flow.min_rtt_ns, false, bottleneck_.credits});
  }
  uint64_t jitter_ps() { return bottleneck_.jitter_ns == 0 ? 0 : next_random() % bottleneck_.jitter_ns * 1000; }
  uint32_t next_random() {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 17;
    random_ ^= random_ << 5;
    return random_;
  }

  Bottleneck bottleneck_;
  std::vector<Flow> flows_;
  std::priority_queue<Event> events_;
  std::vector<uint64_t> rtts_ns_;
  uint64_t now_ps_ = 1'000'000'000;
  uint64_t start_ps_ = 0;
  uint64_t free_ps_ = 0;
  uint64_t sequence_ = 0;
  uint32_t random_ = 88675123;
};

}  // namespace tern::cc
