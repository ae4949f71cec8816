#include "frames/checksum.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

#include "frames/layout.h"
#include "fuzz/frame_reference.h"

using namespace tern::frames;
using reference::Bytes;

namespace {

std::span<const std::byte> part(const Bytes& bytes, size_t from, size_t to) {
  return std::as_bytes(std::span(bytes)).subspan(from, to - from);
}
/// Returns the sum as a number, whatever the machine's byte order.
uint16_t number_of(const ChecksumSum& sum) { return network_order(sum.value()); }

Bytes random_bytes(std::mt19937& random, size_t size) {
  Bytes bytes(size);
  // Many bytes are 0xff, so that carries run through whole words.
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() % 3 == 0 ? random() : 0xff);
  return bytes;
}

}  // namespace

TEST(Checksum, rfc_1071_example) {
  const Bytes bytes = {0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7};
  ChecksumSum sum;
  sum.add(part(bytes, 0, bytes.size()));
  EXPECT_EQ(number_of(sum), 0xddf2);
}

TEST(Checksum, empty_ranges_have_checksum_zero) {
  ChecksumSum sum;
  sum.add({});
  EXPECT_EQ(sum.value(), 0);
  const Bytes bytes = {1, 2, 3};
  sum.add(part(bytes, 0, 3));
  const uint16_t before = sum.value();
  sum.add(part(bytes, 1, 1));
  EXPECT_EQ(sum.value(), before);
}

TEST(Checksum, every_length_and_alignment_equals_the_reference) {
  std::mt19937 random(1);
  const Bytes bytes = random_bytes(random, 256);
  for (size_t from = 0; from < 16; from++) {
    for (size_t to = from; to <= bytes.size(); to++) {
      ChecksumSum sum;
      sum.add(part(bytes, from, to));
      const Bytes copy(bytes.begin() + static_cast<ptrdiff_t>(from), bytes.begin() + static_cast<ptrdiff_t>(to));
      ASSERT_EQ(number_of(sum), reference::sum_of(copy)) << from << " to " << to;
    }
  }
}

TEST(Checksum, every_split_into_two_equals_the_whole) {
  std::mt19937 random(2);
  for (const size_t size : {1, 2, 7, 64, 111, 112}) {
    const Bytes bytes = random_bytes(random, size);
    for (size_t at = 0; at <= size; at++) {
      ChecksumSum sum;
      sum.add(part(bytes, 0, at));
      sum.add(part(bytes, at, size));
      ASSERT_EQ(number_of(sum), reference::sum_of(bytes)) << "split at " << at << " of " << size;
    }
  }
}

TEST(Checksum, random_splits_equal_the_whole) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; round++) {
    const Bytes bytes = random_bytes(random, random() % 1500);
    ChecksumSum sum;
    for (size_t at = 0; at < bytes.size();) {
      const size_t to = std::min(bytes.size(), at + random() % 100);
      sum.add(part(bytes, at, to));
      at = to;
    }
    ASSERT_EQ(number_of(sum), reference::sum_of(bytes)) << "round " << round;
  }
}

TEST(Checksum, longest_datagram_of_ones_loses_no_carry) {
  for (const uint8_t byte : {0xff, 0x80, 0x01}) {
    const Bytes bytes(65535, byte);
    ChecksumSum sum;
    sum.add(part(bytes, 0, bytes.size()));
    EXPECT_EQ(number_of(sum), reference::sum_of(bytes));
  }
}

/// From 256 bytes on, the sum is computed by vector instructions if the processor has them.
TEST(Checksum, every_length_of_a_few_vectors_equals_the_reference) {
  std::mt19937 random(5);
  const Bytes bytes = random_bytes(random, 800);
  for (size_t from = 0; from < 3; from++) {
    for (size_t to = 200; to <= bytes.size(); to++) {
      ChecksumSum sum;
      sum.add(part(bytes, from, to));
      const Bytes copy(bytes.begin() + static_cast<ptrdiff_t>(from), bytes.begin() + static_cast<ptrdiff_t>(to));
      ASSERT_EQ(number_of(sum), reference::sum_of(copy)) << from << " to " << to;
    }
  }
}

TEST(Checksum, ranges_longer_than_a_datagram_overflow_nothing) {
  std::mt19937 random(6);
  for (const size_t size : {65536, 65537, 200'000}) {
    for (const Bytes& bytes : {random_bytes(random, size), Bytes(size, 0xff), Bytes(size, 0), Bytes(size, 0x80)}) {
      ChecksumSum sum;
      sum.add(part(bytes, 0, bytes.size()));
      EXPECT_EQ(number_of(sum), reference::sum_of(bytes)) << size << " bytes of " << int{bytes.front()};
    }
  }
}

TEST(Checksum, a_few_bytes_equal_the_reference) {
  std::mt19937 random(7);
  for (int round = 0; round < 100; round++) {
    const Bytes bytes = random_bytes(random, 20);
    ChecksumSum sum;
    sum.add_few<20>(part(bytes, 0, 20).data());
    ASSERT_EQ(number_of(sum), reference::sum_of(bytes));
  }
}

TEST(Checksum, pseudo_headers_of_both_families) {
  for (const size_t address_bytes : {4, 16}) {
    std::mt19937 random(4);
    const Bytes addresses = random_bytes(random, 2 * address_bytes);
    ChecksumSum sum;
    add_pseudo_header(sum, part(addresses, 0, addresses.size()), 0x1234);
    Bytes header = addresses;  // RFC 768; RFC 8200 8.1 adds two bytes of zeros
    reference::put16(header, 0x1234);
    reference::put16(header, 17);
    EXPECT_EQ(number_of(sum), reference::sum_of(header));
  }
}

TEST(Checksum, udp_never_has_zero) {
  EXPECT_EQ(udp_checksum(0xffff), 0xffff);
  EXPECT_EQ(udp_checksum(0), 0xffff);
  EXPECT_EQ(udp_checksum(0x1234), 0xedcb);
}
