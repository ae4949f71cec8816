#include "frames/frame_template.h"

#include <gtest/gtest.h>
#include <linux/if_ether.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/udp.h>

#include <random>
#include <set>

#include "frames/parse.h"
#include "fuzz/frame_reference.h"

using namespace tern::frames;
using reference::as_frame;
using reference::Bytes;
using reference::Fields;
using tern::base::SocketAddress;

namespace {

constexpr uint8_t kGuard = 0xa5;  // surrounds the written bytes

FrameTemplate::Ends ends(bool is_ipv6, uint16_t vlan = 0) {
  FrameTemplate::Ends ends;
  ends.source_mac = *MacAddress::parse("02:00:5e:00:00:01");
  ends.destination_mac = *MacAddress::parse("02:00:5e:00:00:02");
  ends.source = *SocketAddress::parse(is_ipv6 ? "[fd77::1]:40001" : "10.77.0.1:40001");
  ends.destination = *SocketAddress::parse(is_ipv6 ? "[fd77::2]:40002" : "10.77.0.2:40002");
  ends.vlan = vlan;
  return ends;
}

/// Returns the result of write(), and checks the bytes around it.
Bytes headers_of(const FrameTemplate& frame_template, size_t payload_bytes) {
  constexpr size_t kFront = 3;  // an odd alignment
  Bytes bytes(kFront + kHeaderBytesMax + 64, kGuard);
  frame_template.write(std::as_writable_bytes(std::span(bytes)).data() + kFront, payload_bytes);
  const size_t end = kFront + frame_template.header_bytes();
  for (size_t i = 0; i < bytes.size(); i++) {
    if (i < kFront || i >= end) {
      EXPECT_EQ(bytes[i], kGuard) << "byte " << i << " is none of the headers";
    }
  }
  return Bytes(bytes.begin() + kFront, bytes.begin() + static_cast<ptrdiff_t>(end));
}

/// Returns a whole frame, with the checksum computed in software over two ranges.
Bytes frame_of(const FrameTemplate& frame_template, const Bytes& payload, size_t split) {
  Bytes frame = headers_of(frame_template, payload.size());
  frame_template.complete_udp_checksum(std::as_writable_bytes(std::span(frame)).data(), as_frame(payload).first(split),
                                       as_frame(payload).subspan(split));
  reference::put_all(frame, payload);
  return frame;
}

uint32_t flow_label_of(const Bytes& headers, size_t ip_at) {
  return (headers[ip_at + 1] & 15u) << 16 | headers[ip_at + 2] << 8u | headers[ip_at + 3];
}

template <class Header>
Header header_at(const Bytes& frame, size_t at) {
  Header header;
  std::memcpy(&header, frame.data() + at, sizeof(header));
  return header;
}

}  // namespace

TEST(FrameTemplate, ipv4_bytes_written_by_hand) {
  const FrameTemplate frame_template(ends(false));
  const Bytes expected = {
      0x02, 0x00, 0x5e, 0x00, 0x00, 0x02, 0x02, 0x00, 0x5e, 0x00, 0x00, 0x01, 0x08, 0x00,  // Ethernet
      0x45, 0x00, 0x00, 0x21, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0x26, 0x30,              // 33 bytes, UDP, ~d9cf
      0x0a, 0x4d, 0x00, 0x01, 0x0a, 0x4d, 0x00, 0x02,                                      // addresses
      0x9c, 0x41, 0x9c, 0x42, 0x00, 0x0d, 0x14, 0xbb,  // 13 bytes; 0a4d + 1 + 0a4d + 2 + 11 + 0d = 14bb
  };
  EXPECT_EQ(frame_template.header_bytes(), 42u);
  EXPECT_EQ(headers_of(frame_template, 5), expected);
}

