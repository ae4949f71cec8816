#include "session/server_session.h"

#include <functional>
#include <utility>

#include <gtest/gtest.h>

#include "unit/failing_new.h"
#include "unit/session/session_parts.h"

namespace {
bool has_memory = true;
}  // namespace

bool tern::test::allocation_fails() noexcept { return !has_memory; }

namespace tern::session {
namespace {

using Phase = ServerSlot::Phase;
using wire::Kind;

constexpr uint32_t kPayloadMax = 100;
constexpr uint32_t kFirst = 1000 << wire::kSlotBits;  ///< request number of slot 0
constexpr uint8_t kLimit = 5;

constexpr uint32_t kPathToken = 0x7654321;
constexpr uint32_t kSessionToken = 0x1234567;

class ServerSessionTest : public testing::Test {
 protected:
  ServerSessionTest() {
    make();
    prove_path();
  }
  ~ServerSessionTest() override {
    end();
    EXPECT_EQ(pools_.extras.taken(), 0u);
    EXPECT_EQ(pools_.slots.taken(), 0u);
    EXPECT_EQ(pools_.slot_pairs.taken(), 0u);
    EXPECT_EQ(pools_.assemblies.taken(), 0u);
    EXPECT_EQ(pools_.number_bits.taken(), 0u);
    EXPECT_EQ(offers_.arriving_bytes, 0u);
  }

  void end() {
    session_->end_all(offers_);
    session_->give_back(pools_);
    session_.reset();
  }
  void make(uint8_t window = 4, uint32_t first_number = 1) {
    if (session_ != nullptr) end();
    ServerTerms terms;
    terms.first_number = first_number;
    terms.local_key = 9;
    terms.remote_key = 7;
    terms.payload_bytes_max = kPayloadMax;
    terms.window = window;
    terms.first_request_count = 1000;
    terms.path_token = kPathToken;
    terms.session_token = kSessionToken;
    session_ = std::make_unique<ServerSession>(terms);
    client_number_ = 0;
    server_number_ = (first_number - 1) & wire::kNumberMask;
  }
  void prove_path() {
    receive(path_probe(kSessionToken, kFirst), kPayloadMax);
    EXPECT_EQ(sent().size(), 1u);
  }

  wire::Header client_header(Kind kind, uint32_t request_number, uint32_t index = 0, uint32_t size = 0,
                             uint8_t flags = 0) {
    return wire::client_header(kind, flags, 9, ++client_number_, request_number, index, 3, size);
  }
  wire::Header request(uint32_t request_number, uint32_t bytes, uint32_t index = 0,
                       uint32_t deadline = wire::kNoDeadline) {
    return client_header(Kind::kRequest, request_number, index == 0 ? deadline : index, bytes,
                         index == 0 ? wire::kFirst : 0);
  }
  static wire::Header coded(wire::Header header, uint8_t payload_code) {
    header.add_payload_code(payload_code);
    return header;
  }
  wire::Header probe(uint32_t request_number, bool is_delivered = false) {
    return client_header(Kind::kProbe, request_number, is_delivered ? 1 : 0, kSessionToken);
  }
  wire::Header path_probe(uint32_t token, uint32_t request_number = 0) {
    return client_header(Kind::kPathProbe, request_number, 0, token);
  }
  wire::Header paired_probe(uint32_t token, uint32_t request_number = 0) {
    return client_header(Kind::kPathProbe, request_number, 0, token, wire::kPaired);
  }
  /// Sends a pair reply as an endpoint does after it has found the address.
  wire::Header pair_reply(uint32_t token) {
    session_->owe_pair_reply(token);
    EXPECT_TRUE(session_->wants_to_send());
    const wire::Header reply = session_->pair_reply(kLimit);
    EXPECT_EQ(reply.number(), ++server_number_);
    EXPECT_TRUE(sent().empty());
    return reply;
  }
  ServerVerdict receive(const wire::Header& header, const transport::Payload& payload) {
    const ServerVerdict verdict = session_->on_packet(header, payload, now_, offers_);
    session_->check_invariants();
    return verdict;
  }
  ServerVerdict receive(const wire::Header& header, uint32_t payload_bytes = 0) {
    const auto bytes = bytes_of(payload_bytes);
    return receive(header, {bytes.data(), payload_bytes, nullptr, 0});
  }
  /// A packet with a congestion mark.
  ServerVerdict receive_marked(const wire::Header& header, uint32_t payload_bytes) {
    const auto bytes = bytes_of(payload_bytes);
    transport::Payload payload{bytes.data(), payload_bytes, nullptr, 0};
    payload.is_marked = true;
    return receive(header, payload);
  }
  /// `echo`: the number of the probe that is answered.
  static void expect_full_path_reply(const TestPacket& packet, uint32_t echo) {
    EXPECT_EQ(packet.header.kind(), Kind::kPathReply);
    EXPECT_EQ(packet.header.echo(), echo);
    EXPECT_EQ(packet.payload.size(), kPayloadMax);
  }
  Drop drop_of(const wire::Header& header, uint32_t payload_bytes) { return receive(header, payload_bytes).drop; }
  /// Checks that the packet changes nothing but a counter.
  void expect_no_effect(const wire::Header& header, uint32_t payload_bytes, Drop why) {
    EXPECT_EQ(drop_of(header, payload_bytes), why);
    EXPECT_TRUE(sent().empty());
    client_number_--;  // the packet's number is not remembered either
  }
  ServerSlot* begin(uint32_t request_number, uint32_t bytes = 10) {
    const ServerVerdict verdict = receive(request(request_number, bytes), bytes);
    EXPECT_NE(verdict.started, nullptr);
    return verdict.started;
  }
  void respond(ServerSlot* slot, uint32_t bytes) {
    BufferDeleter()(slot->response);
    slot->response = make_buffer(bytes).release();
    slot->response_bytes = bytes;
    session_->respond(slot);
    session_->check_invariants();
  }
  std::vector<TestPacket> sent() {
    std::vector<TestPacket> result;
    const auto send = [&](const wire::Header& header, const std::byte* data, uint32_t bytes, detail::Buffer*) {
      result.push_back({header, data == nullptr ? bytes_of(bytes) : std::vector<std::byte>(data, data + bytes)});
      EXPECT_EQ(header.number(), ++server_number_);
      EXPECT_EQ(header.session_key(), 7u);
      EXPECT_EQ(header.credit_limit(), kLimit);
      return true;
    };
    uint32_t packets = 0;
    while (session_->transmit(
               now_, kLimit, send, [&] { return ++ticket_; }, packets) == ServerSession::Turn::kSent) {
    }
    EXPECT_FALSE(session_->wants_to_send());
    session_->check_invariants();
    return result;
  }
  /// As an endpoint does for a request that its handler keeps. False: the credit return is due.
  bool hold(const ServerSlot* slot, uint8_t limit = 64) {
    const bool holds = session_->try_hold(slot, limit);
    if (!holds) session_->owe_credit_return(session_->newest(), now_);
    session_->check_invariants();
    return holds;
  }
  using Kinds = std::vector<Kind>;
  Kinds kinds_sent() {
    Kinds kinds;
    for (const TestPacket& packet : sent()) kinds.push_back(packet.header.kind());
    return kinds;
  }
  wire::Header only_answer() {
    const auto packets = sent();
    EXPECT_EQ(packets.size(), 1u);
    return packets.empty() ? wire::Header{} : packets[0].header;
  }
  void cancel(uint32_t request_number) { receive(client_header(Kind::kCancel, request_number, 0, kSessionToken)); }
  ServerVerdict report(const std::vector<std::byte>& numbers) {
    return receive(client_header(Kind::kReport, 0, 0, kSessionToken),
                   {numbers.data(), static_cast<uint32_t>(numbers.size()), nullptr, 0});
  }
  static std::vector<std::byte> numbers(std::initializer_list<uint32_t> request_numbers) {
    std::vector<std::byte> bytes;
    for (uint32_t number : request_numbers) {
      for (int i = 0; i < 4; i++) bytes.push_back(static_cast<std::byte>(number >> (8 * i)));
    }
    return bytes;
  }
  bool ask(uint32_t request_number, uint32_t index, uint32_t count) {
    return receive(client_header(Kind::kRfr, request_number, index, count)).drop == Drop::kNone;
  }

