// Rules by which a device brings the datagrams of a UDP port to a receive queue: ethtool's flow classification, ntuple.
// Transport layer; control events only.
//
// Rules stay in the device when their process ends. A rule that is left behind only brings datagrams to an unnecessary
// queue.
#pragma once

#include <linux/ethtool.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "base/address.h"

namespace tern::transport::xdp {

/// UDP datagrams from any source to this IP address and port go to `queue`. `location` is an index in the device's
/// table.
ethtool_rx_flow_spec rule_for(const base::SocketAddress& address, uint32_t queue, uint32_t location);
/// True if both match the same datagrams; queue and location are not compared.
bool is_same_flow(const ethtool_rx_flow_spec& one, const ethtool_rx_flow_spec& other);

/// Sends one of ethtool's commands to a device. Returns 0 or an error number.
using Ask = std::function<int(void* command)>;
/// Sends them to the interface of this index, whatever its name is at the time. Keeps to the network namespace of the
/// thread that calls this.
Ask ask_interface(uint32_t index);

/// The rules of an interface, in the network namespace of the thread that makes this object.
class FlowRules {
 public:
  explicit FlowRules(uint32_t interface) : FlowRules(ask_interface(interface)) {}
  explicit FlowRules(Ask ask) : ask_(std::move(ask)) {}

  /// Adds a rule and returns its location. Returns nothing if the device accepts no rules, or not this one. An equal
  /// rule that was left behind is replaced.
  std::optional<uint32_t> add(const base::SocketAddress& address, uint32_t queue);
  void remove(uint32_t location);

 private:
  std::optional<uint32_t> place_for(const ethtool_rx_flow_spec& rule);

  Ask ask_;
};

/// The number of receive queues that a device uses now and that have a send queue of the same number, at least 1.
/// `send_queues_max` holds for devices that report no channels.
uint32_t queue_pairs(const Ask& ask, uint32_t send_queues_max);

}  // namespace tern::transport::xdp
