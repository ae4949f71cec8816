// Raw Ethernet frames over a port of DPDK: UDP datagrams past the kernel, by any poll-mode driver. Transport layer;
// owned by the endpoint's thread, wake() excepted.
//
//   this file          the common path: send() into a frame, flush(), receive()
//   dpdk.cc            creation, peers, the end
//   dpdk_queues.cc     transmission of frames, failures, events of the port and of neighbours, waiting
//   dpdk_sends.*       outgoing frames; message memory that the device reads
//   dpdk_burst.*       received frames
//   dpdk_port.*        the device that the endpoints of the process share, and each endpoint's access to it
//   src/ethernet       peers, open frames, own address; src/frames: headers made and checked
//   src/neighbours     routes and MAC addresses: the kernel's, or this process's own
//
// Sending: send() appends a packet to the peer's open frame. A long packet gets its own frame. If the device gathers,
// this frame has the headers in one mbuf, and a second mbuf refers to message memory. flush() completes the prebuilt
// headers of the open frames with lengths, and gives the driver all frames at once. Frames that the driver does not
// take stay queued, and are lost after 10 ms without progress.
//
// Receiving: the driver fills mbufs. The endpoint checks that a frame is a datagram for it, by the device's checksum
// results if there are any, else in software, and visits the packets in place. It passes frames for other endpoints and
// for the host (ARP, neighbour discovery) to the lane.
//
// This header includes no header of DPDK, because those need compiler flags that other files do not have.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <tern/detail/export.h>
#include <tern/status.h>
#include <tern/transport/dpdk.h>

#include "base/descriptor.h"
#include "base/threads.h"
#include "base/tick_clock.h"
#include "base/wait.h"
#include "ethernet/names.h"
#include "ethernet/open_frames.h"
#include "ethernet/peers.h"
#include "frames/drop.h"
#include "frames/parse.h"
#include "memory/arena.h"
#include "transport/datagram.h"
#include "transport/dpdk/dpdk_burst.h"
#include "transport/dpdk/dpdk_memory.h"
#include "transport/dpdk/dpdk_port.h"
#include "transport/dpdk/dpdk_sends.h"
#include "transport/transport.h"
#include "wire/header.h"

namespace tern::transport {

class TERN_API DpdkImpl : public DefaultMembers {
 public:
  using Options = Dpdk::Options;
  class Sender;
  /// rto_ns_min is that of kernel UDP: the device takes microseconds, but a host that has lost its CPU takes some
  /// milliseconds.
  static constexpr Traits kTraits{
      .reports_space = true,
      .can_fail = true,
      .rto_ns_min = 1'000'000,
      .congestion_control = CongestionControl::kSwift,
      .remedies = {.packet_bytes = " (Dpdk::Options::datagram_bytes on either side)",
                   .address = " (the server's device, Dpdk::Options::address and Dpdk::Options::bind)",
                   .no_way_back = ": both need addresses of one family, and a way between them: one network "
                                  "(Dpdk::Options::address), or a router (Dpdk::Options::gateway)"}};
  static constexpr ethernet::Names kNames{"dpdk", "Dpdk"};

  /// kMisuse: an option is out of range or malformed, or differs from that of the endpoints that use the device.
  /// kUnavailable: see DpdkPort::open() and DpdkPort::attach(); also a UDP port that is taken, an MTU that is too
  /// small. kNoMemory.
  static Result<std::unique_ptr<DpdkImpl>> create(Options options, const Context& context);
  ~DpdkImpl();
  DpdkImpl(const DpdkImpl&) = delete;
  DpdkImpl& operator=(const DpdkImpl&) = delete;

  std::span<const std::byte> address() const { return address_bytes_; }
  /// kMisuse: the bytes are not an address of this transport. kUnavailable: the other address family, no route, or a
  /// next hop that does not answer. kNoMemory.
  Result<PeerId> connect(std::span<const std::byte> address, std::string_view host);
  PeerState peer_state(PeerId id);
  void disconnect(PeerId id);
  Status failure() const { return failure_; }
  Status peer_failure(PeerId id) const { return objects_->peers.failure(id); }
  uint32_t payload_bytes_max() const { return objects_->peers.own().datagram_bytes - kHeaderBytes; }
  uint32_t payload_bytes_max(PeerId id) const { return objects_->peers.route(id).datagram_bytes - kHeaderBytes; }
  /// If endpoints share a queue, each states the whole queue, because an endpoint that polls moves the frames of the
  /// others out of it, and their clients rarely all send at once. If the queue is full, a frame is lost.
  uint32_t receive_queue_packets() const { return std::max<uint32_t>(objects_->port->facts().receive_descriptors, 1); }
  uint64_t link_bytes_per_sec() const { return std::max<uint64_t>(objects_->port->facts().bytes_per_sec, 1); }
  /// A path is long, or its device is software, if its round trip without a queue is longer than this.
  DelayTarget delay_target() const { return {delay_target_ns_, delay_target_ns_, true}; }

