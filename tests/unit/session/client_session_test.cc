#include "session/client_session.h"

#include <bit>
#include <functional>
#include <numeric>
#include <utility>

#include <gtest/gtest.h>

#include "unit/failing_new.h"
#include "unit/session/session_parts.h"

namespace {

bool g_has_no_memory = false;

}  // namespace

bool tern::test::allocation_fails() noexcept { return g_has_no_memory; }

namespace tern::session {
namespace {

using Phase = ClientSlot::Phase;
using wire::Kind;

constexpr uint32_t kPayloadMax = 100;
constexpr uint64_t kMs = 1'000'000;
constexpr uint32_t kFirstCount = 1000;
constexpr uint32_t kPathToken = 0x7654321;
constexpr uint32_t kSessionToken = 0x1234567;
constexpr uint32_t kPairToken = 0x2345678;

class ClientSessionTest : public testing::Test {
 protected:
  ~ClientSessionTest() override {
    session_.reset();
    EXPECT_EQ(pools_.response_credits_free, response_packets_);
    EXPECT_EQ(pools_.reports_free, reports_);
    EXPECT_EQ(pools_.slots.taken(), 0u);
    EXPECT_EQ(pools_.transfers.taken(), 0u);
  }

  void make(ClientTerms terms = {}) {
    response_packets_ = pools_.response_credits_free;
    reports_ = pools_.reports_free;
    session_ = std::make_unique<ClientSession>(terms, pools_);
  }
  void open(uint8_t credits = 8, ClientTerms terms = {}, uint8_t credit_unit = 0) {
    credits_ = credits;
    make(terms);
    session_->on_accepted({9, kPayloadMax, terms.window, credits, 1, kPathToken, credit_unit}, now_);
    prove_path();
  }
  void accept(uint8_t window = 8, uint8_t credits = 8) {
    session_->on_accepted({9, kPayloadMax, window, credits, 1, kPathToken}, now_);
  }
  void prove_path() {
    for (const uint32_t bytes : {0u, kPayloadMax}) {
      const auto probe = session_->path_probe(now_);
      EXPECT_EQ(probe.payload_bytes, bytes);
      EXPECT_EQ(path_reply(probe.header.number(), bytes), bytes == 0 ? PathVerdict::kAnswered : PathVerdict::kOpened);
    }
  }
  /// A session on one address and port pair.
  void open_paired(ClientTerms terms = {}) {
    make(terms);
    accept(terms.window);
    session_->path_probe(now_);
    session_->pair();
    for (const uint32_t bytes : {0u, kPayloadMax}) {
      const auto probe = session_->path_probe(now_);
      EXPECT_EQ(probe.header.flags(), wire::kPaired);
      EXPECT_EQ(probe.header.token(), bytes == 0 ? kPathToken : kPairToken);
      EXPECT_EQ(probe.payload_bytes, bytes);
      EXPECT_EQ(pair_reply(probe.header.number(), bytes, bytes == 0 ? kPairToken : kSessionToken),
                bytes == 0 ? PathVerdict::kAnswered : PathVerdict::kOpened);
    }
  }
  using PathVerdict = ClientSession::PathVerdict;
  PathVerdict pair_reply(uint32_t echo, uint32_t payload_bytes, uint32_t token) {
    return session_->on_path_reply(
        server_header(Kind::kPathReply, wire::kPaired, kFirstCount << wire::kSlotBits, echo, token), payload_bytes,
        now_);
  }
  PathVerdict path_reply(uint32_t echo, uint32_t payload_bytes, uint8_t flags = 0) {
    return session_->on_path_reply(
        server_header(Kind::kPathReply, flags, kFirstCount << wire::kSlotBits, echo, kSessionToken), payload_bytes,
        now_);
  }
  ClientSlot* begin(uint32_t request_bytes = 10, uint32_t response_bytes = 10, uint64_t deadline_ns = UINT64_MAX,
                    uint16_t type = 3) {
    requests_.push_back(make_buffer(request_bytes));
    responses_.push_back(make_buffer(response_bytes));
    ClientSlot* slot = session_->begin(requests_.back().get(), responses_.back().get(), type);
    session_->set_deadline(slot, deadline_ns);
    return slot;
  }
  /// Returns the packets that leave now.
  std::vector<TestPacket> sent() {
    std::vector<TestPacket> result;
    const auto send = [&](const wire::Header& header, const std::byte* data, uint32_t bytes, detail::Buffer*) {
      result.push_back({header, data != nullptr ? std::vector<std::byte>(data, data + bytes) : bytes_of(bytes)});
      return true;
    };
    ClientSession::Turn turn;
    uint32_t packets = 0;
    do {
      turn = session_->transmit(
          now_, send, [&] { return ++ticket_; }, packets);
      sent_again_ += turn == ClientSession::Turn::kSentAgain;
    } while (turn >= ClientSession::Turn::kSent);
    session_->check_invariants();
    return result;
  }
  wire::Header server_header(Kind kind, uint8_t flags, uint32_t request_number, uint32_t echo, uint32_t size) {
    return wire::server_header(kind, flags, 7, ++server_number_, request_number, echo, wire::encode_hold(hold_ns_),
                               credits_, size);
  }
  ClientVerdict respond(const ClientSlot* slot, uint32_t echo, uint32_t bytes, uint32_t payload_bytes,
                        uint8_t flags = wire::kFirst) {
    const auto payload = bytes_of(payload_bytes);
    return on_response(server_header(Kind::kResponse, flags, slot->request_number, echo, bytes), payload);
  }
  ClientVerdict on_response(const wire::Header& header, const std::vector<std::byte>& payload) {
    const auto verdict =
        session_->on_response(header, {payload.data(), static_cast<uint32_t>(payload.size()), nullptr, 0}, now_);
    session_->check_invariants();
    return verdict;
  }
  /// A credit return: `newest` and these others have arrived.
  ClientVerdict credit(uint32_t newest, std::vector<uint32_t> others = {}) {
    uint64_t words[NumberWindow::kWords] = {uint64_t{1} << 63};
    for (uint32_t n : others) words[(newest - n) / 64] |= uint64_t{1} << (63 - (newest - n) % 64);
    std::vector<std::byte> payload(sizeof(words));
    std::memcpy(payload.data(), words, sizeof(words));
    return on_credit(server_header(Kind::kCr, 0, 0, newest, 0), payload);
  }
  ClientVerdict on_credit(const wire::Header& header, const std::vector<std::byte>& payload) {
    const auto verdict =
        session_->on_credit_return(header, {payload.data(), static_cast<uint32_t>(payload.size()), nullptr, 0}, now_);
    session_->check_invariants();
    return verdict;
  }
  ClientTick tick(uint64_t later_ns = 0) {
    now_ += later_ns;
    const ClientTick result = session_->tick(now_);
    session_->check_invariants();
    return result;
  }
  void finish(const ClientVerdict& verdict) {
    ASSERT_NE(verdict.finished, nullptr);
    session_->release_slot(verdict.finished);
    session_->check_invariants();
  }
  /// Makes one call with a round trip of 10 us, the estimator's first sample.
  void warm_up() {
    ClientSlot* slot = begin();
    const uint32_t number = sent().at(0).header.number();
    now_ += 10'000;
    finish(respond(slot, number, 4, 4));
  }

  ClientPools pools_;
  uint32_t response_packets_ = 0;
  int32_t reports_ = 0;      ///< reports that were free when the session was made
  uint32_t sent_again_ = 0;  ///< retransmissions counted by sent()
  std::unique_ptr<ClientSession> session_;
  std::vector<OwnedBuffer> requests_, responses_;
  uint64_t now_ = 1000 * kMs;
  uint64_t hold_ns_ = 0;  ///< hold time in the server's packets
  uint64_t ticket_ = 0;
  uint32_t server_number_ = 0;
  uint8_t credits_ = 8;
};

// ---- Larger packets ----

class SearchingClient : public ClientSessionTest {
 protected:
  static constexpr uint32_t kLarge = 256;  ///< the payload of the code below 300 B
  SearchingClient() {
    pools_.credit_unit = 5;
    make();
    session_->on_accepted({9, kPayloadMax, 8, 100, 1, kPathToken, 5, 300}, now_);
    prove_path();
  }
  /// The numbers of the path probes among the packets that leave now, and of how many bytes they are.
  std::vector<std::pair<uint32_t, size_t>> probes() {
    std::vector<std::pair<uint32_t, size_t>> result;
    for (const TestPacket& packet : sent()) {
      if (packet.header.kind() == Kind::kPathProbe) result.emplace_back(packet.header.number(), packet.payload.size());
    }
    return result;
  }
};

TEST_F(SearchingClient, an_answer_takes_back_the_probe_that_has_not_left) {
  begin(500, 10);
  sent();
  tick();
  const auto first = probes();
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].second, kLarge);
  tick(20 * kMs);  // the next probe is due, and the transport does not take it
  EXPECT_EQ(path_reply(first[0].first, kLarge), PathVerdict::kConfirmed);
  EXPECT_EQ(session_->large_payload_bytes(), kLarge);
  EXPECT_TRUE(probes().empty());
  EXPECT_FALSE(session_->has_unpaced());
}

TEST_F(SearchingClient, a_late_answer_to_a_larger_probe_counts) {
  begin(500, 10);
  sent();
  uint32_t first = 0;
  for (int i = 0; i < 20; i++) {
    tick(20 * kMs);
    for (const auto& [number, bytes] : probes()) {
      if (bytes == kLarge && first == 0) first = number;
    }
  }
  EXPECT_EQ(session_->large_payload_bytes(), kPayloadMax);
  ASSERT_NE(first, 0u);
  EXPECT_EQ(path_reply(first, kLarge), PathVerdict::kConfirmed);
  EXPECT_EQ(session_->large_payload_bytes(), kLarge);
  EXPECT_EQ(path_reply(first, kLarge), PathVerdict::kDropped);
}

/// The session goes back to its own size because of another call, before the first packet of this call.
TEST_F(SearchingClient, a_call_that_was_not_sent_before_the_size_falls_gives_its_number_back) {
  credits_ = 100;
  begin(5000, 10);
  sent();
  tick();
  const auto first = probes();
  ASSERT_EQ(first.size(), 1u);
  ASSERT_EQ(path_reply(first[0].first, kLarge), PathVerdict::kConfirmed);
  const ClientSlot* lost = session_->slot(0);
  session_->end_early(session_->slot(0), now_);
  sent();
  session_->on_cancelled(server_header(Kind::kCancelled, wire::kNoEcho, lost->request_number, 0, 0), now_);
  begin(5000, 10);  // larger packets do not pass any more
  ASSERT_EQ(session_->large_payload_bytes(), kLarge);
  for (int i = 0; i < 100 && session_->large_payload_bytes() == kLarge; i++) {
    for (const TestPacket& packet : sent()) {
      if (packet.header.kind() == Kind::kProbe) credit(packet.header.number());
    }
    ClientSlot* slot = begin(500, 10);
    const uint32_t number = slot->request_number;
    tick(20 * kMs);
    session_->end_early(slot, now_);
    EXPECT_EQ(slot->phase, Phase::kFree);
    EXPECT_EQ(slot->request_number, number - wire::kSlotsMax);
  }
  EXPECT_EQ(session_->large_payload_bytes(), kPayloadMax);
  for (const TestPacket& packet : sent()) EXPECT_NE(packet.header.kind(), Kind::kCancel);
}

TEST_F(SearchingClient, a_search_in_vain_takes_back_the_probe_that_has_not_left) {
  begin(500, 10);
  sent();
  for (int i = 0; i < 20; i++) tick(20 * kMs);
  for (const auto& [number, bytes] : probes()) EXPECT_LE(bytes, kPayloadMax) << number;  // of the path check
  EXPECT_EQ(session_->large_payload_bytes(), kPayloadMax);
}

// One long call at a time, with rests between.
TEST_F(SearchingClient, a_search_goes_on_while_the_session_has_no_call) {
  ClientSlot* slot = begin(500, 10);
  uint32_t last = 0;
  for (const TestPacket& packet : sent()) last = packet.header.number();
  finish(respond(slot, last, 4, 4));
  size_t count = 0;
  for (int i = 0; i < 20; i++) {
    tick(20 * kMs);
    count += probes().size();
    session_->try_rest();
  }
  EXPECT_EQ(count, SizeSearch::kProbesMax);
}

// ---- Responses that come whole (clause 5.3.3) ----

class WholeResponses : public SearchingClient {
 protected:
  static constexpr uint8_t kCode = 16;        ///< of 256 B
  static constexpr int32_t kCredits = 9;      ///< that such a packet takes in the client's queue
  static constexpr uint32_t kResponse = 200;  ///< needs packets of 256 B

  WholeResponses() {
    credits_ = 100;
    ClientSlot* slot = begin(500, 10);
    uint32_t last = 0;
    for (const TestPacket& packet : sent()) last = packet.header.number();
    finish(respond(slot, last, 4, 4));
    tick();
    const auto search = probes();
    EXPECT_EQ(search.size(), 1u);
    EXPECT_EQ(path_reply(search.at(0).first, kLarge), PathVerdict::kConfirmed);
    EXPECT_FALSE(names_size(leave(begin(10, 300))));
    learn();
    free_ = pools_.response_credits_free;
  }
  ~WholeResponses() override {
    session_.reset();
    EXPECT_EQ(pools_.response_share.responses(), 0u);
  }
  /// Sends the call's request.
  wire::Header leave(const ClientSlot*) {
    const auto packets = sent();
    EXPECT_EQ(packets.size(), 1u);
    return packets.at(0).header;
  }
  static bool names_size(const wire::Header& request) {
    const bool has_flag = (request.flags() & wire::kTakesWhole) != 0;
    EXPECT_EQ(request.payload_code(), has_flag ? kCode : 0);
    return has_flag;
  }
  /// Packet 0 of the response in flight, and its rest by an RFR.
  void learn() {
    ClientSlot* slot = session_->slot(static_cast<uint32_t>(std::countr_zero(session_->busy_mask())));
    EXPECT_EQ(respond(slot, last_number(), kResponse, kPayloadMax).finished, nullptr);
    finish_by_rfr(slot);
  }
  void finish_by_rfr(ClientSlot* slot) {
    const wire::Header rfr = leave(slot);
    EXPECT_EQ(rfr.kind(), Kind::kRfr);
    wire::Header rest = server_header(Kind::kResponse, 0, slot->request_number, rfr.number(), 1);
    if (rfr.payload_code() != 0) rest.set_large();
    finish(on_response(rest, bytes_of(kResponse - kPayloadMax)));
  }
  uint32_t last_number() const {
    return static_cast<uint32_t>(session_->packets_sent());  // the first number is 1
  }
  int32_t free_ = 0;
};

TEST_F(WholeResponses, come_in_packet_0_after_one_that_was_as_long) {
  for (int i = 0; i < 3; i++) {
    ClientSlot* slot = begin(10, 300);
    const wire::Header request = leave(slot);
    EXPECT_TRUE(names_size(request));
    EXPECT_EQ(pools_.response_credits_free, free_ - kCredits);
    const uint64_t before = session_->long_bytes_received();
    const ClientVerdict verdict = respond(slot, request.number(), kResponse, kResponse);
    EXPECT_EQ(slot->response->length_bytes, kResponse);
    finish(verdict);
    EXPECT_EQ(session_->long_bytes_received() - before, kResponse);
    EXPECT_EQ(pools_.response_credits_free, free_);
  }
  EXPECT_TRUE(sent().empty());
}

TEST_F(WholeResponses, are_not_for_buffers_that_take_one_packet_only) {
  EXPECT_FALSE(names_size(leave(begin(10, kPayloadMax))));
  EXPECT_TRUE(names_size(leave(begin(10, 300)))) << "the other call tells nothing";
}

TEST_F(WholeResponses, are_not_expected_after_a_short_one) {
  ClientSlot* slot = begin(10, 300);
  finish(respond(slot, leave(slot).number(), 7, 7));
  EXPECT_FALSE(names_size(leave(begin(10, 300))));
  learn();
  EXPECT_TRUE(names_size(leave(begin(10, 300))));
}

TEST_F(WholeResponses, are_expected_after_a_rest_too) {
  for (int i = 0; i < 100 && session_->is_awake(); i++) {
    const auto packets = sent();
    if (!packets.empty()) credit(packets.back().header.number());
    tick(20 * kMs);
    session_->try_rest();
  }
  ASSERT_FALSE(session_->is_awake());
  EXPECT_TRUE(names_size(leave(begin(10, 300))));
}

TEST_F(WholeResponses, may_also_come_in_parts) {
  ClientSlot* slot = begin(10, 300);
  EXPECT_EQ(respond(slot, leave(slot).number(), kResponse, kPayloadMax).finished, nullptr);
  EXPECT_EQ(pools_.response_credits_free, free_) << "RFRs need the space";
  finish_by_rfr(slot);
  EXPECT_EQ(pools_.response_credits_free, free_);
}

TEST_F(WholeResponses, that_come_late_end_the_call_before_its_parts) {
  ClientSlot* slot = begin(10, 300);
  const wire::Header request = leave(slot);
  EXPECT_EQ(respond(slot, request.number(), kResponse, kPayloadMax).finished, nullptr);
  EXPECT_EQ(leave(slot).kind(), Kind::kRfr);
  finish(respond(slot, request.number(), kResponse, kResponse));
  EXPECT_EQ(pools_.response_credits_free, free_);
}

// A server of an earlier build, or a path that carries all but the largest packets.
TEST_F(WholeResponses, that_never_come_whole_are_not_asked_for_any_more) {
  for (int i = 0; i < 12; i++) {
    ClientSlot* slot = begin(10, 300);
    const wire::Header request = leave(slot);
    EXPECT_EQ(names_size(request), i < 8) << i;
    EXPECT_EQ(respond(slot, request.number(), kResponse, kPayloadMax).finished, nullptr);
    finish_by_rfr(slot);
    now_ += 100 * kMs;
  }
  now_ += 60'000 * kMs;  // one try a minute
  for (const bool is_try : {false, true, false}) {
    ClientSlot* slot = begin(10, 300);
    const wire::Header request = leave(slot);
    EXPECT_EQ(names_size(request), is_try);
    EXPECT_EQ(respond(slot, request.number(), kResponse, kPayloadMax).finished, nullptr);
    finish_by_rfr(slot);
  }
}

// One datagram may have carried all the requests.
TEST_F(WholeResponses, that_are_lost_together_are_one_miss) {
  pools_.response_credits_free += 1000;
  std::vector<ClientSlot*> slots;
  for (int i = 0; i < 8; i++) slots.push_back(begin(10, 300));
  const auto requests = sent();
  ASSERT_EQ(requests.size(), 8u);
  for (size_t i = 0; i < 8; i++) {
    EXPECT_TRUE(names_size(requests[i].header));
    EXPECT_EQ(respond(slots[i], requests[i].header.number(), kResponse, kPayloadMax).finished, nullptr);
    finish_by_rfr(slots[i]);
  }
  EXPECT_TRUE(names_size(leave(begin(10, 300))));
  pools_.response_credits_free -= 1000;
}

TEST_F(WholeResponses, are_expected_where_a_short_one_came_between) {
  ClientSlot* first = begin(10, 300);
  const wire::Header request = leave(first);
  ClientSlot* second = begin(10, 300);
  finish(respond(second, leave(second).number(), 7, 7));
  finish(respond(first, request.number(), kResponse, kResponse));
  EXPECT_TRUE(names_size(leave(begin(10, 300))));
}

TEST_F(WholeResponses, that_come_in_parts_now_and_then_are_asked_for_again) {
  for (int i = 0; i < 30; i++) {
    ClientSlot* slot = begin(10, 300);
    const wire::Header request = leave(slot);
    EXPECT_TRUE(names_size(request));
    if (i % 8 == 7) {
      finish(respond(slot, request.number(), kResponse, kResponse));
      continue;
    }
    EXPECT_EQ(respond(slot, request.number(), kResponse, kPayloadMax).finished, nullptr);
    finish_by_rfr(slot);
    now_ += 100 * kMs;
  }
}

TEST_F(WholeResponses, are_expected_for_requests_of_the_same_type) {
  ClientSlot* other = begin(10, 300, UINT64_MAX, 4);
  const wire::Header request = leave(other);
  EXPECT_FALSE(names_size(request));
  finish(respond(other, request.number(), 7, 7));
  EXPECT_TRUE(names_size(leave(begin(10, 300)))) << "the other type's response tells nothing";
}

