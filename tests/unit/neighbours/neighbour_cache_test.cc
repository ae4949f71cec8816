#include "neighbours/neighbour_cache.h"

#include <gtest/gtest.h>
#include <linux/neighbour.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tern::neighbours {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
const frames::MacAddress kMac({2, 0, 0, 0, 0, 1});
const frames::MacAddress kOther({2, 0, 0, 0, 0, 2});
const NeighbourCache::News kAnswer{.mac = kMac, .is_answer = true, .is_override = true};
const NeighbourCache::News kAnnouncement{.mac = kOther, .is_answer = false, .is_override = true};

base::SocketAddress ip(std::string_view text) { return base::SocketAddress::parse_ip(text).value(); }
base::SocketAddress numbered(uint32_t number) {
  return ip("10." + std::to_string(number >> 16) + "." + std::to_string(number >> 8 & 255) + "." +
            std::to_string(number & 255));
}

class NeighbourCacheTest : public testing::Test {
 protected:
  void TearDown() override { cache_.check_invariants(); }
  std::optional<uint16_t> state() const {
    const auto entry = cache_.find(ip_);
    if (!entry) return std::nullopt;
    return entry->state;
  }
  /// Returns the questions that are due: 'a' to all hosts, 'u' to one.
  std::string questions() {
    std::string text;
    while (const auto question = cache_.next_question(now_)) {
      EXPECT_EQ(question->ip, ip_);
      if (question->mac) {
        EXPECT_EQ(question->mac, cache_.find(ip_)->mac);
      }
      text += question->mac ? 'u' : 'a';
    }
    cache_.check_invariants();
    return text;
  }
  std::string after(uint64_t ns) {
    now_ += ns;
    return questions();
  }
  bool has_changed() {
    bool is_any = false;
    while (const auto changed = cache_.take_change()) is_any = changed == ip_;
    return is_any;
  }
  void become_reachable() {
    ASSERT_TRUE(cache_.ask(ip_, now_));
    ASSERT_EQ(questions(), "a");
    cache_.on_news(ip_, kAnswer, now_);
    ASSERT_EQ(state(), NUD_REACHABLE);
    ASSERT_TRUE(has_changed());
  }
  void become_stale() {
    become_reachable();
    ASSERT_EQ(after(NeighbourCache::kReachableNs), "");
    ASSERT_EQ(state(), NUD_STALE);
    ASSERT_TRUE(has_changed());
  }

  const base::SocketAddress ip_ = ip("10.0.0.2");
  NeighbourCache cache_{77};
  uint64_t now_ = 5 * kSecond;
};

TEST_F(NeighbourCacheTest, neighbour_is_asked_for_three_times_a_second_apart_then_has_failed) {
  EXPECT_EQ(state(), std::nullopt);
  EXPECT_TRUE(cache_.ask(ip_, now_));
  EXPECT_EQ(cache_.next_question_ns(), 0u);
  EXPECT_EQ(questions(), "a");
  EXPECT_EQ(cache_.next_question_ns(), now_ + kSecond);
  EXPECT_TRUE(cache_.ask(ip_, now_));  // a question is pending already
  EXPECT_EQ(after(kSecond - 1), "");
  EXPECT_EQ(after(1), "a");
  EXPECT_EQ(after(kSecond), "a");
  EXPECT_EQ(state(), NUD_INCOMPLETE);
  EXPECT_FALSE(has_changed());
  EXPECT_EQ(after(kSecond), "");
  EXPECT_EQ(state(), NUD_FAILED);
  EXPECT_TRUE(has_changed());
  EXPECT_TRUE(cache_.ask(ip_, now_));
  EXPECT_EQ(state(), NUD_INCOMPLETE);
  EXPECT_EQ(questions(), "a");
}

TEST_F(NeighbourCacheTest, answer_makes_it_reachable_for_thirty_seconds) {
  become_reachable();
  EXPECT_EQ(cache_.find(ip_)->mac, kMac);
  EXPECT_EQ(cache_.next_question_ns(), now_ + NeighbourCache::kReachableNs);
  EXPECT_EQ(after(NeighbourCache::kReachableNs - 1), "");
  EXPECT_EQ(state(), NUD_REACHABLE);
  EXPECT_EQ(after(1), "");
  EXPECT_EQ(state(), NUD_STALE);
  EXPECT_TRUE(has_changed());
}

TEST_F(NeighbourCacheTest, stale_neighbour_in_use_is_confirmed_by_unicast) {
  become_stale();
  EXPECT_TRUE(cache_.ask(ip_, now_));
  EXPECT_EQ(state(), NUD_PROBE);
  EXPECT_EQ(questions(), "u");
  EXPECT_EQ(after(kSecond), "u");
  // An answer without a MAC address confirms the known one.
  cache_.on_news(ip_, {.mac = std::nullopt, .is_answer = true, .is_override = false}, now_);
  EXPECT_EQ(state(), NUD_REACHABLE);
  EXPECT_EQ(cache_.find(ip_)->mac, kMac);
}

