// The test's own endpoint. It makes calls and remembers how each ended, and how often.
// One thread, which runs the loop.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "e2e/any_rpc.h"
#include "e2e/peer.h"
#include "e2e/traffic.h"

namespace e2e {

/// The default address of the tests' own endpoints, as "listen=tern://10.77.0.1:0 device=rxe0".
inline constexpr const char* kCallerDefaults = "TERN_E2E_CALLER";

inline std::unique_ptr<tern::Nexus> create_nexus(const Settings& given = {}) {
  const Settings settings = given.with_defaults_of(kCallerDefaults);
  tern::NexusOptions options;
  options.liveness_timeout = std::chrono::milliseconds(settings.number("liveness_ms", 500));
  auto nexus = tern::Nexus::create(settings.text("listen", "tern://127.0.0.1:0"), options);
  EXPECT_TRUE(nexus.ok()) << nexus.status().message();
  return nexus.ok() ? std::move(*nexus) : nullptr;
}

/// A call that was accepted.
struct Call {
  tern::CallId id;
  uint64_t order_id = 0;
  uint32_t reply_bytes = 0;
  int ends = 0;               ///< how often its continuation ran
  uint64_t ended_as_nth = 0;  ///< its place among the ended calls of its Caller, from 1
  tern::Status status;
  uint16_t app_code = 0;
  tern::MsgBuf request, response;

  tern::Code code() const { return status.code(); }
  bool is_ok() const { return ends == 1 && status.ok(); }
  /// Returns the buffers to the endpoint.
  void forget() {
    request = tern::MsgBuf();
    response = tern::MsgBuf();
  }
};

class Caller {
 public:
  /// Makes an endpoint with a Nexus of its own.
  explicit Caller(const Settings& settings) : own_nexus_(create_nexus(settings)) { begin(*own_nexus_, settings, 0); }
  Caller(tern::Nexus& nexus, const Settings& settings, uint16_t endpoint_id) { begin(nexus, settings, endpoint_id); }
  /// Checks that every accepted call has ended once.
  ~Caller() {
    rpc_.reset();
    for (const auto& call : calls_) EXPECT_EQ(call->ends, 1);
  }

  tern::Endpoint& endpoint() { return rpc_->endpoint(); }
  AnyRpc& rpc() { return *rpc_; }
  tern::Nexus& nexus() { return *own_nexus_; }
  const tern::EndpointCounters& counters() { return endpoint().counters(); }
  uint64_t ended() const { return ended_; }
  uint64_t ended_ok() const { return ended_ok_; }
  const std::deque<std::unique_ptr<Call>>& calls() const { return calls_; }

  tern::Session connect(const std::string& uri, tern::SessionOptions options = {}) {
    auto session = endpoint().create_session(uri, options);
    EXPECT_TRUE(session.ok()) << session.status().message();
    return session.ok() ? *session : tern::Session();
  }
  /// Makes a session and waits until it is open.
  tern::Session open(const std::string& uri, tern::SessionOptions options = {}) {
    options.connect_timeout = kBound;
    const tern::Session session = connect(uri, options);
    EXPECT_TRUE(run_until([&] { return endpoint().is_open(session); })) << "the session does not open";
    return session;
  }

  /// Makes a call with any request and a response buffer of `room_bytes`. Null: it was refused, and `refusal` says why.
  Call* send(tern::Session session, uint16_t type, tern::MsgBuf request, size_t room_bytes,
             tern::CallOptions options = {}) {
    tern::MsgBuf room = endpoint().alloc_msgbuf(room_bytes);
    EXPECT_TRUE(request && room) << "no memory";
    auto call = std::make_unique<Call>();
    auto accepted = endpoint().enqueue_request(
        session, type, std::move(request), std::move(room),
        [this, to = call.get()](tern::Completion& done) { on_end(*to, done); }, options);
    if (!accepted.ok()) {
      refusal = accepted.status();
      EXPECT_TRUE(request && room) << "a refused call keeps its buffers";
      return nullptr;
    }
    EXPECT_TRUE(!request && !room) << "an accepted call has taken its buffers";
    call->id = *accepted;
    calls_.push_back(std::move(call));
    return calls_.back().get();
  }
  Call* send_order(tern::Session session, uint16_t type, const Order& order, size_t request_bytes = sizeof(Order),
                   tern::CallOptions options = {}) {
    tern::MsgBuf request = endpoint().alloc_msgbuf(request_bytes);
    EXPECT_TRUE(request);
    if (!request) return nullptr;
    write_order(request.bytes(), order);
    Call* call = send(session, type, std::move(request), order.reply_bytes, options);
    if (call != nullptr) {
      call->order_id = order.id;
      call->reply_bytes = order.reply_bytes;
    }
    return call;
  }
  /// Makes a call with a pattern of `bytes` and a response buffer of the same length.
  Call* send_pattern(tern::Session session, uint16_t type, size_t bytes, uint64_t seed,
                     tern::CallOptions options = {}) {
    tern::MsgBuf request = endpoint().alloc_msgbuf(bytes);
    EXPECT_TRUE(request);
    if (!request) return nullptr;
    fill(request.bytes(), seed);
    return send(session, type, std::move(request), bytes, options);
  }

