#include "transport/dpdk/dpdk_plan.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <initializer_list>
#include <string_view>
#include <system_error>

#include "base/address.h"
#include "base/status_text.h"
#include "transport/dpdk/dpdk_steering.h"
#include "transport/dpdk/driver_faults.h"

namespace tern::transport {

namespace {

using base::status_of;

constexpr uint32_t kSendDescriptors = 1024;
/// Frames that wait in endpoints' inboxes or are looked at, and those in caches of threads that free them.
constexpr uint32_t kPrivateMbufs = 1024, kSharedMbufs = 4096;
/// Behind the IP packet: the Ethernet header, two VLAN tags.
constexpr uint32_t kLinkBytes = RTE_ETHER_HDR_LEN + 2 * RTE_VLAN_HLEN;

bool has_all(uint64_t offloads, uint64_t wanted) { return (offloads & wanted) == wanted; }

/// Queues of both kinds that the device has.
uint32_t queues_of(const DpdkDevice& device) {
  const uint32_t most = std::min(device.info.max_rx_queues, device.info.max_tx_queues);
  return std::min(most, faults_of(device.info.driver_name).queues_max);
}

/// The configuration as rte_eth_dev_configure() will see it.
uint32_t mtu_max_of(const rte_eth_dev_info& info) {
  uint32_t overhead = RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN;
  if (info.max_mtu != UINT16_MAX && info.max_rx_pktlen > info.max_mtu) overhead = info.max_rx_pktlen - info.max_mtu;
  const uint32_t by_frame = info.max_rx_pktlen > overhead ? info.max_rx_pktlen - overhead : UINT16_MAX;
  return std::min({by_frame, uint32_t{info.max_mtu}, kDpdkMtuMax});
}

/// Some drivers need a power of two without reporting that.
uint16_t descriptors(uint32_t wanted, const rte_eth_desc_lim& limits) {
  const uint32_t most = limits.nb_max == 0 ? UINT16_MAX : limits.nb_max;
  uint32_t count = std::bit_floor(std::min(wanted, most));
  count = std::max<uint32_t>(count, limits.nb_min);
  const uint32_t align = std::max<uint32_t>(limits.nb_align, 1);
  return static_cast<uint16_t>(std::min((count + align - 1) / align * align, most / align * align));
}

/// The length of a receive ring that differs from the setup of its queue.
uint32_t ring_frames_of(const DpdkDevice& device, const DpdkWishes& wishes) {
  constexpr uint32_t kLogMax = 14;
  const DriverFaults& faults = faults_of(device.info.driver_name);
  const bool is_told = faults.ring_argument.empty() && wishes.receive_buffers != Dpdk::Options::kReceiveBuffersDefault;
  if (faults.ring_default == 0 || is_told) return UINT16_MAX;
  const size_t at = faults.ring_argument.empty() ? std::string::npos : device.arguments.find(faults.ring_argument);
  if (at == std::string::npos) return faults.ring_default;
  const std::string_view behind = std::string_view(device.arguments).substr(at + faults.ring_argument.size());
  uint32_t value = 0;
  const auto error = std::from_chars(behind.data(), behind.data() + behind.size(), value).ec;
  if (error != std::errc() || value == 0) return faults.ring_default;
  return faults.is_ring_log ? 1u << std::min(value, kLogMax) : value;
}

/// With zero-copy=yes the peer of a memif has the sender's mbufs, and cannot reach other memory.
bool reaches_message_memory(const DpdkDevice& device) {
  if (faults_of(device.info.driver_name).has_far_buffers) return false;
  if (device.arguments.find("zero-copy=yes") != std::string::npos) return false;
  return !device.has_dma || device.has_iova_va;
}

void fit_pages(const DpdkDevice& device, DpdkPlan* plan) {
  constexpr uint32_t kPageBytes = 4096;
  constexpr uint32_t kHeadBytes = sizeof(rte_mbuf) + RTE_CACHE_LINE_SIZE;  // the latter is the pool's, of an object
  constexpr uint32_t kDataBytes = kPageBytes - kHeadBytes;
  const bool has_need = faults_of(device.info.driver_name).has_buffers_of_page;
  if (!has_need || plan->mtu_bytes + kLinkBytes + RTE_PKTMBUF_HEADROOM > kDataBytes) return;
  plan->mbuf_bytes = static_cast<uint16_t>(kDataBytes);
  plan->fits_pages = true;
}

Result<uint16_t> plan_queues(const DpdkDevice& device, const DpdkWishes& wishes, DpdkSteering steering) {
  const uint32_t most = queues_of(device);
  if (most == 0) {
    return status_of(Code::kUnavailable, "dpdk: the device has no queues",
                     {"dpdk: the device ", device.name, " has no queues to receive and send: use another device"});
  }
  if (steering == DpdkSteering::kShared) {
    if (wishes.queues <= 1) return uint16_t{1};
    return status_of(
        Code::kUnavailable, "dpdk: the device cannot steer frames to queues",
        {"dpdk: the device ", device.name,
         " cannot steer frames to queues of endpoints (neither rte_flow nor RSS with tern's key works), so that ",
         "its endpoints share one queue: set Dpdk::Options::queues to 0 or 1"});
  }
  if (wishes.queues >= most) {
    const std::string wished = std::to_string(wishes.queues), have = std::to_string(most);
    return status_of(Code::kUnavailable, "dpdk: the device does not have that many queues",
                     {"dpdk: the device ", device.name, " has ", have,
                      " queues, one of which serves no endpoint, and cannot have the ", wished,
                      " of Dpdk::Options::queues: lower that number"});
  }
  const uint32_t by_itself = std::clamp(wishes.cpus, kDpdkQueuesMin, kDpdkQueuesMax);
  const uint32_t endpoints = wishes.queues != 0 ? wishes.queues : by_itself;
  return static_cast<uint16_t>(std::min(endpoints + 1, most));
}

Result<uint32_t> plan_mtu(const DpdkDevice& device, const DpdkWishes& wishes) {
  const uint32_t most = mtu_max_of(device.info);
  const uint32_t least = std::max<uint32_t>(device.info.min_mtu, RTE_ETHER_MIN_MTU);
  if (wishes.mtu_bytes == 0) return std::min<uint32_t>(device.mtu_bytes, most);
  if (wishes.mtu_bytes >= least && wishes.mtu_bytes <= most) return wishes.mtu_bytes;
  const std::string wished = std::to_string(wishes.mtu_bytes), from = std::to_string(least), to = std::to_string(most);
  return status_of(Code::kUnavailable, "dpdk: the device does not take this MTU",
                   {"dpdk: the device ", device.name, " takes an MTU of ", from, " to ", to, " bytes, and not ", wished,
                    ": change Dpdk::Options::mtu"});
}

}  // namespace

std::vector<DpdkSteering> possible_steerings(const DpdkDevice& device, const DpdkWishes& wishes) {
  std::vector<DpdkSteering> steerings;
  if (queues_of(device) >= 2 && wishes.queues != 1) {
    steerings.push_back(DpdkSteering::kFlows);
    // The kernel's traffic must not be spread by tern's key.
    if (wishes.is_own_mode && can_hash_ports(device.info)) steerings.push_back(DpdkSteering::kHashes);
  }
  steerings.push_back(DpdkSteering::kShared);
  return steerings;
}

Result<DpdkPlan> plan_dpdk(const DpdkDevice& device, const DpdkWishes& wishes, DpdkSteering steering) {
  const rte_eth_dev_info& info = device.info;
  DpdkPlan plan;
  plan.steering = steering;
  const auto queues = plan_queues(device, wishes, steering);
  if (!queues.ok()) return queues.status();
  const auto mtu_bytes = plan_mtu(device, wishes);
  if (!mtu_bytes.ok()) return mtu_bytes.status();
  plan.queues = *queues;
  plan.mtu_bytes = *mtu_bytes;
  plan.receive_descriptors =
      descriptors(std::min(wishes.receive_buffers, ring_frames_of(device, wishes)), info.rx_desc_lim);
  plan.send_descriptors = descriptors(kSendDescriptors, info.tx_desc_lim);
  const bool is_shared = steering == DpdkSteering::kShared;
  plan.mbufs = plan.receive_descriptors + (is_shared ? kSharedMbufs : kPrivateMbufs);
  // Some devices count buffers in KiB, and many drivers take none below two.
  const uint32_t data_bytes = std::max<uint32_t>((plan.mtu_bytes + kLinkBytes + 1023) & ~1023u, 2048);
  plan.mbuf_bytes = static_cast<uint16_t>(data_bytes + RTE_PKTMBUF_HEADROOM);
  fit_pages(device, &plan);

  constexpr uint64_t kSendSums = RTE_ETH_TX_OFFLOAD_IPV4_CKSUM | RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
  constexpr uint64_t kReceiveSums = RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
  plan.makes_checksums = has_all(info.tx_offload_capa, kSendSums);
  plan.checks_checksums = has_all(info.rx_offload_capa, kReceiveSums);
  plan.gathers = has_all(info.tx_offload_capa, RTE_ETH_TX_OFFLOAD_MULTI_SEGS) && reaches_message_memory(device);
  plan.conf.rxmode.mtu = plan.mtu_bytes;
  if (plan.checks_checksums) plan.conf.rxmode.offloads |= kReceiveSums;
  if (plan.makes_checksums) plan.conf.txmode.offloads |= kSendSums;
  if (plan.gathers) plan.conf.txmode.offloads |= RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
  if (steering == DpdkSteering::kHashes) {
    plan.conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
    plan.conf.rx_adv_conf.rss_conf.rss_hf = hashed_packets(info);
  }
  plan.conf.intr_conf.rxq = 1;
  const uint32_t flags = info.dev_flags == nullptr ? 0 : *info.dev_flags;
  plan.conf.intr_conf.lsc = (flags & RTE_ETH_DEV_INTR_LSC) != 0 ? 1 : 0;
  plan.conf.intr_conf.rmv = (flags & RTE_ETH_DEV_INTR_RMV) != 0 ? 1 : 0;
  return plan;
}

uint64_t guess_memory_bytes(const DpdkWishes& wishes) {
  constexpr uint64_t kMbufBytes = 2560, kOthers = 32u << 20;  // EAL, endpoints' pools to send from
  const uint64_t factor = wishes.mtu_bytes > 2000 ? 4 : 1;
  const uint64_t queues = std::max<uint32_t>(wishes.queues, 1);
  return queues * (wishes.receive_buffers + kSharedMbufs) * kMbufBytes * factor + kOthers;
}

}  // namespace tern::transport
