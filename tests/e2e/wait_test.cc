// The three ways of waiting, over every transport: everything completes in each, and who has nothing to do sleeps.

#include <sys/epoll.h>
#include <sys/resource.h>

#include <tuple>

#include "e2e/caller.h"
#include "e2e/peer.h"
#include "e2e/peer_process.h"

using namespace e2e;
using tern::Code;

namespace {

double cpu_seconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Of another process, all of its threads; in clock ticks of 10 ms.
double cpu_seconds(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string word;
  double ticks = 0;
  for (int i = 1; i <= 15; i++) {
    stat >> word;
    if (i >= 14) ticks += std::strtod(word.c_str(), nullptr);
  }
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

constexpr auto kIdle = std::chrono::milliseconds(1500);
/// The issue asks for 1 %; the bound allows for a busy machine, and 50 % for an emulated one. A loop that spins uses
/// 100 %.
const double kIdleShareMax = 0.05 * tern::patience();

class Waiting : public testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  Settings settings() const { return {{"transport", std::get<0>(GetParam())}, {"wait", std::get<1>(GetParam())}}; }
};
INSTANTIATE_TEST_SUITE_P(
    Over, Waiting, testing::Combine(testing::ValuesIn(transports()), testing::Values("poll", "adaptive", "block")),
    [](const auto& with) { return std::string(std::get<0>(with.param)) + "_" + std::get<1>(with.param); });

}  // namespace

TEST_P(Waiting, everything_completes) {
  Peer server(settings());
  Caller caller(settings());
  const tern::Session session = caller.open(server.uri());
  // Fewer where both sides poll: on two CPUs each call waits for the time slices of threads that others spin through.
  const uint64_t count = settings().text("wait") == "poll" ? 50 : 200;
  // One at a time, with pauses long enough for both sides to fall asleep in between.
  for (uint64_t id = 0; id < count; id++) {
    Call* call = caller.send_order(session, id % 4 == 0 ? kWorker : kWork,
                                   {id, static_cast<uint32_t>(id * 100), id % 3 == 0 ? 300u : 0u}, 24 + id * 77);
    ASSERT_EQ(caller.end_of(call), Code::kOk) << call->status.message();
    ASSERT_TRUE(Caller::is_right(*call));
    if (id % 10 == 0) caller.run_for(std::chrono::milliseconds(2));
  }
  for (uint64_t id = count; id < 6 * count; id++) caller.send_order(session, kWork, {id, 1000, 0}, 24 + id);
  ASSERT_TRUE(caller.finish());
  for (const auto& call : caller.calls()) ASSERT_TRUE(Caller::is_right(*call)) << call->status.message();
}

