// Common parts of the tests of the xdp transport: endpoints at the two ends of a cable in the kernel (tests/cable).
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

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

}  // namespace tern::transport::xdp_test
