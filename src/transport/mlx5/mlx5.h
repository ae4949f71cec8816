// Raw Ethernet frames over mlx5 devices (eRPC, appendix A): UDP datagrams past the kernel, with a state in the NIC that
// does not grow with sessions. Transport layer; owned by the endpoint's thread, wake() excepted.
//
//   this file           the common path: send() and receive()
//   mlx5.cc             creation, peers, the end
//   mlx5_queues.cc      failures, events of the device and the interface, waiting
//   mlx5_send.*         the send queue at the device
//   mlx5_receive.*      the receive queue at the device
//   mlx5_device.*       finding the device, its network interface, and the own address
//   src/ethernet        peers, open frames, addresses; src/frames: headers made and checked
//   src/neighbours      routes and MAC addresses from the kernel
//   src/rdma            strides, completions that overflow, steering rules, the ring of sends
//
// Sending: send() copies a packet into the peer's open frame (ethernet/open_frames.h), which is a slot of the send
// queue. A long packet gets its own frame, which the NIC gathers from the slot (headers) and from message memory.
// flush() completes the open frames, and rings the doorbell once. Only gathered packets have tickets. As over kernel
// UDP, a datagram contains several packets, each with its length in its header.
//
// Receiving: the NIC writes each frame to the next stride of a ring, and its completion over an older completion. The
// reader counts positions. It checks that the frame is a datagram for this endpoint, by the NIC's checksum results if
// the completion still exists, else in software, and visits the packets in place. Descriptors are posted again 512
// strides at a time.
//
// A failed queue is made again, which releases all tickets. If that does not help, or the device or the address is
// gone, the transport has failed for good.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include <tern/detail/export.h>
#include <tern/status.h>
#include <tern/transport/mlx5.h>

#include "base/descriptor.h"
#include "base/threads.h"
#include "base/tick_clock.h"
#include "base/wait.h"
#include "ethernet/endpoint_address.h"
#include "ethernet/open_frames.h"
#include "ethernet/peers.h"
#include "frames/drop.h"
#include "frames/parse.h"
#include "memory/arena.h"
#include "rdma/registration.h"
#include "transport/datagram.h"
#include "transport/mlx5/mlx5_device.h"
#include "transport/mlx5/mlx5_receive.h"
#include "transport/mlx5/mlx5_send.h"
#include "transport/transport.h"
#include "wire/header.h"

namespace tern::transport {

class TERN_API Mlx5Impl : public DefaultMembers {
 public:
  using Options = Mlx5::Options;
  /// Keeps the open frame's position in registers.
  class Sender : public ethernet::OpenFrames<Mlx5Send>::Sender {
   public:
    Sender(Mlx5Impl& transport, PeerId id) : ethernet::OpenFrames<Mlx5Send>::Sender(transport.frames_, id) {}
  };
  /// rto_ns_min is that of kernel UDP: the NIC takes microseconds, but a host that has lost its CPU takes some
  /// milliseconds.
  static constexpr Traits kTraits{
      .reports_space = true,
      .can_fail = true,
      .rto_ns_min = 1'000'000,
      .congestion_control = CongestionControl::kSwift,
      .remedies = {.packet_bytes = " (Mlx5::Options::datagram_bytes on either side)",
                   .address = " (the server's Mlx5::Options::bind has its address and port)",
                   .no_way_back = ": both need addresses of one family and a route between "
                                  "them over the device's interface, which "
                                  "Mlx5::Options::bind chooses"}};

  /// kMisuse: an option is out of range, or `bind` malformed. kUnavailable: see open_mlx5_device(); also a port that is
  /// taken, no permission, no steering, memory that cannot be registered. kNoMemory.
  static Result<std::unique_ptr<Mlx5Impl>> create(Options options, const Context& context);
  ~Mlx5Impl();
  Mlx5Impl(const Mlx5Impl&) = delete;
  Mlx5Impl& operator=(const Mlx5Impl&) = delete;

  std::span<const std::byte> address() const { return address_bytes_; }
  /// kMisuse: the bytes are not an address of this transport. kUnavailable: the other address family, no route, or a
  /// next hop that does not answer. kNoMemory.
  Result<PeerId> connect(std::span<const std::byte> address, std::string_view host);
  PeerState peer_state(PeerId id);
  Status peer_failure(PeerId id) const { return peers_.failure(id); }
  void disconnect(PeerId id);
  Status failure() const { return failure_; }
  uint32_t payload_bytes_max() const { return peers_.own().datagram_bytes - kHeaderBytes; }
  uint32_t payload_bytes_max(PeerId id) const { return peers_.route(id).datagram_bytes - kHeaderBytes; }
  /// One descriptor less than the ring, because the strides of a descriptor are posted together.
  uint32_t receive_queue_packets() const {
    return objects_->receives.strides() - rdma::StridedRing::kStridesPerDescriptor;
  }
  uint64_t link_bytes_per_sec() const { return std::max<uint64_t>(objects_->device.bytes_per_sec, 1); }
  /// A path is long, or its device is software, if its round trip without a queue is longer than this.
  DelayTarget delay_target() const { return {delay_target_ns_, delay_target_ns_, true}; }

  bool send(PeerId id, const wire::Header& header, const std::byte* data, size_t len, detail::Buffer* buffer) {
    return Sender(*this, id).send(header, data, len, buffer);
  }
  uint64_t ticket() const { return objects_->sends.ticket(); }
  uint64_t released() const { return objects_->sends.released(); }
  void flush() {
    if (objects_->sends.has_queued()) post_sends();
  }

