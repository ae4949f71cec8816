// Time on a simulated host: its clock and its drift, what slowness slows down, and workers with declared times.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <tern/rpc.h>
#include <tern/sim.h>

namespace tern::sim {
namespace {

using namespace std::chrono_literals;

constexpr uint16_t kWork = 1;
constexpr uint16_t kSpend = 2;

struct Machine {
  Machine(Host& host, NexusOptions options) {
    auto made_nexus = Nexus::create(host.uri(), options);
    EXPECT_TRUE(made_nexus.ok()) << made_nexus.status().message();
    nexus = std::move(*made_nexus);
    auto made = Rpc<Sim>::create(*nexus, host.transport_options(), {.huge_pages = false});
    EXPECT_TRUE(made.ok()) << made.status().message();
    rpc = std::move(*made);
    EXPECT_TRUE(rpc->on_request(kWork, [](Request request) { request.respond(); }, {.worker = true}).ok());
    EXPECT_TRUE(rpc->on_request(kSpend,
                                [&host](Request request) {
                                  host.spend(100us);
                                  request.respond();
                                })
                    .ok());
    EXPECT_TRUE(host.run(*rpc).ok());
  }
  std::unique_ptr<Nexus> nexus;
  std::unique_ptr<Rpc<Sim>> rpc;
};

/// Host 0 calls, host 1 serves.
struct Two {
  explicit Two(size_t worker_threads = 1, size_t worker_queue_limit = 4096) {
    auto made = Simulation::create(Topology::star(2));
    EXPECT_TRUE(made.ok());
    simulation = std::move(*made);
    for (uint32_t i = 0; i < 2; i++) {
      EXPECT_TRUE(simulation->host(i)
                      .boot([&](Host& host) {
                        NexusOptions options = host.nexus_options();
                        options.worker_threads = worker_threads;
                        options.worker_queue_limit = worker_queue_limit;
                        auto machine = std::make_shared<Machine>(host, options);
                        (i == 0 ? client : server) = machine.get();
                        return machine;
                      })
                      .ok());
    }
    session = *client->rpc->create_session(server_host().uri());
    simulation->run_for(10ms);
    EXPECT_TRUE(client->rpc->is_open(session));
  }
  Host& server_host() { return simulation->host(1); }
  /// When the call is over, after now, and how.
  void call(uint16_t type, std::vector<std::pair<Duration, Status>>& ends) {
    const Duration begin = simulation->now();
    const auto call = client->rpc->enqueue_request(
        session, type, client->rpc->alloc_msgbuf(8), client->rpc->alloc_msgbuf(8),
        [&ends, begin, this](Completion& done) { ends.emplace_back(simulation->now() - begin, done.status); });
    EXPECT_TRUE(call.ok()) << call.status().message();
  }
  void expect_ends(const std::vector<std::pair<Duration, Status>>& ends, const std::vector<Duration>& expected) {
    ASSERT_EQ(ends.size(), expected.size());
    for (size_t i = 0; i < ends.size(); i++) {
      EXPECT_TRUE(ends[i].second.ok()) << ends[i].second.message();
      EXPECT_GE(ends[i].first, expected[i]) << i;
      EXPECT_LT(ends[i].first, expected[i] + 20us) << i;
    }
  }

