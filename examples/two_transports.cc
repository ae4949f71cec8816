// two_transports: one process serves neighbours through shared memory and others over UDP, with the same code.
//
// The rule: only the code that makes an endpoint and runs its loop names its transport. All other code takes an
// Endpoint. A session to an endpoint of another transport is refused. One thread may run the loops of several
// endpoints.
#include <tern/rpc.h>
#include <tern/transport/shm.h>
#include <tern/transport/udp.h>

#include <atomic>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <thread>

#include "common.h"

constexpr uint16_t kCount = 1;

/// The application: one state for clients over both transports.
void add_counter(tern::Endpoint& endpoint, int& count) {
  must(endpoint.on_request(kCount,
                           [&count](tern::Request request) { reply(std::move(request), std::to_string(++count)); }));
}

template <tern::Transport T>
bool count_over(tern::Nexus& nexus, tern::RpcOptions options, const std::string& uri, const char* expected) {
  auto client = must(tern::Rpc<T>::create(nexus, {}, options));
  const tern::Completion done = ask(*client, must(client->create_session(uri)), kCount, "");
  const std::string answer(done.status.ok() ? text_of(done.response.bytes()) : done.status.message());
  std::printf("over %s: %s\n", T::kName.data(), answer.c_str());
  return answer == expected;
}

int main() {
  auto nexus = must(tern::Nexus::create("tern://127.0.0.1:0"));
  auto near = must(tern::Rpc<tern::Shm>::create(*nexus, {}, {.endpoint_id = 0}));
  auto far = must(tern::Rpc<tern::Udp>::create(*nexus, {}, {.endpoint_id = 1}));
  int count = 0;  // needs no lock, because one thread runs both loops
  for (tern::Endpoint* endpoint : std::initializer_list<tern::Endpoint*>{near.get(), far.get()}) {
    add_counter(*endpoint, count);
  }
  std::atomic<bool> is_over = false;
  std::thread server([&] {
    while (!is_over) {  // both at full speed; own_epoll_loop shows how to sleep until one of them has work
      must(near->run_event_loop_once());
      must(far->run_event_loop_once());
    }
  });

  bool is_right = count_over<tern::Shm>(*nexus, {.endpoint_id = 2}, nexus->uri() + "/0", "1");
  is_right &= count_over<tern::Udp>(*nexus, {.endpoint_id = 3}, nexus->uri() + "/1", "2");
  is_right &= count_over<tern::Shm>(*nexus, {.endpoint_id = 4}, nexus->uri() + "/0", "3");
  is_over = true;
  server.join();
  return is_right ? 0 : 1;
}
