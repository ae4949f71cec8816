// ARP and neighbour discovery against messages made from the kernel's headers.
#include "frames/neighbour_frame.h"

#include <gtest/gtest.h>
#include <linux/icmpv6.h>
#include <linux/if_arp.h>
#include <linux/if_ether.h>
#include <netinet/ip6.h>

#include <array>
#include <cstring>
#include <string_view>
#include <vector>

using namespace tern::frames;
using tern::base::SocketAddress;
using Kind = NeighbourFrame::Kind;
using Bytes = std::vector<std::byte>;

namespace {

// RFC 4861 4.3, 4.4 and 4.6.1, and NDISC_* of net/ndisc.h.
constexpr uint8_t kSolicit = 135, kAdvert = 136, kRouterAdvert = 134, kSourceOption = 1, kTargetOption = 2;

const MacAddress kOwnMac({2, 0, 0, 0, 0, 1});
const MacAddress kOtherMac({2, 0, 0, 0, 0, 2});

SocketAddress ip(std::string_view text) { return SocketAddress::parse_ip(text).value(); }
SocketAddress any6() { return ip("::"); }

template <class T>
void append(Bytes& bytes, const T& value) {
  const auto* const first = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), first, first + sizeof(value));
}
void append_all(Bytes& bytes, std::span<const std::byte> more) { bytes.insert(bytes.end(), more.begin(), more.end()); }

Bytes ethernet(const MacAddress& to, const MacAddress& from, uint16_t type, uint16_t vlan = 0) {
  Bytes frame;
  append_all(frame, to.bytes());
  append_all(frame, from.bytes());
  if (vlan != 0) {
    append(frame, htons(ETH_P_8021Q));
    append(frame, htons(vlan));
  }
  append(frame, htons(type));
  return frame;
}

struct Arp {
  uint16_t operation = ARPOP_REQUEST;
  MacAddress sender_mac = kOtherMac;
  SocketAddress sender = ip("10.0.0.2");
  MacAddress target_mac = MacAddress();
  SocketAddress target = ip("10.0.0.1");
};

/// Makes a frame from struct arphdr of linux/if_arp.h and RFC 826.
Bytes arp_frame(const Arp& message, const MacAddress& to = MacAddress::broadcast(), uint16_t vlan = 0) {
  Bytes frame = ethernet(to, kOtherMac, ETH_P_ARP, vlan);
  arphdr header{};
  header.ar_hrd = htons(ARPHRD_ETHER);
  header.ar_pro = htons(ETH_P_IP);
  header.ar_hln = ETH_ALEN;
  header.ar_pln = 4;
  header.ar_op = htons(message.operation);
  append(frame, header);
  append_all(frame, message.sender_mac.bytes());
  append_all(frame, message.sender.ip());
  append_all(frame, message.target_mac.bytes());
  append_all(frame, message.target.ip());
  return frame;
}

struct Ndp {
  uint8_t type = kSolicit;
  SocketAddress source = ip("fd00::2");
  SocketAddress destination = solicited_node(ip("fd00::1"));
  SocketAddress target = ip("fd00::1");
  bool is_solicited = false;
  bool is_override = false;
  std::vector<uint8_t> options = {kSourceOption, 1, 2, 0, 0, 0, 0, 2};
  uint8_t hops = 255;
};

/// The checksum of RFC 1071, 16 bits at a time.
uint16_t checksum(const Bytes& bytes) {
  uint32_t sum = 0;
  for (size_t i = 0; i < bytes.size(); i++) sum += static_cast<uint32_t>(bytes[i]) << (i % 2 == 0 ? 8 : 0);
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

/// Makes a frame from struct icmp6hdr of linux/icmpv6.h.
Bytes ndp_frame(const Ndp& message, const MacAddress& to = kOwnMac, uint16_t vlan = 0) {
  icmp6hdr icmp{};
  icmp.icmp6_type = message.type;
  icmp.icmp6_solicited = message.is_solicited;
  icmp.icmp6_override = message.is_override;
  Bytes body;
  append(body, icmp);
  append_all(body, message.target.ip());
  append_all(body, std::as_bytes(std::span(message.options)));

  ip6_hdr header{};
  header.ip6_flow = htonl(6u << 28);
  header.ip6_plen = htons(static_cast<uint16_t>(body.size()));
  header.ip6_nxt = IPPROTO_ICMPV6;
  header.ip6_hlim = message.hops;
  std::memcpy(&header.ip6_src, message.source.ip().data(), 16);
  std::memcpy(&header.ip6_dst, message.destination.ip().data(), 16);

  Bytes summed;
  append_all(summed, message.source.ip());
  append_all(summed, message.destination.ip());
  append(summed, htonl(static_cast<uint32_t>(body.size())));
  append(summed, htonl(IPPROTO_ICMPV6));
  append_all(summed, body);
  icmp.icmp6_cksum = htons(checksum(summed));
  std::memcpy(body.data(), &icmp, sizeof(icmp));

  Bytes frame = ethernet(to, kOtherMac, ETH_P_IPV6, vlan);
  append(frame, header);
  append_all(frame, body);
  return frame;
}

Bytes made(const NeighbourFrame& message, uint16_t vlan = 0) {
  const NeighbourFrameBytes bytes(message, vlan);
  return {bytes.bytes().begin(), bytes.bytes().end()};
}
Bytes padded(Bytes frame) {
  if (frame.size() < 60) frame.resize(60);
  return frame;
}
bool is_good(const Bytes& frame, uint16_t vlan = 0) { return parse_neighbour_frame(frame, vlan).has_value(); }

}  // namespace

