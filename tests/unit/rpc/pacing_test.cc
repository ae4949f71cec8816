// A paced session reaches its rate whatever the length of its loop's turns, in virtual time.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "unit/rpc/virtual_world.h"

namespace tern::rpc_test {
namespace {

constexpr uint16_t kTake = 1;
constexpr size_t kRequestBytes = 4u << 20;
constexpr uint64_t kMs = 1'000'000;

struct Case {
  uint64_t bytes_per_sec;
  uint64_t turn_ns;
};
class Pacing : public VirtualWorld, public ::testing::WithParamInterface<Case> {
 protected:
  /// Makes calls all the time, so that there is always a packet to send.
  void call() {
    auto& rpc = *client_->rpc;
    const auto started = rpc.enqueue_request(session_, kTake, rpc.alloc_msgbuf(kRequestBytes), rpc.alloc_msgbuf(8),
                                             [this](Completion& done) {
                                               if (done.status.code() == Code::kCancelled) return;  // the endpoint ends
                                               EXPECT_TRUE(done.status.ok()) << done.status.message();
                                               call();
                                             });
    ASSERT_TRUE(started.ok());
  }

  uint64_t bytes_ = 0;  ///< sent bytes, headers included
  VirtualHost* client_ = nullptr;
  Session session_;
};

TEST_P(Pacing, reaches_the_rate_and_no_more) {
  receive_burst_ = 256;
  add("1.0.0.1:1");
  ASSERT_TRUE(server().rpc->on_request(kTake, [](Request request) { request.respond(); }).ok());
  client_ = &add("1.0.0.2:1", {}, [this](const wire::Header& header, size_t payload_bytes) {
    if (header.kind() == wire::Kind::kRequest) bytes_ += payload_bytes + wire::kHeaderBytes;
    return true;
  });
  session_ = open(*client_, {.rate_bytes_per_sec = GetParam().bytes_per_sec});
  call();
  call();
  run_for(10 * kMs, GetParam().turn_ns);  // credits grow meanwhile
  const uint64_t before = bytes_, before_ns = network_.now_ns;
  run_for(50 * kMs, GetParam().turn_ns);
  const auto reached = static_cast<double>(bytes_ - before) * 1e9 / static_cast<double>(network_.now_ns - before_ns);
  const auto expected = static_cast<double>(GetParam().bytes_per_sec);
  EXPECT_NEAR(reached, expected, expected * 0.05);
}

INSTANTIATE_TEST_SUITE_P(Turns, Pacing,
                         ::testing::Values(Case{50'000'000, 5'000}, Case{50'000'000, 50'000}, Case{50'000'000, 100'000},
                                           Case{500'000'000, 5'000}, Case{500'000'000, 50'000},
                                           Case{500'000'000, 100'000}),
                         [](const auto& each) {
                           return std::to_string(each.param.bytes_per_sec / 1'000'000) + "_MBps_in_turns_of_" +
                                  std::to_string(each.param.turn_ns / 1000) + "_us";
                         });

}  // namespace
}  // namespace tern::rpc_test
