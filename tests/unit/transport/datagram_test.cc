// Received datagrams: sequences of packets, and bytes that are no packets.
#include "transport/datagram.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace tern::transport {
namespace {

void add_packet(std::vector<std::byte>& to, uint32_t number, size_t payload_bytes, uint8_t flags = 0) {
  wire::Header header = wire::client_header(wire::Kind::kRequest, wire::kFirst, 7, number, 64, wire::kNoDeadline, 5, 0);
  header.add_length(wire::kHeaderBytes + payload_bytes);
  header.add_flags(flags);
  const size_t at = to.size();
  to.resize(at + wire::kHeaderBytes + payload_bytes, std::byte{0xa5});
  wire::store_header(to.data() + at, header);
}

struct Seen {
  std::vector<std::pair<uint32_t, uint32_t>> packets;  ///< number, payload bytes
  TransportCounters counters;
};
/// Visits a copy without spare bytes behind it, so that a sanitizer reports a read beyond its end.
Seen visit(const std::vector<std::byte>& bytes) {
  const auto copy = std::make_unique<std::byte[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), copy.get());
  Seen seen;
  const auto visitor = [&](const wire::Header& header, const Payload& payload) {
    EXPECT_EQ(payload.lease, nullptr);
    for (uint32_t i = 0; i < payload.bytes; i++) EXPECT_EQ(payload.data[i], std::byte{0xa5});
    seen.packets.emplace_back(header.number(), payload.bytes);
  };
  const size_t packets = visit_packets(copy.get(), bytes.size(), visitor, seen.counters);
  EXPECT_EQ(packets, seen.packets.size());
  return seen;
}
using Packets = std::vector<std::pair<uint32_t, uint32_t>>;

TEST(Datagram, row_of_packets__is_visited_in_order) {
  std::vector<std::byte> bytes;
  for (uint32_t i = 0; i < 3; i++) add_packet(bytes, i, 10 * i);
  const Seen seen = visit(bytes);
  EXPECT_EQ(seen.packets, (Packets{{0, 0}, {1, 10}, {2, 20}}));
  EXPECT_EQ(seen.counters.dropped_unparsable + seen.counters.dropped_bad_reference, 0u);
  EXPECT_TRUE(visit({}).packets.empty());
}

TEST(Datagram, bytes_behind_the_last_packet__are_dropped_once) {
  for (const size_t extra : {size_t{1}, wire::kHeaderBytes - 1, wire::kHeaderBytes, size_t{100}}) {
    std::vector<std::byte> bytes;
    add_packet(bytes, 1, 8);
    bytes.resize(bytes.size() + extra, std::byte{0xff});
    const Seen seen = visit(bytes);
    EXPECT_EQ(seen.packets, (Packets{{1, 8}})) << extra;
    EXPECT_EQ(seen.counters.dropped_unparsable, 1u) << extra;
  }
}

TEST(Datagram, zeros_between_packets__are_padding) {
  for (const size_t zeros : {size_t{1}, wire::kHeaderBytes, size_t{100}}) {
    std::vector<std::byte> bytes(zeros);
    add_packet(bytes, 1, 8);
    bytes.resize(bytes.size() + zeros);
    add_packet(bytes, 2, 8);
    bytes.resize(bytes.size() + zeros);
    const Seen seen = visit(bytes);
    EXPECT_EQ(seen.packets, (Packets{{1, 8}, {2, 8}})) << zeros;
    EXPECT_EQ(seen.counters.dropped_unparsable, 0u) << zeros;
  }
}

TEST(Datagram, zeros_without_a_packet__are_dropped_once) {
  for (const size_t zeros : {size_t{1}, wire::kHeaderBytes, size_t{100}}) {
    const Seen seen = visit(std::vector<std::byte>(zeros));
    EXPECT_TRUE(seen.packets.empty());
    EXPECT_EQ(seen.counters.dropped_unparsable, 1u) << zeros;
  }
}

TEST(Datagram, packet_longer_than_the_datagram__ends_it) {
  std::vector<std::byte> bytes;
  add_packet(bytes, 1, 8);
  add_packet(bytes, 2, 8);
  bytes.pop_back();
  const Seen seen = visit(bytes);
  EXPECT_EQ(seen.packets, (Packets{{1, 8}}));
  EXPECT_EQ(seen.counters.dropped_unparsable, 1u);
}

TEST(Datagram, packet_by_reference__is_skipped) {
  std::vector<std::byte> bytes;
  add_packet(bytes, 1, 8, wire::kByReference);
  add_packet(bytes, 2, 8);
  const Seen seen = visit(bytes);
  EXPECT_EQ(seen.packets, (Packets{{2, 8}}));
  EXPECT_EQ(seen.counters.dropped_bad_reference, 1u);
  EXPECT_EQ(seen.counters.dropped_unparsable, 0u);
}

}  // namespace
}  // namespace tern::transport
