#include "frames/parse.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>

#include "frames/frame_template.h"
#include "fuzz/frame_reference.h"

using namespace tern::frames;
using reference::as_frame;
using reference::Bytes;
using reference::Fields;
using tern::base::SocketAddress;

namespace {

constexpr DeviceChecks kNothing{};
constexpr DeviceChecks kEverything{.ip_header = true, .udp_checksum = true};

struct Shape {
  bool is_ipv6;
  uint16_t vlan;
  FrameParser parser() const { return FrameParser(reference::own(is_ipv6, vlan)); }
  Fields fields() const { return Fields(is_ipv6, vlan); }
};
constexpr Shape kShapes[] = {{false, 0}, {false, 77}, {true, 0}, {true, 77}};

/// Calls parse() with a copy that has no byte behind the frame, so that AddressSanitizer reports a read beyond the end.
Drop drop_of(const FrameParser& parser, const Bytes& frame, DeviceChecks checks) {
  const auto copy = std::make_unique<std::byte[]>(frame.size());
  std::ranges::copy(as_frame(frame), copy.get());
  return parser.parse({copy.get(), frame.size()}, checks).drop;
}

Bytes payload_of(const FrameParser::Datagram& datagram) {
  const auto* first = reinterpret_cast<const uint8_t*>(datagram.payload);
  return Bytes(first, first + datagram.payload_bytes);
}

/// One change to a valid frame, and the drop reason that it causes.
struct Case {
  std::string name;
  Drop drop;
  std::function<void(Fields&)> change;
};

void expect_drops(const Shape& shape, const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    Fields fields = shape.fields();
    one.change(fields);
    const Bytes frame = fields.frame();
    for (const DeviceChecks checks : {kNothing, kEverything}) {
      // The parser trusts a device that reports a wrong checksum as right.
      const bool is_believed = checks.udp_checksum && (one.drop == Drop::kIpChecksum || one.drop == Drop::kUdpChecksum);
      const Drop expected = is_believed ? Drop::kNone : one.drop;
      EXPECT_EQ(name_of(drop_of(shape.parser(), frame, checks)), name_of(expected)) << one.name;
      EXPECT_EQ(reference::parse(reference::own(shape.is_ipv6, shape.vlan), frame, checks).drop, expected) << one.name;
    }
  }
}

