// An address of loopback for one test. Test code.
#pragma once

#include <unistd.h>

#include <string>

namespace tern::test {

/// An IPv4 address of loopback that no other test uses, so that no other process takes a server's port before its
/// successor starts.
inline std::string own_loopback() {
  const int run = getpid();
  return "127." + std::to_string(64 + (run >> 16 & 63)) + "." + std::to_string(run >> 8 & 255) + "." +
         std::to_string(run & 255);
}

}  // namespace tern::test
