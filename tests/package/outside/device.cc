// RPCs between two processes over a transport that tern does not know: UnixDevice.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tern/rpc.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "unix_device.h"

namespace {

using Rpc = tern::Rpc<tern::Device>;
constexpr uint16_t kReverse = 7;
constexpr int kCalls = 2000;

[[noreturn]] void end(const char* what, tern::Status status) {
  std::fprintf(stderr, "device: %s: %s\n", what, status.message().data());
  std::_Exit(1);
}

std::unique_ptr<Rpc> make(tern::Nexus& nexus, uint8_t id) {
  tern::Device::Options device;
  device.device = UnixDevice::create();
  tern::RpcOptions options;
  options.endpoint_id = id;
  options.wait = tern::Wait::kBlock;
  auto rpc = Rpc::create(nexus, std::move(device), options);
  if (!rpc.ok()) end("no endpoint", rpc.status());
  return std::move(*rpc);
}

/// Serves until it is killed, and writes its URI to `output`.
[[noreturn]] void serve(int output) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // the server is killed if the client fails
  auto nexus = tern::Nexus::create("udp://127.0.0.1:0");
  if (!nexus.ok()) end("no server", nexus.status());
  auto rpc = make(**nexus, 1);
  auto status = rpc->on_request(kReverse, [](tern::Request request) {
    const auto question = request.bytes();
    auto reply = request.response(question.size());
    if (!reply.ok()) return request.fail(1);
    for (size_t i = 0; i < question.size(); i++) (*reply)[i] = question[question.size() - 1 - i];
    request.respond();
  });
  if (!status.ok()) end("no handler", status);
  const std::string uri = (*nexus)->uri() + "/1\n";
  if (write(output, uri.data(), uri.size()) != static_cast<ssize_t>(uri.size())) std::_Exit(1);
  end("the loop", rpc->run_event_loop());
}

/// Makes requests of 1 B to 60 kB one after the other. The result is 0 if each response is the reversed request.
class Client {
 public:
  int run(const std::string& uri) {
    auto nexus = tern::Nexus::create("udp://127.0.0.1:0");
    if (!nexus.ok()) end("no client", nexus.status());
    rpc_ = make(**nexus, 2);
    auto session = rpc_->create_session(uri);
    if (!session.ok()) end("no session", session.status());
    session_ = *session;
    call();
    if (auto status = rpc_->run_event_loop(std::chrono::seconds(60)); !status.ok()) end("the loop", status);
    rpc_.reset();  // must end before its Nexus
    std::printf("device: %d RPCs between two processes\n", done_);
    return done_ == kCalls ? 0 : 1;
  }

 private:
  void call() {
    const size_t bytes = 1 + static_cast<size_t>(done_) * 30;
    auto question = rpc_->alloc_msgbuf(bytes);
    for (size_t i = 0; i < bytes; i++) question.bytes()[i] = static_cast<std::byte>(i * 7 + bytes);
    auto sent = rpc_->enqueue_request(session_, kReverse, std::move(question), rpc_->alloc_msgbuf(bytes),
                                      [this, bytes](tern::Completion& done) { on_done(done, bytes); });
    if (!sent.ok()) end("a call", sent.status());
  }
  void on_done(tern::Completion& done, size_t bytes) {
    if (!done.status.ok()) end("a call", done.status);
    const auto answer = done.response.bytes();
    bool is_right = answer.size() == bytes;
    for (size_t i = 0; i < bytes && is_right; i++)
      is_right = answer[bytes - 1 - i] == static_cast<std::byte>(i * 7 + bytes);
    if (!is_right) end("a response", {tern::Code::kMisuse, "it is not the request backwards"});
    if (++done_ == kCalls) return rpc_->stop();
    call();
  }

  std::unique_ptr<Rpc> rpc_;
  tern::Session session_;
  int done_ = 0;
};

}  // namespace

int main() {
  int ends[2];
  if (pipe(ends) != 0) return 1;
  const pid_t server = fork();
  if (server == 0) serve(ends[1]);
  close(ends[1]);
  std::string uri;
  for (char c; read(ends[0], &c, 1) == 1 && c != '\n';) uri += c;
  const int outcome = uri.empty() ? 1 : Client().run(uri);
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
  return outcome;
}
