// The simulated network: it carries frames through host interfaces, cables and switches in virtual time.
// Sim layer, network part: a device, which includes base and wire only. One thread; knows neither endpoints nor the
// meaning of a packet.
//
// Each direction of a cable has an output with a queue: a host's interface, or a port of a switch. The transmission of
// a frame begins when those of the frames before it have ended. Switches cut through: a frame joins an output's queue
// when its first bit has crossed the cable and the switch. If that output is faster than the cable that the frame came
// by, the frame joins the queue later by the difference of its two transmission times, because the output would
// otherwise underrun. A frame arrives at a host with its last bit. The shared buffer of a switch counts the frames in
// the switch's queues: a frame leaves the buffer when its transmission begins, and a frame whose output is idle never
// enters it.
//
// Packets from a host to itself also go through its switch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include <tern/detail/export.h>
#include <tern/sim/network.h>

#include "sim/network/event_queue.h"
#include "wire/header.h"

namespace tern::sim {

class SimPort;
struct SimOutput;

/// A frame on its way. The network owns it from send() until on_arrival(). Before and after that, the port that has it
/// owns it.
struct SimPacket {
  SimPacket* next = nullptr;  ///< next packet of the list that the packet is on
  uint32_t from_host = 0, to_host = 0;
  uint32_t from_port = 0, to_port = 0;
  uint32_t frame_bytes = 0;    ///< length of the frame with all headers, without preamble and checksum
  uint32_t content_bytes = 0;  ///< length of `content`
  bool is_marked = false;      ///< the ECN mark (CE)
  // The next three fields are for the network only.
  uint16_t epoch = 0;        ///< epoch of the cable that the packet is on
  uint32_t flow = 0;         ///< hash of the packet's addresses, for the choice among equal paths
  SimOutput* out = nullptr;  ///< output that the packet takes at the next switch

  std::byte* content = nullptr;       ///< Network::frame_bytes_max() bytes, owned by the packet
  const std::byte* source = nullptr;  ///< for the sender: data that on_departure() copies into `content`; null: none
};
static_assert(sizeof(SimPacket) == 64, "one cache line, and the content begins in the next");

/// A source and destination of packets: an endpoint's transport, or the management channel of a Nexus.
class SimPort {
 public:
  /// The host's interface begins to transmit `packet`, which this port has sent. The content must not change after this
  /// call. The call comes from within send() if the interface is idle. It also comes for a packet that is lost because
  /// the host or its link is down.
  virtual void on_departure(SimPacket& packet) = 0;
  /// A packet has arrived. The port owns it now.
  virtual void on_arrival(SimPacket* packet) = 0;

 protected:
  ~SimPort() = default;
};

class TERN_API Network {
 public:
  /// Topology::check() of `topology` must have succeeded. `frame_bytes_max`: length of the longest frame, with
  /// all headers.
  Network(const Topology& topology, uint64_t seed, size_t frame_bytes_max);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  EventQueue& events() { return events_; }
  uint32_t hosts() const;
  size_t frame_bytes_max() const;
  /// The rate of the host's cable.
  uint64_t link_bits_per_sec(uint32_t host) const;

  /// The longest round trip of full frames between two hosts, without load and faults, in the network as it was built.
  Picoseconds longest_round_trip() const;

  /// A packet without mark and source, whose `content` is set. Its other fields have any value.
  SimPacket* take_packet();
  void give_packet(SimPacket* packet);
  /// Takes back and counts a packet for which the port has no room. on_arrival() calls it instead of give_packet() if
  /// the receive queue is full.
  void refuse(SimPacket* packet);

  /// Opens a port of the host. `number`: the wanted port number, below 65536; 0: any number from 65536 on that the host
  /// has never used. Returns the port number, or 0 if the wanted one is taken.
  uint32_t open_port(uint32_t host, SimPort* port, uint32_t number = 0);
  /// Closes the port, which gets no more calls. Its packets in the queue of the host's interface are dropped if their
  /// data is still in the port's memory (SimPacket::source). Its other packets are sent, as those of a closed socket
  /// are.
  void close_port(uint32_t host, uint32_t number);
  /// Appends the packet to the queue of its from_host's interface. The caller must have set the addresses, frame_bytes
  /// and content_bytes, and the source port must be open. The destination may be any host and port, known or not.
  void send(SimPacket* packet);
  /// Sends the packets of a list, linked by `next`, at the time `at`. All have the same source port; if it is closed
  /// before, they are lost.
  void send_at(Picoseconds at, SimPacket* packets);

  /// While a host is down, none of its packets leaves or arrives. Packets in the queue of its interface are lost, also
  /// if the host is up again before their turn.
  void set_host_up(uint32_t host, bool up);
  void set_faults(const Faults& faults);
  /// Sets the faults of all cables from `from` to `to`, in this direction only. Returns false if there is no such
  /// cable.
  bool set_faults(Node from, Node to, const Faults& faults);
  /// From now on, cables from `from` to `to` lose frames of more than `frame_bytes_max` bytes, in this direction only.
  /// SIZE_MAX: no limit. Returns false if there is no such cable.
  bool set_frame_limit(Node from, Node to, size_t frame_bytes_max);
  /// Sets all cables between `a` and `b` up or down, in both directions, and computes the routes again. A frame that is
  /// on its way to a switch keeps its output there. Returns false if there is no such cable.
  bool set_link_up(Node a, Node b, bool up);
  /// If `is_cut`, all packets from `from_host` to `to_host` are lost, in this direction only.
  void set_partition(uint32_t from_host, uint32_t to_host, bool is_cut);
  /// Puts the host behind a NAT (SimNat). The NAT translates ports of endpoints only. Receivers see the outside ports.
  void set_nat(uint32_t host, Picoseconds timeout);
  /// The host's NAT, if there is one, forgets all flows.
  void forget_flows(uint32_t host);
  /// Ends all faults, limits and partitions, and brings all links up. NATs stay.
  void heal();

  /// The network calls tap(packet, false) when a host's interface begins to transmit a packet, and tap(packet, true)
  /// before on_arrival(), which may refuse() the packet. Null: no tap.
  void set_tap(std::function<void(const SimPacket& packet, bool has_arrived)> tap);

  /// Hash of all events of the network and of their order.
  uint64_t trace_hash() const;
  const NetworkCounters& counters() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
  EventQueue& events_;  ///< the queue of `impl_`, without its indirection, because the time is read often
};

}  // namespace tern::sim