TEST_F(WholeResponses, are_as_long_as_the_last_one) {
  ClientSlot* slot = begin(10, 300);
  finish(respond(slot, leave(slot).number(), 150, 150));
  EXPECT_TRUE(names_size(leave(begin(10, 300)))) << "not much shorter";
  slot = begin(10, 1000);
  const wire::Header request = leave(slot);
  EXPECT_TRUE(names_size(request));
  EXPECT_EQ(respond(slot, request.number(), 500, kPayloadMax).finished, nullptr);
  const wire::Header rfr = leave(slot);
  for (uint32_t index = 1; slot->phase == Phase::kReceiving; index++) {
    wire::Header rest = server_header(Kind::kResponse, 0, slot->request_number, rfr.number(), index);
    rest.set_large();
    const uint32_t left = 500 - kPayloadMax - (index - 1) * kLarge;
    const ClientVerdict verdict = on_response(rest, bytes_of(std::min(left, kLarge)));
    if (verdict.finished != nullptr) finish(verdict);
  }
  EXPECT_FALSE(names_size(leave(begin(10, 1000)))) << "the last one fitted no packet";
}

// The space would be kept for as long as the handler takes.
TEST_F(WholeResponses, need_no_space_while_a_slow_handler_runs) {
  ClientSlot* slot = begin(10, 300);
  const wire::Header request = leave(slot);
  credit(request.number());
  EXPECT_EQ(slot->phase, Phase::kWaiting);
  EXPECT_EQ(pools_.response_credits_free, free_);
  finish(respond(slot, request.number(), kResponse, kResponse));
  EXPECT_EQ(pools_.response_credits_free, free_);
}

TEST_F(WholeResponses, are_malformed_where_the_request_has_not_named_their_size) {
  ClientSlot* slot = begin(10, 300);
  const wire::Header request = leave(slot);
  EXPECT_EQ(respond(slot, request.number(), kLarge + 1, kLarge + 1).drop, Drop::kMalformed);
  EXPECT_EQ(respond(slot, request.number(), kResponse, kResponse - 1).drop, Drop::kMalformed);
  EXPECT_EQ(respond(slot, request.number(), kResponse - 1, kResponse).drop, Drop::kMalformed);
  finish(respond(slot, request.number(), 7, 7));
  slot = begin(10, 300);
  const uint32_t unnamed = leave(slot).number();
  EXPECT_EQ(respond(slot, unnamed, kResponse, kResponse).drop, Drop::kMalformed);
  finish(respond(slot, unnamed, 7, 7));
}

TEST_F(WholeResponses, that_do_not_fit_the_buffer_are_too_large) {
  ClientSlot* slot = begin(10, kPayloadMax + 1);
  const ClientVerdict verdict = respond(slot, leave(slot).number(), kResponse, kResponse);
  EXPECT_EQ(verdict.status.code(), Code::kTooLarge);
  finish(verdict);
  EXPECT_EQ(pools_.response_credits_free, free_);
}

// Larger packets may not pass any more, so that a request that is sent again does not ask for one.
TEST_F(WholeResponses, are_not_asked_for_again_after_a_loss) {
  ClientSlot* lost = begin(10, 300);
  EXPECT_TRUE(names_size(leave(lost)));
  now_ += 100'000;
  ClientSlot* next = begin(10, 300);
  const wire::Header second = leave(next);
  now_ += 10'000;
  finish(respond(next, second.number(), kResponse, kResponse));
  tick(kMs);
  const wire::Header again = leave(lost);
  EXPECT_EQ(again.request_number(), lost->request_number);
  EXPECT_FALSE(names_size(again));
  EXPECT_EQ(pools_.response_credits_free, free_ - kCredits) << "the first answer may still come";
  finish(respond(lost, again.number(), kResponse, kResponse));
  EXPECT_EQ(pools_.response_credits_free, free_);
}

TEST_F(WholeResponses, need_space_in_the_queue_for_four) {
  pools_.response_credits_free = 4 * kCredits - 1;
  EXPECT_FALSE(names_size(leave(begin(10, 300))));
  pools_.response_credits_free = 4 * kCredits;
  EXPECT_TRUE(names_size(leave(begin(10, 300))));
  pools_.response_credits_free = free_ - kCredits;
}

TEST_F(WholeResponses, share_the_downlink) {
  pools_.response_share = ResponseShare({8 * kPayloadMax, kPayloadMax});  // such a packet counts as three
  EXPECT_TRUE(names_size(leave(begin(10, 300))));
  EXPECT_TRUE(names_size(leave(begin(10, 300))));
  EXPECT_FALSE(names_size(leave(begin(10, 300))));
}

TEST_F(WholeResponses, give_their_space_back_when_the_call_ends_early) {
  ClientSlot* slot = begin(10, 300);
  leave(slot);
  session_->end_early(slot, now_);
  const wire::Header cancel = leave(slot);
  EXPECT_EQ(cancel.kind(), Kind::kCancel);
  EXPECT_EQ(pools_.response_credits_free, free_);
  session_->on_cancelled(server_header(Kind::kCancelled, wire::kNoEcho, slot->request_number, 0, 0), now_);
  session_->check_invariants();
  EXPECT_EQ(pools_.response_credits_free, free_);
  leave(begin(10, 300));  // the session's end gives this one's back
}

// The space is free once, although the call ends where its response would begin.
TEST_F(WholeResponses, give_their_space_back_where_there_is_no_memory_for_parts) {
  ClientSlot* slot = begin(10, 300);
  const wire::Header request = leave(slot);
  const wire::Header first =
      server_header(Kind::kResponse, wire::kFirst, slot->request_number, request.number(), kResponse);
  const auto payload = bytes_of(kPayloadMax);
  std::vector<Transfer*> others;
  others.reserve(100);
  g_has_no_memory = true;
  while (Transfer* transfer = pools_.transfers.take()) others.push_back(transfer);
  const ClientVerdict verdict = on_response(first, payload);
  g_has_no_memory = false;
  EXPECT_EQ(verdict.status.code(), Code::kNoMemory);
  finish(verdict);
  EXPECT_EQ(pools_.response_credits_free, free_);
  for (Transfer* transfer : others) pools_.transfers.give(transfer);
}

TEST_F(WholeResponses, answer_requests_of_one_larger_packet_too) {
  ClientSlot* slot = begin(180, 300);
  const wire::Header request = leave(slot);
  EXPECT_EQ(request.message_bytes(), 180u);
  EXPECT_TRUE(names_size(request));
  finish(respond(slot, request.number(), kResponse, kResponse));
  begin(500, 300);  // of two packets
  for (const TestPacket& packet : sent()) EXPECT_EQ(packet.header.flags() & wire::kTakesWhole, 0);
}

// An echo of a pair probe is no sample of a round trip since the epoch of the clock.
TEST_F(ClientSessionTest, the_answer_to_a_pair_probe_is_a_true_sample) {
  open_paired();
  warm_up();
  begin();
  sent();
  const auto probe = session_->pair_probe(now_);
  now_ += 10'000;
  credit(probe.header.number());
  EXPECT_LE(session_->rtt().latest_ns(), 10'000u);
}

// ---- Opening ----

TEST_F(ClientSessionTest, nothing_is_accepted_before_the_session_is_open) {
  make();
  ClientSlot nobody;
  nobody.request_number = kFirstCount << 6;
  for (int phase = 0; phase < 2; phase++) {
    EXPECT_EQ(respond(&nobody, 1, 4, 4).drop, Drop::kUnproven);
    EXPECT_EQ(credit(1).drop, Drop::kMalformed);
    EXPECT_EQ(session_->on_cancelled(server_header(Kind::kCancelled, wire::kNoEcho, 64, 0, 0), now_).drop,
              Drop::kStale);
    EXPECT_FALSE(session_->has_free_slot() && session_->state() == ClientSession::State::kOpen);
    EXPECT_EQ(session_->busy_mask(), 0u);
    EXPECT_FALSE(session_->wants_to_send());
    accept(8, 1);
  }
}

TEST_F(ClientSessionTest, opens_with_a_full_reply_only) {
  make();
  EXPECT_EQ(path_reply(1, 0), PathVerdict::kDropped);
  accept();
  const auto first = session_->path_probe(now_);
  EXPECT_EQ(first.header.kind(), Kind::kPathProbe);
  EXPECT_EQ(first.header.token(), kPathToken);
  EXPECT_EQ(first.payload_bytes, 0u);
  EXPECT_EQ(path_reply(1, kPayloadMax), PathVerdict::kDropped);  // not asked for yet
  EXPECT_EQ(path_reply(1, 0), PathVerdict::kAnswered);
  const auto full = session_->path_probe(now_);
  EXPECT_EQ(full.header.token(), kSessionToken);
  EXPECT_EQ(full.header.request_number(), kFirstCount << wire::kSlotBits);
  EXPECT_EQ(full.payload_bytes, kPayloadMax);
  EXPECT_EQ(path_reply(2, kPayloadMax - 1), PathVerdict::kDropped);
  EXPECT_EQ(path_reply(2, kPayloadMax), PathVerdict::kOpened);
  EXPECT_EQ(path_reply(2, kPayloadMax), PathVerdict::kDropped);
  EXPECT_TRUE(session_->has_free_slot());
}

// The bound of the round trip begins with the first full probe: the reply may be the answer to that one.
TEST_F(ClientSessionTest, first_full_probe_bounds_the_round_trip) {
  for (const bool is_paired : {false, true}) {
    make();
    accept();
    if (is_paired) session_->pair();
    const uint32_t first = session_->path_probe(now_).header.number();
    now_ += 1000;
    const auto reply = [&](uint32_t echo, uint32_t bytes) {
      return is_paired ? pair_reply(echo, bytes, bytes == 0 ? kPairToken : kSessionToken) : path_reply(echo, bytes);
    };
    ASSERT_EQ(reply(first, 0), PathVerdict::kAnswered);
    now_ += 100'000;
    const uint32_t full = session_->path_probe(now_).header.number();
    now_ += 300;
    session_->path_probe(now_);
    now_ += 400;
    EXPECT_EQ(session_->rtt().min_ns(), UINT64_MAX);
    ASSERT_EQ(reply(full, kPayloadMax), PathVerdict::kOpened);
    EXPECT_EQ(session_->rtt().min_ns(), 700u) << is_paired;
    server_number_ = 0;
  }
}

TEST_F(ClientSessionTest, path_replies_that_echo_no_probe_have_no_effect) {
  make();
  accept();
  session_->path_probe(now_);
  for (const uint32_t echo : {0u, 2u, 1u << 20, wire::kNumberMask}) {
    EXPECT_EQ(path_reply(echo, 0), PathVerdict::kDropped);
  }
  EXPECT_EQ(path_reply(1, 0, wire::kNoEcho), PathVerdict::kDropped);
  server_number_ += 1u << 20;
  EXPECT_EQ(path_reply(1, 0), PathVerdict::kDropped);  // this is not the server's next number either
  server_number_ = 0;
  EXPECT_EQ(path_reply(1, 0), PathVerdict::kAnswered);
}

TEST_F(ClientSessionTest, an_address_gets_three_headers_until_it_answers_and_then_the_handshake_begins_anew) {
  make();
  accept();
  for (uint32_t i = 1; i <= 3; i++) {
    EXPECT_TRUE(session_->may_probe_path());
    const auto probe = session_->path_probe(now_);
    EXPECT_EQ(probe.payload_bytes, 0u);
    EXPECT_EQ(probe.header.number(), i);
  }
  EXPECT_FALSE(session_->may_probe_path());
  session_->start_over(0xfffffe, 8);
  EXPECT_EQ(session_->state(), ClientSession::State::kConnecting);
  EXPECT_EQ(path_reply(3, 0), PathVerdict::kDropped);
  server_number_ = 0;
  accept();
  EXPECT_EQ(session_->path_probe(now_).header.number(), 0xfffffeu);
  EXPECT_EQ(path_reply(3, 0), PathVerdict::kDropped);  // an answer to an earlier path probe
  server_number_ = 0;
  EXPECT_EQ(path_reply(0xfffffe, 0), PathVerdict::kAnswered);
  for (int i = 0; i < 100; i++) EXPECT_TRUE(session_->may_probe_path());
}

// Another server, or the same one at another time, may grant more than the first did.
TEST_F(ClientSessionTest, a_handshake_that_begins_anew_asks_for_the_callers_window) {
  make();
  accept(2);
  EXPECT_EQ(session_->window(), 2u);
  session_->start_over(7, 8);
  EXPECT_EQ(session_->window(), 8u);
  accept(4);
  EXPECT_EQ(session_->window(), 4u);
}

TEST_F(ClientSessionTest, many_path_probes_before_the_answer) {
  make();
  accept();
  session_->path_probe(now_);
  EXPECT_EQ(path_reply(1, 0), PathVerdict::kAnswered);
  for (uint32_t i = 2; i <= 100; i++) EXPECT_EQ(session_->path_probe(now_).header.number(), i);
  EXPECT_EQ(path_reply(50, kPayloadMax), PathVerdict::kOpened);
  begin();
  EXPECT_EQ(sent().at(0).header.number(), 101u);
}

TEST_F(ClientSessionTest, opens_on_one_address_and_port_pair) {
  open_paired();
  EXPECT_TRUE(session_->is_paired());
  // The session token has arrived with the last reply.
  ClientSlot* slot = begin();
  sent();
  session_->end_early(slot, now_);
  EXPECT_EQ(sent().at(0).header.token(), kSessionToken);
}

TEST_F(ClientSessionTest, all_short_probes_of_a_handshake_count_together) {
  make();
  accept();
  EXPECT_EQ(session_->short_probes_left(), 3);
  for (int i = 0; i < 2; i++) EXPECT_EQ(session_->path_probe(now_).header.flags(), 0);
  session_->pair();
  EXPECT_EQ(session_->path_probe(now_).header.flags(), wire::kPaired);
  EXPECT_FALSE(session_->may_probe_path());
  session_->start_over(5, 8);
  EXPECT_FALSE(session_->is_paired());
}

TEST_F(ClientSessionTest, late_answer_to_an_unpaired_probe_opens_an_unpaired_session) {
  make();
  accept();
  const auto first = session_->path_probe(now_);
  EXPECT_EQ(pair_reply(first.header.number(), 0, kPairToken), PathVerdict::kDropped);  // never asked for
  session_->pair();
  session_->path_probe(now_);
  EXPECT_EQ(path_reply(first.header.number(), 0), PathVerdict::kAnswered);
  EXPECT_FALSE(session_->is_paired());
  const auto full = session_->path_probe(now_);
  EXPECT_EQ(full.header.flags(), 0);
  EXPECT_EQ(full.header.token(), kSessionToken);
  EXPECT_EQ(pair_reply(full.header.number(), kPayloadMax, kSessionToken), PathVerdict::kDropped);
  EXPECT_EQ(path_reply(full.header.number(), kPayloadMax), PathVerdict::kOpened);
}

TEST_F(ClientSessionTest, a_paired_session_that_hears_nothing_asks_to_be_followed) {
  ClientTerms terms;
  open_paired(terms);
  begin();
  sent();
  uint64_t asked = 0;
  const uint64_t began = now_;
  for (ClientTick result = tick(); !result.has_failed; result = tick(result.next_ns - now_)) {
    ASSERT_NE(result.next_ns, UINT64_MAX);
    sent();
    if (!result.wants_pair_probe) continue;
    if (asked++ == 0) {
      EXPECT_LE(now_ - began, terms.liveness_ns / 8);
    }
    const auto probe = session_->pair_probe(now_);
    EXPECT_EQ(probe.header.flags(), wire::kPaired);
    EXPECT_EQ(probe.header.token(), kPathToken);
    EXPECT_EQ(probe.payload_bytes, 0u);
  }
  EXPECT_EQ(asked, 6u);  // three in the first timeout (a server answers a stranger as often), then one in each
}

// The round trip is longer than half the time between two questions.
TEST_F(ClientSessionTest, a_moved_session_on_a_long_path_is_followed) {
  open_paired();
  begin();
  sent();
  ClientTick result = tick();
  const auto await_question = [&] {
    do {
      ASSERT_FALSE(result.has_failed);
      result = tick(result.next_ns - now_);
      sent();
    } while (!result.wants_pair_probe);
  };
  await_question();
  EXPECT_EQ(pair_reply(session_->pair_probe(now_).header.number(), 0, kPairToken + 1), PathVerdict::kFound);
  const auto full = session_->pair_probe(now_);
  EXPECT_EQ(full.payload_bytes, kPayloadMax);
  await_question();
  EXPECT_EQ(session_->pair_probe(now_).payload_bytes, 0u);
  EXPECT_EQ(pair_reply(full.header.number(), kPayloadMax, kSessionToken), PathVerdict::kFollowed);
}

// The token in the reply that opened the session was damaged. The server answers no probe, but pair replies show that
// it is alive.
TEST_F(ClientSessionTest, a_paired_session_learns_its_token_again) {
  open_paired();
  begin();
  sent();
  ClientTick result = tick();
  while (!result.wants_pair_probe) {
    result = tick(result.next_ns - now_);
    sent();
  }
  pair_reply(session_->pair_probe(now_).header.number(), 0, kPairToken);
  EXPECT_EQ(pair_reply(session_->pair_probe(now_).header.number(), kPayloadMax, kSessionToken + 1),
            PathVerdict::kFollowed);
  std::vector<TestPacket> probes;
  for (int i = 0; i < 100 && probes.empty(); i++) {
    result = tick(result.next_ns - now_);
    probes = sent();
  }
  ASSERT_FALSE(probes.empty());
  EXPECT_EQ(probes[0].header.kind(), Kind::kProbe);
  EXPECT_EQ(probes[0].header.token(), kSessionToken + 1);
}

TEST_F(ClientSessionTest, a_paired_session_that_is_followed_goes_on) {
  open_paired();
  ClientSlot* slot = begin();
  sent();
  ClientTick result = tick();
  while (!result.wants_pair_probe) {
    ASSERT_FALSE(result.has_failed);
    result = tick(result.next_ns - now_);
    sent();
  }
  const auto probe = session_->pair_probe(now_);
  EXPECT_EQ(pair_reply(probe.header.number(), 0, kPairToken + 1), PathVerdict::kFound);
  const auto full = session_->pair_probe(now_);
  EXPECT_EQ(full.payload_bytes, kPayloadMax);
  EXPECT_EQ(full.header.token(), kPairToken + 1);
  EXPECT_EQ(full.header.request_number(), kFirstCount << wire::kSlotBits);
  EXPECT_EQ(pair_reply(full.header.number(), kPayloadMax, kSessionToken), PathVerdict::kFollowed);
  // The client asks for the call's answer again.
  uint64_t probes = 0;
  for (int i = 0; i < 100 && probes == 0; i++) {
    result = tick(result.next_ns - now_);
    EXPECT_FALSE(result.wants_pair_probe);
    for (const TestPacket& packet : sent()) probes += packet.header.kind() == Kind::kProbe;
  }
  EXPECT_EQ(probes, 1u);
  finish(respond(slot, full.header.number() + 1, 4, 4));
}

TEST_F(ClientSessionTest, a_session_on_two_ports_never_asks_to_be_followed) {
  open();
  begin();
  sent();
  for (ClientTick result = tick(); !result.has_failed; result = tick(result.next_ns - now_)) {
    EXPECT_FALSE(result.wants_pair_probe);
    sent();
  }
  EXPECT_EQ(pair_reply(1, 0, kPairToken), PathVerdict::kDropped);
}

TEST_F(ClientSessionTest, an_idle_session_rests) {
  open();
  EXPECT_TRUE(session_->is_at_rest());
  EXPECT_TRUE(tick().is_idle);
  EXPECT_TRUE(sent().empty());
}

TEST_F(ClientSessionTest, a_paced_session_rests_too) {
  ClientTerms terms;
  terms.controller = cc::FixedRate(1'000'000);
  open(8, terms);
  EXPECT_TRUE(session_->is_at_rest());
  ClientSlot* slot = begin();
  EXPECT_FALSE(session_->is_at_rest());
  finish(respond(slot, sent().at(0).header.number(), 4, 4));
  EXPECT_TRUE(session_->is_at_rest());
  do {
    now_ = tick().next_ns;
    tick();
  } while (session_->is_at_rest() && now_ < 1000 * kMs);
  EXPECT_EQ(sent().at(0).header.kind(), Kind::kReport);  // the due report keeps the session active
}

// ---- Short calls ----

TEST_F(ClientSessionTest, short_call) {
  open();
  ClientSlot* slot = begin(10, 20);
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(packets[0].header.kind(), Kind::kRequest);
  EXPECT_EQ(packets[0].header.flags() & wire::kFirst, wire::kFirst);
  EXPECT_EQ(packets[0].header.request_number(), kFirstCount << 6);
  EXPECT_EQ(packets[0].header.request_type(), 3u);
  EXPECT_EQ(packets[0].header.message_bytes(), 10u);
  EXPECT_EQ(packets[0].header.deadline_code(), wire::kNoDeadline);
  EXPECT_EQ(packets[0].payload.size(), 10u);
  EXPECT_EQ(session_->packets_in_flight(), 1u);
  now_ += 5000;
  const ClientVerdict verdict = respond(slot, packets[0].header.number(), 20, 20);
  EXPECT_EQ(verdict.finished, slot);
  EXPECT_TRUE(verdict.status.ok());
  EXPECT_EQ(slot->response->length_bytes, 20u);
  EXPECT_EQ(session_->rtt().latest_ns(), 5000u);
  finish(verdict);
  EXPECT_EQ(session_->packets_in_flight(), 0u);
  EXPECT_EQ(begin()->request_number, (kFirstCount + 1) << 6);
}

TEST_F(ClientSessionTest, response_of_a_past_a_future_and_no_slot_is_stale) {
  open();
  ClientSlot* slot = begin();
  sent();
  ClientSlot other;
  for (uint32_t number : {slot->request_number - 64, slot->request_number + 64, slot->request_number + 1, 63u}) {
    other.request_number = number;
    EXPECT_EQ(respond(&other, 2, 4, 4).drop, Drop::kStale) << number;  // a late answer to an earlier packet
  }
  EXPECT_EQ(slot->phase, Phase::kSending);
}

// Packets of a stranger who has guessed the session's key change no window, limit, mark or time of the last answer.
TEST_F(ClientSessionTest, packets_that_prove_nothing_have_no_effect) {
  ClientTerms terms;
  terms.liveness_ns = 80 * kMs;
  open(8, terms);
  ClientSlot* slot = begin();
  const uint32_t number = sent().at(0).header.number();
  credits_ = 1;
  const uint32_t server_number = server_number_;
  ClientSlot other;
  other.request_number = slot->request_number + 64;
  bool has_failed = false;
  for (int i = 0; i < 20 && !has_failed; i++) {
    // Either the echo names no recent packet, or the number is beyond the server's window.
    for (const uint32_t echo : {number + 5000, number - 5000, number + 300, number - 10}) {
      EXPECT_EQ(credit(echo).drop, Drop::kUnproven);
      EXPECT_EQ(respond(&other, echo, 4, 4).drop, Drop::kUnproven);
    }
    for (const uint32_t far : {70'000u, 0x800000u, 0xfffe00u}) {
      server_number_ = server_number + far;
      EXPECT_EQ(credit(number).drop, Drop::kUnproven);
      EXPECT_EQ(respond(&other, number, 4, 4).drop, Drop::kUnproven);
    }
    server_number_ = server_number;
    EXPECT_EQ(
        session_->on_cancelled(server_header(Kind::kCancelled, wire::kNoEcho, slot->request_number, 0, 0), now_).drop,
        Drop::kStale);
    server_number_ = server_number;
    EXPECT_EQ(session_->credit_limit(), 8u);
    EXPECT_EQ(session_->packets_in_flight(), 1u);
    const ClientTick result = tick(10 * kMs);
    if (result.ask_liveness) session_->on_peer_idle();
    has_failed = result.has_failed;
    sent();
  }
  EXPECT_TRUE(has_failed);  // the server was silent all the time
}

TEST_F(ClientSessionTest, response_before_the_request_left_is_unproven) {
  open();
  EXPECT_EQ(respond(begin(), 1, 4, 4).drop, Drop::kUnproven);
}

TEST_F(ClientSessionTest, duplicate_response_is_stale) {
  open();
  ClientSlot* slot = begin();
  const uint32_t number = sent()[0].header.number();
  finish(respond(slot, number, 4, 4));
  EXPECT_EQ(respond(slot, number, 4, 4).drop, Drop::kStale);
}

TEST_F(ClientSessionTest, malformed_responses) {
  open();
  ClientSlot* slot = begin(10, 1000);
  const uint32_t number = sent()[0].header.number();
  EXPECT_EQ(respond(slot, number, 10, 9).drop, Drop::kMalformed);
  EXPECT_EQ(respond(slot, number, 10, 11).drop, Drop::kMalformed);
  EXPECT_EQ(respond(slot, number, 300, 99).drop, Drop::kMalformed);
  EXPECT_EQ(respond(slot, number, 0x7fffffff, kPayloadMax).drop, Drop::kMalformed);
  EXPECT_EQ(respond(slot, number, 1, 10, 0).drop, Drop::kStale);  // a part before packet 0
  EXPECT_EQ(slot->phase, Phase::kSending);
}

TEST_F(ClientSessionTest, credit_return_without_a_bitmap_is_malformed) {
  open();
  begin();
  EXPECT_EQ(on_credit(server_header(Kind::kCr, 0, 0, sent()[0].header.number(), 0), {}).drop, Drop::kMalformed);
}

TEST_F(ClientSessionTest, response_larger_than_its_buffer_is_too_large) {
  open();
  for (uint32_t bytes : {11u, 150u}) {
    ClientSlot* slot = begin(10, 10);
    const ClientVerdict verdict = respond(slot, sent()[0].header.number(), bytes, std::min(bytes, kPayloadMax));
    EXPECT_EQ(verdict.status.code(), Code::kTooLarge);
    finish(verdict);
  }
}

TEST_F(ClientSessionTest, failures_say_why) {
  open();
  const std::pair<uint32_t, Code> cases[] = {{0, Code::kRefused},   {1, Code::kNoResponse},   {2, Code::kRefused},
                                             {3, Code::kTooLarge},  {4, Code::kNoMemory},     {5, Code::kDeadline},
                                             {6, Code::kQueueFull}, {7, Code::kSessionReset}, {99, Code::kRefused},
                                             {264, Code::kRefused}};  // 264: 8 and one bit more
  for (const auto& [code, expected] : cases) {
    ClientSlot* slot = begin();
    const ClientVerdict verdict =
        respond(slot, sent()[0].header.number(), code << 16 | 1234, 0, wire::kFirst | wire::kFailure);
    EXPECT_EQ(verdict.status.code(), expected) << code;
    EXPECT_EQ(verdict.app_code, 1234);
    EXPECT_FALSE(verdict.status.message().empty());
    finish(verdict);
  }
}

TEST_F(ClientSessionTest, lost_lease_is_not_received_and_recovered_by_a_probe) {
  open();
  warm_up();
  ClientSlot* slot = begin(10, 10);
  const uint32_t number = sent()[0].header.number();
  const auto header = server_header(Kind::kResponse, wire::kFirst, slot->request_number, number, 5);
  const ClientVerdict verdict = session_->on_response(header, torn(bytes_of(5)), now_);
  EXPECT_EQ(verdict.drop, Drop::kLease);
  EXPECT_EQ(verdict.finished, nullptr);
  EXPECT_EQ(session_->packets_in_flight(), 1u);
  EXPECT_TRUE(tick(2 * kMs).has_timed_out);
  const auto probes = sent();
  ASSERT_EQ(probes.size(), 1u);
  EXPECT_EQ(probes[0].header.kind(), Kind::kProbe);
  finish(respond(slot, probes[0].header.number(), 5, 5));
}

// ---- Credits ----

TEST_F(ClientSessionTest, no_more_in_flight_than_the_limit) {
  open(2);
  ClientSlot* slots[4];
  for (auto& slot : slots) slot = begin();
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 2u);
  credits_ = 3;
  finish(respond(slots[0], packets[0].header.number(), 4, 4));
  EXPECT_EQ(sent().size(), 2u);
  EXPECT_EQ(session_->packets_in_flight(), 3u);
}

TEST_F(ClientSessionTest, packet_that_takes_the_last_credit_is_flagged) {
  open(2);
  begin(1000, 10);
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 2u);
  EXPECT_EQ(packets[0].header.flags() & wire::kWantsCredits, 0);
  EXPECT_NE(packets[1].header.flags() & wire::kWantsCredits, 0);
}