  template <class Visit>
  size_t receive(Visit&& visit) {
    if (trouble_ != 0) [[unlikely]] {
      if (!recover()) return 0;
    }
    if (objects_->sends.wants_completions()) poll_sends();
    Mlx5Receive& frames_in = objects_->receives;
    Mlx5Receive::Completion completion{};
    Mlx5Receive::Seen seen = frames_in.look(&completion);
    if (seen == Mlx5Receive::Seen::kNothing) [[likely]] {
      if (++empty_polls_ % kEventPolls == 0) [[unlikely]]
        read_events();
      return 0;
    }
    if constexpr (BurstVisitor<Visit>) visit.begin_burst();
    size_t packets = 0;
    for (uint32_t i = 0; i < kBurst; ++i) {
      if (seen == Mlx5Receive::Seen::kFailed) [[unlikely]] {
        trouble_ |= kReceiving;
        break;
      }
      if (seen == Mlx5Receive::Seen::kTooLong) [[unlikely]] {
        trouble_ |= kStale;  // no failure, because any sender can cause it
        ++counters_.dropped_oversize;
        break;
      }
      const frames::FrameParser::Datagram datagram = open(frames_in.stride(), seen, completion);
      frames_in.advance();
      if (datagram.payload == nullptr) [[unlikely]] {
        ++counters_.dropped_frames[static_cast<size_t>(datagram.drop)];
      } else if (datagram.payload_bytes > peers_.own().datagram_bytes) [[unlikely]] {
        ++counters_.dropped_oversize;
      } else {
        packets += visit_packets(datagram.payload, datagram.payload_bytes, visit, counters_);
      }
      seen = frames_in.look(&completion);
      if (seen == Mlx5Receive::Seen::kNothing) break;
    }
    counters_.packets_received += packets;
    if (frames_in.wants_post()) post_receives();
    return packets;
  }

  uint64_t now() { return clock_.now_ns(); }
  bool prepare_wait();
  void wait(uint64_t deadline_ns) { waits_.wait_any(deadline_ns); }
  void end_wait();
  int descriptor() const { return waits_.descriptor(); }
  void wake() { wake_.wake(); }
  const TransportCounters& counters() const { return counters_; }

  /// The number of frames whose completion was overwritten, so that they were checked in software.
  uint64_t overwritten_completions() const { return overwritten_; }

 private:
  static constexpr uint32_t kHeaderBytes = wire::kHeaderBytes;
  static constexpr uint32_t kBurst = 32;
  /// Number of empty polls before one check for events of device and interface. A sleep is followed by a check, too.
  static constexpr uint32_t kEventPolls = 1u << 16;
  /// Number of resets in a row that failed queues get. The next failure is for good.
  static constexpr uint32_t kResetsMax = 3;
  // What has failed: bits of trouble_. kStale is no failure: the receive queue must be made again, because its steering
  // rule has an old MAC address, or a frame took several strides.
  static constexpr uint8_t kSending = 1, kReceiving = 2, kEverything = 4, kStale = 8;

  /// Objects that a forked child must not use, because the parent owns them. Destroyed in reverse order.
  struct Objects {
    Mlx5Device device;
    std::unique_ptr<rdma::ChunkRegistration> chunks;
    std::unique_ptr<rdma::RegisteredMemory> memory;
    Mlx5Send sends;
    Mlx5Receive receives;
  };

  Mlx5Impl(Options options, const Context& context);
  Status open(std::string_view listen_host);
  Status choose_sizes(uint32_t* datagram_bytes) const;
  Status open_memory();
  Status open_waits();
  Mlx5Receive::Frames own_frames() const;
  void set_own_mac(const frames::MacAddress& mac);

  void post_sends();
  void poll_sends();
  void take_report();

  /// The datagram in a stride, or the reason why there is none.
  [[gnu::always_inline]] frames::FrameParser::Datagram open(std::span<const std::byte> stride, Mlx5Receive::Seen seen,
                                                            const Mlx5Receive::Completion& completion) {
    frames::DeviceChecks checks;
    if (seen == Mlx5Receive::Seen::kCompleted) [[likely]] {
      checks = {completion.is_ip_good && trusts_checksums_, completion.is_udp_good && trusts_checksums_};
      stride = stride.first(std::min<size_t>(completion.bytes, stride.size()));
    } else {
      ++overwritten_;
    }
    return parser_.parse(stride, checks);
  }
  void post_receives();

  // ---- Failures, events, peers

  void read_events();
  Status read_device_events();
  void update_peers();
  bool recover();
  void fail(Status why);

  // Read by every send and receive.
  base::OfThisProcess<Objects> objects_;
  base::TickClock<> clock_;
  TransportCounters counters_;
  ethernet::Peers peers_{kMlx5Names};
  ethernet::OpenFrames<Mlx5Send> frames_;
  frames::FrameParser parser_;
  uint32_t empty_polls_ = 0;
  uint8_t trouble_ = 0;
  bool trusts_checksums_ = false;  ///< the device checks those of received frames
  bool is_armed_ = false;
  bool is_observing_ = false;
  uint32_t resets_ = 0;  ///< of failed queues, since the last completed send or posting of descriptors
  uint64_t overwritten_ = 0;

  memory::Arena& arena_;
  Options options_;
  uint32_t delay_target_ns_;
  Status failure_;
  Status interface_failure_;  ///< the next recover() copies it to failure_
  ethernet::EndpointAddress::Bytes address_bytes_{};
  base::Descriptor port_socket_;  ///< reserves the UDP port
  base::WaitSet waits_;
  base::WakeEvent wake_;
  base::Timer neighbour_timer_;
};

}  // namespace tern::transport
