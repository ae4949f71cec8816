// UDP datagrams by AF_XDP sockets, past the kernel's network stack, over an interface that the kernel keeps. Transport
// layer; owned by the endpoint's thread, wake() excepted.
//
//   this file        the common path: send() into a frame, flush(), receive()
//   xdp.cc           creation, peers, the end
//   xdp_events.cc    frames that were not sent, failures, events of the interface, waiting
//   sends.*          outgoing frames
//   port.*, lane.cc  the interface that the endpoints of the process share, and each endpoint's access to it
//   queue.*          an AF_XDP socket with its memory and rings
//   kernel_socket.*  the kernel's UDP socket beside them
//   steering.*       the XDP program that redirects frames, and its maps
//   src/ethernet     peers, open frames, own address; src/frames: headers made and checked
//   src/neighbours   routes and MAC addresses, the kernel's
//
// Sending: send() appends a packet to the peer's open frame, in memory from which the kernel sends. flush() completes
// the prebuilt headers of the open frames with lengths and checksums, and puts all frames into the queue's ring with
// one system call for 32 of them.
//
// Receiving: the XDP program redirects a frame to the socket of the queue at which it has arrived, and the kernel puts
// it into the queue's memory. The endpoint checks that the frame is a datagram for it, and visits the packets in place.
// A frame for another endpoint of the process goes to that endpoint's inbox.
//
// The kernel's socket receives the datagrams that arrive at queues of other processes. It is read after a number of
// polls of the queue, and at each poll while it has datagrams.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include <tern/detail/export.h>
#include <tern/status.h>
#include <tern/transport/xdp.h>

#include "base/threads.h"
#include "base/tick_clock.h"
#include "base/wait.h"
#include "ethernet/endpoint_address.h"
#include "ethernet/open_frames.h"
#include "ethernet/peers.h"
#include "frames/drop.h"
#include "frames/parse.h"
#include "memory/arena.h"
#include "transport/datagram.h"
#include "transport/transport.h"
#include "transport/xdp/kernel_socket.h"
#include "transport/xdp/names.h"
#include "transport/xdp/port.h"
#include "transport/xdp/sends.h"
#include "wire/header.h"

namespace tern::transport {

class TERN_API XdpImpl : public DefaultMembers {
 public:
  using Options = Xdp::Options;
  /// Keeps the open frame's position in registers.
  class Sender : public ethernet::OpenFrames<xdp::Sends>::Sender {
   public:
    Sender(XdpImpl& transport, PeerId id) : ethernet::OpenFrames<xdp::Sends>::Sender(transport.open_frames_, id) {}
  };
  /// rto_ns_min: as of kernel UDP, as the kernel runs the driver and the program.
  static constexpr Traits kTraits{
      .reports_space = true,
      .can_fail = true,
      .rto_ns_min = 1'000'000,
      .congestion_control = CongestionControl::kSwift,
      .remedies = {.packet_bytes = " (Xdp::Options::datagram_bytes on either side)",
                   .address = " (the server's Xdp::Options::bind has its address and port)",
                   .no_way_back = ": both need addresses of one family and a route between "
                                  "them over the interface, which Xdp::Options::interface chooses"}};

  /// kMisuse: an option is out of range or malformed, or another than that of the endpoints that have the interface.
  /// kUnavailable: see xdp::Port::open() and attach(); also a UDP port that is taken, an MTU that is too small.
  /// kNoMemory.
  static Result<std::unique_ptr<XdpImpl>> create(Options options, const Context& context);
  ~XdpImpl();
  XdpImpl(const XdpImpl&) = delete;
  XdpImpl& operator=(const XdpImpl&) = delete;

