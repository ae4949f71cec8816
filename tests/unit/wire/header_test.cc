#include "wire/header.h"

#include <array>
#include <random>

#include <gtest/gtest.h>

namespace tern::wire {
namespace {

TEST(Header, client_fields_survive) {
  const Header h =
      client_header(Kind::kRfr, kWantsCredits, 0xfc6abcde, 0xabcdef, 0x12345678, 0x1fedcb, 0xabc, 0x40000000);
  std::array<std::byte, kHeaderBytes> bytes;
  store_header(bytes.data(), h);
  Header back = load_header(bytes.data());
  EXPECT_EQ(back.kind(), Kind::kRfr);
  EXPECT_EQ(back.version(), kVersion);
  EXPECT_EQ(back.flags(), kWantsCredits);
  EXPECT_EQ(back.length(), 0);
  EXPECT_EQ(back.session_key(), 0xfc6abcdeu);
  EXPECT_EQ(back.number(), 0xabcdefu);
  EXPECT_EQ(back.hold_code(), 0);
  EXPECT_EQ(back.request_number(), 0x12345678u);
  EXPECT_EQ(back.index(), 0x1fedcbu);
  EXPECT_EQ(back.request_type(), 0xabcu);
  EXPECT_EQ(back.message_bytes(), 0x40000000u);
  EXPECT_EQ(back.token(), 0x40000000u);
  back.set_length_and_flags(1472, kByReference);
  EXPECT_EQ(back.length(), 1472);
  EXPECT_EQ(back.flags(), kWantsCredits | kByReference);
  EXPECT_EQ(back.session_key(), h.session_key());
  EXPECT_EQ(back.kind(), Kind::kRfr);
}

TEST(Header, server_fields_survive) {
  const Header h = server_header(Kind::kResponse, kFirst | kEcnEcho, 0xffc00005, 0x1000001, 0xfedcba98, 0x2000003, 0xfe,
                                 128, 0x7fffffff);
  std::array<std::byte, kHeaderBytes> bytes;
  store_header(bytes.data(), h);
  const Header back = load_header(bytes.data());
  EXPECT_EQ(back.kind(), Kind::kResponse);
  EXPECT_EQ(back.flags(), kFirst | kEcnEcho);
  EXPECT_EQ(back.session_key(), 0xffc00005u);
  EXPECT_EQ(back.number(), 1u);  // the low 24 bits
  EXPECT_EQ(back.echo(), 3u);
  EXPECT_EQ(back.hold_code(), 0xfe);
  EXPECT_EQ(back.credit_limit(), 128);
  EXPECT_EQ(back.request_number(), 0xfedcba98u);
  EXPECT_EQ(back.size_or_index(), 0x7fffffffu);
}

TEST(Header, bytes_on_the_wire) {
  // Little-endian, as docs/protocol.md 2.2 draws it.
  Header h = client_header(Kind::kRequest, kFirst, 0x800001, 0x030405, 0x0a0b0c0d, 7, 9, 11);
  h.set_length_and_flags(0x1234, 0);
  std::array<std::byte, kHeaderBytes> bytes;
  store_header(bytes.data(), h);
  const std::array<uint8_t, 16> expected = {0x21, 0x01, 0x34, 0x12, 0x01, 0x00, 0x80, 0x00,
                                            0x05, 0x04, 0x03, 0x00, 0x0d, 0x0c, 0x0b, 0x0a};
  for (size_t i = 0; i < expected.size(); i++) EXPECT_EQ(static_cast<uint8_t>(bytes[i]), expected[i]) << i;
  const uint64_t last = 7 | 9ull << 21 | 11ull << 33;
  for (size_t i = 0; i < 8; i++)
    EXPECT_EQ(static_cast<uint8_t>(bytes[16 + i]), static_cast<uint8_t>(last >> (8 * i))) << i;
}

TEST(Header, index_of_a_first_packet_is_zero_and_its_field_the_deadline) {
  const Header h = client_header(Kind::kRequest, kFirst, 1, 1, 64, 12345, 0, 0);
  EXPECT_EQ(h.index(), 0u);
  EXPECT_EQ(h.deadline_code(), 12345u);
}

Header plausible_header() {
  Header h = client_header(Kind::kRequest, 0, 1, 1, 64, 0, 0, 0);
  h.set_length_and_flags(kHeaderBytes, 0);
  return h;
}

TEST(Plausible, length_beyond_the_received_bytes_is_refused) {
  Header h = plausible_header();
  EXPECT_TRUE(is_plausible(h, kHeaderBytes));
  EXPECT_FALSE(is_plausible(h, kHeaderBytes - 1));
  h.set_length_and_flags(kHeaderBytes - 1, 0);
  EXPECT_FALSE(is_plausible(h, 1000));
  h.set_length_and_flags(1000, 0);
  EXPECT_TRUE(is_plausible(h, 1000));
  EXPECT_FALSE(is_plausible(h, 999));
  h.set_length_and_flags(kPacketBytesMax, 0);
  EXPECT_TRUE(is_plausible(h, kPacketBytesMax));
}

TEST(Plausible, known_kinds_and_versions_only) {
  for (uint32_t first_byte = 0; first_byte < 256; first_byte++) {
    Header h = plausible_header();
    h.w0 = (h.w0 & ~0xffull) | first_byte;
    const uint32_t kind = first_byte & 15;
    const bool is_kind = (kind >= 1 && kind <= 6) || (kind >= 8 && kind <= 11);
    EXPECT_EQ(is_plausible(h, kHeaderBytes), is_kind && first_byte >> 4 == kVersion) << first_byte;
  }
}

TEST(Plausible, zeros_are_no_packet) { EXPECT_FALSE(is_plausible(Header{}, 1000)); }

TEST(TimeLeft, never_early_and_within_a_sixteen_bit_mantissa) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200'000; i++) {
    const uint64_t left_ns = random() >> (8 + random() % 56);
    const uint32_t code = encode_time_left(left_ns);
    ASSERT_LE(code, kIndexMask);
    if (code == kNoDeadline) {
      ASSERT_GT(left_ns, (uint64_t{65535} << 30) * 1000);
      continue;
    }
    const uint64_t back_ns = decode_time_left(code);
    ASSERT_GE(back_ns, left_ns);
    ASSERT_LE(back_ns - left_ns, 1000 + left_ns / 32768 + 1) << left_ns;
  }
}

