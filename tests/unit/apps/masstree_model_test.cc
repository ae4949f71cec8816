// The model of the index server's load detects wrong answers, and names the error.

#include "../apps/masstree/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>

using namespace ordered;
using testing::HasSubstr;

namespace {

constexpr uint64_t kSeed = 1, kKeys = 16, kInserts = 4;

/// A model whose preloaded keys have version 1. The seed decides which of the 20 positions they have.
class ModelTest : public testing::Test {
 protected:
  ModelTest() {
    for (size_t p = 0; p < model_.size(); p++) EXPECT_EQ(model_.take_over(p, first_value(p)), "");
  }
  bool is_insert(size_t position) const {
    for (uint64_t i = kKeys; i < kKeys + kInserts; i++) {
      if (model_.key(position) == key_of(kSeed, i)) return true;
    }
    return false;
  }
  std::optional<uint64_t> first_value(size_t position) const {
    return is_insert(position) ? std::nullopt : std::optional(value_of(model_.key(position), 1));
  }
  uint64_t value(size_t position, uint32_t version) const { return value_of(model_.key(position), version); }
  /// Returns the n-th position with a preloaded key. missing() returns the n-th position without one.
  size_t there(size_t n) const { return nth(n, false); }
  size_t missing(size_t n) const { return nth(n, true); }
  std::string read(size_t position, std::optional<uint64_t> answer) {
    return model_.read(position, model_.floor(position), answer);
  }
  /// Returns the answer of an index with these positions, each with a version.
  ScanAnswer answer_of(const Model::ScanBegin& begin, const std::vector<std::pair<size_t, uint32_t>>& visited) const {
    ScanAnswer answer = {static_cast<uint32_t>(visited.size()), model_.key(begin.position), 0};
    for (const auto& [position, version] : visited) {
      answer.last = model_.key(position);
      answer.sum += value(position, version);
    }
    return answer;
  }
  /// Returns the positions of preloaded keys after `position`, at most `limit`, with version 1.
  std::vector<std::pair<size_t, uint32_t>> behind(size_t position, size_t limit) const {
    std::vector<std::pair<size_t, uint32_t>> visited;
    for (size_t p = position + 1; p < model_.size() && visited.size() < limit; p++) {
      if (!is_insert(p)) visited.emplace_back(p, 1);
    }
    return visited;
  }
  Model::ScanBegin begin(size_t position, uint32_t limit) const {
    Model::ScanBegin scan;
    model_.begin_scan(scan, position, limit);
    return scan;
  }

  Model model_{kSeed, kKeys, kInserts};

 private:
  size_t nth(size_t n, bool is_missing) const {
    for (size_t p = 0; p < model_.size(); p++) {
      if (is_insert(p) == is_missing && n-- == 0) return p;
    }
    ADD_FAILURE();
    return 0;
  }
};

}  // namespace

TEST_F(ModelTest, read__right_answers_pass) {
  EXPECT_EQ(model_.count(), kKeys);
  EXPECT_EQ(read(there(0), value(there(0), 1)), "");
  EXPECT_EQ(read(missing(0), std::nullopt), "");
  EXPECT_EQ(model_.issue(there(0)), 2u);
  EXPECT_TRUE(model_.is_pending(there(0)));
  EXPECT_EQ(read(there(0), value(there(0), 1)), "") << "the PUT is under way";
  EXPECT_EQ(read(there(0), value(there(0), 2)), "");
  EXPECT_EQ(model_.floor(there(0)), 2u);
}

TEST_F(ModelTest, read__wrong_answers_are_detected) {
  const size_t p = there(1);
  EXPECT_THAT(read(p, std::nullopt), HasSubstr("has gone, which had version 1"));
  EXPECT_THAT(read(p, value(there(2), 1)), HasSubstr("not one of its own"));
  EXPECT_THAT(read(p, value(p, 1) ^ uint64_t{1} << 40), HasSubstr("not one of its own"));
  EXPECT_THAT(read(p, value(p, 2)), HasSubstr("has version 2, which nobody has written, or another client writes"));
  EXPECT_THAT(read(missing(0), value(missing(0), 1)), HasSubstr("which nobody has written"));
  EXPECT_THAT(read(missing(0), value(missing(0), 0)), HasSubstr("which nobody has written"));
}

TEST_F(ModelTest, read__an_older_version_than_one_that_was_read_or_acknowledged) {
  const size_t p = there(1);
  model_.acknowledged(p, model_.issue(p));
  EXPECT_FALSE(model_.is_pending(p));
  EXPECT_THAT(read(p, value(p, 1)), HasSubstr("has fallen from version 2 to 1, or another client writes"));
  const uint32_t before = model_.floor(p);
  (void)model_.issue(p);
  EXPECT_EQ(read(p, value(p, 3)), "");
  EXPECT_EQ(model_.read(p, before, value(p, 2)), "") << "a read that began before";
  EXPECT_THAT(read(p, value(p, 2)), HasSubstr("has fallen from version 3 to 2"));
}

