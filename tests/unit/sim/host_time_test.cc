// Time on a simulated host: its clock and drift, the effect of slowness, and workers with declared times.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "unit/sim/sim_program.h"

namespace tern::sim {
namespace {

using namespace std::chrono_literals;

constexpr uint16_t kWork = 1;
constexpr uint16_t kSpend = 2;

struct Machine : SimProgram {
  Machine(Host& host, NexusOptions options) : SimProgram(host, options) {
    EXPECT_TRUE(rpc->on_request(kWork, [](Request request) { request.respond(); }, {.worker = true}).ok());
    EXPECT_TRUE(rpc->on_request(kSpend,
                                [&host](Request request) {
                                  host.spend(100us);
                                  request.respond();
                                })
                    .ok());
  }
};

/// Host 0 is the client, and host 1 is the server.
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
  /// Makes a call, and appends its duration and status to `ends`.
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

TEST(HostTime, an_endpoints_clock_does_not_go_back_when_a_drift_begins_in_a_long_callback) {
  Two two;
  ASSERT_TRUE(two.server->rpc->after({}, [&] { two.server_host().spend(10ms); }).ok());
  two.simulation->run_for(1ms);
  const Duration before = two.server->rpc->now();  // at the end of the callback
  two.server_host().set_clock_drift(-100'000);
  EXPECT_GE(two.server->rpc->now(), before);
  two.simulation->run_for(20ms);
  EXPECT_EQ(two.server->rpc->now(), two.server_host().now());
}

/// The time from the first packet of host 0 to its second one. It connects to a host that is down. The drift of its
/// clock begins with the first packet.
Duration time_to_the_second_attempt(int32_t ppm) {
  std::vector<Duration> departures;
  auto simulation = std::move(*Simulation::create(Topology::star(2)));
  Host& host = simulation->host(0);
  simulation->set_tap([&](const TappedPacket& packet) {
    if (!packet.has_arrived) departures.push_back(simulation->now());
  });
  EXPECT_TRUE(host.boot([](Host& at) { return std::make_shared<SimProgram>(at); }).ok());
  EXPECT_TRUE(static_cast<SimProgram*>(host.program())->rpc->create_session(simulation->host(1).uri()).ok());
  EXPECT_TRUE(simulation->run_until([&] { return departures.size() == 1; }, 1s));
  host.set_clock_drift(ppm);
  EXPECT_TRUE(simulation->run_until([&] { return departures.size() == 2; }, 1s));
  return departures.back() - departures.front();
}

TEST(HostTime, a_drift_changes_times_that_a_nexus_waits_for) {
  const Duration without = time_to_the_second_attempt(0);
  EXPECT_NEAR(static_cast<double>(time_to_the_second_attempt(100'000).count()),
              static_cast<double>(without.count()) / 1.1, 10'000);
  EXPECT_NEAR(static_cast<double>(time_to_the_second_attempt(-100'000).count()),
              static_cast<double>(without.count()) / 0.9, 10'000);
}

/// The drift begins 10 ms after the timer of 100 ms.
void expect_timer_with_late_drift(int32_t ppm, bool is_run, Wait wait, Duration expected) {
  auto simulation = std::move(*Simulation::create(Topology::star(1)));
  Host& host = simulation->host(0);
  const auto nexus = std::move(*Nexus::create(host.uri(), host.nexus_options()));
  const auto rpc = std::move(*Rpc<Sim>::create(*nexus, host.transport_options(), {.wait = wait, .huge_pages = false}));
  Duration end{};
  EXPECT_TRUE(rpc->after(100ms,
                         [&] {
                           end = simulation->now();
                           rpc->stop();
                         })
                  .ok());
  simulation->after(10ms, [&] { host.set_clock_drift(ppm); });
  if (is_run) {
    EXPECT_TRUE(host.run(*rpc).ok());
    simulation->run_for(200ms);
  } else {
    EXPECT_TRUE(rpc->run_event_loop(200ms).ok());
  }
  EXPECT_NEAR(static_cast<double>(end.count()), static_cast<double>(expected.count()), 10'000) << ppm << is_run;
}

TEST(HostTime, a_drift_changes_timers_that_an_endpoint_waits_for) {
  for (const Wait wait : {Wait::kPoll, Wait::kBlock}) {
    for (const bool is_run : {true, false}) {
      expect_timer_with_late_drift(100'000, is_run, wait, 10ms + 81'818'182ns);
      expect_timer_with_late_drift(-100'000, is_run, wait, 10ms + 100ms);
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
  Two two(1, 2);  // one request runs and two are queued
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

TEST(HostTime, packets_that_come_while_a_handler_runs_are_received_in_the_same_turn) {
  Two two;
  std::vector<std::pair<Duration, Status>> ends;
  for (int i = 0; i < 4; i++) two.call(kSpend, ends);
  // The other requests arrive while the first handler runs. All answers leave at the end of the turn.
  two.simulation->run_for(10ms);
  two.expect_ends(ends, {400us, 400us, 400us, 400us});
}

TEST(HostTime, a_turn_ends_when_no_packet_came_while_its_handlers_ran) {
  Two two;
  std::vector<std::pair<Duration, Status>> ends;
  two.call(kSpend, ends);
  two.simulation->run_for(50us);
  two.call(kSpend, ends);  // during the first handler
  two.simulation->run_for(120us);
  two.call(kSpend, ends);  // during the second handler
  two.simulation->run_for(200us);
  two.call(kSpend, ends);
  two.simulation->run_for(10ms);
  // The first turn handles the first three calls, because each of them arrived while the previous handler ran.
  two.expect_ends(ends, {300us, 250us, 130us, 100us});
}

TEST(HostTime, an_endpoint_in_a_turn_can_be_destroyed) {
  Two two;
  std::vector<std::pair<Duration, Status>> ends;
  two.call(kSpend, ends);
  two.simulation->run_for(50us);
  EXPECT_TRUE(two.server_host().crash().ok());
  two.simulation->run_for(10ms);
  EXPECT_TRUE(ends.empty());
  two.call(kSpend, ends);
  two.simulation->run_for(10s);
  EXPECT_EQ(ends.size(), 2u);
}

/// Makes a call of one microsecond every 100 us for this time, and returns the longest duration.
Duration longest_wait(Two& two, Duration time) {
  std::vector<std::pair<Duration, Status>> ends;
  const auto calls = static_cast<size_t>(time / 100us);
  for (size_t i = 0; i < calls; i++) {
    two.call(kWork, ends);
    two.simulation->run_for(100us);
  }
  two.simulation->run_for(100ms);
  EXPECT_EQ(ends.size(), calls);
  Duration longest{};
  for (const auto& [end, status] : ends) {
    EXPECT_TRUE(status.ok()) << status.message();
    longest = std::max(longest, end);
  }
  return longest;
}

TEST(HostTime, time_slices_stop_endpoints_and_workers) {
  Two two;
  EXPECT_LT(longest_wait(two, 20ms), 20us);
  two.server_host().set_time_slices({.run = 1ms, .wait = 3ms});
  const Duration longest = longest_wait(two, 20ms);
  EXPECT_GE(longest, 2900us);
  EXPECT_LT(longest, 3030us);
  two.simulation->heal();
  two.simulation->run_for(1ms);
  EXPECT_LT(longest_wait(two, 20ms), 20us);
}

TEST(HostTime, random_time_slices_last_twice_as_long_at_most) {
  Two two;
  two.server_host().set_time_slices({.run = 1ms, .wait = 3ms, .is_random = true});
  const Duration longest = longest_wait(two, 200ms);
  EXPECT_GE(longest, 4ms);
  EXPECT_LT(longest, 6030us);
}

TEST(HostTime, time_slices_of_the_management_leave_endpoints_alone) {
  Two two;
  two.server_host().set_time_slices({.run = 1ms, .wait = 10ms, .what = TimeSlices::What::kManagement});
  EXPECT_LT(longest_wait(two, 20ms), 20us);
  // The opening of a session waits for the server's management.
  two.simulation->run_for(2ms);
  const Session session = *two.client->rpc->create_session(two.server_host().uri());
  const Duration begin = two.simulation->now();
  EXPECT_TRUE(two.simulation->run_until([&] { return two.client->rpc->is_open(session); }, 1s));
  EXPECT_GE(two.simulation->now() - begin, 4ms);
  EXPECT_LE(two.simulation->now() - begin, 30ms);
}

}  // namespace
}  // namespace tern::sim
