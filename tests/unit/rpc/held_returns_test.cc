// Credit returns of kept requests wait for the answers, which then take their place (clause 4.2.6).
#include <algorithm>
#include <utility>
#include <vector>

#include "unit/rpc/virtual_world.h"

namespace tern::rpc_test {
namespace {

constexpr uint16_t kKeep = 2;

class HeldReturns : public VirtualWorld {
 protected:
  static constexpr uint64_t kStepNs = 500;
  static constexpr uint64_t kHoldNs = 2'500;  ///< a quarter of the fake transport's shortest timeout

  HeldReturns() {
    add("10.0.0.1:1", {}, [this](const wire::Header& header, size_t) {
      if (is_watching_) sent_.emplace_back(header.kind(), network_.now_ns);
      return true;
    });
    EXPECT_TRUE(server().rpc->on_request(kKeep, [this](Request request) { kept_.push_back(std::move(request)); }).ok());
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
  void call() {
    auto started = client().enqueue_request(session_, kKeep, client().alloc_msgbuf(8), client().alloc_msgbuf(8),
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
  run_for(10 * kHoldNs, kStepNs);
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

TEST_F(HeldReturns, a_session_may_end_while_one_waits) {
  call_and_keep();
  ASSERT_TRUE(client().destroy_session(session_).ok());
  run_for(1'000'000, kStepNs);
  EXPECT_TRUE(kept_[0].is_cancelled());
  EXPECT_EQ(sent(wire::Kind::kCr), 0u);
}

}  // namespace
}  // namespace tern::rpc_test
