#include "transport/dpdk/dpdk_device.h"

#include <limits.h>
#include <net/if.h>
#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_devargs.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "base/status_text.h"
#include "base/try.h"
#include "transport/dpdk/driver_faults.h"
#include "transport/dpdk/eal.h"

namespace tern::transport {

namespace {

using base::status_of;

/// Drivers of the kernel that give a device to user space.
constexpr std::array<std::string_view, 3> kUserDrivers = {"vfio-pci", "uio_pci_generic", "igb_uio"};

/// "0000:03:00.0" or "03:00.0".
bool read_pci(std::string_view text, std::array<unsigned, 4>* parts) {
  const std::string copy(text);
  int used = 0;
  auto& [domain, bus, slot, function] = *parts;
  domain = 0;
  if (sscanf(copy.c_str(), "%4x:%2x:%2x.%1x%n", &domain, &bus, &slot, &function, &used) == 4 &&
      static_cast<size_t>(used) == copy.size()) {
    return true;
  }
  domain = 0;
  return sscanf(copy.c_str(), "%2x:%2x.%1x%n", &bus, &slot, &function, &used) == 3 &&
         static_cast<size_t>(used) == copy.size();
}

/// Devices that stay plugged in. Never destroyed, like EAL.
std::vector<DeviceText>& kept_devices() {
  static std::vector<DeviceText>& devices = *new std::vector<DeviceText>;
  return devices;
}

std::vector<DeviceText>::iterator find_kept(std::string_view name) {
  std::vector<DeviceText>& kept = kept_devices();
  return std::find_if(kept.begin(), kept.end(), [&](const DeviceText& device) { return device.name == name; });
}

/// The arguments with which EAL has made the device of a port; may be empty.
std::string arguments_of(uint16_t port_id) {
  rte_eth_dev_info info{};
  if (rte_eth_dev_info_get(port_id, &info) != 0 || info.device == nullptr) return {};
  const rte_devargs* const made = rte_dev_devargs(info.device);
  return made == nullptr || made->args == nullptr ? std::string() : made->args;
}

}  // namespace

DeviceText DeviceText::parse(std::string_view text) {
  std::string commas(text);
  std::replace(commas.begin(), commas.end(), ';', ',');
  DeviceText device;
  const size_t end = std::min(commas.find(','), commas.size());
  device.name = commas.substr(0, end);
  if (end < commas.size()) device.arguments = commas.substr(end + 1);
  std::array<unsigned, 4> pci{};
  if (read_pci(device.name, &pci)) {
    char full[16];
    snprintf(full, sizeof(full), "%04x:%02x:%02x.%x", pci[0], pci[1], pci[2], pci[3]);
    device.name = full;
  }
  return device;
}

bool DeviceText::is_pci() const {
  std::array<unsigned, 4> pci{};
  return read_pci(name, &pci);
}

Status check_pci_device(const std::string& sysfs, const std::string& address) {
  const std::string folder = sysfs + "/" + address;
  if (access(folder.c_str(), F_OK) != 0) {
    return status_of(
        Code::kUnavailable, "dpdk: there is no such PCI device",
        {"dpdk: there is no PCI device ", address, ": dpdk-devbind.py --status lists those of this machine"});
  }
  char link[PATH_MAX];
  const ssize_t bytes = readlink((folder + "/driver").c_str(), link, sizeof(link));
  if (bytes <= 0) {
    return status_of(Code::kUnavailable, "dpdk: the PCI device has no driver",
                     {"dpdk: the PCI device ", address, " has no driver: dpdk-devbind.py --bind=vfio-pci ", address});
  }
  std::string_view driver(link, static_cast<size_t>(bytes));
  driver.remove_prefix(std::min(driver.rfind('/') + 1, driver.size()));
  if (std::find(kUserDrivers.begin(), kUserDrivers.end(), driver) != kUserDrivers.end()) return {};
  // DPDK's drivers of RDMA devices leave the device to the kernel's driver, and share it.
  if (access((folder + "/infiniband").c_str(), F_OK) == 0) return {};
  return status_of(Code::kUnavailable, "dpdk: the kernel's driver has the PCI device",
                   {"dpdk: the kernel's driver ", driver, " has the PCI device ", address,
                    ": dpdk-devbind.py --bind=vfio-pci ", address, ", after which the kernel has no such interface"});
}

// ---- DeviceHandle

Result<std::unique_ptr<DeviceHandle>> DeviceHandle::open(const DeviceText& text) {
  std::unique_ptr<DeviceHandle> handle(new (std::nothrow) DeviceHandle);
  if (handle == nullptr) return Status(Code::kNoMemory, "dpdk: no memory for a device: free some");
  if (Status status = handle->find(text); !status.ok()) return status;
  if (Status status = handle->own(); !status.ok()) return status;
  if (Status status = handle->read_facts(text); !status.ok()) return status;
  return handle;
}

Status DeviceHandle::find(const DeviceText& text) {
  if (text.name.empty()) return find_only();
  const bool is_there = rte_eth_dev_get_port_by_name(text.name.c_str(), &port_id_) == 0;
  std::vector<DeviceText>& kept = kept_devices();
  const auto one = find_kept(text.name);
  if (is_there && one != kept.end()) {
    is_plugged_ = true;
    const bool is_same = one->arguments == text.arguments;
    kept.erase(one);
    if (is_same) return {};
    rte_eth_dev_info info{};
    if (rte_eth_dev_info_get(port_id_, &info) == 0) (void)rte_dev_remove(info.device);
    is_plugged_ = false;
  } else if (is_there) {
    if (text.arguments.empty() || text.arguments == arguments_of(port_id_)) return {};
    return status_of(
        Code::kUnavailable, "dpdk: EAL has the device already, with other arguments",
        {"dpdk: EAL has the device ", text.name,
         " already, with other arguments, which stay: leave the arguments out of Dpdk::Options::device, or ",
         "give them to EAL"});
  }
  port_id_ = RTE_MAX_ETHPORTS;
  Status status = plug_in(text, &port_id_);
  is_plugged_ = status.ok();
  return status;
}

uint32_t DeviceHandle::free_ports(uint16_t* port_id) {
  uint32_t count = 0;
  uint16_t id = 0;
  RTE_ETH_FOREACH_DEV(id) {
    char name[RTE_ETH_NAME_MAX_LEN];
    if (rte_eth_dev_get_name_by_port(id, name) == 0 && find_kept(name) != kept_devices().end()) continue;
    *port_id = id;
    ++count;
  }
  return count;
}

Status DeviceHandle::find_only() {
  const uint32_t count = free_ports(&port_id_);
  if (count == 1) return {};
  port_id_ = RTE_MAX_ETHPORTS;
  if (count == 0) {
    return {
        Code::kUnavailable,
        "dpdk: EAL has found no free port: bind a NIC (dpdk-devbind.py --bind=vfio-pci ADDRESS), or name a device in "
        "Dpdk::Options::device"};
  }
  const std::string ports = std::to_string(count);
  return status_of(Code::kUnavailable, "dpdk: EAL has found several ports: name one in Dpdk::Options::device",
                   {"dpdk: EAL has found ", ports, " free ports: name one of them in Dpdk::Options::device"});
}

Status DeviceHandle::plug_in(const DeviceText& text, uint16_t* port_id) {
  if (text.is_pci()) {
    if (Status status = check_pci_device("/sys/bus/pci/devices", text.name); !status.ok()) return status;
  } else if (if_nametoindex(text.name.c_str()) != 0) {
    return status_of(Code::kUnavailable, "dpdk: the device is an interface of the kernel",
                     {"dpdk: ", text.name, " is a network interface of the kernel: name its PCI address, or ",
                      "net_af_packet0;iface=", text.name, " or net_af_xdp0;iface=", text.name});
  }
  clear_eal_log();
  const int error = rte_dev_probe(text.full().c_str());
  if (error == 0) {
    uint16_t id = 0;
    RTE_ETH_FOREACH_DEV(id) {
      rte_eth_dev_info info{};
      if (rte_eth_dev_info_get(id, &info) != 0 || rte_dev_name(info.device) != text.name) continue;
      *port_id = id;
      return {};
    }
  }
  const std::string line = eal_reason();
  return status_of(
      Code::kUnavailable, "dpdk: there is no such device, or its driver refuses it",
      {"dpdk: there is no device ", text.name, ", or its driver refuses it", line,
       ": Dpdk::Options::device takes a PCI address, a port of EAL, or a driver's name with a number, such ",
       "as net_memif0, and its arguments"});
}

Status DeviceHandle::own() {
  rte_eth_dev_owner present{};
  if (rte_eth_dev_owner_get(port_id_, &present) == 0 && present.id != RTE_ETH_DEV_NO_OWNER) {
    return status_of(Code::kUnavailable, "dpdk: another part of the program owns the port",
                     {"dpdk: another part of the program (", present.name, ") owns the port: use another device"});
  }
  static const char kName[] = "tern";
  std::memcpy(owner_.name, kName, sizeof(kName));
  if (rte_eth_dev_owner_new(&owner_.id) != 0 || rte_eth_dev_owner_set(port_id_, &owner_) != 0) {
    owner_.id = RTE_ETH_DEV_NO_OWNER;
    return {Code::kUnavailable, "dpdk: another part of the program owns the port: use another device"};
  }
  return {};
}

Status DeviceHandle::read_facts(const DeviceText& text) {
  char name[RTE_ETH_NAME_MAX_LEN];
  facts_.name = rte_eth_dev_get_name_by_port(port_id_, name) == 0 ? name : text.name;
  facts_.arguments = text.arguments.empty() ? arguments_of(port_id_) : text.arguments;
  if (rte_eth_dev_info_get(port_id_, &facts_.info) != 0) {
    return status_of(Code::kUnavailable, "dpdk: the driver does not describe the device",
                     {"dpdk: the driver does not describe the device ", facts_.name, ": use another one"});
  }
  const rte_bus* const bus = rte_dev_bus(facts_.info.device);
  facts_.has_dma = bus == nullptr || std::strcmp(rte_bus_name(bus), "vdev") != 0;
  facts_.has_iova_va = rte_eal_iova_mode() == RTE_IOVA_VA;
  if (rte_eth_dev_get_mtu(port_id_, &facts_.mtu_bytes) != 0) facts_.mtu_bytes = RTE_ETHER_MTU;
  return {};
}

void DeviceHandle::stop() const {
  run_in_eal_thread([&] { (void)rte_eth_dev_stop(port_id_); });
}

DeviceHandle::~DeviceHandle() {
  if (port_id_ == RTE_MAX_ETHPORTS) return;
  const bool is_owner = owner_.id != RTE_ETH_DEV_NO_OWNER;
  if (!is_owner && !is_plugged_) return;
  stop();
  if (is_owner) (void)rte_eth_dev_owner_unset(port_id_, owner_.id);
  if (!is_plugged_ || facts_.info.device == nullptr) return;
  if (faults_of(facts_.info.driver_name).is_kept_plugged) {
    // Without memory for this entry, the port is found again among EAL's ports.
    (void)base::try_grow([&] { kept_devices().push_back({std::move(facts_.name), std::move(facts_.arguments)}); });
  } else {
    run_in_eal_thread([&] { (void)rte_dev_remove(facts_.info.device); });
  }
  settle_eal();
}

}  // namespace tern::transport