  bool send(PeerId id, const wire::Header& header, const std::byte* data, size_t len, detail::Buffer* buffer) {
    return OpenFrames::Sender(open_frames_, id).send(header, data, len, buffer);
  }
  uint64_t ticket() const { return objects_->sends.ticket(); }
  uint64_t released() const { return objects_->sends.released(); }
  void flush() {
    if (objects_->sends.has_queued()) transmit();
  }

  template <class Visit>
  size_t receive(Visit&& visit) {
    if (has_trouble_) [[unlikely]] {
      if (!recover()) return 0;
    }
    if (objects_->sends.wants_done()) poll_sends();
    DpdkBurst& burst = objects_->burst;
    const uint32_t count = burst.receive();
    if (count == 0) [[likely]] {
      if (++empty_polls_ % kEventPolls == 0) [[unlikely]]
        read_events();
      return 0;
    }
    if constexpr (BurstVisitor<Visit>) visit.begin_burst();
    size_t packets = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const DpdkBurst::Frame& frame = burst[i];
      const frames::FrameParser::Datagram datagram = parser_.parse(frame.span(), frame.checks);
      if (datagram.payload == nullptr) [[unlikely]] {
        pass_on(i, datagram.drop);
      } else if (datagram.payload_bytes > objects_->peers.own().datagram_bytes) [[unlikely]] {
        ++counters_.dropped_oversize;
      } else {
        packets += visit_packets(datagram.payload, datagram.payload_bytes, visit, counters_);
      }
    }
    counters_.packets_received += packets;
    burst.free();
    return packets;
  }

  uint64_t now() { return clock_.now_ns(); }
  bool prepare_wait();
  void wait(uint64_t deadline_ns) { waits_.wait_any(deadline_ns); }
  void end_wait();
  int descriptor() const { return waits_.descriptor(); }
  void wake() { wake_.wake(); }
  const TransportCounters& counters() const { return counters_; }

  DpdkPort& port() { return *objects_->port; }  ///< for tests

 private:
  using OpenFrames = ethernet::OpenFrames<DpdkSends>;
  static constexpr uint32_t kHeaderBytes = wire::kHeaderBytes;
  static_assert(Options::kDatagramBytesMin == ethernet::kDatagramBytesMin);
  /// Of descriptors in waits_.
  enum class Waiting : uint64_t { kWake, kTimer, kNeighbours, kLane };
  /// Number of empty polls before one check for events of the port and of neighbours. A sleep is followed by a check,
  /// too.
  static constexpr uint32_t kEventPolls = 1u << 16;

  /// Objects that a forked child must not use, because the parent owns them. Destroyed in reverse order.
  struct Objects {
    std::shared_ptr<DpdkPort> port;
    std::unique_ptr<DpdkMemory> memory;
    std::unique_ptr<DpdkLane> lane;
    ethernet::Peers peers{kNames};
    DpdkBurst burst;
    DpdkSends sends;
  };

  /// The endpoint's own end, before it has a UDP port.
  struct Own {
    base::SocketAddress address;
    frames::MacAddress mac;
    uint32_t mtu_bytes;
    std::string interface;  ///< of the kernel, or the device: for texts
  };

  DpdkImpl(Options options, const Context& context);
  Status open(std::string_view listen_host);
  Result<Own> choose_own_address(const base::SocketAddress& bind) const;
  Result<Own> choose_interface_address(const base::SocketAddress& bind, std::string_view listen_host);
  Status start(Own own);
  Status open_waits();
  Status set_own_mac(const frames::MacAddress& mac);

  void transmit();
  void on_stall(bool has_moved);
  void poll_sends();
  bool recover();
  void pass_on(uint32_t i, frames::Drop drop);
  void read_events();
  void count_drops();
  void update_neighbours();
  void fail(Status why);

  // Read by every send and receive.
  base::OfThisProcess<Objects> objects_;
  OpenFrames open_frames_;
  frames::FrameParser parser_;
  uint32_t empty_polls_ = 0;
  bool has_trouble_ = false;  ///< the driver does not take frames, or the transport has failed
  base::TickClock<> clock_;
  TransportCounters counters_;

  bool is_armed_ = false;
  bool is_observing_ = false;
  uint64_t stalled_ns_ = 0;  ///< the time since which the driver has taken no frame; 0: it has taken all
  uint64_t held_ns_ = 0;     ///< the time since which the driver has released no message memory; 0: it has released all
  uint64_t released_before_ = 0;
  memory::Arena& arena_;
  Options options_;
  uint32_t delay_target_ns_;
  Status failure_;
  ethernet::EndpointAddress::Bytes address_bytes_{};
  base::Descriptor port_socket_;  ///< kernel mode: reserves the UDP port
  uint64_t events_ = 0;           ///< of the port, as counted
  base::WaitSet waits_;
  base::WakeEvent wake_;
  base::Timer timer_;
};

/// Keeps the open frame's position in registers.
class DpdkImpl::Sender : public DpdkImpl::OpenFrames::Sender {
 public:
  Sender(DpdkImpl& transport, PeerId id) : OpenFrames::Sender(transport.open_frames_, id) {}
};

}  // namespace tern::transport
