// An overloaded server: it executes only requests whose clients still wait.
#include <gtest/gtest.h>

#include <chrono>
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
constexpr uint32_t kClients = 4;
constexpr auto kHandlerTime = 2ms;

struct Outcome {
  uint64_t begun = 0;
  uint64_t completed = 0;
};

class Server {
 public:
  Server(Host& host, bool is_worker) {
    NexusOptions options = host.nexus_options();
    options.worker_threads = 1;
    nexus_ = std::move(*Nexus::create(host.uri(), options));
    rpc_ = std::move(*Rpc<Sim>::create(*nexus_, host.transport_options(), {.huge_pages = false}));
    host.set_worker_time([] { return kHandlerTime; });
    const auto handler = [&host, is_worker](Request request) {
      if (!is_worker) host.spend(kHandlerTime);
      request.respond();
    };
    EXPECT_TRUE(rpc_->on_request(kWork, handler, {.worker = is_worker}).ok());
    EXPECT_TRUE(host.run(*rpc_).ok());
  }
  const EndpointCounters& counters() const { return rpc_->counters(); }

 private:
  std::unique_ptr<Nexus> nexus_;
  std::unique_ptr<Rpc<Sim>> rpc_;
};

/// A client that makes calls at a fixed rate, whatever their outcome.
class Client {
 public:
  Client(Host& host, const std::string& server, Duration interval, Duration deadline, Outcome& outcome)
      : interval_(interval), deadline_(deadline), outcome_(outcome) {
    nexus_ = std::move(*Nexus::create(host.uri(), host.nexus_options()));
    rpc_ = std::move(*Rpc<Sim>::create(*nexus_, host.transport_options(), {.huge_pages = false}));
    session_ = *rpc_->create_session(server);
    EXPECT_TRUE(host.run(*rpc_).ok());
  }
  void call_regularly() {
    call();
    EXPECT_TRUE(rpc_->after(interval_, [this] { call_regularly(); }).ok());
  }

 private:
  void call() {
    outcome_.begun++;
    const auto call = rpc_->enqueue_request(session_, kWork, rpc_->alloc_msgbuf(32), rpc_->alloc_msgbuf(32),
                                            [this](Completion& done) { outcome_.completed += done.status.ok(); },
                                            {.deadline = deadline_});
    EXPECT_TRUE(call.ok()) << call.status().message();
  }

  const Duration interval_;
  const Duration deadline_;
  Outcome& outcome_;
  std::unique_ptr<Nexus> nexus_;
  std::unique_ptr<Rpc<Sim>> rpc_;
  Session session_;
};

/// Runs four clients for 10 s. Each of them makes a call every `interval`.
Outcome run(bool is_worker, Duration interval, EndpointCounters* counters = nullptr) {
  auto simulation = std::move(*Simulation::create(Topology::star(1 + kClients)));
  Outcome outcome;
  Server* server = nullptr;
  EXPECT_TRUE(simulation->host(0)
                  .boot([&](Host& host) {
                    auto made = std::make_shared<Server>(host, is_worker);
                    server = made.get();
                    return made;
                  })
                  .ok());
  std::vector<Client*> clients;
  for (uint32_t i = 1; i <= kClients; i++) {
    EXPECT_TRUE(simulation->host(i)
                    .boot([&](Host& host) {
                      auto made =
                          std::make_shared<Client>(host, simulation->host(0).uri(), interval, Duration(50ms), outcome);
                      clients.push_back(made.get());
                      return made;
                    })
                    .ok());
  }
  simulation->run_for(10ms);
  for (Client* client : clients) client->call_regularly();
  simulation->run_for(10s);
  if (counters != nullptr) *counters = server->counters();
  return outcome;
}

TEST(Overload, load_within_a_dispatch_handlers_capacity_succeeds) {
  EndpointCounters counters;
  const Outcome outcome = run(false, 1ms, &counters);
  EXPECT_GE(outcome.begun, 39'000u);
  EXPECT_GE(outcome.completed, 4500u);
  EXPECT_LE(counters.requests_handled, outcome.completed * 21 / 20) << "hardly any handler ran for a dead call";
  EXPECT_GT(counters.refused_deadline, 0u);
}

TEST(Overload, load_within_a_workers_capacity_succeeds) {
  EndpointCounters counters;
  const Outcome outcome = run(true, 1ms, &counters);
  EXPECT_GE(outcome.begun, 39'000u);
  EXPECT_GE(outcome.completed, 4500u);
}

TEST(Overload, a_little_more_than_can_be_served) {
  for (const bool is_worker : {false, true}) {
    const Outcome outcome = run(is_worker, 7ms);
    EXPECT_GE(outcome.begun, 5600u);
    EXPECT_GE(outcome.completed, 4500u) << is_worker;
  }
}

TEST(Overload, all_calls_succeed_below_the_capacity) {
  for (const bool is_worker : {false, true}) {
    const Outcome outcome = run(is_worker, 10ms);
    EXPECT_GE(outcome.completed + 10, outcome.begun) << is_worker;
  }
}

}  // namespace
}  // namespace tern::sim
