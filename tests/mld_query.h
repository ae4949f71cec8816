// An MLD query (a question about multicast groups), as a querier on the link sends it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/address.h"
#include "frames/ethernet_header.h"
#include "frames/layout.h"
#include "frames/mld.h"
#include "frames/ndp.h"
#include "frames/neighbour_frame.h"

namespace tern::test {

/// `delay` is the field's raw value. `group` "::" means all groups.
inline std::vector<std::byte> mld_query(frames::MldVersion version, std::string_view group, uint16_t delay,
                                        uint16_t vlan = 0, std::string_view source = "fe80::1", uint8_t hop_limit = 1) {
  const auto ip = [](std::string_view text) { return base::SocketAddress::parse_ip(text).value(); };
  const size_t message_bytes = version == frames::MldVersion::k2 ? 28 : 24;
  std::vector<std::byte> frame(frames::kEthernetBytes + frames::kVlanTagBytes);
  frame.resize(frames::write_ethernet(frame, frames::group_mac(frames::all_nodes()),
                                      frames::MacAddress({2, 0, 0, 0, 0, 0x99}), vlan, frames::kEtherTypeIpv6));
  const size_t at = frame.size();
  frame.resize(at + frames::kIpv6Bytes + 8 + message_bytes);
  std::byte* const packet = &frame[at];
  packet[0] = std::byte{0x60};
  frames::store16(packet + frames::ipv6::kPayloadLength, static_cast<uint16_t>(8 + message_bytes));
  packet[frames::ipv6::kHopLimit] = std::byte{hop_limit};  // the next header is 0, hop-by-hop options
  std::ranges::copy(ip(source).ip(), packet + frames::ipv6::kSource);
  std::ranges::copy(frames::all_nodes().ip(), packet + frames::ipv6::kDestination);
  constexpr uint8_t kAlert[] = {58, 0, 5, 2, 0, 0, 1, 0};
  std::ranges::copy(std::as_bytes(std::span(kAlert)), packet + frames::kIpv6Bytes);
  const std::span<std::byte> message(packet + frames::kIpv6Bytes + 8, message_bytes);
  message[0] = std::byte{130};
  frames::store16(&message[4], delay);
  std::ranges::copy(ip(group).ip(), &message[8]);
  const uint16_t sum = frames::icmpv6_sum({packet + frames::ipv6::kSource, 32}, message);
  frames::store_raw16(&message[2], static_cast<uint16_t>(~sum));
  return frame;
}

}  // namespace tern::test
