#include "transport/sim/network.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "transport/sim/cable_faults.h"
#include "transport/sim/nat.h"
#include "transport/sim/output.h"
#include "transport/sim/packet_pool.h"
#include "transport/sim/routes.h"

namespace tern::transport {

namespace {

constexpr uint32_t kNamedPorts = 65536;  ///< below: wanted numbers; from here on numbers that are used once

// Odd constants with well spread bits (of splitmix64, and of xxHash).
constexpr uint64_t kMix1 = 0x9e3779b97f4a7c15;
constexpr uint64_t kMix2 = 0xbf58476d1ce4e5b9;
constexpr uint64_t kMix3 = 0x94d049bb133111eb;
constexpr uint64_t kMix4 = 0xc2b2ae3d27d4eb4f;

/// What a packet met, for the trace. Its arrival at a switch shows in what becomes of it there.
enum What : uint64_t { kDeparture, kArrival, kMark, kDuplicate, kCorrupt, kDrop };

uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 32)) * kMix2;
  x = (x ^ (x >> 29)) * kMix3;
  return x ^ (x >> 32);
}
// In the order of the fields: one load each.
uint64_t hosts_of(const SimPacket& packet) { return uint64_t{packet.to_host} << 32 | packet.from_host; }
uint64_t ports_of(const SimPacket& packet) { return uint64_t{packet.to_port} << 32 | packet.from_port; }
uint64_t picoseconds(Duration duration) { return static_cast<uint64_t>(duration.count()) * kPicosecondsPerNs; }

}  // namespace

struct Network::Impl {
  struct Switch {
    sim::SwitchOptions options;
    uint64_t occupied_bytes = 0;  ///< by all its queues
    uint64_t salt = 0;            ///< odd: no two switches choose alike
  };
  struct Host {
    uint32_t interface = 0;  ///< its output
    uint32_t downlink = 0;   ///< its switch's output towards it
    uint16_t at = 0;         ///< its switch
    bool is_up = true;
    std::vector<SimPort*> ports;  ///< from kNamedPorts on; null: closed
    std::vector<std::pair<uint32_t, SimPort*>> named_ports;
  };
  /// What is not needed for every frame.
  struct Cable {
    sim::Node from, to;
    uint64_t bits_per_sec = 0;
    bool is_up = true;
    uint32_t frame_bytes_max = UINT32_MAX;        ///< longer frames are lost
    uint32_t frame_bytes_max_later = UINT32_MAX;  ///< from the time on that the topology says
    sim::Faults faults;
    std::unique_ptr<CableFaults> drawn_faults;  ///< of `faults` and the limit; null: nothing goes wrong
  };

  Impl(const sim::Topology& topology, uint64_t seed, size_t frame_bytes_max)
      : random(seed), packets(frame_bytes_max), hosts(topology.hosts()) {
    for (const sim::SwitchOptions& options : topology.switches()) switches.push_back({options, 0, random() | 1});
    outputs.reserve(2 * topology.links().size());
    for (const sim::Topology::Link& link : topology.links()) {
      add_cable(link.a, link.b, link.options);
      if (link.options.frame_limit_way != sim::FrameLimitWay::kBack) limit_later(link.options);
      add_cable(link.b, link.a, link.options);
      if (link.options.frame_limit_way != sim::FrameLimitWay::kThere) limit_later(link.options);
    }
    compute_routes();
    longest_round_trip = compute_longest_round_trip();
  }

