// The bare limit of small RPCs over DPDK: 60 frames with datagrams of tern's wire size travel to and fro over net_memif
// between two spinning threads, in bursts.
//
// Both sides send an arrived frame back unchanged. The program contains no code of the library, because the library's
// results are divided by its result.
//
// Variants that were tried on a busy machine, where this version has 11.9 M/s while both sides ran: no pause, which
// disturbs the ring while the other side writes it, 5.6; three times the pause 7.9; bursts of 8 / 16 3.0 / 8.4; rings
// of 64 / 128 descriptors 5.3 / 7.1. --zero_copy, which is another device, about 17.

#include <rte_pause.h>

#include <atomic>
#include <cstdint>

#include "memif.h"

namespace {

/// A message of 32 B after a header of 24 B.
constexpr uint16_t kDatagramBytes = 24 + 32;
constexpr uint16_t kOutstanding = 60;

struct World {
  limits::MemifPair ports;
  std::atomic<bool> stop{false};
  limits::Counted answered;
};

/// Pauses after a burst of few frames, so that the next burst has more.
void pause_after(uint16_t count) {
  constexpr uint16_t kFew = 20;
  constexpr int kPauses = 10;
  if (count >= kFew) return;
  for (int i = 0; i < kPauses; ++i) rte_pause();
}

void echo(World& world) {
  limits::use_pool_caches();
  rte_mbuf* frames[limits::kBurst];
  while (!world.stop.load(std::memory_order_relaxed)) {
    const uint16_t count = world.ports.server.receive(frames);
    world.ports.server.transmit_all(frames, count);
    pause_after(count);
  }
}

void ask(World& world) {
  limits::use_pool_caches();
  rte_mbuf* frames[limits::kBurst];
  for (uint16_t sent = 0; sent < kOutstanding; ++sent) {
    frames[0] = world.ports.client.new_frame(kDatagramBytes);
    world.ports.client.transmit_all(frames, 1);
  }
  world.answered = limits::count_rounds<4096>([&] {
    const uint16_t count = world.ports.client.receive(frames);
    world.ports.client.transmit_all(frames, count);
    pause_after(count);
    return count;
  });
  world.stop = true;
}

}  // namespace

int main(int argc, char** argv) {
  if (!limits::parse_flags(argc, argv,
                           "The highest rate of small requests and responses over DPDK: 56 B datagrams over net_memif, "
                           "60 of them outstanding"))
    return 1;
  World world;
  if (!limits::open_memif_pair(world.ports, 10)) return 1;
  const auto placement = limits::run_pinned([&] { echo(world); }, [&] { ask(world); });
  if (!placement) return 1;
  if (world.answered.count == 0) return limits::fail("nothing was answered: the two ports are no longer connected");
  return limits::print("dpdk_echo", "dpdk",
                       {{"size", kDatagramBytes},
                        {"window", kOutstanding},
                        {"zero_copy", FLAGS_zero_copy},
                        {"huge_pages", world.ports.has_huge_pages}},
                       {{"rate_mrps", static_cast<double>(world.answered.count) / world.answered.seconds / 1e6}},
                       *placement);
}