TEST_F(ClientSessionTest, newest_limit_counts_at_once_and_old_packets_set_none) {
  open(4);
  begin();
  const uint32_t number = sent()[0].header.number();
  const auto old = server_header(Kind::kCr, 0, 0, number, 0);
  credits_ = 1;
  credit(number);
  EXPECT_EQ(session_->credit_limit(), 1u);
  on_credit(old, bytes_of(8));
  EXPECT_EQ(session_->credit_limit(), 1u);
  credits_ = 0;
  credit(number);
  EXPECT_EQ(session_->credit_limit(), 1u);
  credits_ = 128;
  credit(number);
  EXPECT_EQ(session_->credit_limit(), 128u);
  EXPECT_TRUE(session_->is_uncongested());
  credits_ = 255;
  credit(number);
  EXPECT_EQ(session_->credit_limit(), 128u);
  EXPECT_TRUE(session_->is_uncongested());
}

// A packet of 100 B and its header has two credits of 64 B, one of 40 B has one.
TEST_F(ClientSessionTest, long_packets_cost_several_credits) {
  open(7, {}, 6);
  EXPECT_EQ(session_->full_packet_credits(), 2u);
  ClientSlot* slot = begin(1000, 10);
  auto packets = sent();
  ASSERT_EQ(packets.size(), 4u);  // the last of them exceeds the limit
  EXPECT_EQ(session_->credits_in_flight(), 8u);
  EXPECT_EQ(session_->packets_in_flight(), 4u);
  session_->check_invariants();
  credit(packets[0].header.number());
  EXPECT_EQ(session_->credits_in_flight(), 6u);
  EXPECT_EQ(sent().size(), 1u);
  session_->end_early(slot, now_);
  EXPECT_EQ(session_->credits_in_flight(), 0u);
  session_->check_invariants();
}

TEST_F(ClientSessionTest, requests_of_one_packet_and_several_credits) {
  open(4, {}, 6);
  ClientSlot* wide = begin(60, 10);
  ClientSlot* narrow = begin(40, 10);
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 2u);
  EXPECT_EQ(session_->credits_in_flight(), 3u);
  session_->check_invariants();
  for (size_t i = 0; i < packets.size(); i++) {
    ClientSlot* slot = packets[i].header.message_bytes() == 60 ? wide : narrow;
    EXPECT_EQ(respond(slot, packets[i].header.number(), 10, 10).finished, slot);
  }
  EXPECT_EQ(session_->credits_in_flight(), 0u);
}

TEST_F(ClientSessionTest, a_limit_of_one_credit_lets_one_full_packet_out) {
  open(1, {}, 6);
  begin(1000, 10);
  EXPECT_EQ(sent().size(), 1u);
  EXPECT_EQ(session_->credits_in_flight(), 2u);
}

TEST_F(ClientSessionTest, limits_above_128_grow_in_steps) {
  open(255, {}, 6);
  EXPECT_EQ(session_->credit_limit(), wire::kCreditsMax);
  EXPECT_TRUE(session_->is_uncongested());
  begin();
  credits_ = 129;
  credit(sent()[0].header.number());
  EXPECT_EQ(session_->credit_limit(), 144u);
  EXPECT_TRUE(session_->is_uncongested());
}

