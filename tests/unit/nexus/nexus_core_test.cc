// Two Nexuses over real loopback sockets in one process, and endpoints that wait on condition variables.
#include "nexus/nexus_core.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <latch>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "own_file.h"

namespace tern::nexus {
namespace {

using std::chrono::milliseconds;
/// Only a hanging test waits this long.
constexpr auto kPatience = std::chrono::seconds(20);

std::array<AddressText, 1> at(std::string_view address) { return {AddressText(address)}; }

/// An endpoint that the test's thread runs.
class Endpoint {
 public:
  explicit Endpoint(NexusCore& nexus, uint16_t id)
      : port(id, "udp",
             [this] {
               std::lock_guard lock(mutex_);
               woken_ = true;
               wakened_.notify_one();
             }),
        nexus_(nexus) {}
  ~Endpoint() { nexus_.remove_endpoint(port); }

  /// Returns the next event, or no event if kPatience passes.
  std::optional<ControlEvent> next() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (events_.empty()) {
      {
        std::unique_lock lock(mutex_);
        if (!wakened_.wait_until(lock, deadline, [&] { return woken_; })) return std::nullopt;
        woken_ = false;
      }
      port.drain([this](ControlEvent& event) { events_.push_back(std::move(event)); });
    }
    ControlEvent event = std::move(events_.front());
    events_.erase(events_.begin());
    return event;
  }

 private:
  std::mutex mutex_;
  std::condition_variable wakened_;
  bool woken_ = false;
  std::vector<ControlEvent> events_;

 public:
  EndpointPort port;