TEST(FrameTemplate, ipv6_in_a_vlan_bytes_written_by_hand) {
  FrameTemplate::Ends in_vlan = ends(true, 0x123);
  in_vlan.vlan_priority = 5;
  in_vlan.traffic_class = 0xb8;
  const FrameTemplate frame_template(in_vlan);
  const Bytes expected = {
      0x02, 0x00, 0x5e, 0x00, 0x00, 0x02, 0x02, 0x00, 0x5e, 0x00, 0x00, 0x01, 0x81, 0x00,
      0xa1, 0x23, 0x86, 0xdd, 0x6b, 0x85, 0xa6, 0x63,  // 9c419c42 * 9e3779b1 ends in 5a663ba2: label 5a663
      0x00, 0x0d, 0x11, 0x40,                          // 13 bytes, UDP, 64 hops
      0xfd, 0x77, 0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,
      0,    1,    0xfd, 0x77, 0,    0,    0,    0,    0,    0,    0,    0,    0,    0,
      0,    0,    0,    2,    0x9c, 0x41, 0x9c, 0x42, 0x00, 0x0d, 0xfb, 0x10,  // fd77 + 1 + fd77 + 2 + 11 + 0d = 1fb0f,
                                                                               // with its carry fb10
  };
  EXPECT_EQ(frame_template.header_bytes(), 66u);
  EXPECT_EQ(headers_of(frame_template, 5), expected);
}

TEST(FrameTemplate, kernel_headers_read_ipv4) {
  const FrameTemplate::Ends of = ends(false);
  const Bytes bytes = headers_of(FrameTemplate(of), 100);
  const auto link = header_at<ethhdr>(bytes, 0);
  EXPECT_EQ(MacAddress::from_bytes(std::as_bytes(std::span(link.h_dest))), of.destination_mac);
  EXPECT_EQ(MacAddress::from_bytes(std::as_bytes(std::span(link.h_source))), of.source_mac);
  EXPECT_EQ(ntohs(link.h_proto), ETH_P_IP);
  const auto ip = header_at<iphdr>(bytes, ETH_HLEN);
  EXPECT_EQ(ip.version, 4);
  EXPECT_EQ(ip.ihl, 5);
  EXPECT_EQ(ntohs(ip.tot_len), sizeof(iphdr) + sizeof(udphdr) + 100);
  EXPECT_EQ(ntohs(ip.frag_off), IP_DF);
  EXPECT_EQ(ip.id, 0);
  EXPECT_EQ(ip.ttl, 64);
  EXPECT_EQ(ip.protocol, IPPROTO_UDP);
  EXPECT_EQ(ntohl(ip.saddr), 0x0a4d0001u);
  EXPECT_EQ(ntohl(ip.daddr), 0x0a4d0002u);
  const auto udp = header_at<udphdr>(bytes, ETH_HLEN + sizeof(iphdr));
  EXPECT_EQ(ntohs(udp.uh_sport), 40001);
  EXPECT_EQ(ntohs(udp.uh_dport), 40002);
  EXPECT_EQ(ntohs(udp.uh_ulen), sizeof(udphdr) + 100);
}

TEST(FrameTemplate, kernel_headers_read_ipv6_in_a_vlan) {
  FrameTemplate::Ends of = ends(true, 7);
  of.traffic_class = 0x2e;
  const Bytes bytes = headers_of(FrameTemplate(of), 100);
  EXPECT_EQ(ntohs(header_at<ethhdr>(bytes, 0).h_proto), ETH_P_8021Q);
  EXPECT_EQ(header_at<uint16_t>(bytes, ETH_HLEN), htons(7));
  EXPECT_EQ(header_at<uint16_t>(bytes, ETH_HLEN + 2), htons(ETH_P_IPV6));
  const auto ip = header_at<ip6_hdr>(bytes, ETH_HLEN + 4);
  EXPECT_EQ(ntohl(ip.ip6_flow) >> 20, 0x62eu);
  EXPECT_NE(ntohl(ip.ip6_flow) & 0xfffff, 0u);
  EXPECT_EQ(ntohs(ip.ip6_plen), sizeof(udphdr) + 100);
  EXPECT_EQ(ip.ip6_nxt, IPPROTO_UDP);
  EXPECT_EQ(ip.ip6_hlim, 64);
  EXPECT_EQ(std::memcmp(&ip.ip6_src, of.source.ip().data(), 16), 0);
  EXPECT_EQ(std::memcmp(&ip.ip6_dst, of.destination.ip().data(), 16), 0);
}

