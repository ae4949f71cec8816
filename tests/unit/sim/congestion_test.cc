// Congestion controllers in whole endpoints in the simulated network: their selection, and the behaviour that they have
// in the model of one queue (unit/cc/controllers_test.cc).
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "unit/sim/sim_program.h"

namespace tern::sim {
namespace {

using namespace std::chrono_literals;

constexpr uint16_t kPut = 1;

struct Peer : SimProgram {
  Peer(Host& host, RpcOptions options) : SimProgram(host, options) {
    EXPECT_TRUE(rpc->on_request(kPut, [](Request request) { request.respond(); }).ok());
  }
};

class CongestionTest : public testing::Test {
 protected:
  /// The server, host 0, grants `credit_limit` credits whatever its downlink, so that only the controllers limit the
  /// clients.
  void make(const Topology& topology, const RpcOptions& client_options = {}, SessionOptions session_options = {},
            uint32_t credit_limit = 32) {
    sessions_.clear();
    simulation_.reset();
    auto made = Simulation::create(topology, {.seed = 5});
    ASSERT_TRUE(made.ok()) << made.status().message();
    simulation_ = std::move(*made);
    for (uint32_t i = 0; i < topology.hosts(); i++) {
      RpcOptions options = client_options;
      if (i == 0) options.credit_limit = credit_limit;
      const auto program = [options](Host& host) { return std::make_shared<Peer>(host, options); };
      ASSERT_TRUE(simulation_->host(i).boot(program).ok());
    }
    session_options.window = 1;
    for (uint32_t i = 1; i < topology.hosts(); i++) {
      auto session = rpc(i).create_session(simulation_->host(0).uri(), session_options);
      ASSERT_TRUE(session.ok()) << session.status().message();
      sessions_.push_back(*session);
    }
    ASSERT_TRUE(simulation_->run_until(
        [&] {
          for (uint32_t i = 1; i < simulation_->hosts(); i++) {
            if (!rpc(i).is_open(sessions_[i - 1])) return false;
          }
          return true;
        },
        50ms));
  }
  Rpc<Sim>& rpc(uint32_t host) { return *static_cast<Peer*>(simulation_->host(host).program())->rpc; }
  /// Sends a request of this size from every client, and returns the time until all have ended.
  Duration put_all(size_t bytes) {
    const Duration begin = simulation_->now();
    size_t left = sessions_.size();
    for (uint32_t i = 1; i < simulation_->hosts(); i++) {
      const auto then = [&left](Completion& done) {
        EXPECT_TRUE(done.status.ok()) << done.status.message();
        left--;
      };
      Rpc<Sim>& client = rpc(i);
      auto call =
          client.enqueue_request(sessions_[i - 1], kPut, client.alloc_msgbuf(bytes), client.alloc_msgbuf(1), then);
      EXPECT_TRUE(call.ok()) << call.status().message();
    }
    EXPECT_TRUE(simulation_->run_until([&] { return left == 0; }, 1s)) << left;
    return simulation_->now() - begin;
  }
  /// Returns the share of a link of 25 Gbit/s.
  static double share_of_line(uint64_t bytes, Duration time) {
    return static_cast<double>(bytes) / static_cast<double>(time.count()) / (3.125 * 958 / 1048);
  }
  /// Returns the share of an incast's frames that have more than 400 kB in the queue before them. 32 credits of each of
  /// 32 clients are 1 MB.
  double share_behind_long_queue(const RpcOptions& options, SessionOptions session_options = {}) {
    SwitchOptions at;
    at.ecn_threshold_bytes = 400'000;
    make(Topology::star(33, {}, at), options, session_options);
    constexpr size_t kBytes = 1 << 20;
    time_ = put_all(kBytes);
    const uint64_t frames = 32 * (kBytes / 958);
    return static_cast<double>(simulation_->counters().packets_marked) / static_cast<double>(frames);
  }

  /// Returns the utilization of the bottleneck in share_behind_long_queue().
  double utilization() const { return share_of_line(32u << 20, time_); }