 private:
  NexusCore& nexus_;
};

SessionTerms terms(uint32_t key) {
  SessionTerms t;
  t.transport = "udp";
  t.session_key = key;
  t.payload_bytes_max = 1376;
  t.window = 8;
  t.credits = 8;
  return t;
}

std::unique_ptr<Nexus> nexus_on(std::string_view uri, Duration liveness_timeout = milliseconds(200)) {
  auto nexus = Nexus::create(uri, {.liveness_timeout = liveness_timeout});
  EXPECT_TRUE(nexus.ok()) << nexus.status().message();
  return nexus.ok() ? std::move(*nexus) : nullptr;
}

std::string address_of(Nexus& nexus) { return parse_uri(nexus.uri())->host_and_port; }

class Pair {
 public:
  Pair(std::string_view client_uri, std::string_view server_uri)
      : a(nexus_on(client_uri)), b(nexus_on(server_uri)), client(a->core(), 2), server(b->core(), 1) {
    EXPECT_TRUE(a->core().add_endpoint(client.port).ok());
    EXPECT_TRUE(b->core().add_endpoint(server.port).ok());
  }
  /// Connects session `key` to server session `key + 1000`.
  ControlEvent connect(uint32_t key) {
    EXPECT_TRUE(a->core().connect(client.port, at(address_of(*b)), 1, terms(key), 5'000'000'000).ok());
    auto request = server.next();
    EXPECT_TRUE(request && request->kind == ControlEvent::Kind::kConnectRequest);
    if (!request) return {};
    EXPECT_TRUE(b->core().answer_connect(server.port, request->token, {}, terms(key + 1000)).ok());
    auto result = client.next();
    EXPECT_TRUE(result && result->kind == ControlEvent::Kind::kConnectResult && result->status.ok());
    return result ? *result : ControlEvent{};
  }
  std::unique_ptr<Nexus> a, b;
  Endpoint client, server;
};

class NexusCoreOver : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(NexusCoreOver, connects_asks_and_disconnects) {
  Pair pair(GetParam().first, GetParam().second);
  const ControlEvent result = pair.connect(7);
  EXPECT_EQ(result.terms.session_key, 1007u);
  EXPECT_EQ(result.peer.address, address_of(*pair.b));
  pair.a->core().ask_liveness(pair.client.port, 7);
  auto liveness = pair.client.next();
  ASSERT_TRUE(liveness && liveness->kind == ControlEvent::Kind::kLiveness);
  EXPECT_EQ(liveness->liveness, PeerLiveness::kIdle);
  pair.server.port.iteration = 1;
  pair.a->core().ask_liveness(pair.client.port, 7);
  liveness = pair.client.next();
  ASSERT_TRUE(liveness && liveness->kind == ControlEvent::Kind::kLiveness);
  EXPECT_EQ(liveness->liveness, PeerLiveness::kInCallback);
  pair.a->core().disconnect(pair.client.port, 7, true);
  auto end = pair.server.next();
  ASSERT_TRUE(end && end->kind == ControlEvent::Kind::kDisconnected);
  EXPECT_EQ(end->local_key, 1007u);
  EXPECT_FALSE(end->is_client_side);
}

INSTANTIATE_TEST_SUITE_P(Loopback, NexusCoreOver,
                         ::testing::Values(std::pair("tern://127.0.0.1:0", "tern://127.0.0.1:0"),
                                           std::pair("tern://0.0.0.0:0", "tern://0.0.0.0:0"),
                                           std::pair("tern://[::1]:0", "tern://[::1]:0"),
                                           std::pair("tern://[::]:0", "tern://[::]:0"),
                                           std::pair("tern://[::]:0", "tern://127.0.0.1:0"),
                                           std::pair("tern://localhost:0", "tern://127.0.0.1:0")));

TEST(NexusCore, an_endpoint_that_goes_ends_its_sessions) {
  Pair pair("tern://127.0.0.1:0", "tern://127.0.0.1:0");
  const ControlEvent result = pair.connect(7);
  const std::string address = address_of(*pair.b);
  pair.b->core().remove_endpoint(pair.server.port);  // sends a disconnect to the client
  auto end = pair.client.next();
  ASSERT_TRUE(end && end->kind == ControlEvent::Kind::kDisconnected);
  EXPECT_EQ(end->local_key, 7u);
  EXPECT_TRUE(end->is_client_side);
}

TEST(NexusCore, the_successor_of_a_peer_at_its_address_works) {
  auto a = nexus_on("tern://127.0.0.1:0");
  Endpoint client(a->core(), 2);
  ASSERT_TRUE(a->core().add_endpoint(client.port).ok());
  std::string address;
  for (int life = 0; life < 3; life++) {
    auto b = nexus_on(life == 0 ? "tern://127.0.0.1:0" : "tern://" + address);
    ASSERT_NE(b, nullptr);
    address = address_of(*b);
    Endpoint server(b->core(), 1);
    ASSERT_TRUE(b->core().add_endpoint(server.port).ok());
    const auto key = static_cast<uint32_t>(10 + life);
    EXPECT_TRUE(a->core().connect(client.port, at(address), 1, terms(key), 10'000'000'000).ok());
    auto request = server.next();
    ASSERT_TRUE(request && request->kind == ControlEvent::Kind::kConnectRequest);
    EXPECT_TRUE(b->core().answer_connect(server.port, request->token, {}, terms(100 + key)).ok());
    bool connected = false;
    while (!connected) {
      auto event = client.next();
      ASSERT_TRUE(event);
      if (event->kind == ControlEvent::Kind::kConnectResult) {
        ASSERT_TRUE(event->status.ok()) << event->status.message();
        connected = true;
      }
      if (event->kind == ControlEvent::Kind::kConnectRequest) FAIL();
    }
  }
  // The session ends with the disconnect of the last server or in silence.
  auto end = client.next();
  ASSERT_TRUE(end);
}

TEST(NexusCore, silent_address_is_unreachable_and_unknown_endpoint_is_refused) {
  Pair pair("tern://127.0.0.1:0", "tern://127.0.0.1:0");
  EXPECT_TRUE(pair.a->core().connect(pair.client.port, at(address_of(*pair.b)), 9, terms(1), 5'000'000'000).ok());
  auto result = pair.client.next();
  ASSERT_TRUE(result && result->kind == ControlEvent::Kind::kConnectResult);
  EXPECT_EQ(result->status.code(), Code::kRefused);
  auto gone = nexus_on("tern://127.0.0.1:0");
  const std::string nowhere = address_of(*gone);
  gone.reset();
  EXPECT_TRUE(pair.a->core().connect(pair.client.port, at(nowhere), 1, terms(2), 50'000'000).ok());
  result = pair.client.next();
  ASSERT_TRUE(result && result->kind == ControlEvent::Kind::kConnectResult);
  EXPECT_EQ(result->local_key, 2u);
  EXPECT_EQ(result->status.code(), Code::kPeerUnreachable);
}

/// Returns the status of a client of `listen` that connects to these addresses.
Status heard_of(std::string_view listen, const std::vector<AddressText>& addresses) {
  auto nexus = nexus_on(listen);
  Endpoint client(nexus->core(), 2);
  EXPECT_TRUE(nexus->core().add_endpoint(client.port).ok());
  if (Status status = nexus->core().connect(client.port, addresses, 1, terms(1), 300'000'000); !status.ok()) {
    return status;
  }
  auto result = client.next();
  EXPECT_TRUE(result && result->kind == ControlEvent::Kind::kConnectResult);
  return result ? result->status : Status();
}

TEST(NexusCore, connect__names_a_wrong_port) {
  for (const char* listen : {"tern://127.0.0.1:0", "tern://0.0.0.0:0", "tern://[::]:0"}) {
    std::string nowhere = address_of(*nexus_on("tern://127.0.0.1:0"));
    const Status status = heard_of(listen, {AddressText(nowhere)});
    EXPECT_EQ(status.code(), Code::kPeerUnreachable);
    EXPECT_TRUE(status.message().starts_with("nothing listens at " + nowhere + " (ICMP")) << status.message();
  }
  const std::string nowhere = address_of(*nexus_on("tern://[::1]:0"));
  const Status status = heard_of("tern://[::]:0", {AddressText(nowhere)});
  EXPECT_TRUE(status.message().starts_with("nothing listens at [::1]:")) << status.message();
}

TEST(NexusCore, connect__names_a_missing_route) {
  // A socket that is bound to the loopback address has no route to other networks.
  const Status status = heard_of("tern://127.0.0.1:0", {AddressText("192.0.2.1:31850")});
  EXPECT_EQ(status.code(), Code::kPeerUnreachable);
  EXPECT_TRUE(status.message().starts_with("no route to 192.0.2.1:31850")) << status.message();
}

TEST(NexusCore, connect__names_another_address_family) {
  const Status v6 = heard_of("tern://127.0.0.1:0", {AddressText("[::1]:31850")});
  EXPECT_EQ(v6.code(), Code::kUnavailable);
  EXPECT_TRUE(v6.message().starts_with("the server's address [::1]:31850 is IPv6,")) << v6.message();
  EXPECT_NE(v6.message().find("tern://[::]:PORT"), std::string_view::npos) << v6.message();
  const Status v4 = heard_of("tern://[::1]:0", {AddressText("127.0.0.1:31850")});
  EXPECT_EQ(v4.code(), Code::kUnavailable);
  EXPECT_TRUE(v4.message().starts_with("the server's address 127.0.0.1:31850 is IPv4,")) << v4.message();
}

TEST(NexusCore, connect__tries_all_addresses) {
  auto a = nexus_on("tern://0.0.0.0:0");
  auto b = nexus_on("tern://127.0.0.1:0");
  Endpoint client(a->core(), 2), server(b->core(), 1);
  ASSERT_TRUE(a->core().add_endpoint(client.port).ok());
  ASSERT_TRUE(b->core().add_endpoint(server.port).ok());
  const std::string right = address_of(*b);
  const std::string nowhere = address_of(*nexus_on("tern://127.0.0.1:0"));
  const std::vector<AddressText> addresses{AddressText("[::1]:1"), AddressText(nowhere), AddressText(right)};
  ASSERT_TRUE(a->core().connect(client.port, addresses, 1, terms(3), 10'000'000'000).ok());
  auto request = server.next();
  ASSERT_TRUE(request && request->kind == ControlEvent::Kind::kConnectRequest);
  EXPECT_TRUE(b->core().answer_connect(server.port, request->token, {}, terms(1003)).ok());
  auto result = client.next();
  ASSERT_TRUE(result && result->kind == ControlEvent::Kind::kConnectResult);
  EXPECT_TRUE(result->status.ok()) << result->status.message();
  EXPECT_EQ(result->peer.address, right);

  const Status none = heard_of("tern://0.0.0.0:0", {AddressText(nowhere), AddressText("127.0.0.1:1")});
  EXPECT_EQ(none.message(), "no address of the server answers: " + nowhere +
                                " - nothing listens there, 127.0.0.1:1 - nothing listens there");
}

TEST(RealEnvironment, resolve_all__gives_the_addresses_of_a_name_ipv4_first) {
  const std::string hosts = "fd77::5 many.test\n10.77.0.5 many.test\n10.77.0.6 many.test\nfd77::6 six.test\n";
  test::expect_zero_with_own_file("/etc/hosts", hosts, [] {
    auto many = real_environment().resolve_all("many.test:31850");
    auto six = real_environment().resolve_all("six.test:31850");
    if (!many.ok() || !six.ok()) return 1;
    const std::vector<std::string> wanted{"10.77.0.5:31850", "10.77.0.6:31850", "[fd77::5]:31850"};
    return *many == wanted && *six == std::vector<std::string>{"[fd77::6]:31850"} ? 0 : 2;
  });
}

TEST(NexusCore, one_port_has_one_nexus) {
  auto first = nexus_on("tern://127.0.0.1:0");
  auto second = Nexus::create(first->uri());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
  EXPECT_NE(second.status().message().find("port is taken"), std::string_view::npos);
  const std::string address = address_of(*first);
  const std::string any = "tern://0.0.0.0" + address.substr(address.rfind(':'));
  EXPECT_FALSE(Nexus::create(any).ok());
  first.reset();
  EXPECT_TRUE(Nexus::create(any).ok());
}

TEST(NexusCore, add_endpoint__one_per_id) {
  auto nexus = nexus_on("tern://127.0.0.1:0");
  Endpoint one(nexus->core(), 5), two(nexus->core(), 5);
  EXPECT_TRUE(nexus->core().add_endpoint(one.port).ok());
  EXPECT_EQ(nexus->core().add_endpoint(two.port).code(), Code::kMisuse);
  nexus->core().remove_endpoint(two.port);  // `two` was never added, so its removal has no effect
  EXPECT_EQ(nexus->core().add_endpoint(two.port).code(), Code::kMisuse);
  nexus->core().remove_endpoint(one.port);
  EXPECT_TRUE(nexus->core().add_endpoint(two.port).ok());
}

TEST(NexusCore, endpoints_come_and_go_while_others_connect) {
  Pair pair("tern://127.0.0.1:0", "tern://127.0.0.1:0");
  std::atomic<bool> stop{false};
  std::thread churn([&] {
    while (!stop) {
      Endpoint other(pair.b->core(), 3);
      if (!pair.b->core().add_endpoint(other.port).ok()) abort();
      if (!pair.b->core().connect(other.port, at(address_of(*pair.a)), 9, terms(1), 10'000'000'000).ok()) abort();
      if (!other.next()) abort();
    }
  });
  for (uint32_t key = 1; key <= 200; key++) pair.connect(key);
  stop = true;
  churn.join();
}

TEST(NexusCore, submit_work__runs_everything_before_the_end) {
  std::atomic<int> ran{0};
  {
    auto nexus = Nexus::create("tern://127.0.0.1:0", {.worker_threads = 3});
    ASSERT_TRUE(nexus.ok());
    for (int i = 0; i < 1000; i++) {
      ASSERT_TRUE((*nexus)->core().submit_work([&] { ran++; }));
      if (i % 100 == 50) (*nexus)->core().flush_work();
    }
  }
  EXPECT_EQ(ran, 1000);
}

TEST(NexusCore, flush_work__is_enough_for_as_many_threads_as_tasks) {
  constexpr int kThreads = 4;
  auto nexus = Nexus::create("tern://127.0.0.1:0", {.worker_threads = kThreads});
  ASSERT_TRUE(nexus.ok());
  for (int round = 0; round < 100; round++) {
    std::atomic<int> ended{0};
    std::latch all_have_begun(kThreads);
    for (int i = 0; i < kThreads; i++) {
      ASSERT_TRUE((*nexus)->core().submit_work([&] {
        all_have_begun.arrive_and_wait();
        ended++;
      }));
    }
    (*nexus)->core().flush_work();
    while (ended != kThreads) std::this_thread::yield();
  }
}

TEST(NexusCore, pool_of_the_real_environment_wakes_its_threads_at_submit) {
  auto workers = real_environment().start_workers(1, 8);
  ASSERT_TRUE(workers.ok());
  for (int i = 0; i < 3; i++) {
    std::latch has_run(1);
    ASSERT_TRUE((*workers)->submit([&] { has_run.count_down(); }));
    has_run.wait();
  }
}

TEST(NexusCore, submit_work__refuses_beyond_its_limit) {
  auto nexus = Nexus::create("tern://127.0.0.1:0", {.worker_threads = 1, .worker_queue_limit = 2});
  ASSERT_TRUE(nexus.ok());
  std::mutex gate;
  std::atomic<bool> inside{false};
  std::unique_lock closed(gate);
  ASSERT_TRUE((*nexus)->core().submit_work([&] {
    inside = true;
    inside.notify_one();
    std::lock_guard wait(gate);
  }));
  (*nexus)->core().flush_work();
  inside.wait(false);  // the queue is empty now, and its only thread is busy
  EXPECT_TRUE((*nexus)->core().submit_work([] {}));
  EXPECT_TRUE((*nexus)->core().submit_work([] {}));
  EXPECT_FALSE((*nexus)->core().submit_work([] {}));
  closed.unlock();
}

TEST(NexusCore, create__names_the_rule) {
  const auto message_of = [](std::string_view uri) {
    auto nexus = Nexus::create(uri);
    EXPECT_FALSE(nexus.ok()) << uri;
    return std::string(nexus.status().message());
  };
  for (const char* uri :
       {"127.0.0.1:1", "tcp://127.0.0.1:1", "", "tern://", "tern://127.0.0.1", "tern://:1", "tern://127.0.0.1:65536",
        "tern://127.0.0.1:x", "tern://::1:5", "tern://[::1]", "tern://[]:5", "tern://127.0.0.1:1/1"}) {
    EXPECT_NE(message_of(uri).find("tern://HOST:PORT"), std::string::npos) << uri;
  }
  EXPECT_NE(message_of("tern://192.0.2.1:31850").find("not one of this machine's"), std::string::npos);
  EXPECT_EQ(Nexus::create("tern://127.0.0.1:0", {.liveness_timeout = Duration(0)}).status().code(), Code::kMisuse);
  EXPECT_EQ(Nexus::create("tern://127.0.0.1:0", {.worker_threads = 0}).status().code(), Code::kMisuse);
}

TEST(NexusCore, an_endpoint_may_be_left_behind) {
  Pair pair("tern://127.0.0.1:0", "tern://127.0.0.1:0");
  pair.connect(7);
  EXPECT_FALSE(pair.client.port.is_orphaned());
  pair.a->core().remove_endpoint(pair.client.port);
  EXPECT_TRUE(pair.a->core().add_endpoint(pair.client.port).ok());
  pair.a.reset();
  EXPECT_TRUE(pair.client.port.is_orphaned());
  EXPECT_FALSE(pair.server.port.is_orphaned());
}

/// The real environment, whose randomness is lost after `left` numbers.
class NoRandomness final : public Environment {
 public:
  explicit NoRandomness(int left) : left_(left) {}
  Duration now() override { return real_environment().now(); }
  uint64_t random() override { return left_.fetch_sub(1) > 0 ? real_environment().random() : 0; }
  Result<std::unique_ptr<ManagementChannel>> listen(std::string_view address, ManagementSink& sink) override {
    return real_environment().listen(address, sink);
  }
  Result<std::string> resolve(std::string_view text) override { return real_environment().resolve(text); }
  Result<std::unique_ptr<WorkerPool>> start_workers(size_t threads, size_t queue_limit) override {
    return real_environment().start_workers(threads, queue_limit);
  }

 private:
  std::atomic<int> left_;
};

TEST(NexusCore, create__without_randomness_is_refused_with_the_reason) {
  for (int left = 0; left < 4; left++) {
    NoRandomness environment(left);
    auto nexus = Nexus::create("tern://127.0.0.1:0", {.environment = &environment});
    ASSERT_FALSE(nexus.ok()) << left;
    EXPECT_EQ(nexus.status().code(), Code::kUnavailable);
    EXPECT_NE(nexus.status().message().find("getrandom"), std::string_view::npos);
  }
}

TEST(NexusCore, lost_system_randomness_is_replaced_by_a_generator) {
  NoRandomness environment(6);
  auto b = Nexus::create("tern://127.0.0.1:0", {.environment = &environment});
  ASSERT_TRUE(b.ok()) << b.status().message();
  auto a = nexus_on("tern://127.0.0.1:0");
  Endpoint client(a->core(), 2), server((*b)->core(), 1);
  ASSERT_TRUE(a->core().add_endpoint(client.port).ok());
  ASSERT_TRUE((*b)->core().add_endpoint(server.port).ok());
  for (uint32_t key = 1; key <= 20; key++) {
    ASSERT_TRUE(a->core().connect(client.port, at(address_of(**b)), 1, terms(key), 5'000'000'000).ok());
    auto request = server.next();
    ASSERT_TRUE(request && request->kind == ControlEvent::Kind::kConnectRequest);
    EXPECT_TRUE((*b)->core().answer_connect(server.port, request->token, {}, terms(100 + key)).ok());
    auto result = client.next();
    ASSERT_TRUE(result && result->kind == ControlEvent::Kind::kConnectResult && result->status.ok());
  }
}

TEST(NexusCore, forked_child_only_releases_its_inherited_memory) {
  Pair pair("tern://127.0.0.1:0", "tern://127.0.0.1:0");
  ASSERT_TRUE(pair.a->core().submit_work([] {}));  // starts worker threads, which wait
  pair.connect(1);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    pair.a->core().disconnect(pair.client.port, 1, true);
    pair.a.reset();
    pair.b.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  pair.connect(2);
  pair.a->core().disconnect(pair.client.port, 1, true);
  auto end = pair.server.next();
  ASSERT_TRUE(end && end->kind == ControlEvent::Kind::kDisconnected);
  EXPECT_EQ(end->local_key, 1001u) << "what the child did must not be heard";
}

TEST(RealEnvironment, random__a_forked_child_has_other_numbers_than_its_parent) {
  real_environment().random();  // fetches more than it returns
  std::array<uint64_t, 100> own{}, childs{};
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    for (uint64_t& number : childs) number = real_environment().random();
    _exit(write(ends[1], childs.data(), sizeof(childs)) == sizeof(childs) ? 0 : 1);
  }
  for (uint64_t& number : own) number = real_environment().random();
  ASSERT_EQ(read(ends[0], childs.data(), sizeof(childs)), static_cast<ssize_t>(sizeof(childs)));
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close(ends[0]);
  close(ends[1]);
  std::set<uint64_t> all(own.begin(), own.end());
  all.insert(childs.begin(), childs.end());
  EXPECT_EQ(all.size(), own.size() + childs.size());
  EXPECT_FALSE(all.contains(0));
}

TEST(NexusCore, create__takes_the_old_scheme_and_gives_the_new_one) {
  EXPECT_TRUE(nexus_on("udp://127.0.0.1:0")->uri().starts_with("tern://127.0.0.1:"));
  EXPECT_TRUE(nexus_on("udp://[::1]:0")->uri().starts_with("tern://[::1]:"));
}

TEST(NexusCore, create__refuses_an_endpoint_in_the_listen_uri) {
  for (const char* uri : {"tern://127.0.0.1:0/1", "tern://127.0.0.1:0/0", "udp://127.0.0.1:0/0"}) {
    const auto nexus = Nexus::create(uri);
    ASSERT_FALSE(nexus.ok()) << uri;
    EXPECT_EQ(nexus.status().code(), Code::kMisuse);
    EXPECT_NE(nexus.status().message().find("RpcOptions::endpoint_id"), std::string_view::npos);
  }
}

TEST(NexusCore, uri__of_a_wildcard_can_be_used_on_this_host) {
  EXPECT_TRUE(nexus_on("tern://0.0.0.0:0")->uri().starts_with("tern://127.0.0.1:"));
  EXPECT_TRUE(nexus_on("tern://[::]:0")->uri().starts_with("tern://[::1]:"));
  EXPECT_EQ(nexus_on("tern://0.0.0.0:0")->core().listen_host(), "0.0.0.0");
  EXPECT_EQ(nexus_on("tern://[::1]:0")->core().listen_host(), "::1");
}

}  // namespace
}  // namespace tern::nexus