TEST(FrameTemplate, headers_equal_the_reference_for_every_shape_and_length) {
  for (const bool is_ipv6 : {false, true}) {
    for (const uint16_t vlan : {0, 1, 4094}) {
      FrameTemplate::Ends of = ends(is_ipv6, vlan);
      of.traffic_class = 0x5a;
      const FrameTemplate frame_template(of);
      for (const size_t payload_bytes : {0, 1, 24, 1472, 8000, 65507}) {
        Fields fields(is_ipv6, vlan);
        fields.traffic_class = 0x5a;
        fields.payload.assign(payload_bytes, 0x77);
        fields.flow_label = is_ipv6 ? flow_label_of(headers_of(frame_template, 0), vlan != 0 ? 18 : 14) : 0;
        EXPECT_EQ(frame_of(frame_template, fields.payload, payload_bytes), fields.frame());
        EXPECT_EQ(frame_of(frame_template, fields.payload, payload_bytes / 3), fields.frame());
      }
    }
  }
}

TEST(FrameTemplate, checksum_of_every_split_equals_the_whole) {
  std::mt19937 random(1);
  const FrameTemplate frame_template(ends(true));
  Bytes payload(67);
  for (uint8_t& byte : payload) byte = static_cast<uint8_t>(random());
  const Bytes whole = frame_of(frame_template, payload, 0);
  for (size_t split = 1; split <= payload.size(); split++) EXPECT_EQ(frame_of(frame_template, payload, split), whole);
}

TEST(FrameTemplate, udp_checksum_of_zero_is_sent_as_ones) {
  const FrameTemplate frame_template(ends(false));
  bool is_found = false;
  for (uint32_t value = 0; value < 0x10000; value++) {  // one of these values makes the sum 0xffff
    const Bytes payload = {static_cast<uint8_t>(value >> 8), static_cast<uint8_t>(value)};
    const Bytes frame = frame_of(frame_template, payload, 1);
    ASSERT_TRUE(frame[40] != 0 || frame[41] != 0) << value;
    if (frame[40] != 0xff || frame[41] != 0xff) continue;
    is_found = true;
    EXPECT_EQ(FrameParser(reference::own()).parse(as_frame(frame), {}).drop, Drop::kNone);
  }
  EXPECT_TRUE(is_found);
}

TEST(FrameTemplate, another_next_hop_changes_the_destination_mac_only) {
  FrameTemplate frame_template(ends(false));
  Bytes expected = headers_of(frame_template, 9);
  const MacAddress next_hop({0x02, 1, 2, 3, 4, 5});
  frame_template.set_destination_mac(next_hop);
  EXPECT_EQ(frame_template.destination_mac(), next_hop);
  std::memcpy(expected.data(), next_hop.bytes().data(), 6);
  EXPECT_EQ(headers_of(frame_template, 9), expected);
}

TEST(FrameTemplate, flow_labels_of_neighbouring_ports_differ_and_are_never_zero) {
  FrameTemplate::Ends of = ends(true);
  std::set<uint32_t> labels;
  for (uint16_t port = 1; port <= 100; port++) {
    of.source.set_port(port);
    const uint32_t label = flow_label_of(headers_of(FrameTemplate(of), 0), 14);
    EXPECT_NE(label, 0u);
    labels.insert(label);
  }
  EXPECT_EQ(labels.size(), 100u);
  of.source.set_port(0);
  of.destination.set_port(0);
  EXPECT_EQ(flow_label_of(headers_of(FrameTemplate(of), 0), 14), 1u);
}
