// The bare limit of large messages over AF_XDP: full frames one way over a veth pair between two spinning threads. The
// result counts the bytes of received datagrams.
//
// Neither side reads or writes the content of the frames. The program contains no code of the library, because the
// library's results are divided by its result. The sending thread is the bottleneck: the kernel copies each frame twice
// in its system calls.

#include <atomic>
#include <cstdint>

#include "veth.h"

DEFINE_uint32(mtu, 1500, "MTU of the pair, 576 to 3498");

namespace {

struct World {
  limits::VethPair ports;
  std::atomic<bool> stop{false};
  uint32_t datagram_bytes = 0;
  limits::Counted bytes;  ///< received
};

void receive(World& world) {
  world.bytes =
      limits::count_rounds<4096>([&] { return uint64_t{world.ports.server.drop_arrived()} * world.datagram_bytes; });
  world.stop = true;
}

void transmit(World& world) {
  constexpr uint32_t kUnderWay = 256;
  const uint32_t frame_bytes = world.datagram_bytes + limits::kHeaderBytes;
  for (uint32_t frame = 0; frame < kUnderWay; ++frame) world.ports.client.queue_new(frame, frame_bytes);
  while (!world.stop.load(std::memory_order_relaxed)) world.ports.client.send_done_again(frame_bytes);
}

}  // namespace

int main(int argc, char** argv) {
  if (!limits::parse_flags(argc, argv,
                           "The highest bandwidth of AF_XDP one way, as received: full frames over a veth pair"))
    return 1;
  if (FLAGS_mtu < 576 || FLAGS_mtu > limits::kMtuMax) return limits::fail("--mtu=%u is not 576 to 3498", FLAGS_mtu);
  World world;
  world.datagram_bytes = FLAGS_mtu - (limits::kHeaderBytes - 14);
  if (!limits::open_veth_pair(world.ports, FLAGS_mtu)) return 1;
  world.ports.server.fill(0, limits::VethPort::kFrames);
  const auto placement = limits::run_pinned([&] { receive(world); }, [&] { transmit(world); });
  if (!placement) return 1;
  if (world.bytes.count == 0) return limits::fail("nothing arrived: the frames have been lost");
  return limits::print(
      "xdp_one_way", "xdp", {{"size", world.datagram_bytes}, {"mtu", FLAGS_mtu}, {"generic", FLAGS_generic}},
      {{"bandwidth_gbps", static_cast<double>(world.bytes.count) * 8 / world.bytes.seconds / 1e9}}, *placement);
}
