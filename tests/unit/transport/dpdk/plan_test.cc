// Decisions about a DPDK port that need no port: queues and offloads, the hash's key and table, names of endpoints,
// EAL's arguments, and whether the kernel has a PCI device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rte_ethdev.h>
#include <rte_thash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "ethernet/lane_key.h"
#include "frames/frame_template.h"
#include "own_folder.h"
#include "transport/dpdk/dpdk_device.h"
#include "transport/dpdk/dpdk_plan.h"
#include "transport/dpdk/dpdk_steering.h"
#include "transport/dpdk/eal.h"

namespace tern::transport {
namespace {

using ethernet::lane_key_of, ethernet::lane_key_of_frame;

using testing::ElementsAre;

/// A typical NIC.
DpdkDevice nic() {
  DpdkDevice device;
  device.name = "0000:03:00.0";
  device.has_dma = true;
  device.has_iova_va = true;
  device.mtu_bytes = 1500;
  rte_eth_dev_info& info = device.info;
  info.driver_name = "net_nic";
  info.min_mtu = 68;
  info.max_mtu = 9710;
  info.max_rx_pktlen = 9728;
  info.max_rx_queues = 64;
  info.max_tx_queues = 64;
  info.reta_size = 128;
  info.hash_key_size = 40;
  info.flow_type_rss_offloads = RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP;
  info.rx_desc_lim.nb_max = 4096;
  info.rx_desc_lim.nb_min = 64;
  info.rx_desc_lim.nb_align = 8;
  info.tx_desc_lim = info.rx_desc_lim;
  info.rx_offload_capa = RTE_ETH_RX_OFFLOAD_CHECKSUM;
  info.tx_offload_capa = RTE_ETH_TX_OFFLOAD_IPV4_CKSUM | RTE_ETH_TX_OFFLOAD_UDP_CKSUM | RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
  return device;
}

/// A device without capabilities, like many virtual ones.
DpdkDevice plain() {
  DpdkDevice device;
  device.name = "net_plain0";
  device.mtu_bytes = 1500;
  device.info.max_mtu = UINT16_MAX;
  device.info.max_rx_pktlen = 1518;
  device.info.max_rx_queues = 1;
  device.info.max_tx_queues = 1;
  return device;
}

std::string why_not(const DpdkDevice& device, const DpdkWishes& wishes, DpdkSteering steering) {
  const auto plan = plan_dpdk(device, wishes, steering);
  return plan.ok() ? "ok" : std::string(plan.status().message());
}

TEST(DpdkPlan, nic__has_a_queue_for_each_endpoint__and_one_for_the_rest) {
  DpdkWishes wishes;
  wishes.is_own_mode = true;
  wishes.cpus = 8;
  EXPECT_THAT(possible_steerings(nic(), wishes),
              ElementsAre(DpdkSteering::kFlows, DpdkSteering::kHashes, DpdkSteering::kShared));
  const auto plan = plan_dpdk(nic(), wishes, DpdkSteering::kHashes);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan.status().ok(), true);
  auto made = plan_dpdk(nic(), wishes, DpdkSteering::kHashes);
  EXPECT_EQ(made->queues, 9);
  EXPECT_EQ(made->receive_descriptors, 4096);
  EXPECT_EQ(made->send_descriptors, 1024);
  EXPECT_GT(made->mbufs, 4096u);
  EXPECT_EQ(made->mbuf_bytes, 2048 + RTE_PKTMBUF_HEADROOM);
  EXPECT_TRUE(made->makes_checksums && made->checks_checksums && made->gathers);
  EXPECT_EQ(made->conf.rxmode.mtu, 1500u);
  EXPECT_EQ(made->conf.rxmode.mq_mode, RTE_ETH_MQ_RX_RSS);
  EXPECT_EQ(made->conf.rx_adv_conf.rss_conf.rss_hf, RTE_ETH_RSS_NONFRAG_IPV4_UDP | RTE_ETH_RSS_NONFRAG_IPV6_UDP);
  EXPECT_EQ(made->conf.rxmode.offloads, RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM);
  EXPECT_EQ(made->conf.intr_conf.rxq, 1);
  EXPECT_EQ(plan_dpdk(nic(), wishes, DpdkSteering::kFlows)->conf.rxmode.mq_mode, RTE_ETH_MQ_RX_NONE);