  Picoseconds compute_longest_round_trip() const {
    const auto frame_bytes = static_cast<uint32_t>(packets.content_bytes_max());
    // Of the two farthest hosts at each switch, to it or from it; 0: there is none. Cables are alike in both
    // directions, but for the switch's own time.
    struct Ends {
      Picoseconds in = 0, out = 0, out_second = 0;
    };
    std::vector<Ends> ends(switches.size());
    for (const Host& host : hosts) {
      const SimOutput& up = outputs[host.interface];
      const SimOutput& down = outputs[host.downlink];
      const Picoseconds out = down.hop + wire_time(down, frame_bytes);
      Ends& at = ends[host.at];
      at.in = std::max(at.in, up.hop + wire_time(up, frame_bytes));
      at.out_second = std::max(at.out_second, std::min(at.out, out));
      at.out = std::max(at.out, out);
    }
    Picoseconds longest = 0;
    for (uint32_t from = 0; from < switches.size(); from++) {
      for (uint32_t to = 0; to < switches.size() && ends[from].in != 0; to++) {
        const Picoseconds out = from == to ? ends[to].out_second : ends[to].out;
        if (out == 0) continue;
        Picoseconds way = ends[from].in + out;
        for (uint32_t at = from; at != to; at = outputs[routes.outputs(at, to).front()].to) {
          way += outputs[routes.outputs(at, to).front()].hop;
        }
        longest = std::max(longest, way);
      }
    }
    return 2 * longest;
  }

  void add_cable(sim::Node from, sim::Node to, const sim::LinkOptions& options) {
    constexpr uint64_t kPicobitsPerByte = 8'000'000'000'000;
    const auto index = static_cast<uint32_t>(outputs.size());
    SimOutput& out = outputs.emplace_back();
    out.network = this;
    out.hop = picoseconds(options.delay);
    if (kPicobitsPerByte % options.bits_per_sec == 0) {
      out.ps_per_byte = static_cast<uint32_t>(kPicobitsPerByte / options.bits_per_sec);
    }
    if (from.kind == sim::Node::Kind::kSwitch) {
      out.from = static_cast<uint16_t>(from.index);
    } else {
      hosts[from.index].interface = index;
      hosts[from.index].at = static_cast<uint16_t>(to.index);
    }
    if (to.kind == sim::Node::Kind::kSwitch) {
      out.to = static_cast<uint16_t>(to.index);
      out.hop += picoseconds(switches[to.index].options.latency);
    } else {
      hosts[to.index].downlink = index;
    }
    Cable& cable = cables.emplace_back();
    cable.from = from;
    cable.to = to;
    cable.bits_per_sec = options.bits_per_sec;
  }
  /// The cable that was added last.
  void limit_later(const sim::LinkOptions& options) {
    if (options.frame_bytes_max > UINT32_MAX - 1) return;
    cables.back().frame_bytes_max_later = static_cast<uint32_t>(options.frame_bytes_max);
    events.add(picoseconds(options.frame_limit_from), &Impl::on_frame_limit, this, cables.size() - 1);
  }

  // The way of a frame: send, join a queue or depart, arrive at a switch, and so on, arrive at a host.

  void send(SimPacket* packet) {
    CHECK(packet->content_bytes, <=, packets.content_bytes_max());
    packet->flow = static_cast<uint32_t>(mixed(hosts_of(*packet) * kMix1 ^ ports_of(*packet) * kMix4));
    SimOutput& out = outputs[hosts[packet->from_host].interface];
    if (is_idle(out)) {
      depart(out, packet);
    } else {
      join(out, packet);
    }
  }

  bool is_idle(const SimOutput& out) const { return !out.has_start && out.free_at <= events.now(); }

  void join(SimOutput& out, SimPacket* packet) {
    out.push(packet);
    if (!out.has_start) add_start(out);
  }

  void add_start(SimOutput& out) {
    out.has_start = true;
    events.add(out.free_at, &Impl::on_start, &out, 0);
  }

  /// The output is free for the first frame of its queue, unless close_port() took what was there.
  static void on_start(void* context, uint64_t /*argument*/) {
    SimOutput& out = *static_cast<SimOutput*>(context);
    Impl& network = *out.network;
    out.has_start = false;
    if (out.first == nullptr) return;
    SimPacket* const packet = out.pop();
    if (out.first != nullptr) __builtin_prefetch(out.first);
    if (out.from != SimOutput::kHost) {
      out.queue_bytes -= packet->frame_bytes;
      network.switches[out.from].occupied_bytes -= packet->frame_bytes;
    }
    network.depart(out, packet);
    if (out.first != nullptr) network.add_start(out);
  }

