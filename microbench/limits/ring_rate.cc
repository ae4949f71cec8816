// The bare limit of small requests over shared memory: a client thread keeps 60 messages of 32 B on their way to a
// server thread and back. Both threads take up to 8 messages at a time out of one ring and put them into the other.
//
// The choices that made it fast, with the alternatives in shares of its rate. Two rings of 128 cells fit into the
// first-level cache together (two of 256 fill 32 KiB of it to the last line: 0.6 near, 0.8 far). Taking 8 messages
// before answering lets their cache misses overlap (one by one: 0.6-0.7); taking all available messages leaves the
// other side idle meanwhile (0.7 near, 0.45 far). A client that waits for 8 messages does not fetch the line that the
// server is writing (without the wait: 0.75 near, 0.9 far). Prefetching for writing, pauses in the spin and other
// numbers than 8 gained nothing.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common.h"
#include "ring.h"

DEFINE_uint32(cells, 128, "cells of a ring: 128 or 256");

namespace {

using limits::kMessageBytes;

constexpr uint64_t kOutstanding = 60, kTaken = 8;
constexpr std::byte kPattern{0x5a};

template <size_t kCells>
struct World {
  static_assert(kCells > kOutstanding);
  limits::Ring<kCells> there, back;
  alignas(64) std::atomic<bool> stop{false};
  uint64_t answered = 0;
  double seconds = 0;
  bool is_intact = true;  ///< all messages still have their original bytes
};

struct Batch {
  std::byte messages[kTaken][kMessageBytes];
};

/// Takes the available messages, at most kTaken. Returns their number.
template <size_t kCells>
uint64_t take(const limits::Ring<kCells>& ring, uint64_t position, Batch& batch) {
  uint64_t taken = 0;
  while (taken < kTaken && ring.try_get(position + taken, batch.messages[taken])) ++taken;
  return taken;
}

template <size_t kCells>
void put(limits::Ring<kCells>& ring, uint64_t position, const Batch& batch, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) ring.put(position + i, batch.messages[i]);
}

template <size_t kCells>
void serve(World<kCells>& world) {
  Batch batch;
  for (uint64_t position = 0;;) {
    const uint64_t taken = take(world.there, position, batch);
    if (taken == 0 && world.stop.load(std::memory_order_relaxed)) return;
    put(world.back, position, batch, taken);
    position += taken;
  }
}

template <size_t kCells>
void call(World<kCells>& world) {
  using Clock = std::chrono::steady_clock;
  constexpr uint64_t kWarmUp = 1 << 20, kMessagesPerClock = 1 << 16;
  Batch batch;
  std::fill_n(&batch.messages[0][0], sizeof(batch), kPattern);
  uint64_t sent = 0, answered = 0;
  while (sent < kOutstanding) world.there.put(sent++, batch.messages[0]);
  Clock::time_point start;
  for (uint64_t next_clock = kWarmUp;;) {
    if (!world.back.has(answered + kTaken - 1)) continue;
    take(world.back, answered, batch);
    put(world.there, sent, batch, kTaken);
    sent += kTaken;
    answered += kTaken;
    if (answered < next_clock) continue;
    const Clock::time_point now = Clock::now();
    if (next_clock == kWarmUp) start = now;
    next_clock = answered + kMessagesPerClock;
    world.seconds = std::chrono::duration<double>(now - start).count();
    if (world.seconds > FLAGS_seconds) break;
  }
  world.answered = answered - kWarmUp;
  world.is_intact = std::all_of(&batch.messages[0][0], &batch.messages[0][0] + sizeof(batch),
                                [](std::byte byte) { return byte == kPattern; });
  world.stop = true;
}

template <size_t kCells>
int run() {
  const auto world = std::make_unique<World<kCells>>();
  const auto placement = limits::run_pinned([&] { serve(*world); }, [&] { call(*world); });
  if (!placement) return 1;
  if (!world->is_intact) return limits::fail("messages came back with other bytes than they had");
  return limits::print("ring_rate", "ring", {{"size", kMessageBytes}, {"window", kOutstanding}, {"cells", kCells}},
                       {{"rate_mrps", static_cast<double>(world->answered) / world->seconds / 1e6}}, *placement);
}

}  // namespace

int main(int argc, char** argv) {
  if (!limits::parse_flags(argc, argv, "The highest rate of 32 B messages over bare rings, 60 on their way")) return 1;
  if (FLAGS_cells == 128) return run<128>();
  if (FLAGS_cells == 256) return run<256>();
  return limits::fail("--cells=%u is neither 128 nor 256", FLAGS_cells);
}
