// Requests byte by byte, and complete, truncated and random messages. The expected bytes are written by hand, with the
// constants of the kernel's headers and without libmnl.
#include "neighbours/messages.h"

#include <gtest/gtest.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tern::neighbours {
namespace {

using Bytes = std::vector<uint8_t>;

base::SocketAddress ip(std::string_view text) { return base::SocketAddress::parse_ip(text).value(); }

Bytes ip_bytes(std::string_view text) {
  const base::SocketAddress address = ip(text);
  Bytes bytes(address.ip().size());
  std::memcpy(bytes.data(), address.ip().data(), bytes.size());
  return bytes;
}

template <class T>
Bytes raw(const T& value) {
  Bytes bytes(sizeof(T));
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}
Bytes raw_text(std::string_view text) {
  Bytes bytes(text.begin(), text.end());
  bytes.push_back(0);
  return bytes;
}
Bytes join(std::initializer_list<Bytes> parts) {
  Bytes all;
  for (const Bytes& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Bytes attribute(uint16_t type, const Bytes& payload) {
  Bytes bytes = join({raw(rtattr{static_cast<unsigned short>(RTA_LENGTH(payload.size())), type}), payload});
  bytes.resize(RTA_ALIGN(bytes.size()));
  return bytes;
}

Bytes message(uint16_t type, const Bytes& payload, uint16_t flags = 0) {
  const nlmsghdr header{static_cast<uint32_t>(NLMSG_LENGTH(payload.size())), type, flags, 0, 0};
  return join({raw(header), payload});
}

/// A copy on the heap, so that AddressSanitizer reports a read beyond the end.
class Exact {
 public:
  explicit Exact(const Bytes& bytes) : size_(bytes.size()), bytes_(new std::byte[bytes.size()]) {
    std::ranges::copy(std::as_bytes(std::span(bytes)), bytes_.get());
  }
  std::span<const std::byte> bytes() const { return {bytes_.get(), size_}; }

 private:
  size_t size_;
  std::unique_ptr<std::byte[]> bytes_;
};

/// Returns the result of `read` for the only message.
template <class F>
auto read_one(const Bytes& bytes, F&& read) {
  const Exact exact(bytes);
  decltype(read(std::declval<const nlmsghdr&>())) result;
  for_each_message(exact.bytes(), [&](const nlmsghdr& one) { result = read(one); });
  return result;
}

Bytes bytes_of(const Request& request) {
  Bytes bytes(request.bytes().size());
  std::memcpy(bytes.data(), request.bytes().data(), bytes.size());
  return bytes;
}

Bytes neighbour(uint16_t state, const Bytes& mac, uint16_t type = RTM_NEWNEIGH) {
  ndmsg body{};
  body.ndm_family = AF_INET;
  body.ndm_ifindex = 7;
  body.ndm_state = state;
  return message(type, join({raw(body), attribute(NDA_DST, ip_bytes("10.0.0.2")), attribute(NDA_LLADDR, mac),
                             attribute(NDA_PROBES, raw(uint32_t{1}))}));
}
Bytes route(uint8_t family, uint8_t length, std::initializer_list<Bytes> attributes) {
  rtmsg body{};
  body.rtm_family = family;
  body.rtm_dst_len = length;
  body.rtm_table = RT_TABLE_MAIN;
  body.rtm_type = RTN_UNICAST;
  return message(RTM_NEWROUTE, join({raw(body), join(attributes)}));
}
Bytes link() {
  ifinfomsg body{};
  body.ifi_index = 7;
  body.ifi_type = ARPHRD_ETHER;
  body.ifi_flags = IFF_UP | IFF_RUNNING;
  return message(
      RTM_NEWLINK,
      join({raw(body), attribute(IFLA_IFNAME, raw_text("eth0.7")), attribute(IFLA_MTU, raw(uint32_t{9000})),
            attribute(IFLA_ADDRESS, {2, 0, 0, 0, 0, 1}), attribute(IFLA_LINK, raw(uint32_t{3})),
            attribute(IFLA_LINKINFO, join({attribute(IFLA_INFO_KIND, raw_text("vlan")),
                                           attribute(IFLA_INFO_DATA, attribute(IFLA_VLAN_ID, raw(uint16_t{42})))}))}));
}
Bytes address(uint32_t flags) {
  ifaddrmsg body{};
  body.ifa_family = AF_INET;
  body.ifa_scope = RT_SCOPE_UNIVERSE;
  body.ifa_index = 7;
  return message(RTM_NEWADDR, join({raw(body), attribute(IFA_ADDRESS, ip_bytes("10.0.0.9")),
                                    attribute(IFA_LOCAL, ip_bytes("10.0.0.1")), attribute(IFA_FLAGS, raw(flags))}));
}

TEST(NeighboursRequest, bytes_are_those_of_the_kernels_headers) {
  rtmsg route{};
  route.rtm_family = AF_INET;
  route.rtm_dst_len = 32;
  route.rtm_flags = RTM_F_LOOKUP_TABLE;
  EXPECT_EQ(
      bytes_of(Request::route(7, ip("10.1.2.3"), {})),
      message(RTM_GETROUTE, join({raw(route), attribute(RTA_DST, {10, 1, 2, 3}), attribute(RTA_OIF, {7, 0, 0, 0})}),
              NLM_F_REQUEST));
  route.rtm_src_len = 32;
  EXPECT_EQ(bytes_of(Request::route(7, ip("10.1.2.3"), ip("10.0.0.1"))),
            message(RTM_GETROUTE,
                    join({raw(route), attribute(RTA_DST, {10, 1, 2, 3}), attribute(RTA_OIF, {7, 0, 0, 0}),
                          attribute(RTA_SRC, {10, 0, 0, 1})}),
                    NLM_F_REQUEST));
  rtmsg route6{};
  route6.rtm_family = AF_INET6;
  route6.rtm_dst_len = 128;
  EXPECT_EQ(bytes_of(Request::route(7, ip("fd00::2"), ip("10.0.0.1"))),
            message(RTM_GETROUTE,
                    join({raw(route6), attribute(RTA_DST, ip_bytes("fd00::2")), attribute(RTA_OIF, {7, 0, 0, 0})}),
                    NLM_F_REQUEST));
  ndmsg neighbour{};
  neighbour.ndm_family = AF_INET6;
  neighbour.ndm_ifindex = 7;
  EXPECT_EQ(bytes_of(Request::neighbour(7, ip("fe80::2"))),
            message(RTM_GETNEIGH, join({raw(neighbour), attribute(NDA_DST, ip_bytes("fe80::2"))}), NLM_F_REQUEST));
  ifinfomsg link{};
  EXPECT_EQ(bytes_of(Request::link("eth0")),
            message(RTM_GETLINK, join({raw(link), attribute(IFLA_IFNAME, raw_text("eth0"))}), NLM_F_REQUEST));
  link.ifi_index = 7;
  EXPECT_EQ(bytes_of(Request::link(7)), message(RTM_GETLINK, raw(link), NLM_F_REQUEST));
  EXPECT_EQ(bytes_of(Request::addresses()), message(RTM_GETADDR, raw(ifaddrmsg{}), NLM_F_REQUEST | NLM_F_DUMP));
}

TEST(NeighboursRequest, longest_request_fits) {
  const auto one = ip("fd00:1111:2222:3333:4444:5555:6666:7777");
  Request request = Request::route(UINT32_MAX, one, one);
  request.set_sequence(0x01020304);
  EXPECT_LE(request.bytes().size(), Request::kBytesMax);
  EXPECT_EQ(bytes_of(request)[8], 4);  // nlmsg_seq
}

TEST(NeighboursMessages, neighbour_that_linux_sent_is_read) {
  // RTM_NEWNEIGH of Linux 6.18: 10.0.0.2 is at 02:00:00:00:00:02 on interface 2, NUD_REACHABLE.
  const Bytes sent = {0x4c, 0, 0, 0, 0x1c, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,               // nlmsghdr
                      2,    0, 0, 0, 2,    0, 0, 0, 2, 0, 0, 1,                           // ndmsg
                      8,    0, 1, 0, 10,   0, 0, 2,                                       // NDA_DST
                      10,   0, 2, 0, 2,    0, 0, 0, 0, 2, 0, 0,                           // NDA_LLADDR
                      8,    0, 4, 0, 1,    0, 0, 0,                                       // NDA_PROBES
                      20,   0, 3, 0, 0,    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0};  // NDA_CACHEINFO
  const auto read = read_one(sent, read_neighbour);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->interface, 2u);
  EXPECT_EQ(read->ip, ip("10.0.0.2"));
  EXPECT_EQ(read->state, NUD_REACHABLE);
  EXPECT_EQ(read->mac->to_text(), "02:00:00:00:00:02");
}

TEST(NeighboursMessages, neighbour_is_valid_by_state_and_mac) {
  struct Case {
    uint16_t state;
    bool is_valid, is_watched;
  };
  for (const Case& one :
       {Case{NUD_NONE, false, false}, Case{NUD_INCOMPLETE, false, false}, Case{NUD_REACHABLE, true, true},
        Case{NUD_STALE, true, false}, Case{NUD_DELAY, true, true}, Case{NUD_PROBE, true, true},
        Case{NUD_FAILED, false, false}, Case{NUD_NOARP, true, true}, Case{NUD_PERMANENT, true, true}}) {
    const auto read = read_one(neighbour(one.state, {2, 0, 0, 0, 0, 2}), read_neighbour);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->is_valid(), one.is_valid) << one.state;
    EXPECT_EQ(read->is_watched(), one.is_watched) << one.state;
  }
  for (const Bytes& mac : {Bytes{}, Bytes{1, 2, 3, 4}, Bytes(6), Bytes(8, 1), Bytes(20, 1)}) {
    const auto read = read_one(neighbour(NUD_REACHABLE, mac), read_neighbour);
    ASSERT_TRUE(read);
    EXPECT_FALSE(read->is_valid());
  }
}

TEST(NeighboursMessages, routes_are_read) {
  const auto direct =
      read_one(route(AF_INET, 24, {attribute(RTA_DST, {10, 1, 2, 0}), attribute(RTA_OIF, {7, 0, 0, 0})}), read_route);
  ASSERT_TRUE(direct);
  EXPECT_EQ(direct->type, RTN_UNICAST);
  EXPECT_EQ(direct->table, static_cast<uint32_t>(RT_TABLE_MAIN));
  EXPECT_EQ(direct->interface, 7u);
  EXPECT_FALSE(direct->gateway);
  EXPECT_TRUE(direct->destination.covers(ip("10.1.2.255")));
  EXPECT_FALSE(direct->destination.covers(ip("10.1.3.0")));

  const auto by_gateway = read_one(
      route(AF_INET6, 0, {attribute(RTA_GATEWAY, ip_bytes("fe80::2")), attribute(RTA_TABLE, raw(uint32_t{1000}))}),
      read_route);
  ASSERT_TRUE(by_gateway);
  EXPECT_EQ(by_gateway->gateway, ip("fe80::2"));
  EXPECT_EQ(by_gateway->table, 1000u);
  EXPECT_TRUE(by_gateway->destination.covers(ip("fd00::1")));
  EXPECT_FALSE(by_gateway->destination.covers(ip("10.0.0.1")));

  const auto by_other_family = read_one(
      route(AF_INET, 0, {attribute(RTA_VIA, join({raw(uint16_t{AF_INET6}), ip_bytes("fe80::2")}))}), read_route);
  ASSERT_TRUE(by_other_family);
  EXPECT_EQ(by_other_family->gateway, ip("fe80::2"));
}

TEST(NeighboursMessages, malformed_routes_are_refused) {
  EXPECT_FALSE(read_one(route(AF_INET, 33, {}), read_route));
  EXPECT_FALSE(read_one(route(AF_UNSPEC, 0, {}), read_route));
  EXPECT_FALSE(read_one(route(AF_INET, 8, {attribute(RTA_DST, Bytes(3))}), read_route));
  EXPECT_FALSE(read_one(route(AF_INET, 8, {attribute(RTA_DST, Bytes(16))}), read_route));
  EXPECT_FALSE(read_one(route(AF_INET, 8, {attribute(RTA_OIF, Bytes(2))}), read_route));
  EXPECT_FALSE(read_one(route(AF_INET, 8, {attribute(RTA_GATEWAY, Bytes(16))}), read_route));
  for (size_t bytes : {0u, 1u, 2u, 5u, 7u}) {
    EXPECT_FALSE(read_one(route(AF_INET, 8, {attribute(RTA_VIA, Bytes(bytes))}), read_route));
  }
}

TEST(NeighboursMessages, prefix_covers_by_bits) {
  const Prefix prefix{ip("10.1.128.0"), 17};
  EXPECT_TRUE(prefix.covers(ip("10.1.128.0")));
  EXPECT_TRUE(prefix.covers(ip("10.1.255.255")));
  EXPECT_FALSE(prefix.covers(ip("10.1.127.255")));
  EXPECT_FALSE(prefix.covers(ip("10.2.128.0")));
  EXPECT_TRUE((Prefix{ip("10.0.0.1"), 32}.covers(ip("10.0.0.1"))));
  EXPECT_FALSE((Prefix{ip("10.0.0.1"), 32}.covers(ip("10.0.0.0"))));
  EXPECT_TRUE((Prefix{ip("fd00::"), 9}.covers(ip("fd7f::1"))));
  EXPECT_FALSE((Prefix{ip("fd00::"), 9}.covers(ip("fd80::1"))));
}

TEST(NeighboursMessages, links_and_addresses_are_read) {
  const auto interface = read_one(link(), read_link);
  ASSERT_TRUE(interface);
  EXPECT_EQ(interface->index, 7u);
  EXPECT_EQ(interface->name, "eth0.7");
  EXPECT_EQ(interface->mtu_bytes, 9000u);
  EXPECT_EQ(interface->mac.to_text(), "02:00:00:00:00:01");
  EXPECT_EQ(interface->vlan, 42u);
  EXPECT_EQ(interface->parent, 3u);
  EXPECT_TRUE(interface->is_up && interface->is_running && !interface->is_loopback);

  const auto own = read_one(address(0), read_address);
  ASSERT_TRUE(own);
  EXPECT_EQ(own->interface, 7u);
  EXPECT_EQ(own->ip, ip("10.0.0.1"));
}

TEST(NeighboursMessages, address_is_usable_or_tentative_by_its_flags) {
  struct Case {
    uint32_t flags;
    bool is_usable, is_tentative;
  };
  for (const Case& one :
       {Case{0, true, false}, Case{IFA_F_TENTATIVE, false, true}, Case{IFA_F_DADFAILED, false, false},
        Case{IFA_F_TENTATIVE | IFA_F_DADFAILED, false, false}, Case{IFA_F_TENTATIVE | IFA_F_OPTIMISTIC, true, false}}) {
    const auto read = read_one(address(one.flags), read_address);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->is_usable, one.is_usable) << one.flags;
    EXPECT_EQ(read->is_tentative, one.is_tentative) << one.flags;
  }
}

