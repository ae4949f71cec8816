// reconnect: a client whose server is killed and comes back.
//
// The rule: with SessionOptions::reconnect a session keeps its name and finds its server again, after a pause that
// grows with each attempt. Its calls are not repeated: when the server dies they end with kPeerUnreachable or
// kSessionReset, and later calls wait for the next attempt. Such an end does not tell whether the handler has run. It
// ran at most once, and only the application knows whether a repetition does harm.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tern/rpc.h>
#include <tern/transport/udp.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>

#include "common.h"

constexpr uint16_t kWho = 1;

/// A server in a process of its own, which begins when start() passes it an address. It is forked while this process
/// has no threads.
class ServerProcess {
 public:
  explicit ServerProcess(const char* name) {
    int go[2], ready[2];
    if (pipe(go) != 0 || pipe(ready) != 0 || (pid_ = fork()) < 0) must({tern::Code::kUnavailable, "no process"});
    if (pid_ == 0) serve(name, go[0], ready[1]);
    close(go[0]);
    close(ready[1]);
    go_ = go[1];
    ready_ = ready[0];
  }
  ServerProcess(const ServerProcess&) = delete;
  ~ServerProcess() { kill(); }

  /// Returns the server's URI once it can be reached.
  std::string start(const std::string& listen_uri) {
    send(go_, listen_uri);
    return receive(ready_);
  }
  void kill() {
    if (pid_ > 0 && ::kill(pid_, SIGKILL) == 0) waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  [[noreturn]] static void serve(std::string name, int go, int ready) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto nexus = must(tern::Nexus::create(receive(go)));
    auto rpc = must(tern::Rpc<tern::Udp>::create(*nexus));
    must(rpc->on_request(kWho, [name](tern::Request request) { reply(std::move(request), name); }));
    send(ready, nexus->uri());
    must(rpc->run_event_loop());
    _exit(0);
  }
  static void send(int pipe, const std::string& line) {
    if (write(pipe, line.data(), line.size()) < 0) must({tern::Code::kUnavailable, "a process is gone"});
  }
  static std::string receive(int pipe) {
    char line[128];
    const ssize_t bytes = read(pipe, line, sizeof(line));
    if (bytes <= 0) must({tern::Code::kUnavailable, "a process is gone"});
    return std::string(line, static_cast<size_t>(bytes));
  }

  pid_t pid_ = -1;
  int go_, ready_;
};

/// Makes one call after the other, with a pause after a failure. Failed and refused calls take the same path.
struct Client {
  tern::Endpoint& endpoint;
  const std::string uri;
  std::function<void(std::string_view answer)> on_answer;
  std::function<void(tern::Status)> on_failure;
  tern::Session session = {};

  void connect() {
    session = must(endpoint.create_session(uri, {.reconnect = true}));  // does not wait; calls wait until it is open
    ask_once();
  }
  void ask_once() {
    (void)endpoint.enqueue_request(session, kWho, message(endpoint, ""), endpoint.alloc_msgbuf(64),
                                   [this](tern::Completion& done) { on_end(done); }, {.refusal_runs_then = true});
  }
  void on_end(const tern::Completion& done) {
    if (done.status.code() == tern::Code::kCancelled) return;  // we close the endpoint ourselves
    if (done.status.ok()) {
      on_answer(text_of(done.response.bytes()));
      return ask_once();
    }
    on_failure(done.status);
    must(endpoint.after(std::chrono::milliseconds(20), [this] { ask_once(); }));
  }
};

int main() {
  ServerProcess first("first"), second("second");
  const std::string uri = first.start("tern://127.0.0.1:0");
  auto nexus = must(tern::Nexus::create("tern://127.0.0.1:0"));
  auto rpc = must(tern::Rpc<tern::Udp>::create(*nexus));

  int first_answers = 0, second_answers = 0, failures = 0;
  Client client{*rpc, uri,
                [&](std::string_view answer) {
                  if (answer == "first" && ++first_answers == 100) first.kill();
                  if (answer == "second" && ++second_answers == 100) rpc->stop();
                },
                [&](tern::Status status) {
                  std::printf("lost the server: %s\n", status.message().data());
                  if (++failures == 1) second.start(uri);  // in place of an operator or systemd
                }};
  client.connect();
  must(rpc->run_event_loop());
  must(rpc->close({}));  // the last call ends in here, while the Client still exists
  std::printf("%d answers of the first server, %d of the second\n", first_answers, second_answers);
  return first_answers == 100 && second_answers == 100 && failures > 0 ? 0 : 1;
}