  ServerPools pools_;
  HeapOffers offers_{pools_};
  std::unique_ptr<ServerSession> session_;
  uint64_t now_ = 5'000'000;
  uint64_t ticket_ = 0;
  uint32_t client_number_ = 0;
  uint32_t server_number_ = 0;
};

// ---- Requests ----

TEST_F(ServerSessionTest, short_request_is_answered_with_its_number_echoed_and_the_hold_time) {
  ServerSlot* slot = begin(kFirst);
  EXPECT_EQ(slot->phase, Phase::kRunning);
  EXPECT_EQ(slot->type, 3);
  now_ += 3200;
  respond(slot, 20);
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 1u);
  const wire::Header& h = packets[0].header;
  EXPECT_EQ(h.kind(), Kind::kResponse);
  EXPECT_EQ(h.flags(), wire::kFirst);
  EXPECT_EQ(h.request_number(), kFirst);
  EXPECT_EQ(h.echo(), client_number_);
  EXPECT_EQ(h.size_or_index(), 20u);
  EXPECT_EQ(wire::decode_hold(h.hold_code()), 3200u);
  EXPECT_EQ(packets[0].payload.size(), 20u);
  EXPECT_EQ(slot->response_ticket, ticket_);
}

TEST_F(ServerSessionTest, malformed_requests) {
  expect_no_effect(request(kFirst | 4, 10), 10, Drop::kUnproven);  // the slot does not exist
  expect_no_effect(request(kFirst, 10), 9, Drop::kMalformed);
  expect_no_effect(request(kFirst, 10), 11, Drop::kMalformed);
  expect_no_effect(request(kFirst, 101), 101, Drop::kMalformed);  // the payload is longer than a packet's
  expect_no_effect(request(kFirst, 150), 99, Drop::kMalformed);
  expect_no_effect(request(kFirst, 150, 1), 51, Drop::kMalformed);
  expect_no_effect(request(kFirst, 150, 2), 100, Drop::kMalformed);
  expect_no_effect(request(kFirst, 0x7fffffff), 100, Drop::kMalformed);
  // Index 0 without the flag kFirst.
  expect_no_effect(client_header(Kind::kRequest, kFirst, 0, 150, 0), 100, Drop::kMalformed);
  EXPECT_EQ(session_->slot(0), nullptr);
  EXPECT_TRUE(receive(request(kFirst, 150, 1), 50).is_part);
}

// ---- Larger packets (clauses 5.1.1 and 7.7.9): code 12 stands for 128 B, 16 for 256 B ----

TEST_F(ServerSessionTest, requests_of_larger_packets) {
  pools_.large_payload_bytes = 300;
  EXPECT_TRUE(receive(coded(request(kFirst, 200), 12), 128).is_part);
  const ServerVerdict verdict = receive(coded(request(kFirst, 200, 1), 12), 72);
  ASSERT_NE(verdict.started, nullptr);
  EXPECT_TRUE(verdict.was_assembled);
  BufferDeleter()(verdict.message);
  // One packet of more than the session's own size is a whole request, which the handler reads where it is.
  const uint64_t before = session_->long_bytes_received();
  const ServerVerdict whole = receive(coded(request(kFirst | 1, 130), 16), 130);
  ASSERT_NE(whole.started, nullptr);
  EXPECT_EQ(whole.message, nullptr);
  EXPECT_EQ(session_->long_bytes_received() - before, 130u);
  EXPECT_EQ(std::exchange(offers_.arriving_bytes, 0), 200u);
}

// ---- Responses that come whole (clause 5.3.3) ----

class WholeResponses : public ServerSessionTest {
 protected:
  WholeResponses() { pools_.large_payload_bytes = 300; }
  /// A request that allows a packet 0 of this code.
  wire::Header asking(uint32_t request_number, uint8_t code) {
    wire::Header header = coded(request(request_number, 10), code);
    header.add_flags(wire::kTakesWhole);
    return header;
  }
  size_t answer_bytes() {
    const auto packets = sent();
    EXPECT_EQ(packets.size(), 1u);
    EXPECT_EQ(packets.at(0).header.flags(), wire::kFirst);
    return packets.at(0).payload.size();
  }
};

TEST_F(WholeResponses, have_at_most_the_size_that_the_request_names) {
  uint32_t number = kFirst;
  const uint64_t before = session_->long_bytes_sent();
  for (const auto& [bytes, sent_bytes] :
       {std::pair<uint32_t, size_t>{0, 0}, {100, 100}, {101, 101}, {256, 256}, {257, 100}}) {
    ServerSlot* slot = receive(asking(number, 16), 10).started;
    ASSERT_NE(slot, nullptr);
    respond(slot, bytes);
    EXPECT_EQ(answer_bytes(), sent_bytes);
    EXPECT_EQ(slot->response_ticket, ticket_);
    number += wire::kSlotsMax;
  }
  EXPECT_EQ(session_->long_bytes_sent() - before, 101u + 256);
}

TEST_F(WholeResponses, answer_only_packets_that_name_a_size) {
  ServerSlot* slot = receive(asking(kFirst, 16), 10).started;
  ASSERT_NE(slot, nullptr);
  respond(slot, 200);
  EXPECT_EQ(answer_bytes(), 200u);
  receive(probe(kFirst));
  EXPECT_EQ(answer_bytes(), 100u);
  receive(asking(kFirst, 16), 10);
  EXPECT_EQ(answer_bytes(), 200u);
  receive(request(kFirst, 10), 10);
  EXPECT_EQ(answer_bytes(), 100u);
  // The slot's next request is of the common case.
  const wire::Header next = request(kFirst + wire::kSlotsMax, 10);
  slot = session_->try_begin(next, 10, now_);
  ASSERT_NE(slot, nullptr);
  session_->defer(slot);
  respond(slot, 200);
  EXPECT_EQ(answer_bytes(), 100u);
}

// After a pause both a request and the probe for it may be there.
TEST_F(WholeResponses, that_have_not_left_stay_whole_when_a_probe_comes) {
  ServerSlot* slot = receive(asking(kFirst, 16), 10).started;
  ASSERT_NE(slot, nullptr);
  respond(slot, 200);
  receive(probe(kFirst));
  EXPECT_EQ(answer_bytes(), 200u);
}

TEST_F(WholeResponses, answer_requests_of_one_packet) {
  wire::Header part = coded(request(kFirst, 400), 16);
  part.add_flags(wire::kTakesWhole);
  EXPECT_TRUE(receive(part, 256).is_part);
  sent();
  part = coded(request(kFirst, 400, 1), 16);
  part.add_flags(wire::kTakesWhole);
  const ServerVerdict verdict = receive(part, 144);
  ASSERT_NE(verdict.started, nullptr);
  BufferDeleter()(verdict.message);
  offers_.arriving_bytes = 0;
  respond(verdict.started, 200);
  EXPECT_EQ(answer_bytes(), 100u);
}

TEST_F(WholeResponses, of_sizes_that_no_packet_may_have_are_malformed) {
  for (const uint8_t code : {uint8_t{8}, uint8_t{18}, uint8_t{255}}) {  // 64, 320, 65024 B
    expect_no_effect(asking(kFirst, code), 10, Drop::kMalformed);
  }
  pools_.large_payload_bytes = 0;
  expect_no_effect(asking(kFirst, 16), 10, Drop::kMalformed);
  ServerSlot* slot = receive(asking(kFirst, 0), 10).started;  // the session's own size
  ASSERT_NE(slot, nullptr);
  respond(slot, 200);
  EXPECT_EQ(answer_bytes(), 100u);
}

TEST_F(WholeResponses, leave_in_turn_with_short_ones) {
  for (uint32_t i = 0; i < 4; i++) {
    ServerSlot* slot = receive(asking(kFirst | i, 16), 10).started;
    ASSERT_NE(slot, nullptr);
    respond(slot, i % 2 == 0 ? 10 : 200);
  }
  std::vector<size_t> sizes;
  for (const TestPacket& packet : sent()) sizes.push_back(packet.payload.size());
  EXPECT_EQ(sizes, (std::vector<size_t>{10, 200, 10, 200}));
}

// ---- The part that is expected next ----

TEST_F(ServerSessionTest, the_next_full_part_is_expected_while_the_request_misses_it) {
  const auto part = [&](uint32_t index, uint32_t bytes = 100) {
    wire::Header header = request(kFirst, 450, index);
    header.add_length(wire::kHeaderBytes + bytes);
    return header;
  };
  const auto place_after = [&](const wire::Header& header) -> int64_t {
    const transport::ExpectedPacket expected = session_->expected_after(header);
    if (expected.place == nullptr) return -1;
    EXPECT_EQ(expected.payload_bytes, 100u);
    return expected.place - session_->slot(0)->assembly->buffer->data();
  };
  const wire::Header first = part(0);
  EXPECT_EQ(place_after(first), -1) << "the request has not begun";
  receive(first, 100);
  EXPECT_EQ(place_after(first), 100);

  const transport::ExpectedPacket expected = session_->expected_after(first);
  wire::Header next = part(1);
  EXPECT_TRUE(expected.is(next));
  next.add_flags(wire::kWantsCredits);
  EXPECT_TRUE(expected.is(next));
  for (const wire::Header& other : {part(2), part(1, 99), coded(part(1), 12), first}) EXPECT_FALSE(expected.is(other));
  for (uint64_t wire::Header::*word : {&wire::Header::w0, &wire::Header::w1, &wire::Header::w2}) {
    wire::Header other = part(1);
    other.*word ^= uint64_t{1} << 40;  // key, request number, message size
    EXPECT_FALSE(expected.is(other));
  }

  receive(part(2), 100);
  EXPECT_EQ(place_after(part(2)), 300);
  EXPECT_EQ(place_after(part(0)), 100);
  receive(part(1), 100);
  EXPECT_EQ(place_after(part(1)), 300) << "part 2 has been received";
  receive(part(3), 100);
  EXPECT_EQ(place_after(part(3)), -1) << "the last part is not full";
  const ServerVerdict whole = receive(part(4, 50), 50);
  ASSERT_NE(whole.started, nullptr);
  for (uint32_t i = 0; i < 5; i++) EXPECT_EQ(place_after(part(i)), -1) << "the application has the message";
  BufferDeleter()(whole.message);
  offers_.arriving_bytes = 0;
}

TEST_F(ServerSessionTest, no_part_is_expected_of_a_request_that_has_ended) {
  const wire::Header first = request(kFirst, 450);
  receive(first, 100);
  EXPECT_NE(session_->expected_after(first).place, nullptr);
  EXPECT_EQ(session_->expected_after(coded(first, 12)).place, nullptr);
  session_->give_up_arriving(session_->slot(0), offers_);
  EXPECT_EQ(session_->expected_after(first).place, nullptr);
  const wire::Header second = request(kFirst + wire::kSlotsMax, 450);
  receive(second, 100);
  EXPECT_EQ(session_->expected_after(first).place, nullptr);
  EXPECT_NE(session_->expected_after(second).place, nullptr);
  EXPECT_EQ(session_->expected_after(request(kFirst + wire::kSlotsMax + 5, 450)).place, nullptr) << "not a slot";
  session_->end_all(offers_);
  EXPECT_EQ(session_->expected_after(second).place, nullptr);
}

TEST_F(ServerSessionTest, a_part_in_place_is_received_as_it_lies) {
  const wire::Header first = request(kFirst, 200);
  receive(first, 100);
  const transport::ExpectedPacket expected = session_->expected_after(first);
  ASSERT_NE(expected.place, nullptr);
  std::fill_n(expected.place, 100, std::byte{0x77});
  const ServerVerdict verdict = receive(request(kFirst, 200, 1), {expected.place, 100, nullptr, 0});
  ASSERT_NE(verdict.started, nullptr);
  for (uint32_t i = 0; i < 200; i++) {
    ASSERT_EQ(verdict.message->data()[i], i < 100 ? std::byte{0x5a} : std::byte{0x77}) << i;
  }
  BufferDeleter()(verdict.message);
  offers_.arriving_bytes = 0;
}

TEST_F(ServerSessionTest, payload_codes_that_no_packet_may_have_are_malformed) {
  expect_no_effect(coded(request(kFirst, 200), 12), 128, Drop::kMalformed);  // the transport takes no larger packets
  pools_.large_payload_bytes = 255;
  for (const uint8_t code : {1, 7, 8, 10}) {  // of no more than the session's own payload
    expect_no_effect(coded(request(kFirst, 200), code), 100, Drop::kMalformed);
  }
  for (const uint8_t code : {16, 255}) {  // of more than the transport takes
    expect_no_effect(coded(request(kFirst, 70'000), code), wire::payload_of_code(code), Drop::kMalformed);
  }
  expect_no_effect(coded(request(kFirst, 200), 12), 127, Drop::kMalformed);
  expect_no_effect(coded(request(kFirst, 200, 1), 12), 100, Drop::kMalformed);
  expect_no_effect(coded(request(kFirst, 200, 2), 12), 1, Drop::kMalformed);
  EXPECT_EQ(session_->slot(0), nullptr);
}

TEST_F(ServerSessionTest, a_request_begins_anew_with_smaller_packets) {
  pools_.large_payload_bytes = 300;
  EXPECT_TRUE(receive(coded(request(kFirst, 300), 16), 256).is_part);
  EXPECT_TRUE(receive(coded(request(kFirst, 300, 1), 12), 128).is_part);
  EXPECT_TRUE(receive(request(kFirst, 300), 100).is_part);
  // Late packets of the divisions before.
  for (const auto& [header, bytes] :
       {std::pair(coded(request(kFirst, 300, 1), 16), 44u), std::pair(coded(request(kFirst, 300, 2), 12), 44u)}) {
    const ServerVerdict late = receive(header, bytes);
    EXPECT_EQ(late.drop, Drop::kStale);
    EXPECT_EQ(late.started, nullptr);
  }
  EXPECT_TRUE(receive(request(kFirst, 300, 2), 100).is_part);
  const ServerVerdict verdict = receive(request(kFirst, 300, 1), 100);
  ASSERT_NE(verdict.started, nullptr);
  EXPECT_EQ(std::exchange(offers_.arriving_bytes, 0), 300u);
  BufferDeleter()(verdict.message);
  // The request is here, so all of its packets are duplicates now.
  EXPECT_EQ(drop_of(coded(request(kFirst, 300), 12), 128), Drop::kStale);
  EXPECT_EQ(drop_of(request(kFirst, 300), 100), Drop::kStale);
  sent();
}

TEST_F(ServerSessionTest, ranges_of_larger_packets) {
  pools_.large_payload_bytes = 300;
  respond(begin(kFirst), 500);
  EXPECT_EQ(sent().at(0).payload.size(), 100u);  // packet 0 comes unasked, in the session's own size
  const auto ask_for = [&](uint8_t code, uint32_t first, uint32_t count) {
    return receive(coded(client_header(Kind::kRfr, kFirst, first, count), code)).drop;
  };
  EXPECT_EQ(ask_for(16, 1, 2), Drop::kNone);
  auto packets = sent();
  ASSERT_EQ(packets.size(), 2u);
  const OwnedBuffer whole = make_buffer(500);
  for (size_t i = 0; i < 2; i++) {
    EXPECT_TRUE(packets[i].header.is_large());
    EXPECT_EQ(packets[i].header.size_or_index(), i + 1);
    ASSERT_EQ(packets[i].payload.size(), i == 0 ? 256u : 144u);
    EXPECT_EQ(std::memcmp(packets[i].payload.data(), whole->data() + 100 + 256 * i, packets[i].payload.size()), 0);
  }
  EXPECT_EQ(ask_for(0, 4, 1), Drop::kNone);
  packets = sent();
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_FALSE(packets[0].header.is_large());
  EXPECT_EQ(packets[0].payload.size(), 100u);
  EXPECT_EQ(ask_for(16, 0, 1), Drop::kNone);  // packet 0 is not divided otherwise
  packets = sent();
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_FALSE(packets[0].header.is_large());
  EXPECT_EQ(packets[0].payload.size(), 100u);

  EXPECT_EQ(ask_for(16, 3, 1), Drop::kStale);  // beyond the end: packet 0 says the size
  EXPECT_EQ(only_answer().size_or_index(), 500u);
  for (const uint8_t code : {7, 10, 18, 255}) {
    EXPECT_EQ(ask_for(code, 1, 1), Drop::kMalformed);
    EXPECT_EQ(only_answer().kind(), Kind::kCr);
  }
}

TEST_F(ServerSessionTest, large_path_probes_are_answered_in_an_open_session_that_takes_them) {
  const auto probe = [&] { return path_probe(kSessionToken, kFirst); };
  expect_no_effect(probe(), 128, Drop::kMalformed);
  pools_.large_payload_bytes = 300;
  expect_no_effect(probe(), 301, Drop::kMalformed);
  expect_no_effect(path_probe(kSessionToken + 1, kFirst), 300, Drop::kUnproven);
  expect_no_effect(path_probe(kSessionToken, kFirst + 64), 300, Drop::kUnproven);
  EXPECT_EQ(drop_of(probe(), 300), Drop::kNone);
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(packets[0].header.kind(), Kind::kPathReply);
  EXPECT_EQ(packets[0].payload.size(), 300u);
  make();
  EXPECT_EQ(drop_of(probe(), 300), Drop::kMalformed);  // the session does not open with it
  EXPECT_FALSE(session_->is_open());
}

// A server that had no CPU for a while reads all of a search at once.
TEST_F(ServerSessionTest, the_largest_of_the_waiting_path_probes_is_answered) {
  pools_.large_payload_bytes = 300;
  wire::Header last;
  for (const uint32_t bytes : {300u, 300u, 200u, 128u}) {
    const wire::Header probe = path_probe(kSessionToken, kFirst);
    if (bytes == 300) last = probe;
    EXPECT_EQ(drop_of(probe, bytes), Drop::kNone);
  }
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(packets[0].header.kind(), Kind::kPathReply);
  EXPECT_EQ(packets[0].payload.size(), 300u);
  EXPECT_EQ(packets[0].header.echo(), last.number());
  EXPECT_EQ(drop_of(path_probe(kSessionToken, kFirst), 128), Drop::kNone);
  ASSERT_EQ(sent().at(0).payload.size(), 128u);
}

// ---- Requests of the past and the future ----

TEST_F(ServerSessionTest, request_of_the_past_the_present_and_the_future) {
  begin(kFirst);
  cancel(kFirst);
  sent();
  ServerSlot* slot = begin(kFirst + 64);
  expect_no_effect(request(kFirst, 10), 10, Drop::kStale);
  EXPECT_EQ(drop_of(request(kFirst + 64, 10), 10), Drop::kStale);
  EXPECT_EQ(only_answer().kind(), Kind::kCr);
  // A new request arrives while the last one runs: the client must have given up the last one.
  int call = 0;
  slot->call = &call;
  EXPECT_EQ(begin(kFirst + 128), slot);
  EXPECT_EQ(offers_.abandoned, std::vector<void*>{&call});
  respond(slot, 1);
  EXPECT_EQ(only_answer().request_number(), kFirst + 128);
  EXPECT_EQ(drop_of(request(kFirst + 128, 10), 10), Drop::kStale);
  EXPECT_EQ(only_answer().kind(), Kind::kResponse);
  cancel(kFirst + 128);
  sent();
  EXPECT_EQ(drop_of(request(kFirst + 128, 10), 10), Drop::kStale);  // the request will never run
}

TEST_F(ServerSessionTest, request_numbers_are_taken_without_a_gap) {
  for (const uint32_t number : {kFirst + 64, kFirst + (1u << 30), kFirst + (1u << 31) - 128}) {
    expect_no_effect(request(number, 10), 10, Drop::kUnproven);  // a guessed number gets no answer
    expect_no_effect(request(number, 500, 1), 100, Drop::kUnproven);
  }
  EXPECT_NE(begin(kFirst), nullptr);
}

TEST_F(ServerSessionTest, duplicates_and_late_packets_are_not_admitted) {
  const auto header = probe(kFirst);
  EXPECT_EQ(drop_of(header, 0), Drop::kNone);
  EXPECT_EQ(drop_of(header, 0), Drop::kStale);
  client_number_ = 400;
  EXPECT_EQ(drop_of(probe(kFirst), 0), Drop::kNone);
  client_number_ = 401 - 256;
  EXPECT_EQ(drop_of(probe(kFirst), 0), Drop::kNone);
  client_number_ = 401 - 257;
  EXPECT_EQ(drop_of(probe(kFirst), 0), Drop::kStale);
}

TEST_F(ServerSessionTest, packet_after_a_gap_counts_as_lost_without_memory) {
  client_number_++;  // a lost packet
  const auto headers = {probe(kFirst), request(kFirst, 10), client_header(Kind::kCancel, kFirst, 0, kSessionToken),
                        path_probe(kSessionToken, kFirst)};
  for (const wire::Header& header : headers) {
    const auto payload = bytes_of(kPayloadMax);
    const uint32_t bytes = header.kind() == Kind::kRequest ? 10 : header.kind() == Kind::kPathProbe ? kPayloadMax : 0;
    has_memory = false;
    const ServerVerdict verdict = session_->on_packet(header, {payload.data(), bytes, nullptr, 0}, now_, offers_);
    has_memory = true;
    EXPECT_EQ(verdict.drop, Drop::kNoMemory);
    EXPECT_EQ(verdict.started, nullptr);
    EXPECT_FALSE(session_->wants_to_send());
    EXPECT_FALSE(session_->has_received(header));
  }
  EXPECT_EQ(session_->slot(0), nullptr);
  for (const wire::Header& header : headers) {
    EXPECT_EQ(receive(header, header.kind() == Kind::kRequest ? 10 : 0).drop, Drop::kNone);
    EXPECT_TRUE(session_->has_received(header));
  }
  sent();
}

/// A session that has had only packets that most sessions get.
class FirstRarePacket : public ServerSessionTest {
 protected:
  FirstRarePacket() {
    pools_.large_payload_bytes = 300;
    respond(begin(kFirst), 300);
    cancel(kFirst | 1);
    receive(path_probe(kSessionToken, kFirst), kPayloadMax);
    receive(probe(kFirst | 2, true));
    EXPECT_EQ(sent().size(), 4u);
    EXPECT_EQ(pools_.extras.taken(), 0u);
  }
  void expect_lost_without_memory(const wire::Header& header, uint32_t payload_bytes) {
    const auto bytes = bytes_of(payload_bytes);
    has_memory = false;
    const ServerVerdict verdict = receive(header, {bytes.data(), payload_bytes, nullptr, 0});
    has_memory = true;
    EXPECT_EQ(verdict.drop, Drop::kNoMemory);
    EXPECT_EQ(verdict.started, nullptr);
    EXPECT_TRUE(sent().empty());
    EXPECT_FALSE(session_->has_received(header));
    EXPECT_EQ(drop_of(header, payload_bytes), Drop::kNone);
    EXPECT_EQ(pools_.extras.taken(), 1u);
  }
};

TEST_F(FirstRarePacket, of_a_long_request_counts_as_lost_without_memory) {
  expect_lost_without_memory(request(kFirst | 3, 150), 100);
  EXPECT_EQ(only_answer().kind(), Kind::kCr);
}

TEST_F(FirstRarePacket, that_permits_a_whole_response_counts_as_lost_without_memory) {
  wire::Header asking = coded(request(kFirst | 3, 10), 16);
  asking.add_flags(wire::kTakesWhole);
  expect_lost_without_memory(asking, 10);
  respond(session_->slot(3), 200);
  EXPECT_EQ(sent().at(0).payload.size(), 200u);
  EXPECT_EQ(session_->long_bytes_sent(), 200u);
}

TEST_F(FirstRarePacket, that_asks_for_a_range_counts_as_lost_without_memory) {
  expect_lost_without_memory(client_header(Kind::kRfr, kFirst, 1, 2), 0);
  EXPECT_EQ(sent().size(), 2u);
  EXPECT_EQ(session_->long_bytes_sent(), 300u);
}

TEST_F(FirstRarePacket, from_another_address_counts_as_lost_without_memory) {
  expect_lost_without_memory(paired_probe(kPathToken), 0);
  const uint32_t echo = client_number_;
  EXPECT_EQ(pair_reply(111).echo(), echo);
  for (int i = 0; i < 2; i++) EXPECT_TRUE(receive(paired_probe(kPathToken)).wants_pair);  // the lost one did not count
  expect_no_effect(paired_probe(kPathToken), 0, Drop::kStale);
}

TEST_F(ServerSessionTest, unproven_packet_after_a_gap_takes_no_memory) {
  client_number_++;  // a lost packet
  expect_no_effect(client_header(Kind::kProbe, kFirst, 0, kSessionToken + 1), 0, Drop::kUnproven);
  expect_no_effect(request(kFirst + 128, 10), 10, Drop::kUnproven);
  expect_no_effect(path_probe(kSessionToken + 1, kFirst), kPayloadMax, Drop::kUnproven);
  EXPECT_EQ(pools_.number_bits.taken(), 0u);
  EXPECT_EQ(drop_of(probe(kFirst), 0), Drop::kNone);
  EXPECT_EQ(pools_.number_bits.taken(), 1u);
}

TEST_F(ServerSessionTest, retransmission_of_a_running_request_is_acknowledged_of_an_answered_one_answered_again) {
  ServerSlot* slot = begin(kFirst);
  EXPECT_TRUE(sent().empty());
  EXPECT_EQ(drop_of(request(kFirst, 10), 10), Drop::kStale);
  EXPECT_EQ(only_answer().kind(), Kind::kCr);
  respond(slot, 7);
  EXPECT_EQ(sent().size(), 1u);
  now_ += 1000;
  EXPECT_EQ(drop_of(request(kFirst, 10), 10), Drop::kStale);
  const auto again = only_answer();
  EXPECT_EQ(again.kind(), Kind::kResponse);
  EXPECT_EQ(again.echo(), client_number_);
  EXPECT_EQ(again.hold_code(), 0);
}

TEST_F(ServerSessionTest, new_request_on_the_slot_drops_what_the_old_one_had_to_send) {
  ServerSlot* slot = begin(kFirst);
  respond(slot, 500);
  sent();
  EXPECT_TRUE(ask(kFirst, 1, 4));
  receive(probe(kFirst));
  // The next request takes the general path, which discards the ranges.
  EXPECT_EQ(session_->try_begin(request(kFirst + 64, 10), 10, now_), nullptr);
  client_number_--;
  begin(kFirst + 64);
  EXPECT_TRUE(sent().empty());
}

TEST_F(ServerSessionTest, failure_is_answered_with_its_code_and_app_code) {
  ServerSlot* slot = begin(kFirst);
  session_->fail(slot, wire::FailureCode::kOverloaded, 0xabcd);
  for (int i = 0; i < 2; i++) {
    const auto packets = sent();
    ASSERT_EQ(packets.size(), 1u);
    EXPECT_EQ(packets[0].header.flags(), wire::kFirst | wire::kFailure);
    EXPECT_EQ(packets[0].header.size_or_index(), 6u << 16 | 0xabcd);
    EXPECT_TRUE(packets[0].payload.empty());
    receive(request(kFirst, 10), 10);
  }
}

// ---- Long requests ----

TEST_F(ServerSessionTest, long_request_in_any_order_keeps_the_deadline_of_its_first_packet) {
  const uint32_t left = wire::encode_time_left(10'000'000);
  ServerVerdict verdict;
  for (uint32_t index : {2u, 0u, 1u}) {
    const std::vector<std::byte> bytes(index == 2 ? 50 : 100, static_cast<std::byte>(index + 1));
    verdict =
        receive(request(kFirst, 250, index, left), {bytes.data(), static_cast<uint32_t>(bytes.size()), nullptr, 0});
    EXPECT_TRUE(verdict.is_part);
    if (index == 1) break;
    EXPECT_EQ(verdict.started, nullptr);
    now_ += 1'000'000;
    EXPECT_EQ(drop_of(request(kFirst, 250, index), index == 2 ? 50 : 100), Drop::kStale);
    EXPECT_EQ(drop_of(request(kFirst, 251, 1), 100), Drop::kStale);  // contradicts the size in the first packet
    EXPECT_EQ(offers_.arriving_bytes, 250u);
  }
  ServerSlot* slot = verdict.started;
  ASSERT_NE(slot, nullptr);
  EXPECT_TRUE(verdict.was_assembled);
  EXPECT_EQ(slot->phase, Phase::kRunning);
  // Packet 0 arrived at 1 ms with 10 ms left. The last packet arrived at 2 ms, which is received_ns.
  EXPECT_EQ(wire::decode_time_left(slot->deadline_code), 9'000'000u);
  const OwnedBuffer whole(verdict.message);
  for (uint32_t i = 0; i < 250; i++) EXPECT_EQ(whole->data()[i], static_cast<std::byte>(i / 100 + 1));
  offers_.arriving_bytes -= 250;
}

TEST_F(ServerSessionTest, part_with_a_lost_lease_is_not_marked) {
  const auto header = request(kFirst, 150, 1);
  EXPECT_EQ(receive(header, torn(bytes_of(50))).drop, Drop::kLease);
  EXPECT_EQ(session_->slot(0)->phase, Phase::kReceiving);
  EXPECT_TRUE(receive(header, 50).is_part);  // the packet was still missing, and its number did not count as received
}

TEST_F(ServerSessionTest, short_request_with_a_lost_lease_is_not_begun) {
  begin(kFirst);
  const auto bytes = bytes_of(50);
  const auto header = request(kFirst + 64, 50);
  EXPECT_EQ(receive(header, torn(bytes)).drop, Drop::kLease);
  EXPECT_EQ(session_->slot(0)->request_number, kFirst);
  EXPECT_EQ(session_->slot(0)->phase, Phase::kRunning);
  EXPECT_NE(receive(header, 50).started, nullptr);
}

TEST_F(ServerSessionTest, requests_without_memory_fail_and_take_their_number) {
  offers_.buffer_bytes_max = 100;
  offers_.refusal = wire::FailureCode::kTooLarge;
  const auto is_refused = [&](uint32_t number) {
    const auto answer = only_answer();
    return answer.request_number() == number &&
           answer.size_or_index() >> 16 == static_cast<uint32_t>(wire::FailureCode::kTooLarge);
  };
  EXPECT_EQ(receive(request(kFirst, 150), 100).started, nullptr);
  EXPECT_TRUE(is_refused(kFirst));
  EXPECT_NE(begin(kFirst + 64), nullptr);  // a short request needs no buffer
  offers_.buffer_bytes_max = 10;
  const auto bytes = bytes_of(50);
  EXPECT_EQ(receive(request(kFirst + 128, 50), torn(bytes)).started, nullptr);  // a request by reference
  EXPECT_TRUE(is_refused(kFirst + 128));
}

TEST_F(ServerSessionTest, a_request_that_gives_way_fails) {
  receive(request(kFirst, 250, 1), 100);
  sent();
  session_->give_up_arriving(session_->slot(0), offers_);
  EXPECT_EQ(offers_.arriving_bytes, 0u);
  EXPECT_EQ(only_answer().size_or_index() >> 16, static_cast<uint32_t>(wire::FailureCode::kNoMemory));
  EXPECT_EQ(drop_of(request(kFirst, 250, 2), 50), Drop::kStale);
  EXPECT_EQ(only_answer().flags(), wire::kFirst | wire::kFailure);
}

// ---- Credit returns ----

TEST_F(ServerSessionTest, credit_return_acknowledges_what_has_arrived) {
  for (uint32_t n : {2u, 5u}) {
    client_number_ = n - 1;
    receive(probe(kFirst));
  }
  now_ += 160;
  session_->owe_credit_return(session_->newest(), now_);  // the hold time is that of the newest packet
  now_ += 16;
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(packets[0].header.kind(), Kind::kCr);
  EXPECT_EQ(packets[0].header.echo(), 5u);
  EXPECT_EQ(wire::decode_hold(packets[0].header.hold_code()), 16u);
  ASSERT_EQ(packets[0].payload.size(), 32u);
  uint64_t word;
  std::memcpy(&word, packets[0].payload.data(), 8);
  EXPECT_EQ(word, uint64_t{0b10011} << 59);  // acknowledges 5, not 4 and 3, and 2 and 1 (the path probe)
}

// A turn with slow handlers reads the clock more than once. Its credit return echoes the largest number, which may be
// that of a later packet with its own answer. The hold time of the earlier packet would then make the later one's round
// trip too short.
TEST_F(ServerSessionTest, credit_return_with_the_number_of_a_later_packet_tells_no_hold_time) {
  begin(kFirst);
  session_->owe_credit_return(session_->newest(), now_);
  now_ += 100'000;
  respond(begin(kFirst + 1), 10);
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 2u);
  for (const TestPacket& packet : packets) {
    EXPECT_EQ(packet.header.echo(), client_number_);
    const bool is_cr = packet.header.kind() == Kind::kCr;
    EXPECT_EQ(packet.header.hold_code(), is_cr ? wire::kHoldTooLong : 0);
  }
}

// ---- Credit returns that wait for answers ----

TEST_F(ServerSessionTest, answers_in_order_make_credit_returns_unnecessary) {
  for (uint32_t i : {0u, 1u, 2u}) EXPECT_TRUE(hold(begin(kFirst | i)));
  EXPECT_FALSE(session_->wants_to_send());
  EXPECT_EQ(kinds_sent(), Kinds{});
  now_ += 160;
  respond(session_->slot(0), 10);
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(packets[0].header.kind(), Kind::kResponse);
  EXPECT_EQ(wire::decode_hold(packets[0].header.hold_code()), 160u);
  EXPECT_TRUE(session_->holds_return());
  EXPECT_EQ(session_->oldest_held() & wire::kNumberMask, 3u);  // 1 is the path probe
  respond(session_->slot(2), 10);
  respond(session_->slot(1), 10);
  EXPECT_EQ(kinds_sent(), (Kinds{Kind::kResponse, Kind::kResponse}));
  EXPECT_FALSE(session_->holds_return());
}

// Slots are taken in another order than their numbers, because a low slot is free again before a high one.
TEST_F(ServerSessionTest, answers_leave_in_the_order_of_the_packets) {
  respond(begin(kFirst), 10);
  sent();
  EXPECT_TRUE(hold(begin(kFirst | 1)));
  EXPECT_TRUE(hold(begin(kFirst + 64)));
  respond(session_->slot(0), 10);
  respond(session_->slot(1), 10);
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 2u);
  EXPECT_EQ(packets[0].header.request_number(), kFirst | 1);
  EXPECT_EQ(packets[1].header.request_number(), kFirst + 64);
  EXPECT_FALSE(session_->holds_return());
}

TEST_F(ServerSessionTest, failures_and_long_answers_in_order_make_credit_returns_unnecessary) {
  for (uint32_t i : {0u, 1u, 2u}) EXPECT_TRUE(hold(begin(kFirst | i)));
  session_->fail(session_->slot(0), wire::FailureCode::kApplication, 0);
  respond(session_->slot(1), 250);
  EXPECT_EQ(kinds_sent(), (Kinds{Kind::kResponse, Kind::kResponse}));
  EXPECT_TRUE(session_->holds_return());
  respond(session_->slot(2), 250);
  EXPECT_EQ(kinds_sent(), Kinds{Kind::kResponse});
  EXPECT_FALSE(session_->holds_return());
}

TEST_F(ServerSessionTest, a_credit_return_leaves_before_an_answer_that_overtakes) {
  const auto fail = [this] { session_->fail(session_->slot(1), wire::FailureCode::kApplication, 0); };
  const std::vector<std::pair<std::function<void()>, Kinds>> ways = {
      {[this] { respond(session_->slot(1), 10); }, {Kind::kCr, Kind::kResponse}},
      {fail, {Kind::kCr, Kind::kResponse}},
      {[this] { respond(session_->slot(1), 250); }, {Kind::kCr, Kind::kResponse}},
      {[this] { receive(probe(kFirst | 1)); }, {Kind::kCr}},
      {[this] { cancel(kFirst | 1); }, {Kind::kCancelled, Kind::kCr}},
      {[this] { report({}); }, {Kind::kCr}},
      {[this] { receive(path_probe(kSessionToken, kFirst), kPayloadMax); }, {Kind::kCr, Kind::kPathReply}},
      {[this] { respond(begin(kFirst | 2), 10); }, {Kind::kCr, Kind::kResponse}},
  };
  for (const auto& [way, kinds] : ways) {
    make();
    prove_path();
    EXPECT_TRUE(hold(begin(kFirst)));
    EXPECT_TRUE(hold(begin(kFirst | 1)));
    now_ += 5000;
    way();
    EXPECT_EQ(kinds_sent(), kinds);
    EXPECT_FALSE(session_->holds_return());
    respond(session_->slot(0), 10);  // is acknowledged already
    EXPECT_EQ(kinds_sent(), Kinds{Kind::kResponse});
    session_->end_all(offers_);
  }
}

// As the answers of a burst leave, until the transport takes no more.
TEST_F(ServerSessionTest, transmit_first__sends_the_answers_that_may_precede_a_credit_return) {
  for (uint32_t i : {0u, 1u, 2u, 3u}) EXPECT_TRUE(hold(begin(kFirst | i)));
  for (uint32_t i : {0u, 1u, 3u}) respond(session_->slot(i), 10);
  uint32_t space = 1;
  std::vector<uint32_t> answered;
  const auto send = [&](const wire::Header& header, const std::byte*, uint32_t, detail::Buffer*) {
    if (space == 0) return false;
    space--;
    EXPECT_EQ(header.number(), ++server_number_);
    answered.push_back(header.request_number());
    return true;
  };
  const auto transmit = [&] {
    const uint32_t count = session_->transmit_first(now_, kLimit, send, [] { return uint64_t{1}; });
    session_->check_invariants();
    return count;
  };
  EXPECT_EQ(transmit(), 1u);
  EXPECT_EQ(session_->oldest_held() & wire::kNumberMask, 3u);  // 1 is the path probe
  space = 10;
  EXPECT_EQ(transmit(), 1u);
  EXPECT_EQ(session_->oldest_held() & wire::kNumberMask, 4u);
  EXPECT_EQ(transmit(), 0u);  // slot 3 waits for slot 2
  respond(session_->slot(2), 10);
  EXPECT_EQ(transmit(), 2u);
  EXPECT_FALSE(session_->holds_return());
  EXPECT_EQ(answered, (std::vector<uint32_t>{kFirst, kFirst | 1, kFirst | 2, kFirst | 3}));
  EXPECT_TRUE(hold(begin(kFirst + 64)));
  receive(probe(kFirst + 64));  // a credit return is due
  respond(session_->slot(0), 10);
  EXPECT_EQ(transmit(), 0u);
  EXPECT_EQ(kinds_sent(), (Kinds{Kind::kCr, Kind::kResponse}));
}

TEST_F(ServerSessionTest, an_answer_to_an_acknowledged_request_does_not_end_a_wait) {
  begin(kFirst);
  session_->owe_credit_return(session_->newest(), now_);
  sent();
  EXPECT_TRUE(hold(begin(kFirst | 1)));
  respond(session_->slot(0), 10);
  EXPECT_EQ(kinds_sent(), Kinds{Kind::kResponse});
  EXPECT_TRUE(session_->holds_return());
  session_->return_held();
  EXPECT_EQ(kinds_sent(), Kinds{Kind::kCr});
}

TEST_F(ServerSessionTest, an_answer_at_once_is_none_while_a_credit_return_waits) {
  EXPECT_TRUE(hold(begin(kFirst)));
  ServerSlot* slot = begin(kFirst | 1);
  slot->response = make_buffer(10).release();
  EXPECT_FALSE(session_->try_answer(slot, 10, kLimit, [](auto&&...) {
    ADD_FAILURE();
    return false;
  }));
}

TEST_F(ServerSessionTest, a_credit_return_that_has_waited_tells_the_hold_time_of_the_newest_packet) {
  EXPECT_TRUE(hold(begin(kFirst)));
  now_ += 1600;
  EXPECT_TRUE(hold(begin(kFirst | 1)));
  now_ += 320;
  session_->return_held();
  const auto answer = only_answer();
  EXPECT_EQ(answer.kind(), Kind::kCr);
  EXPECT_EQ(answer.echo(), client_number_);
  EXPECT_EQ(wire::decode_hold(answer.hold_code()), 320u);
}

TEST_F(ServerSessionTest, a_late_cancel_of_the_newest_request_leaves_its_hold_time) {
  client_number_++;
  EXPECT_TRUE(hold(begin(kFirst)));
  now_ += 320;
  client_number_ -= 2;
  cancel(kFirst);
  client_number_++;
  now_ += 160;
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 2u);
  EXPECT_EQ(packets[0].header.kind(), Kind::kCancelled);
  EXPECT_EQ(packets[1].header.kind(), Kind::kCr);
  EXPECT_EQ(packets[1].header.echo(), client_number_);
  EXPECT_EQ(wire::decode_hold(packets[1].header.hold_code()), 480u);
}

// Otherwise the client would take no sample, and would not see the mark.
TEST_F(ServerSessionTest, a_credit_return_before_the_answer_to_a_marked_packet_tells_its_hold_time) {
  EXPECT_TRUE(hold(begin(kFirst)));
  now_ += 320;
  respond(receive_marked(request(kFirst | 1, 10), 10).started, 10);
  now_ += 160;
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 2u);
  EXPECT_EQ(packets[0].header.kind(), Kind::kCr);
  EXPECT_EQ(packets[0].header.flags(), wire::kEcnEcho);
  EXPECT_EQ(wire::decode_hold(packets[0].header.hold_code()), 160u);
}

