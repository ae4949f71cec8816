// Data prove that a peer is alive: two endpoints whose Nexuses lose all pings and pongs, in virtual time.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include <tern/environment.h>
#include <tern/rpc.h>
#include <tern/sim.h>

namespace tern::rpc_test {
namespace {

using namespace std::chrono_literals;

constexpr uint16_t kWork = 1;
constexpr uint16_t kHold = 2;  ///< the answer comes 3 s later
constexpr uint16_t kSlow = 3;  ///< the handler takes 2 s of the loop's time

/// A host's environment. Its management channel loses pings and pongs (clause 7.1.2: kinds 6 and 7) while `loses` is
/// true.
class WithoutPings final : public Environment {
 public:
  WithoutPings(Environment& host, const bool& loses) : host_(host), loses_(loses) {}
  Duration now() override { return host_.now(); }
  uint64_t random() override { return host_.random(); }
  Result<std::unique_ptr<ManagementChannel>> listen(std::string_view address, ManagementSink& sink) override {
    auto channel = host_.listen(address, sink);
    if (!channel.ok()) return channel.status();
    return std::unique_ptr<ManagementChannel>(std::make_unique<Channel>(std::move(*channel), loses_));
  }
  Result<std::string> resolve(std::string_view text) override { return host_.resolve(text); }
  Result<std::unique_ptr<WorkerPool>> start_workers(size_t threads, size_t queue_limit) override {
    return host_.start_workers(threads, queue_limit);
  }

 private:
  class Channel final : public ManagementChannel {
   public:
    Channel(std::unique_ptr<ManagementChannel> inner, const bool& loses) : inner_(std::move(inner)), loses_(loses) {}
    void send(std::string_view to, std::span<const std::byte> bytes) override {
      const auto kind = static_cast<uint8_t>(bytes[5]);
      if (!loses_ || (kind != 6 && kind != 7)) inner_->send(to, bytes);
    }
    void wake() override { inner_->wake(); }
    std::string local_address() const override { return inner_->local_address(); }

