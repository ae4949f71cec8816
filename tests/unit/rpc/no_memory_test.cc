// Lack of memory: in the life of a server and a client each allocation of their threads fails once, or all from it on.
// Nothing aborts. A refused call leaves its buffers with the caller, and each accepted call ends exactly once.
// Afterwards everything works.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include <tern/coroutine.h>

#include "rpc/rpc_impl.h"
#include "transport/layer.h"
#include "transport_impls.h"
#include "unit/failing_new.h"
#include "unit/rpc/rpc_world.h"

namespace {

/// The allocations of one thread while `depth` is not 0. Number `fail_at` fails, or all from it on.
struct Shortage {
  int depth = 0;
  bool fails_on = false;
  uint64_t count = 0;
  uint64_t fail_at = 0;

  bool fails() {
    if (depth == 0) return false;
    ++count;
    return fails_on ? count >= fail_at : count == fail_at;
  }
};
constinit thread_local Shortage shortage;

}  // namespace

bool tern::test::allocation_fails() noexcept { return shortage.fails(); }

namespace tern::transport {

/// UDP that releases transmit tickets late, so that ended calls wait for their buffers.
class LateImpl : public Layer<UdpImpl> {
 public:
  using Options = Udp::Options;
  static constexpr uint64_t kLag = 16;
  using Sender = PlainSender<LateImpl>;
  static Result<std::unique_ptr<LateImpl>> create(const Options& options, const Context& context) {
    auto inner = UdpImpl::create(options, context);
    if (!inner.ok()) return inner.status();
    std::unique_ptr<LateImpl> late(new (std::nothrow) LateImpl(std::move(*inner)));
    if (late == nullptr) return Status(Code::kNoMemory, "no memory for a layer");
    return late;
  }
  uint64_t released() const {
    const uint64_t released = Layer<UdpImpl>::released();
    return released - std::min(released, kLag);
  }
  bool prepare_wait() {
    (void)Layer<UdpImpl>::prepare_wait();
    return false;
  }

 private:
  using Layer<UdpImpl>::Layer;
};

}  // namespace tern::transport

namespace tern {
struct Late {
  static constexpr std::string_view kName = "udp";
  using Impl = transport::LateImpl;
  using Options = Udp::Options;
};
}  // namespace tern

namespace tern::rpc_test {
namespace {

/// In its scope the library's allocations may fail.
struct Short {
  Short() { shortage.depth++; }
  ~Short() { shortage.depth--; }
};
/// In its scope, in a callback of the test, allocations succeed.
struct Ample {
  Ample() : depth(std::exchange(shortage.depth, 0)) {}
  ~Ample() { shortage.depth = depth; }
  int depth;
};

enum Type : uint16_t { kLater = 10, kWorker, kCoroutine, kNested, kNever };

constexpr size_t kLongBytes = 60'000;
constexpr size_t kCallsMax = 160;

/// The test's record of a call.
struct Call {
  bool is_accepted = false;
  int ends = 0;
  Code code = Code::kOk;
  CallId id;
};

template <class T>
class Life {
 public:
  using Transport = T;

  void make() {
    NexusOptions nexus;
    nexus.liveness_timeout = seconds(5);
    auto a = Nexus::create("tern://127.0.0.1:0", nexus);
    auto b = Nexus::create("tern://127.0.0.1:0", nexus);
    ASSERT_TRUE(a.ok() && b.ok());
    server_nexus = std::move(*a);
    client_nexus = std::move(*b);
  }

  std::unique_ptr<Rpc<T>> endpoint(Nexus& nexus) {
    RpcOptions options = small_memory();
    options.wait = Wait::kPoll;
    options.queue_limit = 64;
    options.report_delay = milliseconds(1);
    auto transport = at_end<typename T::Options>(0);
    if constexpr (requires { transport.receive_buffers; }) {
      transport.receive_buffers = 1024;  // few, because each life allocates them again
    }
    const auto create_without_memory = [&] {
      auto given = transport;
      Short no_memory;
      return Rpc<T>::create(nexus, std::move(given), options);
    };
    auto made = create_without_memory();
    if (made.ok()) return std::move(*made);
    EXPECT_EQ(made.status().code(), Code::kNoMemory) << made.status().message();
    auto again = Rpc<T>::create(nexus, transport, options);
    EXPECT_TRUE(again.ok()) << again.status().message();
    return again.ok() ? std::move(*again) : nullptr;
  }

