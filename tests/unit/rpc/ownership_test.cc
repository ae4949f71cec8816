// Promise 2: when a continuation runs, its buffers are no longer in use. Both ends are on transports that read message
// memory late (Held), and some also lose and delay packets (Faulty). Every continuation overwrites both buffers at
// once, every handler checks its request, and every client checks its response.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <tern/transport/faulty.h>

#include "software_verbs/control.h"
#include "unit/rpc/rpc_world.h"
#include "unit/transport/held.h"

namespace tern {
struct Mlx5;  // these are in transports::Real if they are built
struct Verbs;
}  // namespace tern

namespace tern::rpc_test {
namespace {

constexpr size_t kIdBytes = 8;

constexpr size_t kMessageBytesMax = 120'000;
/// A prime, so that messages in use at the same time differ. Less than a packet's payload, so that a packet in the
/// place of another one differs, too.
constexpr size_t kStarts = 509;

/// Bytes at random. None is 0xEE or 0xDD, which fill overwritten buffers.
std::vector<std::byte> random_text() {
  std::mt19937 random(1);
  std::vector<std::byte> text(kStarts + kMessageBytesMax);
  for (std::byte& byte : text) byte = static_cast<std::byte>(random() % 0xdd);
  return text;
}
/// The bytes of message `id`: a part of the random text, from another start for each id. memcpy() and memcmp() of whole
/// messages are fast at -O0, and sanitizers check each byte of them.
const std::byte* text_of_message(uint64_t id) {
  static const std::vector<std::byte> text = random_text();
  return text.data() + id % kStarts;
}

void write_message(std::span<std::byte> bytes, uint64_t id) {
  ASSERT_LE(bytes.size(), kMessageBytesMax);
  std::memcpy(bytes.data(), text_of_message(id), bytes.size());
  std::memcpy(bytes.data(), &id, std::min(kIdBytes, bytes.size()));
}
/// Returns the message's id; nothing: the bytes are no message, or it is torn.
std::optional<uint64_t> read_message(std::span<const std::byte> bytes) {
  uint64_t id = 0;
  if (bytes.size() < kIdBytes || bytes.size() > kMessageBytesMax) return std::nullopt;
  std::memcpy(&id, bytes.data(), kIdBytes);
  const std::byte* text = text_of_message(id);
  if (std::memcmp(bytes.data() + kIdBytes, text + kIdBytes, bytes.size() - kIdBytes) != 0) return std::nullopt;
  return id;
}

/// The handler's action on a request.
enum Action : uint16_t {
  kAnswer = 10,
  kAnswerLater,
  kAnswerWithMsgBuf,
  kAnswerWithShared,
  kRefuse,
  kKeep,
  kForward,
  kWork
};

template <class T>
struct Setting {
  using Transport = T;
  static constexpr bool kIsFaulty = false;
  /// The device below both ends, for the duration of a test.
  struct Device {
    static bool is_here() { return true; }
  };
};

// A call's packets are held for many iterations. With a delay target of 30 us the sessions would send some tens of
// packets a second where an iteration takes long, as under ThreadSanitizer.
template <class Inner>
struct HeldOver : Setting<Held<Inner>> {
  static std::string name() { return "held_" + std::string(Inner::kName); }
  static typename Held<Inner>::Options options(uint64_t) {
    return {.inner = patient<typename Inner::Options>(), .hold_flushes = 7, .hold_time = {}};
  }
};
template <class Inner>
struct HeldFaulty : Setting<Held<Faulty<Inner>>> {
  static std::string name() { return "held_faulty_" + std::string(Inner::kName); }
  static constexpr bool kIsFaulty = true;
  using Options = typename Held<Faulty<Inner>>::Options;
  static Options options(uint64_t seed) {
    Options options;
    options.hold_flushes = 0;
    options.hold_time = microseconds(200);
    options.inner.inner = patient<typename Inner::Options>();
    options.inner.drop = 0.03;
    options.inner.duplicate = 0.05;
    options.inner.reorder = 0.1;
    options.inner.delay = 0.2;  // longer than a retransmission timeout, so that answers arrive during a retransmission
    options.inner.delay_max = milliseconds(5);
    options.inner.seed = seed;
    return options;
  }
};

/// The NIC holds sends or their completions, some of them for longer than a retransmission timeout, and loses some
/// packets. Requests are therefore answered, and end, while a retransmission waits in its queue. eRPC flushes the queue
/// in this situation (4.2.2).
template <class Nic, software_verbs::Hold kHold>
struct HeldByNic : Setting<Nic> {
  static constexpr bool kIsFaulty = true;
  static std::string name() {
    return std::string(Nic::kName) + "_nic_holds_" + (kHold == software_verbs::Hold::kSends ? "sends" : "completions");
  }
  static typename Nic::Options options(uint64_t) { return patient<typename Nic::Options>(); }

