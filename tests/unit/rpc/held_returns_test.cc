// Credit returns of kept requests wait for the answers, which then take their place (clause 4.2.6).
#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "unit/rpc/virtual_world.h"

namespace tern::rpc_test {
namespace {

constexpr uint16_t kKeep = 2;
constexpr uint16_t kSlow = 3;

class HeldReturns : public VirtualWorld {
 protected:
  static constexpr uint64_t kStepNs = 500;
  static constexpr uint64_t kHoldNs = 2'500;  ///< a quarter of the fake transport's shortest timeout

  HeldReturns() {
    receive_burst_ = 1;  // each packet in an iteration of its own
    add("10.0.0.1:1", {.wait = Wait::kBlock}, [this](const wire::Header& header, size_t) {
      if (is_watching_) sent_.emplace_back(header.kind(), network_.now_ns);
      return true;
    });
    EXPECT_TRUE(server().rpc->on_request(kKeep, [this](Request request) { kept_.push_back(std::move(request)); }).ok());
    const auto slow = [this](Request request) {
      returned_before_slow_ = sent(wire::Kind::kCr);
      network_.now_ns += 100'000;
      request.respond();
    };
    EXPECT_TRUE(server().rpc->on_request(kSlow, slow).ok());
    session_ = open(add("10.0.0.2:1"));
    begin_to_run_often();
    is_watching_ = true;
  }
  ~HeldReturns() override {
    kept_.clear();
    hosts_.clear();
  }

  /// The endpoint knows from the second request on how often its loop runs.
  void begin_to_run_often() {
    call_and_keep();
    answer(0);
    EXPECT_TRUE(run_until([&] { return answered_ == 1; }, 1'000'000, kStepNs));
    kept_.clear();
    answered_ = 0;
  }
  Endpoint& client() { return *hosts_[1]->rpc; }
  void call(size_t bytes = 8) {
    auto started = client().enqueue_request(session_, kKeep, client().alloc_msgbuf(bytes), client().alloc_msgbuf(8),
                                            [this](Completion& done) { answered_ += done.status.ok(); });
    ASSERT_TRUE(started.ok()) << started.status().message();
  }
  /// Makes a call, whose request the server then has.
  void call_and_keep() {
    const size_t count = kept_.size() + 1;
    call();
    ASSERT_TRUE(run_until([&] { return kept_.size() == count; }, 1'000'000, kStepNs));
  }
  void answer(size_t i) {
    ASSERT_TRUE(kept_[i].response(8).ok());
    kept_[i].respond();
  }
  size_t sent(wire::Kind kind) const {
    size_t count = 0;
    for (const auto& [its, at_ns] : sent_) count += its == kind;
    return count;
  }