// More packets than the ring of records holds at first, and more than a credit return of four words acknowledges.
TEST_F(ClientSessionTest, two_thousand_packets_in_flight) {
  ClientTerms terms;
  terms.bulk_bytes = 10'000 * kPayloadMax;
  open(255, terms, 7);
  EXPECT_EQ(session_->full_packet_credits(), 1u);
  for (int i = 0; i < 3; i++) begin(100'000, 10);
  EXPECT_EQ(sent().size(), wire::kCreditsMax);
  EXPECT_EQ(session_->packets_in_flight(), wire::kCreditsMax);
  session_->check_invariants();
}

TEST_F(ClientSessionTest, number_before_the_first_is_no_jump) {
  open(4);
  auto header = wire::server_header(Kind::kCr, 0, 7, wire::kNumberMask, 0, 1, 0, 77, 0);
  on_credit(header, bytes_of(8));
  EXPECT_EQ(session_->credit_limit(), 4u);
  credits_ = 5;
  credit(1);
  EXPECT_EQ(session_->credit_limit(), 5u);
}

TEST_F(ClientSessionTest, falls_back_to_the_start_limit_when_idle) {
  ClientTerms terms;
  open(2, terms);
  credits_ = 100;
  warm_up();
  EXPECT_EQ(session_->credit_limit(), 100u);
  tick();
  tick(terms.report_delay_ns);
  EXPECT_EQ(session_->credit_limit(), 2u);
}

TEST_F(ClientSessionTest, falls_back_to_the_start_limit_when_the_last_answer_is_old) {
  ClientTerms terms;
  terms.credits_last_ns = 200'000;
  open(2, terms);
  credits_ = 20;
  warm_up();
  EXPECT_EQ(session_->credit_limit(), 20u);
  session_->forget_old_credits(now_ + 199'999);
  EXPECT_EQ(session_->credit_limit(), 20u);
  session_->forget_old_credits(now_ + 200'000);
  EXPECT_EQ(session_->credit_limit(), 2u);
  // The same holds while the client waits only for a slow handler.
  warm_up();
  begin();
  credit(sent().at(0).header.number());
  EXPECT_EQ(session_->credit_limit(), 20u);
  tick(300'000);
  EXPECT_EQ(session_->credit_limit(), 2u);
}

TEST_F(ClientSessionTest, malformed_and_stale_credit_returns) {
  open();
  begin();
  const uint32_t number = sent()[0].header.number();
  EXPECT_EQ(on_credit(server_header(Kind::kCr, 0, 0, number, 0), bytes_of(7)).drop, Drop::kMalformed);
  EXPECT_EQ(on_credit(server_header(Kind::kCr, 0, 0, number, 0), bytes_of(8 * kCreditReturnWordsMax + 8)).drop,
            Drop::kMalformed);
  EXPECT_EQ(on_credit(server_header(Kind::kCr, wire::kNoEcho, 0, number, 0), bytes_of(8)).drop, Drop::kUnproven);
  EXPECT_EQ(session_->on_credit_return(server_header(Kind::kCr, 0, 0, number, 0), torn(bytes_of(8)), now_).drop,
            Drop::kMalformed);
  EXPECT_EQ(credit(number + 300).drop, Drop::kUnproven);
  EXPECT_EQ(credit(number - 10).drop, Drop::kUnproven);
  EXPECT_EQ(credit(number + 1).drop, Drop::kNone);  // never sent, and therefore without effect on our packets
  EXPECT_EQ(session_->packets_in_flight(), 1u);
  // A damaged number has moved the server's window ahead by one. The acknowledgement of our packet is valid.
  const uint64_t word = wire::to_little_endian(uint64_t{0b11} << 62);
  std::vector<std::byte> ahead(8);
  std::memcpy(ahead.data(), &word, 8);
  EXPECT_EQ(on_credit(server_header(Kind::kCr, 0, 0, number + 1, 0), ahead).drop, Drop::kNone);
  EXPECT_EQ(session_->packets_in_flight(), 0u);
  EXPECT_EQ(credit(number).drop, Drop::kNone);
}

// ---- Waiting, probes, gaps ----

TEST_F(ClientSessionTest, a_server_is_asked_before_it_counts_as_dead_however_long_a_round_trip_took) {
  ClientTerms terms;
  terms.liveness_ns = 8 * kMs;
  open(8, terms);
  const ClientSlot* slot = begin();
  const uint32_t number = sent()[0].header.number();
  now_ += 6 * kMs;
  credit(number);
  ASSERT_EQ(slot->phase, Phase::kWaiting);
  ASSERT_GT(session_->rtt().rto_ns(0), terms.liveness_ns);
  EXPECT_LE(slot->ask_at_ns - now_, terms.liveness_ns / 4);
}

/// The server keeps its response for some times 5 s only.
TEST_F(ClientSessionTest, a_tail_is_probed_for_every_5_s_at_least) {
  ClientTerms terms;
  terms.liveness_ns = 600'000 * kMs;
  open(8, terms);
  begin();
  sent();
  const uint64_t since = now_;
  uint64_t last = now_;
  while (now_ < since + 60'000 * kMs) {
    now_ = tick().next_ns;
    tick();
    if (sent().empty()) continue;
    EXPECT_LE(now_ - last, 5'000 * kMs);
    last = now_;
  }
  EXPECT_GE(now_ - since, 60'000 * kMs);
}

TEST_F(ClientSessionTest, a_lost_first_packet_is_found_before_the_server_counts_as_dead) {
  ClientTerms terms;
  terms.liveness_ns = 8 * kMs;  // less than the first timeout
  open(8, terms);
  begin();
  ASSERT_EQ(sent().size(), 1u);
  tick();
  now_ += terms.liveness_ns / 4;
  EXPECT_TRUE(tick().has_timed_out);
  EXPECT_EQ(sent().size(), 1u) << "the probe";
}

TEST_F(ClientSessionTest, acknowledged_call_waits_and_probes_at_growing_intervals) {
  open();
  warm_up();
  ClientSlot* slot = begin();
  credit(sent()[0].header.number());
  EXPECT_EQ(slot->phase, Phase::kWaiting);
  const uint64_t since = now_;
  uint64_t last = now_, last_interval = 0;
  uint32_t probes = 0;
  while (now_ < since + 400 * kMs) {
    now_ = tick().next_ns;
    tick();
    for (const auto& packet : sent()) {
      EXPECT_EQ(packet.header.kind(), Kind::kProbe);
      EXPECT_EQ(packet.header.request_number(), slot->request_number);
      const uint64_t interval = now_ - last;
      if (probes > 0) {
        EXPECT_GE(interval, last_interval);
        EXPECT_LE(interval, std::max(1 * kMs, (last - since) / 4 + 1));
      }
      last_interval = interval;
      last = now_;
      probes++;
      credit(packet.header.number());  // alive
    }
  }
  EXPECT_GE(probes, 8u);
  EXPECT_LE(probes, 40u);
  EXPECT_LE(last_interval, 125 * kMs);
  finish(respond(slot, 0, 4, 4, wire::kFirst | wire::kNoEcho));
}

TEST_F(ClientSessionTest, gap_in_the_servers_numbers_makes_waiting_calls_ask) {
  open();
  begin();
  begin();
  const auto packets = sent();
  credit(packets[0].header.number());
  EXPECT_TRUE(sent().empty());
  server_number_++;  // lost
  credit(packets[0].header.number());
  const auto probes = sent();
  ASSERT_EQ(probes.size(), 1u);  // the other call is not acknowledged: it has its own timeout
  EXPECT_EQ(probes[0].header.kind(), Kind::kProbe);
}

// In a network that reorders packets, each answer may look like a gap. The answers to probes must not cause new probes
// without end.
TEST_F(ClientSessionTest, gaps_make_waiting_calls_ask_once_a_round_trip) {
  open();
  warm_up();
  begin();
  const uint32_t number = sent()[0].header.number();
  now_ += 10'000;
  credit(number);
  now_ += 1'000'000;
  size_t probes = 0;
  for (int i = 0; i < 10; i++) {
    now_ += 1000;
    server_number_++;  // overtaken
    credit(number);
    probes += sent().size();
  }
  EXPECT_EQ(probes, 1u);
  now_ += 100'000;
  server_number_++;
  credit(number);
  EXPECT_EQ(sent().size(), 1u);
}

TEST_F(ClientSessionTest, gaps_make_a_call_ask_at_times_that_double) {
  open();
  warm_up();
  ClientSlot* slot = begin();
  const uint32_t number = sent()[0].header.number();
  now_ += 10'000;
  credit(number);
  size_t probes = 0;
  for (int i = 0; i < 1000; i++) {  // 11 ms
    now_ += 11'000;
    server_number_++;  // overtaken
    credit(number);
    probes += sent().size();
  }
  EXPECT_GE(probes, 8u);
  EXPECT_LE(probes, 12u);
  finish(respond(slot, number, 4, 4));
  // The next call on the slot sends a probe at once.
  begin();
  const uint32_t next = sent()[0].header.number();
  now_ += 10'000;
  credit(next);
  server_number_++;
  credit(next);
  EXPECT_EQ(sent().size(), 1u);
}

// ---- Loss ----

TEST_F(ClientSessionTest, overtaken_packet_is_lost_after_the_reordering_time) {
  open();
  warm_up();
  ClientSlot* first = begin();
  ClientSlot* second = begin();
  const auto packets = sent();
  now_ += 10'000;
  finish(respond(second, packets[1].header.number(), 4, 4));
  EXPECT_TRUE(sent().empty());
  const ClientTick waiting = tick();
  EXPECT_LE(waiting.next_ns, now_ + RttEstimator::kReorderNsMin);
  EXPECT_TRUE(sent().empty());
  now_ = waiting.next_ns;
  tick();
  const auto again = sent();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].header.request_number(), first->request_number);
  EXPECT_GT(again[0].header.number(), packets[1].header.number());  // never the same number twice
  finish(respond(first, again[0].header.number(), 4, 4));
  EXPECT_EQ(session_->packets_in_flight(), 0u);
}

TEST_F(ClientSessionTest, reordering_within_the_time_is_no_loss) {
  open();
  warm_up();
  ClientSlot* first = begin();
  ClientSlot* second = begin();
  const auto packets = sent();
  now_ += 10'000;
  finish(respond(second, packets[1].header.number(), 4, 4));
  now_ += 1000;
  finish(respond(first, packets[0].header.number(), 4, 4));
  tick(10'000);
  EXPECT_TRUE(sent().empty());
}

TEST_F(ClientSessionTest, answers_of_many_slots_may_leave_a_slow_link_in_another_order) {
  ClientTerms terms;
  terms.link_bytes_per_sec = 10'000'000;  // a packet of 124 B takes 12.4 us
  open(8, terms);
  warm_up();
  std::vector<ClientSlot*> slots;
  for (int i = 0; i < 6; i++) slots.push_back(begin());
  const auto packets = sent();
  for (int i = 5; i >= 0; i--) {
    tick(12'400);
    EXPECT_TRUE(sent().empty()) << "retransmission before the answer to packet " << i;
    finish(respond(slots[i], packets[i].header.number(), 4, 4));
  }
}

TEST_F(ClientSessionTest, tail_is_found_by_a_probe_with_backoff_and_keeps_its_credit) {
  open(1);
  warm_up();
  ClientSlot* slot = begin();
  const uint32_t number = sent()[0].header.number();
  uint64_t last_wait = 0;
  uint32_t probe = 0;
  for (int i = 0; i < 5; i++) {
    const uint64_t since = now_;
    do {
      now_ = tick().next_ns;
    } while (!tick().has_timed_out && now_ < since + 200 * kMs);
    EXPECT_GE(now_ - since, 2 * last_wait);
    last_wait = now_ - since;
    const auto probes = sent();
    ASSERT_EQ(probes.size(), 1u);
    EXPECT_EQ(probes[0].header.kind(), Kind::kProbe);
    EXPECT_EQ(session_->packets_in_flight(), 1u);  // not reclaimed by a timeout
    probe = probes[0].header.number();
  }
  EXPECT_EQ(sent_again_, 0u);  // a probe is no retransmission
  credit(probe);               // the server has the probe, not the request
  tick(RttEstimator::kReorderNsMin);
  const auto again = sent();
  EXPECT_EQ(sent_again_, 1u);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].header.kind(), Kind::kRequest);
  EXPECT_NE(again[0].header.number(), number);
  finish(respond(slot, again[0].header.number(), 4, 4));
}

TEST_F(ClientSessionTest, first_timeout_is_the_measured_one) {
  ClientTerms terms;
  terms.rto_ns_min = 50'000;
  open(8, terms);
  warm_up();
  begin();
  sent();
  const uint64_t rto = session_->rtt().rto_ns(terms.rto_ns_min);
  EXPECT_EQ(rto, 50'000u);
  EXPECT_FALSE(tick(rto - 1).has_timed_out);
  EXPECT_TRUE(tick(1).has_timed_out);
}

// ---- Long requests ----

TEST_F(ClientSessionTest, long_request_in_parts_with_selective_recovery) {
  open(8);
  warm_up();
  ClientSlot* slot = begin(450, 10, now_ + 30 * kMs);
  auto packets = sent();
  ASSERT_EQ(packets.size(), 5u);
  for (uint32_t i = 0; i < 5; i++) {
    EXPECT_EQ(packets[i].header.index(), i);
    EXPECT_EQ(packets[i].header.message_bytes(), 450u);
    EXPECT_EQ(packets[i].payload.size(), i == 4 ? 50u : 100u);
    EXPECT_EQ((packets[i].header.flags() & wire::kFirst) != 0, i == 0);
    EXPECT_EQ(packets[i].payload[0], static_cast<std::byte>(i * 100 * 7 + 1));
  }
  EXPECT_GE(wire::decode_time_left(packets[0].header.deadline_code()), 30 * kMs);
  const uint32_t n = packets[0].header.number();
  now_ += 10'000;
  credit(n + 4, {n, n + 2, n + 3});
  EXPECT_EQ(slot->phase, Phase::kSending);
  EXPECT_EQ(session_->packets_in_flight(), 1u);
  tick(2 * RttEstimator::kReorderNsMin);
  packets = sent();
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(packets[0].header.index(), 1u);
  credit(packets[0].header.number());
  EXPECT_EQ(slot->phase, Phase::kWaiting);
  finish(respond(slot, packets[0].header.number(), 4, 4, wire::kFirst | wire::kNoEcho));
}

TEST_F(ClientSessionTest, answer_acknowledges_all_of_a_long_request) {
  open(8);
  warm_up();
  ClientSlot* slot = begin(450);
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 5u);
  now_ += 10'000;
  // The server has received all packets in one burst, and its answer overtakes its credit return.
  const auto verdict = respond(slot, packets[4].header.number(), 4, 4);
  EXPECT_EQ(session_->packets_in_flight(), 0u);
  EXPECT_EQ(session_->loss_check_at_ns(), UINT64_MAX) << "nothing is suspected";
  finish(verdict);
}

/// A server that takes 4 us for a packet, and acknowledges four packets at a time, or fewer if no more are there. The
/// first copy of a packet is dropped if `is_lost` is true for it. Returns the virtual time of a request of 300 packets.
TEST_F(ClientSessionTest, losses_within_a_long_request_cost_no_timeout) {
  constexpr uint64_t kPacketNs = 4'000, kOneWayNs = 300;
  constexpr uint32_t kPackets = 300;
  ClientTerms terms;
  terms.rto_ns_min = kMs;
  terms.bulk_bytes = 8 * kPayloadMax;
  open(128, terms);
  credits_ = 128;
  warm_up();
  const auto run = [&](auto is_lost) {
    const uint64_t begin_ns = now_;
    ClientSlot* slot = begin(kPackets * kPayloadMax);
    std::vector<bool> was_sent(kPackets);
    std::vector<uint32_t> queue, recent;  // numbers in flight to the server; numbers that it has received
    uint32_t left = kPackets, timeouts = 0;
    while (left != 0) {
      for (const TestPacket& packet : sent()) {
        if (packet.header.kind() == Kind::kProbe) {
          queue.push_back(packet.header.number());
          continue;
        }
        const uint32_t index = packet.header.index();
        const bool is_again = was_sent[index];
        was_sent[index] = true;
        if (is_lost(index) && !is_again) continue;
        queue.push_back(packet.header.number());
        left--;
      }
      if (queue.empty()) {
        now_ = std::max(now_ + 1, tick().next_ns);  // a loss is detected by time
        timeouts += tick().has_timed_out ? 1 : 0;
        continue;
      }
      const size_t burst = std::min<size_t>(queue.size(), 4);
      now_ += burst * kPacketNs + kOneWayNs;
      recent.insert(recent.end(), queue.begin(), queue.begin() + static_cast<ptrdiff_t>(burst));
      queue.erase(queue.begin(), queue.begin() + static_cast<ptrdiff_t>(burst));
      if (recent.size() > 100) recent.erase(recent.begin(), recent.end() - 100);
      credit(recent.back(), {recent.begin(), recent.end() - 1});
      tick();
    }
    EXPECT_EQ(timeouts, 0u);
    finish(respond(slot, queue.empty() ? recent.back() : queue.back(), 4, 4));
    return now_ - begin_ns;
  };
  const uint64_t lossless_ns = run([](uint32_t) { return false; });
  const uint64_t one_in_fifty_ns = run([](uint32_t index) { return index % 50 == 25; });
  // Each of the six losses costs a packet's time, and a packet of the window until it is detected.
  EXPECT_LT(one_in_fifty_ns, lossless_ns + lossless_ns / 5);
  const uint64_t pairs_ns = run([](uint32_t index) { return index % 50 == 25 || index % 50 == 26; });
  EXPECT_LT(pairs_ns, lossless_ns + lossless_ns / 3);
}

TEST_F(ClientSessionTest, long_request_stays_within_credits_and_its_share) {
  ClientTerms terms;
  terms.bulk_bytes = 3 * kPayloadMax;
  open(8, terms);
  begin(1000, 10);
  EXPECT_EQ(sent().size(), 3u);
  ClientSlot* brief = begin();
  const auto packets = sent();  // a short request does not queue behind the long one
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(packets[0].header.request_number(), brief->request_number);
}

/// One turn sends many packets of a long request, as single turns would: in order, within the credits, and nothing is
/// lost where the transport refuses one.
TEST_F(ClientSessionTest, packets_of_a_long_request_leave_in_runs) {
  constexpr uint32_t kPackets = 201, kCredits = 128;
  ClientTerms terms;
  terms.bulk_bytes = 1000 * kPayloadMax;
  open(kCredits, terms);
  warm_up();
  const ClientSlot* slot = begin((kPackets - 1) * kPayloadMax + 50);
  std::vector<TestPacket> packets;
  size_t refused_at = 70;
  const auto send = [&](const wire::Header& header, const std::byte* data, uint32_t bytes, detail::Buffer* buffer) {
    if (packets.size() == refused_at) return false;
    packets.push_back({header, std::vector<std::byte>(data, data + bytes)});
    EXPECT_EQ(buffer, bytes != 0 ? slot->request : nullptr);
    return true;
  };
  const uint64_t before = session_->long_bytes_sent();
  uint32_t count = 0, turns = 0;
  const auto transmit = [&] {
    ClientSession::Turn turn;
    do {
      turn = session_->transmit(
          now_, send, [&] { return ++ticket_; }, count);
      turns++;
    } while (turn >= ClientSession::Turn::kSent);
    session_->check_invariants();
    EXPECT_EQ(count, packets.size());
    EXPECT_EQ(slot->ticket + (packets.back().header.kind() == Kind::kProbe), ticket_);
    return turn;
  };
  EXPECT_EQ(transmit(), ClientSession::Turn::kRefused);
  EXPECT_EQ(packets.size(), refused_at);
  EXPECT_EQ(session_->packets_in_flight(), refused_at);
  EXPECT_EQ(session_->long_bytes_sent() - before, refused_at * kPayloadMax);
  EXPECT_LT(turns, 10u) << "the ring of sent packets grows some times";
  refused_at = SIZE_MAX;
  EXPECT_EQ(transmit(), ClientSession::Turn::kNothing);
  EXPECT_EQ(packets.size(), kCredits);
  const uint32_t first = packets[0].header.number();
  std::vector<uint32_t> others(kCredits - 1);
  std::iota(others.begin(), others.end(), first);
  credit(first + kCredits - 1, others);
  EXPECT_EQ(transmit(), ClientSession::Turn::kNothing);
  ASSERT_EQ(packets.size(), kPackets + 1);
  EXPECT_EQ(packets[kPackets].header.kind(), Kind::kProbe);
  for (uint32_t i = 0; i < kPackets; i++) {
    const wire::Header& header = packets[i].header;
    EXPECT_EQ(header.number(), first + i);
    EXPECT_EQ(header.index(), i);
    EXPECT_EQ(header.message_bytes(), slot->request->length_bytes);
    EXPECT_EQ(header.payload_code(), packets[0].header.payload_code());
    EXPECT_EQ(header.request_number(), slot->request_number);
    const int wants_credits = i == kCredits - 1 ? wire::kWantsCredits : 0;
    EXPECT_EQ(header.flags(), (i == 0 ? wire::kFirst : 0) | wants_credits) << i;
    EXPECT_EQ(packets[i].payload.size(), i == kPackets - 1 ? 50 : kPayloadMax);
    EXPECT_EQ(packets[i].payload[0], static_cast<std::byte>(i * kPayloadMax * 7 + 1)) << i;
  }
}

TEST_F(ClientSessionTest, cancels_leave_before_short_requests_and_these_before_long_ones) {
  open(8);
  ClientSlot* ended = begin();
  EXPECT_EQ(sent().size(), 1u);
  const ClientSlot* lengthy = begin(300, 10);
  const ClientSlot* brief = begin();
  session_->end_early(ended, now_);
  tick();
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 5u);
  EXPECT_EQ(packets[0].header.kind(), Kind::kCancel);
  EXPECT_EQ(packets[1].header.request_number(), brief->request_number);
  for (size_t i = 2; i < packets.size(); i++) {
    EXPECT_EQ(packets[i].header.request_number(), lengthy->request_number);
  }
}

TEST_F(ClientSessionTest, echo_of_another_slots_packet_acknowledges_nothing) {
  open();
  ClientSlot* first = begin();
  ClientSlot* second = begin();
  const auto packets = sent();
  finish(respond(first, packets[1].header.number(), 4, 4));
  EXPECT_EQ(session_->packets_in_flight(), 1u);
  EXPECT_EQ(second->phase, Phase::kSending);
}

// ---- Long responses ----

/// The requests for the rest wait for their pace. The server gives up a response that is not requested for 20 s.
TEST_F(ClientSessionTest, a_response_whose_rest_cannot_be_asked_for_is_probed_for) {
  open();
  ClientSlot* slot = begin(10, 10 * kPayloadMax);
  const uint32_t number = sent().at(0).header.number();
  respond(slot, number, 10 * kPayloadMax, kPayloadMax);
  EXPECT_EQ(slot->phase, Phase::kReceiving);
  tick();
  tick(4999 * kMs);
  EXPECT_FALSE(session_->has_unpaced());
  tick(1 * kMs);
  EXPECT_TRUE(session_->has_unpaced());
  const auto packets = sent();
  ASSERT_FALSE(packets.empty());
  EXPECT_EQ(packets[0].header.kind(), Kind::kProbe);
  EXPECT_EQ(packets[0].header.request_number(), slot->request_number);
  EXPECT_EQ(packets[0].header.index(), 1u) << "its request was delivered";
}

TEST_F(ClientSessionTest, long_response_by_ranges) {
  open(8);
  ClientSlot* slot = begin(10, 1000);
  respond(slot, sent()[0].header.number(), 950, 100);
  EXPECT_EQ(slot->phase, Phase::kReceiving);
  EXPECT_EQ(session_->packets_in_flight(), 0u);
  const auto rfrs = sent();
  ASSERT_EQ(rfrs.size(), 1u);
  EXPECT_EQ(rfrs[0].header.kind(), Kind::kRfr);
  EXPECT_EQ(rfrs[0].header.index(), 1u);
  EXPECT_EQ(rfrs[0].header.message_bytes(), 9u);
  EXPECT_EQ(pools_.response_credits_free, response_packets_ - 9);
  const uint32_t echo = rfrs[0].header.number();
  for (uint32_t i : {9u, 3u, 1u, 2u, 4u, 8u, 7u, 6u})
    EXPECT_EQ(respond(slot, echo, i, i == 9 ? 50 : 100, 0).finished, nullptr);
  EXPECT_EQ(respond(slot, echo, 3, 100, 0).drop, Drop::kStale);
  EXPECT_EQ(respond(slot, echo, 5, 99, 0).drop, Drop::kMalformed);
  EXPECT_EQ(respond(slot, echo, 10, 100, 0).drop, Drop::kMalformed);
  const ClientVerdict verdict = respond(slot, echo, 5, 100, 0);
  EXPECT_EQ(slot->response->length_bytes, 950u);
  finish(verdict);
  EXPECT_EQ(pools_.response_credits_free, response_packets_);
}

TEST_F(ClientSessionTest, the_next_full_part_of_a_response_is_expected_after_an_rfr) {
  open(8);
  ClientSlot* slot = begin(10, 1000);
  const auto header = [&](uint32_t index, uint8_t flags = 0) {
    wire::Header part =
        wire::server_header(Kind::kResponse, flags, session_->local_key(), 77, slot->request_number, 5, 6, 7, index);
    part.add_length(wire::kHeaderBytes + 100);
    return part;
  };
  const auto place_after = [&](const wire::Header& part) -> int64_t {
    const transport::ExpectedPacket expected = session_->expected_after(part);
    if (expected.place == nullptr) return -1;
    EXPECT_EQ(expected.payload_bytes, 100u);
    return expected.place - slot->response->data();
  };
  const wire::Header first = header(450, wire::kFirst);
  EXPECT_EQ(place_after(first), -1);
  respond(slot, sent()[0].header.number(), 450, 100);
  EXPECT_EQ(place_after(first), -1) << "no RFR has asked for more";
  const auto rfrs = sent();
  ASSERT_EQ(rfrs.size(), 1u);
  ASSERT_EQ(rfrs[0].header.message_bytes(), 4u);
  EXPECT_EQ(place_after(first), 100);
  EXPECT_TRUE(session_->expected_after(first).is(header(1, wire::kEcnEcho)));
  EXPECT_FALSE(session_->expected_after(first).is(header(2)));
  EXPECT_FALSE(session_->expected_after(first).is(header(1, wire::kFailure)));
  const uint32_t echo = rfrs[0].header.number();
  respond(slot, echo, 2, 100, 0);
  EXPECT_EQ(place_after(header(2)), 300);
  respond(slot, echo, 1, 100, 0);
  EXPECT_EQ(place_after(header(1)), 300) << "part 2 has been received";
  respond(slot, echo, 3, 100, 0);
  EXPECT_EQ(place_after(header(3)), -1) << "the last part is not full";
  finish(respond(slot, echo, 4, 50, 0));
  for (uint32_t i = 0; i < 5; i++) EXPECT_EQ(place_after(header(i)), -1) << "the program has the message";
}

// One of two packets was damaged above the link's checksum. If it was the first one, its parts would never fit.
TEST_F(ClientSessionTest, a_response_whose_size_changes_begins_anew) {
  open(8);
  ClientSlot* slot = begin(10, 1000);
  const uint32_t request = sent()[0].header.number();
  now_ += 10'000;
  respond(slot, request, 252, 100);
  const auto rfrs = sent();
  ASSERT_EQ(rfrs.size(), 1u);
  EXPECT_EQ(respond(slot, rfrs[0].header.number(), 1, 100, 0).drop, Drop::kNone);
  EXPECT_EQ(respond(slot, rfrs[0].header.number(), 2, 50, 0).drop, Drop::kMalformed);
  EXPECT_TRUE(tick(2 * kMs).has_timed_out);
  const uint32_t probe = sent().at(0).header.number();
  respond(slot, probe, 250, 100);  // the server answers a probe with packet 0
  session_->check_invariants();
  EXPECT_EQ(pools_.response_credits_free, response_packets_);
  const auto again = sent();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].header.index(), 1u);
  EXPECT_EQ(again[0].header.message_bytes(), 2u);
  respond(slot, again[0].header.number(), 1, 100, 0);
  finish(respond(slot, again[0].header.number(), 2, 50, 0));
  EXPECT_EQ(pools_.response_credits_free, response_packets_);
}

// A damaged packet has moved the server's slot on. The server answers the request as lost, so that probes end.
TEST_F(ClientSessionTest, a_probe_for_a_response_says_that_its_request_was_delivered) {
  open(8);
  ClientSlot* slot = begin(10, 1000);
  const uint32_t request = sent()[0].header.number();
  now_ += 10'000;
  respond(slot, request, 250, 100);
  ASSERT_EQ(sent().size(), 1u);
  EXPECT_TRUE(tick(2 * kMs).has_timed_out);
  const auto probes = sent();
  ASSERT_EQ(probes.size(), 1u);
  EXPECT_EQ(probes[0].header.kind(), Kind::kProbe);
  EXPECT_EQ(probes[0].header.index(), 1u);
}

TEST_F(ClientSessionTest, ranges_are_bounded_by_the_endpoints_queue) {
  pools_.response_credits_free = 5;
  open(8);
  ClientSlot* slot = begin(10, 1000);
  respond(slot, sent()[0].header.number(), 1000, 100);
  const auto rfrs = sent();
  ASSERT_EQ(rfrs.size(), 1u);
  EXPECT_EQ(rfrs[0].header.message_bytes(), 5u);
  respond(slot, rfrs[0].header.number(), 1, 100, 0);
  const auto more = sent();
  ASSERT_EQ(more.size(), 1u);
  EXPECT_EQ(more[0].header.index(), 6u);
  EXPECT_EQ(more[0].header.message_bytes(), 1u);
}

TEST_F(ClientSessionTest, ranges_are_counted_in_the_units_of_the_endpoints_queue) {
  pools_.response_credits_free = 11;
  pools_.credit_unit = 6;
  open(8);
  ClientSlot* slot = begin(10, 1000);
  respond(slot, sent()[0].header.number(), 1000, 100);
  const auto rfrs = sent();
  ASSERT_EQ(rfrs.size(), 1u);
  EXPECT_EQ(rfrs[0].header.message_bytes(), 5u);
  EXPECT_EQ(pools_.response_credits_free, 1);
}

// Responses of other sessions in flight do not stop this session from receiving (clause 5.4).
TEST_F(ClientSessionTest, an_empty_pool_leaves_each_session_packets_of_its_own) {
  pools_.response_credits_free = response_packets_ = 0;
  open(8);
  ClientSlot* slot = begin(10, 1000);
  respond(slot, sent()[0].header.number(), 1000, 100);
  const auto rfrs = sent();
  ASSERT_EQ(rfrs.size(), 1u);
  EXPECT_EQ(rfrs[0].header.message_bytes(), 4u);
  EXPECT_TRUE(sent().empty());
  respond(slot, rfrs[0].header.number(), 1, 100, 0);
  const auto more = sent();
  ASSERT_EQ(more.size(), 1u);
  EXPECT_EQ(more[0].header.message_bytes(), 1u);
}

// Clause 5.4 with a known downlink: its capacity is divided by the sessions that receive responses.
TEST_F(ClientSessionTest, responses_share_the_downlink) {
  pools_.response_credits_free = 10'000;
  pools_.response_share = ResponseShare({20 * 1000, 1000});
  for (int i = 0; i < 50; i++) pools_.response_share.begin();
  open(100);
  ClientSlot* slot = begin(10, 100'000);
  uint32_t echo = 0;
  const auto asked = [&] {
    uint32_t packets = 0;
    for (const auto& rfr : sent()) {
      EXPECT_EQ(rfr.header.kind(), Kind::kRfr);
      packets += rfr.header.message_bytes();
      if (echo == 0) echo = rfr.header.number();
    }
    return packets;
  };
  respond(slot, sent()[0].header.number(), 100'000, 100);
  EXPECT_EQ(asked(), 20u);  // alone
  uint64_t others[30] = {};
  for (size_t i = 0; i < 3; i++) pools_.response_share.hear(others[i]);
  for (uint32_t i = 1; i <= 15; i++) {
    respond(slot, echo, i, 100, 0);
    EXPECT_EQ(asked(), 0u);  // 20 - i are in flight, and the limit is 5
  }
  respond(slot, echo, 16, 100, 0);
  EXPECT_EQ(asked(), 1u);
  for (uint64_t& other : others) pools_.response_share.hear(other);
  for (uint32_t i = 17; i <= 20; i++) {
    respond(slot, echo, i, 100, 0);
    EXPECT_EQ(asked(), 0u);
  }
  echo = 0;
  pools_.response_share.start_epoch(false);
  EXPECT_EQ(pools_.response_share.packets(), 1u);
  pools_.response_share.start_epoch(false);
  EXPECT_EQ(asked(), 19u);  // the other sessions have ended
}

TEST_F(ClientSessionTest, part_that_was_never_asked_for_is_malformed) {
  open(1);
  ClientSlot* slot = begin(10, 10'000);
  respond(slot, sent()[0].header.number(), 10'000, 100);
  const auto rfrs = sent();
  ASSERT_EQ(rfrs.size(), 1u);
  const uint32_t next = 1 + rfrs[0].header.message_bytes();
  EXPECT_EQ(respond(slot, rfrs[0].header.number(), next, 100, 0).drop, Drop::kMalformed);
}

TEST_F(ClientSessionTest, response_parts_that_were_overtaken_are_asked_for_again) {
  open(8);
  warm_up();
  ClientSlot* slot = begin(10, 1000);
  respond(slot, sent()[0].header.number(), 1000, 100);
  const uint32_t echo = sent()[0].header.number();
  now_ += 10'000;
  for (uint32_t i : {1u, 2u, 4u, 7u, 8u, 9u}) respond(slot, echo, i, 100, 0);
  tick(20'000);
  const auto again = sent();
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].header.index(), 3u);
  EXPECT_EQ(again[0].header.message_bytes(), 1u);
  EXPECT_EQ(again[1].header.index(), 5u);
  EXPECT_EQ(again[1].header.message_bytes(), 2u);
  respond(slot, again[0].header.number(), 3, 100, 0);
  respond(slot, again[1].header.number(), 5, 100, 0);
  finish(respond(slot, again[1].header.number(), 6, 100, 0));
}

TEST_F(ClientSessionTest, lost_lease_of_a_response_part_is_asked_for_again) {
  open(8);
  warm_up();
  ClientSlot* slot = begin(10, 200);
  respond(slot, sent()[0].header.number(), 200, 100);
  const uint32_t echo = sent()[0].header.number();
  const auto header = server_header(Kind::kResponse, 0, slot->request_number, echo, 1);
  EXPECT_EQ(session_->on_response(header, torn(bytes_of(100)), now_).drop, Drop::kLease);
  EXPECT_TRUE(tick(2 * kMs).has_timed_out);
  const uint32_t probe = sent().at(0).header.number();
  respond(slot, probe, 200, 100);  // the server answers a probe with packet 0
  tick(RttEstimator::kReorderNsMin);
  const auto again = sent();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].header.kind(), Kind::kRfr);
  finish(respond(slot, again[0].header.number(), 1, 100, 0));
}

// ---- Endings ----

TEST_F(ClientSessionTest, end_before_the_first_packet_frees_the_slot_and_gives_the_number_back) {
  open();
  ClientSlot* slot = begin();
  session_->end_early(slot, now_);
  EXPECT_EQ(slot->phase, Phase::kFree);
  EXPECT_TRUE(sent().empty());
  begin();
  EXPECT_EQ(sent().at(0).header.request_number(), kFirstCount << wire::kSlotBits);
}

TEST_F(ClientSessionTest, end_early_in_every_phase_cancels_once_and_waits_for_the_acknowledgement) {
  for (int phase = 0; phase < 4; phase++) {
    open(8);
    ClientSlot* slot = begin(phase == 1 ? 500 : 10, 500);
    const uint32_t number = sent()[0].header.number();
    if (phase == 2) credit(number);
    if (phase == 3) {
      respond(slot, number, 500, 100);
      EXPECT_EQ(sent().size(), 1u);
    }
    session_->end_early(slot, now_);
    session_->check_invariants();
    EXPECT_EQ(slot->phase, Phase::kEnded);
    EXPECT_EQ(slot->request, nullptr);
    EXPECT_EQ(session_->packets_in_flight(), 0u);
    const ClientTick after = tick();
    const auto cancels = sent();
    ASSERT_EQ(cancels.size(), 1u) << phase;
    EXPECT_EQ(cancels[0].header.kind(), Kind::kCancel);
    EXPECT_EQ(cancels[0].header.request_number(), slot->request_number);
    now_ = after.next_ns;
    while (sent().empty() && now_ < after.next_ns + 100 * kMs) now_ = tick().next_ns;  // again after a timeout
    EXPECT_EQ(
        session_->on_cancelled(server_header(Kind::kCancelled, wire::kNoEcho, slot->request_number + 64, 0, 0), now_)
            .drop,
        Drop::kStale);
    EXPECT_EQ(
        session_->on_cancelled(server_header(Kind::kCancelled, wire::kNoEcho, slot->request_number, 0, 0), now_).drop,
        Drop::kNone);
    EXPECT_EQ(slot->phase, Phase::kFree);
    session_.reset();
    server_number_ = 0;
  }
}

TEST_F(ClientSessionTest, answer_after_the_end_frees_the_slot_and_touches_no_buffer) {
  open();
  ClientSlot* slot = begin(10, 500);
  const uint32_t number = sent()[0].header.number();
  session_->end_early(slot, now_);
  requests_.clear();
  responses_.clear();
  EXPECT_EQ(respond(slot, number, 500, 100).finished, nullptr);
  EXPECT_EQ(slot->phase, Phase::kFree);
}

TEST_F(ClientSessionTest, lost_request_as_answer_to_a_cancel_frees_the_slot) {
  open();
  ClientSlot* slot = begin();
  const uint32_t number = sent()[0].header.number();
  session_->end_early(slot, now_);
  constexpr uint32_t kLost = static_cast<uint32_t>(wire::FailureCode::kLost) << 16;
  EXPECT_EQ(respond(slot, number, kLost, 0, wire::kFirst | wire::kFailure).finished, nullptr);
  EXPECT_EQ(slot->phase, Phase::kFree);
}

TEST_F(ClientSessionTest, cancelled_for_a_call_that_goes_on_is_stale) {
  open();
  ClientSlot* slot = begin();
  sent();
  EXPECT_EQ(
      session_->on_cancelled(server_header(Kind::kCancelled, wire::kNoEcho, slot->request_number, 0, 0), now_).drop,
      Drop::kStale);
  EXPECT_EQ(slot->phase, Phase::kSending);
}

TEST_F(ClientSessionTest, deadline_expires_in_every_phase) {
  open();
  ClientSlot* slot = begin(10, 10, now_ + 5 * kMs);
  sent();
  ClientTick result = tick();
  EXPECT_LE(result.next_ns, slot->deadline_ns);
  EXPECT_EQ(result.expired_mask, 0u);
  result = tick(5 * kMs);
  EXPECT_EQ(result.expired_mask, 1u);
  session_->end_early(slot, now_);
  EXPECT_EQ(tick().expired_mask, 0u);
}

TEST_F(ClientSessionTest, only_the_call_with_a_deadline_carries_one) {
  open();
  warm_up();
  begin();
  begin(10, 10, now_ + 50 * kMs);
  begin();
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 3u);
  const auto has_deadline = [](const TestPacket& p) { return p.header.deadline_code() != wire::kNoDeadline; };
  EXPECT_EQ(std::count_if(packets.begin(), packets.end(), has_deadline), 1);
  EXPECT_TRUE(has_deadline(packets[1])) << "all leave together, in the order of their slots";
}

TEST_F(ClientSessionTest, calls_with_deadlines_leave_in_the_common_case) {
  open();
  warm_up();
  std::vector<wire::Header> headers;
  bool refuses = true;
  const auto send = [&](const wire::Header& header, const std::byte*, uint32_t, detail::Buffer*) {
    if (refuses && headers.size() == 1) return false;
    headers.push_back(header);
    return true;
  };
  const auto ticket = [&] { return ++ticket_; };
  begin(10, 10, now_ + 50 * kMs);
  begin();
  begin(10, 10, now_ + 20 * kMs);
  EXPECT_TRUE(session_->has_timed());
  EXPECT_EQ(session_->transmit_short<false>(now_, send, ticket), 0u);
  EXPECT_EQ(session_->transmit_short<true>(now_, send, ticket), 1u);
  EXPECT_TRUE(session_->has_timed()) << "a call with a deadline is left";
  session_->check_invariants();
  refuses = false;
  EXPECT_EQ(session_->transmit_short<true>(now_, send, ticket), 2u);
  EXPECT_FALSE(session_->has_timed());
  EXPECT_FALSE(session_->wants_to_send());
  session_->check_invariants();
  begin();
  EXPECT_EQ(session_->transmit_short<false>(now_, send, ticket), 1u);

  ASSERT_EQ(headers.size(), 4u);
  const uint64_t left_ns[] = {50 * kMs, UINT64_MAX, 20 * kMs, UINT64_MAX};
  for (uint32_t i = 0; i < 4; i++) {
    EXPECT_EQ(wire::decode_time_left(headers[i].deadline_code()), left_ns[i]);
    EXPECT_EQ(headers[i].number(), headers[0].number() + i);
    const ClientSlot* slot = session_->slot(i);
    const auto payload = bytes_of(10);
    const wire::Header answer =
        server_header(Kind::kResponse, wire::kFirst, slot->request_number, headers[i].number(), 10);
    EXPECT_EQ(session_->try_finish(answer, {payload.data(), 10, nullptr, 0}, now_), slot);
  }
  session_->check_invariants();
}

TEST_F(ClientSessionTest, response_after_a_credit_return_is_nearly_a_common_case) {
  open();
  warm_up();
  ClientSlot* slot = begin();
  const uint32_t number = sent().at(0).header.number();
  const auto payload = bytes_of(10);
  const auto response_to = [&](uint32_t request_number, uint32_t echo, uint8_t flags = wire::kFirst) {
    return server_header(Kind::kResponse, flags, request_number, echo, 10);
  };
  const auto finishes = [&](wire::Header header, uint32_t bytes = 10) {
    return session_->try_finish_waiting(header, {payload.data(), bytes, nullptr, 0}, now_) != nullptr;
  };
  EXPECT_FALSE(finishes(response_to(slot->request_number, number))) << "the request is not acknowledged yet";
  --server_number_;
  credit(number);
  ASSERT_EQ(slot->phase, Phase::kWaiting);
  ClientSlot* other = begin();
  const uint32_t other_number = sent().at(0).header.number();
  now_ += kMs;

  const wire::Header good = response_to(slot->request_number, number);
  EXPECT_FALSE(finishes(good, 9)) << "not the size that the header has";
  EXPECT_FALSE(finishes(response_to(slot->request_number, number))) << "a packet of the server is missing";
  server_number_ -= 2;
  struct Wrong {
    uint32_t request_number, echo;
    uint8_t flags;
  };
  for (const Wrong& wrong : {Wrong{slot->request_number - wire::kSlotsMax, number, wire::kFirst},
                             {other->request_number, number, wire::kFirst},
                             {slot->request_number, other_number, wire::kFirst},
                             {slot->request_number, number, 0},
                             {slot->request_number, number, wire::kFirst | wire::kFailure},
                             {slot->request_number, number, wire::kFirst | wire::kEcnEcho}}) {
    const wire::Header header = response_to(wrong.request_number, wrong.echo, wrong.flags);
    EXPECT_EQ(header.number(), good.number());
    EXPECT_FALSE(finishes(header)) << wrong.request_number << ' ' << wrong.echo << ' ' << int{wrong.flags};
    --server_number_;
  }
  credits_++;
  EXPECT_FALSE(finishes(response_to(slot->request_number, number))) << "another credit limit";
  credits_--;
  EXPECT_EQ(server_number_, good.number()) << "the number was right each time";
  EXPECT_EQ(slot->phase, Phase::kWaiting);
  EXPECT_EQ(session_->credits_in_flight(), 1u) << "nothing has changed";

  EXPECT_TRUE(finishes(good));
  EXPECT_EQ(slot->response->length_bytes, 10u);
  EXPECT_EQ(std::memcmp(slot->response->data(), payload.data(), 10), 0);
  EXPECT_EQ(session_->last_answer_ns(), now_);
  session_->release_slot(slot);
  EXPECT_FALSE(finishes(good)) << "it has come already";
  session_->check_invariants();
  // The server's next packet is in order.
  const wire::Header next = response_to(other->request_number, other_number);
  EXPECT_EQ(session_->try_finish(next, {payload.data(), 10, nullptr, 0}, now_), other);
  session_->check_invariants();
}

TEST_F(ClientSessionTest, a_call_whose_deadline_is_over_before_it_leaves_has_no_time_left) {
  open();
  warm_up();
  begin(10, 10, now_ + 5 * kMs);
  now_ += 6 * kMs;
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(wire::decode_time_left(packets[0].header.deadline_code()), 0u);
}

TEST_F(ClientSessionTest, retransmission_carries_what_is_left_of_the_deadline) {
  open();
  warm_up();
  ClientSlot* slot = begin(10, 10, now_ + 50 * kMs);
  EXPECT_EQ(wire::decode_time_left(sent()[0].header.deadline_code()), 50 * kMs);
  tick(20 * kMs - RttEstimator::kReorderNsMin);
  credit(sent().at(0).header.number());
  tick(RttEstimator::kReorderNsMin);
  const auto again = sent();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(wire::decode_time_left(again[0].header.deadline_code()), 30 * kMs);
  EXPECT_EQ(slot->phase, Phase::kSending);
}

TEST_F(ClientSessionTest, one_report_for_all_slots_after_an_idle_delay) {
  ClientTerms terms;
  open(8, terms);
  ClientSlot* slots[3];
  for (auto& slot : slots) slot = begin();
  const auto packets = sent();
  for (int i = 0; i < 3; i++) finish(respond(slots[i], packets[i].header.number(), 4, 4));
  ClientTick result = tick();
  EXPECT_FALSE(result.is_idle);
  EXPECT_EQ(result.next_ns, now_ + terms.report_delay_ns);
  tick(terms.report_delay_ns);
  const auto reports = sent();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].header.kind(), Kind::kReport);
  ASSERT_EQ(reports[0].payload.size(), 12u);
  for (int i = 0; i < 3; i++) {
    uint32_t number;
    std::memcpy(&number, reports[0].payload.data() + 4 * i, 4);
    EXPECT_EQ(number, slots[i]->request_number);
  }
  credit(reports[0].header.number());
  EXPECT_TRUE(tick().is_idle);
  EXPECT_TRUE(tick(1000 * kMs).is_idle);
  EXPECT_TRUE(sent().empty());
}

