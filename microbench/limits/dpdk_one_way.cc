// The bare limit of large messages over DPDK: bursts of full frames one way over net_memif between two spinning
// threads. The result counts the bytes of received datagrams.
//
// The sender takes frames out of its pool and sets their length; the receiver frees them to its own pool. Neither side
// reads or writes their content. The program contains no code of the library, because the library's results are divided
// by its result.
//
// Variants that were tried on a busy machine, where this version has 69 Gbit/s while both sides ran: rings of 32 / 128
// / 1024 descriptors 20 / 57 / 53, bursts of 16 / 64 28 / 64. Pauses of either side, and smaller pool caches: no
// measurable difference. --zero_copy, which is another device, about 150.

#include <atomic>
#include <cstdint>

#include "memif.h"

namespace {

/// The payload of a frame with the driver's MTU, 1500.
constexpr uint16_t kDatagramBytes = 1514 - limits::kHeaderBytes;

struct World {
  limits::MemifPair ports;
  std::atomic<bool> stop{false};
  limits::Counted bytes;  ///< received
};

void receive(World& world) {
  limits::use_pool_caches();
  rte_mbuf* frames[limits::kBurst];
  world.bytes = limits::count_rounds<4096>([&] {
    const uint16_t count = world.ports.server.receive(frames);
    rte_pktmbuf_free_bulk(frames, count);
    return uint64_t{count} * kDatagramBytes;
  });
  world.stop = true;
}

void transmit(World& world) {
  limits::use_pool_caches();
  const limits::MemifPort& port = world.ports.client;
  rte_mbuf* frames[limits::kBurst];
  uint16_t first = limits::kBurst;  // the first frame that the port has not taken
  while (!world.stop.load(std::memory_order_relaxed)) {
    if (first == limits::kBurst) {
      if (rte_pktmbuf_alloc_bulk(port.pool, frames, limits::kBurst) != 0) continue;
      for (rte_mbuf* frame : frames) rte_pktmbuf_append(frame, kDatagramBytes + limits::kHeaderBytes);
      first = 0;
    }
    const auto left = static_cast<uint16_t>(limits::kBurst - first);
    first = static_cast<uint16_t>(first + rte_eth_tx_burst(port.id, 0, frames + first, left));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (!limits::parse_flags(argc, argv,
                           "The highest bandwidth of DPDK one way, as received: full frames over net_memif"))
    return 1;
  World world;
  if (!limits::open_memif_pair(world.ports, 8)) return 1;
  const auto placement = limits::run_pinned([&] { receive(world); }, [&] { transmit(world); });
  if (!placement) return 1;
  if (world.bytes.count == 0) return limits::fail("nothing arrived: the two ports are no longer connected");
  return limits::print(
      "dpdk_one_way", "dpdk",
      {{"size", kDatagramBytes}, {"zero_copy", FLAGS_zero_copy}, {"huge_pages", world.ports.has_huge_pages}},
      {{"bandwidth_gbps", static_cast<double>(world.bytes.count) * 8 / world.bytes.seconds / 1e9}}, *placement);
}
