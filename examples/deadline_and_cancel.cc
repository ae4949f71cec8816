// deadline_and_cancel: two calls that end before they are answered, and how the server notices.
//
// The rule: such a call's continuation, too, runs exactly once, with kDeadline or kCancelled and with both buffers. The
// server is informed: Request::is_cancelled() becomes true, and the application can stop its work. An answer to such a
// request has no effect.
#include <tern/rpc.h>
#include <tern/transport/shm.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "common.h"

using std::chrono::milliseconds;

constexpr uint16_t kWork = 1;

/// A server that never finishes its work. Each millisecond it looks for requests whose clients no longer wait.
struct Work {
  tern::Endpoint& endpoint;
  std::vector<tern::Request> requests = {};
  std::atomic<int> begun = 0, given_up = 0;

  void look() {
    std::erase_if(requests, [&](tern::Request& request) {
      if (!request.is_cancelled()) return false;
      request.respond();  // allowed; the client does not get this answer
      given_up++;
      return true;
    });
    must(endpoint.after(milliseconds(1), [this] { look(); }));
  }
};

int main() {
  auto nexus = must(tern::Nexus::create("tern://127.0.0.1:0"));
  auto server = must(tern::Rpc<tern::Shm>::create(*nexus, {}, {.endpoint_id = 0}));
  Work work{*server};
  must(server->on_request(kWork, [&](tern::Request request) {
    work.requests.push_back(std::move(request));
    work.begun++;
  }));
  work.look();
  std::thread server_thread([&] { must(server->run_event_loop()); });

  auto client = must(tern::Rpc<tern::Shm>::create(*nexus, {}, {.endpoint_id = 1}));
  const tern::Session session = must(client->create_session(nexus->uri() + "/0"));
  tern::Completion late, cancelled;
  must(client->enqueue_request(session, kWork, message(*client, "in vain"), client->alloc_msgbuf(64),
                               [&](tern::Completion& done) { late = std::move(done); },
                               {.deadline = milliseconds(20)}));
  const tern::CallId call =
      must(client->enqueue_request(session, kWork, message(*client, "for ever"), client->alloc_msgbuf(64),
                                   [&](tern::Completion& done) { cancelled = std::move(done); }));

  while (work.begun == 0) must(client->run_event_loop(milliseconds(1)));
  must(client->cancel(call));  // its continuation runs in the loop, like that of any call
  // A Completion has its buffers once the continuation has run.
  while (!late.request || !cancelled.request || work.given_up < work.begun) {
    must(client->run_event_loop(milliseconds(1)));
  }
  std::printf("the first call: %s\n", late.status.message().data());
  std::printf("the second call: %s\n", cancelled.status.message().data());
  std::printf("the server has given up whatever it had begun\n");

  server->stop();
  server_thread.join();
  const bool is_right =
      late.status.code() == tern::Code::kDeadline && cancelled.status.code() == tern::Code::kCancelled;
  return is_right ? 0 : 1;
}