/// IPv4 has the flag of temporary addresses for secondary ones, which stay.
TEST(NeighboursMessages, secondary_address_is_not_passing) {
  EXPECT_FALSE(read_one(address(IFA_F_SECONDARY), read_address)->is_passing);
}

TEST(NeighboursMessages, end_of_a_dump_has_its_error) {
  EXPECT_EQ(read_one(message(NLMSG_ERROR, join({raw(-ENODEV), raw(nlmsghdr{})})), read_end), ENODEV);
  EXPECT_EQ(read_one(message(NLMSG_DONE, raw(0)), read_end), 0);
  for (const int number : {1, INT32_MIN, -5000})
    EXPECT_EQ(read_one(message(NLMSG_ERROR, raw(number)), read_end), EPROTO);
  EXPECT_EQ(read_one(message(NLMSG_ERROR, {}), read_end), EPROTO);
  EXPECT_FALSE(read_one(neighbour(0, {}), read_end));
}

/// Reads every readable byte, so that AddressSanitizer can report errors, and returns the number of messages.
size_t read_all(const Bytes& bytes) {
  const Exact exact(bytes);
  size_t messages = 0;
  for_each_message(exact.bytes(), [&](const nlmsghdr& one) {
    messages++;
    const auto interface = read_link(one);
    EXPECT_LT(interface ? interface->name.size() : 0, size_t{IFNAMSIZ});
    read_route(one);
    read_neighbour(one);
    read_address(one);
    read_end(one);
  });
  return messages;
}

