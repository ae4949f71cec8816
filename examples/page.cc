// page: the counters of an endpoint that other processes can read. This program reads its own page, as tern-top does.
//
// The rule: the page costs calls nothing. The endpoint's loop writes it every 100 ms while it has work, and a reader
// never blocks it.
#include <tern/page.h>
#include <tern/rpc.h>
#include <tern/transport/udp.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "common.h"

constexpr uint16_t kEcho = 1;

/// Returns the page's value of a counter of the endpoint with this id.
uint64_t counter(const tern::Page& page, uint16_t id, const std::string& name) {
  for (const tern::PageEndpoint& endpoint : page.endpoints) {
    for (size_t i = 0; i < endpoint.counters.size() && endpoint.id == id; i++) {
      if (page.counter_names[i] == name) return endpoint.counters[i];
    }
  }
  return 0;
}

int main() {
  tern::NexusOptions options;
  options.page = "shm";  // or the path of a file, "/run/my-server/page"
  auto nexus = must(tern::Nexus::create("tern://127.0.0.1:0", options));
  auto server = must(tern::Rpc<tern::Udp>::create(*nexus, {}, {.endpoint_id = 0}));
  must(server->on_request(kEcho, [](tern::Request request) { reply(std::move(request), "seen"); }));
  auto client = must(tern::Rpc<tern::Udp>::create(*nexus, {}, {.endpoint_id = 1}));
  const tern::Session session = must(client->create_session(nexus->uri() + "/0"));
  for (int i = 0; i < 3; i++) {
    must(client->enqueue_request(session, kEcho, message(*client, "?"), client->alloc_msgbuf(64),
                                 [](tern::Completion& done) { must(done.status); }));
  }

  const std::string path = must(nexus->page());
  uint64_t calls = 0, requests = 0;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while ((calls != 3 || requests != 3) && std::chrono::steady_clock::now() < until) {
    (void)must(server->run_event_loop_once());
    (void)must(client->run_event_loop_once());
    const tern::Page page = must(tern::read_page(path));  // in your programs another process does this
    calls = counter(page, 1, "endpoint.calls_completed");
    requests = counter(page, 0, "endpoint.requests_handled");
  }
  std::printf("seen: %d calls, %d requests\n", static_cast<int>(calls), static_cast<int>(requests));
  return calls == 3 && requests == 3 ? 0 : 1;
}
