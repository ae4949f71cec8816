// What comes out of a client session: packets, the effects of received ones, the results of ticks.
// Session layer: plain values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <tern/detail/buffer.h>
#include <tern/status.h>

#include "session/client_slot.h"
#include "session/drop.h"
#include "wire/header.h"

namespace tern::session {

/// A packet to be sent, in the general case. `payload` lies in `buffer`, or is `scratch` when `buffer` is null.
struct ClientPacket {
  wire::Header header;
  const std::byte* payload;
  uint32_t payload_bytes;
  uint32_t slot_index;
  detail::Buffer* buffer;
  ClientSlot* slot;  ///< null: concerns the session
  uint32_t index;    ///< index of the request packet; first index of an RFR's range
  uint32_t count;    ///< number of packets of an RFR's range
  bool is_retransmission;
  bool is_control;  ///< a probe, a cancel or a path probe
  std::byte scratch[wire::kSlotsMax * 4];
};

/// The effect of a received packet for the caller.
struct ClientVerdict {
  ClientSlot* finished = nullptr;  ///< take its buffers and continuation, then release_slot()
  Drop drop = Drop::kNone;
  uint16_t app_code = 0;
  Status status;  ///< status of the finished call
};

/// The result of tick().
struct ClientTick {
  uint64_t next_ns = UINT64_MAX;  ///< latest time of the next tick()
  uint64_t expired_mask = 0;      ///< slots whose deadline has passed; the caller calls end_early() for each
  /// Slots whose response does not come although other packets of the server do. The caller ends their calls, too.
  uint64_t fruitless_mask = 0;
  bool ask_liveness = false;  ///< ask the server's management whether its endpoint could answer
  /// The session has failed, for one of three reasons. The server was silent for the liveness timeout, although it
  /// could have answered; it was silent for four liveness timeouts; or the path is narrow (is_path_narrow).
  bool has_failed = false;
  bool is_path_narrow = false;  ///< packets of full length do not pass any more, short ones do (clause 6.4.2)
  bool has_timed_out = false;
  bool wants_pair_probe = false;  ///< the session is paired and silent: send a pair_probe()
  bool is_idle = false;           ///< nothing is left to do until the next call

  void at_latest(uint64_t ns) { next_ns = std::min(next_ns, ns); }
};

}  // namespace tern::session
