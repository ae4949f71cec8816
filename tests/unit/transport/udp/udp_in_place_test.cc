// Payloads that are received in place: the expected packet lies where its message has it, and any other input is
// received as if nothing had been expected. No byte beside the place is written.
#include <vector>

#include "udp_fixture.h"

namespace tern::transport {
namespace {

using namespace udp_test;  // NOLINT(google-build-using-namespace)

constexpr uint32_t kBytes = 40'000;  ///< of the expected payload
constexpr size_t kGuard = 4096;
constexpr std::byte kOld{0xee};
constexpr uint32_t kFirst = 1;  ///< number of the packet after which another one is expected
constexpr uint32_t kUnguessed = 2;
constexpr uint32_t kNumber = 7;  ///< of the expected packet

std::vector<std::byte> packet(uint32_t number, size_t len) {
  std::vector<std::byte> bytes;
  append_packet(bytes, number, len, wire::kFirst);
  return bytes;
}

class UdpInPlace : public testing::Test {
 protected:
  struct Visitor {
    UdpInPlace& test;
    void operator()(const wire::Header& header, const Payload& payload) const {
      test.all_.push_back({header, {payload.data, payload.data + payload.bytes}});
      test.in_place_ += payload.data == test.place() ? 1 : 0;
      test.expected_ = {};
      if (header.number() == kFirst) test.expect();
    }
    ExpectedPacket expected_packet() const {
      test.questions_ += test.expected_.place != nullptr ? 1 : 0;
      return test.expected_;
    }
  };

  UdpInPlace() : memory_(kGuard + kBytes + kGuard, kOld) {}
  ~UdpInPlace() override {
    for (size_t i = 0; i < kGuard; ++i) {
      EXPECT_TRUE(memory_[i] == kOld && memory_[kGuard + kBytes + i] == kOld) << i;
    }
  }
  /// The transport asks after a large packet, or after nine if a guess was wrong.
  void SetUp() override { prime(); }
  void prime() {
    expected_ = {};
    for (int i = 0; i < 8; ++i) {
      datagrams_.send(packet(kUnguessed, kBytes));
      receive_until(kUnguessed);
      all_.clear();
    }
    datagrams_.send(packet(kFirst, kBytes));
    receive_until(kFirst);
    all_.clear();
  }
  std::byte* place() { return memory_.data() + kGuard; }
  void expect() {
    expected_.header = numbered(kNumber);
    expected_.header.set_length_and_flags(wire::kHeaderBytes + kBytes, expected_.header.flags());
    expected_.known = {~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}};
    expected_.place = place();
    expected_.payload_bytes = kBytes;
  }
  /// Receives until a packet with this number has come.
  void receive_until(uint32_t number) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while ((all_.empty() || all_.back().header.number() != number) && std::chrono::steady_clock::now() < until) {
      const size_t before = all_.size();
      const size_t reported = server_->receive(Visitor{*this});
      EXPECT_EQ(reported, all_.size() - before);
    }
    ASSERT_FALSE(all_.empty());
    ASSERT_EQ(all_.back().header.number(), number);
  }

  std::unique_ptr<UdpImpl> server_ = make();
  RawSender datagrams_{*server_};
  std::vector<std::byte> memory_;
  ExpectedPacket expected_;
  std::vector<Received> all_;
  uint32_t in_place_ = 0;
  uint32_t questions_ = 0;  ///< receive calls that were told the place
};

TEST_F(UdpInPlace, the_expected_packet_lies_in_its_place) {
  datagrams_.send(packet(kNumber, kBytes));
  receive_until(kNumber);
  EXPECT_EQ(in_place_, 1u);
  ASSERT_EQ(all_.size(), 1u);
  expect_pattern(all_[0], kNumber, kBytes);
  EXPECT_EQ(server_->counters().packets_received, 10u);
}

TEST_F(UdpInPlace, only_known_bits_of_the_header_are_compared) {
  expected_.known.w1 &= ~uint64_t{wire::kNumberMask};
  datagrams_.send(packet(kNumber + 5, kBytes));
  receive_until(kNumber + 5);
  EXPECT_EQ(in_place_, 1u);
  expect_pattern(all_[0], kNumber + 5, kBytes);
}

