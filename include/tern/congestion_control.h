// The names of the congestion controllers. docs/congestion.md describes and compares them.
#pragma once

#include <cstdint>

namespace tern {

/// The congestion controller of a client session: RpcOptions::congestion_control, SessionOptions::congestion_control.
enum class CongestionControl : uint8_t {
  kDefault,        ///< for a session: its endpoint's; for an endpoint: its transport's
  kNone,           ///< as fast as the server's credits allow
  kTimely,         ///< a rate that follows the gradient of the round-trip time (SIGCOMM'15, with eRPC's constants)
  kPatchedTimely,  ///< the same with the correction of "ECN or Delay" (CoNEXT'16), which makes shares equal
  kSwift,          ///< a delay target and windows in fractions of a packet (SIGCOMM'20)
  kDctcp,          ///< a window that follows the share of marked packets (SIGCOMM'10); needs a network that marks (ECN)
};

}  // namespace tern
