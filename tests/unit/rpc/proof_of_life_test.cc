// Data is a sign of life: two endpoints whose Nexuses' pings and pongs are all lost, in virtual time.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <utility>

#include <tern/environment.h>
#include <tern/rpc.h>
#include <tern/sim.h>

namespace tern::rpc_test {
namespace {

using namespace std::chrono_literals;

constexpr uint16_t kWork = 1;

/// A host's environment whose management channel loses pings and pongs (clause 7.1.2: kinds 6 and 7) once it is told
/// to.
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

  simulation->run_for(1s);  // and now there is neither
  EXPECT_FALSE(client.is_open(session));
  EXPECT_EQ(client.counters().sessions_failed, 1u);
  EXPECT_EQ(server.counters().sessions_failed, 1u);
}

}  // namespace
}  // namespace tern::rpc_test
