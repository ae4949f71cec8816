// Bytes of the management protocol (docs/protocol.md, 7.1 and 7.2).
#include "wire/management.h"
#include "wire/credits.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace tern::wire {
namespace {

constexpr ManagementKind kKinds[] = {ManagementKind::kConnectRequest, ManagementKind::kConnectReply,
                                     ManagementKind::kConfirm,        ManagementKind::kDisconnect,
                                     ManagementKind::kDisconnectAck,  ManagementKind::kPing,
                                     ManagementKind::kPong,           ManagementKind::kAsk,
                                     ManagementKind::kAnswer,         ManagementKind::kCookie};

ManagementTerms terms() {
  ManagementTerms t;
  t.transport[0] = 'u';
  t.transport[1] = 'd';
  t.transport[2] = 'p';
  t.transport_bytes = 3;
  t.address[0] = std::byte{0x7f};
  t.address[63] = std::byte{0x80};
  t.address_bytes = 64;
  t.window = 64;
  t.credits = 128;
  t.endpoint_id = 0xfedc;
  t.session_key = 0xdeadbeef;
  t.payload_bytes_max = 1376;
  t.first_number = 0xabcdef;
  t.path_token = 0x7fffffff;
  return t;
}

ManagementMessage message(ManagementKind kind) {
  ManagementMessage m;
  m.kind = kind;
  m.sender_run = 0x1122334455667788;
  m.receiver_run = 0x99aabbccddeeff00;
  m.token = 0x0102030405060708;
  if (kind == ManagementKind::kPing || kind == ManagementKind::kPong) return m;
  m.to_endpoint = 0xabcd;
  if (kind == ManagementKind::kConnectRequest || kind == ManagementKind::kConnectReply) {
    m.version_min = 1;
    if (kind == ManagementKind::kConnectRequest) m.version_max = 3;
    if (kind == ManagementKind::kConnectRequest) m.cookie = 0xfedcba9876543210;
    if (kind == ManagementKind::kConnectReply) m.to_key = 77;
    m.terms = terms();
    return m;
  }
  m.to_key = 77;
  if (kind == ManagementKind::kCookie) {
    m.cookie = 0xfedcba9876543210;
    return m;
  }
  m.from_key = 78;
  m.from_client = true;
  m.cookie = 0xfffffffffffffffe;
  if (kind == ManagementKind::kAnswer) m.liveness = kLivenessMax;
  return m;
}

std::vector<std::byte> bytes_of(const ManagementMessage& m) {
  ManagementBytes out;
  encode_management(m, out);
  return {out.view().begin(), out.view().end()};
}

TEST(Management, parse__gives_back_every_kind) {
  for (const ManagementKind kind : kKinds) {
    const ManagementMessage sent = message(kind);
    ManagementMessage got;
    ASSERT_EQ(parse_management(bytes_of(sent), got), ManagementDrop::kNone) << static_cast<int>(kind);
    EXPECT_EQ(got, sent) << static_cast<int>(kind);
  }
  ManagementMessage refusal = message(ManagementKind::kConnectReply);
  refusal.code = Code::kRefused;
  refusal.refusal = Refusal::kNoCapacity;
  refusal.sender_run = 0;
  refusal.terms = {};
  ManagementMessage got;
  ASSERT_EQ(parse_management(bytes_of(refusal), got), ManagementDrop::kNone);
  EXPECT_EQ(got, refusal);
}

TEST(Management, encode__is_the_documented_layout) {
  const auto ping = bytes_of(message(ManagementKind::kPing));
  const uint8_t expected[] = {0x74, 0x72, 0x6e, 0x4d, 1,    6,    32,   0,    0x88, 0x77, 0x66,
                              0x55, 0x44, 0x33, 0x22, 0x11, 0x00, 0xff, 0xee, 0xdd, 0xcc, 0xbb,
                              0xaa, 0x99, 0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01};
  ASSERT_EQ(ping.size(), sizeof(expected));
  for (size_t i = 0; i < ping.size(); i++) EXPECT_EQ(static_cast<uint8_t>(ping[i]), expected[i]) << i;
}

TEST(Management, encode__no_answer_is_longer_than_a_request) {
  EXPECT_EQ(bytes_of(message(ManagementKind::kConnectRequest)).size(), kConnectRequestBytes);
  for (const ManagementKind kind : kKinds) EXPECT_LE(bytes_of(message(kind)).size(), kConnectRequestBytes);
}

TEST(Management, parse__refuses_every_truncation_and_extension) {
  for (const ManagementKind kind : kKinds) {
    const auto whole = bytes_of(message(kind));
    ManagementMessage got;
    for (size_t size = 0; size < whole.size(); size++) {
      auto cut = std::vector(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
      const auto expected = size < kManagementHeaderBytes ? ManagementDrop::kShort : ManagementDrop::kBadLength;
      EXPECT_EQ(parse_management(cut, got), expected) << size;
      if (size < kManagementHeaderBytes) continue;
      cut[6] = static_cast<std::byte>(size);  // a length field that matches does not help
      cut[7] = static_cast<std::byte>(size >> 8);
      EXPECT_NE(parse_management(cut, got), ManagementDrop::kNone) << size;
    }
    auto longer = whole;
    longer.push_back(std::byte{0});
    EXPECT_EQ(parse_management(longer, got), ManagementDrop::kBadLength);
    longer[6] = static_cast<std::byte>(longer.size());
    longer[7] = static_cast<std::byte>(longer.size() >> 8);
    EXPECT_EQ(parse_management(longer, got), ManagementDrop::kBadLength);
  }
}

TEST(Management, parse__names_the_reason) {
  ManagementMessage got;
  auto bytes = bytes_of(message(ManagementKind::kPing));
  bytes[0] ^= std::byte{1};
  EXPECT_EQ(parse_management(bytes, got), ManagementDrop::kForeign);
  bytes = bytes_of(message(ManagementKind::kPing));
  bytes[4] = std::byte{2};
  EXPECT_EQ(parse_management(bytes, got), ManagementDrop::kOtherVersion);
  for (const int kind : {0, 11, 255}) {
    bytes = bytes_of(message(ManagementKind::kPing));
    bytes[5] = static_cast<std::byte>(kind);
    EXPECT_EQ(parse_management(bytes, got), ManagementDrop::kUnknownKind);
  }
}

TEST(Management, parse__refuses_fields_out_of_range) {
  const auto refuses = [](ManagementKind kind, auto change) {
    ManagementMessage m = message(kind);
    change(m);
    ManagementMessage got;
    EXPECT_EQ(parse_management(bytes_of(m), got), ManagementDrop::kBadField) << static_cast<int>(kind);
  };
  for (const ManagementKind kind : {ManagementKind::kConnectRequest, ManagementKind::kConnectReply}) {
    refuses(kind, [](auto& m) { m.terms.window = 0; });
    refuses(kind, [](auto& m) { m.terms.window = 65; });
    refuses(kind, [](auto& m) { m.terms.credits = 129; });
    refuses(kind, [](auto& m) { m.terms.transport_bytes = 0; });
    refuses(kind, [](auto& m) { m.terms.transport_bytes = 17; });
    refuses(kind, [](auto& m) { m.terms.address_bytes = 65; });
    refuses(kind, [](auto& m) { m.terms.payload_bytes_max = 511; });
    refuses(kind, [](auto& m) { m.terms.payload_bytes_max = kPayloadBytesLimit + 1; });
    refuses(kind, [](auto& m) { m.sender_run = 0; });
  }
  refuses(ManagementKind::kConnectReply, [](auto& m) { m.terms.credits = 0; });
  refuses(ManagementKind::kConnectReply, [](auto& m) { m.code = static_cast<Code>(200); });
  refuses(ManagementKind::kConnectReply, [](auto& m) { m.refusal = static_cast<Refusal>(kRefusals); });
  refuses(ManagementKind::kConnectReply, [](auto& m) { m.refusal = Refusal::kOther; });
  refuses(ManagementKind::kConnectRequest, [](auto& m) { m.version_max = 0; });
  refuses(ManagementKind::kAnswer, [](auto& m) { m.liveness = kLivenessMax + 1; });
  refuses(ManagementKind::kAsk, [](auto& m) { m.liveness = 1; });
  refuses(ManagementKind::kPing, [](auto& m) { m.sender_run = 0; });
  refuses(ManagementKind::kPong, [](auto& m) { m.receiver_run = 0; });
  refuses(ManagementKind::kCookie, [](auto& m) { m.receiver_run = 0; });
  refuses(ManagementKind::kCookie, [](auto& m) { m.cookie = 0; });
  for (const ManagementKind kind : {ManagementKind::kConnectRequest, ManagementKind::kConnectReply}) {
    refuses(kind, [](auto& m) { m.terms.first_number = 1u << 24; });
    refuses(kind, [](auto& m) { m.terms.path_token = 1u << 31; });
    for (const uint8_t unit : {1, kCreditUnitMin - 1, kCreditUnitMax + 1, 255}) {
      refuses(kind, [unit](auto& m) { m.terms.credit_unit = unit; });
    }
  }
}

// Peers of one version may use other units of credits, and a server that counts bytes has larger limits.
TEST(Management, parse__takes_units_of_credits) {
  for (const uint8_t unit : {kCreditUnitMin, kCreditUnitMax}) {
    ManagementMessage m = message(ManagementKind::kConnectReply);
    m.terms.credit_unit = unit;
    m.terms.credits = 255;
    ManagementMessage got;
    ASSERT_EQ(parse_management(bytes_of(m), got), ManagementDrop::kNone);
    EXPECT_EQ(got.terms, m.terms);
  }
}

TEST(Management, parse__survives_flipped_bits_and_keeps_accepted_messages) {
  std::mt19937_64 random(1);
  size_t accepted = 0;
  for (int round = 0; round < 20000; round++) {
    auto bytes = bytes_of(message(kKinds[random() % std::size(kKinds)]));
    for (uint64_t flips = random() % 4; flips > 0; flips--)
      bytes[random() % bytes.size()] ^= static_cast<std::byte>(1 << random() % 8);
    ManagementMessage once, twice;
    if (parse_management(bytes, once) != ManagementDrop::kNone) continue;
    accepted++;
    ASSERT_EQ(parse_management(bytes_of(once), twice), ManagementDrop::kNone);
    ASSERT_EQ(once, twice);
  }
  EXPECT_GT(accepted, 1000u);
}

/// Refusals between generations depend only on fields whose position never changes. See also the tests of versions in
/// nexus/management_test.cc.
TEST(Management, parse__takes_no_more_of_a_request_than_its_versions_terms) {
  ManagementMessage old = message(ManagementKind::kConnectRequest);
  old.version_min = old.version_max = 1;
  ManagementMessage got;
  ASSERT_EQ(parse_management(bytes_of(old), got), ManagementDrop::kNone);
  EXPECT_EQ(got.terms.first_number, 0u);
  EXPECT_EQ(got.terms.path_token, 0u);
  auto padded = bytes_of(old);
  for (size_t i = 130; i < padded.size(); i++) padded[i] = std::byte{0xff};
  EXPECT_EQ(parse_management(padded, got), ManagementDrop::kNone);

  ManagementMessage later = message(ManagementKind::kConnectRequest);
  later.version_min = later.version_max = kTermsVersion + 1;
  auto bytes = bytes_of(later);
  for (size_t i = 36; i < 118; i++) bytes[i] = std::byte{0xff};  // the transport and the address
  for (size_t i = 124; i < bytes.size(); i++) bytes[i] = std::byte{0xff};
  ASSERT_EQ(parse_management(bytes, got), ManagementDrop::kNone);
  EXPECT_EQ(got.terms.session_key, later.terms.session_key);
  EXPECT_EQ(got.terms.endpoint_id, later.terms.endpoint_id);
  EXPECT_EQ(got.terms.payload_bytes_max, 0u);
}

TEST(Management, parse__takes_a_later_servers_reason_for_a_refusal) {
  ManagementMessage refusal = message(ManagementKind::kConnectReply);
  refusal.code = Code::kQueueFull;
  refusal.refusal = static_cast<Refusal>(200);
  ManagementMessage got;
  ASSERT_EQ(parse_management(bytes_of(refusal), got), ManagementDrop::kNone);
  EXPECT_EQ(got.code, Code::kQueueFull);
  EXPECT_EQ(got.refusal, Refusal::kOther);
}

TEST(Management, parse__takes_a_later_servers_code_for_a_refusal) {
  ManagementMessage refusal = message(ManagementKind::kConnectReply);
  refusal.code = static_cast<Code>(200);
  refusal.refusal = Refusal::kNoCapacity;
  ManagementMessage got;
  ASSERT_EQ(parse_management(bytes_of(refusal), got), ManagementDrop::kNone);
  EXPECT_EQ(got.code, Code::kRefused);
  EXPECT_EQ(got.refusal, Refusal::kNoCapacity);
}

TEST(Management, version_refusal_text__names_both) {
  const std::string_view text = version_refusal_text(2, 1);
  EXPECT_NE(text.find("this side speaks up to version 2"), std::string_view::npos) << text;
  EXPECT_NE(text.find("the server up to version 1"), std::string_view::npos) << text;
  EXPECT_STREQ(version_refusal_text(2, 200), refusal_text(Refusal::kNoCommonVersion));
}

TEST(Management, refusal_text__is_different_for_each_refusal) {
  for (uint8_t i = 1; i < kRefusals; i++) {
    EXPECT_GT(std::string_view(refusal_text(static_cast<Refusal>(i))).size(), 10u);
    for (uint8_t j = 1; j < i; j++) {
      EXPECT_STRNE(refusal_text(static_cast<Refusal>(i)), refusal_text(static_cast<Refusal>(j)));
    }
  }
}

}  // namespace
}  // namespace tern::wire