TEST(NeighbourFrame, arp_is_made_as_the_kernels_header_says) {
  const SocketAddress own = ip("10.0.0.2"), other = ip("10.0.0.1");
  EXPECT_EQ(made(NeighbourFrame::question(other, std::nullopt, own, kOtherMac)), padded(arp_frame({})));
  EXPECT_EQ(made(NeighbourFrame::question(other, kOwnMac, own, kOtherMac)), padded(arp_frame({}, kOwnMac)));
  EXPECT_EQ(made(NeighbourFrame::probe(other, kOtherMac)), padded(arp_frame({.sender = ip("0.0.0.0")})));
  EXPECT_EQ(made(NeighbourFrame::announcement(own, kOtherMac)), padded(arp_frame({.target = own})));
  EXPECT_EQ(made(NeighbourFrame::question(other, std::nullopt, own, kOtherMac), 77),
            padded(arp_frame({}, MacAddress::broadcast(), 77)));
  // The answer from 10.0.0.2 to 10.0.0.1.
  const auto asked = parse_neighbour_frame(made(NeighbourFrame::question(own, std::nullopt, other, kOwnMac)), 0);
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(made(NeighbourFrame::answer_to(*asked, kOtherMac)),
            padded(arp_frame({.operation = ARPOP_REPLY, .target_mac = kOwnMac}, kOwnMac)));
}

TEST(NeighbourFrame, ndp_is_made_as_the_kernels_header_says) {
  const SocketAddress own = ip("fd00::2"), other = ip("fd00::1");
  const MacAddress group({0x33, 0x33, 0xff, 0, 0, 1});
  const std::vector<uint8_t> target_option = {kTargetOption, 1, 2, 0, 0, 0, 0, 2};
  EXPECT_EQ(made(NeighbourFrame::question(other, std::nullopt, own, kOtherMac)), ndp_frame({}, group));
  EXPECT_EQ(made(NeighbourFrame::question(other, kOwnMac, own, kOtherMac)), ndp_frame({.destination = other}));
  EXPECT_EQ(made(NeighbourFrame::probe(other, kOtherMac)), ndp_frame({.source = any6(), .options = {}}, group));
  EXPECT_EQ(
      made(NeighbourFrame::announcement(own, kOtherMac)),
      ndp_frame(
          {.type = kAdvert, .destination = ip("ff02::1"), .target = own, .is_override = true, .options = target_option},
          MacAddress({0x33, 0x33, 0, 0, 0, 1})));
  EXPECT_EQ(made(NeighbourFrame::question(other, std::nullopt, own, kOtherMac), 77), ndp_frame({}, group, 77));
  const auto asked = parse_neighbour_frame(made(NeighbourFrame::question(own, std::nullopt, other, kOwnMac)), 0);
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(made(NeighbourFrame::answer_to(*asked, kOtherMac)), ndp_frame({.type = kAdvert,
                                                                           .destination = other,
                                                                           .target = own,
                                                                           .is_solicited = true,
                                                                           .is_override = true,
                                                                           .options = target_option}));
  const auto probed = parse_neighbour_frame(made(NeighbourFrame::probe(own, kOwnMac)), 0);
  ASSERT_TRUE(probed.has_value());
  EXPECT_EQ(NeighbourFrame::answer_to(*probed, kOtherMac), NeighbourFrame::announcement(own, kOtherMac));
}

TEST(NeighbourFrame, encoded_messages_are_decoded_alike) {
  for (const bool is_ipv6 : {false, true}) {
    const SocketAddress own = ip(is_ipv6 ? "fd00::2" : "10.0.0.2"), other = ip(is_ipv6 ? "fe80::1" : "10.0.0.1");
    const NeighbourFrame question = NeighbourFrame::question(other, std::nullopt, own, kOwnMac);
    for (const NeighbourFrame& message :
         {NeighbourFrame::probe(own, kOwnMac), NeighbourFrame::announcement(own, kOwnMac), question,
          NeighbourFrame::question(other, kOtherMac, own, kOwnMac), NeighbourFrame::answer_to(question, kOtherMac)}) {
      for (const uint16_t vlan : {uint16_t{0}, uint16_t{1}, kVlanMax}) {
        const Bytes frame = made(message, vlan);
        EXPECT_TRUE(is_neighbour_frame(frame, vlan));
        EXPECT_EQ(parse_neighbour_frame(frame, vlan), message);
        EXPECT_FALSE(is_neighbour_frame(frame, 2));
        EXPECT_FALSE(is_good(frame, 2));
      }
    }
  }
}