TEST_F(ServerSessionTest, a_credit_return_that_has_waited_tells_the_hold_time_of_any_newest_packet) {
  const std::vector<std::function<void()>> newest = {
      [this] { receive(probe(kFirst)); },
      [this] { receive(request(kFirst | 1, 150), 100); },  // a part
      [this] { report({}); },
  };
  for (const auto& packet : newest) {
    make();
    prove_path();
    EXPECT_TRUE(hold(begin(kFirst)));
    now_ += 320;
    packet();
    now_ += 160;
    const auto answer = only_answer();
    EXPECT_EQ(answer.kind(), Kind::kCr);
    EXPECT_EQ(answer.echo(), client_number_);
    EXPECT_EQ(wire::decode_hold(answer.hold_code()), 160u);
    session_->end_all(offers_);
  }
}

// Their own time would be the hold time of the newest packet then.
TEST_F(ServerSessionTest, late_packets_do_not_change_the_hold_time_of_one_that_waits) {
  client_number_ += 2;
  EXPECT_TRUE(hold(begin(kFirst)));
  now_ += 320;
  client_number_ -= 3;
  for (uint32_t i : {1u, 2u}) {
    const ServerSlot* late = begin(kFirst | i);
    EXPECT_FALSE(session_->try_hold(late, 64));
    session_->owe_credit_return(late->echo, now_);
  }
  client_number_++;
  now_ += 160;
  const auto answer = only_answer();
  EXPECT_EQ(answer.kind(), Kind::kCr);
  EXPECT_EQ(answer.echo(), client_number_);
  EXPECT_EQ(wire::decode_hold(answer.hold_code()), 480u);
}