  /// Now the transmission begins.
  void depart(SimOutput& out, SimPacket* packet) {
    const uint64_t wire = wire_time(out, packet->frame_bytes);
    out.free_at = events.now() + wire;
    const bool is_first_hop = out.from == SimOutput::kHost;
    if (is_first_hop) {
      counters.packets_sent++;
      SimPort* const port = find_port(packet->from_host, packet->from_port);
      if (port != nullptr) port->on_departure(*packet);
    }
    note(kDeparture, *packet, &out);
    if (is_first_hop && tap) [[unlikely]]
      tap(*packet, false);
    if (!out.is_open) return drop(packet, counters.dropped_fault);
    packet->epoch = out.epoch;
    if (out.to == SimOutput::kHost) {
      __builtin_prefetch(packet->content);
      return launch(out, packet, out.free_at + out.hop, &Impl::on_host);
    }
    if (is_first_hop && packet->to_host >= hosts.size()) return drop(packet, counters.dropped_no_receiver);
    SimOutput* const next = route(out.to, *packet);
    if (next == nullptr) return drop(packet, counters.dropped_fault);
    packet->out = next;
    const uint64_t wire_next = wire_time(*next, packet->frame_bytes);
    const uint64_t underrun = wire > wire_next ? wire - wire_next : 0;
    launch(out, packet, events.now() + out.hop + underrun, &Impl::on_switch);
  }

  void launch(SimOutput& out, SimPacket* packet, Picoseconds at, EventQueue::Run run) {
    if (out.faults != nullptr) [[unlikely]]
      return launch_into_faults(out, packet, at, run);
    events.add(at, run, packet, reinterpret_cast<uint64_t>(&out));
  }

  static void on_switch(void* context, uint64_t argument) {
    SimPacket* const packet = static_cast<SimPacket*>(context);
    const SimOutput& in = *reinterpret_cast<const SimOutput*>(argument);
    Impl& network = *in.network;
    if (packet->epoch != in.epoch) return network.drop(packet, network.counters.dropped_fault);
    SimOutput& out = *packet->out;
    if (network.is_idle(out)) return network.depart(out, packet);
    if (network.admit(out, *packet)) return network.join(out, packet);
    network.drop(packet, network.counters.dropped_buffer_full);
  }

  /// Whether the switch has room for it in the output's queue; then it is counted there, and marked if it must be.
  bool admit(SimOutput& out, SimPacket& packet) {
    Switch& at = switches[out.from];
    const uint64_t bytes = packet.frame_bytes;
    const uint64_t buffer = at.options.buffer_bytes;
    const uint64_t queue = out.queue_bytes + bytes;
    if (at.occupied_bytes + bytes > buffer) return false;
    if (static_cast<double>(queue) > at.options.alpha * static_cast<double>(buffer - at.occupied_bytes)) return false;
    if (out.queue_bytes > at.options.ecn_threshold_bytes) {
      packet.is_marked = true;
      counters.packets_marked++;
      note(kMark, packet, &out);
    }
    at.occupied_bytes += bytes;
    out.queue_bytes = static_cast<uint32_t>(queue);
    counters.queue_bytes_max = std::max(counters.queue_bytes_max, queue);
    return true;
  }

  static void on_host(void* context, uint64_t argument) {
    SimPacket* const packet = static_cast<SimPacket*>(context);
    const SimOutput& in = *reinterpret_cast<const SimOutput*>(argument);
    Impl& network = *in.network;
    sim::NetworkCounters& counters = network.counters;
    const bool is_cut = !network.partitions.empty() && network.partitions.contains(hosts_of(*packet));
    if (packet->epoch != in.epoch || is_cut) return network.drop(packet, counters.dropped_fault);
    if (!network.nats.empty() && !network.pass_nats(*packet)) return network.drop(packet, counters.dropped_nat);
    SimPort* const port = network.hosts[packet->to_host].is_up ? network.find_port(packet->to_host, packet->to_port)  //
                                                               : nullptr;
    if (port == nullptr) return network.drop(packet, counters.dropped_no_receiver);
    network.note(kArrival, *packet, &in);
    counters.packets_delivered++;
    if (network.tap) [[unlikely]]
      network.tap(*packet, true);
    port->on_arrival(packet);
  }