const std::vector<Bytes>& samples() {
  static const std::vector<Bytes> all = {
      neighbour(NUD_STALE, {2, 0, 0, 0, 0, 2}),
      neighbour(NUD_FAILED, {}, RTM_DELNEIGH),
      link(),
      address(0),
      route(AF_INET, 8,
            {attribute(RTA_DST, {10, 0, 0, 0}),
             attribute(RTA_VIA, join({raw(uint16_t{AF_INET6}), ip_bytes("fe80::2")}))}),
      message(NLMSG_ERROR, join({raw(-ENODEV), raw(nlmsghdr{})}))};
  return all;
}

TEST(NeighboursMessages, truncated_messages_are_not_read_past_their_end) {
  for (const Bytes& sample : samples()) {
    EXPECT_EQ(read_all(sample), 1u);
    for (size_t bytes = 0; bytes < sample.size(); bytes++) {
      Bytes part(sample.begin(), sample.begin() + static_cast<ptrdiff_t>(bytes));
      EXPECT_EQ(read_all(part), 0u);
      if (bytes < sizeof(nlmsghdr)) continue;
      const auto length = static_cast<uint32_t>(bytes);  // the header has the new length, too
      std::memcpy(part.data(), &length, sizeof(length));
      EXPECT_EQ(read_all(part), 1u);
    }
  }
}

TEST(NeighboursMessages, wrong_lengths_cause_no_read_past_the_end) {
  for (const Bytes& sample : samples()) {
    for (size_t place = 0; place + 2 <= sample.size(); place += 2) {
      for (const uint16_t length : {0, 1, 3, 4, 5, 8, 100, 0x7fff, 0xffff}) {
        Bytes changed = sample;
        std::memcpy(changed.data() + place, &length, sizeof(length));
        read_all(changed);
      }
    }
  }
}

TEST(NeighboursMessages, garbage_is_survived) {
  std::mt19937 random(14);
  for (int i = 0; i < 20'000; i++) {
    Bytes bytes = samples()[random() % samples().size()];
    const Bytes& second = samples()[random() % samples().size()];
    bytes.resize(NLMSG_ALIGN(bytes.size()));
    bytes.insert(bytes.end(), second.begin(), second.end());
    for (size_t n = random() % 8; n > 0; n--) bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
    read_all(bytes);
  }
}

}  // namespace
}  // namespace tern::neighbours
