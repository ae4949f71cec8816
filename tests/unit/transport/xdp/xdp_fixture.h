// Common parts of the tests of the xdp transport: endpoints at the two ends of a cable in the kernel (tests/cable).
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "cable/far.h"
#include "cable/xdp_ends.h"
#include "shell.h"
#include "transport/xdp/xdp.h"
#include "unit/transport/ethernet_end.h"

namespace tern::transport::xdp_test {

using test::connect;
using test::expect_bad_datagrams_are_dropped;
using test::Far;
using test::FarSocket;
using test::frame_to;
using test::header_of;
using test::KernelSocket;
using test::packet_of;
using test::RawSocket;
using test::run;
using test::run_until;
using test::says;

/// Options of an endpoint at an interface; "tern1" is the far end of the cable.
inline Xdp::Options at(std::string_view interface) {
  Xdp::Options options = test::xdp_options(interface == "tern1" ? 1 : 0);
  options.interface = interface;
  return options;
}

/// An endpoint and the packets that it has received.
struct End : test::EthernetEnd<XdpImpl> {
  explicit End(const Xdp::Options& options = at("tern0"), std::string_view host = "") : EthernetEnd(options, host) {}
};

class XdpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Far::path() == nullptr) GTEST_SKIP() << "not on a cable (tests/cable), which needs root";
  }
};

/// A test with a second cable, from wide0 to wide1 at the far end, whose queues the test chooses.
class WideTest : public XdpTest {
 protected:
  /// `near` and `far` are settings of `ip link add`.
  void make_cable(const std::string& near, const std::string& far) {
    const std::string path = Far::path();
    ASSERT_TRUE(run("ip link add wide0 " + near + " type veth peer name wide1 " + far + " netns " + path));
    ASSERT_TRUE(run("ip addr add 10.80.0.1/24 dev wide0 && ip link set wide0 up"));
    ASSERT_TRUE(run("nsenter --net=" + path + " ip addr add 10.80.0.2/24 dev wide1"));
    ASSERT_TRUE(run("nsenter --net=" + path + " ip link set wide1 up"));
    ASSERT_TRUE(run_until({}, [] { return run("ip link show wide0 | grep -q LOWER_UP"); }));
  }
  void TearDown() override { (void)run("ip link del wide0"); }

  static Xdp::Options near(uint32_t queues = 0) {
    Xdp::Options options;
    options.interface = "wide0";
    options.queues = queues;
    return options;
  }
  static Xdp::Options far(uint32_t queues = 0) {
    Xdp::Options options = near(queues);
    options.interface = "wide1";
    options.netns = Far::path();
    return options;
  }
};

/// Sends `count` packets and waits for their arrival. Only `ends` run meanwhile.
inline void expect_passes(End& from, End& to, const std::vector<test::AnyEnd*>& ends, uint32_t count = 100) {
  const PeerId peer = connect(from, to);
  const size_t before = to.got.size();
  for (uint32_t i = 0; i < count; ++i) ASSERT_TRUE(run_until(ends, [&] { return from.send(peer, i); }));
  from->flush();
  ASSERT_TRUE(run_until(ends, [&] { return to.got.size() == before + count; })) << to.got.size() - before;
  for (uint32_t i = 0; i < count; ++i) EXPECT_EQ(to.got[before + i].number, i);
  from->disconnect(peer);
}

}  // namespace tern::transport::xdp_test
