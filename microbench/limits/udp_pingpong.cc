// The bare limit of kernel UDP: 32 B bounced over loopback between two spinning threads.
//
// Non-blocking sockets, sendto and recvfrom; --connected uses send and recv on connected ones. Nothing of the library
// is in here: it is what the library's figures are divided by.

#include <arpa/inet.h>
#include <gflags/gflags.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "../percentiles.h"
#include "../placement.h"

DEFINE_double(seconds, 2, "how long to measure");
DEFINE_string(cpus, "0,1", "the two CPUs to pin the two sides to");
DEFINE_bool(connected, false, "connected sockets instead of addresses in each call");
DEFINE_bool(json, false, "one JSON object on standard output instead of a table");

namespace {

using tern::microbench::Percentiles;
using tern::microbench::Ticks;

constexpr size_t kMessageBytes = 32;

struct Side {
  int fd = -1;
  sockaddr_in address{};
  bool open() {
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(address);
    return fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), bytes) == 0 &&
           getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0;
  }
  bool connect_to(const Side& other) {
    return connect(fd, reinterpret_cast<const sockaddr*>(&other.address), sizeof(other.address)) == 0;
  }
};

struct World {
  Side client, server;
  std::atomic<bool> stop{false};
  std::atomic<int> unpinned{0};
  double seconds = 0;
  uint64_t lost = 0;
  Percentiles ticks;
};

/// False: nothing there. `from` is the sender, where sockets are unconnected.
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
void echo(World& world, int cpu) {
  world.unpinned += tern::microbench::pin_to_cpu(cpu) ? 0 : 1;
  std::byte message[kMessageBytes];
  sockaddr_in from{};
  while (!world.stop.load(std::memory_order_relaxed)) {
    if (try_receive<kConnected>(world.server.fd, message, &from)) transmit<kConnected>(world.server.fd, message, from);
  }
}

template <bool kConnected>
void ping(World& world, int cpu) {
  world.unpinned += tern::microbench::pin_to_cpu(cpu) ? 0 : 1;
  constexpr uint64_t kWarmUp = 2'000, kRoundsPerClock = 256, kTriesMax = 10'000'000;  // some seconds: then it is lost
  std::byte message[kMessageBytes] = {};
  sockaddr_in from{};
  auto start = std::chrono::steady_clock::now();
  uint64_t before = Ticks::now();
  for (uint64_t round = 0;; ++round) {
    transmit<kConnected>(world.client.fd, message, world.server.address);
    uint64_t tries = 0;
    while (!try_receive<kConnected>(world.client.fd, message, &from) && ++tries < kTriesMax) {
    }
    if (tries == kTriesMax) ++world.lost;
    const uint64_t after = Ticks::now();
    world.ticks.add(after - before);
    before = after;
    if (round % kRoundsPerClock != 0) continue;
    const auto time = std::chrono::steady_clock::now();
    if (round <= kWarmUp) {
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
  gflags::SetUsageMessage("bare UDP ping-pong of 32 B over loopback");
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  int a = 0, b = 0;
  if (std::sscanf(FLAGS_cpus.c_str(), "%d,%d", &a, &b) != 2 || a == b) {
    std::fprintf(stderr, "--cpus wants two different CPUs, like 0,1\n");
    return 1;
  }
  World world;
  if (!world.client.open() || !world.server.open() ||
      (FLAGS_connected && !(world.client.connect_to(world.server) && world.server.connect_to(world.client)))) {
    std::fprintf(stderr, "no UDP sockets on 127.0.0.1: %s\n", std::strerror(errno));
    return 1;
  }
  const double placement_before = tern::microbench::placement_ns(a, b);
  std::thread other(FLAGS_connected ? echo<true> : echo<false>, std::ref(world), b);
  std::thread one(FLAGS_connected ? ping<true> : ping<false>, std::ref(world), a);
  one.join();
  other.join();
  const double placement = std::max(placement_before, tern::microbench::placement_ns(a, b));
  close(world.client.fd);
  close(world.server.fd);
  if (world.unpinned > 0) {
    std::fprintf(stderr, "cannot pin to CPUs %s: choose two that this process may use (taskset -p $$)\n",
                 FLAGS_cpus.c_str());
    return 1;
  }

  const auto us_at = [&](double share) { return world.ticks.at(share) * Ticks::ns_per_tick() / 1e3; };
  const double p50 = us_at(0.5), p99 = us_at(0.99), p999 = us_at(0.999);
  const double rate_mrps = static_cast<double>(world.ticks.count()) / world.seconds / 1e6;
  if (FLAGS_json) {
    const nlohmann::json line = {
        {"bench", "udp_pingpong"},
        {"transport", "udp"},
        {"params",
         {{"bytes", kMessageBytes}, {"connected", FLAGS_connected}, {"cpus", FLAGS_cpus}, {"seconds", FLAGS_seconds}}},
        {"metrics",
         {{"p50_us", p50}, {"p99_us", p99}, {"p999_us", p999}, {"rate_mrps", rate_mrps}, {"lost_packets", world.lost}}},
        {"placement_ns", placement}};
    std::puts(line.dump().c_str());
  } else {
    std::printf("bare UDP (%s), 32 B ping-pong, cache line %.0f ns\n", FLAGS_connected ? "connected" : "unconnected",
                placement);
    std::printf("%10s %10s %10s %12s\n%10.3f %10.3f %10.3f %12.3f\n", "p50 us", "p99 us", "p99.9 us", "M/s", p50, p99,
                p999, rate_mrps);
  }
}
