// The load generator of kv detects and reports wrong responses, and its draws follow its flags.

#include "../apps/kv/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

using namespace kv;
using testing::HasSubstr;

namespace {

constexpr uint64_t kKeys = 10;

struct Value {
  Value(uint64_t key, uint64_t its_version, size_t len_bytes) : version(its_version), bytes(len_bytes) {
    fill_value(bytes, key, version);
  }
  Record record() const { return {version, bytes}; }
  uint64_t version;
  std::vector<std::byte> bytes;
};

}  // namespace

TEST(KvChecker, read__the_right_value_of_any_length) {
  Checker checker(kKeys);
  for (const size_t len_bytes : {1, 7, 8, 9, 100, 4096}) {
    EXPECT_EQ(checker.read(3, 0, Value(3, 5, len_bytes).record()), "") << len_bytes;
  }
  EXPECT_EQ(checker.floor(3), 5u);
  EXPECT_EQ(checker.read(4, 0, Record()), "") << "nothing was ever there";
}

TEST(KvChecker, read__any_flipped_bit) {
  Checker checker(kKeys);
  for (size_t bit = 0; bit < 8 * 33; bit++) {
    Value value(3, 5, 33);
    value.bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_THAT(checker.read(3, 0, value.record()),
                HasSubstr("key 3, version 5 is damaged at byte " + std::to_string(bit / 64 * 8) + " of 33"));
  }
}

TEST(KvChecker, read__a_value_of_another_key_or_version_or_length) {
  Checker checker(kKeys);
  EXPECT_THAT(checker.read(4, 0, Value(3, 5, 100).record()), HasSubstr("damaged"));
  Value value(3, 5, 100);
  value.version = 6;
  EXPECT_THAT(checker.read(3, 0, value.record()), HasSubstr("damaged"));
  value.version = 5;
  value.bytes.pop_back();
  EXPECT_THAT(checker.read(3, 0, value.record()), HasSubstr("damaged"));
  value.bytes.resize(101);
  EXPECT_THAT(checker.read(3, 0, value.record()), HasSubstr("damaged"));
}

TEST(KvChecker, read__a_lost_write) {
  Checker checker(kKeys);
  for (int i = 0; i < 3; i++) checker.issue(3);
  EXPECT_EQ(checker.acknowledged(3, 2, 2), "");
  EXPECT_EQ(checker.read(3, checker.floor(3), Value(3, 2, 50).record()), "");
  EXPECT_EQ(checker.read(3, checker.floor(3), Value(3, 3, 50).record()), "") << "issued, not acknowledged: may be";
  EXPECT_THAT(checker.read(3, checker.floor(3), Value(3, 2, 50).record()),
              HasSubstr("key 3, version 3 was acknowledged or read before, and is lost: version 2 is there now"));
  EXPECT_THAT(checker.read(3, checker.floor(3), Record()), HasSubstr("is lost: nothing is there now"));
}

TEST(KvChecker, read__counts_writes_acknowledged_before_it_began) {
  Checker checker(kKeys);
  checker.issue(3);
  const uint64_t floor = checker.floor(3);
  EXPECT_EQ(checker.acknowledged(3, 1, 1), "");
  EXPECT_EQ(checker.read(3, floor, Record()), "") << "the read may have been served before the write";
  EXPECT_THAT(checker.read(3, checker.floor(3), Record()), HasSubstr("is lost"));
}

TEST(KvChecker, read__another_owners_versions_do_not_go_back) {
  Checker checker(kKeys);
  EXPECT_EQ(checker.read(3, checker.floor(3), Value(3, 9, 50).record()), "");
  EXPECT_THAT(checker.read(3, checker.floor(3), Value(3, 8, 50).record()), HasSubstr("is lost"));
}

TEST(KvChecker, read__value_that_its_owner_never_wrote_is_wrong) {
  Checker checker(kKeys);
  checker.issue(3);
  EXPECT_THAT(checker.read(3, 0, Value(3, 2, 50).record()), HasSubstr("never written by its owner"));
}

