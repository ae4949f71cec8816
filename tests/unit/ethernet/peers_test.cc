// The table of peers over a resolver whose answers the test chooses.
#include "ethernet/peers.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "unit/ethernet/fake_resolver.h"

namespace tern::ethernet {
namespace {

using neighbours::State;

const frames::MacAddress kOwnMac({2, 0, 0, 0, 0, 1}), kMac({2, 0, 0, 0, 0, 2}), kOtherMac({2, 0, 0, 0, 0, 3});
constexpr const char* kIp = "10.0.0.2";

class PeersTest : public ::testing::Test {
 protected:
  PeersTest() {
    auto made = std::make_unique<ethernet_test::FakeResolver>();
    resolver = made.get();
    peers.start(std::move(made), {*base::SocketAddress::parse("10.0.0.1:4000"), kOwnMac, 1472, 0, 0});
  }
  static EndpointAddress at(const char* end, uint16_t datagram_bytes = 1472) {
    return {*base::SocketAddress::parse(end), datagram_bytes};
  }
  uint32_t connect(const char* end = "10.0.0.2:4000", uint16_t datagram_bytes = 1472) {
    auto peer = peers.connect(at(end, datagram_bytes), 1);
    EXPECT_TRUE(peer.ok()) << peer.status().message();
    return peer.ok() ? *peer : 0;
  }
  /// Returns the source and destination MAC addresses in frames to the peer.
  std::pair<frames::MacAddress, frames::MacAddress> macs(uint32_t peer) {
    std::array<std::byte, frames::kHeaderBytesMax> headers{};
    peers.route(peer).headers.write(headers.data(), 100);
    return {frames::MacAddress::from_bytes(std::span(headers).subspan(6)), frames::MacAddress::from_bytes(headers)};
  }