/// The cases of both address families.
const std::vector<Case> kOfBoth = {
    {"nothing", Drop::kNone, [](Fields&) {}},
    {"another Ethernet address", Drop::kOtherMac, [](Fields& f) { f.destination_mac[5] ^= 1; }},
    {"Ethernet broadcast", Drop::kOtherMac, [](Fields& f) { f.destination_mac = Bytes(6, 0xff); }},
    {"ARP", Drop::kOtherType, [](Fields& f) { f.ether_type = 0x0806; }},
    {"the other IP", Drop::kOtherType, [](Fields& f) { f.ether_type ^= 0x0800 ^ 0x86dd; }},
    {"a tag of a provider", Drop::kVlan,
     [](Fields& f) {
       f.tags.insert(f.tags.begin(), {0x88a8, 5});
     }},
    {"an inner tag of a provider", Drop::kVlan,
     [](Fields& f) {
       f.tags.push_back({0x88a8, 5});
     }},
    {"one tag more", Drop::kVlan,
     [](Fields& f) {
       f.tags.push_back({0x8100, 77});
     }},
    {"another IP version", Drop::kIpHeader, [](Fields& f) { f.version = 5; }},
    {"IP length one beyond the frame", Drop::kIpLength, [](Fields& f) { f.ip_length = f.is_ipv6 ? 14 : 34; }},
    {"the longest IP length", Drop::kIpLength, [](Fields& f) { f.ip_length = 0xffff; }},
    {"no space for a UDP header", Drop::kIpLength, [](Fields& f) { f.ip_length = f.is_ipv6 ? 7 : 27; }},
    {"an IP length of 0", Drop::kIpLength, [](Fields& f) { f.ip_length = 0; }},
    {"TCP", Drop::kOtherProtocol, [](Fields& f) { f.protocol = 6; }},
    {"UDP-Lite", Drop::kOtherProtocol, [](Fields& f) { f.protocol = 136; }},
    {"another IP address", Drop::kOtherIp, [](Fields& f) { f.destination_ip.back() ^= 1; }},
    {"another network", Drop::kOtherIp, [](Fields& f) { f.destination_ip.front() ^= 1; }},
    {"an unspecified source", Drop::kSource, [](Fields& f) { f.source_ip.assign(f.source_ip.size(), 0); }},
    {"the port above", Drop::kOtherPort, [](Fields& f) { f.destination_port++; }},
    {"a port with another upper byte", Drop::kOtherPort, [](Fields& f) { f.destination_port ^= 0x100; }},
    {"a UDP length of 7", Drop::kUdpLength, [](Fields& f) { f.udp_length = 7; }},
    {"a UDP length of 0", Drop::kUdpLength, [](Fields& f) { f.udp_length = 0; }},
    {"a UDP length beyond IP's", Drop::kUdpLength, [](Fields& f) { f.udp_length = 14; }},
    {"a UDP length beyond IP's, in padding", Drop::kUdpLength,
     [](Fields& f) {
       f.udp_length = 14;
       f.padding = Bytes(10, 0);
     }},
    {"no UDP checksum", Drop::kNoUdpChecksum, [](Fields& f) { f.udp_checksum = 0; }},
    {"a wrong UDP checksum", Drop::kUdpChecksum, [](Fields& f) { f.udp_checksum = 0x1234; }},
    {"padding", Drop::kNone, [](Fields& f) { f.padding = Bytes(13, 0xee); }},
    {"an empty datagram", Drop::kNone, [](Fields& f) { f.payload.clear(); }},
    {"another source", Drop::kNone, [](Fields& f) { f.source_ip.back() = 99; }},
    {"any traffic class and hop limit", Drop::kNone,
     [](Fields& f) {
       f.traffic_class = 0xff;
       f.hop_limit = 1;
     }},
};

void set_source(Fields& fields, const char* text) {
  const auto address = SocketAddress::parse_ip(text);
  const auto ip = address->ip();
  const auto* first = reinterpret_cast<const uint8_t*>(ip.data());
  fields.source_ip.assign(first, first + ip.size());
}

}  // namespace

TEST(FrameParser, good_frames_of_every_shape_are_accepted) {
  for (const Shape& shape : kShapes) {
    const FrameParser parser = shape.parser();
    for (const size_t payload_bytes : {0, 1, 5, 24, 1472, 8000, 65507}) {
      Fields fields = shape.fields();
      fields.payload.assign(payload_bytes, 0x3c);
      const Bytes frame = fields.frame();
      EXPECT_EQ(frame.size(), parser.header_bytes() + payload_bytes);
      for (const DeviceChecks checks :
           {kNothing, kEverything, DeviceChecks{.ip_header = true}, DeviceChecks{.udp_checksum = true}}) {
        const auto datagram = parser.parse(as_frame(frame), checks);
        ASSERT_EQ(datagram.drop, Drop::kNone);
        EXPECT_EQ(datagram.payload, as_frame(frame).data() + parser.header_bytes());
        EXPECT_EQ(datagram.payload_bytes, payload_bytes);
        const auto source = parser.source_of(as_frame(frame));
        EXPECT_EQ(source.to_text(), shape.is_ipv6 ? "[fd77::1]:40001" : "10.77.0.1:40001");
      }
    }
  }
}

