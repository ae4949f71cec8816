// The DPDK transport at an interface of the kernel, af_packet on tern0, against sockets at the other end of the network
// (tests/cable): plain UDP, raw frames that no peer sends, and an interface that is lost.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cable/far.h"
#include "e2e/namespaces.h"
#include "frames/checksum.h"
#include "neighbours/interface.h"
#include "unit/transport/dpdk/dpdk_fixture.h"

namespace tern::transport::dpdk_test {
namespace {

using e2e::run;
using frames::Drop;
using test::Far;
using test::FarSocket;
using test::RawSocket;

constexpr auto kA = std::byte{0xa5}, kB = std::byte{0x5a};

Dpdk::Options at_tern0(const std::string& bind = "10.77.0.1") {
  Dpdk::Options options;
  options.device = "net_af_packet0;iface=tern0";
  options.bind = bind;
  return options;
}

class DpdkFrames : public testing::Test {
 protected:
  void SetUp() override {
    if (Far::path() == nullptr) GTEST_SKIP() << "run this by tests/on_cable --hosts of the build directory";
  }
};

/// The kernel drops datagrams with a wrong checksum, and makes checksums on this network.
void expect_exchange(const std::string& near, const std::string& far) {
  End end(at_tern0(near));
  ASSERT_TRUE(end.status.ok()) << end.status.message();
  const FarSocket socket(far + ":4001");
  const PeerId peer = connect(end, *base::SocketAddress::parse(far + ":4001"));
  uint32_t number = 0;
  for (const size_t bytes : {0, 1, 40, 500, 1000, 1400}) {
    ASSERT_TRUE(end.send(peer, ++number, end.filled(bytes, kA), bytes));
    end->flush();
    EXPECT_EQ(socket.receive(), packet_of(number, bytes, kA)) << bytes;
    const size_t before = end.got.size();
    socket.send(end.where(), packet_of(++number, bytes, kB));
    ASSERT_TRUE(run_until({&end}, [&] { return end.got.size() > before; })) << bytes;
    EXPECT_EQ(end.got.back().number, number);
    EXPECT_EQ(end.got.back().payload, std::vector<std::byte>(bytes, kB));
  }
}

TEST_F(DpdkFrames, kernel_socket_exchanges_datagrams_over_ipv4) { expect_exchange("10.77.0.1", "10.77.0.2"); }

TEST_F(DpdkFrames, kernel_socket_exchanges_datagrams_over_ipv6) {
  if (access("/proc/sys/net/ipv6", F_OK) != 0) GTEST_SKIP() << "no IPv6 here";
  expect_exchange("[fd77::1]", "[fd77::2]");
}

TEST_F(DpdkFrames, hostile_frames_are_counted_by_reason_and_dropped) {
  End end(at_tern0());
  ASSERT_TRUE(end.status.ok()) << end.status.message();
  const RawSocket raw;
  constexpr size_t kIp = 14, kUdp = 34, kPayload = 42;
  const auto mac = neighbours::interface_by_name("tern0")->mac;
  /// Changes one bit or more of a good frame.
  const auto expect = [&](Drop why, size_t offset, uint8_t bits) {
    std::vector<std::byte> frame = frame_to(end, 1, mac);
    frame[offset] ^= std::byte{bits};
    if (offset >= kIp && offset < kUdp && why != Drop::kIpChecksum) {
      frames::store_raw16(frame.data() + kIp + 10, 0);
      frames::ChecksumSum sum;
      sum.add(std::span(frame).subspan(kIp, kUdp - kIp));
      frames::store_raw16(frame.data() + kIp + 10, static_cast<uint16_t>(~sum.value()));
    }
    const uint64_t before = end.dropped(why);
    raw.send(frame);
    EXPECT_TRUE(run_until({&end}, [&] { return end.dropped(why) > before; })) << frames::name_of(why);
  };
  expect(Drop::kUdpChecksum, kPayload + 30, 1);
  expect(Drop::kUdpChecksum, kUdp + 6, 1);
  expect(Drop::kIpChecksum, kIp + 10, 1);
  expect(Drop::kIpLength, kIp + 2, 0x80);
  expect(Drop::kIpOptions, kIp, 0x03);
  expect(Drop::kUdpLength, kUdp + 4, 0x80);
  EXPECT_TRUE(end.got.empty());

  // Every truncation of a good frame, and noise behind its addresses: none of them is a packet.
  const std::vector<std::byte> good = frame_to(end, 1, mac);
  uint64_t random = 1;
  for (size_t bytes = 15; bytes < good.size(); bytes++) {
    raw.send(std::span(good).first(bytes));
    std::vector<std::byte> noise(good.begin(), good.begin() + 14);
    for (size_t i = 0; i < bytes; i++) {
      random = random * 6364136223846793005 + 1;
      noise.push_back(static_cast<std::byte>(random >> 56));
    }
    raw.send(noise);
  }
  raw.send(frame_to(end, 2, mac));
  EXPECT_TRUE(run_until({&end}, [&] { return !end.got.empty(); }));
  ASSERT_EQ(end.got.size(), 1u);
  EXPECT_EQ(end.got[0].number, 2u);
  test::expect_bad_datagrams_are_dropped(end);
}

TEST_F(DpdkFrames, peers_without_a_route_or_a_next_hop_are_named) {
  End end(at_tern0());
  ASSERT_TRUE(end.status.ok()) << end.status.message();
  const auto to = [&](const char* address) {
    return end->connect(ethernet::encode_address({*base::SocketAddress::parse(address), 1472}), "");
  };
  EXPECT_NE(to("192.0.2.1:9").status().message().find("192.0.2.1"), std::string_view::npos);
  EXPECT_EQ(to("[fd77::2]:9").status().code(), Code::kUnavailable);
  const auto silent = to("10.77.0.99:9");
  ASSERT_TRUE(silent.ok()) << silent.status().message();
  EXPECT_EQ(end->peer_state(*silent), PeerState::kConnecting);
  EXPECT_FALSE(end.send(*silent, 1));
  EXPECT_TRUE(run_until({&end}, [&] { return end->peer_state(*silent) == PeerState::kDead; }));
}

TEST_F(DpdkFrames, interface_that_is_deleted_fails_the_endpoint_with_its_name) {
  End end(at_tern0());
  ASSERT_TRUE(end.status.ok()) << end.status.message();
  const PeerId peer = connect(end, *base::SocketAddress::parse("10.77.0.2:4001"));
  ASSERT_TRUE(run("ip link del tern0"));
  EXPECT_TRUE(run_until({&end}, [&] {
    (void)end.send(peer, 1);
    (void)end->prepare_wait();
    end->end_wait();
    return !end->failure().ok();
  }));
  EXPECT_NE(end->failure().message().find("tern0"), std::string_view::npos) << end->failure().message();
}

}  // namespace
}  // namespace tern::transport::dpdk_test
