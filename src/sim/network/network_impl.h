// The implementation of the simulated network (network.h).
// Sim layer, network part: knows base and wire only. One thread.
//
//   network.cc          the path of a frame, and the ports
//   network_build.cc    the outputs, cables and routes of a topology
//   network_faults.cc   the faults, and the calls that set them
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "sim/network/cable_faults.h"
#include "sim/network/nat.h"
#include "sim/network/network.h"
#include "sim/network/output.h"
#include "sim/network/packet_pool.h"
#include "sim/network/routes.h"

namespace tern::sim {

struct Network::Impl {
  /// Ports below are opened by number, for Nexuses. Ports from here on are for endpoints; each number is used once.
  static constexpr uint32_t kNamedPorts = 65536;

  // Odd multipliers with well spread bits, from splitmix64 and xxHash.
  static constexpr uint64_t kMix1 = 0x9e3779b97f4a7c15;
  static constexpr uint64_t kMix2 = 0xbf58476d1ce4e5b9;
  static constexpr uint64_t kMix3 = 0x94d049bb133111eb;
  static constexpr uint64_t kMix4 = 0xc2b2ae3d27d4eb4f;

  /// The events of a packet, for the trace. There is none for the arrival at a switch, because a departure, a mark or a
  /// drop follows it there.
  enum What : uint64_t { kDeparture, kArrival, kMark, kDuplicate, kCorrupt, kDrop };

  // Each function compiles to one load, because the order of the fields is that of the word.
  static uint64_t hosts_of(const SimPacket& packet) { return uint64_t{packet.to_host} << 32 | packet.from_host; }
  static uint64_t ports_of(const SimPacket& packet) { return uint64_t{packet.to_port} << 32 | packet.from_port; }

  struct Switch {
    SwitchOptions options;
    uint64_t occupied_bytes = 0;  ///< bytes of the buffer that the queues of the switch occupy
    uint64_t salt = 0;            ///< odd random number, so that switches choose among equal paths independently
  };
  struct Host {
    uint32_t interface = 0;  ///< the host's output
    uint32_t downlink = 0;   ///< the output of the host's switch to the host
    uint16_t at = 0;         ///< the host's switch
    bool is_up = true;
    std::vector<SimPort*> ports;                             ///< by number - kNamedPorts; null: closed
    std::vector<std::pair<uint32_t, SimPort*>> named_ports;  ///< the open ports below kNamedPorts, with their numbers
  };
  /// The fields of an output that not every frame needs.
  struct Cable {
    Node from, to;
    uint64_t bits_per_sec = 0;
    bool is_up = true;
    uint32_t frame_bytes_max = UINT32_MAX;        ///< longer frames are lost
    uint32_t frame_bytes_max_later = UINT32_MAX;  ///< frame_bytes_max from LinkOptions::frame_limit_from on
    Faults faults;
    std::unique_ptr<CableFaults> drawn_faults;  ///< made of `faults` and frame_bytes_max; null: no faults, no limit
  };

  Impl(const Topology& topology, uint64_t seed, size_t frame_bytes_max);

  // network_build.cc
  void add_cable(Node from, Node to, const LinkOptions& options);
  void limit_later(const LinkOptions& options);
  void compute_routes();
  Picoseconds compute_longest_round_trip() const;

