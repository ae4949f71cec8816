// The bare limit of shared memory: 32 B bounced between two spinning threads through the cheapest ring we know.
//
// 64-byte cells with the sequence number in the cell, 256 of them a direction; 32 B are copied in and out; no shared
// index. Nothing of the library is in here: it is what the library's figures are divided by.

#include <gflags/gflags.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "../percentiles.h"
#include "../placement.h"

DEFINE_double(seconds, 2, "how long to measure");
DEFINE_string(cpus, "0,1", "the two CPUs to pin the two sides to");
DEFINE_bool(json, false, "one JSON object on standard output instead of a table");

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
  std::atomic<int> unpinned{0};
  double seconds = 0;
  Percentiles ticks;
};

void echo(World& world, int cpu) {
  world.unpinned += tern::microbench::pin_to_cpu(cpu) ? 0 : 1;
  std::byte message[kMessageBytes];
  for (uint64_t position = 0;; ++position) {
    while (!world.there.try_get(position, message)) {
      if (world.stop.load(std::memory_order_relaxed)) return;
    }
    world.back.put(position, message);
  }
}

void ping(World& world, int cpu) {
  world.unpinned += tern::microbench::pin_to_cpu(cpu) ? 0 : 1;
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
  gflags::SetUsageMessage("bare shared-memory ping-pong of 32 B");
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  int a = 0, b = 0;
  if (std::sscanf(FLAGS_cpus.c_str(), "%d,%d", &a, &b) != 2 || a == b) {
    std::fprintf(stderr, "--cpus wants two different CPUs, like 0,1\n");
    return 1;
  }
  const double placement_before = tern::microbench::placement_ns(a, b);
  const auto world = std::make_unique<World>();
  std::thread other(echo, std::ref(*world), b), one(ping, std::ref(*world), a);
  one.join();
  other.join();
  const double placement = std::max(placement_before, tern::microbench::placement_ns(a, b));
  if (world->unpinned > 0) {
    std::fprintf(stderr, "cannot pin to CPUs %s: choose two that this process may use (taskset -p $$)\n",
                 FLAGS_cpus.c_str());
    return 1;
  }

  const auto us_at = [&](double share) { return world->ticks.at(share) * Ticks::ns_per_tick() / 1e3; };
  const double p50 = us_at(0.5), p99 = us_at(0.99), p999 = us_at(0.999);
  const double rate_mrps = static_cast<double>(world->ticks.count()) / world->seconds / 1e6;
  if (FLAGS_json) {
    const nlohmann::json line = {
        {"bench", "ring_pingpong"},
        {"transport", "ring"},
        {"params", {{"bytes", kMessageBytes}, {"cpus", FLAGS_cpus}, {"seconds", FLAGS_seconds}}},
        {"metrics", {{"p50_us", p50}, {"p99_us", p99}, {"p999_us", p999}, {"rate_mrps", rate_mrps}}},
        {"placement_ns", placement}};
    std::puts(line.dump().c_str());
  } else {
    std::printf("bare ring, 32 B ping-pong, cache line %.0f ns\n", placement);
    std::printf("%10s %10s %10s %12s\n%10.3f %10.3f %10.3f %12.3f\n", "p50 us", "p99 us", "p99.9 us", "M/s", p50, p99,
                p999, rate_mrps);
  }
}
