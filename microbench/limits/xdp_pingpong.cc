// The bare limit of AF_XDP's latency: a frame with 32 B bounces over a veth pair between two spinning threads.
//
// A side sends an arrived frame back unchanged: neither side reads or writes the message. The program contains no code
// of the library, because the library's results are divided by its result. --generic takes 0.82 of the time over veth,
// whose driver makes a new packet for XDP.

#include <atomic>
#include <cstdint>

#include "veth.h"

namespace {

constexpr uint32_t kMessageBytes = 32;

struct World {
  limits::VethPair ports;
  std::atomic<bool> stop{false};
  limits::Timed round_trips;
};

void echo(World& world) {
  while (!world.stop.load(std::memory_order_relaxed)) world.ports.server.send_again();
}

void ping(World& world) {
  world.ports.client.send_new(0, limits::kHeaderBytes + kMessageBytes);
  world.round_trips = limits::time_round_trips<2'000, 256>([&] {
    while (world.ports.client.send_again() == 0) {
    }
  });
  world.stop = true;
}

}  // namespace

int main(int argc, char** argv) {
  if (!limits::parse_flags(argc, argv, "The least latency of AF_XDP: 32 B ping-pong over a veth pair")) return 1;
  World world;
  if (!limits::open_veth_pair(world.ports, 1500)) return 1;
  world.ports.server.fill(0, limits::VethPort::kFrames);
  world.ports.client.fill(1, limits::VethPort::kFrames - 1);
  const auto placement = limits::run_pinned([&] { echo(world); }, [&] { ping(world); });
  if (!placement) return 1;
  return limits::print("xdp_pingpong", "xdp", {{"size", kMessageBytes}, {"generic", FLAGS_generic}},
                       limits::latency_metrics(world.round_trips.ticks, world.round_trips.seconds), *placement);
}
