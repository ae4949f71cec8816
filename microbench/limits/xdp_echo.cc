// The bare limit of small RPCs over AF_XDP, one in each frame: 60 frames with datagrams of tern's wire size travel to
// and fro over a veth pair between two spinning threads, in bursts.
//
// Both sides send an arrived frame back unchanged. The program contains no code of the library, because the library's
// results are divided by its result.
//
// Variants that were tried on a busy machine, where this version has 0.50 M/s while both sides ran: a side that waits a
// microsecond or a few until 16 / 30 / 60 frames have arrived, 0.51 / 0.48 / 0.34. --generic, which is another path
// through the kernel, 0.54.

#include <atomic>
#include <cstdint>

#include "veth.h"

namespace {

/// A message of 32 B after a header of 24 B.
constexpr uint32_t kDatagramBytes = 24 + 32;
constexpr uint32_t kOutstanding = 60;

struct World {
  limits::VethPair ports;
  std::atomic<bool> stop{false};
  limits::Counted answered;
};

void echo(World& world) {
  while (!world.stop.load(std::memory_order_relaxed)) world.ports.server.send_again();
}

void ask(World& world) {
  for (uint32_t frame = 0; frame < kOutstanding; ++frame) {
    world.ports.client.send_new(frame, limits::kHeaderBytes + kDatagramBytes);
  }
  world.answered = limits::count_rounds<256>([&] { return world.ports.client.send_again(); });
  world.stop = true;
}

}  // namespace

int main(int argc, char** argv) {
  if (!limits::parse_flags(argc, argv,
                           "The highest rate of small requests and responses over AF_XDP, one a frame: 56 B datagrams "
                           "over a veth pair, 60 of them outstanding"))
    return 1;
  World world;
  if (!limits::open_veth_pair(world.ports, 1500)) return 1;
  world.ports.server.fill(0, limits::VethPort::kFrames);
  world.ports.client.fill(kOutstanding, limits::VethPort::kFrames - kOutstanding);
  const auto placement = limits::run_pinned([&] { echo(world); }, [&] { ask(world); });
  if (!placement) return 1;
  if (world.answered.count == 0) return limits::fail("nothing was answered: the frames have been lost");
  return limits::print(
      "xdp_echo", "xdp", {{"size", kDatagramBytes}, {"window", kOutstanding}, {"generic", FLAGS_generic}},
      {{"rate_mrps", static_cast<double>(world.answered.count) / world.answered.seconds / 1e6}}, *placement);
}