TEST_F(ModelTest, take_over__a_value_of_another_key) {
  EXPECT_THAT(model_.take_over(there(0), value(there(1), 1)), HasSubstr("not one of its own"));
  EXPECT_THAT(model_.take_over(there(0), value(there(0), 0)), HasSubstr("not one of its own"));
  EXPECT_EQ(model_.take_over(there(0), value(there(0), 77)), "") << "somebody's PUTs before this load";
  EXPECT_EQ(model_.issue(there(0)), 78u);
}

TEST_F(ModelTest, refused__an_insert) {
  EXPECT_EQ(model_.issue(missing(0)), 1u);
  model_.refused(missing(0));
  EXPECT_FALSE(model_.is_pending(missing(0)));
  EXPECT_THAT(read(missing(0), value(missing(0), 1)), HasSubstr("nobody has written"));
}

TEST_F(ModelTest, check_scan__right_answers_pass) {
  for (size_t p = 0; p < model_.size(); p++) {
    for (const uint32_t limit : {1u, 3u, 100u}) {
      const auto scan = begin(p, limit);
      EXPECT_EQ(model_.check_scan(scan, answer_of(scan, behind(p, limit))), "") << p << " " << limit;
    }
  }
}

TEST_F(ModelTest, check_scan__wrong_answers_are_detected) {
  const auto scan = begin(there(0), 5);
  const auto visited = behind(there(0), 5);
  ASSERT_EQ(visited.size(), 5u);
  const ScanAnswer right = answer_of(scan, visited);
  const auto check = [&](ScanAnswer answer) { return model_.check_scan(scan, answer); };

  EXPECT_THAT(check({right.count + 1, right.last, right.sum}), HasSubstr("more keys than were asked for"));
  EXPECT_THAT(check({0, right.last, 0}), HasSubstr("is not empty"));
  EXPECT_THAT(check({0, model_.key(there(0)), 1}), HasSubstr("is not empty"));
  EXPECT_THAT(check({0, model_.key(there(0)), 0}), HasSubstr("has left out a key"));
  EXPECT_THAT(check({right.count, right.last + 1, right.sum}), HasSubstr("ends with a key that nobody has written"));
  EXPECT_THAT(check({right.count, right.last, right.sum + 1}), HasSubstr("a sum that its keys never had"));
  EXPECT_THAT(check({right.count, right.last, right.sum - 1}), HasSubstr("a sum that its keys never had"));
  EXPECT_THAT(check({right.count - 1, right.last, right.sum}), HasSubstr("has left out a key"));
  auto skipping = behind(there(0), 6);
  skipping.erase(skipping.begin() + 2);
  EXPECT_THAT(check(answer_of(scan, skipping)), HasSubstr("has left out a key"));
  auto strange = visited;
  strange[1].first = missing(0);
  EXPECT_THAT(check(answer_of(scan, strange)), HasSubstr("a sum that its keys never had"));
  // The scan ends one key too early for its count.
  EXPECT_THAT(check({5, model_.key(visited[3].first), right.sum}), HasSubstr("a key that nobody has written"));
}

TEST_F(ModelTest, check_scan__versions_from_the_floor_to_the_last_issued_pass) {
  auto visited = behind(there(0), 5);
  const size_t p = visited[2].first;
  model_.acknowledged(p, model_.issue(p));
  const auto scan = begin(there(0), 5);
  (void)model_.issue(p);
  const auto with = [&](uint32_t version) {
    visited[2].second = version;
    return model_.check_scan(scan, answer_of(scan, visited));
  };
  EXPECT_NE(with(1), "") << "older than what was acknowledged before the scan";
  EXPECT_EQ(with(2), "");
  EXPECT_EQ(with(3), "");
  EXPECT_NE(with(4), "");
}

/// A scan may or may not contain each key that is inserted while the scan runs. It contains no other new key.
TEST_F(ModelTest, check_scan__keys_that_are_inserted_meanwhile) {
  const auto scan = begin(0, 100);
  std::vector<size_t> inserts;
  for (size_t n = 0; n < kInserts; n++) {
    if (missing(n) > 0 && inserts.size() < 2) inserts.push_back(missing(n));
  }
  ASSERT_EQ(inserts.size(), 2u);
  for (const size_t p : inserts) (void)model_.issue(p);
  for (uint32_t chosen = 0; chosen < 4; chosen++) {
    auto visited = behind(0, 100);
    for (size_t i = 0; i < 2; i++) {
      if (chosen >> i & 1) visited.emplace_back(inserts[i], 1);
    }
    std::sort(visited.begin(), visited.end());
    const ScanAnswer answer = answer_of(scan, visited);
    EXPECT_EQ(model_.check_scan(scan, answer), "") << chosen;
    EXPECT_NE(model_.check_scan(scan, {answer.count, answer.last, answer.sum + 1}), "") << chosen;
  }
  for (const size_t p : inserts) model_.acknowledged(p, 1);
  const auto later = begin(0, 100);
  EXPECT_THAT(model_.check_scan(later, answer_of(later, behind(0, 100))), HasSubstr("has left out a key"));
}

TEST(Keys, key_of__different_keys) {
  std::vector<uint64_t> keys;
  for (uint64_t i = 0; i < 10'000; i++) keys.push_back(key_of(5, i));
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::adjacent_find(keys.begin(), keys.end()), keys.end());
  EXPECT_NE(key_of(5, 0), key_of(6, 0));
}
