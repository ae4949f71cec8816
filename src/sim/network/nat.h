// A NAT between one host and the rest of the simulated network. Sim layer, network
// part. One thread; knows no packets.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "sim/network/event_queue.h"

namespace tern::sim {

/// A flow is a port of the host and the host and port that it sends to. The receiver of each flow sees another port,
/// and only packets from that receiver to that port reach the host.
class SimNat {
 public:
  explicit SimNat(Picoseconds timeout) : timeout_(timeout) {}

  /// The port under which the other side sees a packet from the host.
  uint32_t outside(uint32_t inside, uint32_t host, uint32_t port, Picoseconds now) {
    const auto [at, is_new] = flows_.try_emplace({inside, host, port});
    Flow& flow = at->second;
    if (is_new || now - flow.used_at > timeout_) {
      inside_.erase({flow.outside, host, port});
      flow.outside = kFirstPort + ports_used_++;
      inside_[{flow.outside, host, port}] = inside;
    }
    flow.used_at = now;
    return flow.outside;
  }
  /// The host's port for an incoming packet; 0: it belongs to no flow.
  uint32_t inside(uint32_t outside, uint32_t host, uint32_t port, Picoseconds now) {
    const auto found = inside_.find({outside, host, port});
    if (found == inside_.end()) return 0;
    Flow& flow = flows_.at({found->second, host, port});
    if (now - flow.used_at > timeout_) return 0;
    flow.used_at = now;
    return found->second;
  }
  /// The next packets make new flows.
  void forget() {
    flows_.clear();
    inside_.clear();
  }

 private:
  /// Above all ports of the network's own.
  static constexpr uint32_t kFirstPort = 1u << 31;
  struct Flow {
    uint32_t outside = 0;
    Picoseconds used_at = 0;
  };
  using Key = std::tuple<uint32_t, uint32_t, uint32_t>;  ///< a port of this side, the other's host and port

  Picoseconds timeout_;
  std::map<Key, Flow> flows_;
  std::map<Key, uint32_t> inside_;
  uint32_t ports_used_ = 0;
};

}  // namespace tern::sim