  ethernet_test::FakeResolver* resolver = nullptr;
  Peers peers{{"wire", "Wire"}};
};

TEST_F(PeersTest, address__of_a_stranger__is_checked) {
  const auto code_of = [&](const EndpointAddress& address) {
    return peers.read(encode_address(address)).status().code();
  };
  EXPECT_EQ(code_of(at("10.0.0.2:4000")), Code::kOk);
  EXPECT_EQ(code_of(at("10.0.0.2:4000", 536)), Code::kOk);
  EXPECT_EQ(code_of(at("10.0.0.2:4000", 535)), Code::kMisuse);
  EXPECT_EQ(code_of(at("10.0.0.2:0")), Code::kMisuse);
  EXPECT_EQ(code_of(at("[fe80::2]:4000")), Code::kMisuse);
  EXPECT_EQ(code_of(at("[2001:db8::2]:4000")), Code::kUnavailable);
  const Status status = peers.read(std::array<std::byte, 3>{}).status();
  EXPECT_EQ(status.message().substr(0, 6), "wire: ");
  EXPECT_NE(status.message().find("endpoint over wire"), std::string_view::npos) << status.message();
}

TEST_F(PeersTest, same_address__is_the_same_peer__until_its_last_disconnect) {
  const uint32_t peer = connect();
  EXPECT_EQ(connect(), peer);
  const uint32_t other = connect("10.0.0.2:4001");
  EXPECT_NE(other, peer);
  EXPECT_NE(connect("10.0.0.2:4000", 1000), peer) << "another datagram size is another endpoint";
  EXPECT_EQ(resolver->references(kIp), 3u);
  EXPECT_FALSE(peers.is_last(peer));
  peers.disconnect(peer);
  EXPECT_TRUE(peers.is_last(peer));
  EXPECT_FALSE(peers.is_dead(peer));
  peers.disconnect(peer);
  EXPECT_TRUE(peers.is_dead(peer));
  EXPECT_EQ(resolver->references(kIp), 2u);
  EXPECT_EQ(connect("10.0.0.3:1"), peer) << "its number is used again";
  EXPECT_FALSE(peers.is_ready(peer));
}

TEST_F(PeersTest, peer__is_ready_when_its_mac_address_is_known__and_keeps_it) {
  const uint32_t peer = connect();
  EXPECT_FALSE(peers.is_ready(peer));
  EXPECT_FALSE(peers.is_dead(peer));
  resolver->set(kIp, State::kKnown, kMac);
  EXPECT_FALSE(peers.update(2));
  ASSERT_TRUE(peers.is_ready(peer));
  EXPECT_EQ(macs(peer), std::pair(kOwnMac, kMac));

  resolver->set(kIp, State::kFailed);
  peers.update(3);
  EXPECT_TRUE(peers.is_ready(peer));
  EXPECT_FALSE(peers.is_dead(peer));
  EXPECT_EQ(macs(peer), std::pair(kOwnMac, kMac));
  resolver->set(kIp, State::kKnown, kOtherMac);
  peers.update(4);
  EXPECT_EQ(macs(peer), std::pair(kOwnMac, kOtherMac));
}

TEST_F(PeersTest, change_of_a_neighbour__reaches_all_its_peers_and_no_other) {
  const uint32_t one = connect("10.0.0.2:1"), two = connect("10.0.0.2:2"), gone = connect("10.0.0.2:3");
  const uint32_t other = connect("10.0.0.3:1");
  peers.disconnect(gone);
  resolver->set(kIp, State::kKnown, kMac);
  peers.update(2);
  EXPECT_TRUE(peers.is_ready(one));
  EXPECT_TRUE(peers.is_ready(two));
  EXPECT_FALSE(peers.is_ready(gone));
  EXPECT_FALSE(peers.is_ready(other));
}

TEST_F(PeersTest, unreachable_peer__is_dead__and_is_refused_at_once_if_that_is_known) {
  const uint32_t peer = connect();
  resolver->set(kIp, State::kFailed);
  peers.update(2);
  EXPECT_TRUE(peers.is_dead(peer));
  const auto again = peers.connect(at("10.0.0.2:4001"), 3);
  EXPECT_EQ(again.status().message(), "it does not answer");
  EXPECT_EQ(resolver->references(kIp), 1u);
  resolver->find_failure = {Code::kNoMemory, "no memory"};
  EXPECT_EQ(peers.connect(at("10.0.0.4:1"), 3).status().code(), Code::kNoMemory);
}

TEST_F(PeersTest, datagrams__have_the_smaller_size_of_both) {
  EXPECT_EQ(peers.route(connect("10.0.0.2:1", 1000)).datagram_bytes, 1000u);
  EXPECT_EQ(peers.route(connect("10.0.0.2:2", 9000)).datagram_bytes, 1472u);
}

TEST_F(PeersTest, own_mac__changes_in_the_headers_of_peers_that_are_ready) {
  const uint32_t ready = connect("10.0.0.2:1"), asking = connect("10.0.0.3:1");
  resolver->set(kIp, State::kKnown, kMac);
  peers.update(2);
  peers.set_own_mac(kOtherMac);
  EXPECT_EQ(macs(ready), std::pair(kOtherMac, kMac));
  EXPECT_FALSE(peers.is_ready(asking));
  EXPECT_EQ(peers.own().mac, kOtherMac);
}

TEST_F(PeersTest, interface_change__is_reported__with_the_reason_of_an_end) {
  resolver->is_interface_changed = true;
  EXPECT_TRUE(peers.update(2));
  EXPECT_TRUE(peers.own_failure().ok());
  EXPECT_FALSE(peers.update(3));
  resolver->own_status = {Code::kUnavailable, "the address is gone"};
  EXPECT_EQ(peers.own_failure().message().substr(0, 25), "wire: the address is gone");
}

TEST_F(PeersTest, failed_table__has_dead_peers_only) {
  const uint32_t ready = connect("10.0.0.2:1"), asking = connect("10.0.0.3:1");
  resolver->set(kIp, State::kKnown, kMac);
  peers.update(2);
  peers.fail();
  resolver->set("10.0.0.3", State::kKnown, kMac);
  peers.update(3);
  for (const uint32_t peer : {ready, asking}) {
    EXPECT_TRUE(peers.is_dead(peer));
    EXPECT_FALSE(peers.is_ready(peer));
  }
}

}  // namespace
}  // namespace tern::ethernet
