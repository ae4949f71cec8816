// nic_memory: the memory that the NIC uses for an endpoint over mlx5, with 1, 64 and 20 000 sessions to up to 8 peers,
// as the software provider counts it. Prints a table, or with --json a line for each number of sessions. Exit code 1:
// the memory grows with the sessions, or nothing was counted. Run it by on_cable, which makes the network.
#include <tern/rpc.h>
#include <tern/transport/mlx5.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "software_verbs/control.h"

namespace {

using Rpc = tern::Rpc<tern::Mlx5>;

constexpr std::array<uint32_t, 3> kSessions = {1, 64, 20'000};
constexpr uint32_t kServersMax = 8;
constexpr uint16_t kEcho = 1;
constexpr auto kPatience = std::chrono::minutes(2);

/// The bytes and rules of one endpoint.
struct NicMemory {
  uint64_t descriptors, completions, doorbells, steering_rules;
  bool operator==(const NicMemory&) const = default;
};

[[noreturn]] void end(const char* what, const tern::Status& status) {
  std::fprintf(stderr, "nic_memory: %s: %s\n", what, std::string(status.message()).c_str());
  std::exit(1);
}
template <class T>
T must(const char* what, tern::Result<T> result) {
  if (!result.ok()) end(what, result.status());
  return std::move(*result);
}
void must(const char* what, tern::Status status) {
  if (!status.ok()) end(what, status);
}

/// The process's counts, divided by its number of endpoints.
NicMemory counted(uint64_t endpoints) {
  software_verbs::Counters counters;
  software_verbs::control()->read_counters(&counters);
  return {counters.descriptor_bytes / endpoints, counters.completion_bytes / endpoints,
          counters.doorbell_bytes / endpoints, counters.steering_rules / endpoints};
}

/// A client's endpoint opens this number of sessions, each of which answers a call. After that all memory has been
/// allocated.
NicMemory measure(uint32_t sessions) {
  auto nexus = must("no Nexus", tern::Nexus::create("tern://127.0.0.1:0", {.liveness_timeout = kPatience}));
  tern::RpcOptions options;
  options.huge_pages = false;
  options.server_sessions_max = options.server_sessions_per_peer_max = kSessions.back();
  auto client = must("no client", Rpc::create(*nexus, {}, options));
  std::vector<std::unique_ptr<Rpc>> servers;
  while (servers.size() < std::min(sessions, kServersMax)) {
    options.endpoint_id++;
    servers.push_back(must("no server", Rpc::create(*nexus, {}, options)));
    must("no handler", servers.back()->on_request(kEcho, [](tern::Request request) {
      if (request.response(1).ok()) request.respond();
    }));
  }
  uint32_t answered = 0;
  for (uint32_t i = 0; i < sessions; i++) {
    const std::string uri = nexus->uri() + "/" + std::to_string(1 + i % servers.size());
    auto session = must("no session", client->create_session(uri, {.connect_timeout = kPatience}));
    auto call = client->enqueue_request(session, kEcho, client->alloc_msgbuf(1), client->alloc_msgbuf(1),
                                        [&answered](tern::Completion& done) {
                                          must("a call", std::move(done.status));
                                          answered++;
                                        });
    must("no call", call.status());
  }
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (answered < sessions) {
    must("the client", client->run_event_loop_once().status());
    for (auto& server : servers) must("a server", server->run_event_loop_once().status());
    if (std::chrono::steady_clock::now() > until) {
      std::fprintf(stderr, "nic_memory: %u of %u sessions have answered\n", answered, sessions);
      std::exit(1);
    }
  }
  return counted(1 + servers.size());
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_json = argc == 2 && std::string_view(argv[1]) == "--json";
  if (argc > 1 && !is_json) {
    std::fprintf(stderr, "usage: nic_memory [--json]\n");
    return 2;
  }
  if (software_verbs::control() == nullptr) {
    std::fprintf(stderr, "nic_memory: not over the software provider: run it by on_cable\n");
    return 1;
  }
  if (!is_json) {
    std::printf(
        "| sessions | descriptors | completion entries | doorbells | steering rules |\n|---|---|---|---|---|\n");
  }
  std::optional<NicMemory> first;
  bool is_constant = true;
  for (const uint32_t sessions : kSessions) {
    const NicMemory nic = measure(sessions);
    std::printf(is_json ? "{\"bench\":\"nic_memory\",\"transport\":\"mlx5\",\"params\":{\"sessions\":%u},\"metrics\":{"
                          "\"descriptor_bytes\":%ju,\"completion_bytes\":%ju,\"doorbell_bytes\":%ju,"
                          "\"steering_rules\":%ju}}\n"
                        : "| %u | %ju B | %ju B | %ju B | %ju |\n",
                sessions, nic.descriptors, nic.completions, nic.doorbells, nic.steering_rules);
    if (!first) first = nic;
    is_constant = is_constant && nic == *first && nic.descriptors > 0 && nic.completions > 0 && nic.doorbells > 0 &&
                  nic.steering_rules > 0;
  }
  if (!is_constant) std::fprintf(stderr, "nic_memory: it is not constant\n");
  return is_constant ? 0 : 1;
}
