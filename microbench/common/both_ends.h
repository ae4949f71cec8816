// Both endpoints of small RPCs in one thread, whose loops alternate: for callgrind, and to measure the rate of one
// thread that does all the work. The client's cost, including the application's code, is under client_loop(), and the
// server's cost is under server_loop(). All earlier work is the same for every --rpcs, so the difference between two
// run lengths is the cost of their RPCs. Include this file only once in a program, like driver.h.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../../apps/common/report.h"
#include "../../apps/common/sides.h"
#include "driver.h"

// callgrind needs these names, so they are not templates; each makes one indirect call. The empty asm prevents the
// compiler from making that call a jump, which would hide the name.
extern "C" [[gnu::noinline]] inline void client_loop(void (*iterate)(void*), void* self) {
  iterate(self);
  asm volatile("" ::: "memory");
}
extern "C" [[gnu::noinline]] inline void server_loop(void (*iterate)(void*), void* self) {
  iterate(self);
  asm volatile("" ::: "memory");
}

namespace microbench {
namespace {  // so that the compiler inlines as in any program

constexpr uint16_t kAdd = 1;
constexpr tern::Duration kPatience = std::chrono::seconds(30);  // callgrind is fifty times slower

struct Workload {
  bool walks = false;  ///< an answered call is followed by one on the session whose turn it is, not on its own session
  bool has_deadlines = false;  ///< each call has the deadline that the constructor gets
  bool keeps = false;          ///< handlers keep their requests, which are answered after the iteration
};

template <tern::Transport T, Workload kWorkload = Workload{}>
class BothEnds {
 public:
  explicit BothEnds(tern::Duration deadline = tern::Duration::max()) : deadline_(deadline) {}
  /// Runs the whole program. Returns its exit code.
  int run(const char* bench, const nlohmann::json& params = nlohmann::json::object()) {
    if (const tern::Status status = create(); !status.ok()) return programs::fail_with("no endpoints", status);
    if (const int code = open_sessions(); code != 0) return code;
    left_ = FLAGS_rpcs;
    const auto begin = std::chrono::steady_clock::now();
    const uint64_t first = std::min<uint64_t>(FLAGS_window, left_);
    for (uint32_t i = 0; i < first; ++i) issue(calls_[i], std::move(calls_[i].request), std::move(calls_[i].response));
    next_ = first % calls_.size();
    while (completed_ < FLAGS_rpcs && status_.ok()) {
      if (programs::interrupted.load(std::memory_order_relaxed)) return explain_interrupt();
      iterate_both();
    }
    if (!status_.ok()) return programs::fail_with("a call", status_);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (!FLAGS_json) {
      std::printf("%" PRIu64 " RPCs completed\n", completed_);
      return programs::end_output();
    }
    programs::Report report;
    report.bench = bench;
    report.params = programs::common_params();
    report.params.update({{"window", FLAGS_window}, {"sessions", FLAGS_sessions}, {"size", FLAGS_size}});
    report.params.update(params);
    report.metrics["rpcs_completed"] = completed_;
    report.metrics["rate_mrps"] = static_cast<double>(completed_) / seconds.count() / 1e6;
    return programs::print(report);
  }

 private:
  struct Call {
    tern::Session session;
    tern::MsgBuf request;
    tern::MsgBuf response;
    uint64_t value = 0;  ///< grows by one with each answer, so that the client must read the responses
  };

  tern::Status create() {
    tern::NexusOptions options = programs::nexus_options();
    options.liveness_timeout = kPatience;
    auto nexus = tern::Nexus::create("tern://127.0.0.1:0", options);
    if (!nexus.ok()) return nexus.status();
    nexus_ = std::move(*nexus);
    auto server = tern::Rpc<T>::create(*nexus_, programs::transport_options<T>(programs::Role::kServer),
                                       programs::rpc_options(0));
    if (!server.ok()) return server.status();
    server_ = std::move(*server);
    auto client = tern::Rpc<T>::create(*nexus_, programs::transport_options<T>(), programs::rpc_options(1));
    if (!client.ok()) return client.status();
    client_ = std::move(*client);

    tern::Status status;
    if constexpr (kWorkload.keeps) {
      status = server_->on_request(kAdd, [this](tern::Request request) { kept_.push_back(std::move(request)); });
    } else {
      status = server_->on_request(kAdd, [](tern::Request request) { answer(request); });
    }
    if (!status.ok()) return status;

    std::vector<tern::Session> sessions;
    for (uint64_t i = 0; i < FLAGS_sessions; ++i) {
      auto session = client_->create_session(nexus_->uri() + "/0",
                                             {.window = uint8_t{kSlotsPerSession}, .connect_timeout = kPatience});
      if (!session.ok()) return session.status();
      sessions.push_back(*session);
    }
    calls_.resize(std::max(FLAGS_window, FLAGS_sessions));
    for (size_t i = 0; i < calls_.size(); ++i) {
      calls_[i].session = sessions[i % sessions.size()];
      calls_[i].request = client_->alloc_msgbuf(FLAGS_size);
      calls_[i].response = client_->alloc_msgbuf(FLAGS_size);
      if (!calls_[i].request || !calls_[i].response) {
        return {tern::Code::kNoMemory, "there is no memory for the message buffers; try a smaller --size"};
      }
      std::memset(calls_[i].request.bytes().data(), 0, FLAGS_size);
    }
    return {};
  }

