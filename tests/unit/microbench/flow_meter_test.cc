// FlowMeter: its figures about packets that a tap shows to it.
#include "../microbench/common/flow_meter.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>

namespace programs {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using tern::Duration;
using tern::wire::Header;
using tern::wire::Kind;

constexpr uint32_t kVictim = 0;
constexpr uint32_t kVictimPort = 65536;
constexpr uint16_t kType = 7;
constexpr uint32_t kPayload = 958;

class Meter : public testing::Test {
 protected:
  void show(Duration at, bool has_arrived, uint32_t from_host, uint32_t from_port, uint32_t to_host, uint32_t to_port,
            Header header, uint32_t payload) {
    header.add_length(tern::wire::kHeaderBytes + payload);
    std::array<std::byte, tern::wire::kHeaderBytes> bytes{};
    tern::wire::store_header(bytes.data(), header);
    meter.on_packet(at, {.has_arrived = has_arrived,
                         .from_host = from_host,
                         .from_port = from_port,
                         .to_host = to_host,
                         .to_port = to_port,
                         .bytes = bytes});
  }
  void request(Duration at, bool has_arrived, uint32_t host, uint32_t number, uint32_t request_number, uint32_t index,
               uint32_t port = 65537, uint16_t type = kType) {
    const uint8_t flags = index == 0 ? uint8_t{tern::wire::kFirst} : uint8_t{0};
    show(at, has_arrived, host, port, kVictim, kVictimPort,
         tern::wire::client_header(Kind::kRequest, flags, 1, number, request_number, index, type, 8 << 20), kPayload);
  }
  void answer(Duration at, uint32_t host, uint32_t echo, uint8_t flags = 0, uint32_t port = 65537) {
    show(at, true, kVictim, kVictimPort, host, port,
         tern::wire::server_header(Kind::kCr, flags, 1, 1, 1, echo, 0, 32, 0), 32);
  }

