// The simulated network: frames through host interfaces, cables and switches, in virtual time.
// Sim layer, network part: a device, which includes base and wire only. One thread; knows neither endpoints nor the
// meaning of a packet.
//
// Each direction of a cable is an output with a queue: a host's interface, or a port of a switch. A frame's
// transmission begins when the frames before it are over. Switches cut through: a frame is in the output's queue when
// its beginning has crossed the cable and the switch, and later only by the time that a faster output would underrun. A
// frame arrives at a host with its last bit. The shared buffer of a switch counts the frames in its queues: a frame
// leaves it when its transmission begins, and a frame that finds its output idle never takes any of it.
//
// Packets from a host to itself go through its switch like all others.
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

/// A frame on its way. The network owns it from send() until on_arrival(); otherwise its holder does.
struct SimPacket {
  SimPacket* next = nullptr;  ///< in the list that it is on
  uint32_t from_host = 0, to_host = 0;
  uint32_t from_port = 0, to_port = 0;
  uint32_t frame_bytes = 0;    ///< headers included, preamble and checksum not
  uint32_t content_bytes = 0;  ///< of `content`
  bool is_marked = false;      ///< ECN CE
  // For the network only.
  uint16_t epoch = 0;        ///< epoch of the cable that it is on
  uint32_t flow = 0;         ///< a hash of its addresses: chooses among equal paths
  SimOutput* out = nullptr;  ///< the output that it takes at the next switch

  std::byte* content = nullptr;  ///< frame_bytes_max bytes that belong to the packet
  // For the sender: the data that on_departure() copies.
  const std::byte* source = nullptr;
  uint64_t ticket = 0;
};

/// A source and destination of packets: an endpoint's transport, or a Nexus's channel.
class SimPort {
 public:
  /// The host's interface begins to transmit `packet`, which this port has sent; its content does not change from now
  /// on. Called within send() if the interface is idle, and also if the host or its link is down and the packet is
  /// lost.
  virtual void on_departure(SimPacket& packet) = 0;
  /// A packet has arrived; the port owns it.
  virtual void on_arrival(SimPacket* packet) = 0;

 protected:
  ~SimPort() = default;
};

class TERN_API Network {
 public:
  /// `topology` has been checked.
  Network(const Topology& topology, uint64_t seed, size_t frame_bytes_max);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  EventQueue& events() { return events_; }
  uint32_t hosts() const;
  size_t frame_bytes_max() const;
  /// The rate of the host's cable.
  uint64_t link_bits_per_sec(uint32_t host) const;

  /// The round trip of full frames between the two hosts that are farthest from each other, without load and faults, in
  /// the network as it was built.
  Picoseconds longest_round_trip() const;

  /// A packet without mark and source. Its other fields have any value.
  SimPacket* take_packet();
  void give_packet(SimPacket* packet);
  /// Called by on_arrival() instead of give_packet() if the receive queue is full.
  void refuse(SimPacket* packet);

  /// `number`: the wanted number, below 65536, or 0 for one from 65536 on that the host has never had. Returns the
  /// number, or 0 if it is taken.
  uint32_t open_port(uint32_t host, SimPort* port, uint32_t number = 0);
  /// The port is not called any more. Its packets in the queue of the host's interface are dropped if their data is
  /// still in the port's memory (SimPacket::source); the others leave, as the packets of a closed socket do.
  void close_port(uint32_t host, uint32_t number);
  /// Appends the packet to the queue of its from_host's interface. Addresses, frame_bytes and content_bytes must be
  /// set, and the port open. The destination may be anything.
  void send(SimPacket* packet);

  /// While a host is down no packet leaves or arrives; packets in the queue of its interface are lost.
  void set_host_up(uint32_t host, bool up);
  void set_faults(const Faults& faults);
  /// For this direction only. False, here and below: there is no such cable.
  bool set_faults(Node from, Node to, const Faults& faults);
  /// For this direction only: frames of more than `frame_bytes_max` bytes are lost from now on. SIZE_MAX: no limit.
  bool set_frame_limit(Node from, Node to, size_t frame_bytes_max);
  /// For all cables between the two, in both directions. Routes over links that are up are computed at once; a frame
  /// that is on its way to a switch keeps its output there.
  bool set_link_up(Node a, Node b, bool up);
  void set_partition(uint32_t from_host, uint32_t to_host, bool is_cut);
  /// Puts the host behind a NAT (SimNat). It translates ports of endpoints only; packets arrive with the NAT's ports.
  void set_nat(uint32_t host, Picoseconds timeout);
  /// The host's NAT, if there is one, forgets all flows.
  void forget_flows(uint32_t host);
  /// Ends all faults, limits and partitions, and brings all links up. NATs stay.
  void heal();

  /// Called as `tap(packet, false)` when a host's interface begins to transmit, and `tap(packet, true)` before
  /// on_arrival(). Null: there is no tap.
  void set_tap(std::function<void(const SimPacket& packet, bool has_arrived)> tap);

  /// Of all that has happened in the network, and in which order.
  uint64_t trace_hash() const;
  const NetworkCounters& counters() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
  EventQueue& events_;  ///< of `impl_`; here because the time is read often
};

}  // namespace tern::sim