  static void answer(tern::Request& request) {
    const auto in = request.bytes();
    if (in.size() < sizeof(uint64_t)) return;
    auto out = request.response(in.size());
    if (!out.ok()) return;
    copy_message(out->data(), in.data(), in.size());
    uint64_t value;
    std::memcpy(&value, in.data(), sizeof(value));
    ++value;
    std::memcpy(out->data(), &value, sizeof(value));
    request.respond();
  }

  /// Makes one call on each session, and returns when all are answered. It does not use client_loop() and
  /// server_loop(), and it pauses, because its duration differs between runs.
  int open_sessions() {
    for (uint32_t i = 0; i < FLAGS_sessions; ++i)
      issue(calls_[i], std::move(calls_[i].request), std::move(calls_[i].response));
    while (completed_ < FLAGS_sessions && status_.ok()) {
      if (programs::interrupted.load(std::memory_order_relaxed)) return explain_interrupt();
      iterate(this, *client_);
      iterate(this, *server_);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    completed_ = 0;
    return status_.ok() ? 0 : programs::fail_with("a session did not open", status_);
  }

  void iterate_both() {
    client_loop([](void* self) { iterate(static_cast<BothEnds*>(self), *static_cast<BothEnds*>(self)->client_); },
                this);
    server_loop([](void* self) { iterate(static_cast<BothEnds*>(self), *static_cast<BothEnds*>(self)->server_); },
                this);
  }

  static void iterate(BothEnds* self, tern::Rpc<T>& rpc) {
    if (const auto handled = rpc.run_event_loop_once(); !handled.ok()) [[unlikely]]
      self->status_ = handled.status();
    if constexpr (kWorkload.keeps) {
      for (tern::Request& request : self->kept_) answer(request);
      self->kept_.clear();
    }
  }

  void issue(Call& call, tern::MsgBuf&& request, tern::MsgBuf&& response) {
    if (left_ > 0) --left_;
    const uint64_t value = call.value;
    std::memcpy(request.bytes().data(), &value, sizeof(value));
    tern::CallOptions options;
    if constexpr (kWorkload.has_deadlines) options.deadline = deadline_;
    auto accepted = client_->enqueue_request(
        call.session, kAdd, std::move(request), std::move(response),
        [this, &call](tern::Completion& done) { on_done(call, done); }, options);
    if (!accepted.ok()) [[unlikely]]
      status_ = accepted.status();
  }

  void on_done(Call& call, tern::Completion& done) {
    if (!done.status.ok()) [[unlikely]] {
      status_ = done.status;
      return;
    }
    // The next request contains the value of the response.
    std::memcpy(&call.value, done.response.bytes().data(), sizeof(call.value));
    ++completed_;
    if (left_ > 0 && !kWorkload.walks) [[likely]] {
      issue(call, std::move(done.request), std::move(done.response));
    } else {
      call.request = std::move(done.request);
      call.response = std::move(done.response);
      if (kWorkload.walks && left_ > 0) issue_next();
    }
  }

  /// Issues the next call that is not in flight.
  void issue_next() {
    while (!calls_[next_].request) next_ = (next_ + 1) % calls_.size();
    Call& next = calls_[next_];
    next_ = (next_ + 1) % calls_.size();
    issue(next, std::move(next.request), std::move(next.response));
  }

  static int explain_interrupt() {
    programs::fail("interrupted before all RPCs were completed");
    return programs::kInterruptedExit;
  }

  // ~Rpc runs the continuations of pending calls, which use the members above it.
  std::vector<Call> calls_;
  std::vector<tern::Request> kept_;
  const tern::Duration deadline_;
  tern::Status status_;
  uint64_t left_ = 0;  ///< still to be issued
  uint64_t completed_ = 0;
  size_t next_ = 0;  ///< index of the call whose turn it is
  std::unique_ptr<tern::Nexus> nexus_;
  std::unique_ptr<tern::Rpc<T>> server_;
  std::unique_ptr<tern::Rpc<T>> client_;
};

}  // namespace
}  // namespace microbench
