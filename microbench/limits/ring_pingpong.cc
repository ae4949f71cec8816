// The bare limit of shared memory: 32 B bounce between two spinning threads through the cheapest ring that we know.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common.h"
#include "ring.h"

namespace {

using limits::kMessageBytes;
using tern::microbench::Percentiles;
using tern::microbench::Ticks;

struct World {
  limits::Ring<256> there, back;
  alignas(64) std::atomic<bool> stop{false};
  double seconds = 0;
  Percentiles ticks;
};

void echo(World& world) {
  std::byte message[kMessageBytes];
  for (uint64_t position = 0;; ++position) {
    while (!world.there.try_get(position, message)) {
      if (world.stop.load(std::memory_order_relaxed)) return;
    }
    world.back.put(position, message);
  }
}

void ping(World& world) {
  constexpr uint64_t kWarmUp = 10'000, kRoundsPerClock = 1024;
  std::byte message[kMessageBytes] = {};
  auto start = std::chrono::steady_clock::now();
  uint64_t before = Ticks::now(), last = 0;
  for (uint64_t position = 0;; ++position) {
    world.there.put(position, message);
    world.ticks.add(last);  // records the round before while the message is under way
    while (!world.back.try_get(position, message)) {
    }
    const uint64_t after = Ticks::now();
    last = after - before;
    before = after;
    if (position % kRoundsPerClock != 0) continue;
    const auto time = std::chrono::steady_clock::now();
    if (position <= kWarmUp) {
      world.ticks.clear();
      start = time;
    } else if (time - start > std::chrono::duration<double>(FLAGS_seconds)) {
      world.seconds = std::chrono::duration<double>(time - start).count();
      break;
    }
    before = Ticks::now();
  }
  world.stop = true;
}

}  // namespace

int main(int argc, char** argv) {
  if (!limits::parse_flags(argc, argv, "The least latency of shared memory: 32 B ping-pong over a bare ring")) return 1;
  const auto world = std::make_unique<World>();
  const auto placement = limits::run_pinned([&] { echo(*world); }, [&] { ping(*world); });
  if (!placement) return 1;
  return limits::print("ring_pingpong", "ring", {{"size", kMessageBytes}},
                       limits::latency_metrics(world->ticks, world->seconds), *placement);
}
