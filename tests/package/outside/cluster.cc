#include <tern/sim/network.h>

#include <cstdio>

int main() {
  auto topology = tern::sim::Topology::parse("switch s latency=300ns\nhosts 4 s rate=25G");
  std::printf("sim: %s\n", topology.status().message().data());
  return topology.ok() && topology->hosts() == 4 && tern::sim::Topology::cx4().check().ok() ? 0 : 1;
}
