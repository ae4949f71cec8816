// Endpoints over AF_XDP at the two ends of a cable (tests/cable), in one process.
#pragma once

#if __has_include(<tern/transport/xdp.h>)  // it is built
#define TERN_TEST_HAS_XDP
#include <tern/transport/xdp.h>

#include <cstdint>
#include <cstdlib>

namespace tern::test {

/// Options of an endpoint at end 0, tern0 in this namespace, or end 1, tern1 in the second one.
inline Xdp::Options xdp_options(uint32_t end) {
  Xdp::Options options;
  options.interface = end == 0 ? "tern0" : "tern1";
  const char* const netns = std::getenv("TERN_PEER_NETNS");
  if (end != 0 && netns != nullptr) options.netns = netns;
  return options;
}

}  // namespace tern::test
#endif