  Session session_;
  bool is_watching_ = false;
  std::vector<std::pair<wire::Kind, uint64_t>> sent_;  ///< by the server, with times
  std::vector<Request> kept_;
  size_t answered_ = 0;
  size_t returned_before_slow_ = 0;  ///< credit returns before the last run of kSlow
};

TEST_F(HeldReturns, an_answer_soon_after_the_handler_needs_none) {
  for (size_t i = 0; i < 100; i++) {
    call_and_keep();
    run_for(1'000, kStepNs);
    answer(i);
    ASSERT_TRUE(run_until([&] { return answered_ == i + 1; }, 1'000'000, kStepNs));
  }
  EXPECT_EQ(sent(wire::Kind::kResponse), 100u);
  EXPECT_EQ(sent(wire::Kind::kCr), 0u);
  EXPECT_EQ(client().session_info(session_).retransmissions, 0u);
}

TEST_F(HeldReturns, a_late_answer_follows_one_that_waited) {
  call_and_keep();
  const uint64_t kept_ns = network_.now_ns;
  run_for(3 * kHoldNs, kStepNs);  // the client would ask later
  answer(0);
  ASSERT_TRUE(run_until([&] { return answered_ == 1; }, 1'000'000, kStepNs));
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[0].first, wire::Kind::kCr);
  EXPECT_GE(sent_[0].second, kept_ns + kHoldNs - 2 * kStepNs);
  EXPECT_LE(sent_[0].second, kept_ns + kHoldNs + 9 * kStepNs);  // an idle loop reads the clock in every eighth turn
}

// One credit return is for all requests that wait.
TEST_F(HeldReturns, every_request_of_a_stream_is_acknowledged_in_time) {
  std::vector<uint64_t> kept_ns;
  for (int i = 0; i < 8; i++) {
    call_and_keep();
    kept_ns.push_back(network_.now_ns);
  }
  run_for(2 * kHoldNs + 4 * kStepNs, kStepNs);  // the client would ask later
  EXPECT_LT(sent_.size(), 8u);
  for (const uint64_t ns : kept_ns) {
    uint64_t next_ns = UINT64_MAX;
    for (const auto& [kind, at_ns] : sent_) {
      if (kind == wire::Kind::kCr && at_ns + kStepNs >= ns) next_ns = std::min(next_ns, at_ns);
    }
    EXPECT_LE(next_ns, ns + 2 * kHoldNs + 2 * kStepNs);
  }
  for (size_t i = 0; i < 8; i++) answer(7 - i);
  EXPECT_TRUE(run_until([&] { return answered_ == 8; }, 1'000'000, kStepNs));
}

// The oldest one changes with each answer, and none of them waits for longer because of that.
TEST_F(HeldReturns, none_waits_longer_while_older_requests_are_answered_in_turn) {
  const uint64_t begin_ns = network_.now_ns;
  constexpr uint64_t kShortStepNs = 100;
  for (size_t i = 0; i < 5; i++) {
    call();
    ASSERT_TRUE(run_until([&] { return kept_.size() == i + 1; }, 1'000'000, kShortStepNs));
  }
  ASSERT_EQ(sent(wire::Kind::kCr), 0u);
  ASSERT_LT(network_.now_ns, begin_ns + kHoldNs);
  const uint64_t last_ns = network_.now_ns;
  for (size_t i = 0; i < 4; i++) {
    answer(i);
    run_for(kHoldNs, kShortStepNs);
  }
  const auto first_return =
      std::find_if(sent_.begin(), sent_.end(), [](const auto& packet) { return packet.first == wire::Kind::kCr; });
  ASSERT_NE(first_return, sent_.end());
  EXPECT_LE(first_return->second, last_ns + 2 * kHoldNs + 9 * kShortStepNs);
  answer(4);
  EXPECT_TRUE(run_until([&] { return answered_ == 5; }, 1'000'000, kShortStepNs));
}

// It may know a low limit, and wait for credits.
TEST_F(HeldReturns, only_one_waits_for_a_client_that_has_had_no_answer_lately) {
  run_for(30'000'000, 2'000);
  sent_.clear();
  for (int i = 0; i < 4; i++) call();
  ASSERT_TRUE(run_until([&] { return kept_.size() == 1; }, 1'000'000, kStepNs));
  EXPECT_TRUE(sent_.empty());
  ASSERT_TRUE(run_until([&] { return kept_.size() == 2; }, 1'000'000, kStepNs));
  EXPECT_EQ(sent(wire::Kind::kCr), 1u);
  ASSERT_TRUE(run_until([&] { return kept_.size() == 4; }, 1'000'000, kStepNs));
  EXPECT_EQ(sent(wire::Kind::kCr), 1u);  // it knows the present limit now
}

// The next iteration would be too late.
TEST_F(HeldReturns, none_waits_where_the_loop_runs_rarely) {
  run_for(10'000 * kHoldNs, 2 * kHoldNs);
  call();
  for (int i = 0; i < 10 && kept_.empty(); i++) turn(2 * kHoldNs);
  ASSERT_EQ(kept_.size(), 1u);
  ASSERT_EQ(sent(wire::Kind::kCr), 1u);  // in the iteration of its request
}

TEST_F(HeldReturns, none_waits_where_the_program_waits_between_iterations) {
  call_and_keep();
  EXPECT_TRUE(sent_.empty());
  (void)server().rpc->next_due();
  turn(kStepNs);
  EXPECT_EQ(sent_.size(), 1u);  // the one that has waited is sent at once
  call_and_keep();
  EXPECT_EQ(sent_.size(), 2u);
}

// The fake transport lets time pass instead of sleeping.
TEST_F(HeldReturns, none_waits_while_the_endpoint_sleeps) {
  call_and_keep();
  EXPECT_TRUE(sent_.empty());
  const uint64_t begin_ns = network_.now_ns;
  ASSERT_TRUE(server().rpc->run_event_loop(std::chrono::milliseconds(1)).ok());
  EXPECT_GE(network_.now_ns, begin_ns + 1'000'000);
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].second, begin_ns);
}

TEST_F(HeldReturns, none_waits_after_the_loop_has_ended) {
  call_and_keep();
  EXPECT_TRUE(sent_.empty());
  ASSERT_TRUE(server().rpc->run_event_loop({}).ok());
  EXPECT_EQ(sent(wire::Kind::kCr), 1u);
}

TEST_F(HeldReturns, none_waits_for_a_handler_that_takes_long) {
  VirtualHost& other = add("10.0.0.3:1");
  const Session session = open(other);
  const auto call_slow = [&] {
    const CallOptions in_time = {.deadline = std::chrono::milliseconds(10)};
    ASSERT_TRUE(other.rpc
                    ->enqueue_request(
                        session, kSlow, other.rpc->alloc_msgbuf(8), other.rpc->alloc_msgbuf(8),
                        [this](Completion& done) { answered_ += done.status.ok(); }, in_time)
                    .ok());
  };
  for (size_t i = 1; i <= 3; i++) {  // the endpoint learns how long it takes
    call_slow();
    ASSERT_TRUE(run_until([&] { return answered_ == i; }, 10'000'000, kStepNs));
  }
  run_for(100'000, kStepNs);
  sent_.clear();
  call_and_keep();
  call_slow();
  ASSERT_TRUE(run_until([&] { return answered_ == 4; }, 10'000'000, kStepNs));
  EXPECT_EQ(returned_before_slow_, 2u);  // that of each session
}

TEST_F(HeldReturns, none_waits_for_a_request_of_two_packets) {
  call(2 * kPayloadBytes);
  ASSERT_TRUE(run_until([&] { return !sent_.empty(); }, 1'000'000, kStepNs));
  EXPECT_TRUE(kept_.empty());
  ASSERT_TRUE(run_until([&] { return !kept_.empty(); }, 1'000'000, kStepNs));
  EXPECT_EQ(sent(wire::Kind::kCr), 2u);
}

TEST_F(HeldReturns, those_of_at_most_1024_sessions_wait) {
  constexpr size_t kSessions = 1024 + 2;
  constexpr size_t kBatch = 114;  // a ninth of the sessions; the queues of both ends have space for it
  turns_a_check_ = 16;
  std::vector<Session> sessions;
  while (sessions.size() < kSessions) sessions.push_back(open(*hosts_[1]));
  begin_to_run_often();
  run_for(2 * kHoldNs, kStepNs);  // its place in the queue is free again
  sent_.clear();
  const uint64_t begin_ns = network_.now_ns;
  for (size_t i = 0; i < kSessions; i++) {
    session_ = sessions[i];
    call();
    if ((i + 1) % kBatch != 0) continue;
    ASSERT_TRUE(run_until([&] { return kept_.size() == i + 1; }, kHoldNs, 1));
  }
  ASSERT_LT(network_.now_ns, begin_ns + kHoldNs);
  EXPECT_EQ(sent(wire::Kind::kCr), 2u);
  for (size_t i = 0; i < kSessions; i++) {
    answer(i);
    if ((i + 1) % kBatch != 0) continue;
    ASSERT_TRUE(run_until([&] { return answered_ == i + 1; }, kHoldNs, 1));
  }
  EXPECT_EQ(sent(wire::Kind::kCr), 2u);
}

TEST_F(HeldReturns, a_session_may_end_while_one_waits) {
  call_and_keep();
  ASSERT_TRUE(client().destroy_session(session_).ok());
  run_for(1'000'000, kStepNs);
  EXPECT_TRUE(kept_[0].is_cancelled());
  EXPECT_EQ(sent(wire::Kind::kCr), 0u);
}

}  // namespace
}  // namespace tern::rpc_test
