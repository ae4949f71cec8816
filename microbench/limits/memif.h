// Two net_memif ports of this process, connected with each other, for the limits. DPDK only; it contains no code of the
// library. Both ports are in one process, because the driver may crash when a peer process exits.
#pragma once

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "common.h"

DEFINE_bool(zero_copy, false, "the client port lends its frames to the server port, which then copies alone");

namespace limits {

/// The Ethernet, IPv4 and UDP headers before a datagram.
constexpr uint16_t kHeaderBytes = 14 + 20 + 8;
/// Maximum number of frames in one call of the driver.
constexpr uint16_t kBurst = 32;

/// A port with one queue each way. Each queue belongs to one thread.
struct MemifPort {
  uint16_t id = 0;
  rte_mempool* pool = nullptr;

  uint16_t receive(rte_mbuf** frames) const { return rte_eth_rx_burst(id, 0, frames, kBurst); }
  /// Returns when the port has taken all frames.
  void transmit_all(rte_mbuf** frames, uint16_t count) const {
    for (uint16_t sent = 0; sent < count;) {
      sent = static_cast<uint16_t>(sent + rte_eth_tx_burst(id, 0, frames + sent, static_cast<uint16_t>(count - sent)));
    }
  }
  /// A frame for a datagram of `datagram_bytes` bytes, with undefined content. Null if the pool is empty.
  rte_mbuf* new_frame(uint16_t datagram_bytes) const {
    rte_mbuf* frame = rte_pktmbuf_alloc(pool);
    if (frame != nullptr) rte_pktmbuf_append(frame, static_cast<uint16_t>(kHeaderBytes + datagram_bytes));
    return frame;
  }
};

struct MemifPair {
  MemifPort server, client;
  bool has_huge_pages = false;
};

/// True if enough 2 MB pages are free for the pools.
inline bool has_huge_pages() {
  constexpr long kPagesMin = 64;
  long pages = 0;
  std::FILE* file = std::fopen("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "r");
  if (file == nullptr) return false;
  if (std::fscanf(file, "%ld", &pages) != 1) pages = 0;
  std::fclose(file);
  return pages >= kPagesMin;
}

/// Opens the device `name` with `arguments` as a port that can send and receive. Returns false on an error; rte_errno
/// has the reason.
inline bool open_port(MemifPort& port, const std::string& name, const std::string& arguments) {
  constexpr unsigned kFrames = 8191, kCached = 512;  // frames per pool: enough because both rings of a pair are never
                                                     // full at once
  constexpr uint16_t kDescriptors = 1024;
  const auto succeeds = [](int result) {
    if (result < 0) rte_errno = -result;
    return result >= 0;
  };
  const rte_eth_conf configuration = {};
  if (!succeeds(rte_dev_probe((name + "," + arguments).c_str())) ||
      !succeeds(rte_eth_dev_get_port_by_name(name.c_str(), &port.id))) {
    return false;
  }
  port.pool = rte_pktmbuf_pool_create(name.c_str(), kFrames, kCached, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
  return port.pool != nullptr && succeeds(rte_eth_dev_configure(port.id, 1, 1, &configuration)) &&
         succeeds(rte_eth_rx_queue_setup(port.id, 0, kDescriptors, 0, nullptr, port.pool)) &&
         succeeds(rte_eth_tx_queue_setup(port.id, 0, kDescriptors, 0, nullptr)) && succeeds(rte_eth_dev_start(port.id));
}

inline bool is_up(const MemifPort& port) {
  rte_eth_link link;
  return rte_eth_link_get_nowait(port.id, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

/// Opens the two ports. Must be called once, after parse_flags(). The rings have 2 to the power of `ring_bits`
/// descriptors; `ring_bits` is at most 14. On error it prints a sentence and returns false.
inline bool open_memif_pair(MemifPair& pair, int ring_bits) {
  pair.has_huge_pages = has_huge_pages();
  if (FLAGS_zero_copy && !pair.has_huge_pages) {
    fail("--zero_copy needs 64 free huge pages: echo 128 > /proc/sys/vm/nr_hugepages");
    return false;
  }
  std::vector<std::string> words = {
      "limits", "-l", std::to_string(two_cpus()->first), "--no-pci", "--no-telemetry", "--log-level=critical"};
  if (pair.has_huge_pages) {
    words.insert(words.end(), {"--in-memory", "--single-file-segments"});
  } else {
    words.insert(words.end(), {"--no-huge", "--no-shconf", "-m", "128"});
  }
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  if (rte_eal_init(static_cast<int>(arguments.size()), arguments.data()) < 0) {
    fail("DPDK does not start: %s", rte_strerror(rte_errno));
    return false;
  }
  // An abstract socket, which needs no file.
  const std::string common = "socket=limits-" + std::to_string(getpid()) + ",rsize=" + std::to_string(ring_bits);
  if (!open_port(pair.server, "net_memif0", "role=server," + common) ||
      !open_port(pair.client, "net_memif1", "role=client," + common + (FLAGS_zero_copy ? ",zero-copy=yes" : ""))) {
    fail("no two ports of net_memif (Debian: librte-net-memif23): %s", rte_strerror(rte_errno));
    return false;
  }
  constexpr int kTries = 2000;  // tries of one millisecond; it takes some hundred
  int tries = 0;
  while (!is_up(pair.server) || !is_up(pair.client)) {
    if (++tries == kTries) {
      fail("the two ports of net_memif did not connect in 2 s");
      return false;
    }
    usleep(1000);
  }
  return true;
}

/// Must be called in each side's thread before it uses its port, so that the pools have a cache for that thread.
inline void use_pool_caches() { (void)rte_thread_register(); }

}  // namespace limits