  /// Releases some sends of each queue pair repeatedly.
  class Device {
   public:
    Device() : control_(*software_verbs::control()) {
      control_.reset();
      control_.hold(kHold);
      control_.drop_packets(29);
      thread_ = std::thread([this] { run(); });
    }
    ~Device() {
      is_over_ = true;
      thread_.join();
      software_verbs::Counters counters;
      control_.read_counters(&counters);
      control_.reset();
      EXPECT_GT(counters.sends, 0u);
      EXPECT_EQ(counters.modified_sends, 0u) << "memory of a send that had not completed";
      EXPECT_EQ(counters.address_handles_gone, 0u);
    }
    static bool is_here() { return software_verbs::control() != nullptr; }

   private:
    void run() {
      std::mt19937 random(7);
      while (!is_over_) {
        std::this_thread::sleep_for(microseconds(random() % 8 == 0 ? 3'000 : random() % 300));
        control_.release(0, 1 + random() % 64);
      }
    }

    const software_verbs::Control& control_;
    std::atomic<bool> is_over_{false};
    std::thread thread_;
  };
};

struct SettingNames {
  template <class S>
  static std::string GetName(int) {
    return S::name();
  }
};

template <class S>
class Ownership : public ::testing::Test {
 protected:
  using T = typename S::Transport;
  struct Call {
    uint64_t id;
    CallId name;
    int runs = 0;
    Code code = Code::kOk;
  };

