#include "session/session_table.h"

#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace tern::session {
namespace {

constexpr uint64_t kRest = SessionTable<int>::kRestNs;

class SessionTableTest : public testing::Test {
 protected:
  uint32_t draw() {
    uint32_t key = 0;
    EXPECT_TRUE(table_.draw(
        now_, [this] { return static_cast<uint32_t>(random_()); }, &key));
    return key;
  }
  /// Draws the first free key of this list.
  uint32_t draw_of(std::vector<uint32_t> keys) {
    size_t next = 0;
    uint32_t key = 0;
    EXPECT_TRUE(table_.draw(
        now_, [&] { return keys.at(next++); }, &key));
    return key;
  }

  SessionTable<int> table_;
  std::mt19937_64 random_{1};
  uint64_t now_ = 1;
  int objects_[4] = {};
};

TEST_F(SessionTableTest, an_empty_table_finds_nothing) {
  for (const uint32_t key : {0u, 1u, 2u, 0x80000000u, 0xffffffffu}) {
    EXPECT_EQ(table_.find(key), nullptr);
    EXPECT_EQ(table_.find_name(key), nullptr);
  }
}

TEST_F(SessionTableTest, finds_by_key_and_by_name) {
  const uint32_t key = draw();
  const uint64_t name = table_.put(key, &objects_[0]);
  EXPECT_EQ(static_cast<uint32_t>(name), key);
  EXPECT_EQ(table_.find(key), &objects_[0]);
  EXPECT_EQ(table_.find_name(name), &objects_[0]);
  for (uint32_t bit = 0; bit < 32; bit++) EXPECT_EQ(table_.find(key ^ 1u << bit), nullptr);
  for (uint32_t bit = 0; bit < 64; bit++) EXPECT_EQ(table_.find_name(name ^ uint64_t{1} << bit), nullptr);
  table_.retire(key, now_);
  EXPECT_EQ(table_.find(key), nullptr);
  EXPECT_EQ(table_.find_name(name), nullptr);
  EXPECT_EQ(table_.size(), 0u);
}

TEST_F(SessionTableTest, tells_those_that_are_asleep_from_the_others) {
  const uint32_t key = draw();
  const uint64_t name = table_.put(key, &objects_[0]);
  EXPECT_EQ(table_.find_awake(name), &objects_[0]);
  EXPECT_EQ(table_.find_asleep(name), nullptr);
  table_.set_asleep(key, true);
  EXPECT_EQ(table_.find_awake(name), nullptr);
  EXPECT_EQ(table_.find_asleep(name), &objects_[0]);
  EXPECT_EQ(table_.find_name(name), &objects_[0]);
  EXPECT_EQ(table_.find(key), &objects_[0]);
  table_.for_each_name([&](uint64_t each, int*) { EXPECT_EQ(each, name); });
  table_.visit(0, 100, [&](uint64_t each, int*) { return each == name; });
  for (uint32_t bit = 0; bit < 64; bit++) {
    const uint64_t stranger = name ^ uint64_t { 1 } << bit;
    EXPECT_EQ(table_.find_name(stranger), nullptr);
    if (bit == 62) continue;  // no name has the bit that tells them
    EXPECT_EQ(table_.find_asleep(stranger), nullptr);
  }
  for (int i = 0; i < 40; i++) table_.put(draw(), &objects_[2]);  // the table grows
  EXPECT_EQ(table_.find_asleep(name), &objects_[0]);
  table_.set_asleep(key, false);
  EXPECT_EQ(table_.find_awake(name), &objects_[0]);
  table_.set_asleep(key, true);
  table_.retire(key, now_);
  for (const bool is_asleep : {true, false}) {
    table_.set_asleep(key, is_asleep);
    EXPECT_EQ(table_.find_asleep(name), nullptr);
    EXPECT_EQ(table_.find_name(name), nullptr);
  }
}

TEST_F(SessionTableTest, a_key_rests_before_it_is_used_again_and_a_name_never_is) {
  const uint32_t key = draw_of({0x1234});
  const uint64_t name = table_.put(key, &objects_[0]);
  table_.retire(key, now_);
  EXPECT_EQ(draw_of({0x1234, 0x5677}), 0x5677u);
  now_ += kRest - 1;
  EXPECT_EQ(draw_of({0x1234, 0x5677}), 0x5677u);
  now_ += 1;
  EXPECT_EQ(draw_of({0x1234}), 0x1234u);
  EXPECT_NE(table_.put(0x1234, &objects_[1]), name);
  EXPECT_EQ(table_.find(0x1234), &objects_[1]);
  EXPECT_EQ(table_.find_name(name), nullptr);
}

TEST_F(SessionTableTest, a_taken_place_is_drawn_again) {
  table_.put(draw_of({6}), &objects_[0]);
  // 6 and 0x80000006 map to one place, whatever the table's size.
  EXPECT_EQ(draw_of({6, 0x80000006, 7}), 7u);
}

TEST_F(SessionTableTest, agrees_with_a_map_over_growth_and_rest) {
  std::map<uint32_t, int*> live;
  std::vector<uint32_t> retired;
  for (int step = 0; step < 20'000; step++) {
    now_ += random_() % (kRest / 500);
    if (live.empty() || random_() % 5 < 3) {
      const uint32_t key = draw();
      ASSERT_EQ(live.count(key), 0u);
      int* object = &objects_[random_() % 4];
      table_.put(key, object);
      live[key] = object;
    } else {
      const auto at = std::next(live.begin(), static_cast<ptrdiff_t>(random_() % live.size()));
      table_.retire(at->first, now_);
      retired.push_back(at->first);
      live.erase(at);
    }
    ASSERT_EQ(table_.size(), live.size());
    if (step % 997 != 0) continue;
    for (const auto& [key, object] : live) ASSERT_EQ(table_.find(key), object);
    for (const uint32_t key : retired) ASSERT_EQ(table_.find(key), live.count(key) != 0 ? live[key] : nullptr);
    size_t seen = 0;
    table_.for_each([&](const int*) { seen++; });
    ASSERT_EQ(seen, live.size());
  }
}

TEST_F(SessionTableTest, a_large_table_is_at_most_three_quarters_full) {
  uint32_t draws = 0;
  for (int i = 0; i < 98304; i++) {  // three quarters of 2^17
    uint32_t key = 0;
    ASSERT_TRUE(table_.draw(
        now_,
        [&] {
          draws++;
          return static_cast<uint32_t>(random_());
        },
        &key));
    table_.put(key, &objects_[0]);
  }
  EXPECT_EQ(table_.visit(0, (1u << 17) - 1, [](uint64_t, int*) { return true; }), (1u << 17) - 1u);
  EXPECT_EQ(table_.visit(0, 1u << 17, [](uint64_t, int*) { return true; }), 0u) << "larger than it need be";
  EXPECT_LT(draws, 4u * 98304);
}

TEST_F(SessionTableTest, a_second_name_passes_from_one_object_to_the_next) {
  const uint32_t first = draw();
  const uint64_t first_name = table_.put(first, &objects_[0]);
  const uint64_t shared_name = table_.put(draw(), &objects_[0]);
  const uint64_t second_name = table_.put(draw(), &objects_[1]);
  std::map<uint64_t, int*> seen;
  table_.for_each_name([&](uint64_t name, int* object) { seen[name] = object; });
  EXPECT_EQ(seen, (std::map<uint64_t, int*>{
                      {first_name, &objects_[0]}, {shared_name, &objects_[0]}, {second_name, &objects_[1]}}));
  table_.retire(first, now_);
  table_.set_asleep(static_cast<uint32_t>(shared_name), true);
  table_.rename_to(shared_name, &objects_[1]);
  EXPECT_EQ(table_.find_awake(shared_name), &objects_[1]);
  EXPECT_EQ(table_.find_name(shared_name), &objects_[1]);
  EXPECT_EQ(table_.find_name(first_name), nullptr);
  for (int i = 0; i < 40; i++) table_.put(draw(), &objects_[2]);  // the table grows
  EXPECT_EQ(table_.find_name(shared_name), &objects_[1]);
  EXPECT_EQ(table_.size(), 42u);
  table_.erase(static_cast<uint32_t>(shared_name));
  EXPECT_EQ(table_.find_name(shared_name), nullptr);
  EXPECT_EQ(table_.find(static_cast<uint32_t>(shared_name)), nullptr);
  EXPECT_EQ(table_.size(), 41u);
  EXPECT_EQ(draw_of({static_cast<uint32_t>(shared_name)}), static_cast<uint32_t>(shared_name)) << "it does not rest";
}

}  // namespace
}  // namespace tern::session
