// The encoding of multicast group reports, and valid and invalid queries. unit/neighbours/hosts_on_veth_test.cc shows
// that a switch accepts the reports.
#include "frames/mld.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "mld_query.h"

namespace tern::frames {
namespace {

using test::mld_query;

const MacAddress kMac({2, 0, 0, 0, 0, 1});
const base::SocketAddress kGroup = base::SocketAddress::parse_ip("ff02::1:ff00:7").value();

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

TEST(Mld, report_of_version_2__goes_to_all_routers_and_names_the_group) {
  const MldReportBytes report(MldVersion::k2, kGroup, true, kMac, 0);
  const std::vector<std::byte> expected = bytes_of({
      0x33, 0x33, 0,    0,    0,    0x16, 2, 0, 0, 0, 0, 1, 0x86, 0xdd,        // Ethernet
      0x60, 0,    0,    0,    0,    36,   0, 1,                                // IPv6: hop-by-hop options, hop limit 1
      0,    0,    0,    0,    0,    0,    0, 0, 0, 0, 0, 0, 0,    0,    0, 0,  // from ::
      0xff, 2,    0,    0,    0,    0,    0, 0, 0, 0, 0, 0, 0,    0,    0, 0x16,  // to ff02::16
      58,   0,    5,    2,    0,    0,    1, 0,                                   // router alert
      143,  0,    0x6f, 0x83, 0,    0,    0, 1,                                   // one record
      4,    0,    0,    0,    0xff, 2,    0, 0, 0, 0, 0, 0, 0,    0,    0, 1,
      0xff, 0,    0,    7  // all sources of the group from now on
  });
  EXPECT_EQ(std::vector(report.bytes().begin(), report.bytes().end()), expected);
  const MldReportBytes answer(MldVersion::k2, kGroup, false, kMac, 5);
  EXPECT_EQ(answer.bytes().size(), MldReportBytes::kBytesMax);
  EXPECT_EQ(answer.bytes()[14], std::byte{0});
  EXPECT_EQ(answer.bytes()[15], std::byte{5});  // the VLAN
  EXPECT_EQ(answer.bytes()[74], std::byte{2});  // all sources of the group
}

TEST(Mld, report_of_version_1__goes_to_the_group) {
  const MldReportBytes report(MldVersion::k1, kGroup, true, kMac, 0);
  ASSERT_EQ(report.bytes().size(), 14u + 40 + 8 + 24);
  EXPECT_EQ(MacAddress::from_bytes(report.bytes()), group_mac(kGroup));
  EXPECT_TRUE(std::ranges::equal(report.bytes().subspan(14 + 24, 16), kGroup.ip()));
  EXPECT_EQ(report.bytes()[62], std::byte{131});
  EXPECT_TRUE(std::ranges::equal(report.bytes().last(16), kGroup.ip()));
  EXPECT_EQ(icmpv6_sum(report.bytes().subspan(22, 32), report.bytes().subspan(62)), 0xffff);
}

TEST(Mld, query__is_read_with_its_version_group_and_delay) {
  for (const uint16_t vlan : {0, 5}) {
    const auto all = parse_mld_query(mld_query(MldVersion::k2, "::", 1000, vlan), vlan);
    ASSERT_TRUE(all);
    EXPECT_EQ(all->version, MldVersion::k2);
    EXPECT_TRUE(all->group.is_wildcard());
    EXPECT_EQ(all->delay_ns_max, 1'000'000'000u);
    const auto one = parse_mld_query(mld_query(MldVersion::k1, "ff02::1:ff00:7", 0xffff, vlan), vlan);
    ASSERT_TRUE(one);
    EXPECT_EQ(one->version, MldVersion::k1);
    EXPECT_EQ(one->group, kGroup);
    EXPECT_EQ(one->delay_ns_max, 65'535'000'000u);
    EXPECT_FALSE(parse_mld_query(mld_query(MldVersion::k2, "::", 0, vlan), vlan == 0 ? 5 : 0));
  }
  // The delay is a floating-point number: 0x1fff << 10 ms.
  EXPECT_EQ(parse_mld_query(mld_query(MldVersion::k2, "::", 0xffff), 0)->delay_ns_max, 0x1fffull * 1024 * 1'000'000);
}

TEST(Mld, bad_query__is_none) {
  const std::vector<std::byte> good = mld_query(MldVersion::k2, "::", 1000);
  ASSERT_TRUE(is_mld_query(good, 0));
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    const std::vector<std::byte> part(good.begin(), good.begin() + static_cast<ptrdiff_t>(bytes));
    EXPECT_FALSE(parse_mld_query(part, 0)) << bytes;
  }
  EXPECT_FALSE(parse_mld_query(mld_query(MldVersion::k2, "::", 1000, 0, "fd00::1"), 0)) << "not of the link";
  EXPECT_FALSE(parse_mld_query(mld_query(MldVersion::k2, "::", 1000, 0, "fe80::1", 2), 0)) << "through a router";
  for (const size_t at : {size_t{54} /* not ICMPv6 */, size_t{55} /* longer options */, size_t{62} /* another type */,
                          size_t{63} /* a code */, size_t{64} /* its checksum */, size_t{89} /* its bytes */}) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{1};
    EXPECT_FALSE(parse_mld_query(bad, 0)) << at;
  }
}

}  // namespace
}  // namespace tern::frames
