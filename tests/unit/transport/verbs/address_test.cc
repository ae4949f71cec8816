#include "transport/verbs/verbs_address.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace tern::transport {
namespace {

VerbsAddress some_address() {
  VerbsAddress address{.fabric = rdma::Fabric::kRoce2,
                       .lid = 0,
                       .queue_pair = 0x123456,
                       .key = 0x789abcde,
                       .partition = 0xffff,
                       .packet_bytes = 4096,
                       .gid = {}};
  address.gid[10] = address.gid[11] = std::byte{0xff};
  address.gid[12] = std::byte{10};
  address.gid[15] = std::byte{7};
  return address;
}

TEST(VerbsAddress, encoded_addresses_are_decoded_alike) {
  const VerbsAddress address = some_address();
  const auto bytes = encode_address(address);
  VerbsAddress decoded;
  ASSERT_TRUE(decode_address(bytes, &decoded));
  EXPECT_EQ(decoded, address);
}

TEST(VerbsAddress, bytes_on_the_wire) {
  const auto bytes = encode_address(some_address());
  const std::vector<uint8_t> expected = {1,    3,    0,    0,    0x56, 0x34, 0x12, 0, 0xde, 0xbc, 0x9a,
                                         0x78, 0xff, 0xff, 0x00, 0x10, 0,    0,    0, 0,    0,    0,
                                         0,    0,    0,    0,    0xff, 0xff, 10,   0, 0,    7};
  ASSERT_EQ(bytes.size(), expected.size());
  for (size_t i = 0; i < expected.size(); i++) EXPECT_EQ(std::to_integer<uint8_t>(bytes[i]), expected[i]) << i;
}

TEST(VerbsAddress, other_lengths_versions_and_fabrics_are_refused) {
  const auto good = encode_address(some_address());
  VerbsAddress decoded;
  for (size_t length = 0; length < 64; length++) {
    std::vector<std::byte> bytes(length);
    std::copy_n(good.begin(), std::min(length, good.size()), bytes.begin());
    EXPECT_EQ(decode_address(bytes, &decoded), length == good.size());
  }
  for (int value = 0; value < 256; value++) {
    auto bytes = good;
    bytes[0] = static_cast<std::byte>(value);
    EXPECT_EQ(decode_address(bytes, &decoded), value == 1);
    bytes = good;
    bytes[1] = static_cast<std::byte>(value);
    if (value == 1) continue;  // the LID is invalid in this case
    EXPECT_EQ(decode_address(bytes, &decoded), value == 2 || value == 3) << value;
  }
}

TEST(VerbsAddress, queue_pairs_of_others_are_refused) {
  // 0 and 1 are the subnet's management. 0xffffff means every member of a multicast group.
  for (const uint32_t number : {0u, 1u, 0xffffffu, 0x1000000u, 0xffffffffu}) {
    VerbsAddress address = some_address(), decoded;
    address.queue_pair = number;
    EXPECT_FALSE(decode_address(encode_address(address), &decoded)) << number;
  }
  for (const uint32_t number : {2u, 0xfffffeu}) {
    VerbsAddress address = some_address(), decoded;
    address.queue_pair = number;
    EXPECT_TRUE(decode_address(encode_address(address), &decoded)) << number;
  }
}

TEST(VerbsAddress, keys_that_stand_for_the_senders_own_are_refused) {
  for (const auto& [key, is_good] : {std::pair{0u, true}, {0x7fffffffu, true}, {0x80000000u, false}, {~0u, false}}) {
    VerbsAddress address = some_address(), decoded;
    address.key = key;
    EXPECT_EQ(decode_address(encode_address(address), &decoded), is_good) << key;
  }
}

TEST(VerbsAddress, multicast_and_empty_addresses_are_refused) {
  VerbsAddress decoded;
  VerbsAddress address = some_address();
  address.gid = {};
  EXPECT_FALSE(decode_address(encode_address(address), &decoded)) << "the zero GID";
  address.gid[10] = address.gid[11] = std::byte{0xff};
  EXPECT_FALSE(decode_address(encode_address(address), &decoded)) << "0.0.0.0";
  for (const auto& [first, is_good] : {std::pair{1, true}, {223, true}, {224, false}, {239, false}, {255, false}}) {
    std::fill(address.gid.begin() + 12, address.gid.end(), static_cast<std::byte>(first));
    EXPECT_EQ(decode_address(encode_address(address), &decoded), is_good) << first;
  }
  address.gid = {};
  address.gid[0] = std::byte{0xff};
  address.gid[1] = std::byte{0x0e};
  EXPECT_FALSE(decode_address(encode_address(address), &decoded)) << "IPv6 and InfiniBand multicast";
  address.gid[0] = std::byte{0x20};
  EXPECT_TRUE(decode_address(encode_address(address), &decoded));

  address = some_address();
  address.fabric = rdma::Fabric::kInfiniband;
  for (const auto& [lid, is_good] :
       {std::pair{0, false}, {1, true}, {0xbfff, true}, {0xc000, false}, {0xffff, false}}) {
    address.lid = static_cast<uint16_t>(lid);
    EXPECT_EQ(decode_address(encode_address(address), &decoded), is_good) << lid;
  }
}

TEST(VerbsAddress, any_bytes__are_refused_or_decoded_as_they_are) {
  std::mt19937 random(1);
  size_t good = 0;
  for (int i = 0; i < 100'000; i++) {
    std::array<std::byte, VerbsAddress::kBytes> bytes;
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    if (i % 2 == 0) {
      bytes[0] = std::byte{1};
      bytes[1] = static_cast<std::byte>(1 + random() % 3);
      bytes[7] = std::byte{0};
    }
    VerbsAddress decoded;
    if (!decode_address(bytes, &decoded)) continue;
    good++;
    EXPECT_EQ(encode_address(decoded), bytes);
  }
  EXPECT_GT(good, 1000u);
}

TEST(VerbsAddress, partitions_meet__if_one_of_the_two_is_a_full_member) {
  for (uint32_t a = 0; a < 65536; a += 7) {
    const auto limited = static_cast<uint16_t>(a & 0x7fff), full = static_cast<uint16_t>(a | 0x8000);
    EXPECT_TRUE(partitions_meet(full, full));
    EXPECT_TRUE(partitions_meet(full, limited));
    EXPECT_TRUE(partitions_meet(limited, full));
    EXPECT_FALSE(partitions_meet(limited, limited));
    for (uint32_t bit = 1; bit < 0x8000; bit <<= 1) {
      EXPECT_FALSE(partitions_meet(full, static_cast<uint16_t>(full ^ bit)));
    }
  }
}

}  // namespace
}  // namespace tern::transport
