// What the tests of the xdp transport share: endpoints at the two ends of a cable of the kernel's (tests/cable).
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cable/far.h"
#include "cable/xdp_ends.h"
#include "ethernet/endpoint_address.h"
#include "shell.h"
#include "transport/xdp/xdp.h"
#include "unit/transport/end.h"

namespace tern::transport::xdp_test {

using test::Far;
using test::FarSocket;
using test::header_of;
using test::KernelSocket;
using test::packet_of;
using test::RawSocket;
using test::run;

/// Options of an endpoint at an interface; "tern1" is the far end of the cable.
inline Xdp::Options at(std::string_view interface) {
  Xdp::Options options = test::xdp_options(interface == "tern1" ? 1 : 0);
  options.interface = interface;
  return options;
}

/// An endpoint, and what it has received.
struct End : test::End<XdpImpl> {
  explicit End(const Xdp::Options& options = at("tern0"), std::string_view host = "")
      : test::End<XdpImpl>(options, host) {}

  /// IP and port.
  base::SocketAddress where() const {
    ethernet::EndpointAddress address;
    EXPECT_TRUE(decode_address(impl->address(), &address));
    return address.end;
  }
};

inline bool run_until(const std::vector<End*>& ends, const std::function<bool()>& is_true) {
  return test::run_ends_until(ends, is_true);
}

/// A new peer of `from` that is ready.
inline PeerId connect(End& from, const base::SocketAddress& to, uint16_t datagram_bytes = 1472) {
  return test::connect_ends(from, encode_address(ethernet::EndpointAddress{to, datagram_bytes}));
}
inline PeerId connect(End& from, const End& to) { return connect(from, to.where()); }

class XdpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Far::path() == nullptr) GTEST_SKIP() << "not on a cable (tests/cable), which needs root";
  }
};

}  // namespace tern::transport::xdp_test
