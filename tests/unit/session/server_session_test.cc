#include "session/server_session.h"

#include <gtest/gtest.h>

#include "unit/session/session_parts.h"

namespace tern::session {
namespace {

using Phase = ServerSlot::Phase;
using wire::Kind;

constexpr uint32_t kPayloadMax = 100;
constexpr uint32_t kFirst = 1000 << wire::kSlotBits;  ///< request number of slot 0
constexpr uint8_t kLimit = 5;

class ServerSessionTest : public testing::Test {
 protected:
  ServerSessionTest() {
    ServerTerms terms;
    terms.local_key = 9;
    terms.remote_key = 7;
    terms.payload_bytes_max = kPayloadMax;
    terms.window = 4;
    terms.first_request_count = 1000;
    session_ = std::make_unique<ServerSession>(terms, pools_);
  }
  ~ServerSessionTest() override {
    for (uint32_t i = 0; i < session_->window(); i++) {
      if (session_->slot(i) != nullptr) end(session_->slot(i));
    }
    session_.reset();
    EXPECT_EQ(pools_.slots.taken(), 0u);
    EXPECT_EQ(pools_.assemblies.taken(), 0u);
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
  RequestVerdict classify(const wire::Header& header, uint32_t payload_bytes) {
    ServerSlot* slot = nullptr;
    const RequestVerdict verdict = session_->classify(header, payload_bytes, &slot);
    EXPECT_EQ(slot == nullptr, verdict == RequestVerdict::kMalformed);
    session_->check_invariants();
    return verdict;
  }
  ServerSlot* begin(uint32_t request_number, uint32_t bytes = 10) {
    const auto header = request(request_number, bytes);
    ServerSlot* slot = nullptr;
    EXPECT_EQ(session_->classify(header, bytes, &slot), RequestVerdict::kShort);
    const uint64_t number = session_->admit(header);
    EXPECT_NE(number, 0u);
    session_->begin(slot, header, number, now_);
    session_->note(number);
    session_->check_invariants();
    return slot;
  }
  void respond(ServerSlot* slot, uint32_t bytes) {
    BufferDeleter()(slot->response);
    slot->response = make_buffer(bytes).release();
    slot->response_bytes = bytes;
    session_->respond(slot);
    session_->check_invariants();
  }
  void end(ServerSlot* slot) {
    detail::Buffer* assembled = nullptr;
    session_->end_slot(slot, &assembled);
    BufferDeleter()(assembled);
    BufferDeleter()(slot->response);
    slot->response = nullptr;
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
  ServerSlot* cancel(uint32_t request_number) {
    const auto header = client_header(Kind::kCancel, request_number);
    return session_->on_cancel(header, receive(header), now_);
  }
  uint64_t receive(const wire::Header& header) {
    const uint64_t number = session_->admit(header);
    if (number != 0) session_->note(number);
    return number;
  }

  ServerPools pools_;
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
  EXPECT_EQ(classify(request(kFirst | 4, 10), 10), RequestVerdict::kMalformed);  // no such slot
  EXPECT_EQ(classify(request(kFirst, 10), 9), RequestVerdict::kMalformed);
  EXPECT_EQ(classify(request(kFirst, 10), 11), RequestVerdict::kMalformed);
  EXPECT_EQ(classify(request(kFirst, 101), 101), RequestVerdict::kMalformed);  // longer than a packet
  EXPECT_EQ(classify(request(kFirst, 150), 99), RequestVerdict::kMalformed);
  EXPECT_EQ(classify(request(kFirst, 150, 1), 51), RequestVerdict::kMalformed);
  EXPECT_EQ(classify(request(kFirst, 150, 2), 100), RequestVerdict::kMalformed);
  EXPECT_EQ(classify(request(kFirst, 0x7fffffff), 100), RequestVerdict::kMalformed);
  EXPECT_EQ(classify(client_header(Kind::kRequest, kFirst, 0, 150, 0), 100),
            RequestVerdict::kMalformed);  // 0 unflagged
  EXPECT_EQ(classify(request(kFirst, 150, 1), 50), RequestVerdict::kLongFirst);
}

TEST_F(ServerSessionTest, request_of_the_past_the_present_and_the_future) {
  end(begin(kFirst));
  ServerSlot* slot = begin(kFirst + 64);
  EXPECT_EQ(classify(request(kFirst, 10), 10), RequestVerdict::kStale);
  EXPECT_EQ(classify(request(kFirst + 64, 10), 10), RequestVerdict::kAgain);
  // While the last one runs: the client must have given that up.
  EXPECT_EQ(classify(request(kFirst + 128, 10), 10), RequestVerdict::kShort);
  EXPECT_TRUE(ServerSession::is_busy(*slot));
  respond(slot, 1);
  EXPECT_EQ(classify(request(kFirst + 64, 10), 10), RequestVerdict::kAgain);
  EXPECT_EQ(classify(request(kFirst + 128, 10), 10), RequestVerdict::kShort);
  end(slot);
  EXPECT_EQ(classify(request(kFirst + 64, 10), 10), RequestVerdict::kAgain);  // never again
}

TEST_F(ServerSessionTest, request_numbers_are_taken_without_a_gap) {
  for (const uint32_t number : {kFirst + 64, kFirst + (1u << 30), kFirst + (1u << 31) - 128}) {
    EXPECT_EQ(classify(request(number, 10), 10), RequestVerdict::kMalformed);
    EXPECT_EQ(classify(request(number, 500, 1), 100), RequestVerdict::kMalformed);
  }
  EXPECT_TRUE(sent().empty());  // a number that was guessed is worth no answer
  EXPECT_EQ(classify(request(kFirst, 10), 10), RequestVerdict::kShort);
}

TEST_F(ServerSessionTest, duplicates_and_late_packets_are_not_admitted) {
  const auto header = request(kFirst, 10);
  EXPECT_EQ(receive(header), 1u);
  EXPECT_EQ(receive(header), 0u);
  client_number_ = 400;
  EXPECT_EQ(receive(request(kFirst, 10)), 401u);
  client_number_ = 401 - 256;
  EXPECT_EQ(receive(client_header(Kind::kProbe, kFirst)), 146u);
  client_number_ = 401 - 257;
  EXPECT_EQ(receive(client_header(Kind::kProbe, kFirst)), 0u);
}

TEST_F(ServerSessionTest, retransmission_of_a_running_request_is_acknowledged_of_an_answered_one_answered_again) {
  ServerSlot* slot = begin(kFirst);
  EXPECT_TRUE(sent().empty());
  session_->answer_again(slot, receive(request(kFirst, 10)), now_);
  auto packets = sent();
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(packets[0].header.kind(), Kind::kCr);
  respond(slot, 7);
  EXPECT_EQ(sent().size(), 1u);
  now_ += 1000;
  session_->answer_again(slot, receive(request(kFirst, 10)), now_);
  packets = sent();
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(packets[0].header.kind(), Kind::kResponse);
  EXPECT_EQ(packets[0].header.echo(), client_number_);
  EXPECT_EQ(packets[0].header.hold_code(), 0);
}

TEST_F(ServerSessionTest, new_request_on_the_slot_drops_what_the_old_one_had_to_send) {
  ServerSlot* slot = begin(kFirst);
  respond(slot, 500);
  sent();
  EXPECT_TRUE(session_->on_rfr(client_header(Kind::kRfr, kFirst, 1, 4), ++client_number_, now_));
  session_->answer_again(slot, ++client_number_, now_);
  begin(kFirst + 64);
  EXPECT_TRUE(sent().empty());
}

TEST_F(ServerSessionTest, failure_word) {
  ServerSlot* slot = begin(kFirst);
  session_->fail(slot, wire::FailureCode::kOverloaded, 0xabcd);
  for (int i = 0; i < 2; i++) {
    const auto packets = sent();
    ASSERT_EQ(packets.size(), 1u);
    EXPECT_EQ(packets[0].header.flags(), wire::kFirst | wire::kFailure);
    EXPECT_EQ(packets[0].header.size_or_index(), 6u << 16 | 0xabcd);
    EXPECT_TRUE(packets[0].payload.empty());
    session_->answer_again(slot, receive(request(kFirst, 10)), now_);
  }
}

// ---- Long requests ----

TEST_F(ServerSessionTest, long_request_in_any_order_keeps_the_deadline_of_its_first_packet) {
  const uint32_t left = wire::encode_time_left(10'000'000);
  ServerSlot* slot = nullptr;
  ServerSession::Placed placed{};
  uint64_t step = 0;
  for (uint32_t index : {2u, 0u, 1u}) {
    const auto header = request(kFirst, 250, index, left);
    const auto verdict = session_->classify(header, index == 2 ? 50 : 100, &slot);
    ASSERT_EQ(verdict, step == 0 ? RequestVerdict::kLongFirst : RequestVerdict::kLongMore);
    const uint64_t number = session_->admit(header);
    if (step++ == 0) {
      ASSERT_TRUE(session_->begin_long(slot, header, number, now_, make_buffer(250).release()));
    }
    std::vector<std::byte> bytes(index == 2 ? 50 : 100, static_cast<std::byte>(index + 1));
    placed =
        session_->place(slot, header, {bytes.data(), static_cast<uint32_t>(bytes.size()), nullptr, 0}, number, now_);
    session_->note(number);
    if (placed == ServerSession::Placed::kComplete) break;
    now_ += 1'000'000;
    EXPECT_EQ(classify(request(kFirst, 250, index), index == 2 ? 50 : 100), RequestVerdict::kAgain);
    EXPECT_EQ(classify(request(kFirst, 251, 1), 100), RequestVerdict::kAgain);  // contradicts the first
  }
  EXPECT_EQ(placed, ServerSession::Placed::kComplete);
  EXPECT_EQ(slot->phase, Phase::kRunning);
  // Packet 0 came at 1 ms with 10 ms left; the last one at 2 ms, which is received_ns.
  EXPECT_EQ(wire::decode_time_left(slot->deadline_code), 9'000'000u);
  const OwnedBuffer whole(session_->take_assembled(slot));
  for (uint32_t i = 0; i < 250; i++) EXPECT_EQ(whole->data()[i], static_cast<std::byte>(i / 100 + 1));
  session_->check_invariants();
}

TEST_F(ServerSessionTest, part_with_a_lost_lease_is_not_marked) {
  ServerSlot* slot = nullptr;
  const auto header = request(kFirst, 150, 1);
  ASSERT_EQ(session_->classify(header, 50, &slot), RequestVerdict::kLongFirst);
  const uint64_t number = session_->admit(header);
  ASSERT_TRUE(session_->begin_long(slot, header, number, now_, make_buffer(150).release()));
  EXPECT_EQ(session_->place(slot, header, torn(bytes_of(50)), number, now_), ServerSession::Placed::kLeaseLost);
  EXPECT_EQ(classify(request(kFirst, 150, 1), 50), RequestVerdict::kLongMore);  // still missing
  EXPECT_EQ(session_->admit(header), number);                                   // and not received
}

// ---- Credit returns ----

TEST_F(ServerSessionTest, credit_return_acknowledges_what_has_arrived) {
  for (uint32_t n : {1u, 2u, 5u}) {
    client_number_ = n - 1;
    receive(request(kFirst, 10));
  }
  session_->owe_credit_return(now_);
  now_ += 160;
  session_->owe_credit_return(now_);  // the hold time is that of the newest packet
  now_ += 16;
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(packets[0].header.kind(), Kind::kCr);
  EXPECT_EQ(packets[0].header.echo(), 5u);
  EXPECT_EQ(wire::decode_hold(packets[0].header.hold_code()), 16u);
  ASSERT_EQ(packets[0].payload.size(), 32u);
  uint64_t word;
  std::memcpy(&word, packets[0].payload.data(), 8);
  EXPECT_EQ(word, uint64_t{0b10011} << 59);  // 5, not 4 and 3, 2, 1
}

// ---- Probes and ranges ----

TEST_F(ServerSessionTest, probes_of_every_kind) {
  const auto probe = [&](uint32_t request_number) {
    const auto header = client_header(Kind::kProbe, request_number);
    ServerSlot* lost;
    EXPECT_TRUE(session_->on_probe(header, receive(header), now_, &lost));
    const auto packets = sent();
    EXPECT_EQ(packets.size(), 1u);
    return packets.at(0).header;
  };
  EXPECT_EQ(probe(kFirst).kind(), Kind::kCr);  // not arrived
  ServerSlot* slot = begin(kFirst);
  EXPECT_EQ(probe(kFirst).kind(), Kind::kCr);  // running
  respond(slot, 300);
  sent();
  const auto again = probe(kFirst);
  EXPECT_EQ(again.kind(), Kind::kResponse);
  EXPECT_EQ(again.echo(), client_number_);
  EXPECT_EQ(probe(kFirst - 64).kind(), Kind::kCr);  // past
  EXPECT_EQ(probe(kFirst | 63).kind(), Kind::kCr);  // no such slot
}

// A client that knows its request to be acknowledged hears that it is not there, instead of waiting for ever. The slot
// has had that request then, or the next one would leave a number out.
TEST_F(ServerSessionTest, probes_for_an_acknowledged_request_that_is_not_here) {
  const auto is_lost = [&](uint32_t request_number) {
    auto header = client_header(Kind::kProbe, request_number);
    header.w2 |= 1;
    ServerSlot* slot = nullptr;
    const uint64_t number = receive(header);
    if (session_->on_probe(header, number, now_, &slot)) return false;
    if (slot != nullptr) {
      end(slot);
      session_->begin(slot, header, number, now_);
      session_->fail(slot, wire::FailureCode::kLost, 0);
    }
    const auto packets = sent();
    EXPECT_EQ(packets.size(), 1u);
    EXPECT_EQ(packets.at(0).header.kind(), Kind::kResponse);
    EXPECT_EQ(packets[0].header.flags(), wire::kFirst | wire::kFailure);
    EXPECT_EQ(packets[0].header.request_number(), request_number);
    EXPECT_EQ(packets[0].header.echo(), client_number_);
    EXPECT_EQ(packets[0].header.size_or_index() >> 16, static_cast<uint32_t>(wire::FailureCode::kLost));
    return true;
  };
  EXPECT_TRUE(is_lost(kFirst));  // never arrived
  EXPECT_EQ(classify(request(kFirst, 10), 10), RequestVerdict::kAgain);
  ServerSlot* slot = begin(kFirst + 64);
  EXPECT_FALSE(is_lost(kFirst + 64));  // runs
  sent();
  EXPECT_TRUE(is_lost(kFirst + 128));  // never arrived; the one that ran is nobody's any more
  EXPECT_EQ(begin(kFirst + 192), slot);
  end(slot);  // for a cancel that was meant for another slot
  EXPECT_TRUE(is_lost(kFirst + 192));
  // Past: pushed aside by a damaged packet, whose client would wait for ever; or late, and nobody waits.
  auto past = client_header(Kind::kProbe, kFirst + 128);
  past.w2 |= 1;
  ServerSlot* none = nullptr;
  EXPECT_TRUE(session_->on_probe(past, receive(past), now_, &none));
  const auto answer = sent();
  ASSERT_EQ(answer.size(), 1u);
  EXPECT_EQ(answer[0].header.request_number(), kFirst + 128);
  EXPECT_EQ(answer[0].header.size_or_index() >> 16, static_cast<uint32_t>(wire::FailureCode::kLost));
  EXPECT_TRUE(is_lost(kFirst + 192 + 128));  // cannot be: but whoever asks must not wait for ever
  EXPECT_EQ(classify(request(kFirst + 192 + 64, 10), 10), RequestVerdict::kShort);
}

// Not even if it does not know it.
TEST_F(ServerSessionTest, a_probe_beyond_the_next_request_is_answered_with_a_failure) {
  begin(kFirst);
  const auto header = client_header(Kind::kProbe, kFirst + 128);
  ServerSlot* slot = nullptr;
  EXPECT_FALSE(session_->on_probe(header, receive(header), now_, &slot));
  EXPECT_EQ(slot, nullptr);
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(packets[0].header.request_number(), kFirst + 128);
  EXPECT_EQ(packets[0].header.size_or_index() >> 16, static_cast<uint32_t>(wire::FailureCode::kLost));
}

TEST_F(ServerSessionTest, ranges_of_a_response) {
  ServerSlot* slot = begin(kFirst);
  respond(slot, 450);
  EXPECT_EQ(sent().at(0).payload.size(), 100u);
  const auto rfr = client_header(Kind::kRfr, kFirst, 2, 3);
  EXPECT_TRUE(session_->on_rfr(rfr, receive(rfr), now_));
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
  const auto ask = [&](uint32_t request_number, uint32_t index, uint32_t count) {
    const auto rfr = client_header(Kind::kRfr, request_number, index, count);
    const bool is_taken = session_->on_rfr(rfr, receive(rfr), now_);
    const auto packets = sent();
    EXPECT_EQ(packets.size(), 1u);
    EXPECT_EQ(packets.at(0).header.kind(), Kind::kCr);
    return is_taken;
  };
  EXPECT_FALSE(ask(kFirst, 1, 1));  // no slot yet
  ServerSlot* slot = begin(kFirst);
  EXPECT_FALSE(ask(kFirst, 1, 1));  // running
  respond(slot, 450);
  sent();
  EXPECT_FALSE(ask(kFirst, 1, 0));
  EXPECT_FALSE(ask(kFirst, 4, 2));
  EXPECT_FALSE(ask(kFirst, wire::kIndexMask, 1));
  EXPECT_FALSE(ask(kFirst, 1, 0x7fffffff));
  EXPECT_FALSE(ask(kFirst + 64, 1, 1));
  EXPECT_FALSE(ask(kFirst - 64, 1, 1));
  EXPECT_FALSE(ask(kFirst | 60, 1, 1));
  begin(kFirst | 1);
  session_->fail(session_->slot(1), wire::FailureCode::kApplication, 0);
  sent();
  EXPECT_FALSE(ask(kFirst | 1, 0, 1));  // a failure has no packets
}

TEST_F(ServerSessionTest, ranges_are_bounded) {
  respond(begin(kFirst), 450);
  sent();
  uint32_t taken = 0;
  for (int i = 0; i < 5000; i++) {
    const auto rfr = client_header(Kind::kRfr, kFirst, 1, 4);
    if (session_->on_rfr(rfr, receive(rfr), now_)) taken++;
  }
  EXPECT_EQ(taken, 256u);
}

// ---- Congestion marks ----

TEST_F(ServerSessionTest, a_mark_is_echoed_once_by_the_next_packet_whatever_it_is) {
  const auto flags = [](const TestPacket& packet) { return packet.header.flags() & wire::kEcnEcho; };
  const auto is_echoed_once = [&] {
    const auto packets = sent();
    ASSERT_EQ(packets.size(), 1u);
    EXPECT_NE(flags(packets[0]), 0);
    session_->owe_credit_return(now_);
    EXPECT_EQ(flags(sent().at(0)), 0);
  };
  ServerSlot* slot = begin(kFirst, 10);
  session_->note_mark();
  session_->owe_credit_return(now_);
  is_echoed_once();  // credit return
  session_->note_mark();
  session_->note_mark();
  respond(slot, 250);
  is_echoed_once();  // response
  session_->note_mark();
  const auto rfr = client_header(Kind::kRfr, kFirst, 1, 1);
  EXPECT_TRUE(session_->on_rfr(rfr, receive(rfr), now_));
  is_echoed_once();  // a later packet of it
  session_->note_mark();
  session_->fail(begin(kFirst + 64), wire::FailureCode::kApplication, 1);
  is_echoed_once();  // failure
  session_->note_mark();
  end(cancel(kFirst + 64));
  session_->owe_credit_return(now_);
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 2u);
  EXPECT_EQ(packets[0].header.kind(), Kind::kCancelled);
  EXPECT_EQ(flags(packets[0]), 0);  // answers no packet
  EXPECT_NE(flags(packets[1]), 0);
}

// ---- Endings ----

TEST_F(ServerSessionTest, cancel_in_every_phase) {
  for (int phase = 0; phase < 5; phase++) {
    const uint32_t number = kFirst + 64 * static_cast<uint32_t>(phase);
    ServerSlot* slot = nullptr;
    const auto header = request(number, 150);
    if (phase == 1) {
      ASSERT_EQ(session_->classify(header, 100, &slot), RequestVerdict::kLongFirst);
      ASSERT_TRUE(session_->begin_long(slot, header, receive(header), now_, make_buffer(150).release()));
    }
    if (phase >= 2) slot = begin(number);
    if (phase >= 3) respond(slot, 300);
    if (phase == 4) session_->on_rfr(client_header(Kind::kRfr, number, 1, 2), ++client_number_, now_);
    for (int again = 0; again < 2; again++) {
      ServerSlot* cancelled = cancel(number);
      ASSERT_NE(cancelled, nullptr);
      end(cancelled);
      EXPECT_EQ(cancelled->phase, Phase::kIdle);
      const auto packets = sent();
      ASSERT_EQ(packets.size(), 1u);
      EXPECT_EQ(packets[0].header.kind(), Kind::kCancelled);
      EXPECT_EQ(packets[0].header.request_number(), number);
      EXPECT_EQ(packets[0].header.flags(), wire::kNoEcho);
    }
    EXPECT_EQ(classify(request(number, 10), 10), RequestVerdict::kAgain) << phase;  // never runs any more
  }
}

// Damaged packets can put the two ends apart: whoever cancels what can never start here must not ask for ever.
TEST_F(ServerSessionTest, cancel_of_the_past_and_of_the_impossible_is_answered) {
  end(begin(kFirst));
  begin(kFirst + 64);
  for (const uint32_t number : {kFirst, kFirst + 192, kFirst + 64 * 1000}) {
    EXPECT_EQ(cancel(number), nullptr);
    const auto packets = sent();
    ASSERT_EQ(packets.size(), 1u);
    EXPECT_EQ(packets[0].header.kind(), Kind::kResponse);
    EXPECT_EQ(packets[0].header.flags(), wire::kFirst | wire::kFailure);
    EXPECT_EQ(packets[0].header.request_number(), number);
    EXPECT_EQ(packets[0].header.size_or_index() >> 16, static_cast<uint32_t>(wire::FailureCode::kLost));
    EXPECT_EQ(session_->slot(0)->phase, Phase::kRunning);
    EXPECT_EQ(session_->slot(0)->request_number, kFirst + 64);
  }
  EXPECT_EQ(cancel(kFirst | 4), nullptr);  // no slot of the session
  EXPECT_EQ(sent().at(0).header.kind(), Kind::kCr);
}

// As a request of the next number does (clause 3.8).
TEST_F(ServerSessionTest, cancel_of_the_next_request_ends_one_that_still_runs) {
  begin(kFirst);
  ServerSlot* slot = cancel(kFirst + 64);
  ASSERT_NE(slot, nullptr);
  EXPECT_EQ(slot->request_number, kFirst + 64);
  end(slot);
  EXPECT_EQ(sent().at(0).header.kind(), Kind::kCancelled);
  EXPECT_EQ(classify(request(kFirst + 64, 10), 10), RequestVerdict::kAgain);
  EXPECT_EQ(begin(kFirst + 128), slot);
}

TEST_F(ServerSessionTest, cancel_acknowledgement_never_names_the_next_request) {
  respond(begin(kFirst), 1);
  sent();
  end(cancel(kFirst));
  begin(kFirst + 64);  // the client had its answer meanwhile
  EXPECT_TRUE(sent().empty());
}

TEST_F(ServerSessionTest, report_frees_answered_slots_only) {
  ServerSlot* answered = begin(kFirst);
  respond(answered, 300);
  respond(begin(kFirst | 1), 5);
  begin(kFirst | 2);
  sent();
  session_->on_rfr(client_header(Kind::kRfr, kFirst, 1, 2), ++client_number_, now_);
  std::vector<std::byte> report;
  for (uint32_t number : {kFirst, (kFirst | 1) - 64, kFirst | 2, kFirst | 3, kFirst | 63}) {
    for (int i = 0; i < 4; i++) report.push_back(static_cast<std::byte>(number >> (8 * i)));
  }
  std::vector<ServerSlot*> freed;
  EXPECT_TRUE(session_->on_report({report.data(), static_cast<uint32_t>(report.size()), nullptr, 0},
                                  [&](ServerSlot* slot) { freed.push_back(slot); }));
  EXPECT_EQ(freed, std::vector<ServerSlot*>{answered});
  EXPECT_EQ(answered->phase, Phase::kIdle);
  EXPECT_TRUE(sent().empty());
}

TEST_F(ServerSessionTest, malformed_reports) {
  const auto never = [](ServerSlot*) { ADD_FAILURE(); };
  const auto bytes = bytes_of(4 * wire::kSlotsMax + 4);
  EXPECT_FALSE(session_->on_report({bytes.data(), 7, nullptr, 0}, never));
  EXPECT_FALSE(session_->on_report({bytes.data(), 4 * wire::kSlotsMax + 4, nullptr, 0}, never));
  EXPECT_FALSE(session_->on_report(torn(bytes_of(4)), never));
  EXPECT_TRUE(session_->on_report({bytes.data(), 0, nullptr, 0}, never));
}

// ---- Path probes, refusals ----

TEST_F(ServerSessionTest, path_probe_of_full_length_is_answered_in_full) {
  auto probe = client_header(Kind::kPathProbe, 0, 0, kPayloadMax);
  EXPECT_FALSE(session_->on_path_probe(probe, kPayloadMax - 1, 1));
  EXPECT_FALSE(session_->on_path_probe(client_header(Kind::kPathProbe, 0, 0, 50), kPayloadMax, 1));
  EXPECT_TRUE(sent().empty());
  EXPECT_TRUE(session_->on_path_probe(probe, kPayloadMax, 1));
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(packets[0].header.kind(), Kind::kPathReply);
  EXPECT_EQ(packets[0].payload.size(), kPayloadMax);
}

TEST_F(ServerSessionTest, refused_packet_changes_nothing) {
  ServerSlot* slot = begin(kFirst);
  respond(slot, 300);
  sent();
  session_->on_rfr(client_header(Kind::kRfr, kFirst, 1, 2), ++client_number_, now_);
  session_->owe_credit_return(now_);
  session_->answer_again(slot, 1, now_);
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

}  // namespace
}  // namespace tern::session
