// The interface of a transport for an endpoint's parts: connections, sizes, rates and the clock.
// It is for control only: RpcCore passes the packets of calls to the transport itself. Owner thread only, except
// wake().
#pragma once

#include <cstdint>
#include <string_view>

#include <tern/counters.h>
#include <tern/status.h>

#include "nexus/control.h"
#include "transport/transport.h"

namespace tern::rpc {

/// TransportAdapter<Impl> implements it over any transport. transport/transport.h has the contract of each function.
/// The comments here give the results of the optional functions for transports without them.
class TransportPort {
 public:
  virtual Result<transport::PeerId> connect(const nexus::AddressBytes& address, std::string_view host) = 0;
  virtual wire::Refusal refusal_of(const nexus::AddressBytes& address) const = 0;
  virtual const transport::Remedies& remedies() const = 0;
  virtual const cc::Shortcuts& shortcuts() const = 0;
  /// True if the transport has connect_paired(), connect_back(), take_path_error() and port_of() (clause 7.7.4).
  virtual bool can_pair() const = 0;
  /// connect_paired() and connect_back() return kUnavailable without can_pair().
  virtual Result<transport::PeerId> connect_paired(const nexus::AddressBytes& address, std::string_view host) = 0;
  virtual Result<transport::PeerId> connect_back(transport::PeerId like) = 0;
  /// kNone without can_pair().
  virtual transport::PathError take_path_error(transport::PeerId peer) = 0;
  /// 0 without can_pair().
  virtual uint16_t port_of(transport::PeerId peer) const = 0;
  virtual transport::PeerState peer_state(transport::PeerId peer) = 0;
  virtual Status peer_failure(transport::PeerId peer) const = 0;
  virtual void disconnect(transport::PeerId peer) = 0;
  /// The endpoint's own address on this transport.
  virtual nexus::AddressBytes address() const = 0;
  virtual uint32_t payload_bytes_max() const = 0;
  virtual uint32_t payload_bytes_max(transport::PeerId peer) const = 0;
  virtual uint32_t large_payload_bytes() const = 0;
  virtual uint32_t large_payload_bytes(transport::PeerId peer) = 0;
  virtual uint32_t receive_queue_packets() const = 0;
  virtual uint32_t credit_bytes() const = 0;
  virtual uint64_t link_bytes_per_sec() const = 0;
  /// 0: the transport does not know.
  virtual uint64_t downlink_bytes_per_sec() const = 0;
  /// 0: the transport does not know.
  virtual uint64_t downlink_bytes() const = 0;
  virtual transport::DelayTarget delay_target() const = 0;
  virtual const TransportCounters& counters() const = 0;
  /// Null: the network is real.
  virtual const NetworkCounters* network_counters() const = 0;
  /// Null: there is no fault layer.
  virtual const FaultCounters* fault_counters() const = 0;
  /// The time in ns on the transport's clock.
  virtual uint64_t now() = 0;
  /// Any thread.
  virtual void wake() = 0;

  /// True if the transport will never reach the peer again.
  bool is_dead(transport::PeerId peer) { return peer_state(peer) == transport::PeerState::kDead; }

 protected:
  ~TransportPort() = default;
};

}  // namespace tern::rpc