  /// Ports of endpoints only. False: a NAT knows no such flow.
  bool pass_nats(SimPacket& packet) {
    const auto from = nats.find(packet.from_host), to = nats.find(packet.to_host);
    if (from != nats.end() && packet.from_port >= kNamedPorts) {
      packet.from_port = from->second.outside(packet.from_port, packet.to_host, packet.to_port, events.now());
    }
    if (to == nats.end() || packet.to_port < kNamedPorts) return true;
    packet.to_port = to->second.inside(packet.to_port, packet.from_host, packet.from_port, events.now());
    return packet.to_port != 0;
  }

  void drop(SimPacket* packet, uint64_t& counter) {
    counter++;
    note(kDrop, *packet, nullptr);
    packets.give(packet);
  }

  uint64_t wire_time(const SimOutput& out, uint32_t frame_bytes) const {
    const uint64_t bytes = wire_bytes(frame_bytes);
    if (out.ps_per_byte != 0) [[likely]]
      return bytes * out.ps_per_byte;
    return bytes * 8'000'000'000'000 / cables[index_of(out)].bits_per_sec;
  }
  size_t index_of(const SimOutput& out) const { return static_cast<size_t>(&out - outputs.data()); }

  SimOutput* route(uint16_t at, const SimPacket& packet) {
    const Host& to = hosts[packet.to_host];
    if (to.at == at) return &outputs[to.downlink];
    const std::span<const uint32_t> ways = routes.outputs(at, to.at);
    if (ways.size() <= 1) return ways.empty() ? nullptr : &outputs[ways.front()];
    const auto chosen = static_cast<uint32_t>(packet.flow * switches[at].salt >> 32);
    return &outputs[ways[chosen * ways.size() >> 32]];
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

  // Faults.

  void launch_into_faults(SimOutput& out, SimPacket* packet, Picoseconds at, EventQueue::Run run) {
    CableFaults& faults = *out.faults;
    const auto argument = reinterpret_cast<uint64_t>(&out);
    if (packet->frame_bytes > faults.frame_bytes_max) return drop(packet, counters.dropped_too_long);
    if (faults.drop.happens(random)) return drop(packet, counters.dropped_fault);
    if (packet->content_bytes != 0 && faults.corrupt.happens(random)) {
      note(kCorrupt, *packet, &out);
      corrupt(*packet);
    }
    if (faults.duplicate.happens(random)) {
      note(kDuplicate, *packet, &out);
      events.add(at + faults.draw_delay(random), run, copy(*packet), argument);
    }
    if (faults.reorder.happens(random)) return events.add(at + faults.draw_delay(random), run, packet, argument);
    if (faults.delay.happens(random)) faults.held_until = std::max(faults.held_until, at + faults.draw_delay(random));
    events.add(std::max(at, faults.held_until), run, packet, argument);
  }

  /// One to four different bits. Each is in the header (wire::kHeaderBytes) as likely as not, although that is the
  /// smaller part: it is the more interesting one.
  void corrupt(SimPacket& packet) {
    const uint64_t bits = uint64_t{packet.content_bytes} * 8;
    std::array<uint64_t, 4> flipped{};
    const size_t flips = 1 + random() % std::min<uint64_t>(4, bits);
    for (size_t i = 0; i < flips;) {
      const uint64_t within = random() % 2 == 0 ? std::min<uint64_t>(bits, wire::kHeaderBytes * 8) : bits;
      flipped[i] = random() % within;
      if (std::find(flipped.begin(), flipped.begin() + i, flipped[i]) != flipped.begin() + i) continue;
      packet.content[flipped[i] / 8] ^= std::byte{1} << static_cast<int>(flipped[i] % 8);
      i++;
    }
  }

  SimPacket* copy(const SimPacket& packet) {
    SimPacket* const other = packets.take();
    std::byte* const content = other->content;
    *other = packet;
    other->content = content;
    std::memcpy(content, packet.content, packet.content_bytes);
    return other;
  }

  void set_faults(size_t output, const sim::Faults& faults) {
    Cable& cable = cables[output];
    cable.faults = faults;
    auto cable_faults = std::make_unique<CableFaults>(faults);
    cable_faults->frame_bytes_max = cable.frame_bytes_max;
    if (cable_faults->is_nothing()) cable_faults.reset();
    outputs[output].faults = cable_faults.get();
    cable.drawn_faults = std::move(cable_faults);
  }

  void set_frame_limit(size_t output, size_t frame_bytes_max) {
    cables[output].frame_bytes_max = static_cast<uint32_t>(std::min<size_t>(frame_bytes_max, UINT32_MAX));
    set_faults(output, cables[output].faults);
  }
  /// Of a topology: the argument is the output.
  static void on_frame_limit(void* context, uint64_t output) {
    Impl& network = *static_cast<Impl*>(context);
    if (!network.is_healed) network.set_frame_limit(output, network.cables[output].frame_bytes_max_later);
  }

  void set_up(size_t output, bool up) {
    Cable& cable = cables[output];
    if (cable.is_up && !up) outputs[output].epoch++;
    cable.is_up = up;
    update_open(output);
  }
  void update_open(size_t output) {
    const sim::Node from = cables[output].from;
    outputs[output].is_open =
        cables[output].is_up && (from.kind == sim::Node::Kind::kSwitch || hosts[from.index].is_up);
  }

  void compute_routes() {
    std::vector<Routes::Edge> edges;
    for (size_t i = 0; i < cables.size(); i++) {
      const Cable& cable = cables[i];
      if (!cable.is_up || cable.from.kind != cable.to.kind) continue;
      edges.push_back({cable.from.index, cable.to.index, static_cast<uint32_t>(i)});
    }
    routes.compute(static_cast<uint32_t>(switches.size()), edges);
  }

  // The trace.

  void note(What what, const SimPacket& packet, const SimOutput* at) {
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
  std::vector<Cable> cables;  ///< by output
  Routes routes;
  Picoseconds longest_round_trip = 0;
  bool is_healed = false;           ///< what the topology says of later does not happen any more
  std::set<uint64_t> partitions;    ///< hosts_of() their packets
  std::map<uint32_t, SimNat> nats;  ///< by host
  uint64_t hash = 0;
  std::function<void(const SimPacket&, bool)> tap;
  sim::NetworkCounters counters;
};

Network::Network(const sim::Topology& topology, uint64_t seed, size_t frame_bytes_max)
    : impl_(std::make_unique<Impl>(topology, seed, frame_bytes_max)), events_(impl_->events) {}
Network::~Network() = default;

uint32_t Network::hosts() const { return static_cast<uint32_t>(impl_->hosts.size()); }
size_t Network::frame_bytes_max() const { return impl_->packets.content_bytes_max(); }
Picoseconds Network::longest_round_trip() const { return impl_->longest_round_trip; }
uint64_t Network::link_bits_per_sec(uint32_t host) const {
  return impl_->cables[impl_->hosts[host].interface].bits_per_sec;
}

SimPacket* Network::take_packet() { return impl_->packets.take(); }
void Network::give_packet(SimPacket* packet) { impl_->packets.give(packet); }
void Network::refuse(SimPacket* packet) {
  impl_->counters.packets_delivered--;
  impl_->drop(packet, impl_->counters.dropped_receive_full);
}

uint32_t Network::open_port(uint32_t host, SimPort* port, uint32_t number) {
  Impl::Host& at = impl_->hosts[host];
  if (number == 0) {
    at.ports.push_back(port);
    return static_cast<uint32_t>(kNamedPorts + at.ports.size() - 1);
  }
  if (number >= kNamedPorts || impl_->find_port(host, number) != nullptr) return 0;
  at.named_ports.emplace_back(number, port);
  return number;
}

void Network::close_port(uint32_t host, uint32_t number) {
  Impl::Host& at = impl_->hosts[host];
  if (number >= kNamedPorts) {
    at.ports[number - kNamedPorts] = nullptr;
  } else {
    std::erase_if(at.named_ports, [number](const auto& named) { return named.first == number; });
  }
  SimOutput& out = impl_->outputs[at.interface];
  SimPacket* waiting = std::exchange(out.first, nullptr);
  while (waiting != nullptr) {
    SimPacket* const packet = std::exchange(waiting, waiting->next);
    if (packet->from_port == number && packet->source != nullptr) {
      impl_->note(kDrop, *packet, &out);
      impl_->packets.give(packet);
    } else {
      out.push(packet);
    }
  }
}

void Network::send(SimPacket* packet) { impl_->send(packet); }

void Network::set_host_up(uint32_t host, bool up) {
  impl_->hosts[host].is_up = up;
  impl_->update_open(impl_->hosts[host].interface);
}

void Network::set_faults(const sim::Faults& faults) {
  for (size_t i = 0; i < impl_->cables.size(); i++) impl_->set_faults(i, faults);
}

bool Network::set_faults(sim::Node from, sim::Node to, const sim::Faults& faults) {
  bool is_there = false;
  for (size_t i = 0; i < impl_->cables.size(); i++) {
    if (impl_->cables[i].from != from || impl_->cables[i].to != to) continue;
    impl_->set_faults(i, faults);
    is_there = true;
  }
  return is_there;
}

bool Network::set_frame_limit(sim::Node from, sim::Node to, size_t frame_bytes_max) {
  bool is_there = false;
  for (size_t i = 0; i < impl_->cables.size(); i++) {
    if (impl_->cables[i].from != from || impl_->cables[i].to != to) continue;
    impl_->set_frame_limit(i, frame_bytes_max);
    is_there = true;
  }
  return is_there;
}

bool Network::set_link_up(sim::Node a, sim::Node b, bool up) {
  bool is_there = false;
  for (size_t i = 0; i < impl_->cables.size(); i++) {
    const Impl::Cable& cable = impl_->cables[i];
    if (!(cable.from == a && cable.to == b) && !(cable.from == b && cable.to == a)) continue;
    impl_->set_up(i, up);
    is_there = true;
  }
  if (is_there) impl_->compute_routes();
  return is_there;
}

void Network::set_partition(uint32_t from_host, uint32_t to_host, bool is_cut) {
  const uint64_t pair = uint64_t{to_host} << 32 | from_host;
  if (is_cut) {
    impl_->partitions.insert(pair);
  } else {
    impl_->partitions.erase(pair);
  }
}

void Network::set_nat(uint32_t host, Picoseconds timeout) { impl_->nats.insert_or_assign(host, SimNat(timeout)); }

void Network::forget_flows(uint32_t host) {
  if (const auto nat = impl_->nats.find(host); nat != impl_->nats.end()) nat->second.forget();
}

void Network::heal() {
  impl_->partitions.clear();
  impl_->is_healed = true;
  for (size_t i = 0; i < impl_->cables.size(); i++) {
    impl_->set_faults(i, {});
    impl_->set_frame_limit(i, SIZE_MAX);
    impl_->set_up(i, true);
  }
  impl_->compute_routes();
}

void Network::set_tap(std::function<void(const SimPacket&, bool)> tap) { impl_->tap = std::move(tap); }
void Network::trace(uint64_t word) { impl_->mix(word); }
uint64_t Network::trace_hash() const { return impl_->hash; }
const sim::NetworkCounters& Network::counters() const { return impl_->counters; }
uint64_t Network::queue_bytes_towards(uint32_t host) const {
  return impl_->outputs[impl_->hosts[host].downlink].queue_bytes;
}

}  // namespace tern::transport