TEST_F(UdpInPlace, other_packets_of_any_length_are_received_as_ever) {
  uint32_t number = 100;
  for (const size_t len : {size_t{0}, size_t{1}, size_t{1000}, size_t{kBytes - 1}, size_t{kBytes}, size_t{kBytes + 1},
                           size_t{65'000 - wire::kHeaderBytes}}) {
    prime();
    datagrams_.send(packet(++number, len));
    receive_until(number);
    expect_pattern(all_.back(), number, len);
  }
  EXPECT_EQ(in_place_, 0u);
  EXPECT_GE(questions_, 7u);
}

TEST_F(UdpInPlace, packets_of_one_datagram_are_received_across_the_place) {
  std::vector<std::byte> bytes;
  for (uint32_t i = 1; i <= 60; ++i) append_packet(bytes, 200 + i, 1000, wire::kFirst);
  datagrams_.send(bytes);
  receive_until(260);
  ASSERT_EQ(all_.size(), 60u);
  for (uint32_t i = 1; i <= 60; ++i) expect_pattern(all_[i - 1], 200 + i, 1000);
  EXPECT_EQ(in_place_, 0u);
}

TEST_F(UdpInPlace, a_packet_behind_the_expected_one_is_received) {
  std::vector<std::byte> bytes = packet(kNumber, kBytes);
  append_packet(bytes, 300, 20'000, wire::kFirst);
  append_packet(bytes, 301, 0, wire::kFirst);
  datagrams_.send(bytes);
  receive_until(301);
  ASSERT_EQ(all_.size(), 3u);
  expect_pattern(all_[0], kNumber, kBytes);
  expect_pattern(all_[1], 300, 20'000);
  EXPECT_EQ(in_place_, 1u);
}

TEST_F(UdpInPlace, a_packet_before_the_expected_one_moves_it_out_of_the_place) {
  std::vector<std::byte> bytes = packet(300, 8);
  append_packet(bytes, kNumber, kBytes, wire::kFirst);
  datagrams_.send(bytes);
  receive_until(kNumber);
  ASSERT_EQ(all_.size(), 2u);
  expect_pattern(all_[0], 300, 8);
  expect_pattern(all_[1], kNumber, kBytes);
  EXPECT_EQ(in_place_, 0u);
}

TEST_F(UdpInPlace, a_train_is_received_across_the_place) {
  auto client = make();
  const PeerId peer = must_connect(*client, *server_);
  constexpr size_t kLen = 1200;
  std::vector<detail::Buffer*> buffers;
  for (uint32_t i = 1; i <= 40; ++i) {
    buffers.push_back(filled(400 + i, kLen));
    ASSERT_TRUE(client->send(peer, numbered(400 + i), buffers.back()->data(), kLen, buffers.back()));
  }
  client->flush();
  receive_until(440);
  ASSERT_EQ(all_.size(), 40u);
  for (uint32_t i = 1; i <= 40; ++i) {
    EXPECT_EQ(all_[i - 1].header.number(), 400 + i);
    ASSERT_EQ(all_[i - 1].payload.size(), kLen);
    for (size_t at = 0; at < kLen; ++at) ASSERT_EQ(all_[i - 1].payload[at], pattern(400 + i, at));
  }
  EXPECT_EQ(in_place_, 0u);
  for (detail::Buffer* buffer : buffers) detail::release_buffer(buffer);
}

TEST_F(UdpInPlace, a_truncated_packet_is_dropped) {
  for (const size_t cut :
       {size_t{1}, size_t{kBytes / 2}, size_t{kBytes}, size_t{kBytes + 1}, size_t{kBytes + wire::kHeaderBytes}}) {
    prime();
    std::vector<std::byte> bytes = packet(kNumber, kBytes);
    bytes.resize(bytes.size() - cut);
    datagrams_.send(bytes);
    datagrams_.send(packet(500, 3));
    receive_until(500);
    ASSERT_EQ(all_.size(), 1u) << cut;
    expect_pattern(all_[0], 500, 3);
  }
  EXPECT_EQ(in_place_, 0u);
  EXPECT_EQ(server_->counters().dropped_unparsable, 5u);
}

TEST_F(UdpInPlace, garbage_is_dropped) {
  datagrams_.send(std::vector<std::byte>(60'000, std::byte{0xff}));
  datagrams_.send(packet(500, 3));
  receive_until(500);
  ASSERT_EQ(all_.size(), 1u);
  EXPECT_GE(questions_, 1u);
  EXPECT_EQ(server_->counters().dropped_unparsable, 1u);
}

TEST_F(UdpInPlace, the_visitor_is_not_asked_after_small_packets) {
  datagrams_.send(packet(500, 3));
  receive_until(500);
  const uint32_t before = questions_;
  expect();
  datagrams_.send(packet(501, 3));
  receive_until(501);
  EXPECT_EQ(questions_, before);
}

TEST_F(UdpInPlace, eight_large_packets_after_a_wrong_guess_are_received_without_one) {
  datagrams_.send(packet(500, kBytes));
  receive_until(500);
  const uint32_t before = questions_;
  for (uint32_t i = 0; i < 8; ++i) {
    expect();
    datagrams_.send(packet(600 + i, kBytes));
    receive_until(600 + i);
    EXPECT_EQ(questions_, before) << i;
  }
  expect();
  datagrams_.send(packet(kNumber, kBytes));
  receive_until(kNumber);
  EXPECT_GT(questions_, before);
  EXPECT_EQ(in_place_, 1u);
}

TEST_F(UdpInPlace, nothing_is_written_when_nothing_is_expected_any_more) {
  ASSERT_EQ(server_->receive(Visitor{*this}), 0u);  // a receive call with the place, which found nothing
  EXPECT_EQ(questions_, 1u);
  expected_ = {};
  datagrams_.send(packet(kNumber, kBytes));
  receive_until(kNumber);
  expect_pattern(all_[0], kNumber, kBytes);
  EXPECT_EQ(in_place_, 0u);
  for (size_t i = 0; i < kBytes; ++i) ASSERT_EQ(place()[i], kOld) << i;
}

}  // namespace
}  // namespace tern::transport
