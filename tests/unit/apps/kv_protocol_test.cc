// Messages of kv: a reader returns what a writer wrote. Truncated, extended and inconsistent messages are refused, and
// no read passes a message's end.

#include "../apps/kv/protocol.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

using namespace kv;

namespace {

/// A copy of exactly this many bytes of memory, so that AddressSanitizer reports a read beyond the end.
class Exact {
 public:
  Exact(Bytes bytes, size_t len_bytes) : bytes_(new std::byte[len_bytes]), len_bytes_(len_bytes) {
    std::copy_n(bytes.begin(), len_bytes, bytes_.get());
  }
  Bytes bytes() const { return {bytes_.get(), len_bytes_}; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  size_t len_bytes_;
};

std::vector<std::byte> value_of(size_t len_bytes) {
  std::vector<std::byte> value(len_bytes);
  for (size_t i = 0; i < len_bytes; i++) value[i] = static_cast<std::byte>(i * 7 + 1);
  return value;
}

std::vector<std::byte> put_of(uint64_t key, uint64_t version, Bytes value) {
  std::vector<std::byte> message(kPutHeadBytes + value.size());
  Writer(message).write(key).write(version).write(value);
  return message;
}

/// Returns the records in the format of a multi-get's response.
std::vector<std::byte> records_of(const std::vector<Record>& records) {
  size_t len_bytes = 0;
  for (const Record& record : records) len_bytes += kRecordHeadBytes + record.value.size();
  std::vector<std::byte> message(len_bytes);
  Writer writer(message);
  for (const Record& record : records) {
    writer.write(record.version).write(static_cast<uint32_t>(record.value.size())).write(record.value);
  }
  return message;
}

/// Reads records until none is left, and returns their number.
size_t records_in(Bytes message) {
  Reader reader(message);
  size_t count = 0;
  while (const auto record = read_record(reader)) {
    volatile unsigned sum = 0;
    for (const std::byte one : record->value) sum = sum + static_cast<unsigned>(one);
    count++;
  }
  return count;
}

}  // namespace

TEST(KvProtocol, an_integer__is_its_own_length_only) {
  std::vector<std::byte> message(9);
  Writer(message).write(uint64_t{0x1122334455667788});
  for (size_t len_bytes = 0; len_bytes <= 9; len_bytes++) {
    const Exact cut(message, len_bytes);
    EXPECT_EQ(parse_integer<uint64_t>(cut.bytes()).has_value(), len_bytes == 8) << len_bytes;
    EXPECT_EQ(parse_integer<uint32_t>(cut.bytes()).has_value(), len_bytes == 4) << len_bytes;
  }
  EXPECT_EQ(parse_integer<uint64_t>(Bytes(message).first(8)), 0x1122334455667788u);
  EXPECT_EQ(message[0], std::byte{0x88}) << "little-endian";
}

TEST(KvProtocol, put__every_truncation) {
  const auto value = value_of(100);
  const auto message = put_of(17, 3, value);
  for (size_t len_bytes = 0; len_bytes <= message.size(); len_bytes++) {
    const Exact cut(message, len_bytes);
    const auto put = parse_put(cut.bytes());
    ASSERT_EQ(put.has_value(), len_bytes >= kPutHeadBytes) << len_bytes;
    if (!put) continue;
    EXPECT_EQ(put->key, 17u);
    EXPECT_EQ(put->version, 3u);
    ASSERT_EQ(put->value.size(), len_bytes - kPutHeadBytes);
    EXPECT_TRUE(std::equal(put->value.begin(), put->value.end(), value.begin()));
  }
}

TEST(KvProtocol, put__limits) {
  EXPECT_FALSE(parse_put(put_of(1, 0, value_of(10)))) << "version 0 means: nothing there";
  EXPECT_TRUE(parse_put(put_of(1, 1, value_of(kValueBytesMax))));
  EXPECT_FALSE(parse_put(put_of(1, 1, value_of(kValueBytesMax + 1))));
}

TEST(KvProtocol, multi_get__whole_keys_within_the_limit) {
  const std::vector<std::byte> message(8 * kMultiGetMax + 8);
  for (size_t len_bytes = 0; len_bytes <= message.size(); len_bytes++) {
    const Exact cut(message, len_bytes);
    const bool is_right = len_bytes % 8 == 0 && len_bytes >= 8 && len_bytes <= 8 * kMultiGetMax;
    const auto keys = parse_multi_get(cut.bytes());
    ASSERT_EQ(keys.has_value(), is_right) << len_bytes;
    EXPECT_EQ(keys.value_or(len_bytes / 8), len_bytes / 8);
  }
}

TEST(KvProtocol, record__every_truncation) {
  const auto value = value_of(50);
  std::vector<std::byte> message(kGetHeadBytes + value.size());
  Writer(message).write(uint64_t{9}).write(value);
  for (size_t len_bytes = 0; len_bytes <= message.size(); len_bytes++) {
    const Exact cut(message, len_bytes);
    ASSERT_EQ(parse_record(cut.bytes()).has_value(), len_bytes >= kGetHeadBytes) << len_bytes;
  }
  Writer(message).write(uint64_t{0});
  EXPECT_FALSE(parse_record(message)) << "a value without a version";
  EXPECT_TRUE(parse_record(Bytes(message).first(kGetHeadBytes))) << "no such key";
  std::vector<std::byte> large(kGetHeadBytes + kValueBytesMax + 1);
  Writer(large).write(uint64_t{1});
  EXPECT_FALSE(parse_record(large));
}

TEST(KvProtocol, records__every_truncation) {
  const auto value = value_of(30);
  const auto message = records_of({{1, value}, {0, {}}, {3, Bytes(value).first(1)}, {4, {}}});
  const size_t ends[] = {kRecordHeadBytes + 30, 2 * kRecordHeadBytes + 30, 3 * kRecordHeadBytes + 31, message.size()};
  for (size_t len_bytes = 0; len_bytes <= message.size(); len_bytes++) {
    const Exact cut(message, len_bytes);
    const auto whole = static_cast<size_t>(
        std::count_if(std::begin(ends), std::end(ends), [&](size_t end) { return end <= len_bytes; }));
    EXPECT_EQ(records_in(cut.bytes()), whole) << len_bytes;
  }
}

TEST(KvProtocol, records__wrong_lengths_are_refused) {
  const auto value = value_of(30);
  for (const uint32_t lie : {31u, 0xffffu, 0x10000u, 0x10001u, 0x7fffffffu, 0xfffffff4u, 0xffffffffu}) {
    auto message = records_of({{1, value}});
    std::memcpy(message.data() + 8, &lie, sizeof(lie));
    const Exact exact(message, message.size());
    EXPECT_EQ(records_in(exact.bytes()), 0u) << lie;
  }
}

TEST(KvProtocol, any_bytes__are_read_within_bounds) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 20000; round++) {
    std::vector<std::byte> noise(random() % 100);
    for (std::byte& one : noise) one = static_cast<std::byte>(random() % 4 == 0 ? random() : 0);
    const Exact exact(noise, noise.size());
    const auto put = parse_put(exact.bytes());
    ASSERT_TRUE(!put || put->value.size() + kPutHeadBytes == noise.size());
    EXPECT_LE(records_in(exact.bytes()), noise.size() / kRecordHeadBytes);
    const auto record = parse_record(exact.bytes());
    ASSERT_TRUE(!record || record->value.size() + kGetHeadBytes == noise.size());
  }
}

TEST(KvProtocol, partition_of__spreads_neighbours) {
  for (const uint32_t partitions : {1u, 2u, 7u, 64u}) {
    std::vector<int> keys(partitions);
    for (uint64_t key = 0; key < 1000 * partitions; key++) keys[partition_of(key, partitions)]++;
    for (const int count : keys) EXPECT_NEAR(count, 1000, 200);
  }
}
