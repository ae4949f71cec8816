// The ring alone, with both ends over plain memory, against a naive queue.
#include "transport/shm/shm_ring.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <string>

namespace tern::transport::shm {
namespace {

struct RingTest : testing::Test {
  static constexpr uint32_t kCells = 256;
  struct alignas(kCellBytes) Region {
    std::byte bytes[region_bytes(kCells)] = {};
  };

  void attach(uint64_t start) {
    outbound.attach(forward->bytes, kCells, start, &control()->consumed);
    inbound.attach(forward->bytes, kCells, start, &control()->consumed);
    inbound.publish(inbound.position);
  }
  RingControl* control() { return reinterpret_cast<RingControl*>(backward->bytes); }
  static wire::Header header_of(const std::string& payload) {
    wire::Header header = wire::client_header(wire::Kind::kRequest, 0, 1, 2, 3, 0, 1, 0);
    header.set_length_and_flags(wire::kHeaderBytes + payload.size(), 0);
    return header;
  }
  bool put(const std::string& payload) {
    return outbound.try_put(header_of(payload), reinterpret_cast<const std::byte*>(payload.data()), payload.size());
  }
  /// Puts a payload of up to kCellPayloadBytes as a Sender does.
  bool put_claimed(const std::string& payload) {
    uint64_t& position = outbound.position;
    if (position == outbound.claimed && outbound.claim(position) == position) return put(payload);
    outbound.put_cell(position, header_of(payload), reinterpret_cast<const std::byte*>(payload.data()), payload.size());
    position += kCellBytes;
    return true;
  }
  /// Takes one packet, and skips padding.
  bool take(std::string& payload) {
    while (inbound.has_input()) {
      const std::byte* cell = inbound.cell_at(inbound.position);
      const wire::Header header = take_header(cell);
      if (header.w0 == 0) {
        inbound.position += inbound.bytes_to_end(inbound.position);
        continue;
      }
      const size_t record = (kWordBytes + header.length() + kCellBytes - 1) / kCellBytes * kCellBytes;
      EXPECT_LE(record, inbound.bytes_to_end(inbound.position));
      payload.assign(reinterpret_cast<const char*>(cell + kPayloadOffset), header.length() - wire::kHeaderBytes);
      inbound.position += record;
      if (inbound.is_publication_due(inbound.position)) inbound.publish(inbound.position);
      return true;
    }
    return false;
  }

