// Topologies built by code, and the presets. Sim layer, network part. Any thread; a Topology belongs to one thread at a
// time.

#include <tern/sim/network.h>

#include <algorithm>
#include <chrono>

#include "sim/network/option_ranges.h"

namespace tern::sim {

using namespace std::chrono_literals;

namespace {

// The table of routes has an entry per pair of switches. Addresses have 24 bits for the host.
constexpr size_t kSwitchesMax = 2048;
constexpr uint32_t kHostsMax = 1u << 20;
constexpr size_t kBufferBytesMax = UINT32_MAX;  // SimOutput::queue_bytes has 32 bits

}  // namespace

Status check_range(const SwitchOptions& options) {
  if (options.buffer_bytes > kBufferBytesMax) {
    return Status(Code::kMisuse, "a switch's buffer_bytes is out of range: 0 to 4 GiB - 1");
  }
  if (!(options.alpha > 0 && options.alpha <= 1024)) {
    return Status(Code::kMisuse, "a switch's alpha is out of range: above 0, to 1024");
  }
  if (options.latency < 0s || options.latency > 1s) {
    return Status(Code::kMisuse, "a switch's latency is out of range: 0 to 1 s");
  }
  return {};
}

Status check_range(const LinkOptions& options) {
  if (options.bits_per_sec < 1'000'000 || options.bits_per_sec > 1'600'000'000'000) {
    return Status(Code::kMisuse, "a link's rate is out of range: 1 Mbit/s to 1.6 Tbit/s");
  }
  if (options.delay < 0s || options.delay > 1s) {
    return Status(Code::kMisuse, "a link's delay is out of range: 0 to 1 s");
  }
  if (options.frame_limit_from < 0s || options.frame_limit_from > 24h) {
    return Status(Code::kMisuse, "a link's frame_limit_from is out of range: 0 to 1 day");
  }
  return {};
}

Node Topology::add_host() { return {Node::Kind::kHost, hosts_++}; }

Node Topology::add_switch(SwitchOptions options) {
  switches_.push_back(options);
  return {Node::Kind::kSwitch, static_cast<uint32_t>(switches_.size() - 1)};
}

void Topology::connect(Node a, Node b, LinkOptions options) { links_.push_back({a, b, options}); }

Status Topology::check() const {
  if (hosts_ == 0) return Status(Code::kMisuse, "the topology has no host: add_host()");
  if (hosts_ > kHostsMax) return Status(Code::kMisuse, "the topology has more than 1048576 hosts");
  if (switches_.size() > kSwitchesMax) return Status(Code::kMisuse, "the topology has more than 2048 switches");
  for (const SwitchOptions& options : switches_) {
    if (Status status = check_range(options); !status.ok()) return status;
  }
  std::vector<uint32_t> host_links(hosts_);
  std::vector<std::vector<uint32_t>> neighbours(switches_.size());
  for (const Link& link : links_) {
    if (Status status = check_range(link.options); !status.ok()) return status;
    for (const Node node : {link.a, link.b}) {
      const bool is_host = node.kind == Node::Kind::kHost;
      if (node.index >= (is_host ? hosts_ : switches_.size())) {
        return Status(Code::kMisuse, "a link leads to a node that the topology does not have");
      }
      if (is_host) host_links[node.index]++;
    }
    if (link.a == link.b) return Status(Code::kMisuse, "a link leads from a node to itself");
    if (link.a.kind == Node::Kind::kHost && link.b.kind == Node::Kind::kHost) {
      return Status(Code::kMisuse, "a link leads from a host to a host: put a switch between them");
    }
    if (link.a.kind == link.b.kind) {
      neighbours[link.a.index].push_back(link.b.index);
      neighbours[link.b.index].push_back(link.a.index);
    }
  }
  for (const uint32_t links : host_links) {
    if (links == 0) return Status(Code::kMisuse, "a host has no link: connect() it to a switch");
    if (links > 1) return Status(Code::kMisuse, "a host has more than one link");
  }
  // Every host has a switch. The last check is whether the switches reach each other.
  std::vector<bool> is_reached(switches_.size());
  std::vector<uint32_t> to_visit{0};
  is_reached[0] = true;
  while (!to_visit.empty()) {
    const uint32_t at = to_visit.back();
    to_visit.pop_back();
    for (const uint32_t other : neighbours[at]) {
      if (!is_reached[other]) to_visit.push_back(other);
      is_reached[other] = true;
    }
  }
  if (std::find(is_reached.begin(), is_reached.end(), false) != is_reached.end()) {
    return Status(Code::kMisuse, "a switch cannot be reached from the others: connect() it");
  }
  return {};
}

Topology Topology::star(uint32_t hosts, LinkOptions link, SwitchOptions options) {
  Topology topology;
  const Node centre = topology.add_switch(options);
  for (uint32_t i = 0; i < hosts; i++) topology.connect(topology.add_host(), centre, link);
  return topology;
}

// The delays reproduce two figures of the eRPC paper: 6 us for a round trip between racks (section 2), and 3.7 us for a
// small RPC within a rack (Table 2), of which our hosts' CPUs take about 170 ns. Each host's cable takes 650 ns (PCIe
// and NIC, in one direction), each switch 450 ns ("less than 500 ns port-to-port", Table 1), and each cable to the
// spine 150 ns: 4 * 650 + 2 * 450 = 3500 ns and 2 * (2 * 650 + 3 * 450 + 2 * 150) = 5900 ns, plus the time on the wire.
// alpha is the default of Spectrum's lossy pools. The ECN threshold is that of DCTCP for 10 GbE, counted in frames
// (SIGCOMM 2010, section 3.4: 65 packets), which is 21 us at 25 Gbit/s.
Topology Topology::cx4(uint32_t hosts) {
  constexpr uint32_t kRacks = 5;
  constexpr uint32_t kUplinks = 5;
  const SwitchOptions spectrum{.buffer_bytes = 12u << 20, .alpha = 8, .ecn_threshold_bytes = 65'000, .latency = 450ns};
  Topology topology;
  const Node spine = topology.add_switch(spectrum);
  std::vector<Node> racks;
  for (uint32_t i = 0; i < kRacks; i++) {
    racks.push_back(topology.add_switch(spectrum));
    for (uint32_t k = 0; k < kUplinks; k++) topology.connect(racks[i], spine, {100'000'000'000, 150ns});
  }
  for (uint32_t i = 0; i < hosts; i++) {
    topology.connect(topology.add_host(), racks[i % kRacks], {25'000'000'000, 650ns});
  }
  return topology;
}

// The delays reproduce section 6.1 of the eRPC paper: a small RPC takes 2.3 us, of which the switch takes 300 ns in
// each direction. Our hosts' CPUs take about 170 ns, and the four crossings of a host's cable take the rest.
Topology Topology::cx5_pair() {
  return star(2, {100'000'000'000, 380ns},
              {.buffer_bytes = 16u << 20, .alpha = 8, .ecn_threshold_bytes = 260'000, .latency = 300ns});
}

}  // namespace tern::sim
