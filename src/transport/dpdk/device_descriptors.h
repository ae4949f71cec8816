// File descriptors of devices, which EAL and drivers open without O_CLOEXEC. A program that the process starts would
// keep them, and with them the device: an AF_PACKET socket of a port that was closed went on taking its share of the
// frames of the port that was opened next, because both are in one fanout group of the kernel. Transport layer.
#pragma once

#include <vector>

namespace tern::transport {

/// Lives while EAL or a driver may open descriptors. At its end those that have appeared are closed on exec(3):
/// devices, sockets of packets, and the kernel's objects without a name. Another thread's files, pipes and other
/// sockets are left alone. Without /proc it does nothing.
class DeviceDescriptors {
 public:
  DeviceDescriptors();
  ~DeviceDescriptors();
  DeviceDescriptors(const DeviceDescriptors&) = delete;
  DeviceDescriptors& operator=(const DeviceDescriptors&) = delete;

 private:
  std::vector<int> before_;  ///< ascending
};

}  // namespace tern::transport
