// The bare limit of large messages over kernel UDP: datagrams one way over loopback, a train of datagrams in each call
// (GSO, GRO), between two spinning threads. The result counts received bytes.
//
// The program contains no code of the library, because the library's results are divided by its result.
//
// The sending thread is the bottleneck, because it carries each train up to the receiver's queue. It does not wait for
// the receiver: if the receiver is slower, the queue overflows at no cost to the sender. Variants that were tried near,
// where this version has 5.96 GB/s with datagrams of 1400 B: 30 / 36 / 40 / 42 segments a call 5.2 / 5.5 / 5.8 / 5.87;
// a window of 1 / 2 / 4 / 8 calls 5.0 / 5.8 / 5.87 / 5.8; receive buffers of 256 kB and 4 MB 5.8 and 5.95; no GRO 2.2;
// buffers of 8 MB on both sides instead of the same 64 kB again 5.6. With datagrams of 65 048 B, where it has 80
// Gbit/s, buffers of 8 MB reduce that to 64 Gbit/s: the kernel reads the message from a farther cache.

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common.h"
#include "udp_socket.h"

DEFINE_uint32(datagram_bytes, 1400, "length of a datagram, up to 65507");

namespace {

/// The maximum number of segments in one call.
size_t segments() { return std::min(limits::kCallBytesMax / FLAGS_datagram_bytes, limits::kSegmentsMax); }

struct World {
  limits::UdpSocket client, server;
  std::atomic<bool> stop{false};
  limits::Counted bytes;  ///< received

  /// 0: a call sends one datagram.
  static int train_segment_bytes() { return segments() > 1 ? static_cast<int>(FLAGS_datagram_bytes) : 0; }
  bool open() {
    return client.open() && server.open() && client.connect_to(server) && server.connect_to(client) &&
           client.use_trains(train_segment_bytes()) && server.use_trains(train_segment_bytes());
  }
};

void receive(World& world) {
  std::vector<std::byte> train(limits::kReceiveBytes);
  world.bytes = limits::count_rounds<64>([&] {
    const ssize_t got = recv(world.server.fd, train.data(), train.size(), 0);
    return static_cast<uint64_t>(std::max<ssize_t>(got, 0));
  });
  world.stop = true;
}

void transmit(World& world) {
  const std::vector<std::byte> train(segments() * FLAGS_datagram_bytes);
  while (!world.stop.load(std::memory_order_relaxed)) send(world.client.fd, train.data(), train.size(), 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (!limits::parse_flags(argc, argv,
                           "The highest bandwidth of kernel UDP one way, as received: trains of datagrams (GSO, GRO)"))
    return 1;
  if (FLAGS_datagram_bytes < 1 || FLAGS_datagram_bytes > limits::kCallBytesMax) {
    return limits::fail("--datagram_bytes=%u is not between 1 and %zu", FLAGS_datagram_bytes, limits::kCallBytesMax);
  }
  World world;
  if (!world.open()) return limits::fail("no UDP sockets with GSO and GRO on 127.0.0.1: %s", std::strerror(errno));
  const auto placement = limits::run_pinned([&] { receive(world); }, [&] { transmit(world); });
  if (!placement) return 1;
  if (world.bytes.count == 0) return limits::fail("nothing arrived: does a firewall drop UDP on 127.0.0.1?");
  return limits::print("udp_one_way", "udp", {{"size", FLAGS_datagram_bytes}, {"segments", segments()}},
                       {{"bandwidth_gbps", static_cast<double>(world.bytes.count) * 8 / world.bytes.seconds / 1e9}},
                       *placement);
}
