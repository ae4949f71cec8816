// An address of loopback for one test. Test code.
#pragma once

#include <unistd.h>

#include <string>

namespace tern::test {

/// An IPv4 address of loopback that no other test uses: no other process gets a port there between the end of a server
/// and the start of its successor.
inline std::string own_loopback() {
  const int run = getpid();
  return "127." + std::to_string(run >> 16 & 255) + "." + std::to_string(run >> 8 & 255) + "." +
         std::to_string(run & 255);
}

}  // namespace tern::test
