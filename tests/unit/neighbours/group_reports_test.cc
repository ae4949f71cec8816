// The times at which a host reports its group, in virtual time.
#include "neighbours/group_reports.h"

#include <gtest/gtest.h>

namespace tern::neighbours {
namespace {

using frames::MldVersion;

constexpr uint64_t kMs = 1'000'000, kSecond = 1'000 * kMs;
const base::SocketAddress kGroup = base::SocketAddress::parse_ip("ff02::1:ff00:7").value();
const base::SocketAddress kAll = base::SocketAddress::parse_ip("::").value();

/// Returns reports after the two that are sent without a query.
GroupReports settled() {
  GroupReports reports(kGroup, 1, 0);
  EXPECT_TRUE(reports.next(0) && reports.next(kSecond));
  return reports;
}

TEST(GroupReports, are_sent_twice_unasked__and_again_when_the_link_comes_up) {
  GroupReports reports(kGroup, 1, 5);
  EXPECT_EQ(reports.next_ns(), 5u);
  EXPECT_FALSE(reports.next(4));
  for (uint64_t now_ns : {uint64_t{5}, 5 + kSecond}) {
    EXPECT_FALSE(reports.next(now_ns - 1));
    const auto report = reports.next(now_ns);
    ASSERT_TRUE(report);
    EXPECT_TRUE(report->is_change);
    EXPECT_EQ(report->version, MldVersion::k2);
    EXPECT_FALSE(reports.next(now_ns));
  }
  EXPECT_EQ(reports.next_ns(), UINT64_MAX);
  reports.on_link_up(7 * kSecond);
  EXPECT_TRUE(reports.next(7 * kSecond));
  EXPECT_EQ(reports.next_ns(), 8 * kSecond);
}

TEST(GroupReports, query__is_answered_once__within_its_delay__in_its_version) {
  for (const MldVersion version : {MldVersion::k1, MldVersion::k2}) {
    for (const base::SocketAddress& group : {kAll, kGroup}) {
      GroupReports reports = settled();
      reports.on_query({version, group, 100 * kMs}, 10 * kSecond);
      reports.on_query({version, group, 100 * kMs}, 10 * kSecond);
      EXPECT_GE(reports.next_ns(), 10 * kSecond);
      EXPECT_LT(reports.next_ns(), 10 * kSecond + 100 * kMs);
      const auto report = reports.next(reports.next_ns());
      ASSERT_TRUE(report);
      EXPECT_FALSE(report->is_change);
      EXPECT_EQ(report->version, version);
      EXPECT_EQ(reports.next_ns(), UINT64_MAX);
    }
  }
}

TEST(GroupReports, query__of_another_group__is_not_answered) {
  GroupReports reports = settled();
  reports.on_query({MldVersion::k2, base::SocketAddress::parse_ip("ff02::1:ff00:8").value(), 0}, 10 * kSecond);
  EXPECT_EQ(reports.next_ns(), UINT64_MAX);
  GroupReports nobodys;
  nobodys.on_query({MldVersion::k2, kAll, 0}, 10 * kSecond);
  nobodys.on_link_up(10 * kSecond);
  EXPECT_EQ(nobodys.next_ns(), UINT64_MAX);
}

}  // namespace
}  // namespace tern::neighbours
