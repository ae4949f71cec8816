// close(drain) of a server: the work that it waits for, in virtual time.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include <tern/rpc.h>
#include <tern/sim.h>

namespace tern::sim {
namespace {

using namespace std::chrono_literals;

constexpr uint16_t kFetch = 1;
constexpr size_t kBytes = 5000;  // several packets

struct Client {
  Client(Host& host, const std::string& server, Duration report_delay) {
    nexus = std::move(*Nexus::create(host.uri(), host.nexus_options()));
    rpc = std::move(
        *Rpc<Sim>::create(*nexus, host.transport_options(), {.report_delay = report_delay, .huge_pages = false}));
    session = *rpc->create_session(server);
    EXPECT_TRUE(host.run(*rpc).ok());
  }
  void call(int& completed) {
    const auto call = rpc->enqueue_request(session, kFetch, rpc->alloc_msgbuf(8), rpc->alloc_msgbuf(kBytes),
                                           [&completed](Completion& done) { completed += done.status.ok(); });
    EXPECT_TRUE(call.ok()) << call.status().message();
  }
  std::unique_ptr<Nexus> nexus;
  std::unique_ptr<Rpc<Sim>> rpc;
  Session session;
};

/// Host 0 is the server, in the test's own loop. Host 1 is the client.
class Closing : public testing::Test {
 protected:
  void make(Duration report_delay) {
    simulation_ = std::move(*Simulation::create(Topology::star(2)));
    Host& host = simulation_->host(0);
    nexus_ = std::move(*Nexus::create(host.uri(), host.nexus_options()));
    server_ = std::move(*Rpc<Sim>::create(*nexus_, host.transport_options(), {.huge_pages = false}));
    EXPECT_TRUE(server_
                    ->on_request(kFetch,
                                 [this](Request request) {
                                   EXPECT_TRUE(request.response(kBytes).ok());
                                   request.respond();
                                   if (on_request_) on_request_();
                                 })
                    .ok());
    EXPECT_TRUE(simulation_->host(1)
                    .boot([&](Host& other) {
                      auto made = std::make_shared<Client>(other, host.uri(), report_delay);
                      client_ = made.get();
                      return made;
                    })
                    .ok());
    EXPECT_TRUE(server_->run_event_loop(10ms).ok());
  }
  /// Closes the server, and returns the virtual time that this takes.
  Duration close(Duration drain) {
    const Duration begin = simulation_->now();
    EXPECT_TRUE(server_->close(drain).ok());
    return simulation_->now() - begin;
  }
  ~Closing() override {
    server_.reset();
    nexus_.reset();
  }

  std::unique_ptr<Simulation> simulation_;
  std::unique_ptr<Nexus> nexus_;
  std::unique_ptr<Rpc<Sim>> server_;
  std::function<void()> on_request_;
  Client* client_ = nullptr;
  int completed_ = 0;
};

TEST_F(Closing, does_not_wait_for_reports_that_do_not_come) {
  make(3600s);
  for (int i = 0; i < 4; i++) client_->call(completed_);
  ASSERT_TRUE(server_->run_event_loop(10ms).ok());
  EXPECT_EQ(completed_, 4);
  EXPECT_LT(close(30s), 1s);
}

TEST_F(Closing, waits_for_a_client_that_still_asks) {
  make(100ms);
  on_request_ = [this] { simulation_->set_partition(0, 1, true); };
  client_->call(completed_);
  ASSERT_TRUE(server_->run_event_loop(5ms).ok());
  EXPECT_EQ(completed_, 0);
  // The client receives nothing for 200 ms, and repeats its request.
  simulation_->after(200ms, [this] { simulation_->set_partition(0, 1, false); });
  EXPECT_LT(close(30s), 2s);
  EXPECT_EQ(completed_, 1);
}

/// The clock is the simulation's.
TEST(KeptRequest, has_no_time_left_after_the_end_of_its_world) {
  std::unique_ptr<Request> kept;
  {
    auto simulation = std::move(*Simulation::create(Topology::star(2)));
    Host& host = simulation->host(0);
    auto nexus = std::move(*Nexus::create(host.uri(), host.nexus_options()));
    auto server = std::move(*Rpc<Sim>::create(*nexus, host.transport_options(), {.huge_pages = false}));
    const auto keep = [&kept](Request request) { kept = std::make_unique<Request>(std::move(request)); };
    ASSERT_TRUE(server->on_request(kFetch, keep).ok());
    const auto boot = [uri = host.uri()](Host& other) {
      auto client = std::make_shared<Client>(other, uri, 100ms);
      const auto call =
          client->rpc->enqueue_request(client->session, kFetch, client->rpc->alloc_msgbuf(8),
                                       client->rpc->alloc_msgbuf(8), [](Completion&) {}, {.deadline = 60s});
      EXPECT_TRUE(call.ok());
      return client;
    };
    ASSERT_TRUE(simulation->host(1).boot(boot).ok());
    ASSERT_TRUE(server->run_event_loop(10ms).ok());
    ASSERT_NE(kept, nullptr);
    EXPECT_GT(kept->time_left(), 59s);
  }
  EXPECT_TRUE(kept->is_cancelled());
  EXPECT_EQ(kept->time_left(), Duration(0));
}

}  // namespace
}  // namespace tern::sim