TEST_F(ServerSessionTest, packets_that_wait_may_have_a_gap) {
  EXPECT_TRUE(hold(begin(kFirst)));
  client_number_++;  // is lost
  EXPECT_TRUE(hold(begin(kFirst | 1)));
  respond(session_->slot(0), 10);
  EXPECT_EQ(kinds_sent(), Kinds{Kind::kResponse});
  respond(session_->slot(1), 10);
  EXPECT_EQ(kinds_sent(), (Kinds{Kind::kCr, Kind::kResponse}));
  EXPECT_FALSE(session_->holds_return());
}

TEST_F(ServerSessionTest, no_credit_return_waits_that_the_client_needs) {
  EXPECT_FALSE(hold(receive_marked(request(kFirst, 10), 10).started));  // the mark is to be echoed
  EXPECT_EQ(kinds_sent(), Kinds{Kind::kCr});
  EXPECT_TRUE(hold(begin(kFirst | 2), 3));  // one of three credits
  EXPECT_FALSE(hold(begin(kFirst | 3), 3));
  EXPECT_EQ(kinds_sent(), Kinds{Kind::kCr});
  EXPECT_FALSE(session_->holds_return());
}

TEST_F(ServerSessionTest, an_answer_that_the_transport_refuses_ends_no_wait) {
  EXPECT_TRUE(hold(begin(kFirst)));
  respond(session_->slot(0), 10);
  uint32_t packets = 0;
  const auto refuse = [](const wire::Header&, const std::byte*, uint32_t, detail::Buffer*) { return false; };
  EXPECT_EQ(session_->transmit(
                now_, kLimit, refuse, [] { return 1u; }, packets),
            ServerSession::Turn::kRefused);
  EXPECT_TRUE(session_->holds_return());
  EXPECT_EQ(kinds_sent(), Kinds{Kind::kResponse});
  EXPECT_FALSE(session_->holds_return());
}

