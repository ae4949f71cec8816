// The transport in the simulated network. Each endpoint has a CPU of its own. The work of an iteration of its loop
// takes virtual time, and the iteration's packets are sent at the end of that time. Transport layer. All endpoints run
// in one thread.
//
// A packet's message memory is read when the host's interface begins to transmit the packet, as by the DMA of a NIC.
// The packet's ticket is released at that time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <tern/transport/sim.h>

#include "sim/network/output.h"
#include "transport/in_place.h"
#include "transport/sim/sim_nic.h"
#include "transport/transport.h"

namespace tern::transport {

/// The driver of an endpoint's loop. Without a driver the program runs the loop, which waits in virtual time.
class SimDriver {
 public:
  /// The endpoint has received a packet or was woken, so its loop must run.
  virtual void on_ready() = 0;
  /// A packet with this header has arrived. The header is not validated. on_ready() follows.
  virtual void expect(const wire::Header& header) = 0;
  /// The endpoint is being destroyed.
  virtual void on_gone() = 0;

 protected:
  ~SimDriver() = default;
};

class TERN_API SimImpl final : private sim::SimPort {
 public:
  using Options = Sim::Options;
  using Sender = PlainSender<SimImpl>;
  /// rto_ns_min is a round trip in a datacenter plus some queueing. Above it the measured round trips decide.
  static constexpr Traits kTraits{
      .is_virtual = true, .has_pairs = true, .rto_ns_min = 100'000, .congestion_control = CongestionControl::kSwift};
  /// Time between two polls of a loop that finds no packets.
  static constexpr Picoseconds kPollTime = 200 * kPicosecondsPerNs;
  /// Ethernet, IPv4 and UDP headers.
  static constexpr uint32_t kFrameHeaderBytes = 14 + 20 + 8;

  static Result<std::unique_ptr<SimImpl>> create(const Options& options, const Context& context);
  ~SimImpl();
  SimImpl(const SimImpl&) = delete;
  SimImpl& operator=(const SimImpl&) = delete;

  std::span<const std::byte> address() const { return address_; }
  Result<PeerId> connect(std::span<const std::byte> address, std::string_view host);
  /// The same as connect(), because an endpoint sends from the port on which it receives.
  Result<PeerId> connect_paired(std::span<const std::byte> address, std::string_view host) {
    return connect(address, host);
  }
  Result<PeerId> connect_back(PeerId) { return connect_port(visited_->from_host, visited_->from_port); }
  PathError take_path_error(PeerId) { return PathError::kNone; }
  uint16_t port_of(PeerId peer) const { return static_cast<uint16_t>(peers_[peer].port); }
  Status failure() const { return {}; }  // a simulated NIC lives as long as its simulation
  wire::Refusal refusal_of(std::span<const std::byte>) const { return wire::Refusal::kNone; }
  PeerState peer_state(PeerId) { return PeerState::kReady; }
  Status peer_failure(PeerId) const { return {}; }
  void disconnect(PeerId peer);
  uint32_t payload_bytes_max() const { return payload_bytes_max_; }
  uint32_t payload_bytes_max(PeerId) const { return payload_bytes_max_; }
  uint32_t large_payload_bytes() const { return frame_payload_bytes_ == payload_bytes_max_ ? 0 : frame_payload_bytes_; }
  uint32_t large_payload_bytes(PeerId) const { return large_payload_bytes(); }
  uint32_t receive_queue_packets() const { return options_.receive_queue_packets; }
  uint32_t credit_bytes() const { return 0; }
  uint64_t link_bytes_per_sec() const { return link_bytes_per_sec_; }
  uint64_t downlink_bytes_per_sec() const { return link_bytes_per_sec_; }  ///< assumes one endpoint per host
  uint64_t downlink_bytes() const { return received_bytes_; }
  /// The target is 30 us for a round trip of 7 us without load, as in the eRPC paper's cluster. A round trip then takes
  /// less than 90 us with hundreds of flows in a queue. The target must not be below session::kDownlinkNs, because the
  /// credits allow a delay of that length.
  DelayTarget delay_target() const { return delay_target_; }

  bool send(PeerId peer, const wire::Header& header, const std::byte* data, size_t len, detail::Buffer* buffer);
  uint64_t ticket() const { return queued_; }
  uint64_t released() const { return departed_; }
  void flush();
  void before_burst() {}
  void before_pause() {}
  template <class Visit>
  size_t receive(Visit&& visit);

  /// Never goes back, although a new drift of the host's clock may begin before a time that was read.
  uint64_t now() { return last_ns_ = std::max(last_ns_, nic_.clock.ns(thread_time())); }
  bool prepare_wait() { return received_.empty() && !is_woken_; }
  void wait(uint64_t ns);
  void end_wait() { is_woken_ = false; }
  int descriptor() const { return -1; }  ///< a real kernel cannot wait for virtual time
  void wake() {
    is_woken_ = true;
    if (driver_ != nullptr) driver_->on_ready();
  }
  const TransportCounters& counters() const { return counters_; }
  const NetworkCounters* network_counters() const { return &nic_.network.counters(); }
  const FaultCounters* fault_counters() const { return nullptr; }

  /// Exists while the program itself runs the endpoint's loop. May outlive the endpoint.
  class OwnLoop {
   public:
    explicit OwnLoop(SimImpl& impl) : nic_(impl.nic_), before_(std::exchange(nic_.polling, &impl)) { nic_.own_loops++; }
    OwnLoop(const OwnLoop&) = delete;
    OwnLoop& operator=(const OwnLoop&) = delete;
    ~OwnLoop() {
      nic_.own_loops--;
      nic_.polling = before_;
    }

   private:
    SimNic& nic_;
    SimImpl* const before_;
  };

  // -- For the driver --

  SimNic& nic() { return nic_; }
  SimDriver* driver() const { return driver_; }
  void set_driver(SimDriver* driver) { driver_ = driver; }
  bool has_input() const { return !received_.empty(); }
  /// Begins an iteration of the loop.
  void begin_turn() {
    looks_left_ = kLooksMax;
    turn_packets_ = 0;
    is_woken_ = false;
  }
  /// The endpoint's loop runs from now until leave().
  void enter() { nic_.running = this; }
  /// Returns the time at which the endpoint's work so far is done.
  Picoseconds leave() {
    nic_.running = nullptr;
    return thread_time();
  }
  /// True: the endpoint's work takes until kUnseenTime from now or longer, because handlers took time, and the
  /// iteration may take more packets. Packets that arrive until the work is done belong to the same iteration.
  bool may_receive_more() const {
    return looks_left_ != 0 && turn_packets_ < kBurstPackets &&
           thread_time_ >= nic_.network.events().now() + kUnseenTime;
  }
  /// Adds `time` to the time that the running callback takes.
  void spend(Picoseconds time) { thread_time_ = thread_time() + nic_.slowed(time); }

 private:
  static constexpr size_t kBurstPackets = 64;  ///< most packets of a receive(), and of an iteration
  /// Most calls of receive() in one iteration. An iteration reads until no packet is left, as from a socket, up to this
  /// limit.
  static constexpr uint32_t kLooksMax = 16;
  /// Packets that arrive while the endpoint works for less than this wait for the next iteration, because an event for
  /// every few packets would slow the simulation down.
  static constexpr Picoseconds kUnseenTime = 1000 * kPicosecondsPerNs;

  /// A FIFO list, linked by SimPacket::next.
  class PacketList {
   public:
    bool empty() const { return first_ == nullptr; }
    const SimPacket* first() const { return first_; }
    void add(SimPacket* packet) {
      packet->next = nullptr;
      *(first_ == nullptr ? &first_ : &last_->next) = packet;
      last_ = packet;
    }
    SimPacket* take() {
      SimPacket* packet = first_;
      first_ = packet->next;
      return packet;
    }
    SimPacket* take_all() { return std::exchange(first_, nullptr); }

   private:
    SimPacket* first_ = nullptr;
    SimPacket* last_ = nullptr;
  };
  struct Peer {
    uint32_t host = 0;
    uint32_t port = 0;
    uint32_t references = 0;
  };

  explicit SimImpl(const Options& options);
  /// The time of this endpoint's CPU, which is never behind virtual time.
  Picoseconds thread_time() const { return std::max(thread_time_, nic_.network.events().now()); }
  void work(Picoseconds cost) { thread_time_ += nic_.slowed(cost); }
  bool is_driven() const { return nic_.running == this; }
  void poll_in_vain();
  void step(Picoseconds until);
  Result<PeerId> connect_port(uint32_t host, uint32_t port);

  void on_departure(SimPacket& packet) override {
    if (packet.source != nullptr) {
      std::memcpy(packet.content + wire::kHeaderBytes, packet.source, packet.content_bytes - wire::kHeaderBytes);
    }
    departed_++;
  }
  void on_arrival(SimPacket* packet) override;

  SimNic& nic_;
  const Options options_;
  uint32_t port_ = 0;
  uint32_t frame_payload_bytes_;  ///< payload of the network's longest frames
  uint32_t payload_bytes_max_;
  uint64_t link_bytes_per_sec_;
  DelayTarget delay_target_;
  std::vector<std::byte> address_;
  SimDriver* driver_ = nullptr;
  Picoseconds thread_time_ = 0;
  uint64_t last_ns_ = 0;  ///< the last result of now()
  bool is_woken_ = false;
  uint32_t looks_left_ = 0;  ///< calls of receive() left in this iteration; 0 after one that finds no packet
  size_t turn_packets_ = 0;  ///< packets received in this iteration
  PacketList received_;
  const SimPacket* visited_ = nullptr;  ///< packet of the running visitor
  uint32_t received_count_ = 0;
  uint64_t received_bytes_ = 0;  ///< bytes on the wire of all packets received
  PacketList burst_;             ///< packets of send() since the last flush()
  /// When the interface gets the packets of the last flush() whose work took time. They may be with it already.
  Picoseconds handed_over_at_ = UINT64_MAX;
  uint64_t queued_ = 0;    ///< packets taken by send(); the ticket of the last
  uint64_t departed_ = 0;  ///< packets whose transmission has begun
  std::vector<Peer> peers_;
  std::vector<PeerId> free_peers_;
  std::map<std::pair<uint32_t, uint32_t>, PeerId> peer_ids_;  ///< by host and port
  TransportCounters counters_;
};

template <class Visit>
size_t SimImpl::receive(Visit&& visit) {
  if (!is_driven() && received_.empty()) poll_in_vain();
  thread_time_ = thread_time();
  size_t packets_max = kBurstPackets;
  if (!is_driven() || looks_left_ == kLooksMax) work(nic_.cost.iteration);
  if (is_driven()) {
    packets_max -= turn_packets_;
    looks_left_ = received_.empty() ? 0 : looks_left_ - 1;
  }
  if constexpr (BurstVisitor<Visit>) visit.begin_burst();
  size_t packets = 0;
  while (!received_.empty() && packets < packets_max) {
    SimPacket* packet = received_.take();
    received_count_--;
    visited_ = packet;
    if (!received_.empty()) __builtin_prefetch(received_.first()->content);
    packets++;
    received_bytes_ += sim::wire_bytes(packet->frame_bytes);
    work(nic_.cost.packet_received);
    const wire::Header header = wire::load_header(packet->content);
    // A frame has one packet. Bytes beyond the header's length are the padding of Ethernet.
    if (packet->content_bytes < wire::kHeaderBytes || !wire::is_plausible(header, packet->content_bytes) ||
        (header.flags() & wire::kByReference) != 0) [[unlikely]] {
      counters_.dropped_unparsable++;
    } else {
      Payload payload;
      payload.data = packet->content + wire::kHeaderBytes;
      payload.bytes = header.length() - static_cast<uint32_t>(wire::kHeaderBytes);
      payload.is_marked = packet->is_marked;
      receive_in_place(visit, header, payload);
      visit_packet(visit, header, payload);
    }
    nic_.network.give_packet(packet);
  }
  turn_packets_ += packets;
  counters_.packets_received += packets;
  return packets;
}

}  // namespace tern::transport
