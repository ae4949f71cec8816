// The attacked server, and the honest client beside the attacker. Each is an endpoint with its own thread.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <tern/rpc.h>

#include "attack/hostile.h"

namespace attack {

inline constexpr uint16_t kEcho = 1;
inline constexpr uint16_t kReply = 2;  ///< its response has the length that the request's first four bytes give
inline constexpr uint16_t kKeep = 3;   ///< is never answered
inline constexpr uint16_t kWork = 4;   ///< as kReply, in a worker thread

inline tern::RpcOptions small_memory(tern::RpcOptions options = {}) {
  options.huge_pages = false;
  options.wait = tern::Wait::kBlock;
  return options;
}

/// An endpoint whose loop runs in a thread of its own from run() to the end.
template <class T>
class LiveEndpoint {
 public:
  LiveEndpoint(const std::string& listen, tern::NexusOptions nexus, tern::RpcOptions options) {
    auto made_nexus = tern::Nexus::create(listen, nexus);
    EXPECT_TRUE(made_nexus.ok()) << made_nexus.status().message();
    nexus_ = std::move(*made_nexus);
    auto rpc = tern::Rpc<T>::create(*nexus_, {}, small_memory(options));
    EXPECT_TRUE(rpc.ok()) << rpc.status().message();
    rpc_ = std::move(*rpc);
  }
  ~LiveEndpoint() {
    stop();
    rpc_.reset();
  }
  tern::Rpc<T>& rpc() { return *rpc_; }
  std::string uri() const { return nexus_->uri(); }
  void run() {
    thread_ = std::thread([this] { EXPECT_TRUE(rpc_->run_event_loop().ok()); });
  }
  /// Ends the thread. The caller may use the thread's data afterwards.
  void stop() {
    if (!thread_.joinable()) return;
    rpc_->stop();
    thread_.join();
  }
  /// Runs `f()` in the endpoint's thread and waits for its end.
  void in_loop(std::function<void()> f) {
    std::atomic<bool> is_done = false;
    ASSERT_TRUE(rpc_->post([&] {
                      f();
                      is_done = true;
                      is_done.notify_one();
                    })
                    .ok());
    is_done.wait(false);
  }

 private:
  std::unique_ptr<tern::Nexus> nexus_;
  std::unique_ptr<tern::Rpc<T>> rpc_;
  std::thread thread_;
};

template <class T>
class Server : public LiveEndpoint<T> {
 public:
  explicit Server(tern::RpcOptions options = {}, tern::NexusOptions nexus = {},
                  const std::string& listen = "tern://127.0.0.1:0")
      : LiveEndpoint<T>(listen, nexus, options) {
    auto& rpc = this->rpc();
    const auto answer = [this](tern::Request request, size_t bytes) {
      handled_.fetch_add(1, std::memory_order_relaxed);
      auto room = request.response(bytes);
      if (!room.ok()) return request.fail(1);
      const auto in = request.bytes();
      std::memset(room->data(), 0, room->size());
      if (!in.empty() && !room->empty()) std::memcpy(room->data(), in.data(), std::min(in.size(), room->size()));
      request.respond();
    };
    EXPECT_TRUE(rpc.on_request(kEcho,
                               [answer](tern::Request request) {
                                 const size_t bytes = request.bytes().size();
                                 answer(std::move(request), bytes);
                               })
                    .ok());
    const auto reply = [answer](tern::Request request) {
      uint32_t bytes = 0;
      if (request.bytes().size() >= sizeof(bytes)) std::memcpy(&bytes, request.bytes().data(), sizeof(bytes));
      answer(std::move(request), bytes);
    };
    EXPECT_TRUE(rpc.on_request(kReply, reply).ok());
    EXPECT_TRUE(rpc.on_request(kWork, reply, {.worker = true}).ok());
    EXPECT_TRUE(rpc.on_request(kKeep, [this](tern::Request request) { kept_.push_back(std::move(request)); }).ok());
    this->run();
  }
  ~Server() {
    this->stop();
    kept_.clear();
  }
  /// The number of handlers of kEcho and kReply that have run.
  uint64_t handled() const { return handled_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> handled_{0};
  std::vector<tern::Request> kept_;
};

/// One call and how it ended.
struct Outcome {
  tern::Status status;
  uint16_t app_code = 0;
  std::string response;
};

/// Makes calls on one session, one after another, while the session lives, and counts the losses.
template <class T>
class Honest : public LiveEndpoint<T> {
 public:
  struct Losses {
    uint64_t ok = 0;      ///< calls that succeeded
    uint64_t failed = 0;  ///< calls that failed
    tern::Status first;   ///< status of the first failed call
  };