  /// Calls `f` without memory, and then with it.
  template <class F>
  void surely(F&& f) {
    Status status;
    {
      Short no_memory;
      status = f();
    }
    if (status.ok()) return;
    EXPECT_EQ(status.code(), Code::kNoMemory) << status.message();
    status = f();
    EXPECT_TRUE(status.ok()) << status.message();
  }

  static Detached answer(Request request) {
    auto room = request.response(4);
    if (room.ok()) {
      request.respond();
    } else {
      request.fail(7);
    }
    co_return;
  }
  static Detached forward(Life* life, Request request) {
    MsgBuf out = life->server->alloc_msgbuf(16), in = life->server->alloc_msgbuf(64);
    Completion done = co_await life->server->call(life->back, kEcho, std::move(out), std::move(in));
    life->nested++;
    if (done.status.ok()) {
      request.respond();
    } else {
      request.fail(9);
    }
  }

  static void echo_if_room(Request request) {
    auto room = request.response(request.bytes().size());
    if (!room.ok()) return request.fail(8);
    if (!room->empty()) std::memcpy(room->data(), request.bytes().data(), room->size());
    request.respond();
  }
  void add_handlers() {
    surely([&] { return server->on_request(kEcho, echo_if_room); });
    surely([&] { return client->on_request(kEcho, echo_if_room); });
    surely([&] {
      return server->on_request(kLater, [this](Request request) {
        if (kept_count < kept.size()) kept[kept_count++] = std::move(request);
      });
    });
    surely([&] {
      return server->on_request(
          kWorker, [](Request request) { echo_if_room(std::move(request)); }, HandlerOptions{.worker = true});
    });
    surely([&] { return server->on_request(kCoroutine, [](Request request) { answer(std::move(request)); }); });
    surely([&] { return server->on_request(kNested, [this](Request request) { forward(this, std::move(request)); }); });
    surely([&] {
      return server->on_request(kNever, [this](Request request) {
        if (never_count < never.size()) never[never_count++] = std::move(request);
      });
    });
  }

  void turn() {
    for (Rpc<T>* rpc : {server.get(), client.get()}) {
      if (rpc == nullptr) continue;
      Status status;
      {
        Short no_memory;
        status = rpc->run_event_loop_once().status();
      }
      ASSERT_TRUE(status.ok()) << status.message();
      rpc::EndpointCore::of(*rpc).check_invariants();
    }
    // Answers kept requests outside of the loop, one in each turn.
    if (kept_count != 0) {
      Short no_memory;
      kept_count--;
      echo_if_room(*std::exchange(kept[kept_count], std::nullopt));
    }
  }
  /// Runs turns until `is_true` or until `limit` has passed.
  template <class F>
  bool turns_until(F&& is_true, Duration limit) {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (!is_true()) {
      turn();
      if (::testing::Test::HasFailure() || std::chrono::steady_clock::now() > until) return is_true();
    }
    return true;
  }

  Session session(Endpoint& endpoint, const std::string& uri, SessionOptions options) {
    Session made;
    surely([&] {
      auto session = endpoint.create_session(uri, options);
      if (session.ok()) made = *session;
      return session.status();
    });
    return made;
  }