TEST(NeighbourFrame, arp_has_the_addresses_of_both_hosts) {
  const auto request = parse_neighbour_frame(arp_frame({}), 0);
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->kind, Kind::kSolicitation);
  EXPECT_EQ(request->source, ip("10.0.0.2"));
  EXPECT_EQ(request->target, ip("10.0.0.1"));
  EXPECT_EQ(request->mac, kOtherMac);

  const auto reply = parse_neighbour_frame(arp_frame({.operation = ARPOP_REPLY}, kOwnMac), 0);
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->kind, Kind::kAdvertisement);
  EXPECT_EQ(reply->target, ip("10.0.0.2"));
  EXPECT_EQ(reply->destination, ip("10.0.0.1"));
  EXPECT_TRUE(reply->is_solicited);

  // Announcements and a broadcast reply.
  for (const uint16_t operation : {ARPOP_REQUEST, ARPOP_REPLY}) {
    const auto news = parse_neighbour_frame(arp_frame({.operation = operation, .target = ip("10.0.0.2")}), 0);
    ASSERT_TRUE(news.has_value());
    EXPECT_EQ(news->kind, Kind::kAdvertisement);
    EXPECT_EQ(news->target, ip("10.0.0.2"));
    EXPECT_TRUE(!news->is_solicited && news->is_override);
  }
  EXPECT_FALSE(parse_neighbour_frame(arp_frame({.operation = ARPOP_REPLY}), 0)->is_solicited);
}

TEST(NeighbourFrame, bad_arp_is_refused) {
  for (const uint16_t operation : {uint16_t{0}, uint16_t{ARPOP_RREQUEST}, uint16_t{ARPOP_InREPLY}, uint16_t{0x0100}}) {
    EXPECT_FALSE(is_good(arp_frame({.operation = operation}))) << operation;
  }
  for (const auto& mac : {MacAddress(), MacAddress::broadcast(), MacAddress({1, 0, 0x5e, 0, 0, 1})}) {
    EXPECT_FALSE(is_good(arp_frame({.sender_mac = mac}))) << mac.to_text();
  }
  for (const char* sender : {"255.255.255.255", "224.0.0.1", "127.0.0.1"}) {
    EXPECT_FALSE(is_good(arp_frame({.sender = ip(sender)}))) << sender;
  }
  for (const char* target : {"255.255.255.255", "224.0.0.1", "127.0.0.1", "0.0.0.0"}) {
    EXPECT_FALSE(is_good(arp_frame({.target = ip(target)}))) << target;
  }
  EXPECT_FALSE(is_good(arp_frame({.operation = ARPOP_REPLY, .sender = ip("0.0.0.0")})));
  EXPECT_FALSE(is_good(arp_frame({.sender = ip("0.0.0.0"), .target = ip("0.0.0.0")})));
  for (const size_t at : {0, 1, 2, 3, 4, 5}) {  // hardware and protocol types and the lengths of their addresses
    Bytes frame = arp_frame({});
    frame[ETH_HLEN + at] ^= std::byte{2};
    EXPECT_FALSE(is_good(frame)) << at;
  }
  Bytes from_group = arp_frame({});
  from_group[6] = std::byte{3};
  EXPECT_FALSE(is_good(from_group));
}

