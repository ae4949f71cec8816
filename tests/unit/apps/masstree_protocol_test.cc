// The index server's messages: a reader returns what a writer wrote. Truncated and extended messages and values beyond
// a limit are refused.

#include "../apps/masstree/protocol.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

using namespace ordered;
using programs::Bytes;
using programs::Writer;

namespace {

/// Calls parse() with copies of each length of `message`, in memory of exactly that length, and with one more byte.
/// Only the whole message may be accepted.
template <class Parse>
void expect_only_whole(Parse parse, const std::vector<std::byte>& message) {
  for (size_t len_bytes = 0; len_bytes <= message.size() + 1; len_bytes++) {
    const std::unique_ptr<std::byte[]> copy(new std::byte[len_bytes]());
    std::copy_n(message.begin(), std::min(len_bytes, message.size()), copy.get());
    EXPECT_EQ(parse(Bytes(copy.get(), len_bytes)).has_value(), len_bytes == message.size()) << len_bytes;
  }
}

template <class... Integers>
std::vector<std::byte> message_of(Integers... integers) {
  std::vector<std::byte> message((sizeof(integers) + ...));
  Writer writer(message);
  (writer.write(integers), ...);
  return message;
}

}  // namespace

TEST(IndexProtocol, only_whole_messages_are_taken) {
  expect_only_whole(parse_about, message_of(uint64_t{1}, uint64_t{2}, uint32_t{3}));
  expect_only_whole(parse_put, message_of(uint64_t{1}, uint64_t{2}));
  expect_only_whole(parse_scan, message_of(uint64_t{1}, uint32_t{128}));
  expect_only_whole(parse_scan_answer, message_of(uint32_t{3}, uint64_t{2}, uint64_t{1}));
}

TEST(IndexProtocol, encoded_messages_are_decoded_alike) {
  const auto put = parse_put(message_of(uint64_t{11}, uint64_t{12}));
  EXPECT_EQ(put->key, 11u);
  EXPECT_EQ(put->value, 12u);
  const auto scan = parse_scan(message_of(uint64_t{13}, uint32_t{14}));
  EXPECT_EQ(scan->after, 13u);
  EXPECT_EQ(scan->limit, 14u);
  const auto answer = parse_scan_answer(message_of(uint32_t{15}, uint64_t{16}, uint64_t{17}));
  EXPECT_EQ(answer->count, 15u);
  EXPECT_EQ(answer->last, 16u);
  EXPECT_EQ(answer->sum, 17u);
}

TEST(IndexProtocol, limits) {
  EXPECT_FALSE(parse_scan(message_of(uint64_t{1}, uint32_t{0})));
  EXPECT_TRUE(parse_scan(message_of(uint64_t{1}, kScanLimitMax)));
  EXPECT_FALSE(parse_scan(message_of(uint64_t{1}, kScanLimitMax + 1)));
  EXPECT_FALSE(parse_scan(message_of(uint64_t{1}, UINT32_MAX)));
  EXPECT_FALSE(parse_scan_answer(message_of(kScanLimitMax + 1, uint64_t{1}, uint64_t{1})));
  EXPECT_FALSE(parse_about(message_of(uint64_t{1}, uint64_t{1}, uint32_t{0})));
  EXPECT_FALSE(parse_about(message_of(uint64_t{1}, uint64_t{1}, uint32_t{65536})));
}