  void SetUp() override {
    if (!S::Device::is_here()) GTEST_SKIP() << "not over the software verbs provider";
    device.emplace();
    NexusOptions nexus;
    nexus.liveness_timeout = seconds(5);
    ASSERT_NO_FATAL_FAILURE(world.make(nexus, {}, {}, S::options(1), S::options(2)));
    auto& server = *world.server;
    auto check = [this](const Request& request) {
      const auto id = read_message(request.bytes());
      if (!id) torn_requests++;
      requests_seen++;
      return id.value_or(0);
    };
    auto answer = [](Request request, uint64_t id, size_t bytes) {
      auto room = request.response(bytes);
      if (!room.ok()) return request.fail(1);
      write_message(*room, ~id);
      request.respond();
    };
    ASSERT_TRUE(server
                    .on_request(kAnswer,
                                [=](Request request) {
                                  const uint64_t id = check(request);
                                  const size_t bytes = id % 2 == 0 ? request.bytes().size() : 40;
                                  answer(std::move(request), id, bytes);
                                })
                    .ok());
    ASSERT_TRUE(server
                    .on_request(kAnswerLater,
                                [=, this](Request request) {
                                  const uint64_t id = check(request);
                                  kept.push_back({std::move(request), id});
                                })
                    .ok());
    ASSERT_TRUE(server
                    .on_request(kAnswerWithMsgBuf,
                                [=, this](Request request) {
                                  const uint64_t id = check(request);
                                  MsgBuf reply = world.server->alloc_msgbuf(request.bytes().size());
                                  write_message(reply.bytes(), ~id);
                                  request.respond(std::move(reply));
                                })
                    .ok());
    ASSERT_TRUE(server
                    .on_request(kAnswerWithShared,
                                [=, this](Request request) {
                                  const uint64_t id = check(request);
                                  MsgBuf reply = world.server->alloc_msgbuf(request.bytes().size());
                                  write_message(reply.bytes(), ~id);
                                  shared.emplace_back(std::move(reply));
                                  request.respond(shared.back());
                                })
                    .ok());
    ASSERT_TRUE(server
                    .on_request(kRefuse,
                                [=](Request request) {
                                  check(request);
                                  request.fail(5);
                                })
                    .ok());
    ASSERT_TRUE(server
                    .on_request(kKeep,
                                [=, this](Request request) {
                                  const uint64_t id = check(request);
                                  silent.push_back({std::move(request), id});
                                })
                    .ok());
    ASSERT_TRUE(server
                    .on_request(kForward,
                                [=, this](Request request) {
                                  check(request);
                                  forward(std::move(request));
                                })
                    .ok());
    ASSERT_TRUE(world.client
                    ->on_request(kAnswer,
                                 [=](Request request) {
                                   const uint64_t id = check(request);
                                   const size_t bytes = request.bytes().size();
                                   answer(std::move(request), id, bytes);
                                 })
                    .ok());
    ASSERT_TRUE(server
                    .on_request(kWork,
                                [=, this](Request request) {
                                  std::optional<uint64_t> id;
                                  for (int i = 0; i < 5; i++) {  // the client may give up the call meanwhile
                                    id = read_message(request.bytes());
                                    if (!id) torn_in_worker++;
                                    std::this_thread::yield();
                                  }
                                  const size_t bytes = request.bytes().size();
                                  answer(std::move(request), id.value_or(0), bytes);
                                },
                                {.worker = true})
                    .ok());
    session = world.open({.window = 8});
  }
  void TearDown() override {
    kept.clear();
    silent.clear();
    world.client.reset();
    world.server.reset();
    for (const auto& call : calls) EXPECT_EQ(call->runs, 1) << call->id;
    EXPECT_EQ(torn_requests, 0);
    EXPECT_EQ(torn_responses, 0);
    EXPECT_EQ(torn_kept, 0);
    EXPECT_EQ(torn_in_worker, 0);
  }
  /// The server calls the client's endpoint, and answers with the response without a copy.
  void forward(Request request) {
    auto& server = *world.server;
    if (!onward) {
      auto made = server.create_session(world.client_nexus->uri());
      ASSERT_TRUE(made.ok()) << made.status().message();
      onward = *made;
    }
    const auto bytes = request.bytes();
    MsgBuf query = server.alloc_msgbuf(bytes.size()), room = server.alloc_msgbuf(bytes.size());
    ASSERT_TRUE(query && room);
    std::ranges::copy(bytes, query.bytes().begin());
    auto id = server.enqueue_request(*onward, kAnswer, std::move(query), std::move(room),
                                     [request = std::move(request)](Completion& done) mutable {
                                       if (!done.status.ok()) return request.fail(7);
                                       overwrite(done.request, std::byte{0xee});
                                       request.respond(std::move(done.response));
                                     });
    ASSERT_TRUE(id.ok()) << id.status().message();
  }