/// A whole run in one call of the loop: only packets, timers, posts and stop() can wake it.
TEST_P(Waiting, packets_timers_posts_and_stop_wake_a_sleeping_loop) {
  Peer server(settings());
  Caller caller(settings());
  tern::Endpoint& endpoint = caller.endpoint();
  const tern::Session session = caller.open(server.uri());
  std::atomic<int> posted{0};
  std::atomic<bool> has_answer{false};
  int timers = 0;
  for (int i = 0; i < 20; i++) EXPECT_TRUE(endpoint.after(std::chrono::milliseconds(i), [&] { timers++; }).ok());
  std::thread other([&] {
    for (int i = 0; i < 50; i++) {
      const int before = posted;
      EXPECT_TRUE(endpoint.post([&] { posted++; }).ok());
      EXPECT_TRUE(wait_for([&] { return posted > before; }));
      if (i % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    // A call that is answered 20 ms later, from a loop that has nothing else to do.
    EXPECT_TRUE(endpoint
                    .post([&] {
                      tern::MsgBuf request = endpoint.alloc_msgbuf(sizeof(Order));
                      write_order(request.bytes(), {1, 100, 20'000});
                      EXPECT_TRUE(endpoint
                                      .enqueue_request(session, kWork, std::move(request), endpoint.alloc_msgbuf(100),
                                                       [&](tern::Completion& done) {
                                                         EXPECT_TRUE(is_filled(done.response.bytes(), ~uint64_t{1}));
                                                         has_answer = done.status.ok();
                                                       })
                                      .ok());
                      EXPECT_TRUE(endpoint.after(std::chrono::milliseconds(1), [] {}).ok());
                    })
                    .ok());
    EXPECT_TRUE(wait_for([&] { return has_answer.load(); }));
    endpoint.stop();
  });
  EXPECT_TRUE(caller.rpc().run(kBound).ok());
  other.join();
  EXPECT_EQ(posted, 50);
  EXPECT_EQ(timers, 20);
  EXPECT_TRUE(has_answer);
}

class Idle : public OverTransports {};
E2E_OVER_TRANSPORTS(Idle);

TEST_P(Idle, endpoints_use_little_cpu) {
  Peer server(settings().with("tick_ms", 500));
  Caller caller(settings());
  for (const bool has_sessions : {false, true}) {
    if (has_sessions) {
      std::vector<tern::Session> sessions;
      for (int i = 0; i < 20; i++) sessions.push_back(caller.open(server.uri()));
      for (tern::Session session : sessions) caller.send_order(session, kWork, {1, 5000, 0}, 5000);
      ASSERT_TRUE(caller.finish());
      caller.run_for(std::chrono::milliseconds(300));
    }
    const double own = cpu_seconds();
    const double its = cpu_seconds(server.pid());
    caller.run_for(kIdle);
    const double seconds = std::chrono::duration<double>(kIdle).count();
    EXPECT_LT(cpu_seconds() - own, kIdleShareMax * seconds)
        << (has_sessions ? "client with sessions" : "client without");
    EXPECT_LT(cpu_seconds(server.pid()) - its, kIdleShareMax * seconds)
        << (has_sessions ? "server with" : "server without");
    RecordProperty(has_sessions ? "idle_share_with_sessions" : "idle_share",
                   std::to_string((cpu_seconds() - own) / seconds));
  }
}

/// A call that waits long for its answer is no reason to spin either.
TEST_P(Idle, waiting_for_a_slow_answer_uses_little_cpu) {
  Peer server(settings().with("tick_ms", 50));
  Caller caller(settings());
  const tern::Session session = caller.open(server.uri());
  Call* call = caller.send_pattern(session, kHold, 100, 1);
  ASSERT_TRUE(caller.run_until([&] { return server.board().held == 1; }));
  const double own = cpu_seconds();
  const double its = cpu_seconds(server.pid());
  caller.run_for(kIdle);
  const double seconds = std::chrono::duration<double>(kIdle).count();
  EXPECT_LT(cpu_seconds() - own, kIdleShareMax * seconds) << "client";
  EXPECT_LT(cpu_seconds(server.pid()) - its, kIdleShareMax * seconds) << "server";
  server.board().release = 1;
  EXPECT_EQ(caller.end_of(call), Code::kOk);
}

class Descriptor : public OverTransports {};
E2E_OVER_TRANSPORTS(Descriptor);

TEST_P(Descriptor, drives_a_programs_own_epoll_loop) {
  Peer server(settings());
  Caller caller(settings());
  const tern::Session session = caller.connect(server.uri(), {.connect_timeout = kBound});
  auto descriptor = caller.rpc().descriptor();
  ASSERT_TRUE(descriptor.ok()) << descriptor.status().message();
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(epoll_ctl(epoll, EPOLL_CTL_ADD, *descriptor, &event), 0);
  bool has_timer_run = false;
  EXPECT_TRUE(caller.endpoint().after(std::chrono::milliseconds(30), [&] { has_timer_run = true; }).ok());
  uint64_t id = 0;
  size_t wakeups = 0;
  while ((caller.ended() < 300 || !has_timer_run) && wakeups < 1'000'000) {
    if (id < 300 && caller.ended() == id) {
      caller.send_order(session, kWork, {id, static_cast<uint32_t>(id * 40), id % 10 == 0 ? 2000u : 0u}, 24 + id * 50);
      id++;
      // What a program has begun between its loops goes out with the next one.
      EXPECT_TRUE(caller.rpc().run_once().ok());
      continue;
    }
    const int ready = epoll_wait(epoll, &event, 1, 10'000);
    ASSERT_EQ(ready, 1) << "nothing for 10 s, with a call or a timer outstanding";
    wakeups++;
    EXPECT_TRUE(caller.rpc().run_once().ok());
  }
  close(epoll);
  EXPECT_TRUE(has_timer_run);
  EXPECT_EQ(caller.ended_ok(), 300u);
  for (const auto& call : caller.calls()) EXPECT_TRUE(Caller::is_right(*call));
  // A level-triggered loop that never gets quiet would have been woken far more often than there is work.
  EXPECT_LT(wakeups, 50'000u);
}