  std::span<const std::byte> address() const { return address_bytes_; }
  /// kMisuse: the bytes are no address of this transport. kUnavailable: the other family, no route, or a next hop that
  /// does not answer. kNoMemory.
  Result<PeerId> connect(std::span<const std::byte> address, std::string_view host);
  PeerState peer_state(PeerId id);
  void disconnect(PeerId id);
  Status failure() const { return failure_; }
  Status peer_failure(PeerId id) const { return objects_->peers.failure(id); }
  uint32_t payload_bytes_max() const { return objects_->peers.own().datagram_bytes - kHeaderBytes; }
  uint32_t payload_bytes_max(PeerId id) const { return objects_->peers.route(id).datagram_bytes - kHeaderBytes; }
  /// If endpoints share a queue, each states the whole queue, because their clients rarely all send at once. An
  /// endpoint that polls moves the frames of the others to their inboxes, each of which holds at most a sixteenth of
  /// the queue. If the queue or the inbox is full, a frame is lost.
  uint32_t receive_queue_packets() const { return options_.receive_buffers - kBorrowed; }
  uint64_t link_bytes_per_sec() const { return link_bytes_per_sec_; }
  /// A path is long if its round trip without a queue is longer than this.
  DelayTarget delay_target() const { return {delay_target_ns_, delay_target_ns_, true}; }

  bool send(PeerId id, const wire::Header& header, const std::byte* data, size_t len, detail::Buffer* buffer) {
    return Sender(*this, id).send(header, data, len, buffer);
  }
  /// All packets are copied at once.
  uint64_t ticket() const { return 0; }
  uint64_t released() const { return UINT64_MAX; }
  void flush() {
    if (objects_->sends.has_queued()) transmit();
  }

  template <class Visit>
  size_t receive(Visit&& visit) {
    if (has_trouble_) [[unlikely]] {
      if (!recover()) return 0;
    }
    if (kept_ != 0) give_back();
    const uint32_t count = objects_->lane->receive(objects_->burst);
    if (--until_kernel_ == 0) [[unlikely]]
      return receive_by_kernel(visit) + receive_burst(visit, count);
    return count == 0 ? 0 : receive_burst(visit, count);
  }

  uint64_t now() { return clock_.now_ns(); }
  bool prepare_wait();
  void wait(uint64_t deadline_ns) { waits_.wait_any(deadline_ns); }
  void end_wait();
  int descriptor() const { return waits_.descriptor(); }
  void wake() { wake_.wake(); }
  const TransportCounters& counters() const { return counters_; }

  /// "zero_copy", "native" or "generic".
  std::string_view mode() const { return objects_->port->mode(); }
  xdp::Port& port() { return *objects_->port; }           ///< for tests
  xdp::Queue& queue() { return objects_->lane->home(); }  ///< for tests

 private:
  using OpenFrames = ethernet::OpenFrames<xdp::Sends>;
  static constexpr uint32_t kHeaderBytes = wire::kHeaderBytes;
  static_assert(Options::kDatagramBytesMin == ethernet::kDatagramBytesMin);
  /// Of descriptors in waits_.
  enum class Waiting : uint64_t { kWake, kTimer, kNeighbours, kLane, kKernel };
  /// Number of polls of the queue before one read of the kernel's socket, which is a system call: 1 after a read with a
  /// datagram, and doubled after each read without one.
  static constexpr uint32_t kKernelLooksMax = 2048;
  /// Number of reads of the kernel's socket before one check for events of the interface and of neighbours. A sleep is
  /// followed by a check, too.
  static constexpr uint32_t kEventLooks = 32;
  static constexpr uint32_t kKernelBurst = 32;
  /// Number of a queue's frames outside of its rings: the visited burst, and the frames that the kernel has prepared.
  static constexpr uint32_t kBorrowed = 2 * xdp::Lane::kBurstMax;

  /// Objects that a forked child must not use, because the parent owns them. Destroyed in reverse order.
  struct Objects {
    std::shared_ptr<xdp::Port> port;
    xdp::KernelSocket kernel;
    std::unique_ptr<xdp::Lane> lane;
    ethernet::Peers peers{xdp::kNames};
    xdp::Sends sends;
    std::array<xdp::Frame, xdp::Lane::kBurstMax> burst;
  };