  std::unique_ptr<Simulation> simulation;
  Machine* client = nullptr;
  Machine* server = nullptr;
  Session session;
};

TEST(HostTime, timers_go_by_the_hosts_own_clock) {
  Two two;
  const auto time_of_a_timer = [&] {
    bool is_over = false;
    const Duration begin = two.simulation->now();
    EXPECT_TRUE(two.server->rpc->after(100ms, [&] { is_over = true; }).ok());
    EXPECT_TRUE(two.simulation->run_until([&] { return is_over; }, 1s));
    return two.simulation->now() - begin;
  };
  const auto expect_near = [](Duration time, Duration expected) {
    EXPECT_GE(time, expected - 10us);
    EXPECT_LE(time, expected + 10us);
  };
  expect_near(time_of_a_timer(), 100ms);
  two.server_host().set_clock_drift(100'000);
  expect_near(time_of_a_timer(), 90'909'091ns);
  two.server_host().set_clock_drift(-100'000);
  expect_near(time_of_a_timer(), 111'111'111ns);
  two.simulation->heal();
  expect_near(time_of_a_timer(), 100ms);
  EXPECT_NE(two.simulation->host(0).now(), two.server_host().now()) << "clocks begin at different times";
}

TEST(HostTime, a_clock_never_goes_back) {
  Two two;
  Host& host = two.server_host();
  Duration last = host.now();
  for (const int32_t ppm : {500, -100'000, 100'000, 0, -1}) {
    host.set_clock_drift(ppm);
    for (int i = 0; i < 50; i++) {
      two.simulation->run_for(13us);
      EXPECT_GE(host.now(), last);
      last = host.now();
    }
  }
}

TEST(HostTime, slowness_slows_handlers_and_workers) {
  Two two;
  two.server_host().set_worker_time([] { return 200us; });
  std::vector<std::pair<Duration, Status>> ends;
  const auto both = [&] {
    ends.clear();
    two.call(kSpend, ends);
    two.simulation->run_for(10ms);
    two.call(kWork, ends);
    two.simulation->run_for(10ms);
  };
  both();
  two.expect_ends(ends, {100us, 200us});
  two.server_host().set_slowness(5);
  both();
  two.expect_ends(ends, {500us, 1000us});
  two.simulation->heal();
  both();
  two.expect_ends(ends, {100us, 200us});
}

TEST(HostTime, workers_take_their_time_one_after_the_other) {
  Two two;
  std::vector<Duration> times = {300us, 100us, 50us};
  two.server_host().set_worker_time([&] {
    const Duration time = times.front();
    times.erase(times.begin());
    return time;
  });
  std::vector<std::pair<Duration, Status>> ends;
  for (int i = 0; i < 3; i++) two.call(kWork, ends);
  two.simulation->run_for(10ms);
  two.expect_ends(ends, {300us, 400us, 450us});
}

TEST(HostTime, two_workers_work_at_the_same_time) {
  Two two(2);
  std::vector<Duration> times = {300us, 100us, 50us};
  two.server_host().set_worker_time([&] {
    const Duration time = times.front();
    times.erase(times.begin());
    return time;
  });
  std::vector<std::pair<Duration, Status>> ends;
  for (int i = 0; i < 3; i++) two.call(kWork, ends);
  two.simulation->run_for(10ms);
  two.expect_ends(ends, {100us, 150us, 300us});
}

TEST(HostTime, a_full_worker_queue_refuses) {
  Two two(1, 2);  // one at work, two in the queue
  two.server_host().set_worker_time([] { return 300us; });
  std::vector<std::pair<Duration, Status>> ends;
  for (int i = 0; i < 5; i++) two.call(kWork, ends);
  two.simulation->run_for(10ms);
  ASSERT_EQ(ends.size(), 5u);
  int refused = 0;
  for (const auto& [time, status] : ends) {
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), Code::kQueueFull) << status.message();
    EXPECT_LT(time, 100us);
    refused++;
  }
  EXPECT_EQ(refused, 2);
}

TEST(HostTime, workers_of_a_paused_host_go_on_afterwards) {
  Two two;
  std::vector<std::pair<Duration, Status>> ends;
  two.server_host().set_worker_time([] { return 100us; });
  two.call(kWork, ends);
  two.simulation->run_for(50us);
  two.server_host().pause(5ms);
  two.simulation->run_for(20ms);
  two.expect_ends(ends, {5050us});
}

TEST(HostTime, what_a_turn_takes_delays_what_it_sends) {
  Two two;
  std::vector<std::pair<Duration, Status>> ends;
  for (int i = 0; i < 4; i++) two.call(kSpend, ends);
  // The first one is in a turn of its own; the others come meanwhile, and share the next one.
  two.simulation->run_for(10ms);
  two.expect_ends(ends, {100us, 400us, 400us, 400us});
}

}  // namespace
}  // namespace tern::sim
