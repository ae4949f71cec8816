// own_epoll_loop: an endpoint as one of the descriptors of a program's own event loop, beside a timerfd.
//
// The rule: descriptor() is readable while the endpoint has work, its timers included. run_event_loop_once() then does
// that work, never blocks, and arms the descriptor again. Calls that are made outside of that function make the
// descriptor readable, too. The thread that runs the loop owns the endpoint.
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <tern/rpc.h>
#include <tern/transport/udp.h>

#include <cstdio>
#include <string>
#include <thread>

#include "common.h"

constexpr uint16_t kTick = 1;
constexpr int kTicks = 5;

/// Ends the program if a system call has failed.
int must_have(int result, const char* what) {
  if (result >= 0) return result;
  std::perror(what);
  std::_Exit(1);
}

void watch(int epoll, int descriptor) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = descriptor;
  must_have(epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event), "epoll_ctl");
}

int main() {
  auto nexus = must(tern::Nexus::create("tern://127.0.0.1:0"));
  auto server = must(tern::Rpc<tern::Udp>::create(*nexus, {}, {.endpoint_id = 0}));
  must(server->on_request(kTick, [](tern::Request request) {
    const std::string tick(text_of(request.bytes()));
    reply(std::move(request), "seen " + tick);
  }));
  std::thread server_thread([&] { must(server->run_event_loop()); });

  auto client = must(tern::Rpc<tern::Udp>::create(*nexus, {}, {.endpoint_id = 1}));
  const tern::Session session = must(client->create_session(nexus->uri() + "/0"));
  const int epoll = must_have(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
  const int timer = must_have(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK), "timerfd_create");
  const itimerspec every_5_ms = {.it_interval = {0, 5'000'000}, .it_value = {0, 5'000'000}};
  must_have(timerfd_settime(timer, 0, &every_5_ms, nullptr), "timerfd_settime");
  watch(epoll, timer);
  watch(epoll, must(client->descriptor()));

  int sent = 0, answered = 0;
  auto on_answer = [&](tern::Completion& done) {
    must(done.status);
    answered++;
    const std::string answer(text_of(done.response.bytes()));
    std::printf("%s\n", answer.c_str());
  };
  while (answered < kTicks) {
    epoll_event event;
    if (epoll_wait(epoll, &event, 1, -1) != 1) continue;  // interrupted by a signal
    if (event.data.fd != timer) {
      must(client->run_event_loop_once());
      continue;
    }
    uint64_t expirations;
    if (read(timer, &expirations, sizeof(expirations)) != sizeof(expirations) || sent == kTicks) continue;
    must(client->enqueue_request(session, kTick, message(*client, "tick " + std::to_string(++sent)),
                                 client->alloc_msgbuf(64), on_answer));
  }

  close(timer);
  close(epoll);  // the endpoint owns and closes its descriptor
  server->stop();
  server_thread.join();
  return answered == kTicks ? 0 : 1;
}