// ---- Probes and ranges ----

TEST_F(ServerSessionTest, probes_of_every_kind) {
  const auto answer_to = [&](uint32_t request_number) {
    EXPECT_EQ(drop_of(probe(request_number), 0), Drop::kNone);
    return only_answer();
  };
  EXPECT_EQ(answer_to(kFirst).kind(), Kind::kCr);  // the request has not arrived
  ServerSlot* slot = begin(kFirst);
  EXPECT_EQ(answer_to(kFirst).kind(), Kind::kCr);  // the request runs
  respond(slot, 300);
  sent();
  const auto again = answer_to(kFirst);
  EXPECT_EQ(again.kind(), Kind::kResponse);
  EXPECT_EQ(again.echo(), client_number_);
  EXPECT_EQ(answer_to(kFirst - 64).flags(), wire::kFirst | wire::kFailure);  // this request is past, and will never run
  EXPECT_EQ(answer_to(kFirst | 63).kind(), Kind::kCr);                       // the slot does not exist
}

// A client whose request was acknowledged is told if the server does not have it, so that it does not wait for ever.
// The slot then counts the request as received, because the next request would otherwise leave a gap.
TEST_F(ServerSessionTest, probes_for_an_acknowledged_request_that_is_not_here) {
  const auto is_lost = [&](uint32_t request_number) {
    receive(probe(request_number, true));
    const auto answer = only_answer();
    if (answer.kind() != Kind::kResponse) return false;
    EXPECT_EQ(answer.flags(), wire::kFirst | wire::kFailure);
    EXPECT_EQ(answer.request_number(), request_number);
    EXPECT_EQ(answer.echo(), client_number_);
    return answer.size_or_index() >> 16 == static_cast<uint32_t>(wire::FailureCode::kLost);
  };
  EXPECT_TRUE(is_lost(kFirst));  // the request never arrived
  EXPECT_EQ(drop_of(request(kFirst, 10), 10), Drop::kStale);
  sent();
  ServerSlot* slot = begin(kFirst + 64);
  EXPECT_FALSE(is_lost(kFirst + 64));  // the request runs
  EXPECT_TRUE(is_lost(kFirst + 128));  // the request never arrived, and no client waits for the running one
  EXPECT_EQ(begin(kFirst + 192), slot);
  cancel(kFirst + 192);
  sent();
  EXPECT_TRUE(is_lost(kFirst + 192));
  // This request is past. Either a damaged packet moved the slot on, and its client would wait for ever, or the probe
  // is late, and no client waits.
  EXPECT_TRUE(is_lost(kFirst + 128));
}

TEST_F(ServerSessionTest, a_probe_beyond_the_next_request_is_answered_with_a_failure) {
  begin(kFirst);
  EXPECT_EQ(drop_of(probe(kFirst + 128), 0), Drop::kMalformed);
  const auto answer = only_answer();
  EXPECT_EQ(answer.kind(), Kind::kResponse);
  EXPECT_EQ(answer.flags(), wire::kFirst | wire::kFailure);
  EXPECT_EQ(answer.request_number(), kFirst + 128);
  EXPECT_EQ(answer.size_or_index() >> 16, static_cast<uint32_t>(wire::FailureCode::kLost));
}

// One of these answers is due at a time.
TEST_F(ServerSessionTest, a_path_reply_goes_before_the_answer_that_a_request_is_lost) {
  begin(kFirst);
  receive(probe(kFirst + 128));
  receive(path_probe(kSessionToken, kFirst), kPayloadMax);
  const auto reply = sent();
  ASSERT_EQ(reply.size(), 1u);
  expect_full_path_reply(reply[0], client_number_);
  receive(path_probe(kSessionToken, kFirst), kPayloadMax);
  const uint32_t echo = client_number_;
  receive(probe(kFirst + 128));
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 2u);
  EXPECT_EQ(packets[0].header.kind(), Kind::kCr);
  expect_full_path_reply(packets[1], echo);
  receive(probe(kFirst + 128));  // the client asks again
  EXPECT_EQ(only_answer().flags(), wire::kFirst | wire::kFailure);
}

TEST_F(ServerSessionTest, ranges_of_a_response) {
  ServerSlot* slot = begin(kFirst);
  respond(slot, 450);
  EXPECT_EQ(sent().at(0).payload.size(), 100u);
  EXPECT_TRUE(ask(kFirst, 2, 3));
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 3u);
  for (uint32_t i = 0; i < 3; i++) {
    EXPECT_EQ(packets[i].header.flags(), 0);
    EXPECT_EQ(packets[i].header.size_or_index(), 2 + i);
    EXPECT_EQ(packets[i].header.echo(), client_number_);
    EXPECT_EQ(packets[i].payload.size(), i == 2 ? 50u : 100u);
    EXPECT_EQ(packets[i].payload[0], static_cast<std::byte>((200 + 100 * i) * 7 + 1));
  }
  EXPECT_EQ(slot->response_ticket, ticket_);
}

TEST_F(ServerSessionTest, ranges_that_contradict_the_response_bring_a_credit_return) {
  const auto brings_credit_return = [&](uint32_t request_number, uint32_t index, uint32_t count) {
    return !ask(request_number, index, count) && only_answer().kind() == Kind::kCr;
  };
  ServerSlot* slot = begin(kFirst);
  EXPECT_TRUE(brings_credit_return(kFirst, 1, 1));  // the request runs
  respond(slot, 450);
  sent();
  EXPECT_TRUE(brings_credit_return(kFirst, 1, 0));
  EXPECT_TRUE(brings_credit_return(kFirst, 1, kRfrPacketsMax + 1));
  EXPECT_TRUE(brings_credit_return(kFirst, 1, 0x7fffffff));
  for (const uint32_t other : {kFirst + 64, kFirst - 64, kFirst | 1, kFirst | 60}) {
    expect_no_effect(client_header(Kind::kRfr, other, 1, 1), 0, Drop::kUnproven);
  }
  begin(kFirst | 1);
  session_->fail(session_->slot(1), wire::FailureCode::kApplication, 0);
  sent();
  EXPECT_FALSE(ask(kFirst | 1, 0, 1));  // a failure has no packets, so it is sent again
  EXPECT_EQ(only_answer().flags(), wire::kFirst | wire::kFailure);
}

