// log: events of sessions and peers that the library passes to a program. A client loses its server.
//
// The rule: a sink runs in the thread of the event, which is the loop of the endpoint or the management thread. It must
// be quick and thread-safe, and may call every function that any thread may call.
#include <tern/log.h>
#include <tern/rpc.h>
#include <tern/transport/udp.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <utility>

#include "common.h"

int main() {
  std::atomic<int> warnings = 0;
  tern::NexusOptions options;
  options.log = tern::log_to([&](const tern::LogEvent& event) {
    if (event.severity == tern::LogSeverity::kInfo) return;
    std::printf("%s\n", to_string(event).c_str());
    warnings++;
  });
  auto nexus = must(tern::Nexus::create("tern://127.0.0.1:0", options));

  auto client = must(tern::Rpc<tern::Udp>::create(*nexus));
  auto server_nexus = must(tern::Nexus::create("tern://127.0.0.1:0"));
  auto server = must(tern::Rpc<tern::Udp>::create(*server_nexus));
  const tern::Session session = must(client->create_session(server_nexus->uri()));
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!client->is_open(session) && std::chrono::steady_clock::now() < until) {
    (void)must(server->run_event_loop_once());
    (void)must(client->run_event_loop_once());
  }
  server.reset();
  while (client->is_open(session) && std::chrono::steady_clock::now() < until) {
    (void)must(client->run_event_loop_once());
  }
  std::printf("warnings: %d\n", warnings.load());
  return warnings == 1 ? 0 : 1;
}
