// A NAT between one host and the rest of the simulated network. Sim layer, network part. One thread; knows no packets.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "sim/network/event_queue.h"

namespace tern::sim {

/// A flow is a port of the host (the inside port), and a remote host and port. Each flow has its own outside port,
/// which the remote host sees. Only packets from the remote host and port of a flow to its outside port reach the host.
class SimNat {
 public:
  explicit SimNat(Picoseconds timeout) : timeout_(timeout) {}

  /// The outside port for a packet from the inside port to `host` and `port`. A new flow, or one
  /// that carried no packet for longer than the timeout, gets a new outside port.
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
  /// The inside port for a packet from `host` and `port` to the outside port. 0: the packet belongs to no flow, or to
  /// one that has timed out.
  uint32_t inside(uint32_t outside, uint32_t host, uint32_t port, Picoseconds now) {
    const auto found = inside_.find({outside, host, port});
    if (found == inside_.end()) return 0;
    Flow& flow = flows_.at({found->second, host, port});
    if (now - flow.used_at > timeout_) return 0;
    flow.used_at = now;
    return found->second;
  }
  /// Ends all flows. The host's next packets make new ones.
  void forget() {
    flows_.clear();
    inside_.clear();
  }

 private:
  /// Larger than all port numbers of the network itself.
  static constexpr uint32_t kFirstPort = 1u << 31;
  struct Flow {
    uint32_t outside = 0;
    Picoseconds used_at = 0;
  };
  using Key = std::tuple<uint32_t, uint32_t, uint32_t>;  ///< inside or outside port, remote host, remote port

  Picoseconds timeout_;
  std::map<Key, Flow> flows_;       ///< by inside port
  std::map<Key, uint32_t> inside_;  ///< the inside port, by outside port
  uint32_t ports_used_ = 0;
};

}  // namespace tern::sim