  /// `listen` is this client's address. It matters because the server's limits are per address.
  explicit Honest(const std::string& server_uri, const std::string& listen = "tern://127.0.0.2:0")
      : LiveEndpoint<T>(listen, {}, {}), server_uri_(server_uri) {
    begin_session();
    this->run();
  }
  ~Honest() { this->stop(); }

  /// Waits for the session to open, for at most `patience`. True: it is open.
  bool opens(std::chrono::seconds patience = kPatience) {
    const auto until = Clock::now() + patience;
    while (Clock::now() < until) {
      bool is_open = false;
      this->in_loop([&] { is_open = this->rpc().is_open(session_); });
      if (is_open) return true;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return false;
  }
  /// Keeps one call of `bytes` under way from now on.
  void start_calls(size_t bytes = 32) {
    this->in_loop([this, bytes] {
      is_calling_ = true;
      next_call(bytes);
    });
  }
  /// Starts no more calls, and waits for the end of the last one.
  Losses stop_calls() {
    this->in_loop([this] { is_calling_ = false; });
    const auto until = Clock::now() + kPatience;
    while (has_call_.load() && Clock::now() < until) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_FALSE(has_call_.load()) << "a call that never ends";
    return {ok_.load(), failed_.load(), first_failure_};
  }
  uint64_t ok() const { return ok_.load(); }
  uint64_t failed() const { return failed_.load(); }
  /// Waits until `count` calls have succeeded, one call has failed, or the patience is over.
  bool reaches(uint64_t count) {
    const auto until = Clock::now() + kPatience;
    while (Clock::now() < until && failed_.load() == 0) {
      if (ok_.load() >= count) return true;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return ok_.load() >= count;
  }
  /// Makes one call and waits for its end.
  Outcome ask(uint16_t type, size_t request_bytes, uint32_t response_bytes = 0) {
    Outcome outcome;
    std::atomic<bool> is_done = false;
    this->in_loop([&] {
      auto& rpc = this->rpc();
      tern::MsgBuf request = rpc.alloc_msgbuf(std::max<size_t>(request_bytes, 4));
      tern::MsgBuf room = rpc.alloc_msgbuf(std::max<size_t>(request_bytes, response_bytes) + 4);
      std::memset(request.bytes().data(), 'h', request.bytes().size());
      if (type == kReply) std::memcpy(request.bytes().data(), &response_bytes, sizeof(response_bytes));
      auto id = rpc.enqueue_request(session_, type, std::move(request), std::move(room), [&](tern::Completion& done) {
        outcome.status = done.status;
        outcome.app_code = done.app_code;
        const auto bytes = done.response.bytes();
        if (done.status.ok()) outcome.response.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        is_done = true;
        is_done.notify_one();
      });
      if (!id.ok()) {
        outcome.status = id.status();
        is_done = true;
      }
    });
    is_done.wait(false);
    return outcome;
  }
  tern::EndpointCounters counters() {
    tern::EndpointCounters counters;
    this->in_loop([&] { counters = this->rpc().counters(); });
    return counters;
  }

 private:
  void begin_session() {
    tern::SessionOptions options;
    options.connect_timeout = kPatience;
    auto session = this->rpc().create_session(server_uri_, options);
    EXPECT_TRUE(session.ok()) << session.status().message();
    session_ = *session;
  }
  void next_call(size_t bytes) {
    if (!is_calling_) return;
    auto& rpc = this->rpc();
    has_call_ = true;
    auto id = rpc.enqueue_request(session_, kEcho, rpc.alloc_msgbuf(bytes), rpc.alloc_msgbuf(bytes),
                                  [this, bytes](tern::Completion& done) {
                                    count(done.status);
                                    next_call(bytes);
                                  });
    if (!id.ok()) count(id.status());
  }
  void count(const tern::Status& status) {
    has_call_ = false;
    if (status.ok()) {
      ok_++;
      return;
    }
    if (failed_++ == 0) first_failure_ = status;
    is_calling_ = false;  // all calls of an ended session fail: one of them is enough
  }

  const std::string server_uri_;
  tern::Session session_;
  bool is_calling_ = false;  ///< belongs to the loop's thread
  std::atomic<bool> has_call_ = false;
  std::atomic<uint64_t> ok_ = 0, failed_ = 0;
  tern::Status first_failure_;
};

/// Runs `attack(round)` `count` times, at most about `per_second` times a second, so that the load is the same on fast
/// machines.
template <class Attack>
void at_rate(uint64_t count, uint64_t per_second, Attack&& attack) {
  const auto start = Clock::now();
  for (uint64_t round = 0; round < count; round++) {
    attack(round);
    if (round % 64 == 63)
      std::this_thread::sleep_until(start + std::chrono::microseconds(round * 1'000'000 / per_second));
  }
}

}  // namespace attack
