// Topologies from code and from text: presets, refusals of check(), and the parser's errors.

#include <gtest/gtest.h>
#include <tern/sim/network.h>

#include <chrono>
#include <limits>
#include <map>
#include <string>

namespace tern::sim {
namespace {

using namespace std::chrono_literals;

std::string error_of(const Topology& topology) {
  const Status status = topology.check();
  EXPECT_EQ(status.code(), status.ok() ? Code::kOk : Code::kMisuse);
  return std::string(status.message());
}

Topology two_racks() {
  Topology topology;
  const Node a = topology.add_switch();
  const Node b = topology.add_switch();
  topology.connect(a, b);
  topology.connect(topology.add_host(), a);
  topology.connect(topology.add_host(), b);
  return topology;
}

TEST(Topology, cx4__is_the_papers_cluster) {
  const Topology topology = Topology::cx4(200);
  ASSERT_TRUE(topology.check().ok()) << topology.check().message();
  EXPECT_EQ(topology.hosts(), 200u);
  ASSERT_EQ(topology.switches().size(), 6u);
  for (const SwitchOptions& options : topology.switches()) {
    EXPECT_EQ(options.buffer_bytes, 12u << 20);
    EXPECT_EQ(options.alpha, 8);
  }
  std::map<uint32_t, int> downlinks, uplinks;
  for (const Topology::Link& link : topology.links()) {
    if (link.a.kind == Node::Kind::kHost) {
      EXPECT_EQ(link.options.bits_per_sec, 25'000'000'000u);
      downlinks[link.b.index]++;
    } else {
      EXPECT_EQ(link.options.bits_per_sec, 100'000'000'000u);
      EXPECT_EQ(link.b.index, 0u) << "the spine";
      uplinks[link.a.index]++;
    }
  }
  EXPECT_EQ(downlinks, (std::map<uint32_t, int>{{1, 40}, {2, 40}, {3, 40}, {4, 40}, {5, 40}}));
  EXPECT_EQ(uplinks, (std::map<uint32_t, int>{{1, 5}, {2, 5}, {3, 5}, {4, 5}, {5, 5}}));
}

TEST(Topology, check__accepts_the_presets) {
  EXPECT_EQ(error_of(Topology::star(1)), "ok");
  EXPECT_EQ(error_of(Topology::star(300)), "ok");
  EXPECT_EQ(error_of(Topology::cx4(1)), "ok");
  EXPECT_EQ(error_of(Topology::cx5_pair()), "ok");
  EXPECT_EQ(error_of(two_racks()), "ok");
}

TEST(Topology, check__refuses_impossible_topologies) {
  EXPECT_EQ(error_of(Topology()), "the topology has no host: add_host()");
  EXPECT_EQ(error_of(Topology::star((1 << 20) + 1)), "the topology has more than 1048576 hosts");

  Topology topology = two_racks();
  (void)topology.add_host();
  EXPECT_EQ(error_of(topology), "a host has no link: connect() it to a switch");

  topology = two_racks();
  topology.connect({Node::Kind::kHost, 0}, {Node::Kind::kSwitch, 1});
  EXPECT_EQ(error_of(topology), "a host has more than one link");

  topology = two_racks();
  topology.connect(topology.add_host(), topology.add_host());
  EXPECT_EQ(error_of(topology), "a link leads from a host to a host: put a switch between them");

  topology = two_racks();
  topology.connect({Node::Kind::kSwitch, 1}, {Node::Kind::kSwitch, 1});
  EXPECT_EQ(error_of(topology), "a link leads from a node to itself");

  topology = two_racks();
  topology.connect({Node::Kind::kSwitch, 1}, {Node::Kind::kSwitch, 2});
  EXPECT_EQ(error_of(topology), "a link leads to a node that the topology does not have");

  topology = two_racks();
  (void)topology.add_switch();
  EXPECT_EQ(error_of(topology), "a switch cannot be reached from the others: connect() it");

  topology = Topology();
  for (int i = 0; i < 2049; i++) (void)topology.add_switch();
  (void)topology.add_host();
  EXPECT_EQ(error_of(topology), "the topology has more than 2048 switches");
}

TEST(Topology, check__knows_the_range_of_each_option) {
  const auto with_link = [](LinkOptions options) { return error_of(Topology::star(2, options)); };
  EXPECT_EQ(with_link({1'000'000, 0s}), "ok");
  EXPECT_EQ(with_link({1'600'000'000'000, 1s}), "ok");
  const std::string rate = "a link's rate is out of range: 1 Mbit/s to 1.6 Tbit/s";
  EXPECT_EQ(with_link({999'999, 0s}), rate);
  EXPECT_EQ(with_link({1'600'000'000'001, 0s}), rate);
  const std::string delay = "a link's delay is out of range: 0 to 1 s";
  EXPECT_EQ(with_link({1'000'000, -1ns}), delay);
  EXPECT_EQ(with_link({1'000'000, 1s + 1ns}), delay);

  EXPECT_EQ(with_link({.frame_limit_from = 24h}), "ok");
  EXPECT_EQ(with_link({.frame_limit_from = -1ns}), "a link's frame_limit_from is out of range: 0 to 1 day");

  const auto with_switch = [](SwitchOptions options) { return error_of(Topology::star(2, {}, options)); };
  EXPECT_EQ(with_switch({.buffer_bytes = 0, .alpha = 1024, .latency = 1s}), "ok");
  EXPECT_EQ(with_switch({.buffer_bytes = (size_t{4} << 30) + 1}),
            "a switch's buffer_bytes is out of range: 0 to 4 GiB - 1");
  const std::string alpha = "a switch's alpha is out of range: above 0, to 1024";
  EXPECT_EQ(with_switch({.alpha = 0}), alpha);
  EXPECT_EQ(with_switch({.alpha = 1025}), alpha);
  EXPECT_EQ(with_switch({.alpha = std::numeric_limits<double>::quiet_NaN()}), alpha);
  EXPECT_EQ(with_switch({.latency = -1ns}), "a switch's latency is out of range: 0 to 1 s");
}

void expect_equal(const Topology& a, const Topology& b) {
  EXPECT_EQ(a.hosts(), b.hosts());
  ASSERT_EQ(a.switches().size(), b.switches().size());
  for (size_t i = 0; i < a.switches().size(); i++) {
    EXPECT_EQ(a.switches()[i].buffer_bytes, b.switches()[i].buffer_bytes);
    EXPECT_EQ(a.switches()[i].alpha, b.switches()[i].alpha);
    EXPECT_EQ(a.switches()[i].ecn_threshold_bytes, b.switches()[i].ecn_threshold_bytes);
    EXPECT_EQ(a.switches()[i].latency, b.switches()[i].latency);
  }
  ASSERT_EQ(a.links().size(), b.links().size());
  for (size_t i = 0; i < a.links().size(); i++) {
    EXPECT_EQ(a.links()[i].a, b.links()[i].a);
    EXPECT_EQ(a.links()[i].b, b.links()[i].b);
    EXPECT_EQ(a.links()[i].options.bits_per_sec, b.links()[i].options.bits_per_sec);
    EXPECT_EQ(a.links()[i].options.delay, b.links()[i].options.delay);
    EXPECT_EQ(a.links()[i].options.frame_bytes_max, b.links()[i].options.frame_bytes_max);
    EXPECT_EQ(a.links()[i].options.frame_limit_from, b.links()[i].options.frame_limit_from);
    EXPECT_EQ(a.links()[i].options.frame_limit_way, b.links()[i].options.frame_limit_way);
  }
}

TEST(TopologyText, parse__gives_the_same_topology_as_code) {
  auto parsed = Topology::parse(
      "# two racks\n"
      "switch tor0 buffer=12MiB alpha=0.5 ecn=65kB latency=450ns\r\n"
      "\n"
      "switch\ttor1   ecn=never   # as it is anyway\n"
      "hosts 3 tor0 rate=25G delay=0.65us\n"
      "hosts 1 tor1\n"
      "hosts 1 tor1 longest=1400B longest-from=20ms longest-way=back\n"
      "link tor0 tor1 rate=1.6T delay=150ns count=2 longest=2kB longest-way=there\n"
      "link tor0 tor1 longest-way=both longest=9kB");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();

  Topology built;
  const Node tor0 = built.add_switch({12u << 20, 0.5, 65'000, 450ns});
  const Node tor1 = built.add_switch();
  for (int i = 0; i < 3; i++) built.connect(built.add_host(), tor0, {25'000'000'000, 650ns});
  built.connect(built.add_host(), tor1);
  built.connect(built.add_host(), tor1,
                {.frame_bytes_max = 1400, .frame_limit_from = 20ms, .frame_limit_way = FrameLimitWay::kBack});
  for (int i = 0; i < 2; i++) {
    built.connect(tor0, tor1, {1'600'000'000'000, 150ns, 2000, {}, FrameLimitWay::kThere});
  }
  built.connect(tor0, tor1, {.frame_bytes_max = 9000});
  expect_equal(*parsed, built);
}

TEST(TopologyText, parse__knows_all_units) {
  const auto buffer = [](const std::string& text) {
    auto parsed = Topology::parse("switch s buffer=" + text + "\nhosts 1 s");
    return parsed.ok() ? parsed->switches()[0].buffer_bytes : SIZE_MAX;
  };
  EXPECT_EQ(buffer("9000B"), 9000u);
  EXPECT_EQ(buffer("1.5kB"), 1500u);
  EXPECT_EQ(buffer("12MB"), 12'000'000u);
  EXPECT_EQ(buffer("2GB"), 2'000'000'000u);
  EXPECT_EQ(buffer("1KiB"), 1024u);
  EXPECT_EQ(buffer("12MiB"), 12u << 20);
  EXPECT_EQ(buffer("1GiB"), 1u << 30);
  const auto link = [](const std::string& text) {
    auto parsed = Topology::parse("switch s\nhosts 1 s " + text);
    return parsed.ok() ? parsed->links()[0].options : LinkOptions{0, 0s};
  };
  EXPECT_EQ(link("rate=1M").bits_per_sec, 1'000'000u);
  EXPECT_EQ(link("rate=2.5G").bits_per_sec, 2'500'000'000u);
  EXPECT_EQ(link("rate=0.8T").bits_per_sec, 800'000'000'000u);
  EXPECT_EQ(link("delay=7ns").delay, 7ns);
  EXPECT_EQ(link("delay=2us").delay, 2us);
  EXPECT_EQ(link("delay=3ms").delay, 3ms);
  EXPECT_EQ(link("delay=1s").delay, 1s);
}

TEST(TopologyText, parse__names_the_line_and_the_error) {
  const auto error = [](const std::string& text) {
    auto parsed = Topology::parse(text);
    EXPECT_EQ(parsed.status().code(), Code::kMisuse);
    return std::string(parsed.status().message());
  };
  EXPECT_EQ(error("# all is well\nrouter r"), "line 2: 'router' is not an item: write switch, hosts or link");
  EXPECT_EQ(error("switch"), "line 1: write: switch NAME OPTIONS");
  EXPECT_EQ(error("switch a b"), "line 1: write: switch NAME OPTIONS");
  EXPECT_EQ(error("switch a\nhosts a"), "line 2: write: hosts COUNT SWITCH OPTIONS");
  EXPECT_EQ(error("switch a\nlink a"), "line 2: write: link SWITCH SWITCH OPTIONS");
  EXPECT_EQ(error("switch a\n\nswitch a"), "line 3: there is a switch 'a' already");
  EXPECT_EQ(error("hosts 2 a"), "line 1: there is no switch 'a' above");
  EXPECT_EQ(error("switch a\nlink a b"), "line 2: there is no switch 'b' above");
  EXPECT_EQ(error("switch a rate=25G"), "line 1: 'rate' is not an option of this item");
  EXPECT_EQ(error("rate=25G"), "line 1: 'rate' is not an option of this item");
  EXPECT_EQ(error("switch a alpha=1 alpha=2"), "line 1: 'alpha' appears twice");
  EXPECT_EQ(error("switch a alpha=much"), "line 1: alpha: 'much' is not a number");
  EXPECT_EQ(error("switch a alpha=-1"), "line 1: alpha: '-1' is not a number");
  EXPECT_EQ(error("switch a alpha="), "line 1: alpha: '' is not a number");
  EXPECT_EQ(error("switch a latency=300"), "line 1: latency: '300' is not a number with ns, us, ms, s");
  EXPECT_EQ(error("switch a buffer=12Mb"), "line 1: buffer: '12Mb' is not a number with B, kB, MB, GB, KiB, MiB, GiB");
  EXPECT_EQ(error("switch a buffer=99999999999999GB").substr(0, 16), "line 1: buffer: ");
  EXPECT_EQ(error("switch a ecn=always").substr(0, 13), "line 1: ecn: ");
  EXPECT_EQ(error("switch a\nhosts 1 a rate=25"), "line 2: rate: '25' is not a number with M, G, T");
  EXPECT_EQ(error("switch a\nhosts none a"), "line 2: COUNT: 'none' is not a number");
  EXPECT_EQ(error("switch a\nhosts 1 a rate=2T"), "line 2: a link's rate is out of range: 1 Mbit/s to 1.6 Tbit/s");
  EXPECT_EQ(error("switch a\nhosts 1 a longest=1kb").substr(0, 17), "line 2: longest: ");
  EXPECT_EQ(error("switch a\nhosts 1 a longest=1kB longest-way=up"),
            "line 2: longest-way: 'up' must be both, there or back");
  EXPECT_EQ(error("switch a\nhosts 1 a longest-from=20ms"), "line 2: longest-from and longest-way need longest");
  EXPECT_EQ(error("switch a\nhosts 1 a longest-way=back"), "line 2: longest-from and longest-way need longest");
  EXPECT_EQ(error("switch a latency=2s"), "line 1: a switch's latency is out of range: 0 to 1 s");
  for (const std::string count : {"0", "1.5", "1048577"}) {
    EXPECT_EQ(error("switch a\nhosts " + count + " a"), "line 2: COUNT must be 1 to 1048576");
  }
  EXPECT_EQ(error("switch a\nhosts 1048576 a\nhosts 1 a"), "line 3: there are more than 1048576 hosts");
  for (const std::string count : {"0", "2.5", "1025"}) {
    EXPECT_EQ(error("switch a\nswitch b\nlink a b count=" + count), "line 3: count must be 1 to 1024");
  }
}

TEST(TopologyText, parse__checks_the_whole) {
  EXPECT_EQ(Topology::parse("").status().message(), "the topology has no host: add_host()");
  EXPECT_EQ(Topology::parse("switch a\nswitch b\nhosts 1 a").status().message(),
            "a switch cannot be reached from the others: connect() it");
}

}  // namespace
}  // namespace tern::sim
