#include "session/size_search.h"

#include <gtest/gtest.h>

namespace tern::session {
namespace {

constexpr uint64_t kGap = 1000;
constexpr uint64_t kMinute = 60'000'000'000;
constexpr uint32_t kSafe = 1208;

/// A search on a path that carries packets of at most `passes`.
struct Searched {
  uint32_t safe;
  KnownSizes known;
  SizeSearch search;
  uint64_t now = 1'000'000;
  uint64_t number = 0;
  uint32_t probes = 0;

  explicit Searched(uint32_t route_bytes, uint32_t safe_bytes = kSafe)
      : safe(safe_bytes), known(KnownSizes::of(safe_bytes, route_bytes)) {}
  /// Looks until the search ends.
  void run(uint32_t passes) {
    search.want(known);
    while (search.is_wanted()) {
      now = std::max(now + 1, search.next_ns());
      if (!search.look(known, safe, now, kGap)) continue;
      probes++;
      search.on_sent(++number);
      const uint32_t bytes = search.probe_bytes();
      if (bytes <= passes) {
        EXPECT_TRUE(search.confirm(known, number, bytes, now));
      }
    }
  }
  /// Sends the first probes up to packet `last`, a gap apart. None is answered.
  void send_probes(uint64_t last) {
    search.want(known);
    while (number < last) {
      now = ++number * kGap;
      ASSERT_TRUE(search.look(known, safe, now, kGap));
      search.on_sent(number);
    }
  }
  void fall() { search.fall(known, safe, now); }
  uint32_t found() const { return wire::payload_of_code(known.found); }
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
  searched.now += kMinute;
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

TEST(SizeSearchTest, takes_the_answer_to_any_probe_of_the_present_size) {
  Searched searched(8948);
  SizeSearch& search = searched.search;
  KnownSizes& known = searched.known;
  search.want(known);
  EXPECT_FALSE(search.confirm(known, 0, 0, 1));
  ASSERT_TRUE(search.look(known, kSafe, 1, kGap));
  search.on_sent(5);
  EXPECT_FALSE(search.look(known, kSafe, kGap, kGap));
  ASSERT_TRUE(search.look(known, kSafe, 1 + kGap, kGap));
  search.on_sent(9);
  EXPECT_FALSE(search.confirm(known, 4, 8832, 2000));
  EXPECT_FALSE(search.confirm(known, 9, 8831, 2000));
  EXPECT_TRUE(search.confirm(known, 5, 8832, 2000));
  EXPECT_FALSE(search.confirm(known, 9, 8832, 2000));
}

TEST(SizeSearchTest, a_late_answer_to_an_earlier_size_counts) {
  for (const bool is_search_over : {false, true}) {
    Searched searched(65'484);
    searched.run(is_search_over ? kSafe : 8832);
    EXPECT_EQ(searched.found(), is_search_over ? 0u : 8832u);
    EXPECT_EQ(searched.probes, is_search_over ? 9u : 4u);
    SizeSearch& search = searched.search;
    KnownSizes& known = searched.known;
    search.want(known);
    EXPECT_FALSE(search.confirm(known, 0, 65'024, searched.now));  // no probe of this search
    EXPECT_FALSE(search.confirm(known, 1, 30'000, searched.now));  // no size of a large packet
    EXPECT_FALSE(search.confirm(known, 2, 29'888, searched.now));  // one that no search tries
    EXPECT_TRUE(search.confirm(known, 2, 65'024, searched.now));
    EXPECT_EQ(searched.found(), 65'024u);
    EXPECT_FALSE(search.is_wanted());
    EXPECT_FALSE(search.confirm(known, 3, 65'024, searched.now));
    EXPECT_FALSE(search.confirm(known, 4, 8832, searched.now));
    search.want(known);
    EXPECT_FALSE(search.is_wanted());
  }
}

TEST(SizeSearchTest, a_late_answer_ends_the_search_among_smaller_sizes) {
  Searched searched(65'484);
  SizeSearch& search = searched.search;
  KnownSizes& known = searched.known;
  ASSERT_NO_FATAL_FAILURE(searched.send_probes(4));
  EXPECT_EQ(search.probe_bytes(), 8832u);
  EXPECT_TRUE(search.confirm(known, 3, 65'024, 4 * kGap));
  EXPECT_FALSE(search.is_wanted());
  EXPECT_FALSE(search.confirm(known, 4, 8832, 4 * kGap));
  EXPECT_EQ(searched.found(), 65'024u);
}

TEST(SizeSearchTest, late_answers_do_not_count_after_packets_of_that_size_were_lost) {
  Searched searched(65'484);
  searched.run(65'484);
  searched.fall();
  EXPECT_FALSE(searched.search.confirm(searched.known, 1, 65'024, searched.now));
  searched.run(kSafe);
  EXPECT_EQ(searched.found(), 0u);
  EXPECT_FALSE(searched.search.confirm(searched.known, 1, 65'024, searched.now));
  EXPECT_TRUE(searched.search.confirm(searched.known, 3, 8832, searched.now));
}

TEST(SizeSearchTest, late_answers_do_not_count_in_the_next_search) {
  Searched searched(65'484);
  searched.run(kSafe);
  searched.now += kMinute;
  searched.search.want(searched.known);
  ASSERT_TRUE(searched.search.look(searched.known, kSafe, searched.now, kGap));
  EXPECT_FALSE(searched.search.confirm(searched.known, 1, 65'024, searched.now));
  searched.search.on_sent(10);
  EXPECT_FALSE(searched.search.confirm(searched.known, 1, 65'024, searched.now));
  EXPECT_FALSE(searched.search.confirm(searched.known, 4, 8832, searched.now));
  EXPECT_TRUE(searched.search.confirm(searched.known, 10, 65'024, searched.now));
}

TEST(SizeSearchTest, an_answer_must_have_the_size_of_its_probe) {
  Searched searched(8948);
  SizeSearch& search = searched.search;
  KnownSizes& known = searched.known;
  ASSERT_NO_FATAL_FAILURE(searched.send_probes(3));
  ASSERT_TRUE(search.look(known, kSafe, 4 * kGap, kGap));
  EXPECT_EQ(search.probe_bytes(), 1408u);
  EXPECT_FALSE(search.confirm(known, 3, 1408, 4 * kGap));  // the probe of 1408 B has not left
  search.on_sent(4);
  EXPECT_FALSE(search.confirm(known, 3, 1408, 4 * kGap));
  EXPECT_TRUE(search.confirm(known, 4, 1408, 4 * kGap));
}

TEST(SizeSearchTest, a_size_that_does_not_pass_any_more_gives_way_to_smaller_ones) {
  Searched searched(65'484);
  searched.run(65'484);
  EXPECT_EQ(searched.found(), 65'024u);
  searched.fall();
  EXPECT_EQ(searched.found(), 0u);
  searched.run(9000);
  EXPECT_EQ(searched.found(), 8832u);
  searched.fall();
  searched.fall();
  EXPECT_EQ(searched.found(), 0u);
  searched.now += kMinute;
  searched.run(65'484);
  EXPECT_EQ(searched.found(), 65'024u);
}

TEST(SizeSearchTest, a_size_fits_into_what_is_allowed) {
  Searched searched(65'484);
  searched.run(65'484);
  const auto within = [&](uint64_t bytes) { return wire::payload_of_code(searched.known.found_within(bytes, kSafe)); };
  EXPECT_EQ(within(UINT64_MAX), 65'024u);
  EXPECT_EQ(within(4096), 4096u);
  EXPECT_EQ(within(kSafe), 0u);
  EXPECT_EQ(within(0), 0u);
}

// A session that rests forgets the search, but not that it was in vain.
TEST(SizeSearchTest, a_rest_does_not_repeat_a_search_in_vain) {
  Searched searched(8948);
  searched.run(kSafe);
  searched.search = SizeSearch();
  searched.run(kSafe);
  EXPECT_EQ(searched.probes, 6u);
}

}  // namespace
}  // namespace tern::session