TEST_F(ClientSessionTest, lost_report_is_sent_again_until_it_is_acknowledged) {
  ClientTerms terms;
  open(8, terms);
  ClientSlot* slot = begin();
  finish(respond(slot, sent().at(0).header.number(), 4, 4));
  tick();
  std::vector<wire::Header> reports;
  ClientTick result = tick(terms.report_delay_ns);
  for (int i = 0; i < 3; i++) {
    const auto packets = sent();
    ASSERT_EQ(packets.size(), 1u) << i;
    EXPECT_EQ(packets[0].header.kind(), Kind::kReport);
    EXPECT_EQ(packets[0].payload.size(), 4u);
    reports.push_back(packets[0].header);
    result = tick();
    ASSERT_FALSE(result.is_idle);
    const uint64_t gap_ns = result.next_ns - now_;
    EXPECT_EQ(gap_ns, terms.report_delay_ns / 8 << i) << "twice as long each time";
    result = tick(gap_ns);
  }
  sent();
  credit(reports[2].number(), {reports[0].number()});  // an older number changes nothing
  tick();
  credit(reports[2].number() + 1);
  EXPECT_TRUE(tick().is_idle);
  EXPECT_TRUE(tick(10'000 * kMs).is_idle);
  EXPECT_TRUE(sent().empty());
}

TEST_F(ClientSessionTest, report_waits_while_the_endpoint_has_too_many_under_way) {
  pools_.reports_free = 1;
  ClientTerms terms;
  open(8, terms);
  ClientSlot* slot = begin();
  finish(respond(slot, sent().at(0).header.number(), 4, 4));
  tick();
  pools_.reports_free = 0;
  const ClientTick result = tick(terms.report_delay_ns);
  EXPECT_TRUE(sent().empty());
  EXPECT_EQ(result.next_ns, now_ + terms.report_delay_ns);
  pools_.reports_free = 1;
  tick(terms.report_delay_ns);
  EXPECT_EQ(pools_.reports_free, 0);
  const auto reports = sent();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].header.kind(), Kind::kReport);
  EXPECT_EQ(pools_.reports_free, 0) << "until it is acknowledged";
  credit(reports[0].header.number());
  EXPECT_EQ(pools_.reports_free, 1);
  EXPECT_TRUE(tick().is_idle);
}

TEST_F(ClientSessionTest, report_waits_longer_at_an_endpoint_with_many_sessions) {
  ClientTerms terms;
  open(8, terms);
  pools_.report_delay_min_ns = 10 * terms.report_delay_ns;
  ClientSlot* slot = begin();
  finish(respond(slot, sent().at(0).header.number(), 4, 4));
  EXPECT_EQ(tick().next_ns, now_ + 10 * terms.report_delay_ns);
  tick(10 * terms.report_delay_ns - 1);
  EXPECT_TRUE(sent().empty());
  tick(1);
  const auto reports = sent();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].header.kind(), Kind::kReport);
  pools_.report_delay_min_ns = 0;
  begin();
  sent();
}