  std::unique_ptr<Region> forward = std::make_unique<Region>();
  std::unique_ptr<Region> backward = std::make_unique<Region>();
  Outbound outbound;
  Inbound inbound;
};

TEST_F(RingTest, random_sizes__equal_a_queue) {
  std::mt19937_64 random(11);
  attach(random() >> 1);
  std::deque<std::string> queue;
  int refused = 0;
  for (int step = 0; step < 200'000; step++) {
    if (random() % 2 == 0) {
      const bool is_long = random() % 4 == 0;
      const size_t size = random() % (is_long ? kInlinePayloadBytes + 1 : kCellPayloadBytes + 1);
      std::string payload(size, static_cast<char>(random()));
      if (is_long || random() % 8 == 0 ? put(payload) : put_claimed(payload)) {
        queue.push_back(payload);
      } else {
        refused++;
        ASSERT_FALSE(queue.empty()) << "an empty ring is never full";
      }
      ASSERT_LE(outbound.position, outbound.claimed);
      ASSERT_LE(outbound.claimed, outbound.limit);
    } else {
      // Bursts, so that the ring is full at some times and empty at others.
      for (uint64_t n = random() % (step / 1000 % 2 == 0 ? 2 : 6); n != 0; --n) {
        std::string payload;
        ASSERT_EQ(take(payload), !queue.empty());
        if (queue.empty()) break;
        ASSERT_EQ(payload, queue.front());
        queue.pop_front();
      }
    }
  }
  EXPECT_GT(refused, 100);
}

TEST_F(RingTest, one_cell__takes_all_lengths) {
  attach(12345);
  for (size_t len = 0; len <= kCellPayloadBytes; len++) {
    std::string payload(len, 0), got;
    for (size_t i = 0; i < len; i++) payload[i] = static_cast<char>(i + 1);
    ASSERT_TRUE(put_claimed(payload));
    ASSERT_TRUE(take(got));
    EXPECT_EQ(got, payload);
  }
}

TEST_F(RingTest, claim__takes_free_cells_up_to_the_end_of_their_group) {
  const uint64_t start = 1'000'000 * kGroupBytes;
  attach(start + 5 * kCellBytes);
  std::string payload;
  EXPECT_EQ(outbound.claim(outbound.position), start + kGroupBytes);
  for (int i = 0; i < 3; i++) ASSERT_TRUE(put_claimed("x"));
  EXPECT_EQ(outbound.position, outbound.claimed);
  EXPECT_EQ(outbound.claim(outbound.position), start + 2 * kGroupBytes);
  ASSERT_TRUE(put(std::string(9 * kCellBytes, 'l')));  // ten cells: beyond the claimed ones
  EXPECT_EQ(outbound.claimed, outbound.position);
  EXPECT_EQ(outbound.claim_ahead(outbound.position), outbound.position) << "the last record took several cells";
  ASSERT_TRUE(put_claimed("x"));
  while (outbound.position != outbound.claimed) ASSERT_TRUE(put_claimed("x"));
  EXPECT_EQ(outbound.claim_ahead(outbound.position), outbound.position + kGroupBytes);
  while (outbound.position != outbound.limit) ASSERT_TRUE(put_claimed("x"));
  EXPECT_EQ(outbound.claim(outbound.position), outbound.position) << "no cell is free";
  EXPECT_FALSE(put_claimed("x"));
  while (take(payload)) continue;
  EXPECT_TRUE(put_claimed("x"));
}

TEST_F(RingTest, claim__ends_at_the_first_unread_record) {
  attach(0);
  const std::string full(kCellPayloadBytes, 'f');
  for (uint32_t i = 0; i < kCells; i++) ASSERT_TRUE(put_claimed(full));
  std::string got;
  for (uint32_t i = 0; i < 3; i++) ASSERT_TRUE(take(got));
  inbound.publish(inbound.position);  // three cells of the next group are free
  outbound.refresh();
  EXPECT_EQ(outbound.claim(outbound.position), outbound.limit);
  EXPECT_EQ(outbound.claimed, outbound.position + 3 * kCellBytes);
  for (uint32_t i = 3; i < kCells; i++) {
    ASSERT_TRUE(take(got));
    ASSERT_EQ(got, full);
  }
}

TEST_F(RingTest, claimed_cells__are_no_records) {
  attach(77);
  std::string got;
  for (uint32_t i = 0; i < 4 * kCells; i++) {
    // The payload ends with the word that its cell has in the next lap.
    const uint64_t next_word = outbound.position + kCells * kCellBytes;
    std::string payload(kCellPayloadBytes, 'x');
    std::memcpy(&payload[kCellPayloadBytes - sizeof(next_word)], &next_word, sizeof(next_word));
    ASSERT_TRUE(put_claimed(payload));
    ASSERT_TRUE(take(got));
    ASSERT_EQ(got, payload);
    ASSERT_FALSE(inbound.has_input());
  }
}

TEST_F(RingTest, full__refuses_until_an_eighth_is_read) {
  attach(1);
  for (uint32_t i = 0; i < kCells; i++) ASSERT_TRUE(put("x"));
  EXPECT_FALSE(put("x"));
  EXPECT_EQ(outbound.position, outbound.limit);
  std::string payload;
  for (uint32_t i = 0; i < kCells / 8 - 1; i++) ASSERT_TRUE(take(payload));
  EXPECT_FALSE(put("x"));
  ASSERT_TRUE(take(payload));
  EXPECT_TRUE(put("x"));
}

TEST_F(RingTest, record__does_not_wrap) {
  attach(uint64_t{kCells - 3} * kCellBytes);  // three cells before the end
  const std::string large(kInlinePayloadBytes, 'l');
  ASSERT_TRUE(put(large));
  EXPECT_EQ(inbound.bytes_to_end(inbound.position), 3 * kCellBytes);
  std::string payload;
  ASSERT_TRUE(take(payload));
  EXPECT_EQ(payload, large);
  EXPECT_EQ(inbound.position % (kCells * kCellBytes), kRecordBytesMax);
}

TEST_F(RingTest, old_payload__is_no_word) {
  // The payload contains the values that a ring without a secret would take for the next words.
  attach(0x1234567890abcdef);
  std::string payload;
  for (uint64_t i = 0; i < kInlinePayloadBytes / 8; i++) {
    const uint64_t word = i * kCellBytes;
    payload.append(reinterpret_cast<const char*>(&word), 8);
  }
  std::string got;
  for (int i = 0; i < 1000; i++) {
    ASSERT_TRUE(put(i % 3 == 0 ? "small" : payload));
    ASSERT_TRUE(take(got));
    ASSERT_FALSE(inbound.has_input());
  }
}

TEST_F(RingTest, hostile_consumed__is_ignored) {
  const uint64_t start = 1'000'000 * kCellBytes;
  attach(start);
  for (uint32_t i = 0; i < kCells; i++) ASSERT_TRUE(put("x"));
  const uint64_t limit = outbound.limit;
  for (const uint64_t claim :
       {uint64_t{0}, start - kCellBytes, outbound.position + kCellBytes, start + 1, UINT64_MAX, start + 63}) {
    control()->consumed.store(claim);
    EXPECT_FALSE(put("x")) << claim;
    EXPECT_EQ(outbound.limit, limit) << claim;
  }
  control()->consumed.store(start + kCellBytes);
  EXPECT_TRUE(put("x"));
  control()->consumed.store(start);  // backwards
  EXPECT_FALSE(put("x"));
  EXPECT_EQ(outbound.limit, limit + kCellBytes);
}

TEST_F(RingTest, put_reference__every_field_arrives) {
  attach(1000 * kCellBytes);
  const Reference sent = {0x01234567, 0x89abcdef, 0x0123456789abcdef, 0xfedcba98, 0x76543210};
  wire::Header header = {wire::shape_of(wire::Kind::kRequest, wire::kFirst), 17, 4711};
  header.set_length_and_flags(wire::kHeaderBytes + kReferenceBytes, wire::kByReference);
  outbound.put_reference(header, sent);
  ASSERT_TRUE(inbound.has_input());
  const std::byte* cell = inbound.cell_at(inbound.position);
  EXPECT_EQ(take_header(cell).w2, 4711u);
  EXPECT_TRUE(is_reference(take_header(cell)));
  const Reference taken = take_reference(cell);
  EXPECT_EQ(taken.chunk_id, sent.chunk_id);
  EXPECT_EQ(taken.lease_value, sent.lease_value);
  EXPECT_EQ(taken.buffer_offset, sent.buffer_offset);
  EXPECT_EQ(taken.data_offset, sent.data_offset);
  EXPECT_EQ(taken.bytes, sent.bytes);
  header.clear_flags(wire::kByReference);
  EXPECT_FALSE(is_reference(header));
  EXPECT_EQ(header.flags(), wire::kFirst);
}

TEST_F(RingTest, is_plain__agrees_with_is_plausible_but_for_the_kind) {
  for (uint64_t low = 0; low < 65536; low++) {
    const uint64_t w0 = low | uint64_t{32} << 16 | 0xabcdef01ull << 32;
    const wire::Header header = {w0, 0, 0};
    if (!wire::is_known(low & 15)) continue;
    EXPECT_EQ(is_plain(w0), wire::is_plausible(header, 56) && (header.flags() & wire::kByReference) == 0) << low;
    EXPECT_EQ(is_plain(w0 & ~uint64_t{15}), is_plain(w0)) << low;
  }
}

}  // namespace
}  // namespace tern::transport::shm
