// worker_handler: a long handler runs on a worker thread, while the event loop serves other requests.
//
// The rule: a worker handler may block, and may use every member of its Request. The Endpoint belongs to the thread of
// its event loop: a worker may only call its post() and stop().
#include <tern/rpc.h>
#include <tern/transport/shm.h>

#include <atomic>
#include <cstdio>
#include <latch>
#include <string>
#include <thread>

#include "common.h"

constexpr uint16_t kScan = 1, kPing = 2;

int main() {
  std::latch ping_is_back(1);
  auto nexus = must(tern::Nexus::create("tern://127.0.0.1:0", {.worker_threads = 2}));
  auto server = must(tern::Rpc<tern::Shm>::create(*nexus, {}, {.endpoint_id = 0}));
  std::atomic<std::thread::id> loop;  // of the server
  must(server->on_request(
      kScan,
      [&](tern::Request request) {
        ping_is_back.wait();  // in the event loop this would wait for ever: the ping would not be answered
        const bool is_elsewhere = std::this_thread::get_id() != loop.load();
        reply(std::move(request), is_elsewhere ? "scanned by a worker" : "scanned by the loop");
      },
      {.worker = true}));
  must(server->on_request(kPing, [&](tern::Request request) {
    loop = std::this_thread::get_id();
    reply(std::move(request), "pong");
  }));
  std::thread server_thread([&] { must(server->run_event_loop()); });

  auto client = must(tern::Rpc<tern::Shm>::create(*nexus, {}, {.endpoint_id = 1}));
  const tern::Session session = must(client->create_session(nexus->uri() + "/0"));
  std::string answers;
  auto show = [&](const tern::Completion& done) {
    answers += done.status.ok() ? text_of(done.response.bytes()) : done.status.message();
    answers += '\n';
  };
  must(client->enqueue_request(session, kScan, message(*client, "everything"), client->alloc_msgbuf(64),
                               [&](tern::Completion& done) {
                                 show(done);
                                 client->stop();  // the scan is the last call to end
                               }));
  must(client->enqueue_request(session, kPing, message(*client, ""), client->alloc_msgbuf(64),
                               [&](tern::Completion& done) {
                                 show(done);
                                 ping_is_back.count_down();
                               }));
  must(client->run_event_loop());
  std::printf("%s", answers.c_str());

  server->stop();
  server_thread.join();
  return answers == "pong\nscanned by a worker\n" ? 0 : 1;
}