TEST_F(ClientSessionTest, report_that_a_call_makes_needless_leaves_its_place_to_others) {
  ClientTerms terms;
  open(8, terms);
  ClientSlot* slot = begin();
  finish(respond(slot, sent().at(0).header.number(), 4, 4));
  tick();
  tick(terms.report_delay_ns);
  EXPECT_EQ(pools_.reports_free, reports_ - 1);
  begin();
  tick();  // before the report has left
  EXPECT_EQ(pools_.reports_free, reports_);
}

TEST_F(ClientSessionTest, session_that_ends_with_a_report_under_way_leaves_its_place_to_others) {
  ClientTerms terms;
  open(8, terms);
  ClientSlot* slot = begin();
  finish(respond(slot, sent().at(0).header.number(), 4, 4));
  tick();
  tick(terms.report_delay_ns);
  EXPECT_EQ(sent().size(), 1u);
  session_.reset();
  EXPECT_EQ(pools_.reports_free, reports_);
}

TEST_F(ClientSessionTest, reports_outlast_a_silence_that_ends_no_session) {
  ClientTerms terms;
  terms.report_delay_ns = 1 * kMs;
  open(8, terms);
  warm_up();
  const uint64_t begin_ns = now_;
  uint64_t last_ns = 0;
  ClientTick result = tick();
  for (int i = 0; i < 100 && !result.is_idle; i++) {
    if (!sent().empty()) last_ns = now_ - begin_ns;
    result = tick(result.next_ns == UINT64_MAX ? kMs : result.next_ns - std::min(result.next_ns, now_));
  }
  EXPECT_TRUE(result.is_idle);
  EXPECT_GE(last_ns, 490 * kMs);
  EXPECT_LE(last_ns, 1000 * kMs);
}

TEST_F(ClientSessionTest, reports_without_an_acknowledgement_end) {
  open();
  ClientSlot* slot = begin();
  finish(respond(slot, sent().at(0).header.number(), 4, 4));
  int reports = 0;
  ClientTick result = tick();
  for (int i = 0; i < 100 && !result.is_idle; i++) {
    reports += static_cast<int>(sent().size());
    result = tick(result.next_ns == UINT64_MAX ? kMs : result.next_ns - std::min(result.next_ns, now_));
  }
  EXPECT_TRUE(result.is_idle);
  EXPECT_EQ(reports, 8);
  EXPECT_FALSE(tick(10'000 * kMs).has_failed);
}

TEST_F(ClientSessionTest, slots_that_rest_are_reported_while_others_are_busy) {
  ClientTerms terms;
  open(8, terms);
  ClientSlot* busy = begin();
  ClientSlot* resting = begin();
  const auto packets = sent();
  credit(packets[0].header.number());  // the request now waits for its answer
  finish(respond(resting, packets[1].header.number(), 4, 4));
  std::vector<TestPacket> reports;
  for (int i = 0; i < 30; i++) {
    for (TestPacket& packet : sent()) {
      if (packet.header.kind() == Kind::kReport) {
        credit(packet.header.number());
        reports.push_back(std::move(packet));
      } else {
        credit(packet.header.number());
      }
    }
    tick(10 * kMs);
  }
  ASSERT_EQ(reports.size(), 1u) << "once, for it was acknowledged";
  ASSERT_EQ(reports[0].payload.size(), 4u);
  uint32_t number;
  std::memcpy(&number, reports[0].payload.data(), 4);
  EXPECT_EQ(number, resting->request_number);
  EXPECT_EQ(busy->phase, Phase::kWaiting);
  finish(respond(busy, packets[0].header.number(), 4, 4));
  tick();
  tick(terms.report_delay_ns);
  const auto last = sent();
  ASSERT_EQ(last.size(), 1u);
  ASSERT_EQ(last[0].payload.size(), 4u) << "what the server knows is not said again";
  std::memcpy(&number, last[0].payload.data(), 4);
  EXPECT_EQ(number, busy->request_number);
}

TEST_F(ClientSessionTest, a_session_whose_slots_were_all_reported_while_it_was_busy_is_idle) {
  ClientTerms terms;
  open(2, terms);
  const auto acknowledge_report = [&] {
    tick();
    tick(terms.report_delay_ns);
    tick(terms.report_delay_ns);
    const auto report = sent();
    ASSERT_EQ(report.size(), 1u);
    ASSERT_EQ(report[0].header.kind(), Kind::kReport);
    credit(report[0].header.number());
  };
  ClientSlot* first = begin();
  ClientSlot* second = begin();
  const auto packets = sent();
  finish(respond(first, packets[0].header.number(), 4, 4));
  finish(respond(second, packets[1].header.number(), 4, 4));
  acknowledge_report();
  ASSERT_EQ(begin(), first);
  session_->block_slot(second);
  finish(respond(first, sent().at(0).header.number(), 4, 4));
  acknowledge_report();
  session_->unblock_slot(second);
  tick();
  tick(terms.report_delay_ns);
  EXPECT_TRUE(sent().empty());
  EXPECT_TRUE(tick().is_idle);
}

TEST_F(ClientSessionTest, a_slot_that_is_used_again_meanwhile_is_not_reported_by_an_old_acknowledgement) {
  ClientTerms terms;
  open(8, terms);
  ClientSlot* slot = begin();
  finish(respond(slot, sent().at(0).header.number(), 4, 4));
  tick();
  tick(terms.report_delay_ns);
  const auto report = sent();
  ASSERT_EQ(report.size(), 1u);
  EXPECT_EQ(begin(), slot);
  finish(respond(slot, sent().at(0).header.number(), 4, 4));
  credit(report[0].header.number() + 1, {report[0].header.number()});
  EXPECT_FALSE(tick().is_idle) << "its last call is still to be reported";
  tick(terms.report_delay_ns);
  const auto again = sent();
  ASSERT_EQ(again.size(), 1u);
  ASSERT_EQ(again[0].payload.size(), 4u);
  uint32_t number;
  std::memcpy(&number, again[0].payload.data(), 4);
  EXPECT_EQ(number, slot->request_number);
}

/// Three slots have had a call. The first is busy again, and has the only credit. The next call of the second has just
/// ended without being sent. A report in flight names only the third.
class ReportWithoutASlot : public ClientSessionTest {
 protected:
  void SetUp() override {
    open(1, terms_);
    slots_ = {begin(), begin(), begin()};
    for (ClientSlot* slot : slots_) finish(respond(slot, sent().at(0).header.number(), 4, 4));
    ASSERT_EQ(begin(), slots_[0]);
    const auto packets = sent();
    ASSERT_EQ(packets.size(), 1u);
    busy_number_ = packets[0].header.number();
    for (int i = 0; i < 3; i++) tick(terms_.report_delay_ns);
    ASSERT_EQ(begin(), slots_[1]);
    ASSERT_EQ(reported(), std::vector<uint32_t>{slots_[2]->request_number});
    session_->end_early(slots_[1], now_);
  }
  /// Slots that the next report names.
  std::vector<uint32_t> reported() {
    std::vector<uint32_t> numbers;
    for (const TestPacket& packet : sent()) {
      if (packet.header.kind() != Kind::kReport) continue;
      report_number_ = packet.header.number();
      numbers.resize(packet.payload.size() / 4);
      std::memcpy(numbers.data(), packet.payload.data(), packet.payload.size());
    }
    return numbers;
  }
  std::vector<uint32_t> reported_later() {
    std::vector<uint32_t> numbers;
    for (int i = 0; i < 3 && numbers.empty(); i++) {
      tick(terms_.report_delay_ns);
      numbers = reported();
    }
    return numbers;
  }

  ClientTerms terms_;
  std::vector<ClientSlot*> slots_;
  uint32_t busy_number_ = 0, report_number_ = 0;
};

TEST_F(ReportWithoutASlot, leaves_the_slot_unreported) {
  credit(report_number_);
  EXPECT_EQ(reported_later(), std::vector<uint32_t>{slots_[1]->request_number});
}

TEST_F(ReportWithoutASlot, leaves_the_next_call_of_the_slot_unreported) {
  finish(respond(slots_[0], busy_number_, 4, 4));
  ASSERT_EQ(begin(), slots_[0]);
  finish(respond(slots_[0], sent().at(0).header.number(), 4, 4));
  session_->block_slot(slots_[0]);
  ASSERT_EQ(begin(), slots_[1]);
  finish(respond(slots_[1], sent().at(0).header.number(), 4, 4));
  session_->unblock_slot(slots_[0]);
  credit(report_number_);
  const std::vector<uint32_t> both = {slots_[0]->request_number, slots_[1]->request_number};
  EXPECT_EQ(reported_later(), both);
}

TEST_F(ClientSessionTest, report_waits_for_silence_after_calls_that_no_tick_has_seen) {
  ClientTerms terms;
  open(8, terms);
  for (int i = 0; i < 10; i++) {
    ClientSlot* slot = begin();
    const auto packets = sent();
    ASSERT_EQ(packets.size(), 1u);
    finish(respond(slot, packets[0].header.number(), 4, 4));
    EXPECT_FALSE(tick().is_idle);
    tick(terms.report_delay_ns - kMs);
    EXPECT_TRUE(sent().empty()) << "round " << i;
  }
  tick(kMs);
  const auto reports = sent();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].header.kind(), Kind::kReport);
}

TEST_F(ClientSessionTest, late_report_never_names_a_call_that_goes_on) {
  open();
  ClientSlot* first = begin();
  ClientSlot* second = begin();
  const auto packets = sent();
  finish(respond(first, packets[0].header.number(), 4, 4));
  finish(respond(second, packets[1].header.number(), 4, 4));
  tick();
  tick(100 * kMs);  // the report is due, and has not left
  EXPECT_EQ(begin(), first);
  for (const auto& packet : sent()) {
    if (packet.header.kind() != Kind::kReport) continue;
    for (size_t i = 0; i < packet.payload.size(); i += 4) {
      uint32_t number;
      std::memcpy(&number, packet.payload.data() + i, 4);
      EXPECT_EQ(number, second->request_number);
    }
  }
}

TEST_F(ClientSessionTest, next_call_makes_the_report_needless) {
  open();
  warm_up();
  tick();
  ClientSlot* slot = begin();
  tick(200 * kMs);
  const auto packets = sent();
  for (const auto& packet : packets) EXPECT_NE(packet.header.kind(), Kind::kReport);
  EXPECT_EQ(slot->phase, Phase::kSending);
}

TEST_F(ClientSessionTest, a_burst_passes_the_end_of_its_numbers_low_half) {
  constexpr uint32_t kPathProbes = 2;
  ClientTerms terms;
  terms.first_number = static_cast<uint32_t>((uint64_t{1} << 32) - 2 - kNumberBase - kPathProbes);
  open(8, terms);
  ClientSlot* slots[4];
  for (ClientSlot*& slot : slots) slot = begin();
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 4u);
  const uint32_t numbers[] = {0xfffffe, 0xffffff, 0, 1};
  for (size_t i = 0; i < 4; i++) EXPECT_EQ(packets[i].header.number(), numbers[i]);
  EXPECT_EQ(session_->packets_sent(), kPathProbes + 4);
  EXPECT_EQ(session_->packets_in_flight(), 4u);
  now_ += 10'000;
  for (size_t i = 0; i < 4; i++) finish(respond(slots[i], numbers[i], 4, 4));
  EXPECT_EQ(session_->packets_in_flight(), 0u);
}

// ---- Losses that are none ----

// The answers of one burst of the server may arrive in several parts, the answers to later packets first.
TEST_F(ClientSessionTest, answers_of_one_burst_in_any_order_are_no_loss) {
  open();
  warm_up();
  ClientSlot* first = begin();
  const uint32_t first_number = sent().at(0).header.number();
  now_ += 100'000;  // longer than the reordering time
  ClientSlot* second = begin();
  const uint32_t second_number = sent().at(0).header.number();
  now_ += 10'000;
  finish(respond(second, second_number, 4, 4));
  tick();
  EXPECT_TRUE(sent().empty());
  now_ += RttEstimator::kReorderNsMin - 1;  // the next iteration receives the rest
  finish(respond(first, first_number, 4, 4));
  tick();
  EXPECT_TRUE(sent().empty());
  EXPECT_EQ(sent_again_, 0u);
}

