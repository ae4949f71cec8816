// Endpoints over a Device of the user: one virtual call for a burst of packets to transmit, one for a burst received.
// Transport layer; owned by the endpoint's owner thread, except wake(). Trusts the device to keep its contract
// (tern/transport/device.h), but not the received bytes.
//
// send() queues a packet: it copies the header into a slot, and refers to the payload in message memory. flush() offers
// the queue to the device. Packets that the device does not take stay in order and hold their tickets. After kKeptNsMax
// they are lost, so that message memory is released in bounded time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tern/detail/export.h>
#include <tern/transport/device.h>

#include "base/clock.h"
#include "base/wait.h"
#include "transport/transport.h"

namespace tern::transport {

class TERN_API DeviceImpl : public DefaultMembers {
 public:
  using Options = Device::Options;
  using Sender = PlainSender<DeviceImpl>;
  /// rto_ns_min is that of kernel UDP, because the device's network and its round trips are unknown.
  static constexpr Traits kTraits{.rto_ns_min = 1'000'000, .congestion_control = CongestionControl::kSwift};
  static constexpr uint32_t kQueuePackets = 256;
  static constexpr size_t kBurstPackets = 64;  ///< of one receive()
  static constexpr uint64_t kKeptNsMax = 100'000'000;
  static constexpr size_t kNameBytesMax = 16;
  static constexpr size_t kDeviceAddressBytesMax = 40;

  static Result<std::unique_ptr<DeviceImpl>> create(Options options, const Context& context);
  ~DeviceImpl();
  DeviceImpl(const DeviceImpl&) = delete;
  DeviceImpl& operator=(const DeviceImpl&) = delete;

  std::span<const std::byte> address() const { return address_; }
  Result<PeerId> connect(std::span<const std::byte> address, std::string_view host);
  PeerState peer_state(PeerId id);
  void disconnect(PeerId id);
  uint32_t payload_bytes_max() const { return packet_bytes_max_ - kHeaderBytes; }
  uint32_t payload_bytes_max(PeerId id) const { return peers_[id].packet_bytes_max - kHeaderBytes; }
  uint32_t receive_queue_packets() const { return properties_.receive_queue_packets; }
  uint64_t link_bytes_per_sec() const { return properties_.link_bytes_per_sec; }
  /// The target allows for delays of CPUs, as for kernel UDP: a thread that has lost its CPU waits some milliseconds
  /// for its next time slice.
  DelayTarget delay_target() const { return {10'000'000, 10'000'000, false}; }

  bool send(PeerId id, const wire::Header& header, const std::byte* data, size_t len, detail::Buffer* buffer) {
    const Peer& peer = peers_[id];
    if (used_slots_ == kQueuePackets || !peer.is_connected) [[unlikely]]
      return false;
    if (kHeaderBytes + len > peer.packet_bytes_max) [[unlikely]] {
      ++counters_.send_errors;
      return true;  // a loss: it would not fit later either
    }
    Slot& slot = slots_[used_slots_++];
    wire::Header sent = header;
    sent.set_length_and_flags(kHeaderBytes + len, 0);
    wire::store_header(slot.header, sent);
    if (buffer == nullptr && len != 0) [[unlikely]]
      data = copy(data, len, slot);
    queue_[queued_] = {peer.name, std::span(slot.header), std::span(data, len)};
    tickets_[queued_++] = ticket();
    return true;
  }
  uint64_t ticket() const { return flushes_ + 1; }
  uint64_t released() const { return queued_ == 0 ? flushes_ : tickets_[0] - 1; }
  void flush() {
    if (queued_ != 0) transmit();
    ++flushes_;
  }

  template <class Visit>
  size_t receive(Visit&& visit) {
    const size_t arrived = std::min(device_->receive(arrived_), kBurstPackets);
    if (arrived == 0) return 0;
    if constexpr (BurstVisitor<Visit>) visit.begin_burst();
    size_t packets = 0;
    for (size_t i = 0; i < arrived; ++i) {
      const std::span<const std::byte> packet = arrived_[i].packet;
      wire::Header header;
      if (!open(packet, &header)) [[unlikely]]
        continue;
      Payload payload;
      payload.data = packet.data() + kHeaderBytes;
      payload.bytes = header.length() - kHeaderBytes;
      ++packets;
      visit_packet(visit, header, payload);
    }
    counters_.packets_received += packets;
    return packets;
  }

  uint64_t now() const { return base::monotonic_ns(); }
  /// False while packets are kept, because no descriptor shows when the device accepts them.
  bool prepare_wait() { return can_sleep_ && queued_ == 0; }
  void wait(uint64_t deadline_ns) { waits_.wait_any(deadline_ns); }
  void end_wait() { wake_.clear(); }
  int descriptor() const { return waits_.descriptor(); }
  void wake() { wake_.wake(); }
  const TransportCounters& counters() const { return counters_; }

 private:
  static constexpr uint32_t kHeaderBytes = wire::kHeaderBytes;
  static constexpr uint32_t kPacketBytesMin = kHeaderBytes + wire::kPayloadBytesMin;
  static constexpr uint32_t kPacketBytesMax = 65000;

  struct Peer {
    Device::Peer name = 0;
    uint32_t packet_bytes_max = kHeaderBytes;
    uint32_t references = 0;
    bool is_connected = false;  ///< the state was kReady at the last check
    std::string key;            ///< in ids_
  };
  /// Memory of a queued packet; all slots are free again when the queue is empty.
  struct Slot {
    std::byte header[kHeaderBytes];
    std::byte payload[kCopiedBytesMax];
  };

  DeviceImpl(std::unique_ptr<Device> device, const Device::Properties& properties);
  Status open_descriptors();
  static const std::byte* copy(const std::byte* data, size_t len, Slot& slot);
  /// Reads the header of a received packet. False: it is invalid, and was counted.
  bool open(std::span<const std::byte> packet, wire::Header* header) {
    if (packet.size() < kHeaderBytes) [[unlikely]] {
      ++counters_.dropped_unparsable;
      return false;
    }
    *header = wire::load_header(packet.data());
    const bool is_good = wire::is_plausible(*header, std::min<size_t>(packet.size(), packet_bytes_max_)) &&
                         (header->flags() & wire::kByReference) == 0;
    if (!is_good) [[unlikely]]
      count_bad(packet, *header);
    return is_good;
  }
  void count_bad(std::span<const std::byte> packet, const wire::Header& header);
  void transmit();
  void remove_first(uint32_t count);

  std::unique_ptr<Device> device_;
  Device::Properties properties_;
  uint32_t packet_bytes_max_;
  uint64_t flushes_ = 0;
  uint32_t queued_ = 0;      ///< packets in queue_
  uint32_t used_slots_ = 0;  ///< of slots_; not below queued_
  uint64_t kept_since_ns_ =
      0;  ///< the time at which the device first refused the queue's first packet; 0: it has not refused it
  std::array<Device::Outgoing, kQueuePackets> queue_;
  std::array<uint64_t, kQueuePackets> tickets_;  ///< of queue_
  std::array<Device::Incoming, kBurstPackets> arrived_;
  std::vector<Peer> peers_;
  std::vector<PeerId> free_ids_;
  std::map<std::string, PeerId, std::less<>> ids_;  ///< by address and host
  std::vector<std::byte> address_;
  TransportCounters counters_;
  base::WaitSet waits_;
  base::WakeEvent wake_;
  bool can_sleep_ = false;  ///< the device has a descriptor
  std::array<Slot, kQueuePackets> slots_;
};

}  // namespace tern::transport