  for (const auto& [cpus, queues] : {std::pair(1, 5), {2, 5}, {40, 17}}) {
    wishes.cpus = static_cast<uint32_t>(cpus);
    EXPECT_EQ(plan_dpdk(nic(), wishes, DpdkSteering::kFlows)->queues, queues);
  }
  DpdkDevice tap = nic();
  tap.info.driver_name = "net_tap";
  EXPECT_EQ(plan_dpdk(tap, wishes, DpdkSteering::kFlows)->queues, 4);
  wishes.queues = 63;
  EXPECT_EQ(plan_dpdk(nic(), wishes, DpdkSteering::kFlows)->queues, 64);
  wishes.queues = 64;
  EXPECT_EQ(why_not(nic(), wishes, DpdkSteering::kFlows),
            "dpdk: the device 0000:03:00.0 has 64 queues, one of which serves no endpoint, and cannot have the 64 of "
            "Dpdk::Options::queues: lower that number");
}

TEST(DpdkPlan, device_without_steering__has_one_queue) {
  DpdkWishes wishes;
  EXPECT_THAT(possible_steerings(plain(), wishes), ElementsAre(DpdkSteering::kShared));
  const auto plan = plan_dpdk(plain(), wishes, DpdkSteering::kShared);
  ASSERT_TRUE(plan.ok());
  auto made = plan_dpdk(plain(), wishes, DpdkSteering::kShared);
  EXPECT_EQ(made->queues, 1);
  EXPECT_EQ(made->receive_descriptors, 4096);  // the driver reports no limit
  EXPECT_FALSE(made->makes_checksums || made->checks_checksums || made->gathers);
  EXPECT_EQ(made->conf.rxmode.mq_mode, RTE_ETH_MQ_RX_NONE);
  EXPECT_EQ(made->conf.txmode.offloads, 0u);

  wishes.queues = 2;
  EXPECT_NE(why_not(plain(), wishes, DpdkSteering::kShared).find("cannot steer frames"), std::string::npos);
  DpdkDevice dead = plain();
  dead.info.max_tx_queues = 0;
  EXPECT_NE(why_not(dead, {}, DpdkSteering::kShared).find("has no queues"), std::string::npos);
}

TEST(DpdkPlan, steering__is_tried_only_where_it_may_be) {
  DpdkWishes wishes;
  EXPECT_THAT(possible_steerings(nic(), wishes), ElementsAre(DpdkSteering::kFlows, DpdkSteering::kShared));
  wishes.is_own_mode = true;
  for (const auto& spoil : std::vector<std::function<void(rte_eth_dev_info&)>>{
           [](auto& info) { info.reta_size = 0; }, [](auto& info) { info.reta_size = 96; },
           [](auto& info) { info.hash_key_size = 16; },
           [](auto& info) { info.flow_type_rss_offloads = RTE_ETH_RSS_TCP; }}) {
    DpdkDevice device = nic();
    spoil(device.info);
    EXPECT_THAT(possible_steerings(device, wishes), ElementsAre(DpdkSteering::kFlows, DpdkSteering::kShared));
  }
  wishes.queues = 1;
  EXPECT_THAT(possible_steerings(nic(), wishes), ElementsAre(DpdkSteering::kShared));
}

TEST(DpdkPlan, mtu__is_the_device_s__unless_it_is_wished_within_limits) {
  DpdkWishes wishes;
  wishes.mtu_bytes = 9000;
  auto jumbo = plan_dpdk(nic(), wishes, DpdkSteering::kShared);
  ASSERT_TRUE(jumbo.ok());
  EXPECT_EQ(jumbo->mtu_bytes, 9000u);
  EXPECT_EQ(jumbo->mbuf_bytes, 9216 + RTE_PKTMBUF_HEADROOM);
  EXPECT_EQ(why_not(plain(), wishes, DpdkSteering::kShared),
            "dpdk: the device net_plain0 takes an MTU of 68 to 1500 bytes, and not 9000: change Dpdk::Options::mtu");
  wishes.mtu_bytes = 60;
  EXPECT_NE(why_not(nic(), wishes, DpdkSteering::kShared), "ok");
  DpdkDevice huge = plain();
  huge.info.max_rx_pktlen = UINT32_MAX;
  huge.mtu_bytes = 65535;
  EXPECT_EQ(plan_dpdk(huge, {}, DpdkSteering::kShared)->mtu_bytes, kDpdkMtuMax);
}

TEST(DpdkPlan, descriptors__keep_the_limits_of_the_driver) {
  DpdkWishes wishes;
  const auto of = [&](uint32_t wanted, uint16_t least, uint16_t most, uint16_t align) {
    DpdkDevice device = nic();
    device.info.rx_desc_lim.nb_min = least;
    device.info.rx_desc_lim.nb_max = most;
    device.info.rx_desc_lim.nb_align = align;
    wishes.receive_buffers = wanted;
    return plan_dpdk(device, wishes, DpdkSteering::kShared)->receive_descriptors;
  };
  EXPECT_EQ(of(512, 64, 4096, 8), 512);
  EXPECT_EQ(of(65536, 64, UINT16_MAX, 1), 32768);
  EXPECT_EQ(of(4096, 64, 1000, 8), 512);
  EXPECT_EQ(of(512, 600, 4096, 32), 608);
  EXPECT_EQ(of(512, 0, 0, 0), 512);
}

TEST(DpdkPlan, ring_whose_length_the_driver_does_not_report__is_known) {
  const auto of = [](const char* driver, const char* arguments) {
    DpdkDevice device = plain();
    device.info.driver_name = driver;
    device.arguments = arguments;
    return plan_dpdk(device, {}, DpdkSteering::kShared)->receive_descriptors;
  };
  EXPECT_EQ(of("net_af_packet", "iface=eth1"), 512);
  EXPECT_EQ(of("net_af_packet", "iface=eth1,framecnt=2048"), 2048);
  EXPECT_EQ(of("net_af_packet", "framecnt=100000,iface=eth1"), 4096);
  EXPECT_EQ(of("net_af_packet", "framecnt=x"), 512);
  EXPECT_EQ(of("net_af_packet", "framecnt=0x400"), 512);
  EXPECT_EQ(of("net_virtio_user", "path=/run/a.sock"), 256);
  EXPECT_EQ(of("net_virtio_user", "path=/run/a.sock,queue_size=1024,queues=1"), 1024);
  EXPECT_EQ(of("net_virtio", ""), 256);
  DpdkDevice virtio = plain();
  virtio.info.driver_name = "net_virtio";
  DpdkWishes wishes;
  wishes.receive_buffers = 1024;
  EXPECT_EQ(plan_dpdk(virtio, wishes, DpdkSteering::kShared)->receive_descriptors, 1024) << "the user knows the ring";
  EXPECT_EQ(of("net_memif", "role=server"), 1024);
  EXPECT_EQ(of("net_memif", "rsize=8,role=server"), 256);
  EXPECT_EQ(of("net_memif", "rsize=12"), 4096);
  EXPECT_EQ(of("net_nic", "framecnt=512"), 4096);
}

TEST(DpdkPlan, message_memory__is_gathered_only_where_the_device_reaches_it) {
  const auto gathers = [](const DpdkDevice& device) { return plan_dpdk(device, {}, DpdkSteering::kShared)->gathers; };
  DpdkDevice device = nic();
  EXPECT_TRUE(gathers(device));
  device.has_iova_va = false;
  EXPECT_FALSE(gathers(device));
  device.has_dma = false;
  EXPECT_TRUE(gathers(device));
  device.arguments = "role=client,zero-copy=yes";
  EXPECT_FALSE(gathers(device));
  device.arguments.clear();
  device.info.driver_name = "net_virtio_user";
  EXPECT_FALSE(gathers(device));
  device = nic();
  device.info.tx_offload_capa &= ~uint64_t{RTE_ETH_TX_OFFLOAD_MULTI_SEGS};
  EXPECT_FALSE(gathers(device));
}

/// Computes the hash with DPDK's own Toeplitz function.
uint32_t software_hash(std::span<const uint8_t> input, const std::array<uint8_t, kHashKeyBytes>& key) {
  std::vector<uint32_t> words(input.size() / 4);
  std::memcpy(words.data(), input.data(), input.size());
  for (uint32_t& word : words) word = rte_be_to_cpu_32(word);
  return rte_softrss(words.data(), static_cast<uint32_t>(words.size()), key.data());
}

TEST(DpdkSteering, hash_of_any_sender__leads_to_the_entry_of_the_port) {
  std::mt19937 random(7);
  for (const sa_family_t family : {AF_INET, AF_INET6}) {
    const size_t bytes = family == AF_INET6 ? 36 : 12;
    for (const uint32_t log_entries : {1u, 6u, 7u, 9u, 16u}) {
      const auto key = port_hash_key(family, log_entries);
      uint32_t ones = 0;
      for (const uint8_t byte : key) ones += static_cast<uint32_t>(std::popcount(byte));
      EXPECT_EQ(ones, 1u);
      for (uint32_t i = 0; i < 200; ++i) {
        std::vector<uint8_t> input(bytes);
        for (uint8_t& byte : input) byte = static_cast<uint8_t>(random());
        const auto port = static_cast<uint16_t>(input[bytes - 2] << 8 | input[bytes - 1]);
        const uint32_t entry = software_hash(input, key) % (1u << log_entries);
        ASSERT_EQ(entry, hash_entry_of(port, log_entries)) << family << " " << log_entries << " " << port;
      }
    }
  }
  EXPECT_EQ(hash_entry_of(0x0001, 7), 64u);
  EXPECT_EQ(hash_entry_of(0xff80, 7), 0u);
  EXPECT_EQ(port_hash_key(AF_INET, 7)[15], 0x80);  // bit 120: 32 bits from input bit 89 on
}

TEST(LaneKey, of_a_frame__is_that_of_its_destination) {
  for (const char* text : {"10.0.0.1:4791", "[fd00::1]:49152"}) {
    for (const uint16_t vlan : {0, 100}) {
      const auto to = base::SocketAddress::parse(text);
      ASSERT_TRUE(to);
      auto frame = [&] {
        const bool is_ipv6 = to->family() == AF_INET6;
        std::vector<std::byte> bytes(frames::header_bytes(to->family(), vlan != 0) + 4);
        size_t at = 12;
        if (vlan != 0) {
          frames::store16(bytes.data() + at, 0x8100);
          at += 4;
        }
        frames::store16(bytes.data() + at, is_ipv6 ? 0x86dd : 0x0800);
        std::byte* const ip = bytes.data() + at + 2;
        ip[0] = std::byte{is_ipv6 ? uint8_t{0x60} : uint8_t{0x45}};
        ip[is_ipv6 ? 6 : 9] = std::byte{17};
        std::memcpy(ip + (is_ipv6 ? 24 : 16), to->ip().data(), to->ip().size());
        frames::store16(ip + (is_ipv6 ? 42 : 22), to->port());
        return bytes;
      }();
      EXPECT_EQ(lane_key_of_frame(frame), lane_key_of(*to)) << text;
      EXPECT_NE(lane_key_of(*to), 0u);
      base::SocketAddress other = *to;
      other.set_port(1);
      EXPECT_NE(lane_key_of(other), lane_key_of(*to));
      for (size_t bytes = 0; bytes + 4 < frame.size(); ++bytes) {
        const std::vector<std::byte> copy(frame.begin(), frame.begin() + static_cast<ptrdiff_t>(bytes));
        EXPECT_EQ(lane_key_of_frame(copy), 0u) << bytes;
      }
      const size_t ip = vlan != 0 ? 18 : 14;
      frame[ip + (to->family() == AF_INET6 ? 6 : 9)] = std::byte{6};
      EXPECT_EQ(lane_key_of_frame(frame), 0u);  // TCP
    }
  }
}

TEST(DeviceText, separators_and_short_pci_addresses__are_understood) {
  const DeviceText memif = DeviceText::parse("net_memif0;role=server;socket=/x");
  EXPECT_EQ(memif.name, "net_memif0");
  EXPECT_EQ(memif.arguments, "role=server,socket=/x");
  EXPECT_FALSE(memif.is_pci());
  EXPECT_EQ(DeviceText::parse("net_null0").full(), "net_null0");
  EXPECT_EQ(DeviceText::parse("3:00.1,a=b").full(), "0000:03:00.1,a=b");
  EXPECT_EQ(DeviceText::parse("0001:Af:1f.7").name, "0001:af:1f.7");
  EXPECT_TRUE(DeviceText::parse("03:00.0").is_pci());
  EXPECT_EQ(DeviceText::parse("").name, "");
  EXPECT_FALSE(DeviceText::parse("eth0").is_pci());
}

TEST(PciDevice, driver_of_the_kernel__is_named_with_the_remedy) {
  namespace fs = std::filesystem;
  const test::OwnFolder own(testing::TempDir() + "tern-pci");
  const fs::path folder = own.path();
  for (const char* address : {"0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.0"}) {
    fs::create_directories(folder / address);
  }
  fs::create_symlink("../../../bus/pci/drivers/ixgbe", folder / "0000:02:00.0/driver");
  fs::create_symlink("../../../bus/pci/drivers/vfio-pci", folder / "0000:03:00.0/driver");
  fs::create_symlink("../../../bus/pci/drivers/mlx5_core", folder / "0000:04:00.0/driver");
  const auto why = [&](const char* address) { return std::string(check_pci_device(folder, address).message()); };
  EXPECT_EQ(why("0000:00:00.0"),
            "dpdk: there is no PCI device 0000:00:00.0: dpdk-devbind.py --status lists those of this machine");
  EXPECT_EQ(why("0000:01:00.0"),
            "dpdk: the PCI device 0000:01:00.0 has no driver: dpdk-devbind.py --bind=vfio-pci "
            "0000:01:00.0");
  EXPECT_EQ(why("0000:02:00.0"),
            "dpdk: the kernel's driver ixgbe has the PCI device 0000:02:00.0: dpdk-devbind.py --bind=vfio-pci "
            "0000:02:00.0, after which the kernel has no such interface");
  EXPECT_EQ(why("0000:03:00.0"), "ok");
  // mlx5, mlx4, mana: the RDMA device shows that the kernel's driver shares the NIC.
  EXPECT_THAT(why("0000:04:00.0"), testing::HasSubstr("the kernel's driver mlx5_core has the PCI device"));
  fs::create_directories(folder / "0000:04:00.0/infiniband/mlx5_0");
  EXPECT_EQ(why("0000:04:00.0"), "ok");
}

TEST(EalArguments, without_any__follow_the_machine) {
  EalMachine machine;
  machine.memory_bytes = uint64_t{8} << 30;
  machine.cpu = 3;
  EalChoice choice;
  choice.memory_bytes = 50u << 20;
  auto words = eal_arguments(choice, machine);
  ASSERT_TRUE(words.ok());
  EXPECT_THAT(*words, ElementsAre("tern", "--no-telemetry", "--lcores", "0@3", "--no-huge", "--no-shconf", "-m", "512",
                                  "-a", "ffff:ff:1f.7"));
  machine.free_hugepage_bytes = 50u << 20;
  choice.probes_all = true;
  words = eal_arguments(choice, machine);
  EXPECT_THAT(*words,
              ElementsAre("tern", "--no-telemetry", "--lcores", "0@3", "--in-memory", "--single-file-segments"));
  choice.arguments = "  -l 1\t--no-huge ";
  words = eal_arguments(choice, machine);
  EXPECT_THAT(*words, ElementsAre("tern", "-l", "1", "--no-huge"));
}

TEST(EalArguments, arguments_that_would_end_the_process__are_refused) {
  for (const char* text : {"-h", "--help", "--he", "-l 0 -h", "--log-level help", "--log-level=help", "--log-l=help"}) {
    EalChoice choice;
    choice.arguments = text;
    const auto words = eal_arguments(choice, {});
    ASSERT_FALSE(words.ok()) << text;
    EXPECT_EQ(words.status().code(), Code::kMisuse);
  }
  for (const char* text : {"--huge-dir /x", "--log-level=8", "--huge-unlink"}) {
    EalChoice choice;
    choice.arguments = text;
    EXPECT_TRUE(eal_arguments(choice, {}).ok()) << text;
  }
}

}  // namespace
}  // namespace tern::transport