  /// Runs the loop until `is_true()`. False after kBound.
  template <class F>
  bool run_until(F&& is_true, std::chrono::nanoseconds bound = kBound) {
    const auto until = std::chrono::steady_clock::now() + bound;
    while (!is_true()) {
      if (std::chrono::steady_clock::now() > until) return false;
      if (tern::Status status = rpc_->run(std::chrono::milliseconds(1)); !status.ok()) {
        ADD_FAILURE() << status.message();
        return false;
      }
    }
    return true;
  }
  void run_for(std::chrono::nanoseconds duration) {
    const tern::Status status = rpc_->run(duration);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  /// Runs until every call has ended.
  bool finish() {
    return run_until([&] { return ended_ == calls_.size(); });
  }
  /// Runs the loop until `call` has ended, and returns its status. kOk means success only.
  tern::Code end_of(Call* call) {
    if (call == nullptr) return refusal.code();
    if (!run_until([&] { return call->ends != 0; })) {
      ADD_FAILURE() << "the call does not end";
      return tern::Code::kMisuse;
    }
    return call->code();
  }
  /// Cancels `call` unless it has ended. A call whose continuation only waits for its buffers has ended, too (kMisuse).
  void cancel(Call* call) {
    const tern::Status status = endpoint().cancel(call->id);
    EXPECT_TRUE(status.ok() || status.code() == tern::Code::kMisuse) << status.message();
  }
  /// True: the response is the one that the order asked for.
  static bool is_right(const Call& call) {
    return call.is_ok() && call.response.bytes().size() == call.reply_bytes &&
           is_filled(call.response.bytes(), ~call.order_id);
  }

  tern::Status refusal;

 private:
  void begin(tern::Nexus& its_nexus, const Settings& settings, uint16_t endpoint_id) {
    auto rpc = create_rpc(its_nexus, settings.with_defaults_of(kCallerDefaults), endpoint_id);
    if (!rpc.ok()) throw std::runtime_error("no endpoint: " + std::string(rpc.status().message()));
    rpc_ = std::move(*rpc);
  }
  void on_end(Call& call, tern::Completion& done) {
    call.ends++;
    call.ended_as_nth = ++ended_;
    call.status = done.status;
    call.app_code = done.app_code;
    if (done.status.ok()) ended_ok_++;
    EXPECT_TRUE(done.request && done.response) << "the completion has both buffers";
    call.request = std::move(done.request);
    call.response = std::move(done.response);
  }

  std::deque<std::unique_ptr<Call>> calls_;
  uint64_t ended_ = 0, ended_ok_ = 0;
  std::unique_ptr<tern::Nexus> own_nexus_;
  std::unique_ptr<AnyRpc> rpc_;
};

/// A fixture whose cases run over every transport.
class OverTransports : public testing::TestWithParam<const char*> {
 protected:
  /// The settings of a caller or a peer of this case.
  Settings settings() const { return {{"transport", GetParam()}}; }
  /// True: packets do not pass through the kernel.
  bool is_shm() const { return std::string_view(GetParam()) == "shm"; }
  /// The name of another transport.
  std::string other_transport() const {
    const auto names = transports();
    return names[0] == std::string_view(GetParam()) ? names[1] : names[0];
  }
};

}  // namespace e2e

#define E2E_OVER_TRANSPORTS(suite)                                            \
  INSTANTIATE_TEST_SUITE_P(Over, suite, testing::ValuesIn(e2e::transports()), \
                           [](const auto& with) { return std::string(with.param); })
