// DPDK's af_packet over an interface of the kernel: the device's settings reach the interface. Needs root and iproute2.
#include <memory>
#include <string>

#include "unit/transport/dpdk/af_packet_fixture.h"
#include "unit/transport/dpdk/port_fixture.h"

namespace tern::transport::dpdk_test {
namespace {

DpdkChoice choice_of(const char* more = "") {
  DpdkChoice choice;
  choice.device = std::string("net_af_packet0;iface=tern0") + more;
  return choice;
}

TEST_F(DpdkAfPacket, wished_mtu__becomes_the_interface_s) {
  {
    const auto port = open_port(choice_of());
    ASSERT_NE(port, nullptr);
    EXPECT_EQ(interface().mtu_bytes, 1000u);
  }
  DpdkChoice wish = choice_of();
  wish.mtu_bytes = 1400;
  const auto port = open_port(wish);
  ASSERT_NE(port, nullptr);
  EXPECT_EQ(port->facts().mtu_bytes, 1400u);
  EXPECT_EQ(interface().mtu_bytes, 1400u);
}

TEST_F(DpdkAfPacket, queue__is_as_long_as_the_driver_s_ring) {
  const auto frames_of = [](const char* more) {
    const auto port = open_port(choice_of(more));
    return port == nullptr ? 0 : port->facts().receive_descriptors;
  };
  EXPECT_EQ(frames_of(""), 512);
  EXPECT_EQ(frames_of(";framecnt=1024"), 1024);
}

}  // namespace
}  // namespace tern::transport::dpdk_test
