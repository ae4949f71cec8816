// simulated_cluster: a client and its servers in a simulated datacenter in which a rack is cut off and a server dies.
//
// The rule: a program takes its time and its randomness from its endpoint and its environment, and names no transport.
// One seed then determines the whole run, and every failure can be repeated.
#include <tern/sim.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "common.h"

using namespace std::chrono_literals;

constexpr uint16_t kName = 1;

/// Serves a name, over any transport.
void serve_name(tern::Endpoint& endpoint, std::string name) {
  must(
      endpoint.on_request(kName, [name = std::move(name)](tern::Request request) { reply(std::move(request), name); }));
}

/// Asks every server for its name until it answers, over any transport.
struct Client {
  tern::Endpoint& endpoint;
  const std::vector<std::string> servers;
  size_t answers = 0, failures = 0;

  void ask_all() {
    for (size_t i = 0; i < servers.size(); i++) ask(i);
  }
  void ask(size_t server) {
    const tern::Session session = must(endpoint.create_session(servers[server], {.connect_timeout = 50ms}));
    must(endpoint.enqueue_request(session, kName, message(endpoint, ""), endpoint.alloc_msgbuf(64),
                                  [this, server](tern::Completion& done) { on_end(server, done); }));
  }
  void on_end(size_t server, const tern::Completion& done) {
    if (done.status.code() == tern::Code::kCancelled) return;  // our own end
    if (done.status.ok()) {
      answers++;
      return;
    }
    failures++;
    must(endpoint.after(10ms, [this, server] { ask(server); }));
  }
};

/// A simulated host's program: what main() would own on a real one.
struct Program {
  explicit Program(tern::sim::Host& host)
      : nexus(must(tern::Nexus::create(host.uri(), host.nexus_options()))),
        rpc(must(tern::Rpc<tern::Sim>::create(*nexus, host.transport_options(), {.huge_pages = false}))) {
    serve_name(*rpc, "server " + std::to_string(host.index()));
    must(host.run(*rpc));
  }
  std::unique_ptr<tern::Nexus> nexus;
  std::unique_ptr<Client> client;  // outlives the endpoint that calls it back
  std::unique_ptr<tern::Rpc<tern::Sim>> rpc;
};

// Two racks and the switch between them. As text, so that it could be a file.
constexpr const char* kTopology = R"(
switch spine  latency=300ns
switch left   buffer=12MiB ecn=65kB latency=450ns
switch right  buffer=12MiB ecn=65kB latency=450ns
link left spine   rate=100G delay=150ns count=2
link right spine  rate=100G delay=150ns count=2
hosts 10 left     rate=25G delay=650ns
hosts 10 right    rate=25G delay=650ns
)";

/// Makes one run. The result depends only on the seed, not on the machine.
uint64_t run(uint64_t seed) {
  const auto topology = must(tern::sim::Topology::parse(kTopology));
  const auto simulation = must(tern::sim::Simulation::create(topology, {.seed = seed}));
  const auto boot = [&](uint32_t host) {
    must(simulation->host(host).boot([](tern::sim::Host& at) { return std::make_shared<Program>(at); }));
  };
  for (uint32_t i = 0; i < simulation->hosts(); i++) boot(i);

  // The faults: a packet in a hundred is lost, the rack on the right is cut off for 30 ms, a host crashes.
  simulation->set_faults({.drop = 0.01, .reorder = 0.01});
  const tern::sim::Node spine{tern::sim::Node::Kind::kSwitch, 0}, right{tern::sim::Node::Kind::kSwitch, 2};
  must(simulation->set_link_up(spine, right, false));
  simulation->after(30ms, [&] { must(simulation->set_link_up(spine, right, true)); });
  must(simulation->host(3).crash());
  simulation->after(100ms, [&] { boot(3); });

  auto& program = *static_cast<Program*>(simulation->host(0).program());
  std::vector<std::string> servers;
  for (uint32_t i = 1; i < simulation->hosts(); i++) servers.push_back(simulation->host(i).uri());
  program.client = std::make_unique<Client>(Client{*program.rpc, servers});
  program.client->ask_all();
  if (!simulation->run_until([&] { return program.client->answers == servers.size(); }, 2s)) {
    std::printf("seed %llu: only %zu answers\n", static_cast<unsigned long long>(seed), program.client->answers);
    std::exit(1);  // run(seed) repeats this failure
  }
  std::printf("seed %llu: %zu answers and %zu failures after %lld ms\n", static_cast<unsigned long long>(seed),
              program.client->answers, program.client->failures,
              static_cast<long long>(simulation->now() / std::chrono::milliseconds(1)));
  return simulation->trace_hash();
}

int main() {
  const uint64_t first = run(1), again = run(1), other = run(2);
  std::printf("%s, %s\n", first == again ? "the same seed is the same run" : "seeds mean nothing",
              first != other ? "another seed another one" : "there is one run only");
  return first == again && first != other ? 0 : 1;
}
