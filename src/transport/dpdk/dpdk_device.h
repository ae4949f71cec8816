// Finding the DPDK port of a device, or making it, and what is known of it. Transport layer; control events only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <tern/status.h>

#include "transport/dpdk/dpdk_plan.h"

namespace tern::transport {

/// "net_memif0,role=server": the name, and what is behind the comma. A PCI address has its domain.
struct DeviceText {
  std::string name;
  std::string arguments;

  /// ';' may stand for ','.
  static DeviceText parse(std::string_view text);
  bool is_pci() const;
  std::string full() const { return arguments.empty() ? name : name + "," + arguments; }
};

/// Whether DPDK can drive the PCI device, as `sysfs` (/sys/bus/pci/devices) tells it. kUnavailable: there is none, or a
/// driver of the kernel has it; the text says which, and how the device is bound.
Status check_pci_device(const std::string& sysfs, const std::string& address);

/// A port that this object owns (rte_eth_dev_owner). Its end stops the port, and unplugs the device if such an object
/// has plugged it in. Some stay plugged in until they are opened with other arguments (DriverFaults::is_kept_plugged).
/// EAL must run. One thread at a time, in the process.
class DeviceHandle {
 public:
  /// kUnavailable: there is no such device, the kernel has it, its driver refuses, or another part of the program owns
  /// the port; the text says which. kNoMemory. Without a name: the only port that EAL has found.
  static Result<std::unique_ptr<DeviceHandle>> open(const DeviceText& text);
  ~DeviceHandle();
  /// Afterwards the driver has given its mbufs back. Not in EAL's interrupt thread.
  void stop() const;
  DeviceHandle(const DeviceHandle&) = delete;
  DeviceHandle& operator=(const DeviceHandle&) = delete;

  uint16_t port_id() const { return port_id_; }
  const DpdkDevice& facts() const { return facts_; }

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