  // network.cc, in the order of a frame's path: send() joins a queue or departs; on_switch() does so at each switch;
  // on_host() is the arrival.
  void send(SimPacket* packet);
  static void on_send(void* context, uint64_t argument);
  bool is_idle(const SimOutput& out) const { return !out.has_start && out.free_at <= events.now(); }
  void join(SimOutput& out, SimPacket* packet);
  void add_start(SimOutput& out);
  static void on_start(void* context, uint64_t argument);
  template <bool kIsFirstHop>
  void depart(SimOutput& out, SimPacket* packet);
  /// Counts a packet that leaves its host's interface, and tells its port.
  [[gnu::always_inline]] void release(SimPacket& packet) {
    counters.packets_sent++;
    SimPort* const port = find_port(packet.from_host, packet.from_port);
    if (port != nullptr) port->on_departure(packet);
  }
  [[gnu::always_inline]] void launch(SimOutput& out, SimPacket* packet, Picoseconds at, EventQueue::Run run);
  static void on_switch(void* context, uint64_t argument);
  bool admit(SimOutput& out, SimPacket& packet);
  static void on_host(void* context, uint64_t argument);
  void leave_nat(SimPacket& packet);
  bool enter_nat(SimPacket& packet);
  [[gnu::always_inline]] SimOutput* route(uint16_t at, const SimPacket& packet);
  void drop(SimPacket* packet, uint64_t& counter) {
    counter++;
    note(kDrop, *packet, nullptr);
    packets.give(packet);
  }

  // network_faults.cc
  void launch_into_faults(SimOutput& out, SimPacket* packet, Picoseconds at, EventQueue::Run run);
  void corrupt(SimPacket& packet);
  SimPacket* copy(const SimPacket& packet);
  void set_faults(size_t output, const Faults& faults);
  void set_frame_limit(size_t output, size_t frame_bytes_max);
  static void on_frame_limit(void* context, uint64_t output);
  void set_up(size_t output, bool up);
  void lose_queue(SimOutput& out);
  void update_open(size_t output);
  /// Calls change(output) for each cable from `from` to `to`. Returns false if there is no such cable.
  template <class Change>
  bool change_cables(Node from, Node to, const Change& change) {
    bool is_there = false;
    for (size_t output = 0; output < cables.size(); output++) {
      if (cables[output].from != from || cables[output].to != to) continue;
      change(output);
      is_there = true;
    }
    return is_there;
  }

  size_t index_of(const SimOutput& out) const { return static_cast<size_t>(&out - outputs.data()); }
  uint64_t wire_time(const SimOutput& out, uint32_t frame_bytes) const {
    const uint64_t bytes = wire_bytes(frame_bytes);
    if (out.ps_per_byte != 0) [[likely]]
      return bytes * out.ps_per_byte;
    return bytes * 8'000'000'000'000 / cables[index_of(out)].bits_per_sec;
  }
  SimPort* find_port(uint32_t host, uint32_t number) const {
    const Host& at = hosts[host];
    if (number >= kNamedPorts) [[likely]]
      return number - kNamedPorts < at.ports.size() ? at.ports[number - kNamedPorts] : nullptr;
    for (const auto& [named, port] : at.named_ports) {
      if (named == number) return port;
    }
    return nullptr;
  }

  /// Adds an event of `packet` to the trace hash. `at`: the output, or null for a drop.
  [[gnu::always_inline]] void note(What what, const SimPacket& packet, const SimOutput* at) {
    const uint64_t where = at == nullptr ? 0 : 1 + index_of(*at);
    mix(events.now() * kMix1 ^ hosts_of(packet) * kMix2 ^ ports_of(packet) * kMix3 ^
        (uint64_t{packet.frame_bytes} << 40 | where << 8 | what) * kMix4);
  }
  void mix(uint64_t word) { hash = (std::rotl(hash, 23) ^ word) * kMix1; }

  EventQueue events;
  std::mt19937_64 random;
  PacketPool packets;
  std::vector<Host> hosts;
  std::vector<Switch> switches;
  std::vector<SimOutput> outputs;
  std::vector<Cable> cables;  ///< cables[i] belongs to outputs[i]
  Routes routes;
  Picoseconds longest_round_trip = 0;
  bool is_healed = false;           ///< heal() was called: later frame limits of the topology never begin
  std::set<uint64_t> partitions;    ///< pairs of hosts between which packets are lost, as hosts_of() gives them
  std::map<uint32_t, SimNat> nats;  ///< by host
  uint64_t hash = 0;
  std::function<void(const SimPacket&, bool)> tap;
  NetworkCounters counters;
};

}  // namespace tern::sim