// The echoed packet and the packets sent with it waited for the same handlers.
TEST_F(ClientSessionTest, the_time_that_the_server_held_a_packet_is_no_loss_of_another) {
  open();
  warm_up();
  begin();
  ClientSlot* second = begin();
  const auto packets = sent();
  now_ += 510'000;
  auto header = server_header(Kind::kResponse, wire::kFirst, second->request_number, packets[1].header.number(), 4);
  header = wire::server_header(Kind::kResponse, wire::kFirst, 7, server_number_, second->request_number,
                               packets[1].header.number(), wire::encode_hold(500'000), credits_, 4);
  finish(on_response(header, bytes_of(4)));
  tick(RttEstimator::kReorderNsMin - 1);
  EXPECT_TRUE(sent().empty());
  tick(RttEstimator::kReorderNsMin);
  EXPECT_EQ(sent().size(), 1u);
}

// A server sends ranges after all other packets.
TEST_F(ClientSessionTest, a_range_that_other_answers_overtake_is_not_lost_within_a_timeout) {
  open(8);
  warm_up();
  ClientSlot* slot = begin(10, 1000);
  respond(slot, sent()[0].header.number(), 1000, 100);
  ASSERT_EQ(sent().size(), 1u);
  ClientSlot* brief = begin();
  const uint32_t number = sent().at(0).header.number();
  now_ += 10'000;
  finish(respond(brief, number, 4, 4));
  tick(100'000);
  EXPECT_TRUE(sent().empty());
  EXPECT_EQ(sent_again_, 0u);
}

// A server sends ranges last. The time of a range begins when its packets are known to have arrived.
TEST_F(ClientSessionTest, a_range_that_the_server_has_is_waited_for) {
  open(8);
  warm_up();
  ClientSlot* slot = begin(10, 1000);
  respond(slot, sent()[0].header.number(), 1000, 100);
  const uint32_t range = sent().at(0).header.number();
  ClientSlot* brief = begin();
  const uint32_t number = sent().at(0).header.number();
  const uint64_t patience_ns = ClientTerms().rto_ns_min;
  now_ += patience_ns - 20'000;
  credit(number, {range});
  finish(respond(brief, number, 4, 4));
  tick(100'000);
  EXPECT_EQ(sent_again_, 0u);
  credit(number, {range});  // a repetition without news
  now_ += patience_ns - 110'000;
  tick(0);
  EXPECT_EQ(sent_again_, 0u);
  for (const auto& packet : sent()) EXPECT_NE(packet.header.kind(), Kind::kRfr);
  tick(2 * patience_ns);
  sent();
  EXPECT_EQ(sent_again_, 1u);
}

TEST_F(ClientSessionTest, a_late_part_gives_back_the_credit_of_the_range_that_asks_for_it_again) {
  open(8);
  warm_up();
  ClientSlot* slot = begin(10, 1000);
  respond(slot, sent()[0].header.number(), 1000, 100);
  const uint32_t echo = sent()[0].header.number();
  now_ += 10'000;
  for (uint32_t i : {1u, 2u, 4u, 5u, 6u, 7u, 9u}) respond(slot, echo, i, 100, 0);
  tick(20'000);
  const auto again = sent();
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(session_->packets_in_flight(), 2u);
  respond(slot, echo, 3, 100, 0);  // late, not lost
  EXPECT_EQ(session_->packets_in_flight(), 1u);
  EXPECT_EQ(respond(slot, again[0].header.number(), 3, 100, 0).drop, Drop::kStale);
  EXPECT_EQ(session_->packets_in_flight(), 1u);
  finish(respond(slot, again[1].header.number(), 8, 100, 0));
}

// A late or duplicate credit return is a true acknowledgement, and changes nothing else.
TEST_F(ClientSessionTest, an_old_credit_return_acknowledges_and_says_nothing_else) {
  open(8);
  warm_up();
  begin();
  begin();
  const auto packets = sent();
  const uint32_t first = packets[0].header.number();
  const uint64_t srtt_ns = session_->rtt().srtt_ns();
  now_ += 10'000;
  auto old = server_header(Kind::kCr, 0, 0, first, 0);
  old = wire::server_header(Kind::kCr, 0, 7, server_number_, 0, first, 0, 3, 0);
  const auto newer = server_header(Kind::kCr, 0, 0, first - 1, 0);
  std::vector<std::byte> none(8), one(8);
  const uint64_t word = wire::to_little_endian(uint64_t{1} << 63);
  std::memcpy(one.data(), &word, 8);
  EXPECT_EQ(on_credit(newer, none).drop, Drop::kNone);
  const uint64_t heard_ns = session_->last_answer_ns();
  now_ += kMs;
  EXPECT_EQ(on_credit(old, none).drop, Drop::kNone);
  EXPECT_EQ(session_->last_answer_ns(), heard_ns) << "no sign of life";
  EXPECT_EQ(on_credit(old, one).drop, Drop::kNone);
  EXPECT_EQ(session_->packets_in_flight(), 1u);
  EXPECT_EQ(session_->credit_limit(), 8u);
  EXPECT_EQ(session_->rtt().srtt_ns(), srtt_ns);
}

// A server that works for 1 ms on a burst answers at the end.
TEST_F(ClientSessionTest, a_server_that_takes_long_for_bursts_is_not_probed) {
  open(8);
  credits_ = 8;
  uint32_t probes = 0;
  for (int i = 0; i < 100; i++) {
    std::vector<ClientSlot*> slots;
    for (int k = 0; k < 8; k++) slots.push_back(begin());
    const auto packets = sent();
    const uint64_t burst_ns = (i % 3 + 1) * kMs / 2;
    const uint64_t until_ns = now_ + burst_ns + 20'000;
    while (now_ < until_ns) {
      const ClientTick result = tick();
      for (const auto& packet : sent()) probes += i > 3 && packet.header.kind() == Kind::kProbe ? 1 : 0;
      now_ = std::min(until_ns, std::max(now_ + 1, result.next_ns));
    }
    for (int k = 0; k < 8; k++) {
      const auto header =
          wire::server_header(Kind::kResponse, wire::kFirst, 7, ++server_number_, slots[k]->request_number,
                              packets[k].header.number(), wire::encode_hold(burst_ns), credits_, 4);
      finish(on_response(header, bytes_of(4)));
    }
  }
  EXPECT_EQ(probes, 0u);
}

// ---- A path that begins to drop full packets (clauses 4.3.3, 6.4.2) ----

/// The session's peer, and a path with a delay of `kOneWayNs` that loses all packets above a size in either direction,
/// and no others. The server answers a request at once, that of slot 0 with `response_bytes_`. It answers a probe for
/// an answered request with packet 0, and everything else with a credit return.
class NarrowPathTest : public ClientSessionTest {
 protected:
  static constexpr uint64_t kOneWayNs = 10'000;
  static constexpr uint32_t kShort = 60;

  void run(uint64_t ns) {
    const uint64_t until_ns = now_ + ns;
    while (now_ < until_ns && !result_.has_failed) {
      // All packets that have arrived, and then the client's turn.
      for (size_t i = 0; i < answers_.size() && answers_[i].first <= now_;) {
        const TestPacket answer = answers_[i].second;
        answers_.erase(answers_.begin());
        take(answer);
      }
      result_ = session_->tick(now_);
      session_->check_invariants();
      for (uint64_t mask = result_.fruitless_mask; mask != 0; mask &= mask - 1) {
        fruitless_++;
        session_->end_early(session_->slot(static_cast<uint32_t>(std::countr_zero(mask))), now_);
      }
      const auto packets = sent();
      if (!packets.empty()) packets_ += packets.size();
      answer(packets);
      uint64_t next_ns = std::min(result_.next_ns, until_ns);
      if (!answers_.empty()) next_ns = std::min(next_ns, answers_.front().first);
      if (on_idle_) on_idle_();
      now_ = std::max(now_ + 1, next_ns);
    }
  }
  void send_back(const wire::Header& header, const std::vector<std::byte>& payload) {
    if (payload.size() > from_server_max_) return;
    answers_.push_back({now_ + 2 * kOneWayNs, {header, payload}});
  }
  virtual void answer(const std::vector<TestPacket>& packets) {
    bool owes_credit_return = false;
    for (const TestPacket& packet : packets) {
      if (packet.payload.size() > to_server_max_) continue;
      const wire::Header& header = packet.header;
      arrived_.push_back(header.number());
      const uint32_t slot = header.request_number() & 63;
      switch (header.kind()) {
        case Kind::kRequest:
          if (header.message_bytes() <= kPayloadMax) answered_[slot] = header.request_number();
          owes_credit_return |= header.message_bytes() > kPayloadMax;
          if (header.message_bytes() <= kPayloadMax) respond_to(header);
          break;
        case Kind::kProbe:
          if (answered_[slot] == header.request_number()) {
            respond_to(header);
          } else {
            owes_credit_return = true;
          }
          break;
        case Kind::kPathProbe:
          if (packet.payload.empty()) {
            owes_credit_return = true;
          } else {
            send_back(
                server_header(Kind::kPathReply, 0, kFirstCount << wire::kSlotBits, header.number(), kSessionToken),
                bytes_of(kPayloadMax));
          }
          break;
        case Kind::kCancel:
          send_back(server_header(Kind::kCancelled, wire::kNoEcho, header.request_number(), 0, 0), {});
          break;
        case Kind::kRfr:
          asked_++;
          on_rfr(header);
          break;
        default:
          break;
      }
    }
    if (!owes_credit_return) return;
    uint64_t words[NumberWindow::kWords] = {};
    const uint32_t newest = arrived_.back();
    for (const uint32_t number : arrived_) {
      if (newest - number < 256) words[(newest - number) / 64] |= uint64_t{1} << (63 - (newest - number) % 64);
    }
    std::vector<std::byte> payload(sizeof(words));
    std::memcpy(payload.data(), words, sizeof(words));
    send_back(server_header(Kind::kCr, 0, 0, newest, 0), payload);
  }
  virtual void respond_to(const wire::Header& header) {
    const uint32_t bytes = (header.request_number() & 63) == 0 ? response_bytes_ : 10;
    send_back(server_header(Kind::kResponse, wire::kFirst, header.request_number(), header.number(), bytes),
              bytes_of(std::min(bytes, kPayloadMax)));
  }
  virtual void on_rfr(const wire::Header&) {}
  void take(const TestPacket& packet) {
    ClientVerdict verdict;
    switch (packet.header.kind()) {
      case Kind::kResponse:
        verdict = session_->on_response(packet.header, packet.view(), now_);
        break;
      case Kind::kCr:
        verdict = session_->on_credit_return(packet.header, packet.view(), now_);
        break;
      case Kind::kCancelled:
        verdict = session_->on_cancelled(packet.header, now_);
        break;
      default:
        confirmed_ += session_->on_path_reply(packet.header, static_cast<uint32_t>(packet.payload.size()), now_) ==
                      PathVerdict::kConfirmed;
        break;
    }
    if (verdict.finished == nullptr) return;
    finished_++;
    last_code_ = verdict.status.code();
    session_->release_slot(verdict.finished);
  }

  size_t to_server_max_ = kPayloadMax, from_server_max_ = kPayloadMax;
  uint32_t response_bytes_ = 10;
  std::vector<std::pair<uint64_t, TestPacket>> answers_;
  std::vector<uint32_t> arrived_;
  uint32_t answered_[64] = {};
  std::function<void()> on_idle_;
  ClientTick result_;
  uint64_t packets_ = 0, finished_ = 0, fruitless_ = 0, confirmed_ = 0, asked_ = 0;
  Code last_code_ = Code::kOk;
};

TEST_F(NarrowPathTest, full_requests_that_do_not_pass_end_the_session_with_the_reason) {
  for (const int calls : {1, 8}) {
    ClientTerms terms;
    open(8, terms);
    server_number_ = 2;
    warm_up();
    to_server_max_ = kShort;
    for (int i = 0; i < calls; i++) begin(20 * kPayloadMax);
    const uint64_t since = now_;
    run(1000 * kMs);
    EXPECT_LT(packets_, 300u) << calls << " calls, in the first second";
    packets_ = 0;
    run(1000 * kMs);
    EXPECT_LT(packets_, 100u);
    EXPECT_TRUE(result_.has_failed);
    EXPECT_TRUE(result_.is_path_narrow);
    EXPECT_GE(now_ - since, terms.liveness_ns);
    session_.reset();
    server_number_ = 0;
    packets_ = 0;
    arrived_.clear();
    answers_.clear();
    result_ = {};
    to_server_max_ = kPayloadMax;
  }
}

// The path drops only long packets: short calls go on.
TEST_F(NarrowPathTest, a_stuck_call_among_short_ones_is_not_sent_again_at_their_rate) {
  open(8);
  warm_up();
  to_server_max_ = kShort;
  begin(kPayloadMax);
  uint64_t others = 0;
  on_idle_ = [&] {
    if (session_->has_free_slot() && session_->busy_mask() == 1) {
      begin(10);
      others++;
    }
  };
  run(300 * kMs);
  EXPECT_GT(others, 1000u);
  EXPECT_LT(sent_again_, 50u);
  run(2000 * kMs);
  EXPECT_TRUE(result_.is_path_narrow);
  EXPECT_LT(sent_again_, 100u);
}

// The server has answered in a packet that is lost. Its answers to probes are lost, too.
TEST_F(NarrowPathTest, full_responses_that_do_not_pass_end_the_session_with_the_reason) {
  for (const bool has_others : {false, true}) {
    open(8);
    warm_up();
    response_bytes_ = kPayloadMax;
    from_server_max_ = kShort;
    begin(10, kPayloadMax);
    if (has_others) {
      on_idle_ = [&] {
        if (session_->busy_mask() == 1) begin(10);
      };
    }
    run(3000 * kMs);
    EXPECT_TRUE(result_.has_failed);
    EXPECT_TRUE(result_.is_path_narrow);
    EXPECT_LT(sent_again_, 100u);
    session_.reset();
    server_number_ = 0;
    arrived_.clear();
    answers_.clear();
    result_ = {};
    from_server_max_ = kPayloadMax;
    response_bytes_ = 10;
  }
}

// The handler runs. The client checks from time to time that full packets pass, and the call waits.
TEST_F(NarrowPathTest, a_call_that_waits_for_its_handler_waits_on_while_the_path_is_good) {
  open(8);
  warm_up();
  ClientSlot* slot = begin(10);
  credit(sent().at(0).header.number());
  run(10'000 * kMs);
  EXPECT_EQ(slot->phase, Phase::kWaiting);
  EXPECT_FALSE(result_.has_failed);
  EXPECT_GE(confirmed_, 2u);
  EXPECT_LE(confirmed_, 20u);
  EXPECT_EQ(sent_again_, 0u);
}

TEST_F(NarrowPathTest, progress_after_a_stall_is_at_full_speed) {
  open(8);
  warm_up();
  to_server_max_ = kShort;
  ClientSlot* slot = begin(20 * kPayloadMax);
  run(400 * kMs);
  EXPECT_EQ(session_->credit_limit(), 1u) << "one packet finds out as well";
  to_server_max_ = kPayloadMax;
  run(200 * kMs);
  EXPECT_EQ(session_->credit_limit(), 8u);
  EXPECT_EQ(slot->phase, Phase::kWaiting);
}

/// A server whose packet 0 gives a wrong size of the response.
class WrongSizeTest : public NarrowPathTest {
 protected:
  void respond_to(const wire::Header& header) override {
    said_++;
    const uint32_t size = says_(said_);
    send_back(server_header(Kind::kResponse, wire::kFirst, header.request_number(), header.number(), size),
              bytes_of(kPayloadMax));
  }
  /// The response has `kTrueBytes`.
  void on_rfr(const wire::Header& header) override {
    if ((header.index() + header.message_bytes()) * kPayloadMax > kTrueBytes) return respond_to(header);
    for (uint32_t i = 0; i < header.message_bytes(); i++) {
      send_back(server_header(Kind::kResponse, 0, header.request_number(), header.number(), header.index() + i),
                bytes_of(kPayloadMax));
    }
  }
  static constexpr uint32_t kTrueBytes = 10 * kPayloadMax;
  std::function<uint32_t(uint32_t)> says_;
  uint32_t said_ = 0;
};

TEST_F(WrongSizeTest, an_honest_server_puts_a_damaged_size_right_at_once) {
  for (const uint32_t wrong : {kTrueBytes + 1, 50 * kPayloadMax, 5 * kPayloadMax - 1}) {
    said_ = 0;
    asked_ = 0;
    says_ = [&](uint32_t i) { return i == 1 ? wrong : kTrueBytes; };
    open(8);
    begin(10, 50 * kPayloadMax);
    run(100 * kMs);
    EXPECT_EQ(finished_, 1u);
    EXPECT_EQ(last_code_, Code::kOk);
    EXPECT_EQ(responses_.back()->length_bytes, kTrueBytes);
    EXPECT_LT(asked_, 20u);
    session_.reset();
    finished_ = 0;
    server_number_ = 0;
    arrived_.clear();
    answers_.clear();
    result_ = {};
  }
}

TEST_F(WrongSizeTest, a_size_that_stays_wrong_ends_the_call_and_not_the_session) {
  for (const uint32_t wrong : {kTrueBytes + 1, 50 * kPayloadMax, 5 * kPayloadMax - 1}) {
    says_ = [&](uint32_t) { return wrong; };
    open(8);
    warm_up();
    begin(10, 50 * kPayloadMax);
    run(2000 * kMs);
    EXPECT_FALSE(result_.has_failed);
    EXPECT_EQ(fruitless_, 1u);
    EXPECT_EQ(session_->busy_mask(), 0u) << "the cancel was acknowledged";
    EXPECT_LT(packets_, 200u);
    session_.reset();
    fruitless_ = packets_ = 0;
    server_number_ = 0;
    arrived_.clear();
    answers_.clear();
    result_ = {};
  }
}

TEST_F(WrongSizeTest, a_transfer_that_waits_for_its_pace_after_a_loss_goes_on) {
  ClientTerms terms;
  terms.controller = cc::FixedRate(300);  // the next RFR may leave after four liveness timeouts
  open(8, terms);
  says_ = [](uint32_t) { return kTrueBytes; };
  ClientSlot* slot = begin(10, 50 * kPayloadMax);
  on_idle_ = [&] {
    const bool is_first_rfr_next = asked_ == 0 && slot->phase == Phase::kReceiving;
    from_server_max_ = is_first_rfr_next ? kShort : kPayloadMax;
  };
  run(20'000 * kMs);
  EXPECT_EQ(fruitless_, 0u);
  EXPECT_EQ(finished_, 1u);
  EXPECT_EQ(last_code_, Code::kOk);
  EXPECT_GE(asked_, 2u);
}

TEST_F(WrongSizeTest, sizes_that_change_without_end_end_the_call) {
  says_ = [](uint32_t i) { return kTrueBytes + 100 * (i % 7) + 1; };
  open(8);
  begin(10, 50 * kPayloadMax);
  run(2000 * kMs);
  EXPECT_EQ(finished_ + fruitless_, 1u);
  EXPECT_LT(packets_, 200u);
}

// ---- Silence ----

TEST_F(ClientSessionTest, silence_fails_the_session_within_the_timeout) {
  ClientTerms terms;
  open(8, terms);
  begin();
  sent();
  const uint64_t since = now_;
  bool has_asked = false;
  ClientTick result = tick();
  while (!result.has_failed) {
    ASSERT_LT(now_, since + 2 * terms.liveness_ns);
    now_ = result.next_ns;
    result = tick();
    has_asked |= result.ask_liveness;
    if (result.ask_liveness) session_->on_peer_idle();
    sent();
  }
  EXPECT_TRUE(has_asked);
  EXPECT_GE(now_ - since, terms.liveness_ns);
}

// The server's management may have no CPU, and cannot report that the endpoint is in a callback.
TEST_F(ClientSessionTest, silence_without_word_of_the_management_fails_the_session_later) {
  ClientTerms terms;
  open(8, terms);
  begin();
  sent();
  const uint64_t since = now_;
  ClientTick result = tick();
  while (!result.has_failed) {
    ASSERT_LT(now_, since + 5 * terms.liveness_ns);
    now_ = result.next_ns;
    result = tick();
    sent();
  }
  EXPECT_GE(now_ - since, 4 * terms.liveness_ns);
}

// The answer may be in the receive queue, behind the packets that make the loop slow.
TEST_F(ClientSessionTest, unread_time_does_not_count_as_silence) {
  ClientTerms terms;
  open(8, terms);
  begin();
  sent();
  const uint64_t since = now_;
  tick();
  for (int i = 0; i < 200; i++) {
    now_ += 100 * kMs;
    const ClientTick result = session_->tick(now_, since);
    EXPECT_FALSE(result.ask_liveness);
    EXPECT_FALSE(result.has_failed);
    sent();
  }
}

TEST_F(ClientSessionTest, a_peer_in_a_callback_is_not_dead) {
  ClientTerms terms;
  open(8, terms);
  begin();
  sent();
  const uint64_t since = now_;
  while (now_ < since + 10 * terms.liveness_ns) {
    const ClientTick result = tick();
    ASSERT_FALSE(result.has_failed);
    if (result.ask_liveness) session_->on_peer_in_callback();
    sent();
    now_ = result.next_ns;
  }
}

TEST_F(ClientSessionTest, a_long_absence_of_our_own_is_little_silence) {
  ClientTerms terms;
  open(8, terms);
  begin();
  sent();
  tick();
  EXPECT_FALSE(tick(100 * terms.liveness_ns).has_failed);
}

TEST_F(ClientSessionTest, idle_sessions_never_fail) {
  open();
  warm_up();
  for (int i = 0; i < 100; i++) {
    EXPECT_FALSE(tick(200 * kMs).has_failed);
    sent();
  }
}

// ---- Pacing ----

// ---- Congestion control ----

/// Requests of 100 packets, one after the other, on a session of window 1. In each of `rounds` round trips all packets
/// in flight are acknowledged, and then all packets that may leave are sent.
class CongestedSessionTest : public ClientSessionTest {
 protected:
  static constexpr uint64_t kUs = 1'000;
  static constexpr uint32_t kTargetNs = 20'000;

  void open_swift(uint8_t credits) {
    ClientTerms terms;
    terms.window = 1;
    terms.controller = cc::Swift({3'125'000'000, kPayloadMax + 24, kTargetNs, 3 * kTargetNs});
    open(credits, terms);
    begin(100'000 * kPayloadMax, 10);
  }
  /// Sends the packets that may leave now. `in_flight_` has those that are answered later.
  uint32_t send_all() {
    const auto packets = sent();
    for (const TestPacket& packet : packets) in_flight_.push_back(packet.header.number());
    return static_cast<uint32_t>(packets.size());
  }
  /// One round trip in which all packets in flight arrive.
  uint32_t round(uint64_t rtt_ns) {
    if (in_flight_.empty()) {
      now_ = std::max(now_, session_->departure_ns());
      send_all();
    }
    now_ += rtt_ns;
    std::vector<uint32_t> numbers = std::exchange(in_flight_, {});
    if (!numbers.empty()) {
      const uint32_t newest = numbers.back();
      numbers.pop_back();
      credit(newest, numbers);
    }
    return send_all();
  }
  std::vector<uint32_t> in_flight_;
};

TEST_F(CongestedSessionTest, an_uncongested_session_is_not_paced_and_has_the_servers_limit) {
  open_swift(32);
  EXPECT_EQ(send_all(), 32u);
  for (int i = 0; i < 100; i++) {
    EXPECT_EQ(round(10 * kUs), 32u);
    EXPECT_TRUE(session_->is_uncongested());
    EXPECT_EQ(session_->departure_ns(), 0u);
  }
}

TEST_F(CongestedSessionTest, a_controller_that_ignores_all_round_trips_gets_none_of_any_length) {
  for (const cc::AnyController& controller :
       {cc::AnyController(),
        cc::AnyController(cc::Dctcp({3'125'000'000, kPayloadMax + 24, kTargetNs, 3 * kTargetNs}))}) {
    ClientTerms terms;
    terms.controller = controller;
    open(8, terms);
    for (const uint64_t rtt_ns : {10 * kUs, 4'294 * kMs, 4'296 * kMs, 100'000 * kMs}) {
      ClientSlot* slot = begin();
      const uint32_t number = sent().at(0).header.number();
      now_ += rtt_ns;
      finish(respond(slot, number, 4, 4));
    }
    EXPECT_EQ(session_->rtt().latest_ns(), RttEstimator::kLongestNs);
    EXPECT_EQ(pools_.controller_counters.samples, 0u);
  }
}

TEST_F(CongestedSessionTest, lasting_delay_narrows_the_window_and_then_paces) {
  open_swift(32);
  send_all();
  round(10 * kUs);
  for (int i = 0; i < 3; i++) round(80 * kUs);
  EXPECT_FALSE(session_->is_uncongested());
  EXPECT_LT(session_->credit_limit(), 32u);
  for (int i = 0; i < 100; i++) round(200 * kUs);
  EXPECT_EQ(session_->credit_limit(), 1u);
  // Below one packet a round trip, a packet that the window allows waits for its departure.
  EXPECT_EQ(round(200 * kUs), 0u);
  EXPECT_TRUE(session_->wants_to_send());
  EXPECT_GT(session_->departure_ns(), now_);
  uint32_t packets = 0;
  ClientSession::Turn turn = session_->transmit(
      now_, [](auto&&...) { return true; }, [&] { return ++ticket_; }, packets);
  EXPECT_EQ(turn, ClientSession::Turn::kLater);
  now_ = session_->departure_ns();
  EXPECT_EQ(send_all(), 1u);
  // The window grows again when the queue is gone.
  for (int i = 0; i < 300 && !session_->is_uncongested(); i++) {
    round(8 * kUs);
  }
  EXPECT_TRUE(session_->is_uncongested());
  EXPECT_EQ(session_->credit_limit(), 32u);
}

TEST_F(CongestedSessionTest, the_limit_is_the_lesser_of_both_words) {
  open_swift(32);
  send_all();
  credits_ = 4;  // the limit in the server's next packets
  round(10 * kUs);
  EXPECT_EQ(session_->credit_limit(), 4u);
  EXPECT_TRUE(session_->is_uncongested());
  credits_ = 64;
  round(10 * kUs);
  EXPECT_EQ(session_->credit_limit(), 64u);
  for (int i = 0; i < 6; i++) round(100 * kUs);
  const uint32_t narrow = session_->credit_limit();
  EXPECT_LT(narrow, 64u);
  credits_ = 128;
  round(25 * kUs);
  EXPECT_LT(session_->credit_limit(), 64u) << "the server's limit went up, the controller's did not";
  credits_ = 2;
  round(25 * kUs);
  EXPECT_EQ(session_->credit_limit(), 2u);
  credits_ = 128;
  round(25 * kUs);
  EXPECT_GT(session_->credit_limit(), 2u);
  EXPECT_FALSE(session_->is_uncongested());
}

TEST_F(CongestedSessionTest, one_burst_of_late_answers_is_a_pause) {
  open_swift(32);
  send_all();
  for (int i = 0; i < 10; i++) round(10 * kUs);
  round(5 * kMs);
  round(10 * kUs);
  EXPECT_TRUE(session_->is_uncongested());
  EXPECT_EQ(session_->credit_limit(), 32u);
}

TEST_F(CongestedSessionTest, isolated_losses_without_delay_change_nothing) {
  open_swift(16);
  send_all();
  for (int i = 0; i < 50; i++) {
    in_flight_.erase(in_flight_.begin());  // never arrives
    round(5 * kUs);
    now_ += 12 * kUs;
    tick();
    send_all();
    EXPECT_EQ(session_->credit_limit(), 16u);
  }
  EXPECT_TRUE(session_->is_uncongested());
}

TEST_F(CongestedSessionTest, loss_in_a_full_ring_is_told_at_the_present_time) {
  ClientTerms terms;
  terms.controller = cc::Swift({3'125'000'000, kPayloadMax + 24, kTargetNs, 3 * kTargetNs});
  open_paired(terms);
  warm_up();
  begin();
  sent();  // never answered
  for (int i = 0; i < 100 && session_->credit_limit() == 8; i++) {
    const ClientSlot* slot = begin();
    const uint32_t number = sent().at(0).header.number();
    now_ += 10 * kTargetNs;
    finish(respond(slot, number, 4, 4));
  }
  const uint32_t limit = session_->credit_limit();
  ASSERT_LT(limit, 8u);
  EXPECT_EQ(session_->packets_in_flight(), 1u);
  for (uint64_t i = 0; i < SentPackets::kSizeMax; i++) session_->pair_probe(now_);
  EXPECT_EQ(session_->packets_in_flight(), 0u);
  EXPECT_EQ(session_->credit_limit(), limit) << "the window is cut once a round trip";
}

TEST_F(CongestedSessionTest, silence_narrows_the_window) {
  open_swift(32);
  send_all();
  round(10 * kUs);
  for (int i = 0; i < 400; i++) {
    tick(kMs);
    send_all();
  }
  EXPECT_LT(session_->credit_limit(), 32u);
}

/// All packets that an RFR asks for wait for its departure. At a low rate, the departure after a long RFR is far away.
TEST_F(CongestedSessionTest, ranges_are_no_longer_than_the_window) {
  ClientTerms terms;
  terms.controller = cc::Swift({3'125'000'000, kPayloadMax + 24, kTargetNs, 3 * kTargetNs});
  open(32, terms);
  warm_up();
  ClientSlot* slot = begin(10, 100 * kPayloadMax);
  const uint32_t number = sent().at(0).header.number();
  for (int i = 0; i < 400; i++) {  // the server is busy
    tick(kMs);
    sent();
  }
  EXPECT_EQ(session_->credit_limit(), 1u);
  respond(slot, number, 100 * kPayloadMax, kPayloadMax);
  ASSERT_EQ(slot->phase, Phase::kReceiving);
  now_ = std::max(now_, session_->departure_ns());
  const auto rfrs = sent();
  ASSERT_FALSE(rfrs.empty());
  EXPECT_EQ(rfrs[0].header.kind(), Kind::kRfr);
  EXPECT_EQ(rfrs[0].header.message_bytes(), 1u);
}

/// Better than appendix C of the paper: only a name waits for its departure, so that an answer that arrives meanwhile
/// frees the buffers at once.
TEST_F(CongestedSessionTest, an_answer_frees_the_buffers_though_a_retransmission_waits_for_its_departure) {
  ClientTerms terms;
  terms.controller = cc::FixedRate(1'000'000);
  open(8, terms);
  warm_up();
  now_ += kMs;
  ClientSlot* first = begin(50, 10);
  const uint32_t lost = sent().at(0).header.number();
  now_ += kMs;
  ClientSlot* second = begin(76, 10);
  const uint32_t number = sent().at(0).header.number();
  const uint64_t ticket = ticket_;
  now_ += 20 * kUs;
  finish(respond(second, number, 4, 4));
  tick(30 * kUs);  // the first is taken for lost, because later ones were acknowledged
  ASSERT_TRUE(session_->wants_to_send());
  ASSERT_TRUE(sent().empty()) << "its retransmission waits";
  EXPECT_LE(first->ticket, ticket) << "nothing but the first transmission refers to the request";
  const auto verdict = respond(first, lost, 4, 4);
  ASSERT_EQ(verdict.finished, first);
  finish(verdict);
  requests_[requests_.size() - 2].reset();  // the application frees it; ASan would report a later use
  EXPECT_FALSE(session_->wants_to_send());
  now_ += kMs;
  EXPECT_TRUE(sent().empty());
}

// One end has read its clock too early or too late. A round trip of 1 ns would be the smallest for ever.
TEST_F(ClientSessionTest, an_answer_that_took_no_longer_than_it_was_held_is_no_sample) {
  open(8);
  warm_up();
  const uint64_t min_ns = session_->rtt().min_ns(), latest_ns = session_->rtt().latest_ns();
  now_ += kMs;
  ClientSlot* slot = begin(50, 10);
  const uint32_t number = sent().at(0).header.number();
  now_ += 10'000;
  hold_ns_ = 20'000;
  finish(respond(slot, number, 4, 4));
  EXPECT_EQ(session_->rtt().min_ns(), min_ns);
  EXPECT_EQ(session_->rtt().latest_ns(), latest_ns);
  now_ += kMs;
  slot = begin(50, 10);
  const uint32_t next = sent().at(0).header.number();
  now_ += 21'000;
  finish(respond(slot, next, 4, 4));
  EXPECT_NEAR(static_cast<double>(session_->rtt().latest_ns()), 1000, 700) << "hold times are rounded down";
}

TEST_F(ClientSessionTest, fixed_rate_spaces_departures) {
  ClientTerms terms;
  terms.controller = cc::FixedRate(1'000'000);  // 1 kB a millisecond
  open(8, terms);
  ClientSlot* slot = begin(76, 10);
  finish(respond(slot, sent()[0].header.number(), 4, 4));
  EXPECT_EQ(session_->departure_ns(), now_ + 100'000);  // 76 and the header's 24
  slot = begin(26, 10);
  EXPECT_TRUE(sent().empty());  // not yet
  now_ += 99'999;
  EXPECT_TRUE(sent().empty());
  now_ += 1;
  finish(respond(slot, sent().at(0).header.number(), 4, 4));
  EXPECT_EQ(session_->departure_ns(), now_ + 50'000);
  now_ += 1'000'000;
  slot = begin(76, 1000);
  const uint32_t number = sent()[0].header.number();
  EXPECT_EQ(session_->departure_ns(), now_ + 100'000);  // no credit for the past
  respond(slot, number, 1000, 100);
  now_ += 100'000;
  EXPECT_EQ(sent().size(), 1u);  // an RFR for nine packets counts as nine packets
  EXPECT_EQ(session_->departure_ns(), now_ + 9 * 124'000);
}

// A session with a low rate must not take its own waiting for silence of the server.
TEST_F(ClientSessionTest, probes_and_cancels_wait_for_no_pace) {
  ClientTerms terms;
  terms.controller = cc::FixedRate(1000);  // the next packet may leave in 100 ms
  open(8, terms);
  begin(76, 10);
  EXPECT_EQ(sent().size(), 1u);
  EXPECT_TRUE(tick(10 * kMs).has_timed_out);
  const auto probes = sent();
  ASSERT_EQ(probes.size(), 1u);
  EXPECT_EQ(probes[0].header.kind(), Kind::kProbe);
  ClientSlot* slot = begin(76, 10);
  EXPECT_TRUE(sent().empty());
  session_->end_early(session_->slot(0), now_);
  const auto cancels = sent();
  ASSERT_EQ(cancels.size(), 1u);
  EXPECT_EQ(cancels[0].header.kind(), Kind::kCancel);
  EXPECT_FALSE(slot->was_sent());
}

// ---- Refusals by the transport ----

TEST_F(ClientSessionTest, refused_packet_changes_nothing) {
  open();
  begin();
  begin(300, 10);
  const auto refuse = [](const wire::Header&, const std::byte*, uint32_t, detail::Buffer*) { return false; };
  uint32_t packets = 0;
  for (int i = 0; i < 3; i++) {
    EXPECT_EQ(session_->transmit(
                  now_, refuse, [] { return uint64_t{0}; }, packets),
              ClientSession::Turn::kRefused);
  }
  EXPECT_EQ(packets, 0u);
  EXPECT_EQ(session_->packets_in_flight(), 0u);
  const auto taken = sent();
  ASSERT_EQ(taken.size(), 4u);
  EXPECT_EQ(taken[0].header.number() + 3, taken[3].header.number());
}

TEST_F(ClientSessionTest, thousands_of_calls_past_one_that_is_never_answered) {
  open(8);
  warm_up();
  ClientSlot* stuck = begin();
  sent();
  for (int i = 0; i < 10'000; i++) {
    ClientSlot* slot = begin();
    const auto packets = sent();
    for (const auto& packet : packets) {
      if (packet.header.request_number() == slot->request_number) finish(respond(slot, packet.header.number(), 4, 4));
    }
  }
  EXPECT_EQ(stuck->phase, Phase::kSending);
}

// ---- Rest ----

/// Sessions at rest, with calls of several slots before the rest.
class RestingClientTest : public ClientSessionTest {
 protected:
  void open_for_rest(uint8_t window) {
    ClientTerms terms;
    terms.window = window;
    terms.report_delay_ns = kDelayNs;
    open(64, terms);
  }
  /// Makes `count` calls at the same time. Returns their request numbers.
  std::vector<uint32_t> make_calls(size_t count) {
    std::vector<ClientSlot*> slots(count);
    std::vector<uint32_t> numbers;
    for (auto& slot : slots) {
      slot = begin();
      numbers.push_back(slot->request_number);
    }
    const auto packets = sent();
    EXPECT_EQ(packets.size(), count);
    for (size_t i = 0; i < count; i++) finish(respond(slots[i], packets[i].header.number(), 4, 4));
    return numbers;
  }
  void rest() {
    session_->try_rest();
    session_->check_invariants();
  }
  void expect_rest() {
    rest();
    EXPECT_FALSE(session_->is_awake());
    EXPECT_EQ(pools_.busy.taken(), 0u);
    EXPECT_EQ(pools_.slots.taken(), 0u);
  }
  std::vector<uint32_t> reported(const TestPacket& report) {
    EXPECT_EQ(report.header.kind(), Kind::kReport);
    std::vector<uint32_t> numbers(report.payload.size() / 4);
    if (!numbers.empty()) std::memcpy(numbers.data(), report.payload.data(), report.payload.size());
    return numbers;
  }
  static constexpr uint64_t kDelayNs = 100 * kMs;
};

TEST_F(RestingClientTest, record_of_a_session_at_rest_is_small) {
  EXPECT_LE(sizeof(ClientSession), 352u);
  open_for_rest(8);
  EXPECT_FALSE(session_->is_awake());
  EXPECT_EQ(pools_.controls.taken(), 0u);
}

TEST_F(RestingClientTest, gives_back_its_memory_and_goes_on_with_the_next_numbers) {
  for (const uint8_t window : {1, 8, 9, 64}) {
    SCOPED_TRACE(window);
    server_number_ = 0;
    open_for_rest(window);
    const size_t calls = std::min<size_t>(window, 20);
    std::vector<uint32_t> before = make_calls(calls);
    for (int round = 0; round < 3; round++) {
      expect_rest();
      EXPECT_FALSE(session_->wants_to_send());
      EXPECT_EQ(session_->packets_in_flight(), 0u);
      EXPECT_EQ(session_->loss_check_at_ns(), UINT64_MAX);
      const std::vector<uint32_t> after = make_calls(round == 1 ? 1 : calls);
      for (size_t i = 0; i < after.size(); i++) {
        EXPECT_EQ(after[i], before[i] + wire::kSlotsMax);
        before[i] = after[i];
      }
    }
  }
}

TEST_F(RestingClientTest, begins_a_call_that_was_written_before) {
  for (const uint8_t window : {1, 8, 64}) {
    SCOPED_TRACE(window);
    server_number_ = 0;
    open_for_rest(window);
    uint32_t before = make_calls(1)[0];
    for (int round = 0; round < 3; round++) {
      expect_rest();
      ASSERT_TRUE(session_->sleeps());
      ClientBusy* busy = pools_.busy.take();
      requests_.push_back(make_buffer(10));
      responses_.push_back(make_buffer(10));
      busy->first_slot.request = requests_.back().get();
      busy->first_slot.response = responses_.back().get();
      busy->first_slot.type = 7;
      busy->first_slot.call_sequence = 42;
      session_->begin_first(busy);
      session_->check_invariants();
      EXPECT_EQ(session_->slot(0), &busy->first_slot);
      EXPECT_EQ(busy->first_slot.call_sequence, 42u);
      const auto packets = sent();
      ASSERT_EQ(packets.size(), 1u);
      EXPECT_EQ(packets[0].header.request_number(), before + wire::kSlotsMax);
      EXPECT_EQ(packets[0].header.request_type(), 7u);
      before = packets[0].header.request_number();
      finish(respond(session_->slot(0), packets[0].header.number(), 4, 4));
    }
  }
}

TEST_F(RestingClientTest, sleeps_whatever_it_has_to_report) {
  open_for_rest(8);
  EXPECT_TRUE(session_->sleeps()) << "not used yet";
  make_calls(1);
  EXPECT_FALSE(session_->sleeps()) << "not at rest yet";
  expect_rest();
  EXPECT_TRUE(session_->sleeps());
  const std::vector<uint32_t> numbers = make_calls(2);
  expect_rest();
  EXPECT_TRUE(session_->sleeps());
  // A call takes the first slot's memory only, and the report names the second slot nevertheless.
  const uint32_t number = make_calls(1)[0];
  EXPECT_EQ(pools_.slots.taken(), 0u);
  tick();
  tick(kDelayNs);
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(reported(packets[0]), (std::vector<uint32_t>{number, numbers[1]}));
}

TEST_F(RestingClientTest, a_slot_that_rests_is_reported_while_another_has_a_call_now_and_then) {
  for (const uint8_t window : {2, 8, 64}) {
    SCOPED_TRACE(window);
    server_number_ = 0;
    open_for_rest(window);
    const uint32_t resting = make_calls(2)[1];
    tick();
    expect_rest();
    std::vector<uint32_t> numbers;
    for (int i = 0; i < 30; i++) {
      const uint32_t number = make_calls(1)[0];
      rest();
      tick(10 * kMs);  // finds the session at rest
      for (const TestPacket& packet : sent()) {
        ASSERT_TRUE(numbers.empty()) << "once, for it was acknowledged";
        numbers = reported(packet);
        EXPECT_EQ(numbers, (std::vector<uint32_t>{number, resting}));
        EXPECT_LE(i, 10) << "after one delay";
        credit(packet.header.number());
      }
      rest();
    }
    EXPECT_FALSE(numbers.empty());
  }
}

/// Some ticks find the session busy, and others find it at rest.
TEST_F(RestingClientTest, a_slot_that_rests_is_reported_while_ticks_see_some_calls_of_another) {
  open_for_rest(8);
  const uint32_t resting = make_calls(2)[1];
  tick();
  expect_rest();
  std::vector<uint32_t> numbers;
  uint64_t until_report_ns = 0;
  for (; numbers.empty() && until_report_ns < 20 * kDelayNs; until_report_ns += 10 * kMs) {
    ClientSlot* slot = begin();
    const auto packets = sent();
    ASSERT_EQ(packets.size(), 1u);
    tick(5 * kMs);
    for (const TestPacket& packet : sent()) numbers = reported(packet);
    finish(respond(slot, packets[0].header.number(), 4, 4));
    rest();
    tick(5 * kMs);
    for (const TestPacket& packet : sent()) numbers = reported(packet);
  }
  EXPECT_EQ(std::count(numbers.begin(), numbers.end(), resting), 1);
  EXPECT_LE(until_report_ns, 3 * kDelayNs);
}

TEST_F(RestingClientTest, a_report_waits_for_the_memory_of_the_slots_that_it_names) {
  open_for_rest(8);
  const std::vector<uint32_t> numbers = make_calls(2);
  tick();
  expect_rest();
  std::vector<ClientSlot*> others;
  others.reserve(1000);
  g_has_no_memory = true;
  while (ClientSlot* slot = pools_.slots.take()) others.push_back(slot);
  const ClientTick result = tick(kDelayNs);
  EXPECT_TRUE(sent().empty());
  EXPECT_EQ(result.next_ns, now_ + kDelayNs);
  rest();
  EXPECT_FALSE(session_->is_awake());
  // The same while a call is busy.
  g_has_no_memory = false;
  ClientSlot* busy = begin();
  const auto request = sent();
  ASSERT_EQ(request.size(), 1u);
  credit(request[0].header.number());
  g_has_no_memory = true;
  for (int i = 0; i < 4; i++) tick(kDelayNs);
  g_has_no_memory = false;
  for (const TestPacket& packet : sent()) EXPECT_NE(packet.header.kind(), Kind::kReport);
  for (ClientSlot* slot : others) pools_.slots.give(slot);
  std::vector<uint32_t> named;
  for (int i = 0; i < 3; i++) {
    tick(kDelayNs);
    for (const TestPacket& packet : sent()) {
      if (packet.header.kind() == Kind::kReport) named = reported(packet);
    }
  }
  EXPECT_EQ(named, (std::vector<uint32_t>{numbers[1]})) << "the first slot has the call";
  EXPECT_NE(busy->phase, Phase::kFree);
}

TEST_F(RestingClientTest, does_not_rest_with_a_call) {
  open_for_rest(8);
  ClientSlot* slot = begin();
  rest();
  EXPECT_TRUE(session_->is_awake()) << "not sent yet";
  const auto packets = sent();
  rest();
  EXPECT_TRUE(session_->is_awake()) << "not answered yet";
  session_->end_early(slot, now_);
  rest();
  EXPECT_TRUE(session_->is_awake()) << "the cancel is not sent yet";
  const auto cancel = sent();
  ASSERT_EQ(cancel.size(), 1u);
  rest();
  EXPECT_TRUE(session_->is_awake()) << "the cancel is not acknowledged yet";
  session_->on_cancelled(server_header(Kind::kCancelled, wire::kNoEcho, slot->request_number, 0, 0), now_);
  expect_rest();
}

TEST_F(RestingClientTest, does_not_rest_with_a_blocked_slot) {
  open_for_rest(8);
  make_calls(1);
  ClientSlot* slot = session_->slot(0);
  session_->block_slot(slot);
  rest();
  ASSERT_TRUE(session_->is_awake());
  session_->unblock_slot(slot);
  expect_rest();
}

TEST_F(RestingClientTest, reports_after_the_rest_name_the_responses_before_it) {
  open_for_rest(8);
  const std::vector<uint32_t> numbers = make_calls(3);
  tick();
  expect_rest();
  tick(kDelayNs);
  const auto packets = sent();
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(reported(packets[0]), numbers);
  rest();
  EXPECT_TRUE(session_->is_awake()) << "the report is not acknowledged yet";
  credit(packets[0].header.number());
  expect_rest();
  EXPECT_TRUE(tick().is_idle);
  EXPECT_TRUE(tick(1000 * kMs).is_idle);
  EXPECT_FALSE(session_->is_awake());
  EXPECT_TRUE(sent().empty());
  // The next report names the next responses only.
  const std::vector<uint32_t> later = make_calls(1);
  tick();
  expect_rest();
  tick(kDelayNs);
  const auto report = sent();
  ASSERT_EQ(report.size(), 1u);
  EXPECT_EQ(reported(report[0]), later);
  credit(report[0].header.number());
  expect_rest();
}

TEST_F(RestingClientTest, rests_between_calls_do_not_postpone_the_report_of_another_slot) {
  open_for_rest(8);
  const std::vector<uint32_t> numbers = make_calls(2);
  bool is_reported = false;
  for (int i = 0; i < 500 && !is_reported; i++) {
    ClientSlot* slot = begin();
    const auto packets = sent();
    tick(kMs / 2);
    finish(respond(slot, packets.back().header.number(), 4, 4));
    rest();
    for (const TestPacket& packet : sent()) {
      if (packet.header.kind() != Kind::kReport) continue;
      for (const uint32_t number : reported(packet)) is_reported |= number == numbers[1];
    }
  }
  EXPECT_TRUE(is_reported);
}

TEST_F(RestingClientTest, packets_of_the_server_have_no_effect_on_a_session_at_rest) {
  open_for_rest(8);
  const std::vector<uint32_t> numbers = make_calls(2);
  expect_rest();
  ClientSlot old;
  old.request_number = numbers[0];
  EXPECT_EQ(respond(&old, 3, 4, 4).drop, Drop::kStale);
  EXPECT_EQ(respond(&old, 5, 4, 4).drop, Drop::kStale) << "the echo of a packet that was not sent";
  EXPECT_EQ(credit(4).drop, Drop::kNone);
  server_number_ += 5;  // a gap
  EXPECT_EQ(credit(4).drop, Drop::kNone);
  EXPECT_EQ(session_->on_cancelled(server_header(Kind::kCancelled, wire::kNoEcho, numbers[0], 0, 0), now_).drop,
            Drop::kStale);
  EXPECT_EQ(path_reply(2, kPayloadMax), PathVerdict::kDropped);
  session_->on_peer_idle();
  session_->on_peer_in_callback();
  EXPECT_FALSE(session_->is_awake());
  EXPECT_EQ(make_calls(1)[0], numbers[0] + wire::kSlotsMax);
}

TEST_F(RestingClientTest, is_as_patient_with_a_slow_server_as_before_the_rest) {
  open_for_rest(8);
  constexpr uint64_t kSlowNs = 4 * kMs;
  for (int i = 0; i < 3; i++) {
    ClientSlot* slot = begin();
    const auto packets = sent();
    ASSERT_EQ(packets.size(), 1u) << "no probe";
    if (i == 2) {
      EXPECT_FALSE(tick(kSlowNs).has_timed_out);
    } else {
      now_ += kSlowNs;
    }
    hold_ns_ = kSlowNs - 10'000;
    finish(respond(slot, packets[0].header.number(), 4, 4));
    tick();
    sent();
    expect_rest();
  }
}

}  // namespace
}  // namespace tern::session
