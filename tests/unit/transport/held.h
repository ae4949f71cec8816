// A layer that transmits late: packets wait, uncopied, until a later flush() passes them to the inner transport. It is
// for tests of the ownership of buffers. Owned by the endpoint's owner thread.
//
// It treats message memory as a NIC with a long queue does: it reads the memory long after send(), and releases tickets
// late and in bulk. An endpoint that releases a buffer too early transmits garbage here.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/layer.h"

namespace tern {
namespace transport {
template <class Inner>
class HeldImpl;
}

/// Packets are held until one of the two limits is reached, counted from the first queued one, and then leave together.
/// If both limits are 0, packets leave with the next flush, as without this layer.
template <class InnerOptions>
struct HeldOptions {
  /// Options of the transport below.
  InnerOptions inner;
  /// The number of iterations of the event loop for which packets are held. 0: no limit.
  uint32_t hold_flushes = 8;
  /// Packets leave in the first iteration after this time, if that comes earlier. 0: no limit.
  std::chrono::nanoseconds hold_time{0};
};

/// Behaves as `Inner` on the wire and has its name. Message memory is read when the packets leave, and transmit tickets
/// are released after that, so both are late and in bulk.
template <class Inner>
struct Held {
  static constexpr std::string_view kName = Inner::kName;
  using Impl = transport::HeldImpl<typename Inner::Impl>;
  using Options = HeldOptions<typename Inner::Options>;
};

}  // namespace tern

namespace tern::transport {

template <class Inner>
class HeldImpl : public Layer<Inner> {
 public:
  using Options = HeldOptions<typename Inner::Options>;
  using Sender = PlainSender<HeldImpl>;
  static constexpr Traits kTraits = [] {
    Traits traits = Inner::kTraits;
    traits.releases_at_once = false;
    return traits;
  }();

  /// kMisuse: a negative time. All errors of Inner::create().
  static Result<std::unique_ptr<HeldImpl>> create(Options options, const Context& context) {
    if (options.hold_time.count() < 0) return Status(Code::kMisuse, "HeldOptions::hold_time is negative");
    auto inner = Inner::create(std::move(options.inner), context);
    if (!inner.ok()) return inner.status();
    return std::unique_ptr<HeldImpl>(new HeldImpl(std::move(*inner), std::move(options)));
  }

  Result<PeerId> connect(std::span<const std::byte> address, std::string_view host) {
    return counted(this->inner_->connect(address, host));
  }
  Result<PeerId> connect_paired(std::span<const std::byte> address, std::string_view host) {
    return counted(this->inner_->connect_paired(address, host));
  }
  Result<PeerId> connect_back(PeerId like) { return counted(this->inner_->connect_back(like)); }
  /// The last disconnect drops the packets held for the peer, because the inner transport may give its id to another
  /// peer.
  void disconnect(PeerId peer) {
    const auto reference = references_.find(peer);
    if (reference != references_.end() && --reference->second == 0) {
      references_.erase(reference);
      std::erase_if(held_, [peer](const Packet& packet) { return packet.peer == peer; });
    }
    this->inner_->disconnect(peer);
  }

  bool send(PeerId peer, const wire::Header& header, const std::byte* data, size_t len, detail::Buffer* buffer) {
    if (held_.size() == kHeldMax || this->inner_->peer_state(peer) != PeerState::kReady) return false;
    if (held_.empty()) {
      flushes_ = 0;
      held_since_ns_ = this->inner_->now();
    }
    Packet packet{ticket_, peer, header, data, len, buffer, {}, 0};
    if (buffer == nullptr) {
      packet.copy.assign(data, data + len);
      packet.data = packet.copy.data();
    }
    held_.push_back(std::move(packet));
    return true;
  }

  uint64_t ticket() const { return ticket_; }
  uint64_t released() const {
    uint64_t released = released_;
    const uint64_t inner_released = this->inner_->released();
    for (const Handover& handover : handovers_) {
      if (handover.inner_ticket > inner_released) break;
      released = handover.ticket;
    }
    return released;
  }

  void flush() {
    ++flushes_;
    if (!held_.empty() && is_due()) transmit();
    released_ = released();
    while (!handovers_.empty() && handovers_.front().ticket <= released_) handovers_.pop_front();
    // Held packets have this ticket or a later one. All earlier packets are with the inner transport, or were dropped.
    const uint64_t handed_over = held_.empty() ? ticket_ : held_.front().ticket - 1;
    if (handed_over > (handovers_.empty() ? released_ : handovers_.back().ticket)) {
      handovers_.push_back({handed_over, this->inner_->ticket()});
    }
    ++ticket_;
    this->inner_->flush();
  }

  /// False while packets are held, because flush() must be called again and no descriptor signals that.
  bool prepare_wait() {
    const bool is_idle = this->inner_->prepare_wait();
    return is_idle && held_.empty();
  }

  size_t packets_held() const { return held_.size(); }
  uint64_t packets_given_up() const { return given_up_; }

 private:
  Result<PeerId> counted(Result<PeerId> peer) {
    if (peer.ok()) ++references_[*peer];
    return peer;
  }
  static constexpr size_t kHeldMax = 4096;
  /// A packet that the inner transport refuses this often counts as lost, so that its ticket does not wait for ever.
  static constexpr uint32_t kRefusalsMax = 64;

  struct Packet {
    uint64_t ticket;
    PeerId peer;
    wire::Header header;
    const std::byte* data;  ///< in `buffer`, or in `copy` (whose bytes stay in place when it is moved)
    size_t len;
    detail::Buffer* buffer;
    std::vector<std::byte> copy;
    uint32_t refusals;
  };
  /// Our tickets up to `ticket` are released when the inner transport has released `inner_ticket`.
  struct Handover {
    uint64_t ticket;
    uint64_t inner_ticket;
  };

  HeldImpl(std::unique_ptr<Inner> inner, Options options)
      : Layer<Inner>(std::move(inner)), options_(std::move(options)) {}

  bool is_due() {
    if (held_.front().refusals > 0) return true;
    const auto hold_ns = static_cast<uint64_t>(options_.hold_time.count());
    if (options_.hold_flushes == 0 && hold_ns == 0) return true;
    return (options_.hold_flushes != 0 && flushes_ > options_.hold_flushes) ||
           (hold_ns != 0 && this->inner_->now() - held_since_ns_ >= hold_ns);
  }

  /// Passes all packets to the inner transport in order. Refused packets stay for the next flush.
  void transmit() {
    std::deque<Packet> refused;
    for (Packet& packet : held_) {
      if (this->inner_->send(packet.peer, packet.header, packet.data, packet.len, packet.buffer)) continue;
      if (++packet.refusals == kRefusalsMax || this->inner_->peer_state(packet.peer) == PeerState::kDead) {
        ++given_up_;
      } else {
        refused.push_back(std::move(packet));
      }
    }
    held_ = std::move(refused);
  }

  const Options options_;
  std::deque<Packet> held_;  ///< by ticket
  uint64_t held_since_ns_ = 0;
  uint32_t flushes_ = 0;  ///< flushes since held_ was last empty
  uint64_t ticket_ = 1;
  uint64_t released_ = 0;  ///< tickets released at the last flush
  std::deque<Handover> handovers_;
  std::unordered_map<PeerId, uint32_t> references_;
  uint64_t given_up_ = 0;
};

}  // namespace tern::transport