TEST(FrameParser, frames_of_a_template_are_accepted) {
  std::mt19937 random(1);
  for (const Shape& shape : kShapes) {
    const FrameParser::Own own = reference::own(shape.is_ipv6, shape.vlan);
    FrameTemplate::Ends ends;
    ends.source_mac = MacAddress({2, 0, 0, 0, 0, 9});
    ends.destination_mac = own.mac;
    ends.source = *SocketAddress::parse(shape.is_ipv6 ? "[fd77::9]:999" : "10.77.9.9:999");
    ends.destination = own.address;
    ends.vlan = shape.vlan;
    ends.vlan_priority = 7;
    ends.traffic_class = 3;
    const FrameTemplate frame_template(ends);
    for (const size_t payload_bytes : {0, 1, 2, 47, 1400, 8001}) {
      Bytes frame(frame_template.header_bytes() + payload_bytes);
      for (uint8_t& byte : frame) byte = static_cast<uint8_t>(random());
      const auto bytes = std::as_writable_bytes(std::span(frame));
      frame_template.write(bytes.data(), payload_bytes);
      EXPECT_EQ(drop_of(shape.parser(), frame, {.ip_header = true, .udp_checksum = true}), Drop::kNone);
      frame_template.complete_udp_checksum(bytes.data(), bytes.subspan(frame_template.header_bytes()));
      EXPECT_EQ(drop_of(shape.parser(), frame, kNothing), Drop::kNone);
      EXPECT_EQ(shape.parser().source_of(as_frame(frame)), ends.source);
    }
  }
}

TEST(FrameParser, each_change_of_a_good_frame_has_its_drop_reason) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(std::string(shape.is_ipv6 ? "IPv6" : "IPv4") + (shape.vlan != 0 ? " in a VLAN" : ""));
    expect_drops(shape, kOfBoth);
  }
}

TEST(FrameParser, vlan_of_an_endpoint_is_the_only_one) {
  for (const bool is_ipv6 : {false, true}) {
    expect_drops({is_ipv6, 0}, {
                                   {"a tag", Drop::kVlan,
                                    [](Fields& f) {
                                      f.tags = {{0x8100, 5}};
                                    }},
                                   {"a priority tag", Drop::kVlan,
                                    [](Fields& f) {
                                      f.tags = {{0x8100, 0xe000}};
                                    }},
                               });
    expect_drops({is_ipv6, 77}, {
                                    {"no tag", Drop::kVlan, [](Fields& f) { f.tags.clear(); }},
                                    {"another VLAN", Drop::kVlan, [](Fields& f) { f.tags[0].control = 78; }},
                                    {"VLAN 0", Drop::kVlan, [](Fields& f) { f.tags[0].control = 0; }},
                                    {"any priority", Drop::kNone, [](Fields& f) { f.tags[0].control |= 0xf000; }},
                                });
  }
}

TEST(FrameParser, each_ipv4_fault_has_its_drop_reason) {
  const std::vector<Case> cases = {
      {"a header of 16 bytes", Drop::kIpHeader, [](Fields& f) { f.header_words = 4; }},
      {"version 6", Drop::kIpHeader, [](Fields& f) { f.version = 6; }},
      {"options", Drop::kIpOptions, [](Fields& f) { f.options = Bytes(4, 1); }},
      {"40 bytes of options", Drop::kIpOptions, [](Fields& f) { f.options = Bytes(40, 1); }},
      {"a header beyond the frame", Drop::kIpOptions, [](Fields& f) { f.header_words = 15; }},
      {"a length of 19", Drop::kIpLength, [](Fields& f) { f.ip_length = 19; }},
      {"a wrong header checksum", Drop::kIpChecksum, [](Fields& f) { f.ip_checksum = 0x1234; }},
      {"a header checksum of 0", Drop::kIpChecksum, [](Fields& f) { f.ip_checksum = 0; }},
      {"the first fragment", Drop::kFragment, [](Fields& f) { f.fragment = 0x2000; }},
      {"a later fragment", Drop::kFragment, [](Fields& f) { f.fragment = 0x2001; }},
      {"the last fragment", Drop::kFragment, [](Fields& f) { f.fragment = 0x0001; }},
      {"a large offset", Drop::kFragment, [](Fields& f) { f.fragment = 0x1000; }},
      {"may be fragmented", Drop::kNone, [](Fields& f) { f.fragment = 0; }},
      {"the reserved bit", Drop::kNone, [](Fields& f) { f.fragment = 0xc000; }},
      {"an identification", Drop::kNone, [](Fields& f) { f.identification = 0xabcd; }},
  };
  expect_drops({false, 0}, cases);
  expect_drops({false, 77}, cases);
}

