// Finds or makes the DPDK port of a device, and reads its properties. Transport layer; control events only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <tern/status.h>

#include "transport/dpdk/dpdk_plan.h"

namespace tern::transport {

/// A device's name and arguments, as in "net_memif0,role=server". A PCI address includes its domain.
struct DeviceText {
  std::string name;
  std::string arguments;

  /// ';' may stand for ','.
  static DeviceText parse(std::string_view text);
  bool is_pci() const;
  std::string full() const { return arguments.empty() ? name : name + "," + arguments; }
};

/// Checks in `sysfs` (/sys/bus/pci/devices) whether DPDK can drive the PCI device. kUnavailable: there is no such
/// device, or a kernel driver has it; the text names the case, and the command that binds the device.
Status check_pci_device(const std::string& sysfs, const std::string& address);

/// A port that this object owns (rte_eth_dev_owner). Its destructor stops the port, and unplugs the device if such an
/// object has plugged it in. Some devices stay plugged in until they are opened with other arguments
/// (DriverFaults::is_kept_plugged). EAL must run. One thread of the process at a time.
class DeviceHandle {
 public:
  /// kUnavailable: there is no such device, the kernel has it, its driver refuses, EAL has it with other arguments, or
  /// another part of the program owns the port; the text names the case. kNoMemory. An empty name means the only port
  /// that EAL has found.
  static Result<std::unique_ptr<DeviceHandle>> open(const DeviceText& text);
  ~DeviceHandle();
  /// The number of ports without an owner that EAL has found; `*port_id` becomes the last one's.
  static uint32_t free_ports(uint16_t* port_id);
  /// Stops the port; after it the driver has returned its mbufs. Must not be called in EAL's interrupt thread.
  void stop() const;
  DeviceHandle(const DeviceHandle&) = delete;
  DeviceHandle& operator=(const DeviceHandle&) = delete;

  uint16_t port_id() const { return port_id_; }
  const DpdkDevice& facts() const { return facts_; }
  /// False: EAL had the device before.
  bool is_plugged() const { return is_plugged_; }

 private:
  DeviceHandle() = default;
  Status find(const DeviceText& text);
  Status find_only();
  static Status plug_in(const DeviceText& text, uint16_t* port_id);
  Status own();
  Status read_facts(const DeviceText& text);

  uint16_t port_id_ = RTE_MAX_ETHPORTS;
  bool is_plugged_ = false;  ///< by such an object
  rte_eth_dev_owner owner_{};
  DpdkDevice facts_;
};

}  // namespace tern::transport
