// Endpoints over DPDK in tests: two ports of net_memif in this process with a cable between them. They need no device,
// no hugepages and no privilege. Both ports are in this process because memif's driver may crash when the process at
// the other end exits.
#pragma once

#include <tern/transport/dpdk.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "own_folder.h"

namespace tern::test {

/// EAL's arguments in tests: $TERN_TEST_EAL, or normal pages.
inline std::string memif_eal() {
  const char* const set = std::getenv("TERN_TEST_EAL");
  return set != nullptr ? set : "--no-huge --no-pci --no-telemetry --no-shconf -m 256";
}

/// net_memif0 or net_memif1, with rings of 1 << `ring_log` frames. Port 0 has the server's role and must be opened
/// first. The socket has no abstract name, because the driver never frees one.
inline std::string memif_device(uint32_t port, uint32_t ring_log = 12) {
  static const OwnFolder folder("/tmp/tern-memif");
  return "net_memif" + std::to_string(port) + ";role=" + (port == 0 ? "server" : "client") + ";socket-abstract=no" +
         ";socket=" + folder.file("memif") + ";rsize=" + std::to_string(ring_log);
}

/// Options of an endpoint at one of the two ports, which have the addresses 10.78.0.1 and 10.78.0.2.
inline Dpdk::Options memif_options(uint32_t port) {
  Dpdk::Options options;
  options.device = memif_device(port);
  options.eal = memif_eal();
  options.address = port == 0 ? "10.78.0.1/24" : "10.78.0.2/24";
  return options;
}

}  // namespace tern::test
