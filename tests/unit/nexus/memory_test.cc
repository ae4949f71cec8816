// A shortage of memory: every n-th allocation fails, or only the n-th. No exception is thrown, no state is half
// changed, and all machines agree after the shortage.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "failing_new.h"
#include "management_weather.h"
#include "nexus/nexus_core.h"

namespace tern::nexus::test {
namespace {

#ifdef TERN_IS_SANITIZED
constexpr size_t kSeedsAWay = 2;
#else
constexpr size_t kSeedsAWay = 6;
#endif

TEST(NoMemory, management__agrees_when_every_nth_allocation_has_failed) {
  // With every second allocation failing, a table that needs two allocations to grow could never grow.
  size_t failed = 0;
  for (const size_t every : {3, 4, 5, 7, 10, 20, 50}) {
    for (uint64_t seed = 1; seed <= kSeedsAWay; seed++) {
      SCOPED_TRACE("every " + std::to_string(every) + ", seed " + std::to_string(seed));
      shortage = {};
      shortage.every = every;
      BadWeather weather(seed);
      weather.world().enter = [&weather] {
        shortage.is_on = true;
        shortage.count += weather.world().random()() % 2;  // a retry does not fail at the same allocation for ever
      };
      weather.world().leave = [] { shortage.is_on = false; };
      weather.run();
      failed += shortage.failed;
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(failed, 1000u);
}

/// A session that loses an address begins a request to its next one, which needs memory.
TEST(NoMemory, on_unreachable__many_sessions_have_another_address) {
  World world(3, 1);
  world.add_endpoint(0, 1);
  const AddressText first("10.9.9.9:1"), second("[fd77::9]:1");
  for (int i = 0; i < 40; i++) world.connect(0, 1, {first, second}, 2);
  world.run_for(milliseconds(5));
  shortage = {};
  shortage.every = 1;
  world.enter = [] { shortage.is_on = true; };
  world.leave = [] { shortage.is_on = false; };
  EXPECT_NO_THROW(world.hint(0, std::string(first.view()), Unreachable::kPort));
  world.enter = world.leave = nullptr;
  shortage = {};
  world.run_for(std::chrono::seconds(4));
  EXPECT_TRUE(world.endpoint(0, 1).connecting.empty());
}

TEST(NoMemory, ask_liveness__loses_the_question_and_takes_the_next) {
  World world(3, 2);
  world.add_endpoint(0, 1);
  world.add_endpoint(1, 2);
  const uint32_t key = world.connect(0, 1, 1, 2);
  world.run_for(milliseconds(5));
  Management& machine = *world.host(0).machine;
  const uint64_t shortages_before = machine.counters().no_memory;
  const auto liveness_heard = [&] {
    world.run_for(milliseconds(5));
    return world.endpoint(0, 1).log.back().kind == ControlEvent::Kind::kLiveness;
  };
  shortage = {};
  shortage.once = 1;
  shortage.is_on = true;
  machine.ask_liveness(world.endpoint(0, 1).name, key, world.now());
  shortage.is_on = false;
  EXPECT_EQ(shortage.failed, 1u);
  EXPECT_EQ(machine.counters().no_memory, shortages_before + 1);
  EXPECT_FALSE(liveness_heard());
  machine.check_invariants();
  machine.ask_liveness(world.endpoint(0, 1).name, key, world.now());
  world.run_for(milliseconds(20));
  EXPECT_TRUE(liveness_heard());
  world.expect_settled();
}

/// A minimal environment: pass() advances the time and delivers the datagrams.
class Bench final : public Environment {
 public:
  class Channel final : public ManagementChannel {
   public:
    Channel(Bench& bench, std::string address, ManagementSink& sink)
        : bench_(bench), address_(std::move(address)), sink_(sink) {
      bench_.channels_.push_back(this);
    }
    ~Channel() override {
      std::erase(bench_.channels_, this);
      sink_.on_turn(bench_.now_);
    }
    void send(std::string_view to, std::span<const std::byte> bytes) override {
      const bool was_on = std::exchange(shortage.is_on, false);
      bench_.packets_.push_back({address_, std::string(to), {bytes.begin(), bytes.end()}});
      shortage.is_on = was_on;
    }
    void wake() override {}
    std::string local_address() const override { return address_; }
    Bench& bench_;
    const std::string address_;
    ManagementSink& sink_;
  };

  Duration now() override { return now_; }
  uint64_t random() override { return ++random_ * 0x9e3779b97f4a7c15u; }
  Result<std::unique_ptr<ManagementChannel>> listen(std::string_view address, ManagementSink& sink) override {
    return std::unique_ptr<ManagementChannel>(std::make_unique<Channel>(*this, std::string(address), sink));
  }
  Result<std::string> resolve(std::string_view text) override { return std::string(text); }
  Result<std::unique_ptr<WorkerPool>> start_workers(size_t, size_t) override {
    return Status{Code::kUnavailable, "none"};
  }

  /// Runs the work of the management threads under the shortage for this time.
  void pass(Duration time) {
    const Duration until = now_ + time;
    for (; now_ < until; now_ += std::chrono::microseconds(500)) {
      for (const Packet& packet : std::exchange(packets_, {})) {
        for (Channel* channel : std::vector(channels_)) {
          if (channel->address_ == packet.to) under([&] { channel->sink_.on_datagram(packet.from, packet.bytes); });
        }
      }
      for (Channel* channel : std::vector(channels_)) under([&] { channel->sink_.on_turn(now_); });
      if (each_step) each_step();
    }
  }
  template <class F>
  static void under(F&& work) {
    shortage.is_on = true;
    work();
    shortage.is_on = false;
  }
  std::function<void()> each_step;

 private:
  struct Packet {
    std::string from, to;
    std::vector<std::byte> bytes;
  };
  Duration now_ = std::chrono::seconds(1);
  uint64_t random_ = 0;
  std::vector<Channel*> channels_;
  std::vector<Packet> packets_;
};

/// Two Nexuses. Sessions are begun, accepted, queried and ended, and the server comes and goes.
class TwoCores {
 public:
  TwoCores() : client_port_(2, "udp", [] {}), server_port_(1, "udp", [] {}) {
    bench_.each_step = [this] { handle(); };
    a_ = make("10.0.0.1:1");
    b_ = make("10.0.0.2:1");
    add(*a_, client_port_);
    add(*b_, server_port_);
  }
  ~TwoCores() {
    a_->core().remove_endpoint(client_port_);
    if (b_ != nullptr) b_->core().remove_endpoint(server_port_);
  }

  /// Makes calls of each kind, whichever of them fail.
  void live() {
    for (int i = 0; i < 4; i++) connect();
    bench_.pass(milliseconds(150));
    for (const uint32_t key : std::vector(open_)) {
      Bench::under([&] { a_->core().ask_liveness(client_port_, key); });
      bench_.pass(milliseconds(20));
      Bench::under([&] { a_->core().disconnect(client_port_, key, true); });
      std::erase(open_, key);
      bench_.pass(milliseconds(20));
      break;
    }
    for (const uint32_t key : std::exchange(accepted_, {})) {
      Bench::under([&] { b_->core().disconnect(server_port_, key, false); });
      break;
    }
    connect();
    bench_.pass(milliseconds(100));
  }
  /// With memory again, ends all sessions. Both Nexuses must return to their initial state.
  void settle_and_connect() {
    shortage.every = shortage.once = 0;
    for (const uint32_t key : std::exchange(open_, {})) a_->core().disconnect(client_port_, key, true);
    bench_.pass(milliseconds(500));
    EXPECT_TRUE(connecting_.empty()) << "a connect without a result";
    EXPECT_TRUE(connect());
    bench_.pass(milliseconds(50));
    EXPECT_EQ(open_.size(), 1u);
  }
  bool connect() {
    const uint32_t key = next_key_++;
    Status status;
    Bench::under(
        [&] { status = a_->core().connect(client_port_, test::at("10.0.0.2:1"), 1, terms(key), 300'000'000); });
    if (status.ok()) {
      connecting_.push_back(key);
    } else {
      EXPECT_EQ(status.code(), Code::kNoMemory);
    }
    return status.ok();
  }

 private:
  std::unique_ptr<Nexus> make(const std::string& address) {
    const std::string uri = "tern://" + address;
    for (int i = 0; i < 1000; i++) {
      shortage.is_on = true;
      auto nexus = Nexus::create(uri, {.environment = &bench_});
      shortage.is_on = false;
      if (nexus.ok()) return std::move(*nexus);
      EXPECT_EQ(nexus.status().code(), Code::kNoMemory);
    }
    return nullptr;
  }
  static void add(Nexus& nexus, EndpointPort& port) {
    for (int i = 0; i < 1000; i++) {
      Status status;
      Bench::under([&] { status = nexus.core().add_endpoint(port); });
      if (status.ok()) return;
      EXPECT_EQ(status.code(), Code::kNoMemory);
    }
    FAIL();
  }
  static SessionTerms terms(uint32_t key) {
    SessionTerms t;
    t.transport = "udp";
    t.session_key = key;
    t.payload_bytes_max = 1376;
    t.window = t.credits = 8;
    return t;
  }
  void handle() {
    server_port_.drain([this](ControlEvent& event) {
      if (event.kind == ControlEvent::Kind::kConnectRequest) {
        const uint32_t key = next_key_++;
        Status status;
        Bench::under([&] { status = b_->core().answer_connect(server_port_, event.token, {}, terms(key)); });
        if (status.ok()) accepted_.push_back(key);
      }
      if (event.kind == ControlEvent::Kind::kDisconnected) std::erase(accepted_, event.local_key);
    });
    client_port_.drain([this](ControlEvent& event) {
      if (event.kind == ControlEvent::Kind::kConnectResult) {
        EXPECT_EQ(std::erase(connecting_, event.local_key), 1u);
        if (event.status.ok()) open_.push_back(event.local_key);
      }
      if (event.kind == ControlEvent::Kind::kDisconnected) std::erase(open_, event.local_key);
    });
  }

  Bench bench_;
  EndpointPort client_port_, server_port_;
  std::unique_ptr<Nexus> a_, b_;
  uint32_t next_key_ = 1;
  std::vector<uint32_t> connecting_, open_, accepted_;
};

/// The end of each session is told to a process without any memory, as long as its endpoint runs its loop.
TEST(NoMemory, endpoint_port__takes_events_between_two_calls_of_drain) {
  Bench bench;
  auto nexus = Nexus::create("tern://10.0.0.1:1", {.environment = &bench});
  ASSERT_TRUE(nexus.ok());
  EndpointPort port(1, "udp", [] {});
  ASSERT_TRUE((*nexus)->core().add_endpoint(port).ok());
  uint32_t pushed = 0, drained = 0;
  const auto push = [&](size_t count) {
    for (size_t i = 0; i < count; i++) {
      ControlEvent event{};
      event.kind = ControlEvent::Kind::kDisconnected;
      event.local_key = pushed;
      if (!port.push(event)) return false;
      pushed++;
    }
    return true;
  };
  const auto drain = [&] {
    port.drain([&](const ControlEvent& event) {
      EXPECT_EQ(event.local_key, drained);
      drained++;
    });
  };
  const auto run_without_memory = [&] {
    shortage = {};
    shortage.every = 1;
    shortage.is_on = true;
    bool fits = true;
    for (int round = 0; round < 5; round++) {
      fits = push(EndpointPort::kReserved) && fits;
      drain();
    }
    shortage.is_on = false;
    EXPECT_TRUE(fits);
    EXPECT_EQ(drained, pushed);
  };
  run_without_memory();
  EXPECT_TRUE(push(100));
  drain();
  run_without_memory();
  EXPECT_TRUE(push(100));
  run_without_memory();
  (*nexus)->core().remove_endpoint(port);
}

TEST(NoMemory, nexus_core__any_one_allocation_may_fail) {
  size_t n = 1;
  for (; n < 5000; n++) {
    SCOPED_TRACE("allocation " + std::to_string(n));
    shortage = {};
    shortage.once = n;
    TwoCores cores;
    cores.live();
    const bool has_failed = shortage.failed != 0;
    cores.settle_and_connect();
    if (::testing::Test::HasFailure()) return;
    if (!has_failed) break;
  }
  EXPECT_GT(n, 30u);
  EXPECT_LT(n, 5000u);
}

TEST(NoMemory, nexus_core__every_nth_allocation_may_fail) {
  for (size_t n = 3; n < 60; n++) {
    SCOPED_TRACE("every " + std::to_string(n));
    shortage = {};
    TwoCores cores;
    shortage.every = n;
    cores.live();
    cores.settle_and_connect();
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(NoMemory, nexus_core__nothing_at_all_is_refused_and_delays_ends_only) {
  shortage = {};
  TwoCores cores;
  cores.live();
  shortage.every = 1;
  EXPECT_FALSE(cores.connect());
  cores.live();
  cores.settle_and_connect();
}

TEST(NoMemory, create__without_memory_is_a_status) {
  for (size_t n = 1; n < 1000; n++) {
    shortage = {};
    shortage.once = n;
    shortage.is_on = true;
    auto nexus = Nexus::create("tern://127.0.0.1:0");
    shortage.is_on = false;
    if (shortage.failed == 0) {
      EXPECT_TRUE(nexus.ok());
      EXPECT_GT(n, 5u);
      break;
    }
    if (nexus.ok()) continue;
    EXPECT_TRUE(nexus.status().code() == Code::kNoMemory || nexus.status().code() == Code::kUnavailable) << n;
  }
}

}  // namespace
}  // namespace tern::nexus::test
