// The bare limit of kernel UDP: 32 B bounce over loopback between two spinning threads.
//
// It uses non-blocking connected sockets, send and recv; --connected=false uses sendto and recvfrom. The program
// contains no code of the library, because the library's results are divided by its result.

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common.h"
#include "udp_socket.h"

DEFINE_bool(connected, true, "connected sockets; false: addresses in each call");

namespace {

constexpr size_t kMessageBytes = 32;

struct World {
  limits::UdpSocket client, server;
  std::atomic<bool> stop{false};
  uint64_t lost = 0;
  limits::Timed round_trips;
};

/// Returns false if no message has arrived. Sets `from` to the sender if the sockets are unconnected.
template <bool kConnected>
bool try_receive(int fd, std::byte* message, sockaddr_in* from) {
  socklen_t from_bytes = sizeof(*from);
  const ssize_t got = kConnected
                          ? recv(fd, message, kMessageBytes, 0)
                          : recvfrom(fd, message, kMessageBytes, 0, reinterpret_cast<sockaddr*>(from), &from_bytes);
  return got == static_cast<ssize_t>(kMessageBytes);
}

template <bool kConnected>
void transmit(int fd, const std::byte* message, const sockaddr_in& to) {
  [[maybe_unused]] const ssize_t sent =
      kConnected ? send(fd, message, kMessageBytes, 0)
                 : sendto(fd, message, kMessageBytes, 0, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
}

template <bool kConnected>
void echo(World& world) {
  std::byte message[kMessageBytes];
  sockaddr_in from{};
  while (!world.stop.load(std::memory_order_relaxed)) {
    if (try_receive<kConnected>(world.server.fd, message, &from)) transmit<kConnected>(world.server.fd, message, from);
  }
}

template <bool kConnected>
void ping(World& world) {
  constexpr uint64_t kTriesMax = 10'000'000;  // some seconds; after that the message counts as lost
  std::byte message[kMessageBytes] = {};
  sockaddr_in from{};
  world.round_trips = limits::time_round_trips<2'000, 256>([&] {
    transmit<kConnected>(world.client.fd, message, world.server.address);
    uint64_t tries = 0;
    while (!try_receive<kConnected>(world.client.fd, message, &from) && ++tries < kTriesMax) {
    }
    if (tries == kTriesMax) ++world.lost;
  });
  world.stop = true;
}

}  // namespace

int main(int argc, char** argv) {
  if (!limits::parse_flags(argc, argv, "The least latency of kernel UDP: 32 B ping-pong over loopback")) return 1;
  World world;
  if (!world.client.open() || !world.server.open() ||
      (FLAGS_connected && !(world.client.connect_to(world.server) && world.server.connect_to(world.client)))) {
    return limits::fail("no UDP sockets on 127.0.0.1: %s", std::strerror(errno));
  }
  const auto placement = FLAGS_connected ? limits::run_pinned([&] { echo<true>(world); }, [&] { ping<true>(world); })
                                         : limits::run_pinned([&] { echo<false>(world); }, [&] { ping<false>(world); });
  if (!placement) return 1;
  limits::Json metrics = limits::latency_metrics(world.round_trips.ticks, world.round_trips.seconds);
  metrics["lost_packets"] = world.lost;
  return limits::print("udp_pingpong", "udp", {{"size", kMessageBytes}, {"connected", FLAGS_connected}}, metrics,
                       *placement);
}
