// hello: the smallest server and client, over any transport.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/flags.h"
#include "common/report.h"
#include "common/sides.h"

#include <tern/rpc.h>
#include <tern/transport/shm.h>
#include <tern/transport/udp.h>

#include <cstring>
#include <string>
#include <string_view>

constexpr uint16_t kHello = 1;  // a request type: client and server agree on it

template <tern::Transport T>  // tern::Shm or tern::Udp: the other code is the same
tern::Status serve(tern::Nexus& nexus, tern::RpcOptions options, auto ready) {
  auto rpc = tern::Rpc<T>::create(nexus, {}, options);
  if (!rpc.ok()) return rpc.status();
  auto status = (*rpc)->on_request(kHello, [](tern::Request request) {
    auto reply = request.response(5);
    if (!reply.ok()) return request.fail(1);
    std::memcpy(reply->data(), "hello", 5);
    request.respond();
  });
  if (!status.ok()) return status;
  ready(**rpc);  // clients can find the server now, and other threads may stop() its endpoint
  return (*rpc)->run_event_loop();
}

template <tern::Transport T>
tern::Status ask(tern::Nexus& nexus, tern::RpcOptions options, std::string_view server, std::string& answer) {
  tern::Status outcome;  // outlives the endpoint, and so the call
  auto rpc = tern::Rpc<T>::create(nexus, {}, options);
  if (!rpc.ok()) return rpc.status();
  tern::Endpoint& endpoint = **rpc;
  auto session = endpoint.create_session(server);
  if (!session.ok()) return session.status();
  auto then = [&](tern::Completion& done) {  // runs once, whatever happens
    outcome = done.status;
    const auto bytes = done.response.bytes();
    if (outcome.ok()) answer.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    endpoint.stop();
  };
  auto call = endpoint.enqueue_request(*session, kHello, endpoint.alloc_msgbuf(0), endpoint.alloc_msgbuf(64), then);
  if (!call.ok()) return call.status();
  auto status = (*rpc)->run_event_loop();
  return status.ok() ? outcome : status;
}

namespace {

using std::chrono::milliseconds;

/// A timer in the server's loop. Stops the loop after `told` is set, or after the program is interrupted.
struct StopWhenTold {
  tern::Endpoint* endpoint;
  const std::atomic<bool>* told;
  void operator()() const {
    if (*told || programs::interrupted || !endpoint->after(milliseconds(10), *this).ok()) endpoint->stop();
  }
};

/// The server's thread, which owns its endpoint from creation to destruction.
class Server {
 public:
  ~Server() { stop(); }

  /// Returns when clients can find the server, or when it has ended.
  template <tern::Transport T>
  void start(tern::Nexus& nexus, int cpu) {
    const bool has_thread = programs::add_thread(thread_, cpu, [this, &nexus] {
      status_ = serve<T>(nexus, programs::rpc_options(0), [this](tern::Endpoint& endpoint) {
        StopWhenTold{&endpoint, &told_}();
        state_ = State::kReady;
      });
      state_ = State::kEnded;
    });
    if (!has_thread) {
      status_ = {tern::Code::kUnavailable, programs::kNoThread};
      state_ = State::kEnded;
    }
    while (state_ == State::kStarting) std::this_thread::sleep_for(milliseconds(1));
  }
  bool has_ended() const { return state_ == State::kEnded; }
  void stop() {
    told_ = true;
    wait();
  }
  void wait() {
    for (std::thread& thread : thread_) thread.join();
    thread_.clear();
  }
  /// Must be called after stop() or wait().
  tern::Status status() const { return status_; }

 private:
  enum class State { kStarting, kReady, kEnded };
  std::atomic<State> state_{State::kStarting};
  std::atomic<bool> told_{false};
  tern::Status status_;
  std::vector<std::thread> thread_;  ///< one thread, after start()
};

template <tern::Transport T>
int run(int argc, char** argv, const std::vector<int>& cpus) {
  programs::catch_interrupts();
  std::string uri = programs::server_uri();
  programs::ServerProcess server_process;
  if (FLAGS_processes) {
    if (!server_process.start(argc, argv)) return programs::interrupted ? programs::kInterruptedExit : 1;
    uri = server_process.uri();
  }
  const bool serves = FLAGS_role != "client" && !FLAGS_processes;
  const std::string listen = serves ? uri : programs::client_listen_uri(uri);
  auto nexus = tern::Nexus::create(listen, programs::nexus_options());
  if (!nexus.ok()) return programs::fail_with("no Nexus at " + listen, nexus.status());

  Server server;  // is destroyed before the Nexus, because its endpoint needs the Nexus
  if (serves) {
    uri = (*nexus)->uri();
    server.start<T>(**nexus, cpus[0]);
    if (FLAGS_role == "server" && !server.has_ended()) {
      programs::announce_server(uri);
      server.wait();
    }
    if (server.has_ended()) {
      server.wait();
      return server.status().ok() ? 0 : programs::fail_with("no server", server.status());
    }
  }

  programs::pin_to(cpus[1 % cpus.size()]);
  const auto begin = std::chrono::steady_clock::now();
  std::string answer;
  const tern::Status status = ask<T>(**nexus, programs::rpc_options(1), uri, answer);
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  if (!status.ok()) return programs::fail_with("no answer from " + uri, status);
  if (const std::string problem = server_process.stop(); !problem.empty()) {
    return programs::fail("%s", problem.c_str());
  }
  if (!FLAGS_json) {
    std::printf("%s\n", answer.c_str());
    return programs::end_output();
  }
  programs::Report report;
  report.bench = "hello";
  report.params = programs::common_params();
  report.params["answer"] = answer;
  report.metrics["connect_and_call_us"] = took.count();
  return programs::print(report);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<char*> words(argv, argv + argc);  // the words of the command line, for a server process
  gflags::SetCommandLineOptionWithMode("wait", "adaptive", gflags::SET_FLAGS_DEFAULT);
  if (!programs::parse_flags(argc, argv, "The smallest server and its client; --seconds means nothing here")) return 1;
  if (programs::has_faults() || !FLAGS_transport_options.empty() || !FLAGS_server_transport_options.empty()) {
    return programs::fail("hello has no fault layer and no --transport_options; latency and small_rpc_rate have");
  }
  const std::vector<int> cpus = programs::side_cpus();
  if (cpus.empty()) return 1;
  return programs::with_transport(
      [&]<class T>() { return run<T>(static_cast<int>(words.size()), words.data(), cpus); });
}