TEST(TimeLeft, monotone) {
  uint64_t last_ns = 0;
  for (uint64_t left_ns = 0; left_ns < uint64_t{1} << 56; left_ns += 1 + left_ns / 777) {
    const uint64_t back_ns = decode_time_left(encode_time_left(left_ns));
    ASSERT_GE(back_ns, last_ns) << left_ns;
    last_ns = back_ns;
  }
}

TEST(TimeLeft, extremes) {
  EXPECT_EQ(encode_time_left(0), 0u);
  EXPECT_EQ(decode_time_left(0), 0u);
  EXPECT_EQ(decode_time_left(encode_time_left(1)), 1000u);
  EXPECT_EQ(decode_time_left(encode_time_left(1000)), 1000u);
  EXPECT_EQ(decode_time_left(encode_time_left(65'535'000)), 65'535'000u);
  EXPECT_EQ(decode_time_left(encode_time_left(65'535'001)), 65'536'000u);
  EXPECT_EQ(encode_time_left(UINT64_MAX), kNoDeadline);
  EXPECT_EQ(encode_time_left(UINT64_MAX - 1), kNoDeadline);
  EXPECT_EQ(decode_time_left(kNoDeadline), UINT64_MAX);
  for (uint32_t code = 0; code < kNoDeadline; code += 97) ASSERT_LT(decode_time_left(code), uint64_t{1} << 58);
}

TEST(Hold, rounds_down_by_less_than_a_sixteenth) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 200'000; i++) {
    const uint64_t hold_ns = random() >> (20 + random() % 44);
    const uint8_t code = encode_hold(hold_ns);
    if (code == kHoldTooLong) {
      ASSERT_GE(hold_ns, 16ull << 19);
      continue;
    }
    ASSERT_LE(decode_hold(code), hold_ns);
    ASSERT_LE(hold_ns - decode_hold(code), 16 + hold_ns / 15) << hold_ns;
  }
}

TEST(Hold, every_code_is_its_own_encoding_and_they_grow) {
  for (uint32_t code = 0; code < kHoldTooLong; code++) {
    EXPECT_EQ(encode_hold(decode_hold(static_cast<uint8_t>(code))), code);
    if (code > 0) {
      EXPECT_GT(decode_hold(static_cast<uint8_t>(code)), decode_hold(static_cast<uint8_t>(code - 1)));
    }
  }
}

TEST(Hold, extremes) {
  EXPECT_EQ(encode_hold(0), 0);
  EXPECT_EQ(encode_hold(15), 0);
  EXPECT_EQ(encode_hold(16), 1);
  EXPECT_EQ(encode_hold((16ull << 19) - 1), kHoldTooLong - 1);
  EXPECT_EQ(encode_hold(16ull << 19), kHoldTooLong);
  EXPECT_EQ(encode_hold(UINT64_MAX), kHoldTooLong);
}

}  // namespace
}  // namespace tern::wire