  size_t random_bytes() {
    switch (random() % 8) {
      case 0:
        return kIdBytes;
      case 1:
        return 5'000 + random() % 100'000;
      case 2:
        return 1'000 + random() % 1'000;
      default:
        return kIdBytes + random() % 60;
    }
  }
  /// Starts a call. Null: the call was refused.
  Call* start(uint16_t type, size_t bytes, size_t room_bytes, CallOptions options = {}) {
    auto& client = *world.client;
    MsgBuf request = client.alloc_msgbuf(bytes), room = client.alloc_msgbuf(room_bytes);
    EXPECT_TRUE(request && room);
    auto call = std::make_unique<Call>();
    call->id = ++last_id;
    write_message(request.bytes(), call->id);
    auto id = client.enqueue_request(
        session, type, std::move(request), std::move(room),
        [this, call = call.get()](Completion& done) {
          call->runs++;
          call->code = done.status.code();
          if (done.status.ok() && read_message(done.response.bytes()) != ~call->id) torn_responses++;
          if (read_message(done.request.bytes()) != call->id) torn_requests++;
          overwrite(done.request, std::byte{0xee});
          overwrite(done.response, std::byte{0xdd});
          if (call->id % 2 == 0)
            reused.push_back(std::move(done.request));  // otherwise the next allocation gets its block
        },
        options);
    if (!id.ok()) return nullptr;
    call->name = *id;
    calls.push_back(std::move(call));
    return calls.back().get();
  }
  static void overwrite(MsgBuf& buffer, std::byte value) {
    EXPECT_TRUE(buffer);
    EXPECT_TRUE(buffer.resize(buffer.capacity()));
    std::memset(buffer.bytes().data(), static_cast<int>(value), buffer.bytes().size());
  }
  void turn() {
    // Sometimes one side is slow, and reads packets late that the other side has sent and given up meanwhile.
    const uint32_t alone = random() % 4;
    for (uint32_t i = random() % 6; i != 0 && alone < 2; i--) {
      auto packets = alone == 0 ? world.client->run_event_loop_once() : world.server->run_event_loop_once();
      ASSERT_TRUE(packets.ok() || packets.status().code() == Code::kSessionReset);
    }
    world.turn();
    for (auto& [request, id] : kept) {
      if (read_message(request.bytes()) != id) torn_kept++;
      auto room = request.response(request.bytes().size());
      if (!room.ok()) continue;
      write_message(*room, ~id);
      request.respond();
    }
    kept.clear();
    for (auto& [request, id] : silent) {
      if (read_message(request.bytes()) != id) torn_kept++;
    }
    std::erase_if(silent, [](auto& entry) { return entry.first.is_cancelled(); });
    if (reused.size() > 20) reused.clear();
    std::erase_if(shared, [&](SharedBuf& buffer) {
      MsgBuf home = buffer.take();  // empty as long as the library has the buffer
      if (home) overwrite(home, std::byte{0xee});
      return home || random() % 16 == 0;
    });
  }
  void turns(size_t count) {
    for (size_t i = 0; i < count; i++) turn();
  }
  void finish_all() {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    for (const auto& call : calls) {
      while (call->runs == 0) {
        turn();
        ASSERT_FALSE(HasFatalFailure());
        ASSERT_LT(std::chrono::steady_clock::now(), until) << "call " << call->id << " never ended";
      }
    }
  }
  void expect_codes(std::set<Code> expected) {
    for (const auto& call : calls) {
      EXPECT_TRUE(expected.contains(call->code)) << call->id << ": " << static_cast<int>(call->code);
    }
  }
  uint16_t random_answering_type() {
    return std::array<uint16_t, 4>{kAnswer, kAnswerLater, kAnswerWithMsgBuf, kAnswerWithShared}[random() % 4];
  }

