// The simulated network: frames through host interfaces, cables and switches, in virtual time.
// Transport room. One thread; knows neither endpoints nor what a packet says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <tern/sim/network.h>

#include "transport/sim/event_queue.h"
#include "wire/header.h"

namespace tern::transport {

class SimPort;

/// A frame on its way. Owned by the network from send() until on_arrival(), by whoever has it otherwise.
struct SimPacket {
  SimPacket* next = nullptr;  ///< in whatever list it is
  uint32_t from_host = 0, to_host = 0;
  uint32_t from_port = 0, to_port = 0;
  uint32_t frame_bytes = 0;    ///< headers included, preamble and checksum not
  uint32_t content_bytes = 0;  ///< of `content`
  bool is_marked = false;      ///< ECN CE
  // For the sender: what on_departure() copies.
  const std::byte* source = nullptr;
  uint64_t ticket = 0;
  std::byte* content = nullptr;  ///< frame_bytes_max of room, the packet's own
};

/// Where packets come from and go to: an endpoint's transport, or a Nexus's channel.
class SimPort {
 public:
  /// The host's interface begins to transmit `packet`, which it had from this port: its content is fixed from now on.
  virtual void on_departure(SimPacket& packet) = 0;
  /// A packet has arrived; the port owns it.
  virtual void on_arrival(SimPacket* packet) = 0;

 protected:
  ~SimPort() = default;
};

class Network {
 public:
  /// `topology` has been checked.
  Network(const sim::Topology& topology, uint64_t seed, size_t frame_bytes_max);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  EventQueue& events();
  uint32_t hosts() const;
  size_t frame_bytes_max() const;
  /// Of the host's cable.
  uint64_t link_bits_per_sec(uint32_t host) const;

  SimPacket* take_packet();
  void give_packet(SimPacket* packet);

  /// `number`: the wanted one, or 0: one that the host has never had. The number, or 0: it is taken.
  uint32_t open_port(uint32_t host, SimPort* port, uint32_t number = 0);
  /// What the host's interface has from it and has not begun to transmit is dropped; the port is not called any more.
  void close_port(uint32_t host, uint32_t number);
  /// Puts it at the end of the queue of its from_host's interface. Addresses, frame_bytes and content_bytes are set.
  void send(SimPacket* packet);

  /// By a port's on_arrival(): its receive queue is full. Counts it and takes it back.
  void drop_at_receiver(SimPacket* packet);

  /// Down: nothing leaves or arrives.
  void set_host_up(uint32_t host, bool up);
  void set_faults(const sim::Faults& faults);
  bool set_faults(sim::Node from, sim::Node to, const sim::Faults& faults);
  bool set_link_up(sim::Node a, sim::Node b, bool up);
  void set_partition(uint32_t from_host, uint32_t to_host, bool is_cut);
  /// No faults, no partitions, all links up.
  void heal();

  /// Mixes a word of what has happened into the hash.
  void trace(uint64_t word);
  uint64_t trace_hash() const;
  const sim::NetworkCounters& counters() const;
  /// Bytes in the output queue of a switch towards `host` now: for tests and pictures.
  uint64_t queue_bytes_towards(uint32_t host) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tern::transport