  std::unique_ptr<Simulation> simulation_;
  std::vector<Session> sessions_;
  Duration time_{};
};

TEST_F(CongestionTest, a_controller_shortens_the_queue_and_none_does_not) {
  RpcOptions options;
  options.congestion_control = CongestionControl::kNone;
  EXPECT_GT(share_behind_long_queue(options), 0.8);
  for (const auto controller : {CongestionControl::kDefault, CongestionControl::kSwift}) {
    options.congestion_control = controller;
    EXPECT_LT(share_behind_long_queue(options), 0.15) << static_cast<int>(controller);
    EXPECT_GE(utilization(), 0.9);
  }
  // The length of DCTCP's queue follows the threshold of the marks.
  options.congestion_control = CongestionControl::kDctcp;
  EXPECT_LT(share_behind_long_queue(options), 0.6);
  EXPECT_GE(utilization(), 0.9);
}

TEST_F(CongestionTest, a_session_may_differ_from_its_endpoint) {
  RpcOptions options;
  options.congestion_control = CongestionControl::kSwift;
  EXPECT_GT(share_behind_long_queue(options, {.congestion_control = CongestionControl::kNone}), 0.8);
  options.congestion_control = CongestionControl::kNone;
  EXPECT_LT(share_behind_long_queue(options, {.congestion_control = CongestionControl::kSwift}), 0.15);
}

TEST_F(CongestionTest, the_same_seed_gives_the_same_trace_with_every_controller) {
  for (const auto controller : {CongestionControl::kTimely, CongestionControl::kPatchedTimely,
                                CongestionControl::kSwift, CongestionControl::kDctcp}) {
    RpcOptions options;
    options.congestion_control = controller;
    uint64_t traces[2];
    for (uint64_t& trace : traces) {
      (void)share_behind_long_queue(options);
      trace = simulation_->trace_hash();
    }
    EXPECT_EQ(traces[0], traces[1]);
  }
}

/// Credits depend on the server's link only. Eight clients are at one switch and a server for each of them at another
/// one, with one cable between the switches.
TEST_F(CongestionTest, a_queue_between_switches_is_found_by_controllers_alone) {
  constexpr uint32_t kPairs = 8;
  constexpr size_t kBytes = 1 << 20;
  SwitchOptions at;
  at.ecn_threshold_bytes = 200'000;  // 64 us
  for (const auto controller : {CongestionControl::kNone, CongestionControl::kDefault}) {
    Topology topology = Topology::star(kPairs, {}, at);
    const Node other = topology.add_switch(at);
    topology.connect({Node::Kind::kSwitch, 0}, other);
    for (uint32_t i = 0; i < kPairs; i++) topology.connect(topology.add_host(), other);
    RpcOptions options;
    options.congestion_control = controller;
    make(topology, options);  // connects each host to host 0; these sessions are not used here
    sessions_.clear();
    size_t left = kPairs;
    for (uint32_t i = 0; i < kPairs; i++) {
      auto session = rpc(i).create_session(simulation_->host(kPairs + i).uri(), {.window = 1});
      ASSERT_TRUE(session.ok());
      sessions_.push_back(*session);
    }
    simulation_->run_for(2ms);
    const Duration begin = simulation_->now();
    for (uint32_t i = 0; i < kPairs; i++) {
      auto call = rpc(i).enqueue_request(sessions_[i], kPut, rpc(i).alloc_msgbuf(kBytes), rpc(i).alloc_msgbuf(1),
                                         [&left](Completion& done) { left -= done.status.ok() ? 1 : 0; });
      ASSERT_TRUE(call.ok());
    }
    ASSERT_TRUE(simulation_->run_until([&] { return left == 0; }, 100ms));
    EXPECT_GE(share_of_line(kPairs * kBytes, simulation_->now() - begin), 0.9);
    const double marked = static_cast<double>(simulation_->counters().packets_marked) / (kPairs * (kBytes / 958.0));
    if (controller == CongestionControl::kNone) {
      EXPECT_GT(marked, 0.8);
    } else {
      EXPECT_LT(marked, 0.15);
    }
  }
}

/// The topology of the previous test, with switches that buffer less than Swift's target allows in the queue. Measured
/// after the first 5 ms.
class Trunk : public CongestionTest, public testing::WithParamInterface<size_t> {
 protected:
  static constexpr uint32_t kPairs = 8;
  static constexpr size_t kBytes = 1 << 20;