TEST_F(NeighbourCacheTest, stale_neighbour_that_is_gone_has_failed_after_three_seconds) {
  become_stale();
  EXPECT_TRUE(cache_.ask(ip_, now_));
  EXPECT_EQ(questions(), "u");
  EXPECT_EQ(after(kSecond), "u");
  EXPECT_EQ(after(kSecond), "u");
  EXPECT_EQ(after(kSecond), "");
  EXPECT_EQ(state(), NUD_FAILED);
  EXPECT_FALSE(cache_.find(ip_)->mac.has_value());
  EXPECT_TRUE(has_changed());
}

TEST_F(NeighbourCacheTest, unused_stale_neighbour_is_forgotten) {
  become_stale();
  EXPECT_EQ(after(NeighbourCache::kIdleNs), "");
  EXPECT_EQ(state(), std::nullopt);
  EXPECT_EQ(cache_.size(), 0u);
  EXPECT_EQ(cache_.next_question_ns(), UINT64_MAX);
}

TEST_F(NeighbourCacheTest, news_of_unknown_neighbours_make_no_entry) {
  cache_.on_news(ip_, kAnswer, now_);
  cache_.on_news(ip_, kAnnouncement, now_);
  EXPECT_EQ(cache_.size(), 0u);
  EXPECT_FALSE(has_changed());
}

TEST_F(NeighbourCacheTest, announced_mac_address_takes_the_place_of_the_known_one) {
  become_reachable();
  cache_.on_news(ip_, kAnnouncement, now_);
  EXPECT_EQ(state(), NUD_STALE);  // the entry awaits confirmation
  EXPECT_EQ(cache_.find(ip_)->mac, kOther);
  EXPECT_TRUE(has_changed());
}

TEST_F(NeighbourCacheTest, news_without_override_only_raise_a_doubt) {
  become_reachable();
  cache_.on_news(ip_, {.mac = kOther, .is_answer = true, .is_override = false}, now_);
  EXPECT_EQ(state(), NUD_STALE);
  EXPECT_EQ(cache_.find(ip_)->mac, kMac);
  EXPECT_TRUE(has_changed());
  cache_.on_news(ip_, {.mac = kOther, .is_answer = true, .is_override = false}, now_);
  EXPECT_FALSE(has_changed());
}

TEST_F(NeighbourCacheTest, announcement_of_the_known_mac_address_changes_nothing) {
  become_reachable();
  now_ += kSecond;
  cache_.on_news(ip_, {.mac = kMac, .is_answer = false, .is_override = true}, now_);
  EXPECT_EQ(state(), NUD_REACHABLE);
  EXPECT_FALSE(has_changed());
  EXPECT_EQ(cache_.next_question_ns(), now_ - kSecond + NeighbourCache::kReachableNs);
}

TEST_F(NeighbourCacheTest, number_of_questions_at_one_time_is_limited) {
  for (uint32_t i = 0; i < NeighbourCache::kAskedMax; i++) ASSERT_TRUE(cache_.ask(numbered(i), now_));
  EXPECT_FALSE(cache_.ask(ip("fd00::1"), now_));
  EXPECT_EQ(cache_.size(), NeighbourCache::kAskedMax);
  cache_.on_news(numbered(5), kAnswer, now_);
  EXPECT_TRUE(cache_.ask(ip("fd00::1"), now_));
}

TEST_F(NeighbourCacheTest, full_cache_forgets_the_longest_idle_neighbour_and_no_reachable_one) {
  for (uint32_t i = 0; i < NeighbourCache::kEntriesMax; i++) {
    ASSERT_TRUE(cache_.ask(numbered(i), now_));
    cache_.on_news(numbered(i), i < 2 ? kAnnouncement : kAnswer, now_);
  }
  EXPECT_TRUE(cache_.ask(ip("fd00::1"), now_));
  EXPECT_FALSE(cache_.find(numbered(0)).has_value());
  EXPECT_TRUE(cache_.ask(ip("fd00::2"), now_));
  EXPECT_FALSE(cache_.find(numbered(1)).has_value());
  EXPECT_FALSE(cache_.ask(ip("fd00::3"), now_));
  EXPECT_EQ(cache_.size(), NeighbourCache::kEntriesMax);
}

TEST_F(NeighbourCacheTest, work_of_one_call_is_limited) {
  constexpr uint32_t kCount = 500;
  for (uint32_t i = 0; i < kCount; i++) {
    ASSERT_TRUE(cache_.ask(numbered(i), now_));
    cache_.on_news(numbered(i), kAnswer, now_);
  }
  while (cache_.take_change()) {
  }
  now_ += NeighbourCache::kReachableNs;
  uint32_t calls = 0;
  uint32_t changes = 0;
  while (cache_.next_question_ns() <= now_) {
    EXPECT_FALSE(cache_.next_question(now_).has_value());
    uint32_t changes_of_call = 0;
    while (cache_.take_change()) changes_of_call++;
    EXPECT_LE(changes_of_call, 64u);
    changes += changes_of_call;
    calls++;
  }
  EXPECT_EQ(changes, kCount);
  EXPECT_GT(calls, 5u);
}

}  // namespace
}  // namespace tern::neighbours
