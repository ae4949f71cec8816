// The program that most tests boot on a simulated host: a Nexus and an endpoint.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <utility>

#include <tern/rpc.h>
#include <tern/sim.h>

namespace tern::sim {

/// The endpoint runs in the simulation. Tests derive from this program and add handlers and calls.
struct SimProgram {
  explicit SimProgram(Host& host, RpcOptions options = {}) : SimProgram(host, host.nexus_options(), options) {}
  SimProgram(Host& host, const NexusOptions& nexus_options, RpcOptions options = {}) {
    auto made = Nexus::create(host.uri(), nexus_options);
    EXPECT_TRUE(made.ok()) << made.status().message();
    nexus = std::move(*made);
    options.huge_pages = false;
    auto endpoint = Rpc<Sim>::create(*nexus, host.transport_options(), options);
    EXPECT_TRUE(endpoint.ok()) << endpoint.status().message();
    rpc = std::move(*endpoint);
    EXPECT_TRUE(host.run(*rpc).ok());
  }

  std::unique_ptr<Nexus> nexus;
  std::unique_ptr<Rpc<Sim>> rpc;
};

/// Answers a request with its first `bytes` bytes.
inline void echo(Request& request, size_t bytes) {
  auto out = request.response(bytes);
  ASSERT_TRUE(out.ok()) << out.status().message();
  std::memcpy(out->data(), request.bytes().data(), bytes);
  request.respond();
}
inline void echo(Request& request) { echo(request, request.bytes().size()); }

/// Boots a Program on each host of the topology. Its constructor gets the Host and `arguments`.
template <class Program, class... Arguments>
std::unique_ptr<Simulation> simulate(const Topology& topology, const SimulationOptions& options,
                                     const Arguments&... arguments) {
  auto simulation = Simulation::create(topology, options);
  EXPECT_TRUE(simulation.ok()) << simulation.status().message();
  for (uint32_t i = 0; i < topology.hosts(); i++) {
    const auto program = [&](Host& host) { return std::make_shared<Program>(host, arguments...); };
    EXPECT_TRUE((*simulation)->host(i).boot(program).ok());
  }
  return std::move(*simulation);
}

/// The program that simulate() booted on that host.
template <class Program>
Program& program_of(Simulation& simulation, uint32_t host) {
  return *static_cast<Program*>(simulation.host(host).program());
}

}  // namespace tern::sim