  void put(uint32_t pair) {
    auto call =
        rpc(pair).enqueue_request(sessions_[pair], kPut, rpc(pair).alloc_msgbuf(kBytes), rpc(pair).alloc_msgbuf(1),
                                  [this, pair, is_over = is_over_](tern::Completion& done) {
                                    if (*is_over) return;
                                    EXPECT_TRUE(done.status.ok()) << done.status.message();
                                    put(pair);
                                  });
    EXPECT_TRUE(call.ok()) << call.status().message();
  }
  uint64_t retransmissions() {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < kPairs; i++) sum += rpc(i).counters().retransmissions;
    return sum;
  }

  /// The last calls end when the endpoints go, which is after this class.
  std::shared_ptr<bool> is_over_ = std::make_shared<bool>(false);
};
INSTANTIATE_TEST_SUITE_P(Buffers, Trunk, testing::Values(30'000, 50'000, 100'000, 200'000));

TEST_P(Trunk, is_full_and_loses_little_whatever_its_switches_buffer) {
  const size_t buffer_bytes = GetParam();
  Topology topology = Topology::star(kPairs, {}, {.buffer_bytes = buffer_bytes});
  const Node other = topology.add_switch({.buffer_bytes = buffer_bytes});
  topology.connect({Node::Kind::kSwitch, 0}, other);
  for (uint32_t i = 0; i < kPairs; i++) topology.connect(topology.add_host(), other);
  make(topology, {}, {}, 0);  // connects each host to host 0; these sessions are not used here
  sessions_.clear();
  for (uint32_t i = 0; i < kPairs; i++) {
    auto session = rpc(i).create_session(simulation_->host(kPairs + i).uri(), {.window = 1});
    ASSERT_TRUE(session.ok());
    sessions_.push_back(*session);
  }
  simulation_->run_for(2ms);
  uint64_t sent = 0, arrived = 0;
  std::vector<double> arrived_at(kPairs);
  simulation_->set_tap([&](const TappedPacket& packet) {
    if (packet.has_arrived && packet.to_host >= kPairs && packet.bytes.size() > 900) {
      arrived++;
      arrived_at[packet.to_host - kPairs]++;
    }
    if (!packet.has_arrived && packet.from_host < kPairs) sent++;
  });
  for (uint32_t i = 0; i < kPairs; i++) put(i);
  simulation_->run_for(5ms);
  sent = arrived = 0;
  arrived_at.assign(kPairs, 0);
  const uint64_t dropped_before = simulation_->counters().dropped_buffer_full;
  const uint64_t again_before = retransmissions();
  simulation_->run_for(20ms);
  const uint64_t again = retransmissions() - again_before;
  const auto dropped = static_cast<double>(simulation_->counters().dropped_buffer_full - dropped_before);
  const bool is_deep = buffer_bytes >= 100'000;
  EXPECT_GE(share_of_line((arrived - again) * 958, 20ms), is_deep ? 0.93 : 0.9);
  EXPECT_LE(dropped / static_cast<double>(sent), is_deep ? 0.01 : 0.02);
  EXPECT_GE(*std::min_element(arrived_at.begin(), arrived_at.end()), static_cast<double>(arrived) / kPairs / 4);
  *is_over_ = true;
  simulation_->set_tap(nullptr);
}

/// A controller must not take the path's unloaded delay for a queue, whether it is 4 us, 40 us, or 4 ms.
TEST_F(CongestionTest, a_lone_flow_has_the_link_at_any_distance) {
  for (const Duration delay : {Duration(500ns), Duration(3us), Duration(8us)}) {
    make(Topology::star(2, {.delay = delay}), {}, {}, 128);
    constexpr size_t kBytes = 8 << 20;
    EXPECT_GE(share_of_line(kBytes, put_all(kBytes)), 0.9) << delay.count();
  }
  // The limit of 128 packets in 4 ms bounds the throughput.
  make(Topology::star(2, {.delay = 1ms}), {}, {}, 128);
  constexpr size_t kBytes = 1 << 20;
  EXPECT_LE(put_all(kBytes), (kBytes / 958 / 128 + 4) * 4ms);
}

}  // namespace
}  // namespace tern::sim