TEST(FrameParser, each_ipv6_fault_has_its_drop_reason) {
  const auto with_extension = [](uint8_t next_header) {
    return [next_header](Fields& f) {
      f.protocol = next_header;
      f.options = {17, 0, 1, 4, 0, 0, 0, 0};
    };
  };
  const std::vector<Case> cases = {
      {"version 4", Drop::kIpHeader, [](Fields& f) { f.version = 4; }},
      {"hop-by-hop options", Drop::kIpOptions, with_extension(0)},
      {"a routing header", Drop::kIpOptions, with_extension(43)},
      {"a fragment header", Drop::kFragment, with_extension(44)},
      {"ESP", Drop::kIpOptions, with_extension(50)},
      {"AH", Drop::kIpOptions, with_extension(51)},
      {"no next header", Drop::kIpOptions, with_extension(59)},
      {"destination options", Drop::kIpOptions, with_extension(60)},
      {"ICMPv6", Drop::kOtherProtocol, [](Fields& f) { f.protocol = 58; }},
      {"a flow label", Drop::kNone, [](Fields& f) { f.flow_label = 0xfffff; }},
  };
  expect_drops({true, 0}, cases);
  expect_drops({true, 77}, cases);
}

TEST(FrameParser, sources_that_no_host_has_are_dropped) {
  const auto drop_from = [](bool is_ipv6, const char* text) {
    Fields fields(is_ipv6);
    set_source(fields, text);
    const Drop drop = drop_of(FrameParser(reference::own(is_ipv6)), fields.frame(), kEverything);
    EXPECT_EQ(drop_of(FrameParser(reference::own(is_ipv6)), fields.frame(), kNothing), drop) << text;
    return drop;
  };
  for (const char* text :
       {"0.0.0.0", "0.1.2.3", "127.0.0.1", "127.255.0.1", "224.0.0.1", "239.255.255.255", "255.255.255.255"}) {
    EXPECT_EQ(drop_from(false, text), Drop::kSource) << text;
  }
  for (const char* text :
       {"1.0.0.1", "126.255.255.255", "128.0.0.1", "223.255.255.1", "240.0.0.1", "255.255.255.254", "10.77.0.2"}) {
    EXPECT_EQ(drop_from(false, text), Drop::kNone) << text;
  }
  for (const char* text : {"::", "::1", "ff02::1", "ffff::1"}) EXPECT_EQ(drop_from(true, text), Drop::kSource) << text;
  for (const char* text : {"::2", "::1:1", "::1:0:0:1", "1::", "64:ff9b::a01:203", "fe80::1", "2001:db8::1"}) {
    EXPECT_EQ(drop_from(true, text), Drop::kNone) << text;
  }
  Fields mapped(true);
  mapped.source_ip = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1};
  EXPECT_EQ(drop_of(FrameParser(reference::own(true)), mapped.frame(), kEverything), Drop::kSource);
}

TEST(FrameParser, udp_shorter_than_ip_ends_where_udp_says) {
  for (const Shape& shape : kShapes) {
    Fields fields = shape.fields();
    fields.ip_length = fields.is_ipv6 ? 15 : 35;  // the length includes two bytes of padding
    fields.padding = {0xee, 0xee, 0xee};
    const Bytes frame = fields.frame();
    for (const DeviceChecks checks : {kNothing, kEverything}) {
      const auto datagram = shape.parser().parse(as_frame(frame), checks);
      ASSERT_EQ(datagram.drop, Drop::kNone);
      EXPECT_EQ(payload_of(datagram), fields.payload);
    }
  }
}