  int torn_requests = 0, torn_responses = 0, torn_kept = 0, requests_seen = 0;
  std::atomic<int> torn_in_worker{0};
  uint64_t last_id = 0;
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<MsgBuf> reused;
  std::vector<SharedBuf> shared;  ///< answers
  std::vector<std::pair<Request, uint64_t>> kept, silent;
  std::mt19937 random{42};
  std::optional<typename S::Device> device;
  World<T> world;
  Session session;
  std::optional<Session> onward;  ///< the server's session to the client's endpoint
};

/// Over a NIC, the provider may also hold sends.
template <class T>
auto settings_of() {
  if constexpr (std::is_same_v<T, Verbs> || std::is_same_v<T, Mlx5>) {
    return ::testing::Types<HeldOver<T>, HeldFaulty<T>, HeldByNic<T, software_verbs::Hold::kSends>,
                            HeldByNic<T, software_verbs::Hold::kCompletions>>();
  } else {
    return ::testing::Types<HeldOver<T>, HeldFaulty<T>>();
  }
}
template <class... A, class... B>
::testing::Types<A..., B...> operator+(::testing::Types<A...>, ::testing::Types<B...>);
template <class... T>
struct All {
  using Types = decltype((settings_of<T>() + ...));
};
using Settings = transports::Real::As<All>::Types;
TYPED_TEST_SUITE(Ownership, Settings, SettingNames);

constexpr int kCalls = 150;

TYPED_TEST(Ownership, ok__after_retransmissions_where_there_are_faults) {
  for (int i = 0; i < 2 * kCalls; i++) {
    const size_t bytes = this->random_bytes();
    this->start(this->random_answering_type(), bytes, std::max<size_t>(bytes, 64));
    this->turns(this->random() % 10);
  }
  ASSERT_NO_FATAL_FAILURE(this->finish_all());
  this->expect_codes({Code::kOk});
  EXPECT_EQ(this->requests_seen, 2 * kCalls) << "at most once";
  if constexpr (TypeParam::kIsFaulty) {
    EXPECT_GT(this->world.client->counters().retransmissions, 0u);
  }
}

/// A server has no timers: the held packets of its transport are the only reason to run its loop, because no other
/// packet arrives.
template <class T>
class HeldForIterations : public Ownership<T> {};
template <class... T>
using OnlyHeld = ::testing::Types<HeldOver<T>...>;
using HeldSettings = transports::Real::As<OnlyHeld>;
TYPED_TEST_SUITE(HeldForIterations, HeldSettings, SettingNames);

TYPED_TEST(HeldForIterations, next_due__is_now_while_packets_are_held) {
  this->start(kAnswer, 40, 64);
  while (this->requests_seen == 0) this->turns(1);
  auto& server = *this->world.server;
  int iterations = 0;
  while (server.next_due() <= server.now() && iterations < 1000) {
    ASSERT_TRUE(server.run_event_loop_once().ok());
    iterations++;
  }
  EXPECT_GE(iterations, 5);
  ASSERT_NO_FATAL_FAILURE(this->finish_all());
  this->expect_codes({Code::kOk});
}

TYPED_TEST(Ownership, refused_calls_return_both_buffers) {
  for (int i = 0; i < kCalls; i++) {
    this->start(kRefuse, this->random_bytes(), 64);
    this->start(this->random_answering_type(), 40, 64);
    this->turns(this->random() % 4);
  }
  ASSERT_NO_FATAL_FAILURE(this->finish_all());
  this->expect_codes({Code::kOk, Code::kRefused});
}

TYPED_TEST(Ownership, too_large_responses_return_both_buffers) {
  for (int i = 0; i < kCalls; i++) {
    this->start(kAnswerWithMsgBuf, 1'000 + this->random_bytes(), 64);
    this->start(kAnswer, 40, 64);
    this->turns(this->random() % 4);
  }
  ASSERT_NO_FATAL_FAILURE(this->finish_all());
  this->expect_codes({Code::kOk, Code::kTooLarge});
}

TYPED_TEST(Ownership, cancelled_calls_return_both_buffers) {
  for (int i = 0; i < 2 * kCalls; i++) {
    const size_t bytes = this->random_bytes();
    auto* call = this->start(this->random() % 2 == 0 ? static_cast<uint16_t>(kKeep) : this->random_answering_type(),
                             bytes, std::max<size_t>(bytes, 64));
    ASSERT_NE(call, nullptr);
    this->turns(this->random() % 12);
    // Sometimes the victim is an older call, and the newest one has just been sent.
    auto& victim = this->random() % 2 == 0 ? *call : *this->calls[this->random() % this->calls.size()];
    const int runs = victim.runs;
    (void)this->world.client->cancel(victim.name);
    EXPECT_EQ(victim.runs, runs);
  }
  for (auto& call : this->calls) (void)this->world.client->cancel(call->name);
  ASSERT_NO_FATAL_FAILURE(this->finish_all());
  this->expect_codes({Code::kOk, Code::kCancelled});
  this->calls.clear();
  this->start(kAnswer, 40, 64);
  ASSERT_NO_FATAL_FAILURE(this->finish_all());
  this->expect_codes({Code::kOk});
}

TYPED_TEST(Ownership, calls_past_their_deadline_return_both_buffers) {
  for (int i = 0; i < kCalls; i++) {
    const size_t bytes = this->random_bytes();
    this->start(this->random() % 2 == 0 ? static_cast<uint16_t>(kKeep) : this->random_answering_type(), bytes,
                std::max<size_t>(bytes, 64), {.deadline = microseconds(this->random() % 1000)});
    this->turns(this->random() % 4);
  }
  ASSERT_NO_FATAL_FAILURE(this->finish_all());
  this->expect_codes({Code::kOk, Code::kDeadline});
}

TYPED_TEST(Ownership, destroyed_session_returns_both_buffers) {
  for (int round = 0; round < 12; round++) {
    for (int i = 0; i < 15; i++) {
      const size_t bytes = this->random_bytes();
      this->start(i % 3 == 0 ? static_cast<uint16_t>(kKeep) : this->random_answering_type(), bytes,
                  std::max<size_t>(bytes, 64));
      this->turns(this->random() % 3);
    }
    ASSERT_TRUE(this->world.client->destroy_session(this->session).ok());
    this->turns(this->random() % 20);
    this->session = this->world.open({.window = 8});
  }
  ASSERT_TRUE(this->world.client->destroy_session(this->session).ok());
  ASSERT_NO_FATAL_FAILURE(this->finish_all());
  this->expect_codes({Code::kOk, Code::kCancelled});
}

TYPED_TEST(Ownership, closed_peer_returns_both_buffers) {
  for (int i = 0; i < 40; i++) {
    const size_t bytes = this->random_bytes();
    this->start(i % 3 == 0 ? static_cast<uint16_t>(kKeep) : this->random_answering_type(), bytes,
                std::max<size_t>(bytes, 64));
    this->turns(this->random() % 3);
  }
  ASSERT_TRUE(this->world.server->close(seconds(0)).ok());
  ASSERT_NO_FATAL_FAILURE(this->finish_all());
  this->expect_codes({Code::kOk, Code::kSessionReset});
}

TYPED_TEST(Ownership, silent_peer_returns_both_buffers) {
  // Only the client runs from here on.
  NexusOptions nexus;
  nexus.liveness_timeout = milliseconds(100);
  World<typename TypeParam::Transport> impatient;
  ASSERT_NO_FATAL_FAILURE(impatient.make(nexus, {}, {}, TypeParam::options(3), TypeParam::options(4)));
  const Session silent_session = impatient.open();
  struct Outcome {
    int runs = 0;
    Code code = Code::kOk;
  };
  std::vector<Outcome> outcomes(20);
  for (auto& outcome : outcomes) {
    MsgBuf request = impatient.client->alloc_msgbuf(3'000);
    write_message(request.bytes(), 1);
    auto id =
        impatient.client->enqueue_request(silent_session, kEcho, std::move(request),
                                          impatient.client->alloc_msgbuf(10'000), [&outcome, this](Completion& done) {
                                            outcome.runs++;
                                            outcome.code = done.status.code();
                                            this->overwrite(done.request, std::byte{0xee});
                                          });
    ASSERT_TRUE(id.ok());
  }
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (std::ranges::any_of(outcomes, [](auto& o) { return o.runs == 0; })) {
    ASSERT_TRUE(impatient.client->run_event_loop_once().ok());
    ASSERT_LT(std::chrono::steady_clock::now(), until);
  }
  for (auto& outcome : outcomes) {
    EXPECT_EQ(outcome.runs, 1);
    EXPECT_EQ(outcome.code, Code::kPeerUnreachable);
  }
  // The server reads the packets sent meanwhile. No request is torn, and none belongs to a dead session.
  for (int i = 0; i < 2000; i++) ASSERT_TRUE(impatient.server->run_event_loop_once().ok());
}

TYPED_TEST(Ownership, closed_endpoint_returns_buffers_of_calls_in_flight) {
  for (int i = 0; i < 60; i++) {
    const size_t bytes = this->random_bytes();
    this->start(i % 3 == 0 ? static_cast<uint16_t>(kKeep) : this->random_answering_type(), bytes,
                std::max<size_t>(bytes, 64));
    this->turns(this->random() % 3);
  }
  ASSERT_TRUE(this->world.client->close(seconds(0)).ok());
  for (const auto& call : this->calls) EXPECT_EQ(call->runs, 1) << "all run inside close()";
  this->expect_codes({Code::kOk, Code::kCancelled});
  for (int i = 0; i < 200; i++) ASSERT_TRUE(this->world.server->run_event_loop_once().ok());
}

TYPED_TEST(Ownership, nested_calls_may_forward_the_response_buffer) {
  for (int i = 0; i < 2 * kCalls; i++) {
    const size_t bytes = this->random_bytes();
    auto* call = this->start(kForward, bytes, bytes);
    ASSERT_NE(call, nullptr);
    this->turns(this->random() % 8);
    if (this->random() % 4 == 0) (void)this->world.client->cancel(call->name);
  }
  ASSERT_NO_FATAL_FAILURE(this->finish_all());
  this->expect_codes({Code::kOk, Code::kCancelled});
  EXPECT_TRUE(std::ranges::any_of(this->calls, [](auto& call) { return call->code == Code::kOk; }));
}

TYPED_TEST(Ownership, worker_handlers_keep_all_ownership_rules) {
  for (int i = 0; i < kCalls; i++) {
    const size_t bytes = this->random_bytes();
    auto* call = this->start(kWork, bytes, bytes);
    ASSERT_NE(call, nullptr);
    this->turns(this->random() % 8);
    if (this->random() % 4 == 0) (void)this->world.client->cancel(call->name);
  }
  ASSERT_NO_FATAL_FAILURE(this->finish_all());
  this->expect_codes({Code::kOk, Code::kCancelled});
  EXPECT_TRUE(std::ranges::any_of(this->calls, [](auto& call) { return call->code == Code::kOk; }));
}

TYPED_TEST(Ownership, all_endings_at_once_return_both_buffers) {
  for (int i = 0; i < 4 * kCalls; i++) {
    const size_t bytes = this->random_bytes();
    const auto type = static_cast<uint16_t>(kAnswer + this->random() % 5);
    CallOptions options;
    if (type == kKeep || this->random() % 4 == 0) options.deadline = microseconds(this->random() % 3000);
    this->start(type, bytes, this->random() % 8 == 0 ? 16 : std::max<size_t>(bytes, 64), options);
    if (this->random() % 4 == 0)
      (void)this->world.client->cancel(this->calls[this->random() % this->calls.size()]->name);
    if (this->random() % 50 == 0) {
      ASSERT_TRUE(this->world.client->destroy_session(this->session).ok());
      this->session = this->world.open({.window = static_cast<uint8_t>(1 + this->random() % 20)});
    }
    this->turns(this->random() % 6);
  }
  ASSERT_NO_FATAL_FAILURE(this->finish_all());
  this->expect_codes({Code::kOk, Code::kCancelled, Code::kDeadline, Code::kRefused, Code::kTooLarge});
}

}  // namespace
}  // namespace tern::rpc_test