  void call(Session on, uint16_t type, size_t bytes, Duration deadline = Duration::max()) {
    ASSERT_LT(calls_count, kCallsMax);
    Call& call = calls[calls_count++];
    Short no_memory;
    MsgBuf request = client->alloc_msgbuf(bytes), response = client->alloc_msgbuf(kLongBytes);
    const bool had_both = request && response;
    auto id = client->enqueue_request(
        on, type, std::move(request), std::move(response),
        [&call](Completion& done) {
          Ample memory;
          call.ends++;
          call.code = done.status.code();
          EXPECT_TRUE(done.request && done.response);
        },
        CallOptions{deadline});
    Ample memory;
    call.is_accepted = id.ok();
    if (id.ok()) {
      call.id = *id;
      return;
    }
    EXPECT_EQ(request && response, had_both);  // NOLINT(bugprone-use-after-move): refused calls leave them
    const Code code = id.status().code();
    if (had_both) {
      EXPECT_TRUE(code == Code::kNoMemory || code == Code::kSessionReset || code == Code::kQueueFull)
          << id.status().message();
    }
  }
  bool all_ended() const {
    return std::all_of(calls.begin(), calls.begin() + calls_count,
                       [](const Call& call) { return !call.is_accepted || call.ends == 1; });
  }

  /// Runs a life in which memory fails at some point, and then an ordinary one.
  void live() {
    server = endpoint(*server_nexus);
    client = endpoint(*client_nexus);
    ASSERT_TRUE(server != nullptr && client != nullptr);
    add_handlers();
    const Session first = session(*client, server_nexus->uri(), {});
    const Session wide = session(*client, server_nexus->uri(), {.window = 40});
    SessionOptions slow;
    slow.rate_bytes_per_sec = 50'000'000;
    const Session paced = session(*client, server_nexus->uri(), slow);
    back = session(*server, client_nexus->uri(), {});
    call(first, kEcho, 32);  // before the session is open
    turns_until([&] { return client->is_open(first) && client->is_open(wide) && client->is_open(paced); },
                milliseconds(20));

    for (int i = 0; i < 20; i++) call(first, kEcho, 32);
    for (int i = 0; i < 50; i++) call(wide, kEcho, 100);
    call(first, kEcho, kLongBytes);
    call(wide, kEcho, kLongBytes);
    call(paced, kEcho, kLongBytes);
    for (const uint16_t type : {kLater, kWorker, kCoroutine, kNested}) {
      for (int i = 0; i < 3; i++) call(wide, type, i == 0 ? kLongBytes / 2 : 64);
    }
    // A timer and a posted function may be refused. If accepted, they run once.
    int timers = 0, posts = 0, accepted = 0;
    {
      Short no_memory;
      const Status timer = client->after(milliseconds(0), [&timers] { timers++; }).status();
      const Status post = client->post([&posts] { posts++; });
      Ample memory;
      EXPECT_TRUE(timer.ok() || timer.code() == Code::kNoMemory);
      EXPECT_TRUE(post.ok() || post.code() == Code::kNoMemory);
      accepted = int{timer.ok()} + int{post.ok()};
    }
    call(wide, kNever, 32, milliseconds(1));
    call(wide, kNever, 32);
    const Call& cancelled = calls[calls_count - 1];
    turns_until([&] { return never_count == 2 || all_ended(); }, milliseconds(5));
    if (cancelled.is_accepted && cancelled.ends == 0) {
      Status status;
      {
        Short no_memory;
        status = client->cancel(cancelled.id);
      }
      EXPECT_TRUE(status.ok() || status.code() == Code::kNoMemory) << status.message();
      if (!status.ok()) {
        shortage.fail_at = UINT64_MAX;
        EXPECT_TRUE(client->cancel(cancelled.id).ok());
      }
    }
    turns_until([&] { return all_ended(); }, milliseconds(5));
    // The end of a session with calls, from either side.
    for (int i = 0; i < 12; i++) call(paced, kLater, 32);
    turn();
    if (client->is_open(paced)) {
      Short no_memory;
      (void)client->destroy_session(paced);
    }
    call(first, kNever, 32);
    turns_until([&] { return all_ended(); }, milliseconds(3));
    {
      Short no_memory;
      (void)server->close(milliseconds(0));
    }
    kept = {};
    never = {};
    kept_count = never_count = 0;
    server.reset();
    turns_until([&] { return all_ended(); }, milliseconds(3));

    // Memory is available again.
    shortage.fail_at = UINT64_MAX;
    EXPECT_TRUE(turns_until([&] { return all_ended() && timers + posts == accepted; }, kPatience));
    for (size_t i = 0; i < calls_count; i++) EXPECT_EQ(calls[i].ends, calls[i].is_accepted ? 1 : 0) << "call " << i;
    server = endpoint(*server_nexus);
    ASSERT_TRUE(server->on_request(kEcho, echo_if_room).ok());
    calls_count = 0;
    calls = {};
    const Session last = session(*client, server_nexus->uri(), {});
    call(last, kEcho, 32);
    call(last, kEcho, kLongBytes);
    EXPECT_TRUE(turns_until([&] { return all_ended(); }, kPatience));
    for (size_t i = 0; i < calls_count; i++) EXPECT_EQ(calls[i].code, Code::kOk);
    // Earlier sessions may have opened late, at this server.
    for (const Session& each : {first, wide, paced, last}) (void)client->destroy_session(each);
    EXPECT_TRUE(turns_until([&] { return census(*client).client_sessions == 0; }, kPatience));
    EXPECT_TRUE(turns_until([&] { return census(*server).server_sessions == 0; }, kPatience));
    EXPECT_TRUE(turns_until([&] { return census(*client).buffers_out + census(*server).buffers_out == 0; }, kPatience));
    client.reset();
    server.reset();
  }
  static rpc::EndpointCore::Census census(Endpoint& endpoint) { return rpc::EndpointCore::of(endpoint).census(); }