// The client has accepted a damaged packet 0, and would ask for parts that do not exist for ever.
TEST_F(ServerSessionTest, a_range_beyond_the_response_brings_packet_0_which_says_its_size) {
  ServerSlot* slot = begin(kFirst);
  respond(slot, 450);
  sent();
  for (const uint32_t first : {4u, 5u, uint32_t{wire::kIndexMask}}) {
    EXPECT_FALSE(ask(kFirst, first, 2));
    const wire::Header answer = only_answer();
    EXPECT_EQ(answer.kind(), Kind::kResponse);
    EXPECT_EQ(answer.flags(), wire::kFirst);
    EXPECT_EQ(answer.size_or_index(), 450u);
    EXPECT_EQ(answer.echo(), client_number_);
  }
}

// A client that receives an answer takes earlier packets without an acknowledgement for overtaken.
TEST_F(ServerSessionTest, the_credit_return_leaves_before_the_responses_of_the_same_burst) {
  receive(request(kFirst, 450), 100);  // the first of five parts
  respond(begin(kFirst | 1), 10);
  begin(kFirst | 2);
  session_->fail(session_->slot(2), wire::FailureCode::kApplication, 0);
  std::vector<Kind> kinds;
  const auto send = [&](const wire::Header& header, const std::byte*, uint32_t, detail::Buffer*) {
    kinds.push_back(header.kind());
    return true;
  };
  const auto ticket = [] { return 1u; };
  EXPECT_EQ(session_->transmit_first(now_, kLimit, send, ticket), 0u);
  uint32_t packets = 0;
  while (session_->transmit(now_, kLimit, send, ticket, packets) == ServerSession::Turn::kSent) {
  }
  EXPECT_EQ(kinds, (std::vector<Kind>{Kind::kCr, Kind::kResponse, Kind::kResponse}));
}

TEST_F(ServerSessionTest, ranges_are_bounded) {
  respond(begin(kFirst), 450);
  sent();
  uint32_t taken = 0;
  for (int i = 0; i < 5000; i++) taken += ask(kFirst, 1, 4);
  EXPECT_EQ(taken, 256u);
}

// This sequence crashed servers: a response ends in the burst in which a range of it was requested, and the slot fails.
TEST_F(ServerSessionTest, ranges_end_with_their_response) {
  const auto cancel_it = [this](uint32_t number) { cancel(number); };
  const auto report_it = [this](uint32_t number) { report(numbers({number})); };
  const auto give_it_up = [this](uint32_t) { session_->give_up_response(session_->slot(0), offers_); };
  uint32_t number = kFirst;
  for (const std::function<void(uint32_t)>& end :
       {std::function<void(uint32_t)>(cancel_it), std::function<void(uint32_t)>(report_it),
        std::function<void(uint32_t)>(give_it_up)}) {
    respond(begin(number), 450);
    sent();
    EXPECT_TRUE(ask(number, 1, 4));
    end(number);
    receive(probe(number, true));
    for (const TestPacket& packet : sent()) {
      EXPECT_TRUE(packet.header.kind() != Kind::kResponse || packet.payload.empty());
    }
    number += 64;
  }
}

TEST_F(ServerSessionTest, range_of_a_response_that_gave_way_is_answered_with_a_failure) {
  respond(begin(kFirst), 450);
  sent();
  session_->give_up_response(session_->slot(0), offers_);
  EXPECT_EQ(offers_.responses_taken_back, 1u);
  EXPECT_TRUE(sent().empty());  // packet 0 had already left
  EXPECT_FALSE(ask(kFirst, 1, 2));
  EXPECT_EQ(only_answer().size_or_index() >> 16, static_cast<uint32_t>(wire::FailureCode::kNoMemory));
}

// ---- Congestion marks ----

TEST_F(ServerSessionTest, a_mark_is_echoed_once_by_the_next_packet_whatever_it_is) {
  const auto flags = [](const TestPacket& packet) { return packet.header.flags() & wire::kEcnEcho; };
  const auto marked = [&](const wire::Header& header, uint32_t payload_bytes = 0) {
    return receive_marked(header, payload_bytes);
  };
  const auto is_echoed_once = [&] {
    const auto packets = sent();
    ASSERT_EQ(packets.size(), 1u);
    EXPECT_NE(flags(packets[0]), 0);
    session_->owe_credit_return(session_->newest(), now_);
    EXPECT_EQ(flags(sent().at(0)), 0);
  };
  ServerSlot* slot = begin(kFirst, 10);
  marked(probe(kFirst));
  is_echoed_once();  // the credit return
  marked(request(kFirst, 10), 10);
  sent();
  respond(slot, 250);
  sent();
  marked(probe(kFirst));
  marked(probe(kFirst));
  is_echoed_once();  // the response
  marked(client_header(Kind::kRfr, kFirst, 1, 1));
  is_echoed_once();  // a later packet of the response
  session_->fail(marked(request(kFirst + 64, 10), 10).started, wire::FailureCode::kApplication, 1);
  is_echoed_once();  // the failure
  marked(client_header(Kind::kCancel, kFirst + 64, 0, kSessionToken));
  session_->owe_credit_return(session_->newest(), now_);
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 2u);
  EXPECT_EQ(packets[0].header.kind(), Kind::kCancelled);
  EXPECT_EQ(flags(packets[0]), 0);  // a kCancelled packet answers no packet
  EXPECT_NE(flags(packets[1]), 0);
  marked(client_header(Kind::kCancel, kFirst + 64, 0, kSessionToken));
  EXPECT_EQ(kinds_sent(), Kinds{Kind::kCancelled});
  EXPECT_FALSE(session_->wants_to_send()) << "a mark alone is no packet";
  respond(begin(kFirst + 128), 10);
  is_echoed_once();  // the next packet that can
  // A packet that proves nothing, or a report, causes no echo.
  marked(client_header(Kind::kProbe, kFirst, 0, kSessionToken ^ 1));
  marked(client_header(Kind::kReport, 0, 0, kSessionToken));
  session_->owe_credit_return(session_->newest(), now_);
  EXPECT_EQ(flags(sent().at(0)), 0);
}

// ---- Endings ----

TEST_F(ServerSessionTest, cancel_in_every_phase) {
  for (int phase = 0; phase < 6; phase++) {
    const uint32_t number = kFirst + 64 * static_cast<uint32_t>(phase);
    if (phase == 1) receive(request(number, 150), 100);
    sent();
    if (phase >= 2) begin(number);
    if (phase == 3 || phase == 4) respond(session_->slot(0), 300);
    if (phase == 4) {
      EXPECT_TRUE(ask(number, 1, 2));
    }
    if (phase == 5) session_->fail(session_->slot(0), wire::FailureCode::kApplication, 0);
    for (int again = 0; again < 2; again++) {
      cancel(number);
      EXPECT_EQ(session_->slot(0)->phase, Phase::kIdle);
      EXPECT_EQ(session_->slot(0)->response, nullptr);
      const auto answer = only_answer();
      EXPECT_EQ(answer.kind(), Kind::kCancelled);
      EXPECT_EQ(answer.request_number(), number);
      EXPECT_EQ(answer.flags(), wire::kNoEcho);
    }
    EXPECT_EQ(drop_of(request(number, 10), 10), Drop::kStale) << phase;  // the request will never run
    EXPECT_EQ(only_answer().kind(), Kind::kCr);
  }
}

// Damaged packets can make the two ends differ. A client that cancels a request that can never start here must get an
// answer, because it would otherwise ask for ever.
TEST_F(ServerSessionTest, cancel_of_the_past_and_of_the_impossible_is_answered) {
  begin(kFirst);
  cancel(kFirst);
  sent();
  begin(kFirst + 64);
  for (const uint32_t number : {kFirst, kFirst + 192, kFirst + 64 * 1000}) {
    cancel(number);
    const auto answer = only_answer();
    EXPECT_EQ(answer.kind(), Kind::kResponse);
    EXPECT_EQ(answer.flags(), wire::kFirst | wire::kFailure);
    EXPECT_EQ(answer.request_number(), number);
    EXPECT_EQ(answer.size_or_index() >> 16, static_cast<uint32_t>(wire::FailureCode::kLost));
    EXPECT_EQ(session_->slot(0)->phase, Phase::kRunning);
    EXPECT_EQ(session_->slot(0)->request_number, kFirst + 64);
  }
  cancel(kFirst | 4);  // no slot of the session
  EXPECT_EQ(only_answer().kind(), Kind::kCr);
}

// A request of the next number does this, too (clause 3.8).
TEST_F(ServerSessionTest, cancel_of_the_next_request_ends_one_that_still_runs) {
  ServerSlot* slot = begin(kFirst);
  int call = 0;
  slot->call = &call;
  cancel(kFirst + 64);
  EXPECT_EQ(offers_.abandoned, std::vector<void*>{&call});
  EXPECT_EQ(slot->request_number, kFirst + 64);
  EXPECT_EQ(only_answer().kind(), Kind::kCancelled);
  EXPECT_EQ(drop_of(request(kFirst + 64, 10), 10), Drop::kStale);
  sent();
  EXPECT_EQ(begin(kFirst + 128), slot);
}

TEST_F(ServerSessionTest, cancel_acknowledgement_never_names_the_next_request) {
  respond(begin(kFirst), 1);
  sent();
  cancel(kFirst);
  begin(kFirst + 64);  // the client received the answer meanwhile
  EXPECT_TRUE(sent().empty());
}

TEST_F(ServerSessionTest, cancels_of_several_slots_are_acknowledged_before_responses) {
  respond(begin(kFirst), 1);
  for (const uint32_t index : {3u, 1u, 2u}) cancel(kFirst | index);
  cancel(kFirst | 3);
  begin((kFirst | 2) + 64);
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 3u);
  for (size_t i = 0; i < 2; i++) EXPECT_EQ(packets[i].header.kind(), Kind::kCancelled);
  EXPECT_EQ(packets[0].header.request_number(), kFirst | 1);
  EXPECT_EQ(packets[1].header.request_number(), kFirst | 3);
  EXPECT_EQ(packets[2].header.request_number(), kFirst);
  EXPECT_NE(session_->try_begin(request((kFirst | 1) + 64, 10), 10, now_), nullptr) << "the common case again";
}

TEST_F(ServerSessionTest, report_frees_answered_slots_only) {
  ServerSlot* answered = begin(kFirst);
  respond(answered, 300);
  respond(begin(kFirst | 1), 5);
  begin(kFirst | 2);
  sent();
  EXPECT_TRUE(ask(kFirst, 1, 2));
  report(numbers({kFirst, (kFirst | 1) - 64, kFirst | 2, kFirst | 3, kFirst | 63}));
  EXPECT_EQ(offers_.responses_taken_back, 1u);
  EXPECT_EQ(answered->phase, Phase::kIdle);
  EXPECT_EQ(answered->response, nullptr);
  EXPECT_EQ(session_->slot(1)->phase, Phase::kResponded);
  const wire::Header answer = only_answer();
  EXPECT_EQ(answer.kind(), Kind::kCr) << "the client need not say it again";
  EXPECT_EQ(answer.echo(), client_number_);
}