  FlowMeter meter{kVictim, kType, 4};
};

TEST_F(Meter, a_round_trip_is_from_departure_to_the_answer_that_names_the_packet) {
  meter.set_recording(true);
  request(microseconds(10), false, 1, 5, 1, 0);
  request(microseconds(11), false, 1, 6, 1, 1);
  answer(microseconds(18), 1, 6);
  answer(microseconds(19), 1, 5);
  EXPECT_EQ(meter.rtt_ns().count(), 2u);
  EXPECT_NEAR(meter.rtt_ns().at(0), 7000, 7);
  EXPECT_NEAR(meter.rtt_ns().at(1), 9000, 9);
}

TEST_F(Meter, a_packet_gives_one_sample_and_a_stranger_none) {
  meter.set_recording(true);
  request(microseconds(10), false, 1, 5, 1, 0);
  answer(microseconds(12), 1, 5, tern::wire::kNoEcho);
  answer(microseconds(12), 1, 5 + 1024);     // the same cell in the meter's memory
  answer(microseconds(12), 1, 5, 0, 65538);  // the packet of another endpoint of the host
  answer(microseconds(12), 2, 5);
  EXPECT_EQ(meter.rtt_ns().count(), 0u);
  answer(microseconds(13), 1, 5);
  answer(microseconds(14), 1, 5);
  EXPECT_EQ(meter.rtt_ns().count(), 1u);
}

TEST_F(Meter, round_trips_count_only_while_recording) {
  request(microseconds(10), false, 1, 5, 1, 0);
  answer(microseconds(12), 1, 5);
  meter.set_recording(true);
  request(microseconds(20), false, 1, 6, 1, 1);
  answer(microseconds(23), 1, 6);
  meter.set_recording(false);
  request(microseconds(30), false, 1, 7, 1, 2);
  answer(microseconds(34), 1, 7);
  EXPECT_EQ(meter.rtt_ns().count(), 1u);
  EXPECT_NEAR(meter.rtt_ns().at(1), 3000, 3);
}

TEST_F(Meter, bytes_count_once_however_often_they_come) {
  request(microseconds(10), true, 1, 5, 1, 0);
  request(microseconds(20), true, 1, 6, 1, 0);  // a retransmission
  request(microseconds(60), true, 1, 7, 1, 2);
  request(microseconds(70), true, 1, 8, 1, 1);  // this packet was overtaken
  EXPECT_EQ(meter.bytes(0, Duration(0), microseconds(50)), kPayload);
  EXPECT_EQ(meter.bytes(0, microseconds(50), microseconds(100)), 2 * kPayload);
  request(microseconds(110), true, 1, 9, 65, 0);  // the next request of the slot
  request(microseconds(120), true, 1, 10, 1, 3);  // a late packet of the previous request
  request(microseconds(130), true, 1, 11, 65, 1);
  EXPECT_EQ(meter.bytes(0, microseconds(100), microseconds(150)), 2 * kPayload);
  EXPECT_EQ(meter.bytes(Duration(0), milliseconds(1)), 5 * kPayload);
}

TEST_F(Meter, packets_of_other_kinds_are_no_flows) {
  request(microseconds(10), true, 1, 5, 1, 0, 31850);             // the packet of a Nexus
  request(microseconds(10), true, 1, 5, 1, 0, 65537, kType + 1);  // a packet of another request type
  show(microseconds(10), true, 1, 65537, 2, 65536, tern::wire::client_header(Kind::kRequest, 0, 1, 5, 1, 1, kType, 9),
       9);  // a packet to another host
  show(microseconds(10), true, 1, 65537, kVictim, kVictimPort,
       tern::wire::client_header(Kind::kPathProbe, 0, 1, 5, 1, 1, kType, 9), 9);
  EXPECT_EQ(meter.flows(), 0u);
  request(microseconds(10), true, 1, 5, 1, 0);
  request(microseconds(10), true, 1, 5, 1, 0, 65538);
  request(microseconds(10), true, 2, 5, 1, 0);
  EXPECT_EQ(meter.flows(), 3u);
}

TEST_F(Meter, fairness_is_of_the_first_flows_and_their_bytes_in_the_window) {
  for (uint32_t i = 0; i < 3; ++i) request(microseconds(10 + i), true, 1, i, 1, i);
  request(microseconds(60), true, 2, 1, 1, 0);
  EXPECT_DOUBLE_EQ(meter.fairness(1, Duration(0), microseconds(50)), 1);
  EXPECT_DOUBLE_EQ(meter.fairness(2, Duration(0), microseconds(50)), 0.5);
  EXPECT_DOUBLE_EQ(meter.fairness(2, Duration(0), microseconds(100)), 16.0 / 20);
  EXPECT_DOUBLE_EQ(meter.fairness(3, Duration(0), microseconds(100)), 16.0 / 30);
  EXPECT_EQ(meter.busiest(Duration(0), microseconds(100)), 0u);
  EXPECT_EQ(meter.busiest(microseconds(50), microseconds(100)), 1u);
  EXPECT_DOUBLE_EQ(jain_fairness(std::array{1.0, 1.0, 1.0}), 1);
  EXPECT_DOUBLE_EQ(jain_fairness({}), 0);
}

TEST_F(Meter, time_until_ends_at_the_first_window_that_satisfies) {
  for (uint32_t i = 0; i < 8; ++i) request(microseconds(330 + 50 * i), true, 1, i, 1, i);
  const auto has = [&](uint64_t packets) {
    return [this, packets](Duration from, Duration to) { return meter.bytes(0, from, to) >= packets * kPayload; };
  };
  EXPECT_EQ(FlowMeter::time_until(microseconds(100), milliseconds(1), microseconds(200), has(4)), microseconds(400));
  EXPECT_EQ(FlowMeter::time_until(microseconds(100), milliseconds(1), microseconds(200), has(1)), microseconds(250));
  EXPECT_EQ(FlowMeter::time_until(microseconds(100), milliseconds(1), microseconds(200), has(5)), std::nullopt);
  EXPECT_EQ(FlowMeter::time_until(microseconds(100), microseconds(450), microseconds(200), has(4)), std::nullopt);
}

}  // namespace
}  // namespace programs
