// The reasons why a received packet had no effect. Session layer: a plain value.
#pragma once

#include <cstdint>

namespace tern::session {

/// Each reason has a counter (EndpointCounters).
enum class Drop : uint8_t {
  kNone,
  kMalformed,  ///< contradicts itself or the session's terms
  kStale,      ///< about a request that has ended, or a duplicate
  kUnproven,   ///< carries nothing that only the peer can know (clause 3.9)
  kLease,      ///< the by-reference payload was taken back while it was copied
  kNoMemory,   ///< there is no memory to handle it
};

}  // namespace tern::session
