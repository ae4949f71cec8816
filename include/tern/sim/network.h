// A network for the simulator: hosts, switches, the cables between them, and their faults.
// Standard library only; plain values.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tern/counters.h>
#include <tern/detail/export.h>
#include <tern/duration.h>
#include <tern/status.h>

namespace tern::sim {

/// The direction of a cable in which the length of frames is limited.
enum class FrameLimitWay : uint8_t {
  kBoth,   ///< in both directions
  kThere,  ///< from connect()'s first node to its second one; upwards if the first one is a host
  kBack,   ///< from the second one to the first one
};

/// Options of a cable. They hold for both directions, except the limit of frames.
struct LinkOptions {
  uint64_t bits_per_sec = 25'000'000'000;          ///< 1 Mbit/s to 1.6 Tbit/s
  Duration delay = std::chrono::nanoseconds(500);  ///< from the departure of a bit to its arrival, at most 1 s
  /// Longer frames (with Ethernet, IP and UDP headers) are lost without a message, as on a route with a smaller MTU
  /// than that of the hosts. SIZE_MAX: no limit. Simulation::set_frame_limit() changes it.
  size_t frame_bytes_max = SIZE_MAX;
  Duration frame_limit_from{};                           ///< the time from which the limit holds; 0 to 1 day
  FrameLimitWay frame_limit_way = FrameLimitWay::kBoth;  ///< the direction of the limit
};

/// Options of a switch. Its output queues share one buffer. It cuts through: a frame leaves as soon as its beginning
/// has arrived and the output is free.
struct SwitchOptions {
  /// Buffer of all output queues together, below 4 GiB. A frame takes its length while it waits for its transmission. A
  /// frame that does not fit is dropped.
  size_t buffer_bytes = 12u << 20;
  /// Dynamic threshold (Choudhury and Hahne, ToN 1998): a queue may hold up to alpha times the free buffer. Above 0, at
  /// most 1024.
  double alpha = 8;
  /// A frame is marked (ECN CE) if its output queue holds more than this. SIZE_MAX: never.
  size_t ecn_threshold_bytes = SIZE_MAX;
  /// Time from the first bit's arrival to its departure if the output is free; at most 1 s.
  Duration latency = std::chrono::nanoseconds(300);
};

/// A host or a switch of a Topology.
struct Node {
  /// The kinds of nodes.
  enum class Kind : uint8_t {
    kHost,   ///< sends and receives
    kSwitch  ///< forwards
  };
  Kind kind = Kind::kHost;  ///< host or switch
  uint32_t index = 0;       ///< among the nodes of its kind, in the order in which they were added
  friend bool operator==(const Node&, const Node&) = default;  ///< true for the same node
};

/// A network, built by code or from a text (parse()). Frames take shortest paths over links that are up. If there are
/// several, a flow (a pair of endpoints) stays on one of them (ECMP). At most 2048 switches and 1048576 hosts.
class TERN_API Topology {
 public:
  /// A cable between two nodes.
  struct Link {
    Node a;               ///< one end
    Node b;               ///< the other
    LinkOptions options;  ///< for both directions
  };

  /// Adds a host, which must have exactly one link.
  Node add_host();
  /// Adds a switch.
  Node add_switch(SwitchOptions options = {});
  /// Adds a cable between two nodes. Several cables between the same nodes are parallel paths.
  void connect(Node a, Node b, LinkOptions options = {});

  uint32_t hosts() const { return hosts_; }                                 ///< the number of hosts
  const std::vector<SwitchOptions>& switches() const { return switches_; }  ///< in the order of add_switch()
  std::vector<SwitchOptions>& switches() { return switches_; }              ///< to change a preset
  const std::vector<Link>& links() const { return links_; }                 ///< in the order of connect()
  std::vector<Link>& links() { return links_; }                             ///< to change a preset
  /// kMisuse, with the reason: a host does not have exactly one link, or has one to a host; a node cannot be reached;
  /// an option is out of range.
  Status check() const;

  /// `hosts` hosts at one switch.
  static Topology star(uint32_t hosts, LinkOptions link = {}, SwitchOptions options = {});
  /// The eRPC paper's CX4 cluster (Table 1, section 6): up to 200 hosts at 25 GbE, spread evenly over five
  /// top-of-rack switches, each with five 100 GbE uplinks to one spine switch; 12 MB of shared buffer in each switch;
  /// 6 us for a round trip between racks without load.
  static Topology cx4(uint32_t hosts = 100);
  /// The paper's pair of CX5 hosts at one 100 Gbit/s switch (section 6.4).
  static Topology cx5_pair();
  /// The text form: one item a line, '#' begins a comment.
  ///
  ///     switch NAME [buffer=12MiB] [alpha=8] [ecn=65kB|never] [latency=300ns]
  ///     hosts COUNT SWITCH [rate=25G] [delay=500ns] [LIMIT]
  ///     link SWITCH SWITCH [rate=25G] [delay=500ns] [count=1] [LIMIT]
  ///
  /// LIMIT is longest=1400B [longest-from=20ms] [longest-way=both|there|back], of frames: LinkOptions::frame_bytes_max;
  /// `there` is from a host to its switch, or from the first switch to the second one.
  /// Bytes are in B, kB, MB, GB (powers of 1000), KiB, MiB or GiB; rates in M, G or T bit/s; times in ns, us, ms or s.
  /// SwitchOptions and LinkOptions have the defaults. kMisuse: names the line and the mistake, or is the result of
  /// check().
  static Result<Topology> parse(std::string_view text);

 private:
  uint32_t hosts_ = 0;
  std::vector<SwitchOptions> switches_;
  std::vector<Link> links_;
};

/// Faults of a cable, each with its probability for a frame, from 0 to 1.
struct Faults {
  double drop = 0;       ///< lost
  double duplicate = 0;  ///< delivered twice, the second time up to `delay_max` later
  double reorder = 0;    ///< delivered up to `delay_max` later, while other frames overtake it
  double delay = 0;      ///< this frame and all behind it are delivered up to `delay_max` later
  double corrupt = 0;    ///< one to four bits of the packet are flipped above the checksum
  Duration delay_max = std::chrono::microseconds(100);  ///< the longest of these delays
};

using tern::NetworkCounters;

}  // namespace tern::sim
