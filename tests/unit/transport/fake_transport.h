// A transport for tests: endpoints of one process and one thread, connected by queues, with a clock set by hand.
//
// flush() reads the packets that send() queued out of their buffers, and puts them into the receiver's queue; an
// overflow there is an ordinary loss. Payloads of at least Options::by_reference_bytes are passed as an address and a
// lease. Their arena must be made with ArenaOptions::shared, because AddressSanitizer otherwise reports a late read as
// an error.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "transport/transport.h"

namespace tern::transport {

class FakeImpl;

/// The world of some FakeImpls. It must outlive them.
struct FakeNetwork {
  uint64_t now_ns = 1'000'000;
  uint32_t last_address = 0;
  std::map<uint32_t, FakeImpl*> endpoints;  ///< by address
};

}  // namespace tern::transport

namespace tern {

struct Fake {
  static constexpr std::string_view kName = "fake";
  using Impl = transport::FakeImpl;
  struct Options {
    transport::FakeNetwork* network = nullptr;
    uint32_t payload_bytes_max = 1024;
    uint32_t receive_queue_packets = 256;
    uint32_t credit_bytes = 0;
    uint32_t send_queue_packets = 256;
    uint32_t receive_burst = 32;
    uint32_t by_reference_bytes = UINT32_MAX;
  };
};

}  // namespace tern

