// The bare limit of shared memory: 32 B bounced between two spinning threads through the cheapest ring we know.
//
// 64-byte cells with the sequence number in the cell, 256 of them a direction; 32 B are copied in and out; no shared
// index. Nothing of the library is in here: it is what the library's figures are divided by.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "common.h"

namespace {

using tern::microbench::Percentiles;
using tern::microbench::Ticks;

constexpr size_t kCells = 256, kMessageBytes = 32;

struct alignas(64) Cell {
  std::atomic<uint64_t> sequence;  ///< 1 + position of the message that lies here
  std::byte bytes[kMessageBytes];
};
static_assert(sizeof(Cell) == 64);

/// One direction. Each side keeps its position to itself: a ping-pong never has more than one message under way.
struct Ring {
  Cell cells[kCells] = {};
  void put(uint64_t position, const std::byte* bytes) {
    Cell& cell = cells[position % kCells];
    std::memcpy(cell.bytes, bytes, kMessageBytes);
    cell.sequence.store(position + 1, std::memory_order_release);
  }
  bool try_get(uint64_t position, std::byte* bytes) {
    Cell& cell = cells[position % kCells];
    if (cell.sequence.load(std::memory_order_acquire) != position + 1) return false;
    std::memcpy(bytes, cell.bytes, kMessageBytes);
    return true;
  }
};

struct World {
  Ring there, back;
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
    world.ticks.add(last);  // of the round before: recorded while the message is under way
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
  limits::print("ring_pingpong", "ring", {{"size", kMessageBytes}},
                limits::latency_metrics(world->ticks, world->seconds), *placement);
}