TEST(NeighbourFrame, bad_ndp_is_refused) {
  EXPECT_TRUE(is_good(ndp_frame({})));
  const Ndp answer{
      .type = kAdvert, .destination = ip("fd00::1"), .target = ip("fd00::2"), .is_solicited = true, .options = {}};
  EXPECT_TRUE(is_good(ndp_frame(answer)));
  const auto bad = [](Ndp message, auto&& change) {
    change(message);
    return !is_good(ndp_frame(message));
  };
  EXPECT_TRUE(bad({}, [](Ndp& m) { m.hops = 254; }));  // the message comes from another network
  EXPECT_TRUE(bad({}, [](Ndp& m) { m.type = kRouterAdvert; }));
  EXPECT_TRUE(bad({}, [](Ndp& m) { m.target = ip("ff02::1"); }));
  EXPECT_TRUE(bad({}, [](Ndp& m) { m.target = ip("::"); }));
  EXPECT_TRUE(bad({}, [](Ndp& m) { m.target = ip("::1"); }));
  EXPECT_TRUE(bad({}, [](Ndp& m) { m.source = ip("ff02::2"); }));
  EXPECT_TRUE(bad({}, [](Ndp& m) { m.source = ip("::1"); }));
  // The source is the unspecified address, but an option is present.
  EXPECT_TRUE(bad({}, [](Ndp& m) { m.source = any6(); }));
  EXPECT_TRUE(bad({.source = any6(), .options = {}}, [](Ndp& m) { m.destination = m.target; }));
  EXPECT_TRUE(bad(answer, [](Ndp& m) { m.source = any6(); }));
  // A solicited answer to the multicast address of all nodes.
  EXPECT_TRUE(bad(answer, [](Ndp& m) { m.destination = ip("ff02::1"); }));
  EXPECT_TRUE(bad({}, [](Ndp& m) { m.options[1] = 0; }));
  EXPECT_TRUE(bad({}, [](Ndp& m) { m.options[1] = 2; }));  // the option goes beyond the end of the message
  EXPECT_TRUE(bad({}, [](Ndp& m) { m.options.resize(9); }));
  EXPECT_TRUE(bad({}, [](Ndp& m) { m.options[2] = 3; }));  // the MAC address of a group
  EXPECT_TRUE(bad({}, [](Ndp& m) { std::fill(m.options.begin() + 2, m.options.end(), 0); }));
}

TEST(NeighbourFrame, ndp_with_a_wrong_byte_is_refused) {
  const Bytes good = ndp_frame({});
  for (size_t at = ETH_HLEN; at < good.size(); at++) {
    Bytes frame = good;
    frame[at] ^= std::byte{0x10};
    const size_t in_header = at - ETH_HLEN;
    const bool is_free = in_header > 0 && in_header < 4;  // the traffic class and the flow label
    EXPECT_EQ(is_good(frame), is_free) << at;
  }
}

TEST(NeighbourFrame, ipv4_mapped_addresses_are_refused) {
  std::array<std::byte, 16> mapped{};
  mapped[10] = mapped[11] = std::byte{0xff};
  mapped[15] = std::byte{9};
  Bytes frame = ndp_frame({});
  const size_t target_at = ETH_HLEN + 40 + 8;
  // The sum does not change: the two halves of the address are 0xfd00 + 1, and 0xffff + 9 less 0xffff.
  std::memcpy(&frame[target_at], mapped.data(), mapped.size());
  const uint16_t old = static_cast<uint16_t>(~0xfd01);
  const uint16_t now = 9;
  uint16_t sum = 0;
  std::memcpy(&sum, &frame[ETH_HLEN + 42], 2);
  uint32_t fixed = static_cast<uint16_t>(~ntohs(sum)) + uint32_t{old} + now;
  while (fixed >> 16 != 0) fixed = (fixed & 0xffff) + (fixed >> 16);
  sum = htons(static_cast<uint16_t>(~fixed));
  std::memcpy(&frame[ETH_HLEN + 42], &sum, 2);
  EXPECT_FALSE(is_good(frame));
  frame[target_at + 10] = std::byte{0xfe};  // the same frame with another prefix is valid
  frame[target_at + 11] = std::byte{0xff};
  sum = htons(static_cast<uint16_t>(ntohs(sum) + 0x100));
  std::memcpy(&frame[ETH_HLEN + 42], &sum, 2);
  EXPECT_TRUE(is_good(frame));
}

TEST(NeighbourFrame, unknown_options_are_skipped_and_other_lengths_are_no_ethernet_address) {
  Ndp message;
  message.options.insert(message.options.begin(), {14, 1, 1, 2, 3, 4, 5, 6});  // a nonce (RFC 3971)
  auto frame = parse_neighbour_frame(ndp_frame(message), 0);
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(frame->mac, kOtherMac);
  message.options = std::vector<uint8_t>(16, 0);  // the address of another type of link
  message.options[0] = kSourceOption;
  message.options[1] = 2;
  frame = parse_neighbour_frame(ndp_frame(message), 0);
  ASSERT_TRUE(frame.has_value());
  EXPECT_FALSE(frame->mac.has_value());
}

TEST(NeighbourFrame, cut_frames_are_refused_and_read_no_further) {
  for (const uint16_t vlan : {0, 77}) {
    for (const Bytes& whole : {arp_frame({}, kOwnMac, vlan), ndp_frame({}, kOwnMac, vlan)}) {
      for (size_t bytes = 0; bytes < whole.size(); bytes++) {
        // ASan reports a read beyond the end.
        const Bytes cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(bytes));
        EXPECT_FALSE(is_good(cut, vlan)) << bytes;
        (void)is_neighbour_frame(cut, vlan);
      }
      Bytes longer = whole;
      longer.resize(1500, std::byte{0xaa});
      EXPECT_TRUE(is_good(longer, vlan));
    }
  }
}
