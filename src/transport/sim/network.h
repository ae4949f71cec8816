// The simulated network: frames through host interfaces, cables and switches, in virtual time.
// Transport room. One thread; knows neither endpoints nor what a packet says.
//
// A cable's direction is an output with a queue: a host's interface, or a port of a switch. A frame's transmission
// begins when those before it are over. Cut-through: a switch has a frame in the output's queue when the frame's
// beginning has crossed the cable and the switch, later only by as much as a faster output would underrun. A host has
// it when its last bit has arrived. The shared buffer counts what waits in queues: a frame leaves it when its
// transmission begins, and one that finds its output idle never takes of it.
//
// Packets from a host to itself take the way through its switch like all others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include <tern/detail/export.h>
#include <tern/sim/network.h>

#include "transport/sim/event_queue.h"
#include "wire/header.h"

namespace tern::transport {

class SimPort;
struct SimOutput;

/// A frame on its way. Owned by the network from send() until on_arrival(), by whoever has it otherwise.
struct SimPacket {
  SimPacket* next = nullptr;  ///< in whatever list it is
  uint32_t from_host = 0, to_host = 0;
  uint32_t from_port = 0, to_port = 0;
  uint32_t frame_bytes = 0;    ///< headers included, preamble and checksum not
  uint32_t content_bytes = 0;  ///< of `content`
  bool is_marked = false;      ///< ECN CE
  // The network's own.
  uint16_t epoch = 0;        ///< of the cable that it is on
  uint32_t flow = 0;         ///< a hash of its addresses: chooses among equal paths
  SimOutput* out = nullptr;  ///< where it goes from the switch ahead

  std::byte* content = nullptr;  ///< frame_bytes_max of room, the packet's own
  // For the sender: what on_departure() copies.
  const std::byte* source = nullptr;
  uint64_t ticket = 0;
};

/// Where packets come from and go to: an endpoint's transport, or a Nexus's channel.
class SimPort {
 public:
  /// The host's interface begins to transmit `packet`, which it had from this port: its content is fixed from now on.
  /// Within send() if nothing was before it. Also where the host or its link is down, and the packet goes nowhere.
  virtual void on_departure(SimPacket& packet) = 0;
  /// A packet has arrived; the port owns it.
  virtual void on_arrival(SimPacket* packet) = 0;

 protected:
  ~SimPort() = default;
};

class TERN_API Network {
 public:
  /// `topology` has been checked.
  Network(const sim::Topology& topology, uint64_t seed, size_t frame_bytes_max);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  EventQueue& events() { return events_; }
  uint32_t hosts() const;
  size_t frame_bytes_max() const;
  /// Of the host's cable.
  uint64_t link_bits_per_sec(uint32_t host) const;

  /// Between the two hosts that are farthest from each other, full frames, without load and faults; as built.
  Picoseconds longest_round_trip() const;

  /// Not marked, without a source; the rest is as somebody has left it.
  SimPacket* take_packet();
  void give_packet(SimPacket* packet);
  /// Instead of give_packet(), from within on_arrival(): the receive queue is full.
  void refuse(SimPacket* packet);

  /// `number`: the wanted one, below 65536, or 0: one from there on that the host has never had. The number, or 0: it
  /// is taken.
  uint32_t open_port(uint32_t host, SimPort* port, uint32_t number = 0);
  /// The port is not called any more. What the host's interface has from it and has not begun to transmit is dropped,
  /// if the port has the memory; else it leaves, as a socket's packets do when it is closed.
  void close_port(uint32_t host, uint32_t number);
  /// Puts it at the end of the queue of its from_host's interface. Addresses, frame_bytes and content_bytes are set;
  /// the port is open. Where it goes to is not trusted.
  void send(SimPacket* packet);

  /// Down: nothing leaves or arrives. What its interface has departs into nothing.
  void set_host_up(uint32_t host, bool up);
  void set_faults(const sim::Faults& faults);
  /// Of this direction only. False, here and below: there is no such cable.
  bool set_faults(sim::Node from, sim::Node to, const sim::Faults& faults);
  /// Likewise: frames of more than `frame_bytes_max` bytes are lost there from now on. SIZE_MAX: none are.
  bool set_frame_limit(sim::Node from, sim::Node to, size_t frame_bytes_max);
  /// All cables between the two. Routes over links that are up are computed at once; a frame that is on its way to a
  /// switch keeps the output that it was to take there.
  bool set_link_up(sim::Node a, sim::Node b, bool up);
  void set_partition(uint32_t from_host, uint32_t to_host, bool is_cut);
  /// The host is behind a NAT (SimNat) from now on. Ports of endpoints only; what passes has the NAT's ports when it
  /// arrives.
  void set_nat(uint32_t host, Picoseconds timeout);
  /// Its NAT, if there is one, forgets all flows.
  void forget_flows(uint32_t host);
  /// No faults, no limits, no partitions, all links up. NATs stay.
  void heal();

  /// Called as `tap(packet, false)` when a host's interface begins to transmit, and `tap(packet, true)` before
  /// on_arrival(). Null: none.
  void set_tap(std::function<void(const SimPacket& packet, bool has_arrived)> tap);

  /// Mixes a word of what has happened into the hash.
  void trace(uint64_t word);
  uint64_t trace_hash() const;
  const sim::NetworkCounters& counters() const;
  /// Bytes in the output queue of a switch towards `host` now: for tests and pictures.
  uint64_t queue_bytes_towards(uint32_t host) const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
  EventQueue& events_;  ///< of `impl_`; here, for everybody asks what time it is
};

}  // namespace tern::transport
