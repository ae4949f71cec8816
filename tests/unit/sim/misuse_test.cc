// Unusual uses of the simulator: endpoints that it does not run, endless times, crashes in odd places, destruction in
// the wrong order.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tern/rpc.h>
#include <tern/sim.h>

namespace tern::sim {
namespace {

using namespace std::chrono_literals;

constexpr uint16_t kEcho = 1;
constexpr uint16_t kWork = 2;

/// A Nexus and an endpoint, which the simulation does not run by itself.
struct Pair {
  explicit Pair(Host& host, uint16_t port = 31850, Wait wait = Wait::kPoll) {
    auto made = Nexus::create(host.uri(port), host.nexus_options());
    EXPECT_TRUE(made.ok()) << made.status().message();
    nexus = std::move(*made);
    auto endpoint = Rpc<Sim>::create(*nexus, host.transport_options(), {.wait = wait, .huge_pages = false});
    EXPECT_TRUE(endpoint.ok()) << endpoint.status().message();
    rpc = std::move(*endpoint);
    const auto answer = [](Request request) { request.respond(); };
    EXPECT_TRUE(rpc->on_request(kEcho, answer).ok());
  }
  std::unique_ptr<Nexus> nexus;
  std::unique_ptr<Rpc<Sim>> rpc;
};

std::unique_ptr<Simulation> make(uint32_t hosts, uint64_t seed = 1) {
  auto simulation = Simulation::create(Topology::star(hosts), {.seed = seed});
  EXPECT_TRUE(simulation.ok()) << simulation.status().message();
  return std::move(*simulation);
}

std::shared_ptr<Pair> boot_server(Host& host) {
  std::shared_ptr<Pair> server;
  EXPECT_TRUE(host.boot([&](Host& at) {
                    server = std::make_shared<Pair>(at);
                    EXPECT_TRUE(at.run(*server->rpc).ok());
                    return server;
                  })
                  .ok());
  return server;
}

/// Makes one call, which ends with `then(status)`.
void call(Rpc<Sim>& rpc, Session session, uint16_t type, std::function<void(Status)> then) {
  auto shared = std::make_shared<std::function<void(Status)>>(std::move(then));
  const auto accepted = rpc.enqueue_request(session, type, rpc.alloc_msgbuf(8), rpc.alloc_msgbuf(8),
                                            [shared](Completion& done) { (*shared)(done.status); });
  EXPECT_TRUE(accepted.ok()) << accepted.status().message();
}

TEST(SimulationMisuse, an_event_loop_that_its_owner_runs_lets_time_pass) {
  auto simulation = make(1);
  Pair pair(simulation->host(0));
  ASSERT_TRUE(pair.rpc->run_event_loop(5ms).ok());
  EXPECT_GE(simulation->now(), 5ms);
  EXPECT_LT(simulation->now(), 6ms);
  for (int i = 0; i < 1000; i++) ASSERT_TRUE(pair.rpc->run_event_loop_once().ok());
  EXPECT_GE(simulation->now(), 5ms + 1000 * 20ns) << "a program that polls would hang in the simulation";
}

TEST(SimulationMisuse, a_client_whose_owner_runs_its_loop_is_answered) {
  for (const Wait wait : {Wait::kPoll, Wait::kAdaptive, Wait::kBlock}) {
    auto simulation = make(2);
    boot_server(simulation->host(1));
    auto nexus = Nexus::create(simulation->host(0).uri(), simulation->host(0).nexus_options());
    ASSERT_TRUE(nexus.ok());
    auto rpc = Rpc<Sim>::create(**nexus, simulation->host(0).transport_options(), {.wait = wait, .huge_pages = false});
    ASSERT_TRUE(rpc.ok());
    const auto session = (*rpc)->create_session(simulation->host(1).uri());
    ASSERT_TRUE(session.ok());
    Status status(Code::kMisuse, "not yet");
    call(**rpc, *session, kEcho, [&](Status end) {
      status = end;
      (*rpc)->stop();
    });
    ASSERT_TRUE((*rpc)->run_event_loop(100ms).ok());
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_LT(simulation->now(), 10ms);
  }
}

TEST(SimulationMisuse, a_closing_endpoint_lets_time_pass_until_its_calls_have_ended) {
  for (const bool is_run : {false, true}) {
    auto simulation = make(2);
    boot_server(simulation->host(1));
    Pair client(simulation->host(0));
    if (is_run) {
      ASSERT_TRUE(simulation->host(0).run(*client.rpc).ok());
    }
    const auto session = client.rpc->create_session(simulation->host(1).uri());
    ASSERT_TRUE(session.ok());
    Status status(Code::kMisuse, "not yet");
    call(*client.rpc, *session, kEcho, [&](Status end) { status = end; });
    EXPECT_TRUE(client.rpc->close(10ms).ok());
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_GT(simulation->now(), 1us);
    simulation->run_for(1ms);  // the simulation runs nothing of a destroyed endpoint
  }
}

TEST(SimulationMisuse, time_is_spent_in_callbacks_of_a_loop_that_its_owner_runs) {
  auto simulation = make(1);
  Host& host = simulation->host(0);
  Pair pair(host);
  ASSERT_TRUE(pair.rpc->after({}, [&host] { host.spend(3ms); }).ok());
  Duration second{0};
  ASSERT_TRUE(pair.rpc
                  ->after(1ms,
                          [&] {
                            second = simulation->now();
                            pair.rpc->stop();
                          })
                  .ok());
  ASSERT_TRUE(pair.rpc->run_event_loop().ok());
  EXPECT_GE(second, 3ms);
}

TEST(SimulationMisuse, time_is_not_spent_outside_of_the_callbacks_of_a_loop_that_its_owner_runs) {
  auto simulation = make(1);
  Host& host = simulation->host(0);
  Pair pair(host);
  ASSERT_TRUE(pair.rpc->run_event_loop(1ms).ok());
  host.spend(10ms);
  EXPECT_LT(pair.rpc->now(), host.now() + 1us);
  simulation->after(1ms, [&host] { host.spend(10ms); });
  ASSERT_TRUE(pair.rpc->run_event_loop(3ms).ok());
  EXPECT_LT(simulation->now(), 5ms);
  EXPECT_LT(pair.rpc->now(), host.now() + 1us);
}

TEST(SimulationMisuse, a_loop_that_its_owner_has_run_for_a_while_goes_on_being_run) {
  auto simulation = make(1);
  Pair pair(simulation->host(0));
  ASSERT_TRUE(simulation->host(0).run(*pair.rpc).ok());
  int ticks = 0;
  std::function<void()> tick = [&] {
    ticks++;
    ASSERT_TRUE(pair.rpc->after(1ms, [&] { tick(); }).ok());
  };
  tick();
  simulation->run_for(10ms);
  ASSERT_TRUE(pair.rpc->run_event_loop(10ms).ok());
  const int before = ticks;
  EXPECT_GE(before, 15);
  simulation->run_for(10ms);
  EXPECT_GE(ticks, before + 8);
}

TEST(SimulationMisuse, longest_duration_means_for_ever) {
  auto simulation = make(2);
  boot_server(simulation->host(0));
  simulation->run_for(1ms);
  simulation->after(Duration::max(), [] { ADD_FAILURE(); });
  bool is_over = false;
  simulation->after(1ms, [&] { is_over = true; });
  EXPECT_TRUE(simulation->run_until([&] { return is_over; }, Duration::max()));
  EXPECT_EQ(simulation->now(), 2ms);
  simulation->run_for(Duration::min());
  EXPECT_EQ(simulation->now(), 2ms);
}

TEST(SimulationMisuse, heal_ends_a_pause) {
  auto simulation = make(1);
  const auto server = boot_server(simulation->host(0));
  int ticks = 0;
  ASSERT_TRUE(server->rpc->after(10ms, [&] { ticks++; }).ok());
  simulation->run_for(1ms);
  simulation->host(0).pause(Duration::max());
  simulation->run_for(100ms);
  EXPECT_EQ(ticks, 0);
  simulation->heal();
  simulation->run_for(2ms);
  EXPECT_EQ(ticks, 1);
}

TEST(SimulationMisuse, a_host_does_not_crash_from_within_its_own_callbacks) {
  auto simulation = make(2);
  Host& host = simulation->host(0);
  const auto refuses = [&host] {
    const Status status = host.crash();
    EXPECT_EQ(status.code(), Code::kMisuse) << status.message();
    EXPECT_TRUE(host.is_up());
  };
  int handlers = 0;
  ASSERT_TRUE(host.boot([&](Host& at) {
                    refuses();
                    auto server = std::make_shared<Pair>(at);
                    EXPECT_TRUE(server->rpc
                                    ->on_request(kWork,
                                                 [&](Request request) {
                                                   handlers++;
                                                   refuses();
                                                   request.respond();
                                                 },
                                                 {.worker = true})
                                    .ok());
                    EXPECT_TRUE(server->rpc->after({}, refuses).ok());
                    EXPECT_TRUE(at.run(*server->rpc).ok());
                    return server;
                  })
                  .ok());
  const auto client = boot_server(simulation->host(1));
  const auto session = client->rpc->create_session(host.uri());
  ASSERT_TRUE(session.ok());
  call(*client->rpc, *session, kWork, [](Status end) { EXPECT_TRUE(end.ok()) << end.message(); });
  simulation->run_for(10ms);
  EXPECT_EQ(handlers, 1);
  EXPECT_TRUE(host.crash().ok());
  EXPECT_FALSE(host.is_up());
}

TEST(SimulationMisuse, a_host_does_not_crash_while_the_program_runs_a_loop_of_it) {
  for (const Wait wait : {Wait::kPoll, Wait::kBlock}) {
    auto simulation = make(1);
    Host& host = simulation->host(0);
    ASSERT_TRUE(host.boot([&](Host& at) { return std::make_shared<Pair>(at, 31850, wait); }).ok());
    int tries = 0;
    const auto refuses = [&] {
      const Status status = host.crash();
      EXPECT_EQ(status.code(), Code::kMisuse) << status.message();
      EXPECT_TRUE(host.is_up());
      tries++;
    };
    Rpc<Sim>& rpc = *static_cast<Pair*>(host.program())->rpc;
    simulation->after(1ms, refuses);
    ASSERT_TRUE(rpc.after(2ms, refuses).ok());
    ASSERT_TRUE(rpc.run_event_loop(5ms).ok());
    ASSERT_TRUE(rpc.after({}, refuses).ok());
    for (int i = 0; i < 2; i++) ASSERT_TRUE(rpc.run_event_loop_once().ok());
    EXPECT_EQ(tries, 3);
    const auto session = rpc.create_session(host.uri());
    ASSERT_TRUE(session.ok());
    call(rpc, *session, kEcho, [&](Status) { refuses(); });
    EXPECT_TRUE(rpc.close({}).ok());
    EXPECT_EQ(tries, 4);
    EXPECT_TRUE(host.crash().ok());
    EXPECT_FALSE(host.is_up());
  }
}

/// The host has begun a turn of the loop, whose end comes after the handler's time. The program does not wait for it.
TEST(SimulationMisuse, a_host_does_not_crash_while_the_program_ends_a_turn_of_a_loop) {
  auto simulation = make(2);
  Host& host = simulation->host(0);
  Rpc<Sim>& rpc = *boot_server(host)->rpc;
  int tries = 0;
  const auto end_the_turn = [&] {
    const Status posted = rpc.post([&] {
      EXPECT_EQ(host.crash().code(), Code::kMisuse);
      tries++;
    });
    EXPECT_TRUE(posted.ok());
    EXPECT_TRUE(rpc.run_event_loop_once().ok());
  };
  const auto work = [&](Request request) {
    host.spend(100us);
    request.respond();
    simulation->after(50us, end_the_turn);
  };
  ASSERT_TRUE(rpc.on_request(kWork, work).ok());
  Pair client(simulation->host(1));
  const auto session = client.rpc->create_session(host.uri());
  ASSERT_TRUE(session.ok());
  bool is_answered = false;
  call(*client.rpc, *session, kWork, [&](Status status) { is_answered = status.ok(); });
  ASSERT_TRUE(client.rpc->run_event_loop(5ms).ok());
  EXPECT_TRUE(is_answered);
  EXPECT_EQ(tries, 1);
}

TEST(SimulationMisuse, work_that_a_crash_interrupts_is_not_done) {
  auto simulation = make(2);
  int handlers = 0;
  Host& host = simulation->host(0);
  host.set_worker_time([] { return 50ms; });
  ASSERT_TRUE(host.boot([&](Host& at) {
                    auto server = std::make_shared<Pair>(at);
                    const auto work = [&](Request request) {
                      handlers++;
                      request.respond();
                    };
                    EXPECT_TRUE(server->rpc->on_request(kWork, work, {.worker = true}).ok());
                    EXPECT_TRUE(at.run(*server->rpc).ok());
                    return server;
                  })
                  .ok());
  const auto client = boot_server(simulation->host(1));
  const auto session = client->rpc->create_session(host.uri());
  ASSERT_TRUE(session.ok());
  Status status;
  call(*client->rpc, *session, kWork, [&](Status end) { status = end; });
  simulation->run_for(20ms);
  EXPECT_TRUE(host.crash().ok());
  simulation->run_for(2s);
  EXPECT_EQ(handlers, 0);
  EXPECT_EQ(status.code(), Code::kPeerUnreachable);
}

TEST(SimulationMisuse, only_an_open_endpoint_of_its_own_is_run_by_a_host_and_once) {
  auto simulation = make(2);
  auto other = make(1);
  Pair pair(simulation->host(0));
  EXPECT_EQ(simulation->host(1).run(*pair.rpc).code(), Code::kMisuse);
  EXPECT_EQ(other->host(0).run(*pair.rpc).code(), Code::kMisuse);
  EXPECT_TRUE(simulation->host(0).run(*pair.rpc).ok());
  EXPECT_EQ(simulation->host(0).run(*pair.rpc).code(), Code::kMisuse);
  EXPECT_TRUE(pair.rpc->close({}).ok());
  EXPECT_EQ(simulation->host(0).run(*pair.rpc).code(), Code::kMisuse);
}

TEST(SimulationMisuse, there_is_no_descriptor_to_wait_for) {
  auto simulation = make(1);
  Pair pair(simulation->host(0));
  const auto descriptor = pair.rpc->descriptor();
  EXPECT_FALSE(descriptor.ok());
  EXPECT_EQ(descriptor.status().code(), Code::kUnavailable);
  EXPECT_TRUE(pair.rpc->run_event_loop(1ms).ok());
}

TEST(SimulationMisuse, wrong_options_are_named) {
  EXPECT_EQ(Simulation::create(Topology()).status().code(), Code::kMisuse);
  EXPECT_EQ(Simulation::create(Topology::star(0)).status().code(), Code::kMisuse);
  EXPECT_EQ(Simulation::create(Topology::star(1), {.frame_bytes = 577}).status().code(), Code::kMisuse);
  EXPECT_EQ(Simulation::create(Topology::star(1), {.frame_bytes = 9019}).status().code(), Code::kMisuse);
  auto simulation = make(2);
  Pair pair(simulation->host(0));
  EXPECT_EQ(Rpc<Sim>::create(*pair.nexus, {}, {.endpoint_id = 1}).status().code(), Code::kMisuse) << "no interface";
  const auto elsewhere = Nexus::create(simulation->host(1).uri(), simulation->host(0).nexus_options());
  EXPECT_EQ(elsewhere.status().code(), Code::kUnavailable);
  const auto twice = Nexus::create(simulation->host(0).uri(), simulation->host(0).nexus_options());
  EXPECT_EQ(twice.status().code(), Code::kUnavailable);
  EXPECT_EQ(pair.rpc->create_session("tern://10.0.1.1:31850").status().code(), Code::kUnavailable) << "no such host";
  simulation->host(0).set_slowness(std::numeric_limits<double>::quiet_NaN());
  simulation->host(0).spend(1ms);  // outside of all callbacks, so no callback spends this time
  simulation->run_for(1ms);
}

TEST(SimulationMisuse, pending_events_are_dropped_with_the_simulation) {
  auto simulation = make(1);
  auto pair = std::make_shared<Pair>(simulation->host(0));
  simulation->after(1s, [pair] { ADD_FAILURE(); });
  simulation->set_observer([pair] {});
  simulation->set_tap([pair](const TappedPacket&) {});
  pair.reset();
  simulation->run_for(1ms);
  simulation.reset();
}

TEST(SimulationMisuse, two_simulations_live_beside_each_other) {
  auto first = make(2, 1);
  auto second = make(2, 1);
  int done = 0;
  for (Simulation* simulation : {first.get(), second.get()}) {
    boot_server(simulation->host(1));
    const auto client = boot_server(simulation->host(0));
    const auto session = client->rpc->create_session(simulation->host(1).uri());
    ASSERT_TRUE(session.ok());
    call(*client->rpc, *session, kEcho, [&](Status end) { done += end.ok() ? 1 : 0; });
  }
  for (int i = 0; i < 100; i++) {
    first->run_for(100us);
    second->run_for(100us);
  }
  EXPECT_EQ(done, 2);
  EXPECT_EQ(first->trace_hash(), second->trace_hash());
}

TEST(SimulationMisuse, simulations_in_different_threads_do_not_know_of_each_other) {
  std::array<uint64_t, 3> traces{};
  std::vector<std::thread> threads;
  for (uint64_t& trace : traces) {
    threads.emplace_back([&trace] {
      auto simulation = make(4, 7);
      simulation->set_faults({.drop = 0.05, .reorder = 0.05});
      int done = 0;
      boot_server(simulation->host(0));
      std::vector<std::shared_ptr<Pair>> clients;
      for (uint32_t i = 1; i < 4; i++) {
        clients.push_back(boot_server(simulation->host(i)));
        const auto session = clients.back()->rpc->create_session(simulation->host(0).uri());
        for (int n = 0; n < 20; n++) call(*clients.back()->rpc, *session, kEcho, [&](Status) { done++; });
      }
      EXPECT_TRUE(simulation->run_until([&] { return done == 60; }, 1s));
      trace = simulation->trace_hash();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(traces[0], traces[1]);
  EXPECT_EQ(traces[0], traces[2]);
}

TEST(SimulationMisuse, a_nexus_that_ends_tells_its_peers) {
  auto simulation = make(5);
  const auto server = boot_server(simulation->host(0));
  std::vector<std::shared_ptr<Pair>> clients;
  std::vector<Session> sessions;
  for (uint32_t i = 1; i < 5; i++) {
    clients.push_back(boot_server(simulation->host(i)));
    const auto session = clients.back()->rpc->create_session(simulation->host(0).uri());
    ASSERT_TRUE(session.ok());
    sessions.push_back(*session);
  }
  simulation->run_for(10ms);
  server->rpc.reset();  // no crash: the program ends, and its host stays up
  server->nexus.reset();
  simulation->run_for(1ms);
  for (size_t i = 0; i < clients.size(); i++) EXPECT_FALSE(clients[i]->rpc->is_open(sessions[i])) << i;
}

TEST(SimulationMisuseDeathTest, a_simulation_does_not_die_before_its_endpoints) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        auto simulation = make(1);
        Pair pair(simulation->host(0));
        simulation.reset();
      },
      "a Simulation was destroyed before an endpoint or a Nexus");
}

}  // namespace
}  // namespace tern::sim
