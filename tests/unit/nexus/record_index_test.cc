#include "nexus/record_index.h"

#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace tern::nexus {
namespace {

struct Record {
  uint64_t key = 0;
  uint32_t next = UINT32_MAX;
};
constexpr uint32_t kNone = UINT32_MAX;

class RecordIndexTest : public testing::Test {
 protected:
  /// Keys of the same low 4 bits have the same hash.
  static size_t hash_of(const Record& record) { return record.key & 15; }
  uint32_t find(uint64_t key) const {
    return index_.find(records_, key & 15, [key](const Record& record) { return record.key == key; });
  }
  uint32_t add(uint64_t key) {
    records_.push_back({key});
    const auto index = static_cast<uint32_t>(records_.size() - 1);
    index_.add(records_, index, hash_of);
    return index;
  }
  void remove(uint32_t index) { index_.remove(records_, index, hash_of(records_[index])); }

  std::vector<Record> records_;
  RecordIndex<Record, &Record::next> index_;
};

TEST_F(RecordIndexTest, an_empty_index_finds_nothing) {
  EXPECT_EQ(find(0), kNone);
  EXPECT_EQ(index_.size(), 0u);
}

TEST_F(RecordIndexTest, finds_records_of_equal_hashes_until_they_are_removed) {
  const uint32_t first = add(1), second = add(17), third = add(33);
  EXPECT_EQ(find(1), first);
  EXPECT_EQ(find(17), second);
  EXPECT_EQ(find(33), third);
  EXPECT_EQ(find(49), kNone);
  remove(second);
  EXPECT_EQ(find(1), first);
  EXPECT_EQ(find(17), kNone);
  EXPECT_EQ(find(33), third);
  EXPECT_EQ(index_.size(), 2u);
}

TEST_F(RecordIndexTest, agrees_with_a_map_over_growth) {
  std::mt19937_64 random(1);
  std::map<uint64_t, uint32_t> expected;
  for (int step = 0; step < 3000; step++) {
    const uint64_t key = random() % 500;
    const auto found = expected.find(key);
    ASSERT_EQ(find(key), found == expected.end() ? kNone : found->second);
    if (found == expected.end()) {
      expected[key] = add(key);
    } else {
      remove(found->second);
      expected.erase(found);
    }
    ASSERT_EQ(index_.size(), expected.size());
  }
  for (const auto& [key, index] : expected) EXPECT_EQ(find(key), index);
}

}  // namespace
}  // namespace tern::nexus
