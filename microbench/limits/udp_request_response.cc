// The bare limit of small RPCs over kernel UDP: datagrams of tern's wire size travel there and back over loopback, a
// train of datagrams in each call (GSO, GRO), between two spinning threads.
//
// It uses connected sockets, the segment size as a socket option, and plain send and recv; the server sends back what
// it received. The program contains no code of the library, because the library's results are divided by its result.
//
// Variants that were tried near, with 10 / 60 datagrams a call, where this version has 2.87 / 8.8 M/s: segment size by
// control message 2.63 / -, unconnected sockets 0.93 of its rate (far), recvmsg instead of recv 0.92 (far), separate
// sockets for sending and receiving 1.00 / 0.98, no GRO 0.09. No difference: a larger receive buffer, emptying the
// queue before the next train, a pause between polls, "don't fragment", and 120 outstanding datagrams.

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common.h"
#include "udp_socket.h"

DEFINE_uint64(segments, 10, "datagrams a call; 60 are outstanding in all");

namespace {

/// A message of 32 B after a header of 24 B.
constexpr size_t kDatagramBytes = 24 + 32;
constexpr uint64_t kOutstanding = 60;

struct World {
  limits::UdpSocket client, server;
  std::atomic<bool> stop{false};
  limits::Counted answered;
  uint64_t lost = 0;

  bool open() {
    return client.open() && server.open() && client.connect_to(server) && server.connect_to(client) &&
           client.use_trains(kDatagramBytes) && server.use_trains(kDatagramBytes);
  }
};

void echo(World& world) {
  std::vector<std::byte> train(limits::kReceiveBytes);
  const int fd = world.server.fd;
  while (!world.stop.load(std::memory_order_relaxed)) {
    const ssize_t got = recv(fd, train.data(), train.size(), 0);
    if (got > 0) send(fd, train.data(), static_cast<size_t>(got), 0);
  }
}

void ask(World& world) {
  constexpr uint64_t kTriesMax = 10'000'000;  // some seconds; after that the messages count as lost
  const std::vector<std::byte> requests(FLAGS_segments * kDatagramBytes);
  std::vector<std::byte> responses(limits::kReceiveBytes);
  const int fd = world.client.fd;
  uint64_t outstanding = 0, tries = 0;
  world.answered = limits::count_rounds<256>([&]() -> uint64_t {
    for (; outstanding + FLAGS_segments <= kOutstanding; outstanding += FLAGS_segments) {
      send(fd, requests.data(), requests.size(), 0);
    }
    const ssize_t got = recv(fd, responses.data(), responses.size(), 0);
    if (got > 0) {
      const uint64_t count = static_cast<uint64_t>(got) / kDatagramBytes;
      outstanding -= std::min(outstanding, count);  // an answer may come after it was counted as lost
      tries = 0;
      return count;
    }
    if (++tries == kTriesMax) {
      world.lost += outstanding;
      outstanding = tries = 0;
    }
    return 0;
  });
  world.stop = true;
}

}  // namespace

int main(int argc, char** argv) {
  if (!limits::parse_flags(argc, argv,
                           "The highest rate of small requests and responses over kernel UDP: trains of 56 B datagrams "
                           "(GSO, GRO), 60 datagrams outstanding"))
    return 1;
  if (FLAGS_segments < 1 || FLAGS_segments > kOutstanding) return limits::fail("--segments must be between 1 and 60");
  World world;
  if (!world.open()) return limits::fail("no UDP sockets with GSO and GRO on 127.0.0.1: %s", std::strerror(errno));
  const auto placement = limits::run_pinned([&] { echo(world); }, [&] { ask(world); });
  if (!placement) return 1;
  if (world.answered.count == 0) return limits::fail("nothing was answered: does a firewall drop UDP on 127.0.0.1?");
  return limits::print("udp_request_response", "udp",
                       {{"size", kDatagramBytes}, {"segments", FLAGS_segments}, {"window", kOutstanding}},
                       {{"rate_mrps", static_cast<double>(world.answered.count) / world.answered.seconds / 1e6},
                        {"lost_packets", world.lost}},
                       *placement);
}