TEST_F(ServerSessionTest, slots_give_their_memory_back_and_keep_their_numbers) {
  constexpr uint32_t kSecond = kFirst | 1;
  for (uint32_t round = 0; round < 3; round++) {
    for (uint32_t number : {kFirst, kSecond}) respond(begin(number + 64 * round), 10);
    sent();
    EXPECT_EQ(pools_.slots.taken(), 1u);
    report(numbers({kFirst + 64 * round, kSecond + 64 * round}));
    sent();
    EXPECT_EQ(session_->slot(1), nullptr);
    EXPECT_EQ(pools_.slots.taken(), 0u);
    EXPECT_EQ(pools_.slot_pairs.taken(), 0u);
    // Late packets of the last request run nothing and cost no credit.
    EXPECT_EQ(drop_of(request(kSecond + 64 * round, 10), 10), Drop::kStale);
    EXPECT_EQ(only_answer().kind(), Kind::kCr);
    receive(probe(kSecond + 64 * round));
    EXPECT_EQ(only_answer().kind(), Kind::kCr);
    EXPECT_FALSE(ask(kSecond + 64 * round, 1, 2));
    EXPECT_EQ(only_answer().kind(), Kind::kCr);
    EXPECT_EQ(session_->slot(1), nullptr);
    expect_no_effect(request(kSecond + 64 * (round + 2), 10), 10, Drop::kUnproven);
  }
}

TEST_F(ServerSessionTest, slots_beside_busy_ones_give_their_memory_back) {
  constexpr uint32_t kSecond = kFirst | 1, kFourth = kFirst | 3;
  respond(begin(kSecond), 10);
  begin(kFourth);
  sent();
  report(numbers({kSecond}));
  EXPECT_EQ(session_->slot(1), nullptr);
  EXPECT_EQ(pools_.slots.taken(), 1u);
  respond(session_->slot(3), 10);
  respond(begin(kSecond + 64), 10);
  EXPECT_EQ(sent().size(), 3u);
  report(numbers({kSecond + 64, kFourth}));
  EXPECT_EQ(pools_.slots.taken(), 0u);
  cancel(kFourth + 64);
  EXPECT_EQ(session_->slot(3)->phase, Phase::kIdle);
  EXPECT_EQ(begin(kFourth + 128)->request_number, kFourth + 128);
}

TEST_F(ServerSessionTest, responses_that_nobody_asks_for_are_given_up_in_time) {
  constexpr uint64_t kKeepNs = ServerSession::kKeepNs;
  ServerSlot* slot = begin(kFirst);
  EXPECT_TRUE(session_->forget_old(now_, 0, offers_)) << "there will be a response";
  respond(slot, 300);
  now_ += kKeepNs;
  EXPECT_TRUE(session_->forget_old(now_, 0, offers_)) << "it has not left";
  sent();
  EXPECT_TRUE(ask(kFirst, 1, 2));
  EXPECT_TRUE(session_->forget_old(now_ + kKeepNs, 0, offers_)) << "some of it is to leave";
  sent();
  EXPECT_TRUE(session_->forget_old(now_ + kKeepNs - 1, 0, offers_)) << "the client has asked for a range";
  now_ += kKeepNs - 1;
  receive(probe(kFirst, true));
  sent();
  EXPECT_TRUE(session_->forget_old(now_ + kKeepNs - 1, 0, offers_)) << "the client has probed";
  EXPECT_TRUE(session_->forget_old(now_ + kKeepNs, now_ + 1, offers_)) << "nobody looked for questions";
  EXPECT_EQ(offers_.responses_taken_back, 0u);
  EXPECT_FALSE(session_->forget_old(now_ + kKeepNs, now_, offers_));
  EXPECT_EQ(offers_.responses_taken_back, 1u);
  EXPECT_EQ(slot->phase, Phase::kIdle);
}

TEST_F(ServerSessionTest, a_request_whose_response_was_given_up_does_not_run_again) {
  const wire::Header first = request(kFirst, 10);
  receive(first, 10);
  respond(session_->slot(0), 5);
  sent();
  EXPECT_FALSE(session_->forget_old(now_ + ServerSession::kKeepNs, 0, offers_));
  const ServerVerdict again = receive(request(kFirst, 10), 10);
  EXPECT_EQ(again.started, nullptr);
  EXPECT_EQ(only_answer().kind(), Kind::kCr);
  receive(probe(kFirst, true));
  const wire::Header answer = only_answer();
  EXPECT_EQ(answer.kind(), Kind::kResponse);
  EXPECT_NE(answer.flags() & wire::kFailure, 0) << "and the call ends";
}

TEST_F(ServerSessionTest, requests_beyond_the_limit_of_those_given_up_keep_their_slots) {
  int calls[2];
  begin(kFirst)->call = &calls[0];
  begin(kFirst | 1)->call = &calls[1];
  offers_.abandoned_max = 1;
  cancel(kFirst);
  EXPECT_EQ(only_answer().kind(), Kind::kCancelled);
  ServerSlot* slot = session_->slot(1);
  // The request stays after its cancel, a cancel of the next request, the next request, and a probe for the next
  // request. A credit return tells the client that the server is alive.
  cancel(kFirst | 1);
  EXPECT_EQ(only_answer().kind(), Kind::kCr);
  cancel((kFirst | 1) + 64);
  EXPECT_EQ(only_answer().kind(), Kind::kCr);
  EXPECT_EQ(receive(request((kFirst | 1) + 64, 10), 10).started, nullptr);
  EXPECT_EQ(only_answer().kind(), Kind::kCr);
  EXPECT_EQ(receive(request((kFirst | 1) + 64, 300), kPayloadMax).started, nullptr);
  EXPECT_EQ(only_answer().kind(), Kind::kCr);
  receive(probe((kFirst | 1) + 64, true));
  EXPECT_EQ(only_answer().kind(), Kind::kCr);
  EXPECT_EQ(slot->phase, Phase::kRunning);
  EXPECT_EQ(slot->request_number, kFirst | 1);
  EXPECT_EQ(offers_.abandoned.size(), 1u);
  // The answer frees the slot at the client. A session that ends waits for no answer.
  slot->call = nullptr;
  respond(slot, 5);
  EXPECT_EQ(only_answer().kind(), Kind::kResponse);
  begin((kFirst | 1) + 64);
}

TEST_F(ServerSessionTest, malformed_reports) {
  const auto is_malformed = [&](const transport::Payload& payload) {
    return receive(client_header(Kind::kReport, 0, 0, kSessionToken), payload).drop == Drop::kMalformed;
  };
  const auto bytes = bytes_of(4 * wire::kSlotsMax + 4);
  EXPECT_TRUE(is_malformed({bytes.data(), 7, nullptr, 0}));
  EXPECT_TRUE(is_malformed({bytes.data(), 4 * wire::kSlotsMax + 4, nullptr, 0}));
  EXPECT_TRUE(is_malformed(torn(bytes_of(4))));
  EXPECT_FALSE(is_malformed({bytes.data(), 0, nullptr, 0}));
}

// ---- Proofs ----

TEST_F(ServerSessionTest, nothing_happens_without_the_token) {
  ServerSlot* slot = begin(kFirst);
  respond(slot, 450);
  sent();
  for (const uint32_t token : {0u, kPathToken, kSessionToken ^ 1, kSessionToken | 1u << 30}) {
    for (const Kind kind : {Kind::kProbe, Kind::kCancel, Kind::kReport}) {
      for (const uint32_t number : {kFirst, kFirst + 64, kFirst + 128}) {
        expect_no_effect(client_header(kind, number, 1, token), 0, Drop::kUnproven);
      }
    }
  }
  const auto answered = numbers({kFirst});
  EXPECT_EQ(receive(client_header(Kind::kReport, 0, 0, 0), {answered.data(), 4, nullptr, 0}).drop, Drop::kUnproven);
  EXPECT_EQ(slot->phase, Phase::kResponded);
}

// ---- The path ----

TEST_F(ServerSessionTest, path_probe_of_full_length_is_answered_in_full) {
  expect_no_effect(path_probe(kSessionToken, kFirst), kPayloadMax - 1, Drop::kMalformed);
  receive(path_probe(kSessionToken, kFirst), kPayloadMax);
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 1u);
  expect_full_path_reply(packets[0], client_number_);
}

// The client of an open session checks which lengths still pass (clause 6.4.2). Each probe gets one answer, which is no
// larger.
TEST_F(ServerSessionTest, path_probes_of_an_open_session_are_answered_in_their_own_length) {
  for (int i = 0; i < 100; i++) {
    EXPECT_EQ(receive(path_probe(kSessionToken, kFirst), kPayloadMax).drop, Drop::kNone);
    const auto full = sent();
    ASSERT_EQ(full.size(), 1u);
    EXPECT_EQ(full[0].header.kind(), Kind::kPathReply);
    EXPECT_EQ(full[0].header.echo(), client_number_);
    EXPECT_EQ(full[0].payload.size(), kPayloadMax);
    EXPECT_EQ(receive(path_probe(kSessionToken, kFirst)).drop, Drop::kNone);
    EXPECT_EQ(only_answer().kind(), Kind::kCr);
  }
  // Probes of both lengths in one burst get an answer of each length.
  receive(path_probe(kSessionToken, kFirst), kPayloadMax);
  receive(path_probe(kSessionToken, kFirst));
  EXPECT_EQ(sent().size(), 2u);
  expect_no_effect(path_probe(kSessionToken + 1, kFirst), kPayloadMax, Drop::kUnproven);
  expect_no_effect(path_probe(kSessionToken + 1, kFirst), 0, Drop::kUnproven);
}

TEST_F(ServerSessionTest, an_address_gets_three_headers_until_it_has_answered) {
  make();
  for (int i = 0; i < 3; i++) {
    EXPECT_EQ(drop_of(path_probe(kPathToken), 0), Drop::kNone);
    const auto packets = sent();
    ASSERT_EQ(packets.size(), 1u);
    EXPECT_EQ(packets[0].header.kind(), Kind::kPathReply);
    EXPECT_EQ(packets[0].header.request_number(), kFirst);
    EXPECT_EQ(packets[0].header.size_or_index(), kSessionToken);
    EXPECT_TRUE(packets[0].payload.empty());
  }
  expect_no_effect(path_probe(kPathToken), 0, Drop::kStale);
  // A client without a reply cannot ask for more, and no other packet of it is accepted.
  expect_no_effect(path_probe(kPathToken, kFirst), kPayloadMax, Drop::kUnproven);
  expect_no_effect(path_probe(kSessionToken, kFirst + 64), kPayloadMax, Drop::kUnproven);
  expect_no_effect(request(kFirst, 10), 10, Drop::kUnproven);
  expect_no_effect(probe(kFirst), 0, Drop::kUnproven);
  EXPECT_EQ(session_->try_begin(request(kFirst, 10), 10, now_), nullptr);
  client_number_--;
  prove_path();
  EXPECT_TRUE(session_->is_open());
  EXPECT_NE(begin(kFirst), nullptr);
}

/// try_begin() and try_answer() in the way of an endpoint whose answers leave at once.
TEST_F(ServerSessionTest, answer_at_once_leaves_with_the_next_number_and_is_kept) {
  begin(kFirst);  // creates the slot
  respond(session_->slot(0), 8);
  sent();
  const wire::Header header = request(kFirst + 64, 10);
  ASSERT_TRUE(is_whole_request(header, 10));
  EXPECT_FALSE(is_whole_request(header, 9)) << "not whole";
  ServerSlot* slot = session_->try_begin(header, 10, now_);
  ASSERT_NE(slot, nullptr);
  uint32_t offered = 0;
  wire::Header answer;
  const auto send = [&](bool takes) {
    return [&, takes](const wire::Header& its_header, const std::byte*, uint32_t bytes, detail::Buffer* buffer) {
      offered++;
      answer = its_header;
      EXPECT_EQ(bytes, 8u);
      EXPECT_EQ(buffer, slot->response);
      return takes;
    };
  };
  EXPECT_FALSE(session_->try_answer(slot, 8, kLimit, send(false))) << "the transport's queue is full";
  EXPECT_TRUE(ServerSession::is_busy(*slot));
  session_->check_invariants();
  EXPECT_TRUE(session_->try_answer(slot, 8, kLimit, send(true)));
  EXPECT_EQ(offered, 2u);
  EXPECT_EQ(answer.kind(), Kind::kResponse);
  EXPECT_EQ(answer.number(), ++server_number_);
  EXPECT_EQ(answer.request_number(), kFirst + 64);
  EXPECT_EQ(answer.echo(), client_number_);
  EXPECT_EQ(answer.credit_limit(), kLimit);
  EXPECT_EQ(answer.size_or_index(), 8u);
  EXPECT_TRUE(sent().empty());
  // A probe brings the answer again.
  receive(probe(kFirst + 64));
  EXPECT_EQ(only_answer().size_or_index(), 8u);
}

