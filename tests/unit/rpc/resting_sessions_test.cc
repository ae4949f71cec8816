// Sessions that have calls together with many others, in virtual time: when they give back the memory for calls.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "unit/rpc/virtual_world.h"

namespace tern::rpc_test {
namespace {

constexpr uint16_t kEcho = 1;
constexpr size_t kTicking = rpc::ClientSessions::kRestAtOnceFrom;
constexpr size_t kBusy = kTicking + 200;

class RestingSessions : public VirtualWorld {
 protected:
  ~RestingSessions() override { hosts_.clear(); }  // ends calls

  void SetUp() override { ASSERT_NO_FATAL_FAILURE(make({})); }
  void make(const RpcOptions& options, size_t sessions = kBusy) {
    turns_a_check_ = 16;
    ASSERT_TRUE(add("10.0.0.1:1")
                    .rpc->on_request(kEcho, [](Request request) { request.respond(request.take_message().value()); })
                    .ok());
    client_ = &add("10.0.0.2:1", options);
    for (size_t i = 0; i < sessions; i++) sessions_.push_back(begin_session(*client_));
    ASSERT_TRUE(run_until([&] {
      return std::all_of(sessions_.begin(), sessions_.end(), [&](Session s) { return client_->rpc->is_open(s); });
    }));
    run_for(1'000'000'000, 10'000'000);  // all rest
  }
  /// Makes a call on each session, one soon after the other. Counts the sessions that rest in their continuations.
  void call_all(size_t& resting) {
    size_t answered = 0;
    for (const Session session : sessions_) {
      ASSERT_FALSE(is_awake(session));
      auto call = client_->rpc->enqueue_request(session, kEcho, client_->rpc->alloc_msgbuf(1),
                                                client_->rpc->alloc_msgbuf(1), [&, session](Completion& done) {
                                                  EXPECT_TRUE(done.status.ok()) << done.status.message();
                                                  answered++;
                                                  resting += !is_awake(session);
                                                });
      ASSERT_TRUE(call.ok()) << call.status().message();
      turn(2);  // so that no queue overflows, and no session rests by a tick before all have a call
    }
    ASSERT_TRUE(run_until([&] { return answered == sessions_.size(); }, 1'000'000, 10));
  }
  bool is_awake(Session session) const { return client_->core().client_session(session)->is_awake(); }

  VirtualHost* client_ = nullptr;
  std::vector<Session> sessions_;
};

TEST_F(RestingSessions, beyond_the_ticking_ones_rest_before_the_continuation_of_their_last_call) {
  for (int round = 0; round < 3; round++) {
    size_t resting = 0;
    ASSERT_NO_FATAL_FAILURE(call_all(resting));
    // The first session may have rested by a tick before the others began.
    EXPECT_GE(resting, kBusy - kTicking - 1) << "in round " << round;
    EXPECT_LE(resting, kBusy - kTicking) << "in round " << round;
    run_for(1'000'000'000, 10'000'000);
  }
}

class ManyReports : public RestingSessions {
 protected:
  static constexpr uint64_t kDelayNs = 1'000'000;
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(make({.report_delay = std::chrono::nanoseconds(kDelayNs)})); }
  uint64_t packets_sent() const { return client_->rpc->counters().packets_sent; }
};

/// At most 100 000 sessions a second report.
TEST_F(ManyReports, wait_longer_than_those_of_few_sessions) {
  constexpr uint64_t kLongerNs = kBusy * 10'000;
  static_assert(kLongerNs > 2 * kDelayNs);
  size_t resting = 0;
  ASSERT_NO_FATAL_FAILURE(call_all(resting));
  const uint64_t after_calls = packets_sent();
  run_for(kLongerNs - kDelayNs / 2);
  EXPECT_EQ(packets_sent(), after_calls) << "some have reported already";
  run_for(2 * kLongerNs);
  EXPECT_EQ(packets_sent(), after_calls + kBusy);
  EXPECT_EQ(client_->core().client_session(sessions_[0])->is_awake(), false);

  // Then one session alone has the usual delay.
  auto call = client_->rpc->enqueue_request(sessions_[0], kEcho, client_->rpc->alloc_msgbuf(1),
                                            client_->rpc->alloc_msgbuf(1), [](Completion&) {});
  ASSERT_TRUE(call.ok()) << call.status().message();
  run_for(kDelayNs / 2);
  EXPECT_EQ(packets_sent(), after_calls + kBusy + 1);
  run_for(kDelayNs);
  EXPECT_EQ(packets_sent(), after_calls + kBusy + 2);
}

class ReportsOfThousands : public ManyReports {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(make({}, 4 * kTicking)); }
};

/// Those that report next use that memory.
TEST_F(ReportsOfThousands, give_back_the_memory_for_calls_when_they_are_acknowledged) {
  constexpr size_t kReportsAtOnce = 256;
  size_t resting = 0;
  ASSERT_NO_FATAL_FAILURE(call_all(resting));
  const uint64_t after_calls = packets_sent();
  size_t most_awake = 0;
  ASSERT_TRUE(run_until([&] {
    const auto awake = std::count_if(sessions_.begin(), sessions_.end(), [this](Session s) { return is_awake(s); });
    most_awake = std::max(most_awake, static_cast<size_t>(awake));
    return packets_sent() == after_calls + sessions_.size();
  }));
  EXPECT_LE(most_awake, kTicking + kReportsAtOnce);
}

}  // namespace
}  // namespace tern::rpc_test
