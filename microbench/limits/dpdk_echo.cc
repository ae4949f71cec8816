// The bare limit of small RPCs over DPDK: 60 frames with datagrams of tern's wire size go to and fro over net_memif
// between two spinning threads, in bursts.
//
// Both sides send again what has arrived, as it is. Nothing of the library is in here: it is what the library's figures
// are divided by.
//
// Tried beside it, on a busy machine, this one being 11.9 M/s while both sides ran: no pause, which pulls at the ring
// that is being written, 5.6; three times the pause 7.9; bursts of 8 / 16 3.0 / 8.4; rings of 64 / 128 descriptors 5.3
// / 7.1.
// --zero_copy about 17, by another device.

#include <rte_pause.h>

#include <atomic>
#include <cstdint>

#include "memif.h"

namespace {

/// A 32 B message behind a header of 24.
constexpr uint16_t kDatagramBytes = 24 + 32;
constexpr uint16_t kOutstanding = 60;

struct World {
  limits::MemifPair ports;
  std::atomic<bool> stop{false};
  limits::Counted answered;
};

/// After a burst of few frames: more come in one go.
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
  if (world.answered.count == 0) return limits::fail("nothing was answered: the two ports have lost each other");
  limits::print("dpdk_echo", "dpdk",
                {{"size", kDatagramBytes},
                 {"window", kOutstanding},
                 {"zero_copy", FLAGS_zero_copy},
                 {"huge_pages", world.ports.has_huge_pages}},
                {{"rate_mrps", static_cast<double>(world.answered.count) / world.answered.seconds / 1e6}}, *placement);
}
