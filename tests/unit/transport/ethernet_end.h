// Common parts of the tests of transports over raw Ethernet: endpoints with an IP address and a port, and hand-made
// frames to them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/address.h"
#include "cable/far.h"
#include "ethernet/endpoint_address.h"
#include "frames/drop.h"
#include "frames/frame_template.h"
#include "unit/transport/end.h"

namespace tern::test {

template <class Impl>
struct EthernetEnd : End<Impl> {
  using End<Impl>::End;

  /// IP and port.
  base::SocketAddress where() const {
    ethernet::EndpointAddress address;
    EXPECT_TRUE(decode_address(this->impl->address(), &address));
    return address.end;
  }
  uint64_t dropped(frames::Drop drop) const { return this->impl->counters().dropped_frames[static_cast<size_t>(drop)]; }
};

/// Connects a new peer of `from` and waits until it is ready.
template <class Impl>
transport::PeerId connect(EthernetEnd<Impl>& from, const base::SocketAddress& to, uint16_t datagram_bytes = 1472) {
  return connect(from, encode_address(ethernet::EndpointAddress{to, datagram_bytes}));
}

/// A good frame with one packet to the endpoint, as a peer at 10.77.0.2 sends it.
template <class Impl>
std::vector<std::byte> frame_to(const EthernetEnd<Impl>& end, uint32_t number, const frames::MacAddress& mac) {
  const std::vector<std::byte> packet = packet_of(number, 40, std::byte{7});
  const frames::FrameTemplate headers({.source_mac = frames::MacAddress({2, 0, 0, 0, 0, 9}),
                                       .destination_mac = mac,
                                       .source = *base::SocketAddress::parse("10.77.0.2:4001"),
                                       .destination = end.where()});
  std::vector<std::byte> frame(headers.header_bytes());
  headers.write(frame.data(), packet.size());
  headers.complete_udp_checksum(frame.data(), packet);
  frame.insert(frame.end(), packet.begin(), packet.end());
  return frame;
}

/// Sends good datagrams that contain no packet, or one and a half. Each bad packet is counted, and each good one
/// arrives.
template <class Impl>
void expect_bad_datagrams_are_dropped(EthernetEnd<Impl>& end) {
  const size_t before = end.got.size();
  const auto& counters = end->counters();
  const FarSocket socket("10.77.0.2:4003");
  const auto send = [&](std::vector<std::byte> bytes) { socket.send(end.where(), bytes); };
  send(std::vector<std::byte>(100, std::byte{0xff}));
  EXPECT_TRUE(run_until({&end}, [&] { return counters.dropped_unparsable == 1; }));
  std::vector<std::byte> bytes = packet_of(3, 8, std::byte{1});
  bytes.resize(bytes.size() + 10, std::byte{0xff});
  send(bytes);
  EXPECT_TRUE(run_until({&end}, [&] { return counters.dropped_unparsable == 2; }));
  bytes = packet_of(4, 8, std::byte{1});
  bytes[1] |= std::byte{wire::kByReference};
  send(bytes);
  EXPECT_TRUE(run_until({&end}, [&] { return counters.dropped_bad_reference == 1; }));
  send({});
  send(packet_of(5, 8, std::byte{1}));
  EXPECT_TRUE(run_until({&end}, [&] { return end.got.size() == before + 2; }));
  EXPECT_EQ(end.got.back().number, 5u);
}

}  // namespace tern::test
