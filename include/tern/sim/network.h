// A network for the simulator: hosts, switches, the cables between them, and what goes wrong on these.
// Standard library only; plain values.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tern/detail/export.h>
#include <tern/duration.h>
#include <tern/status.h>

namespace tern::sim {

/// In which direction a cable has a limit for the length of frames.
enum class FrameLimitWay : uint8_t {
  kBoth,   ///< in both
  kThere,  ///< from connect()'s first node to its second one: up, where the first one is a host
  kBack,   ///< from the second one to the first one
};

/// Of a cable: both directions alike, but for the limit of frames.
struct LinkOptions {
  uint64_t bits_per_sec = 25'000'000'000;          ///< 1 Mbit/s to 1.6 Tbit/s
  Duration delay = std::chrono::nanoseconds(500);  ///< from the first bit's departure to its arrival, to 1 s
  /// Longer frames (Ethernet, IP and UDP headers included) are lost, and nobody says so: a route whose MTU is smaller
  /// than the hosts think. SIZE_MAX: none are. Simulation::set_frame_limit() changes it.
  size_t frame_bytes_max = SIZE_MAX;
  Duration frame_limit_from{};                           ///< since the beginning of the simulation; 0 or more, to 1 day
  FrameLimitWay frame_limit_way = FrameLimitWay::kBoth;  ///< where it holds
};

/// Of a switch: output queues that share one buffer. Cut-through: a frame leaves as soon as its beginning is known and
/// the output is free.
struct SwitchOptions {
  /// Shared by all output queues, below 4 GiB; what does not fit is dropped. A frame takes of it while it waits, until
  /// its transmission begins.
  size_t buffer_bytes = 12u << 20;
  /// Dynamic threshold (Choudhury and Hahne, ToN 1998): a queue may hold up to alpha times what is still free. Above 0,
  /// to 1024.
  double alpha = 8;
  /// Frames that find more than this in their output queue are marked (ECN CE). SIZE_MAX: never.
  size_t ecn_threshold_bytes = SIZE_MAX;
  /// From the first bit in to the first bit out, when the output is free; to 1 s.
  Duration latency = std::chrono::nanoseconds(300);
};

/// A host or a switch of a Topology.
struct Node {
  /// What there is.
  enum class Kind : uint8_t {
    kHost,   ///< an end: what sends and receives
    kSwitch  ///< what is between them
  };
  Kind kind = Kind::kHost;  ///< which of them it is
  uint32_t index = 0;       ///< among those of its kind, in the order in which they were added
  friend bool operator==(const Node&, const Node&) = default;  ///< the same one
};

/// Built by code, or from a text (parse()). Frames take shortest paths over links that are up; where there are several,
/// a flow (a pair of endpoints) stays on one of them (ECMP). At most 2048 switches and 1048576 hosts.
class TERN_API Topology {
 public:
  /// A cable between two nodes.
  struct Link {
    Node a;               ///< one end
    Node b;               ///< the other
    LinkOptions options;  ///< of both directions
  };

  /// One more host; it needs exactly one link.
  Node add_host();
  /// One more switch.
  Node add_switch(SwitchOptions options = {});
  /// A cable between two nodes; several between the same two are parallel paths.
  void connect(Node a, Node b, LinkOptions options = {});

  uint32_t hosts() const { return hosts_; }                                 ///< how many
  const std::vector<SwitchOptions>& switches() const { return switches_; }  ///< in the order of add_switch()
  std::vector<SwitchOptions>& switches() { return switches_; }              ///< to change what a preset says
  const std::vector<Link>& links() const { return links_; }                 ///< in the order of connect()
  std::vector<Link>& links() { return links_; }                             ///< to change what a preset says
  /// What is wrong with it: a host without or with two links or with one to a host, a node that cannot be reached, an
  /// option out of range.
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
  /// Bytes in B, kB, MB, GB (powers of 1000), KiB, MiB, GiB; rates in M, G, T bit/s; times in ns, us, ms, s. What is
  /// not said is as in SwitchOptions and LinkOptions. kMisuse: names the line and what is wrong with it, or is
  /// check()'s of the whole.
  static Result<Topology> parse(std::string_view text);

 private:
  uint32_t hosts_ = 0;
  std::vector<SwitchOptions> switches_;
  std::vector<Link> links_;
};

/// What happens to frames on a cable, each with its probability, from 0 to 1.
struct Faults {
  double drop = 0;       ///< lost
  double duplicate = 0;  ///< delivered twice, the second time up to `delay_max` later
  double reorder = 0;    ///< overtaken: delivered up to `delay_max` later, others not held up
  double delay = 0;      ///< a spike: it, and what comes after it, up to `delay_max` later
  double corrupt = 0;    ///< one to four bits of the packet are flipped above the checksum
  Duration delay_max = std::chrono::microseconds(100);  ///< the upper end of the delays above
};

/// What has happened in the network since its beginning.
struct NetworkCounters {
  uint64_t packets_sent = 0;          ///< frames that hosts have put on their wire
  uint64_t packets_delivered = 0;     ///< to an endpoint or a Nexus
  uint64_t packets_marked = 0;        ///< ECN, once a frame and switch
  uint64_t dropped_buffer_full = 0;   ///< by switches
  uint64_t dropped_receive_full = 0;  ///< an endpoint's receive queue was full
  uint64_t dropped_no_receiver = 0;   ///< the host is down, or the endpoint is gone
  uint64_t dropped_too_long = 0;      ///< by the limits of cables for frames
  uint64_t dropped_fault = 0;         ///< by Faults, links that are down and partitions
  uint64_t dropped_nat = 0;           ///< answers to nothing that a NAT knows
  uint64_t queue_bytes_max = 0;       ///< the longest output queue of a switch so far
};

}  // namespace tern::sim