   private:
    std::unique_ptr<ManagementChannel> inner_;
    const bool& loses_;
  };
  Environment& host_;
  const bool& loses_;
};

struct Program {
  Program(sim::Host& host, const bool& loses) {
    NexusOptions options = host.nexus_options();
    environment = std::make_unique<WithoutPings>(*options.environment, loses);
    options.environment = environment.get();
    nexus = std::move(*Nexus::create(host.uri(), options));
    rpc = std::move(*Rpc<Sim>::create(*nexus, host.transport_options(), {.huge_pages = false}));
    EXPECT_TRUE(rpc->on_request(kWork, [](Request request) { request.respond(); }).ok());
    EXPECT_TRUE(rpc->on_request(kHold,
                                [this](Request request) {
                                  auto held = std::make_shared<Request>(std::move(request));
                                  EXPECT_TRUE(rpc->after(3s, [held] { held->respond(); }).ok());
                                })
                    .ok());
    EXPECT_TRUE(rpc->on_request(kSlow,
                                [&host](Request request) {
                                  host.spend(2s);
                                  request.respond();
                                })
                    .ok());
    EXPECT_TRUE(host.run(*rpc).ok());
  }
  std::unique_ptr<Environment> environment;
  std::unique_ptr<Nexus> nexus;
  std::unique_ptr<Rpc<Sim>> rpc;
};

TEST(ProofOfLife, data_keeps_both_ends_when_pings_are_lost_and_silence_ends_them) {
  bool loses = false;
  auto simulation = std::move(*sim::Simulation::create(sim::Topology::star(2)));
  for (uint32_t i = 0; i < 2; i++) {
    EXPECT_TRUE(simulation->host(i).boot([&](sim::Host& host) { return std::make_shared<Program>(host, loses); }).ok());
  }
  auto& client = *static_cast<Program*>(simulation->host(0).program())->rpc;
  auto& server = *static_cast<Program*>(simulation->host(1).program())->rpc;
  const Session session = *client.create_session(simulation->host(1).uri());
  simulation->run_for(10ms);
  ASSERT_TRUE(client.is_open(session));

  loses = true;
  int answers = 0, failures = 0;
  for (int i = 0; i < 300; i++) {  // 3 s, six times the liveness timeout
    auto call = client.enqueue_request(session, kWork, client.alloc_msgbuf(8), client.alloc_msgbuf(8),
                                       [&](Completion& done) { done.status.ok() ? answers++ : failures++; });
    ASSERT_TRUE(call.ok()) << i << ": " << call.status().message();
    simulation->run_for(10ms);
  }
  EXPECT_EQ(answers, 300);
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(client.counters().sessions_failed, 0u);
  EXPECT_EQ(server.counters().sessions_failed, 0u);

  simulation->run_for(1s);  // from now on there are neither pings nor data
  EXPECT_FALSE(client.is_open(session));
  EXPECT_EQ(client.counters().sessions_failed, 1u);
  EXPECT_EQ(server.counters().sessions_failed, 1u);
}

/// Some clients and a server, which is the last host.
class Cluster {
 public:
  explicit Cluster(uint32_t clients)
      : simulation(std::move(*sim::Simulation::create(sim::Topology::star(clients + 1)))) {
    for (uint32_t i = 0; i <= clients; i++) {
      EXPECT_TRUE(
          simulation->host(i).boot([&](sim::Host& host) { return std::make_shared<Program>(host, loses_pings); }).ok());
    }
    for (uint32_t i = 0; i < clients; i++) sessions.push_back(*rpc(i).create_session(simulation->host(clients).uri()));
    simulation->run_for(10ms);
    for (uint32_t i = 0; i < clients; i++) EXPECT_TRUE(rpc(i).is_open(sessions[i]));
  }
  Rpc<Sim>& rpc(uint32_t host) { return *static_cast<Program*>(simulation->host(host).program())->rpc; }
  Rpc<Sim>& server() { return rpc(simulation->hosts() - 1); }
  void call(uint32_t client, uint16_t type) {
    auto call =
        rpc(client).enqueue_request(sessions[client], type, rpc(client).alloc_msgbuf(8), rpc(client).alloc_msgbuf(8),
                                    [this](Completion& done) { done.status.ok() ? answers++ : failures++; });
    EXPECT_TRUE(call.ok()) << call.status().message();
  }
  uint64_t sessions_failed() {
    uint64_t failed = 0;
    for (uint32_t i = 0; i < simulation->hosts(); i++) failed += rpc(i).counters().sessions_failed;
    return failed;
  }

