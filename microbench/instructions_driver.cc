// instructions_driver: completes --rpcs small RPCs with both endpoints in one thread, their loops alternated, for
// callgrind to count. What the client side costs lies under client_loop(), the server side under server_loop(), the
// application's code included; everything before is the same for every --rpcs, so that the difference between two run
// lengths is what their RPCs cost.
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

#include "../apps/common/flags.h"
#include "../apps/common/report.h"
#include "../apps/common/sides.h"

DEFINE_uint64(rpcs, 100000, "RPCs to complete");
DEFINE_uint64(window, 60, "requests in flight, at most 8 a session");
DEFINE_uint64(sessions, 8, "sessions; the window is dealt out to them in turn");
DEFINE_uint64(size, 32, "bytes of a request and of its response, at least 8");

// Named for callgrind, so no templates: one indirect call each. The empty asm keeps that call from becoming a jump,
// which would hide the name.
extern "C" [[gnu::noinline]] void client_loop(void (*iterate)(void*), void* driver) {
  iterate(driver);
  asm volatile("" ::: "memory");
}
extern "C" [[gnu::noinline]] void server_loop(void (*iterate)(void*), void* driver) {
  iterate(driver);
  asm volatile("" ::: "memory");
}

namespace {

constexpr uint16_t kAdd = 1;
constexpr uint64_t kSlotsPerSession = 8;
constexpr tern::Duration kPatience = std::chrono::seconds(30);  // callgrind is fifty times slower

constexpr size_t kCommonBytes = 32;

/// An application knows how large its messages mostly are.
void copy_message(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes == kCommonBytes) [[likely]] {
    std::memcpy(to, from, kCommonBytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

template <tern::Transport T>
class Driver {
 public:
  /// Runs the whole program; its exit code.
  int run() {
    if (const tern::Status status = create(); !status.ok()) return programs::fail_with("no endpoints", status);
    if (const int code = open_sessions(); code != 0) return code;
    left_ = FLAGS_rpcs;
    const uint64_t first = std::min<uint64_t>(FLAGS_window, left_);
    for (uint32_t i = 0; i < first; ++i) issue(calls_[i], std::move(calls_[i].request), std::move(calls_[i].response));
    while (completed_ < FLAGS_rpcs && status_.ok()) {
      if (programs::interrupted.load(std::memory_order_relaxed)) return explain_interrupt();
      iterate_both();
    }
    if (!status_.ok()) return programs::fail_with("a call", status_);
    if (!FLAGS_json) {
      std::printf("%" PRIu64 " RPCs completed\n", completed_);
      return 0;
    }
    programs::Report report;
    report.bench = "instructions_driver";
    report.params = programs::common_params();
    report.params.update({{"window", FLAGS_window}, {"sessions", FLAGS_sessions}, {"size", FLAGS_size}});
    report.metrics["rpcs_completed"] = completed_;
    programs::print(report);
    return 0;
  }

 private:
  struct Call {
    tern::Session session;
    tern::MsgBuf request;
    tern::MsgBuf response;
    uint64_t value = 0;  ///< grows by one with each answer, so that the responses are read
  };

  tern::Status create() {
    auto nexus = tern::Nexus::create("tern://127.0.0.1:0", {.liveness_timeout = kPatience});
    if (!nexus.ok()) return nexus.status();
    nexus_ = std::move(*nexus);
    auto server = tern::Rpc<T>::create(*nexus_, programs::transport_options<T>(programs::Role::kServer),
                                       programs::rpc_options(0));
    if (!server.ok()) return server.status();
    server_ = std::move(*server);
    auto client = tern::Rpc<T>::create(*nexus_, programs::transport_options<T>(), programs::rpc_options(1));
    if (!client.ok()) return client.status();
    client_ = std::move(*client);

    tern::Status status = server_->on_request(kAdd, [](tern::Request request) {
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
    });
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

  /// One call on each session, until all are answered. Not through client_loop() and server_loop(), and with pauses:
  /// how long it takes varies from run to run.
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
    client_loop([](void* driver) { iterate(static_cast<Driver*>(driver), *static_cast<Driver*>(driver)->client_); },
                this);
    server_loop([](void* driver) { iterate(static_cast<Driver*>(driver), *static_cast<Driver*>(driver)->server_); },
                this);
  }

  static void iterate(Driver* driver, tern::Rpc<T>& rpc) {
    if (const auto handled = rpc.run_event_loop_once(); !handled.ok()) [[unlikely]]
      driver->status_ = handled.status();
  }

  void issue(Call& call, tern::MsgBuf&& request, tern::MsgBuf&& response) {
    if (left_ > 0) --left_;
    const uint64_t value = call.value;
    std::memcpy(request.bytes().data(), &value, sizeof(value));
    auto accepted = client_->enqueue_request(call.session, kAdd, std::move(request), std::move(response),
                                             [this, &call](tern::Completion& done) { on_done(call, done); });
    if (!accepted.ok()) [[unlikely]]
      status_ = accepted.status();
  }

  void on_done(Call& call, tern::Completion& done) {
    if (!done.status.ok()) [[unlikely]] {
      status_ = done.status;
      return;
    }
    // The next request is what came back.
    std::memcpy(&call.value, done.response.bytes().data(), sizeof(call.value));
    ++completed_;
    if (left_ > 0) [[likely]] {
      issue(call, std::move(done.request), std::move(done.response));
    } else {
      call.request = std::move(done.request);
      call.response = std::move(done.response);
    }
  }

  static int explain_interrupt() {
    programs::fail("interrupted before all RPCs were completed");
    return programs::kInterruptedExit;
  }

  // Continuations of pending calls run in ~Rpc and use what stands before it.
  std::vector<Call> calls_;
  tern::Status status_;
  uint64_t left_ = 0;  ///< still to be issued
  uint64_t completed_ = 0;
  std::unique_ptr<tern::Nexus> nexus_;
  std::unique_ptr<tern::Rpc<T>> server_;
  std::unique_ptr<tern::Rpc<T>> client_;
};

/// False: the sentence has been printed.
bool check_flags() {
  const char* problem = nullptr;
  if (FLAGS_role != "both" || FLAGS_processes || !FLAGS_server.empty() || !FLAGS_listen.empty() ||
      !FLAGS_cpus.empty()) {
    problem = "both sides are in one thread here: no --role, --processes, --server, --listen or --cpus";
  } else if (FLAGS_rpcs < 1 || FLAGS_rpcs > 1'000'000'000) {
    problem = "--rpcs is between 1 and 1000000000";
  } else if (FLAGS_sessions < 1 || FLAGS_sessions > 65536) {
    problem = "--sessions is between 1 and 65536";
  } else if (FLAGS_window < 1 || FLAGS_window > kSlotsPerSession * FLAGS_sessions) {
    problem = "--window is between 1 and 8 times --sessions";
  } else if (FLAGS_size < sizeof(uint64_t) || FLAGS_size > (8u << 20)) {
    problem = "--size is between 8 and 8388608";
  }
  if (problem != nullptr) programs::fail("%s", problem);
  return problem == nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  if (!programs::parse_flags(argc, argv, "RPCs for callgrind to count; see scripts/instructions_per_rpc")) return 1;
  if (!check_flags()) return 1;
  programs::catch_interrupts();
  return programs::with_transport([]<class T>() { return Driver<T>().run(); });
}