TEST(FrameParser, every_truncation_is_dropped_and_reads_nothing_beyond) {
  for (const Shape& shape : kShapes) {
    Fields fields = shape.fields();
    fields.payload.assign(100, 0x3c);
    const Bytes frame = fields.frame();
    const size_t ip_at = shape.vlan != 0 ? 18 : 14;
    const size_t udp_at = shape.parser().header_bytes() - 8;
    for (size_t bytes = 0; bytes < frame.size(); bytes++) {
      const Bytes cut(frame.begin(), frame.begin() + static_cast<ptrdiff_t>(bytes));
      const bool is_in_headers = bytes < udp_at;
      for (const DeviceChecks checks : {kNothing, kEverything}) {
        EXPECT_EQ(drop_of(shape.parser(), cut, checks), is_in_headers ? Drop::kTruncated : Drop::kIpLength) << bytes;
      }
      if (bytes >= ip_at) continue;
      // Frames to another MAC address have their own drop reason as soon as they contain that field.
      Bytes other = cut;
      if (!other.empty()) other[0] ^= 4;
      EXPECT_EQ(drop_of(shape.parser(), other, kNothing), bytes < 14 ? Drop::kTruncated : Drop::kOtherMac) << bytes;
    }
  }
}

TEST(FrameParser, every_flipped_bit_is_noticed_or_covered_by_nothing) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(std::string(shape.is_ipv6 ? "IPv6" : "IPv4") + (shape.vlan != 0 ? " in a VLAN" : ""));
    const FrameParser parser = shape.parser();
    Fields fields = shape.fields();
    fields.padding = Bytes(9, 0);
    const Bytes frame = fields.frame();
    const size_t ip_at = shape.vlan != 0 ? 18 : 14;
    // The bits that no checksum covers and that do not change the datagram: the source MAC address, the tag's priority,
    // padding, and in IPv6 the traffic class, flow label and hop limit. IPv4's header checksum covers those.
    std::set<size_t> free_bits;
    const auto free_range = [&](size_t first, size_t last) {
      for (size_t bit = first; bit < last; bit++) free_bits.insert(bit);
    };
    free_range(8 * 6, 8 * 12);
    if (shape.vlan != 0) free_range(8 * 14, 8 * 14 + 4);
    if (shape.is_ipv6) {
      free_range(8 * ip_at + 4, 8 * ip_at + 32);
      free_range(8 * (ip_at + 7), 8 * (ip_at + 8));
      // The IPv6 payload length of 13 may grow if it still ends in the padding, because the UDP length gives the
      // datagram's length.
      free_bits.insert(8 * (ip_at + 5) + 6);  // 15
    }
    free_range(8 * (frame.size() - fields.padding.size()), 8 * frame.size());

    for (size_t bit = 0; bit < 8 * frame.size(); bit++) {
      Bytes flipped = frame;
      flipped[bit / 8] ^= static_cast<uint8_t>(0x80 >> bit % 8);
      const auto datagram = parser.parse(as_frame(flipped), kNothing);
      if (free_bits.contains(bit)) {
        ASSERT_EQ(datagram.drop, Drop::kNone) << "bit " << bit;
        EXPECT_EQ(payload_of(datagram), fields.payload);
        EXPECT_EQ(parser.source_of(as_frame(flipped)), parser.source_of(as_frame(frame)));
      } else {
        EXPECT_NE(datagram.drop, Drop::kNone) << "bit " << bit;
      }
    }
  }
}

TEST(FrameParser, buffer_behind_the_frame_is_ignored) {
  for (const Shape& shape : kShapes) {
    Bytes stride = shape.fields().frame();
    stride.resize(2048, 0xee);
    const auto datagram = shape.parser().parse(as_frame(stride), kNothing);
    ASSERT_EQ(datagram.drop, Drop::kNone);
    EXPECT_EQ(payload_of(datagram), shape.fields().payload);
  }
}

TEST(FrameParser, names_are_told_apart) {
  std::set<std::string_view> names;
  for (size_t i = 0; i < kDropReasons; i++) names.insert(name_of(static_cast<Drop>(i)));
  EXPECT_EQ(names.size(), kDropReasons);
  EXPECT_FALSE(names.contains(""));
  EXPECT_EQ(name_of(Drop::kOtherMac), "other_mac");
  EXPECT_EQ(name_of(Drop::kFragment), "fragment");
  EXPECT_EQ(name_of(Drop::kUdpChecksum), "udp_checksum");
}