  bool loses_pings = false;
  int answers = 0, failures = 0;
  std::unique_ptr<sim::Simulation> simulation;
  std::vector<Session> sessions;
};

// Answers to requests that it has kept are no packets of the client.
TEST(ProofOfLife, answers_to_a_dead_client_are_no_sign_of_its_life) {
  Cluster cluster(1);
  for (int i = 0; i < 8; i++) {
    cluster.call(0, kHold);
    cluster.simulation->run_for(300ms);
  }
  cluster.simulation->run_for(250ms);  // no answer is due in this time
  ASSERT_TRUE(cluster.simulation->host(0).crash().ok());
  cluster.simulation->run_for(600ms);
  EXPECT_EQ(cluster.server().counters().sessions_failed, 1u);
}

TEST(ProofOfLife, packets_before_a_doubt_are_no_sign_of_life_after_it_began) {
  Cluster cluster(1);
  const auto call_often = [&](int calls) {
    for (int i = 0; i < calls; i++) {
      cluster.call(0, kWork);
      cluster.simulation->run_for(10ms);
    }
  };
  cluster.loses_pings = true;
  call_often(40);  // a first doubt, in which the endpoint is asked
  cluster.loses_pings = false;
  call_often(100);
  ASSERT_TRUE(cluster.simulation->host(0).crash().ok());
  cluster.simulation->run_for(600ms);
  EXPECT_EQ(cluster.server().counters().sessions_failed, 1u);
}

// The server receives only probes of a waiting client.
TEST(ProofOfLife, probes_of_a_waiting_client_count) {
  Cluster cluster(1);
  cluster.loses_pings = true;
  cluster.call(0, kHold);
  cluster.simulation->run_for(3500ms);
  EXPECT_EQ(cluster.answers, 1);
  EXPECT_EQ(cluster.sessions_failed(), 0u);
}

// A starved management thread doubts all peers at once, and asks the endpoint about each of them in turn.
TEST(ProofOfLife, data_of_many_peers_counts_for_each) {
  Cluster cluster(20);
  cluster.loses_pings = true;
  for (int round = 0; round < 40; round++) {  // each client calls every 100 ms
    for (uint32_t client = 0; client < 20; client++) {
      cluster.call(client, kWork);
      cluster.simulation->run_for(5ms);
    }
  }
  EXPECT_EQ(cluster.answers, 800);
  EXPECT_EQ(cluster.sessions_failed(), 0u);
}

// The server's endpoint cannot report its client's packets, because they wait during the handler.
TEST(ProofOfLife, handler_of_four_liveness_timeouts_ends_no_session) {
  Cluster cluster(2);
  cluster.loses_pings = true;
  cluster.call(0, kSlow);
  for (int i = 0; i < 60; i++) {
    cluster.call(1, kWork);
    cluster.simulation->run_for(50ms);
    if (i > 40) cluster.call(0, kWork);  // a client without calls and pings would rightly be given up
  }
  cluster.simulation->run_for(100ms);
  EXPECT_EQ(cluster.failures, 0);
  EXPECT_EQ(cluster.answers, 61 + 19);
  EXPECT_EQ(cluster.sessions_failed(), 0u);
}

// A virtual machine is descheduled again and again with all its programs, first for less time than its peers need to
// give it up, and then for longer.
TEST(ProofOfLife, paused_host_declares_no_peer_dead) {
  for (const auto pause : {100ms, 250ms, 350ms}) {
    Cluster cluster(2);
    for (int i = 0; i < 20; i++) {
      for (uint32_t host = 0; host < 3; host++) {
        if (cluster.simulation->random() % 2 == 0) cluster.simulation->host(host).pause(pause);
      }
      for (uint32_t client = 0; client < 2; client++) cluster.call(client, kWork);
      cluster.simulation->run_for(pause + Duration(static_cast<int64_t>(cluster.simulation->random() % 60'000'000)));
    }
    cluster.simulation->run_for(2s);
    EXPECT_EQ(cluster.failures, 0) << pause.count() << " ms";
    EXPECT_EQ(cluster.answers, 40) << pause.count() << " ms";
    EXPECT_EQ(cluster.sessions_failed(), 0u) << pause.count() << " ms";
  }
}

TEST(ProofOfLife, a_machine_whose_hosts_are_paused_together_loses_no_session) {
  Cluster cluster(2);
  for (int i = 1; i <= 20; i++) {
    // Up to ten liveness timeouts.
    for (uint32_t host = 0; host < 3; host++) cluster.simulation->host(host).pause(i * 250ms);
    for (uint32_t client = 0; client < 2; client++) cluster.call(client, kWork);
    cluster.simulation->run_for(i * 250ms + Duration(static_cast<int64_t>(cluster.simulation->random() % 400'000'000)));
  }
  cluster.simulation->run_for(2s);
  EXPECT_EQ(cluster.answers, 40);
  EXPECT_EQ(cluster.sessions_failed(), 0u);
}

// The bounds of clause 7.5.2: the liveness timeout, or four of them if no endpoint reports whether it receives packets.
TEST(ProofOfLife, a_dead_peer_is_found_in_time_whatever_the_endpoint_does) {
  for (const bool is_busy : {false, true}) {
    Cluster cluster(2);
    ASSERT_TRUE(cluster.simulation->host(0).crash().ok());
    if (is_busy) {
      // One handler runs after the other, so the loop turns every 2 s.
      for (int i = 0; i < 4; i++) cluster.call(1, kSlow);
    }
    cluster.simulation->run_for(is_busy ? 4 * 500ms + 2s + 200ms : 600ms);
    EXPECT_EQ(cluster.server().counters().sessions_failed, 1u) << is_busy;
  }
}

}  // namespace
}  // namespace tern::rpc_test
