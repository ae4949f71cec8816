// The part of a transport's contract that a layer over another transport passes on unchanged.
// Transport layer; owned by the endpoint's owner thread, except wake().
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "transport/transport.h"

namespace tern::transport {

/// A layer derives from it, has its own Options, Sender and create(), and hides the members that it changes. Traits and
/// Context are one structure each, so that a new trait passes through. Every member of the contract is mandatory, so
/// that a new member that is missing here does not compile: RpcCore asserts TransportImpl of the whole layer. There is
/// no Sender here, because the inner transport's Sender would bypass the layer's send().
template <class Inner>
class Layer {
  static_assert(TransportImpl<Inner>);

 public:
  static constexpr Traits kTraits = Inner::kTraits;

  std::span<const std::byte> address() const { return inner_->address(); }
  Result<PeerId> connect(std::span<const std::byte> address, std::string_view host) {
    return inner_->connect(address, host);
  }
  wire::Refusal refusal_of(std::span<const std::byte> address) const { return inner_->refusal_of(address); }
  PeerState peer_state(PeerId peer) { return inner_->peer_state(peer); }
  Status peer_failure(PeerId peer) const { return inner_->peer_failure(peer); }
  void disconnect(PeerId peer) { inner_->disconnect(peer); }
  Result<PeerId> connect_paired(std::span<const std::byte> address, std::string_view host) {
    return inner_->connect_paired(address, host);
  }
  Result<PeerId> connect_back(PeerId like) { return inner_->connect_back(like); }
  PathError take_path_error(PeerId peer) { return inner_->take_path_error(peer); }
  uint16_t port_of(PeerId peer) const { return inner_->port_of(peer); }
  Status failure() const { return inner_->failure(); }

  uint32_t payload_bytes_max() const { return inner_->payload_bytes_max(); }
  uint32_t payload_bytes_max(PeerId peer) const { return inner_->payload_bytes_max(peer); }
  uint32_t receive_queue_packets() const { return inner_->receive_queue_packets(); }
  uint32_t credit_bytes() const { return inner_->credit_bytes(); }
  uint32_t large_payload_bytes() const { return inner_->large_payload_bytes(); }
  uint32_t large_payload_bytes(PeerId peer) { return inner_->large_payload_bytes(peer); }
  uint64_t link_bytes_per_sec() const { return inner_->link_bytes_per_sec(); }
  DelayTarget delay_target() const { return inner_->delay_target(); }
  uint64_t downlink_bytes_per_sec() const { return inner_->downlink_bytes_per_sec(); }
  uint64_t downlink_bytes() const { return inner_->downlink_bytes(); }

  bool send(PeerId peer, const wire::Header& header, const std::byte* data, size_t len, detail::Buffer* buffer) {
    return inner_->send(peer, header, data, len, buffer);
  }
  uint64_t ticket() const { return inner_->ticket(); }
  uint64_t released() const { return inner_->released(); }
  void flush() { inner_->flush(); }
  void before_burst() { inner_->before_burst(); }
  void before_pause() { inner_->before_pause(); }
  template <class Visit>
  size_t receive(Visit&& visit) {
    return inner_->receive(std::forward<Visit>(visit));
  }

  uint64_t now() { return inner_->now(); }
  bool prepare_wait() { return inner_->prepare_wait(); }
  void wait(uint64_t ns) { inner_->wait(ns); }
  void end_wait() { inner_->end_wait(); }
  int descriptor() const { return inner_->descriptor(); }
  void wake() { inner_->wake(); }
  const TransportCounters& counters() const { return inner_->counters(); }
  const NetworkCounters* network_counters() const { return inner_->network_counters(); }
  const FaultCounters* fault_counters() const { return inner_->fault_counters(); }

  Inner& inner() { return *inner_; }  ///< for tests

 protected:
  explicit Layer(std::unique_ptr<Inner> inner) : inner_(std::move(inner)) {}
  std::unique_ptr<Inner> inner_;
};

}  // namespace tern::transport
