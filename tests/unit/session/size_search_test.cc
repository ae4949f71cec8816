#include "session/size_search.h"

#include <gtest/gtest.h>

namespace tern::session {
namespace {

constexpr uint64_t kGap = 1000;
constexpr uint32_t kSafe = 1208;

/// A search on a path that carries packets of at most `passes`.
struct Searched {
  SizeSearch search;
  uint64_t now = 1'000'000;
  uint64_t number = 0;
  uint32_t probes = 0;

  explicit Searched(uint32_t route_bytes, uint32_t safe_bytes = kSafe) { search.start(safe_bytes, route_bytes); }
  /// Looks until the search ends.
  void run(uint32_t passes) {
    search.want();
    while (search.is_wanted()) {
      if (!search.look(now, kGap)) {
        now = std::max(now + 1, std::min(search.next_ns(), now + kGap));
        if (!search.is_wanted() || search.next_ns() > now + kGap) return;
        continue;
      }
      probes++;
      search.on_sent(++number);
      const uint32_t bytes = search.probe_bytes();
      if (bytes <= passes) {
        EXPECT_TRUE(search.confirm(number, bytes, now));
      }
    }
  }
  uint32_t found() const { return wire::payload_of_code(search.found()); }
};

TEST(SizeSearchTest, one_probe_finds_what_the_route_carries) {
  for (const uint32_t route : {1448u, 8948u, 65'484u}) {
    Searched searched(route);
    searched.run(route);
    EXPECT_EQ(searched.probes, 1u);
    EXPECT_EQ(searched.found(), wire::payload_of_code(wire::code_of_payload(route)));
  }
}

TEST(SizeSearchTest, smaller_sizes_follow_when_three_probes_have_no_answer) {
  Searched searched(65'484);
  searched.run(1500);
  EXPECT_EQ(searched.probes, 3u + 3u + 1u);
  EXPECT_EQ(searched.found(), 1408u);
}

TEST(SizeSearchTest, finds_nothing_where_nothing_larger_passes_and_tries_again_later) {
  Searched searched(8948);
  searched.run(kSafe);
  EXPECT_EQ(searched.probes, 6u);
  EXPECT_EQ(searched.found(), 0u);
  searched.run(kSafe);
  EXPECT_EQ(searched.probes, 6u);
  searched.now += SizeSearch::kRaiseNs;
  searched.run(8948);
  EXPECT_EQ(searched.probes, 7u);
  EXPECT_EQ(searched.found(), 8832u);
}

TEST(SizeSearchTest, sizes_that_gain_less_than_an_eighth_are_not_searched) {
  for (const uint32_t route : {0u, 64u, kSafe, kSafe * 9 / 8 - 1}) {
    Searched searched(route);
    searched.run(route);
    EXPECT_EQ(searched.probes, 0u);
  }
}

TEST(SizeSearchTest, takes_the_answer_to_its_newest_probe_only) {
  Searched searched(8948);
  SizeSearch& search = searched.search;
  search.want();
  EXPECT_FALSE(search.confirm(0, 0, 1));
  ASSERT_TRUE(search.look(1, kGap));
  search.on_sent(5);
  ASSERT_TRUE(search.look(1 + kGap, kGap));
  search.on_sent(9);
  EXPECT_FALSE(search.confirm(5, 8832, 2000));
  EXPECT_FALSE(search.confirm(9, 8831, 2000));
  EXPECT_FALSE(search.confirm(10, 8832, 2000));
  EXPECT_TRUE(search.confirm(9, 8832, 2000));
  EXPECT_FALSE(search.confirm(9, 8832, 2000));
}

TEST(SizeSearchTest, a_size_that_does_not_pass_any_more_gives_way_to_smaller_ones) {
  Searched searched(65'484);
  searched.run(65'484);
  EXPECT_EQ(searched.found(), 65'024u);
  searched.search.fall(searched.now);
  EXPECT_EQ(searched.found(), 0u);
  searched.run(9000);
  EXPECT_EQ(searched.found(), 8832u);
  searched.search.fall(searched.now);
  searched.search.fall(searched.now);
  EXPECT_EQ(searched.found(), 0u);
  searched.now += SizeSearch::kRaiseNs;
  searched.run(65'484);
  EXPECT_EQ(searched.found(), 65'024u);
}

TEST(SizeSearchTest, a_size_fits_into_what_is_allowed) {
  Searched searched(65'484);
  searched.run(65'484);
  const SizeSearch& search = searched.search;
  EXPECT_EQ(wire::payload_of_code(search.found_within(UINT64_MAX)), 65'024u);
  EXPECT_EQ(wire::payload_of_code(search.found_within(4096)), 4096u);
  EXPECT_EQ(search.found_within(kSafe), 0);
  EXPECT_EQ(search.found_within(0), 0);
}

}  // namespace
}  // namespace tern::session
