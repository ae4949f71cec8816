// What a layer over another transport passes through unchanged.
// Transport room; owned by the endpoint's owner thread, wake() excepted.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "transport/transport.h"

namespace tern::transport {

/// A layer derives from it, names its own Options and create(), and hides the members that it changes.
template <class Inner>
class Layer {
  static_assert(TransportImpl<Inner>);

 public:
  static constexpr bool kShared = Inner::kShared;
  static constexpr bool kTimesHandlers = Inner::kTimesHandlers;
  static constexpr uint64_t kRtoNsMin = Inner::kRtoNsMin;
  static constexpr CongestionControl kCongestionControl = Inner::kCongestionControl;

  std::span<const std::byte> address() const { return inner_->address(); }
  Result<PeerId> connect(std::span<const std::byte> address, std::string_view host) {
    return inner_->connect(address, host);
  }
  Result<PeerId> connect_paired(std::span<const std::byte> address, std::string_view host) requires
      requires(Inner& inner) {
    inner.connect_paired(address, host);
  }
  { return inner_->connect_paired(address, host); }
  Result<PeerId> connect_back(PeerId like) requires requires(Inner& inner) { inner.connect_back(like); }
  { return inner_->connect_back(like); }
  PathError take_path_error(PeerId peer) requires requires(Inner& inner) { inner.take_path_error(peer); }
  { return inner_->take_path_error(peer); }
  uint16_t port_of(PeerId peer) const requires requires(const Inner& inner) { inner.port_of(peer); }
  { return inner_->port_of(peer); }
  PeerState peer_state(PeerId peer) { return inner_->peer_state(peer); }
  void disconnect(PeerId peer) { inner_->disconnect(peer); }
  uint32_t payload_bytes_max() const { return inner_->payload_bytes_max(); }
  uint32_t payload_bytes_max(PeerId peer) const { return inner_->payload_bytes_max(peer); }
  uint32_t receive_queue_packets() const { return inner_->receive_queue_packets(); }
  uint64_t link_bytes_per_sec() const { return inner_->link_bytes_per_sec(); }
  uint64_t downlink_bytes_per_sec() const requires requires(const Inner& inner) { inner.downlink_bytes_per_sec(); }
  { return inner_->downlink_bytes_per_sec(); }
  uint64_t downlink_bytes() const requires requires(const Inner& inner) { inner.downlink_bytes(); }
  { return inner_->downlink_bytes(); }
  DelayTarget delay_target() const { return inner_->delay_target(); }

  bool send(PeerId peer, const wire::Header& header, const std::byte* data, size_t len, detail::Buffer* buffer) {
    return inner_->send(peer, header, data, len, buffer);
  }
  uint64_t ticket() const { return inner_->ticket(); }
  uint64_t released() const { return inner_->released(); }
  void flush() { inner_->flush(); }
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

  Inner& inner() { return *inner_; }  ///< for tests

 protected:
  explicit Layer(std::unique_ptr<Inner> inner) : inner_(std::move(inner)) {}
  std::unique_ptr<Inner> inner_;
};

}  // namespace tern::transport
