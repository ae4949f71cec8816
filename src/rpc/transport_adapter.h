// TransportPort over one transport.
#pragma once

#include <algorithm>
#include <span>

#include "rpc/transport_port.h"

namespace tern::rpc {

template <class Impl>
class TransportAdapter final : public TransportPort {
 public:
  /// `transport` must live while the endpoint may use the port: until EndpointCore::close_all() returns.
  explicit TransportAdapter(Impl& transport) : transport_(transport) {}

  Result<transport::PeerId> connect(const nexus::AddressBytes& address, std::string_view host) override {
    return transport_.connect(bytes_of(address), host);
  }
  wire::Refusal refusal_of(const nexus::AddressBytes& address) const override {
    return transport_.refusal_of(bytes_of(address));
  }
  const transport::Remedies& remedies() const override { return Impl::kTraits.remedies; }
  const cc::Shortcuts& shortcuts() const override { return Impl::kTraits.shortcuts; }
  bool can_pair() const override { return Impl::kTraits.has_pairs; }
  Result<transport::PeerId> connect_paired(const nexus::AddressBytes& address, std::string_view host) override {
    return transport_.connect_paired(bytes_of(address), host);
  }
  Result<transport::PeerId> connect_back(transport::PeerId like) override { return transport_.connect_back(like); }
  transport::PathError take_path_error(transport::PeerId peer) override { return transport_.take_path_error(peer); }
  uint16_t port_of(transport::PeerId peer) const override { return transport_.port_of(peer); }
  transport::PeerState peer_state(transport::PeerId peer) override { return transport_.peer_state(peer); }
  Status peer_failure(transport::PeerId peer) const override { return transport_.peer_failure(peer); }
  void disconnect(transport::PeerId peer) override { transport_.disconnect(peer); }
  nexus::AddressBytes address() const override {
    nexus::AddressBytes address;
    const auto bytes = transport_.address();
    std::copy(bytes.begin(), bytes.end(), address.bytes.begin());
    address.size = static_cast<uint8_t>(bytes.size());
    return address;
  }
  uint32_t payload_bytes_max() const override { return transport_.payload_bytes_max(); }
  uint32_t payload_bytes_max(transport::PeerId peer) const override { return transport_.payload_bytes_max(peer); }
  uint32_t large_payload_bytes() const override { return transport_.large_payload_bytes(); }
  uint32_t large_payload_bytes(transport::PeerId peer) override { return transport_.large_payload_bytes(peer); }
  uint32_t receive_queue_packets() const override { return transport_.receive_queue_packets(); }
  uint32_t credit_bytes() const override { return transport_.credit_bytes(); }
  uint64_t link_bytes_per_sec() const override { return transport_.link_bytes_per_sec(); }
  uint64_t downlink_bytes_per_sec() const override { return transport_.downlink_bytes_per_sec(); }
  uint64_t downlink_bytes() const override { return transport_.downlink_bytes(); }
  transport::DelayTarget delay_target() const override { return transport_.delay_target(); }
  const TransportCounters& counters() const override { return transport_.counters(); }
  const NetworkCounters* network_counters() const override { return transport_.network_counters(); }
  const FaultCounters* fault_counters() const override { return transport_.fault_counters(); }
  uint64_t now() override { return transport_.now(); }
  void wake() override { transport_.wake(); }

 private:
  static std::span<const std::byte> bytes_of(const nexus::AddressBytes& address) {
    return std::span(address.bytes).first(address.size);
  }

  Impl& transport_;
};

}  // namespace tern::rpc