  std::unique_ptr<Nexus> server_nexus, client_nexus;  ///< must outlive the endpoints
  std::unique_ptr<Rpc<T>> server, client;
  Session back;
  int nested = 0;
  size_t kept_count = 0, never_count = 0, calls_count = 0;
  std::array<std::optional<Request>, 32> kept, never;
  std::array<Call, kCallsMax> calls;
};

template <class T>
class NoMemory : public ::testing::Test {
 public:
  /// Runs one life after the other, each with the next allocation failing, until a life needs fewer allocations.
  void live_on(bool fails_on) {
    uint64_t lives = 0;
    for (uint64_t at = 1;; at += kStep) {
      SCOPED_TRACE("allocation " + std::to_string(at));
      shortage = {};
      shortage.fails_on = fails_on;
      shortage.fail_at = at;
      auto life = std::make_unique<Life<T>>();
      ASSERT_NO_FATAL_FAILURE(life->make());
      ASSERT_NO_FATAL_FAILURE(life->live());
      if (HasFailure()) return;
      lives++;
      if (shortage.count < at) break;
    }
    shortage = {};
    EXPECT_GT(lives, 20u / kStep);
  }

 private:
#ifdef TERN_IS_SANITIZED
  static constexpr uint64_t kStep = 7;
#else
  // A life over xdp takes 0.1 s in the kernel, and the endpoint's own allocations are the same over all transports.
  static constexpr uint64_t kStep = T::kName == "xdp" ? 7 : T::kName == "verbs" || T::kName == "mlx5" ? 3 : 1;
#endif
};

/// All transports but DPDK, whose device takes 0.1 s to open in each life: see unit/transport/dpdk/no_memory_test.cc.
template <class Chosen, class... T>
struct Choice;
template <class... Chosen>
struct Choice<::testing::Types<Chosen...>> {
  using Types = ::testing::Types<Chosen..., Late>;
};
template <class... Chosen, class T, class... Rest>
struct Choice<::testing::Types<Chosen...>, T, Rest...>
    : Choice<std::conditional_t<T::kName == "dpdk", ::testing::Types<Chosen...>, ::testing::Types<Chosen..., T>>,
             Rest...> {};
template <class... T>
using WithLate = typename Choice<::testing::Types<>, T...>::Types;
using AllTransports = transports::Real::As<WithLate>;
struct AllNames {
  template <class T>
  static std::string GetName(int) {
    return std::is_same_v<T, Late> ? "late_udp" : std::string(T::kName);
  }
};
TYPED_TEST_SUITE(NoMemory, AllTransports, AllNames);

TYPED_TEST(NoMemory, endpoints_live_on_after_each_single_failed_allocation) { this->live_on(false); }
TYPED_TEST(NoMemory, endpoints_live_on_when_each_allocation_and_all_later_ones_fail) { this->live_on(true); }

}  // namespace
}  // namespace tern::rpc_test