  XdpImpl(Options options, const Context& context);
  Status open(std::string_view listen_host);
  Result<neighbours::Interface> find_interface(const base::SocketAddress& bind, std::string_view listen_host) const;
  Status start(const neighbours::Interface& interface, base::SocketAddress own);
  Status open_waits();
  void set_own_mac(const frames::MacAddress& mac);

  template <class Visit>
  size_t receive_burst(Visit& visit, uint32_t count);
  template <class Visit>
  [[gnu::noinline]] size_t receive_by_kernel(Visit& visit);
  bool pass_on(const xdp::Frame& frame, frames::Drop drop);
  /// Gives back the frames of the last burst. Called in the next receive(), after responses have left.
  void give_back() {
    objects_->lane->give_back(std::span(objects_->burst).first(kept_));
    kept_ = 0;
  }

  void transmit();
  void kick();
  bool recover();
  void update_neighbours();
  void fail(Status why);

  // Read by every send and receive.
  base::OfThisProcess<Objects> objects_;
  OpenFrames open_frames_;
  frames::FrameParser parser_;
  uint32_t kept_ = 0;  ///< frames at the front of the burst that are still this endpoint's
  uint32_t until_kernel_ = 1;
  bool has_trouble_ = false;  ///< the kernel does not take frames, or the transport has failed
  base::TickClock<> clock_;
  TransportCounters counters_;

  uint32_t kernel_looks_ = 1;
  uint32_t until_events_ = kEventLooks;
  bool is_down_ = false;  ///< the interface or its send queue was down when frames were last sent
  bool is_armed_ = false;
  Options options_;
  uint32_t delay_target_ns_;
  uint64_t link_bytes_per_sec_ = 1;
  Status failure_;
  Status interface_failure_;  ///< the next recover() copies it to failure_
  ethernet::EndpointAddress::Bytes address_bytes_{};
  base::WaitSet waits_;
  base::WakeEvent wake_;
  base::Timer timer_;
};

/// Visits the packets of received frames.
template <class Visit>
size_t XdpImpl::receive_burst(Visit& visit, uint32_t count) {
  std::array<xdp::Frame, xdp::Lane::kBurstMax>& burst = objects_->burst;
  if (count == 0) return 0;
  if constexpr (BurstVisitor<Visit>) visit.begin_burst();
  size_t packets = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const xdp::Frame frame = burst[i];
    const frames::FrameParser::Datagram datagram = parser_.parse(frame.span(), {});
    if (datagram.payload == nullptr) [[unlikely]] {
      if (pass_on(frame, datagram.drop)) continue;
    } else if (datagram.payload_bytes > objects_->peers.own().datagram_bytes) [[unlikely]] {
      ++counters_.dropped_oversize;
    } else {
      packets += visit_packets(datagram.payload, datagram.payload_bytes, visit, counters_);
    }
    burst[kept_++] = frame;
  }
  counters_.packets_received += packets;
  return packets;
}

/// Visits the packets of datagrams that came through the kernel.
template <class Visit>
size_t XdpImpl::receive_by_kernel(Visit& visit) {
  if (--until_events_ == 0) {
    until_events_ = kEventLooks;
    update_neighbours();
  }
  size_t packets = 0;
  uint32_t datagrams = 0;
  for (; datagrams < kKernelBurst; ++datagrams) {
    const std::span<const std::byte> datagram = objects_->kernel.receive();
    ++counters_.system_calls;
    if (datagram.data() == nullptr) break;
    if constexpr (BurstVisitor<Visit>) {
      if (datagrams == 0) visit.begin_burst();
    }
    if (datagram.size() > objects_->peers.own().datagram_bytes) {
      ++counters_.dropped_oversize;
    } else {
      packets += visit_packets(datagram.data(), datagram.size(), visit, counters_);
    }
  }
  kernel_looks_ = datagrams != 0 ? 1 : std::min(2 * kernel_looks_, kKernelLooksMax);
  until_kernel_ = kernel_looks_;
  counters_.packets_received += packets;
  counters_.packets_by_kernel += packets;
  return packets;
}

}  // namespace tern::transport
