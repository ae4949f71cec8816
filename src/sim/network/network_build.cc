// The outputs, cables and routes that a topology needs. See network_impl.h.
#include <algorithm>

#include "sim/network/network_impl.h"

namespace tern::sim {

namespace {

uint64_t picoseconds(Duration duration) { return static_cast<uint64_t>(duration.count()) * kPicosecondsPerNs; }

}  // namespace

Network::Impl::Impl(const Topology& topology, uint64_t seed, size_t frame_bytes_max)
    : random(seed), packets(frame_bytes_max), hosts(topology.hosts()) {
  for (const SwitchOptions& options : topology.switches()) switches.push_back({options, 0, random() | 1});
  outputs.reserve(2 * topology.links().size());
  for (const Topology::Link& link : topology.links()) {
    add_cable(link.a, link.b, link.options);
    if (link.options.frame_limit_way != FrameLimitWay::kBack) limit_later(link.options);
    add_cable(link.b, link.a, link.options);
    if (link.options.frame_limit_way != FrameLimitWay::kThere) limit_later(link.options);
  }
  compute_routes();
  longest_round_trip = compute_longest_round_trip();
}

void Network::Impl::add_cable(Node from, Node to, const LinkOptions& options) {
  constexpr uint64_t kPicobitsPerByte = 8'000'000'000'000;
  const auto index = static_cast<uint32_t>(outputs.size());
  SimOutput& out = outputs.emplace_back();
  out.network = this;
  out.hop = picoseconds(options.delay);
  if (kPicobitsPerByte % options.bits_per_sec == 0) {
    out.ps_per_byte = static_cast<uint32_t>(kPicobitsPerByte / options.bits_per_sec);
  }
  if (from.kind == Node::Kind::kSwitch) {
    out.from = static_cast<uint16_t>(from.index);
  } else {
    hosts[from.index].interface = index;
    hosts[from.index].at = static_cast<uint16_t>(to.index);
  }
  if (to.kind == Node::Kind::kSwitch) {
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
/// Schedules the frame limit of the cable that was added last. Does nothing if `options` has no limit.
void Network::Impl::limit_later(const LinkOptions& options) {
  if (options.frame_bytes_max > UINT32_MAX - 1) return;
  cables.back().frame_bytes_max_later = static_cast<uint32_t>(options.frame_bytes_max);
  events.add(picoseconds(options.frame_limit_from), &Impl::on_frame_limit, this, cables.size() - 1);
}

void Network::Impl::compute_routes() {
  std::vector<Routes::Edge> edges;
  for (size_t i = 0; i < cables.size(); i++) {
    const Cable& cable = cables[i];
    if (!cable.is_up || cable.from.kind != cable.to.kind) continue;
    edges.push_back({cable.from.index, cable.to.index, static_cast<uint32_t>(i)});
  }
  routes.compute(static_cast<uint32_t>(switches.size()), edges);
}

Picoseconds Network::Impl::compute_longest_round_trip() const {
  const auto frame_bytes = static_cast<uint32_t>(packets.content_bytes_max());
  // The longest times between each switch and its hosts: from a host, to a host, and the second longest to a host. 0:
  // there is no such host. The two directions of a cable differ only by the latency of the switch, which is part of the
  // direction to the switch.
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

Network::Network(const Topology& topology, uint64_t seed, size_t frame_bytes_max)
    : impl_(std::make_unique<Impl>(topology, seed, frame_bytes_max)), events_(impl_->events) {}
Network::~Network() = default;

}  // namespace tern::sim
