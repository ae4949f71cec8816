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

namespace {

/// Finds the longest time of a full frame from a host to another one, by the rule of Impl::depart(): each cable and
/// switch takes its delay. A cable also takes the time by which its transmission is longer than that of the next one,
/// and the last cable its whole transmission.
class LongestWays {
 public:
  explicit LongestWays(const Network::Impl& network)
      : network_(network),
        frame_bytes_(static_cast<uint32_t>(network.packets.content_bytes_max())),
        ends_(network.switches.size()) {
    for (const Network::Impl::Host& host : network.hosts) add(host);
  }

  /// The longest time from any host to another one. 0: there is one host only.
  int64_t longest() {
    int64_t longest = 0;
    for (const Network::Impl::Host& host : network_.hosts) {
      const Ends& at = ends_[host.at];
      if (at.hosts < 2) continue;
      // The slower of the two cables counts. The time is the same in both directions, so it may be the first one.
      const SimOutput& up = network_.outputs[host.interface];
      longest = std::max(longest, hop(up) + wire(up) + (&host == at.farthest ? at.down_second : at.down));
    }
    for (uint32_t to = 0; to < ends_.size(); to++) {
      if (ends_[to].hosts == 0) continue;
      rests_.assign(ends_.size(), {});
      rests_[to] = {ends_[to].down_wire, ends_[to].down, true};
      for (uint32_t from = 0; from < ends_.size(); from++) {
        if (from == to || ends_[from].hosts == 0) continue;
        const Rest rest = rest_from(from, to);
        longest = std::max({longest, ends_[from].up + rest.least, ends_[from].up_wire + rest.with_wire});
      }
    }
    return longest;
  }

 private:
  /// The longest times between a switch and its hosts.
  struct Ends {
    uint32_t hosts = 0;
    int64_t up = 0, up_wire = 0;      ///< from a host: its cable's delay and the switch's latency; with transmission
    int64_t down = 0, down_wire = 0;  ///< to a host: its cable's delay; with transmission
    int64_t down_second = 0;          ///< `down` without `farthest`
    const Network::Impl::Host* farthest = nullptr;
  };
  /// The longest time from the arrival at a switch to the end: `least`, or `with_wire` and the transmission time of the
  /// cable that the frame came by, whichever is more.
  struct Rest {
    int64_t least = 0, with_wire = INT64_MIN / 2;
    bool is_known = false;
  };

  int64_t hop(const SimOutput& out) const { return static_cast<int64_t>(out.hop); }
  int64_t wire(const SimOutput& out) const { return static_cast<int64_t>(network_.wire_time(out, frame_bytes_)); }
  void add(const Network::Impl::Host& host) {
    const SimOutput& up = network_.outputs[host.interface];
    const SimOutput& down = network_.outputs[host.downlink];
    Ends& at = ends_[host.at];
    at.up = std::max(at.up, hop(up));
    at.up_wire = std::max(at.up_wire, hop(up) + wire(up));
    at.down_wire = std::max(at.down_wire, hop(down) + wire(down));
    at.down_second = std::max(at.down_second, std::min(at.down, hop(down)));
    if (at.hosts++ == 0 || hop(down) > at.down) {
      at.down = hop(down);
      at.farthest = &host;
    }
  }
  Rest rest_from(uint32_t from, uint32_t to) {
    if (rests_[from].is_known) return rests_[from];
    Rest rest{.is_known = true};
    for (const uint32_t output : network_.routes.outputs(from, to)) {
      const SimOutput& out = network_.outputs[output];
      const Rest next = rest_from(out.to, to);
      const int64_t way = hop(out) + std::max(next.least, next.with_wire + wire(out));
      rest.least = std::max(rest.least, way);
      rest.with_wire = std::max(rest.with_wire, way - wire(out));
    }
    return rests_[from] = rest;
  }

  const Network::Impl& network_;
  const uint32_t frame_bytes_;
  std::vector<Ends> ends_;   ///< by switch
  std::vector<Rest> rests_;  ///< by switch, for one destination
};

}  // namespace

Picoseconds Network::Impl::compute_longest_round_trip() const {
  return 2 * static_cast<Picoseconds>(LongestWays(*this).longest());
}

Network::Network(const Topology& topology, uint64_t seed, size_t frame_bytes_max)
    : impl_(std::make_unique<Impl>(topology, seed, frame_bytes_max)), events_(impl_->events) {}
Network::~Network() = default;

}  // namespace tern::sim
