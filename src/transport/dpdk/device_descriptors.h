// File descriptors of devices, which EAL and drivers open without O_CLOEXEC. A program that the process starts would
// inherit them, and keep the device open. For example, an AF_PACKET socket of a closed port continued to take its share
// of the next port's frames, because both are in one fanout group of the kernel. Transport layer.
#pragma once

#include <vector>

namespace tern::transport {

/// Exists while EAL or a driver may open descriptors. Its destructor sets close-on-exec on the new descriptors of
/// devices, packet sockets and the kernel's anonymous objects. It does not change files, pipes and other sockets, which
/// another thread may have opened. Without /proc it does nothing.
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