TEST_F(ServerSessionTest, an_answer_that_cannot_leave_at_once_leaves_later_with_the_same_number) {
  begin(kFirst);
  respond(session_->slot(0), 8);
  sent();
  ServerSlot* slot = session_->try_begin(request(kFirst + 64, 10), 10, now_);
  ASSERT_NE(slot, nullptr);
  const auto is_full = [](const wire::Header&, const std::byte*, uint32_t, detail::Buffer*) { return false; };
  EXPECT_FALSE(session_->try_answer(slot, 8, kLimit, is_full));
  EXPECT_EQ(slot->phase, ServerSlot::Phase::kRunning);
  slot->response_bytes = 6;
  session_->respond(slot);
  EXPECT_EQ(only_answer().size_or_index(), 6u);  // sent() checks the number
}

TEST_F(ServerSessionTest, a_burst_of_answers_passes_the_end_of_its_numbers_low_half) {
  make(4, static_cast<uint32_t>((uint64_t{1} << 32) - 3 - kNumberBase));
  prove_path();
  for (uint32_t i = 0; i < 4; i++) begin(kFirst | i);
  for (uint32_t i = 0; i < 4; i++) respond(session_->slot(i), 8);
  std::vector<uint32_t> numbers;
  const auto send = [&](const wire::Header& header, const std::byte*, uint32_t, detail::Buffer*) {
    numbers.push_back(header.number());
    return true;
  };
  EXPECT_EQ(session_->transmit_first(now_, kLimit, send, [] { return uint64_t{1}; }), 4u);
  EXPECT_EQ(numbers, (std::vector<uint32_t>{0xfffffe, 0xffffff, 0, 1}));
  EXPECT_EQ(session_->packets_sent(), 5u);  // with the path reply
}

TEST_F(ServerSessionTest, answer_at_once_waits_for_what_is_to_be_sent_before) {
  begin(kFirst);
  begin(kFirst | 1);
  respond(session_->slot(0), 8);  // this response waits in the queue
  respond(session_->slot(1), 8);
  const auto never = [](const wire::Header&, const std::byte*, uint32_t, detail::Buffer*) {
    ADD_FAILURE() << "sent out of turn";
    return true;
  };
  EXPECT_FALSE(session_->try_answer(session_->slot(1), 8, kLimit, never));
  EXPECT_EQ(sent().size(), 2u);
  EXPECT_FALSE(session_->try_answer(session_->slot(1), kPayloadMax + 1, kLimit, never)) << "more than one packet";
}

TEST_F(ServerSessionTest, a_window_above_eight_has_its_slots_once_the_path_is_proved) {
  make(64);
  for (const uint32_t index : {0u, 7u, 8u, 63u}) {
    EXPECT_EQ(session_->try_begin(request(kFirst | index, 10), 10, now_), nullptr);
    client_number_--;
    expect_no_effect(request(kFirst | index, 10), 10, Drop::kUnproven);
  }
  prove_path();
  for (const uint32_t index : {0u, 7u, 8u, 63u}) EXPECT_NE(begin(kFirst | index), nullptr);
}

// A session has pointers to the slots up to the last that it has used.
TEST_F(ServerSessionTest, slots_are_used_in_any_order) {
  make(64);
  prove_path();
  std::vector<ServerSlot*> slots;
  const std::vector<uint32_t> order = {1, 0, 2, 9, 8, 63, 31};
  for (const uint32_t index : order) {
    slots.push_back(begin(kFirst | index));
    ASSERT_EQ(session_->slot(index), slots.back());
    respond(slots.back(), 1);
  }
  EXPECT_EQ(sent().size(), order.size());
  for (size_t i = 0; i < order.size(); i++) {
    EXPECT_EQ(session_->slot(order[i]), slots[i]);
    EXPECT_EQ(session_->try_begin(request((kFirst | order[i]) + 64, 10), 10, now_), slots[i]);
    respond(slots[i], 1);
  }
  EXPECT_EQ(session_->slot(62), nullptr);
}

// ---- One address and port pair ----

TEST_F(ServerSessionTest, a_paired_path_is_proved_by_the_token_that_was_sent_to_it) {
  make();
  EXPECT_TRUE(receive(paired_probe(kPathToken)).wants_pair);
  const wire::Header reply = pair_reply(111);
  EXPECT_EQ(reply.kind(), Kind::kPathReply);
  EXPECT_EQ(reply.flags(), wire::kPaired);
  EXPECT_EQ(reply.echo(), client_number_);
  EXPECT_EQ(reply.size_or_index(), 111u);
  EXPECT_EQ(reply.request_number(), kFirst);
  // Neither token of the unpaired path is valid.
  for (const uint32_t token : {kPathToken, kSessionToken, 110u}) {
    expect_no_effect(paired_probe(token, kFirst), kPayloadMax, Drop::kUnproven);
  }
  expect_no_effect(paired_probe(111, kFirst + 64), kPayloadMax, Drop::kUnproven);
  const ServerVerdict verdict = receive(paired_probe(111, kFirst), kPayloadMax);
  EXPECT_TRUE(verdict.has_paired && verdict.has_opened);
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(packets[0].header.flags(), wire::kPaired);
  EXPECT_EQ(packets[0].header.size_or_index(), kSessionToken);
  EXPECT_EQ(packets[0].payload.size(), kPayloadMax);
  EXPECT_NE(begin(kFirst), nullptr);
}

TEST_F(ServerSessionTest, a_new_address_makes_the_token_of_the_one_before_worthless) {
  EXPECT_TRUE(receive(paired_probe(kPathToken)).wants_pair);
  pair_reply(111);
  EXPECT_TRUE(receive(paired_probe(kPathToken)).wants_pair);
  // A probe with the old token in the same burst has no effect, although the reply has not left yet.
  session_->owe_pair_reply(222);
  EXPECT_EQ(drop_of(paired_probe(111, kFirst), kPayloadMax), Drop::kUnproven);
  client_number_--;
  EXPECT_EQ(session_->pair_reply(kLimit).number(), ++server_number_);
  EXPECT_TRUE(receive(paired_probe(222, kFirst), kPayloadMax).has_paired);
  sent();
  // The answer may be lost, and the client then asks again.
  EXPECT_TRUE(receive(paired_probe(222, kFirst), kPayloadMax).has_paired);
  EXPECT_EQ(sent().size(), 1u);
}

TEST_F(ServerSessionTest, a_paired_probe_is_answered_before_others_whichever_comes_first) {
  EXPECT_TRUE(receive(paired_probe(kPathToken)).wants_pair);
  pair_reply(111);
  EXPECT_TRUE(receive(paired_probe(111, kFirst), kPayloadMax).has_paired);
  const uint64_t paired = client_number_;
  EXPECT_EQ(drop_of(path_probe(kSessionToken, kFirst), kPayloadMax), Drop::kNone);
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(packets[0].header.flags(), wire::kPaired);
  EXPECT_EQ(packets[0].header.echo(), paired);
}

TEST_F(ServerSessionTest, addresses_get_three_headers_together_until_one_has_answered) {
  make();
  EXPECT_EQ(drop_of(path_probe(kPathToken), 0), Drop::kNone);
  EXPECT_EQ(sent().size(), 1u);
  for (const uint32_t token : {111u, 222u}) {
    EXPECT_TRUE(receive(paired_probe(kPathToken)).wants_pair);
    pair_reply(token);
  }
  expect_no_effect(path_probe(kPathToken), 0, Drop::kStale);
  expect_no_effect(paired_probe(kPathToken), 0, Drop::kStale);
  // One address has answered: headers sent to it no longer count against the limit of three, but those to the others
  // do.
  EXPECT_TRUE(receive(paired_probe(222, kFirst), kPayloadMax).has_paired);
  sent();
  for (int i = 0; i < 10; i++) {
    EXPECT_TRUE(receive(paired_probe(kPathToken)).wants_pair);
    pair_reply(333 + i);
    EXPECT_TRUE(receive(paired_probe(333 + i, kFirst), kPayloadMax).has_paired);
    sent();
  }
  EXPECT_TRUE(receive(paired_probe(kPathToken)).wants_pair);
  pair_reply(444);
  expect_no_effect(paired_probe(kPathToken), 0, Drop::kStale);
  // Some seconds later an open session may follow its client again.
  now_ += 5'001'000'000;
  for (int i = 0; i < 3; i++) {
    EXPECT_TRUE(receive(paired_probe(kPathToken)).wants_pair);
    pair_reply(555 + i);
  }
  expect_no_effect(paired_probe(kPathToken), 0, Drop::kStale);
}

// The session keeps that time in 32 bits.
TEST_F(ServerSessionTest, the_limit_of_headers_ends_after_seconds_at_any_time) {
  now_ = ((uint64_t{1} << 32) - 1000) * 1'000'000;
  make();
  prove_path();
  for (int again = 0; again < 3; again++) {
    for (uint32_t i = 0; i < 3; i++) {
      EXPECT_TRUE(receive(paired_probe(kPathToken)).wants_pair);
      pair_reply(111 + i);
    }
    now_ += 4'999'999'999;
    expect_no_effect(paired_probe(kPathToken), 0, Drop::kStale);
    now_ += 1'000'001;
  }
}

// The session keeps that time in whole ms, and must not answer too early.
TEST_F(ServerSessionTest, the_limit_of_headers_lasts_for_five_seconds_from_any_part_of_a_millisecond) {
  now_ += 999'999;
  for (uint32_t i = 0; i < 3; i++) {
    EXPECT_TRUE(receive(paired_probe(kPathToken)).wants_pair);
    pair_reply(111 + i);
  }
  now_ += 4'999'000'001;
  expect_no_effect(paired_probe(kPathToken), 0, Drop::kStale);
  now_ += 2'000'000;
  EXPECT_TRUE(receive(paired_probe(kPathToken)).wants_pair);
  pair_reply(222);
}

TEST_F(ServerSessionTest, an_open_session_answers_no_short_probe_of_the_other_way) {
  expect_no_effect(path_probe(kPathToken), 0, Drop::kStale);
  expect_no_effect(paired_probe(kSessionToken), 0, Drop::kUnproven);
}

// ---- Refusals ----

TEST_F(ServerSessionTest, refused_packet_changes_nothing) {
  ServerSlot* slot = begin(kFirst);
  respond(slot, 300);
  sent();
  EXPECT_TRUE(ask(kFirst, 1, 2));
  receive(probe(kFirst));
  session_->owe_credit_return(session_->newest(), now_);
  respond(begin(kFirst | 1), 3);
  cancel(kFirst | 2);
  const auto refuse = [](const wire::Header&, const std::byte*, uint32_t, detail::Buffer*) { return false; };
  uint32_t packets = 0;
  for (int i = 0; i < 3; i++) {
    EXPECT_EQ(session_->transmit(
                  now_, kLimit, refuse, [] { return uint64_t{0}; }, packets),
              ServerSession::Turn::kRefused);
  }
  EXPECT_EQ(sent().size(), 6u);
}

#ifdef TERN_CHECKS_INVARIANTS
TEST_F(ServerSessionTest, answer_to_a_slot_at_rest_is_detected) {
  ServerSlot* slot = begin(kFirst);
  cancel(kFirst);
  EXPECT_DEATH(session_->respond(slot), "may_follow");
}
#endif

}  // namespace
}  // namespace tern::session
