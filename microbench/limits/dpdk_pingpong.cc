// The bare limit of DPDK's latency: a frame with 32 B bounces over net_memif between two spinning threads.
//
// A side sends an arrived frame back unchanged: neither side reads or writes the message. The program contains no code
// of the library, because the library's results are divided by its result.
//
// Variants that were tried, in shares of the round trip, with two CPUs far apart: rings of 32, 256 and 1024
// descriptors, buffers of 256 B, pools without caches, the ports' roles exchanged: 0.97 to 1.02. --zero_copy, which is
// another device, 0.69.

#include <atomic>
#include <cstdint>

#include "memif.h"

namespace {

constexpr uint16_t kMessageBytes = 32;

struct World {
  limits::MemifPair ports;
  std::atomic<bool> stop{false};
  limits::Timed round_trips;
};

void echo(World& world) {
  limits::use_pool_caches();
  rte_mbuf* frames[limits::kBurst];
  while (!world.stop.load(std::memory_order_relaxed)) {
    const uint16_t count = world.ports.server.receive(frames);
    world.ports.server.transmit_all(frames, count);
  }
}

void ping(World& world) {
  limits::use_pool_caches();
  rte_mbuf* frames[limits::kBurst] = {world.ports.client.new_frame(kMessageBytes)};
  world.round_trips = limits::time_round_trips<20'000, 1024>([&] {
    world.ports.client.transmit_all(frames, 1);
    while (world.ports.client.receive(frames) == 0) {
    }
  });
  world.stop = true;
}

}  // namespace

int main(int argc, char** argv) {
  if (!limits::parse_flags(argc, argv, "The least latency of DPDK: 32 B ping-pong over net_memif")) return 1;
  World world;
  if (!limits::open_memif_pair(world.ports, 10)) return 1;
  const auto placement = limits::run_pinned([&] { echo(world); }, [&] { ping(world); });
  if (!placement) return 1;
  return limits::print(
      "dpdk_pingpong", "dpdk",
      {{"size", kMessageBytes}, {"zero_copy", FLAGS_zero_copy}, {"huge_pages", world.ports.has_huge_pages}},
      limits::latency_metrics(world.round_trips.ticks, world.round_trips.seconds), *placement);
}
