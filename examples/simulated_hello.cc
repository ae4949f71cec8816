// simulated_hello: the smallest simulation. docs/simulation.md shows it without this comment.
//
// The rule: a program on a simulated host takes the options of its Nexus and of its endpoints from that host. All else
// is as on a real host.
#include <tern/sim.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

using namespace std::chrono_literals;

/// A host's program: a server, and on one host also a client.
struct Program {
  explicit Program(tern::sim::Host& host)
      : nexus(std::move(*tern::Nexus::create(host.uri(), host.nexus_options()))),
        rpc(std::move(*tern::Rpc<tern::Sim>::create(*nexus, host.transport_options(), {.huge_pages = false}))) {
    (void)rpc->on_request(1, [](tern::Request request) { request.respond(); });
    (void)host.run(*rpc);  // from now on the simulation runs its event loop whenever there is work
  }
  std::unique_ptr<tern::Nexus> nexus;
  std::unique_ptr<tern::Rpc<tern::Sim>> rpc;
};

int main() {
  int answers = 0, failures = 0;  // outlive the endpoints, and with them the calls
  auto simulation = std::move(*tern::sim::Simulation::create(tern::sim::Topology::cx4(100), {.seed = 7}));
  for (uint32_t i = 0; i < simulation->hosts(); i++) {
    (void)simulation->host(i).boot([](tern::sim::Host& host) { return std::make_shared<Program>(host); });
  }
  simulation->set_faults({.drop = 0.01});  // of the packets on each cable
  (void)simulation->host(42).crash();

  auto& rpc = *static_cast<Program*>(simulation->host(0).program())->rpc;
  for (uint32_t i = 1; i < simulation->hosts(); i++) {
    auto session = rpc.create_session(simulation->host(i).uri());
    (void)rpc.enqueue_request(*session, 1, rpc.alloc_msgbuf(32), rpc.alloc_msgbuf(32),
                              [&](tern::Completion& done) { done.status.ok() ? answers++ : failures++; });
  }
  simulation->run_for(3s);  // of virtual time
  std::printf("%d answers, %d failure\n", answers, failures);
  return answers == 98 && failures == 1 ? 0 : 1;
}
