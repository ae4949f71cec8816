// Common parts of the tests of DPDK ports: ports at the two ends of a memif cable in this process, and raw frames.
#pragma once

#include <gtest/gtest.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/address.h"
#include "own_folder.h"
#include "patience.h"
#include "transport/dpdk/dpdk_port.h"
#include "transport/dpdk/eal.h"
#include "transport/dpdk/lane_internals.h"

namespace tern::transport::dpdk_test {

/// A bound for required events. A passing test never waits that long.
inline const auto kPortPatience = std::chrono::seconds(20) * patience();

/// Waits until `done`, or fails the test.
inline bool wait_until(const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + kPortPatience;
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) {
      ADD_FAILURE() << "nothing happens";
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

inline std::string memif_text(uint32_t end) {
  static const test::OwnFolder folder(::testing::TempDir() + "tern-port");
  return "net_memif" + std::to_string(end) + ";role=" + (end == 0 ? "server" : "client") +
         ";id=7;socket-abstract=no;socket=" + folder.file("memif");
}

/// One end of the cable: 10.0.0.1 or 10.0.0.2.
inline DpdkChoice memif_choice(uint32_t end) {
  DpdkChoice choice;
  choice.device = memif_text(end);
  choice.address = end == 0 ? "10.0.0.1/24" : "10.0.0.2/24";
  choice.receive_buffers = 512;
  return choice;
}

inline std::shared_ptr<DpdkPort> open_port(const DpdkChoice& choice) {
  auto port = DpdkPort::open(choice);
  if (port.ok()) return std::move(*port);
  ADD_FAILURE() << port.status().message();
  return nullptr;
}

inline std::unique_ptr<DpdkLane> attach(DpdkPort& port, base::SocketAddress* own) {
  auto lane = port.attach(own);
  if (lane.ok()) return std::move(*lane);
  ADD_FAILURE() << lane.status().message();
  return nullptr;
}

/// A lane at the port's own address.
struct TestLane {
  explicit TestLane(DpdkPort& port, uint16_t udp_port = 0) : own(port.own_address()) {
    own.set_port(udp_port);
    lane = attach(port, &own);
  }
  DpdkLane* operator->() const { return lane.get(); }
  base::SocketAddress own;
  std::unique_ptr<DpdkLane> lane;
};

/// A pool for frames to send, which lives until its mbufs are back.
inline rte_mempool* send_pool() {
  static rte_mempool* const pool = rte_pktmbuf_pool_create("tern_test", 8191, 0, 0, 2176, 0);
  return pool;
}

/// An IPv4 datagram with `number` as its payload. Its checksums are 0.
inline rte_mbuf* frame_to(const base::SocketAddress& to, uint32_t number) {
  rte_mbuf* const frame = rte_pktmbuf_alloc(send_pool());
  if (frame == nullptr) return nullptr;
  auto* const bytes = rte_pktmbuf_mtod(frame, uint8_t*);
  frame->pkt_len = frame->data_len = 60;
  std::memset(bytes, 0, 60);
  bytes[0] = 2;  // a destination of one host
  bytes[12] = 8;
  bytes[14] = 0x45;
  bytes[17] = 32;
  bytes[23] = 17;
  std::memcpy(bytes + 30, to.ip().data(), 4);
  bytes[36] = static_cast<uint8_t>(to.port() >> 8);
  bytes[37] = static_cast<uint8_t>(to.port());
  bytes[39] = 12;
  std::memcpy(bytes + 42, &number, sizeof(number));
  return frame;
}

inline uint32_t number_of(const rte_mbuf* frame) {
  uint32_t number = 0;
  std::memcpy(&number, rte_pktmbuf_mtod(frame, const uint8_t*) + 42, sizeof(number));
  return number;
}
inline uint16_t udp_port_of(const rte_mbuf* frame) {
  const uint8_t* const bytes = rte_pktmbuf_mtod(frame, const uint8_t*);
  return static_cast<uint16_t>(bytes[36] << 8 | bytes[37]);
}

/// Sends the frame as soon as the device accepts it.
inline void send(DpdkLane& lane, rte_mbuf* frame) {
  ASSERT_NE(frame, nullptr);
  wait_until([&] { return lane.transmit(&frame, 1) == 1; });
}

/// Returns the numbers of received datagrams to the lane's port and frees them. Others are passed on or dropped.
inline std::vector<uint32_t> receive(TestLane& lane) {
  std::vector<uint32_t> numbers;
  rte_mbuf* frames[DpdkLane::kBurstMax];
  const uint32_t count = lane->receive(frames, DpdkLane::kBurstMax);
  for (uint32_t i = 0; i < count; ++i) {
    const bool is_own =
        rte_pktmbuf_mtod(frames[i], const uint8_t*)[12] == 8 && udp_port_of(frames[i]) == lane.own.port();
    if (is_own) numbers.push_back(number_of(frames[i]));
    if (is_own || !lane->pass_on(frames[i])) rte_pktmbuf_free(frames[i]);
  }
  return numbers;
}

/// Waits until the link of a port is up.
inline void wait_for_link(DpdkPort& port) {
  wait_until([&] { return port.is_link_up(); });
}

}  // namespace tern::transport::dpdk_test