namespace tern::transport {

class FakeImpl : public DefaultMembers {
 public:
  using Options = Fake::Options;
  using Sender = PlainSender<FakeImpl>;
  static constexpr Traits kTraits{.rto_ns_min = 10'000, .congestion_control = CongestionControl::kNone};

  static Result<std::unique_ptr<FakeImpl>> create(const Options& options, const Context&) {
    if (options.network == nullptr) return Status(Code::kMisuse, "Fake::Options::network is not set");
    return std::unique_ptr<FakeImpl>(new FakeImpl(options));
  }
  ~FakeImpl() { network_.endpoints.erase(address_); }

  std::span<const std::byte> address() const { return address_bytes_; }
  Result<PeerId> connect(std::span<const std::byte> address, std::string_view) {
    uint32_t number = 0;
    if (address.size() != sizeof(number)) return Status(Code::kMisuse, "not an address of a fake transport");
    std::memcpy(&number, address.data(), sizeof(number));
    PeerId place = static_cast<PeerId>(peers_.size());
    for (PeerId peer = 0; peer < peers_.size(); ++peer) {
      if (peers_[peer].references != 0 && peers_[peer].address == number) {
        ++peers_[peer].references;
        return peer;
      }
      if (peers_[peer].references == 0 && place == peers_.size()) place = peer;
    }
    if (place == peers_.size()) peers_.emplace_back();
    peers_[place] = {number, 1};
    return place;
  }
  PeerState peer_state(PeerId peer) { return target(peer) != nullptr ? PeerState::kReady : PeerState::kDead; }
  void disconnect(PeerId peer) {
    CHECK(peers_.at(peer).references, >, 0u);
    --peers_[peer].references;
  }
  uint32_t payload_bytes_max() const { return options_.payload_bytes_max; }
  uint32_t payload_bytes_max(PeerId) const { return options_.payload_bytes_max; }
  uint32_t receive_queue_packets() const { return options_.receive_queue_packets; }
  uint32_t credit_bytes() const { return options_.credit_bytes; }
  uint64_t link_bytes_per_sec() const { return 10'000'000'000; }
  DelayTarget delay_target() const { return {20'000, 60'000, true}; }

  bool send(PeerId peer, const wire::Header& header, const std::byte* data, size_t len, detail::Buffer* buffer) {
    CHECK(len, <=, size_t{options_.payload_bytes_max});
    if (refuse_sends || target(peer) == nullptr || outgoing_.size() == options_.send_queue_packets) return false;
    Outgoing packet{peer, header, data, len, buffer, {}};
    if (buffer == nullptr) {
      CHECK(len, <=, size_t{512});
      packet.copy.assign(data, data + len);
    }
    outgoing_.push_back(std::move(packet));
    return true;
  }
  uint64_t ticket() const { return ticket_; }
  uint64_t released() const { return hold_tickets ? held_ticket_ : ticket_ - 1; }
  void flush() {
    for (Outgoing& packet : std::exchange(outgoing_, {})) transmit(packet);
    if (!hold_tickets) held_ticket_ = ticket_;
    ++ticket_;
  }
  /// Each packet is its own burst (BurstVisitor), as if each had needed a system call.
  template <class Visit>
  size_t receive(Visit&& visit) {
    size_t visited = 0;
    for (uint32_t i = 0; i < options_.receive_burst && !incoming_.empty(); ++i) {
      const Incoming packet = std::move(incoming_.front());
      incoming_.pop_front();
      if (!wire::is_plausible(packet.header, wire::kPacketBytesMax)) {
        ++counters_.dropped_unparsable;
        continue;
      }
      Payload payload = packet.reference;
      if (payload.lease == nullptr)
        payload = {packet.data.data(), static_cast<uint32_t>(packet.data.size()), nullptr, 0};
      payload.is_marked = marks_arrivals;
      if constexpr (BurstVisitor<Visit>) visit.begin_burst();
      visit_packet(visit, packet.header, payload);
      ++counters_.packets_received;
      ++visited;
    }
    return visited;
  }

  uint64_t now() { return network_.now_ns; }
  bool prepare_wait() {
    CHECK(!waiting_);
    waiting_ = true;
    return incoming_.empty() && !woken_;
  }
  /// Advances the time instead of sleeping. Waiting for ever would be a deadlock.
  void wait(uint64_t ns) {
    CHECK(waiting_);
    if (!incoming_.empty() || std::exchange(woken_, false)) return;
    CHECK(ns, !=, UINT64_MAX);
    if (ns > network_.now_ns) network_.now_ns = ns;
  }
  void end_wait() {
    CHECK(waiting_);
    waiting_ = false;
  }
  int descriptor() const { return -1; }
  void wake() { woken_ = true; }
  const TransportCounters& counters() const { return counters_; }

  // For tests.
  bool refuse_sends = false;    ///< behaves as if the queue to every peer were full
  bool marks_arrivals = false;  ///< received packets have a congestion mark
  bool hold_tickets = false;    ///< released() does not advance
  size_t packets_waiting() const { return incoming_.size(); }
  /// Injects a packet as a stranger may send it, plausible or not.
  void inject(const wire::Header& header, std::span<const std::byte> data) {
    incoming_.push_back({header, {data.begin(), data.end()}, {}});
  }

 private:
  struct Peer {
    uint32_t address = 0;
    uint32_t references = 0;
  };
  struct Outgoing {
    PeerId peer;
    wire::Header header;
    const std::byte* data;
    size_t len;
    detail::Buffer* buffer;
    std::vector<std::byte> copy;
  };
  struct Incoming {
    wire::Header header;
    std::vector<std::byte> data;
    Payload reference;  ///< payload with a lease, in place of `data`
  };
  static constexpr size_t kDescriptorBytes = 16;  ///< the bytes that a by-reference packet would put into a cell

  explicit FakeImpl(const Options& options)
      : options_(options), network_(*options.network), address_(++options.network->last_address) {
    std::memcpy(address_bytes_.data(), &address_, sizeof(address_));
    network_.endpoints[address_] = this;
  }
  FakeImpl* target(PeerId peer) const {
    if (peer >= peers_.size() || peers_[peer].references == 0) return nullptr;
    const auto found = network_.endpoints.find(peers_[peer].address);
    return found != network_.endpoints.end() ? found->second : nullptr;
  }
  void transmit(Outgoing& packet) {
    FakeImpl* to = target(packet.peer);
    if (to == nullptr || to->incoming_.size() >= to->options_.receive_queue_packets) {
      ++counters_.send_errors;
      return;
    }
    ++counters_.packets_sent;
    Incoming arriving{packet.header, {}, {}};
    if (packet.buffer == nullptr) {
      arriving.data = std::move(packet.copy);
    } else if (packet.len >= options_.by_reference_bytes) {
      packet.buffer->exposed = true;
      arriving.reference = {packet.data, static_cast<uint32_t>(packet.len), &packet.buffer->lease,
                            packet.buffer->lease.load(std::memory_order_relaxed)};
    } else {
      arriving.data.assign(packet.data, packet.data + packet.len);
    }
    const bool by_reference = arriving.reference.lease != nullptr;
    arriving.header.set_length_and_flags(wire::kHeaderBytes + (by_reference ? kDescriptorBytes : packet.len),
                                         by_reference ? wire::kByReference : 0);
    to->incoming_.push_back(std::move(arriving));
  }

  const Options options_;
  FakeNetwork& network_;
  const uint32_t address_;
  std::array<std::byte, sizeof(uint32_t)> address_bytes_;
  std::vector<Peer> peers_;
  std::vector<Outgoing> outgoing_;
  std::deque<Incoming> incoming_;
  uint64_t ticket_ = 1;
  uint64_t held_ticket_ = 0;
  bool waiting_ = false;
  bool woken_ = false;
  TransportCounters counters_;
};
static_assert(TransportImpl<FakeImpl>);

}  // namespace tern::transport