TEST(KvChecker, acknowledged__version_that_was_not_issued_is_wrong) {
  Checker checker(kKeys);
  for (int i = 0; i < 3; i++) checker.issue(3);
  EXPECT_THAT(checker.acknowledged(3, 2, 1), HasSubstr("was acknowledged as version 1"));
  EXPECT_EQ(checker.acknowledged(3, 2, 3), "") << "a newer one of this writer was faster";
  EXPECT_THAT(checker.acknowledged(3, 2, 4), HasSubstr("never written by its owner"));
}

TEST(KvChecker, take_over__leaves_the_predecessors_numbers_alone) {
  Checker checker(kKeys);
  const uint64_t stored = (5u << 20) + 77;
  EXPECT_EQ(checker.read(3, 0, Value(3, stored, 50).record()), "");
  checker.take_over(3, stored);
  EXPECT_GT(checker.issue(3), stored + 4096) << "no PUT that its predecessor has under way may be newer";
}

TEST(KvValueSizes, parse) {
  Random random(1);
  EXPECT_EQ(ValueSizes::parse("256")->max(), 256u);
  EXPECT_EQ(ValueSizes::parse("256")->draw(random), 256u);
  EXPECT_EQ(ValueSizes::parse("32..4096")->max(), 4096u);
  EXPECT_EQ(ValueSizes::parse("etc")->max(), ValueSizes::kEtcBytesMax);
  for (const char* wrong : {"", "0", "x", "1x", "-1", "..", "1..", "..2", "3..2", "1...2", "1..2..3", "0..5", "65537",
                            "1..65537", "ETC", "99999999999999999999"}) {
    EXPECT_FALSE(ValueSizes::parse(wrong)) << wrong;
  }
}

TEST(KvValueSizes, draw__range_and_etc) {
  Random random(1);
  const auto range = *ValueSizes::parse("3..5");
  std::vector<int> counts(6);
  for (int i = 0; i < 3000; i++) counts.at(range.draw(random))++;
  for (int size = 3; size <= 5; size++) EXPECT_NEAR(counts[size], 1000, 150);

  // The distribution's own quantiles: scale/shape * ((1-p)^-shape - 1) is 168.1 at 1/2 and 757.4 at 9/10.
  std::vector<size_t> sizes(100000);
  const auto etc = *ValueSizes::parse("etc");
  for (size_t& size : sizes) size = etc.draw(random);
  std::sort(sizes.begin(), sizes.end());
  EXPECT_GE(sizes.front(), 1u);
  EXPECT_LE(sizes.back(), ValueSizes::kEtcBytesMax);
  EXPECT_NEAR(static_cast<double>(sizes[50000]), 168.1, 5);
  EXPECT_NEAR(static_cast<double>(sizes[90000]), 757.4, 25);
}

TEST(KvKeyChooser, draw__uniform_and_zipf) {
  Random random(1);
  for (const uint64_t keys : {1, 2, 3, 1000}) {
    for (const double skew : {0.0, 0.5, 0.99}) {
      const KeyChooser chooser(keys, skew);
      for (int i = 0; i < 1000; i++) ASSERT_LT(chooser.draw(random), keys);
    }
  }
  const KeyChooser chooser(1000, 0.99);
  double zeta = 0;
  for (int key = 1; key <= 1000; key++) zeta += std::pow(key, -0.99);
  std::vector<int> counts(1000);
  constexpr int kDraws = 200000;
  for (int i = 0; i < kDraws; i++) counts[chooser.draw(random)]++;
  EXPECT_NEAR(counts[0], kDraws / zeta, 0.05 * kDraws / zeta);
  EXPECT_NEAR(counts[1], kDraws / zeta / std::pow(2, 0.99), 0.05 * kDraws / zeta);
  const auto tail = std::accumulate(counts.begin() + 500, counts.end(), 0);
  double tail_share = 0;
  for (int key = 501; key <= 1000; key++) tail_share += std::pow(key, -0.99) / zeta;
  EXPECT_NEAR(tail, kDraws * tail_share, 0.1 * kDraws * tail_share);
}
