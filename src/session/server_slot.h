// The slots of the server end of a session, the fields that few sessions need, and the pools of both. docs/protocol.md,
// chapters 3 to 6.
//
// The life of a slot, whose request number only grows:
//
//   kIdle --first packet of a long request--> kReceiving --last--> kRunning --respond()--> kResponded
//     |  \------------- short request --------------------------------^ |                     |
//     ^                              |                                  \-----fail()-----> kFailed
//     |                              \-----------------------------------------------------^  |
//     +---- cancel (from anywhere), finished-request report, or the next request on the slot --+
#pragma once

#include <array>
#include <cstdint>

#include <tern/detail/buffer.h>

#include "base/pool.h"
#include "session/range_queue.h"
#include "session/windows.h"
#include "wire/header.h"

namespace tern::session {

/// A request of several packets while it arrives.
struct Assembly {
  IndexWindow window;                 ///< the packets that have arrived
  uint32_t packets = 0;               ///< packets of the whole request
  uint32_t payload_bytes = 0;         ///< of a full packet (clause 5.1.1)
  uint64_t deadline_ns = UINT64_MAX;  ///< from packet 0; UINT64_MAX: no deadline, or packet 0 has not arrived
  detail::Buffer* buffer = nullptr;   ///< buffer of the whole message
  void* claim = nullptr;              ///< the endpoint's record of `buffer`, here because the buffer is in no cache
};

/// The slot's ServerSession writes all fields except `call` and the response, which the endpoint writes.
struct ServerSlot {
  /// A slot in one of the first three phases may take a new request.
  enum class Phase : uint8_t { kIdle, kResponded, kFailed, kReceiving, kRunning };

  uint32_t request_number = 0;
  Phase phase = Phase::kIdle;  ///< written by ServerSession::move()
  uint8_t whole_code = 0;  ///< size that the next packet 0 of the response may have (clause 5.3.3); 0: the session's
  uint16_t type = 0;
  uint32_t request_bytes = 0;
  uint32_t response_bytes = 0;                 ///< kFailed: the failure word (clause 5.6)
  uint32_t echo = 0;                           ///< number of the packet that the next packet 0 of the response answers
  uint32_t deadline_code = wire::kNoDeadline;  ///< time left at received_ns, as on the wire
  uint64_t received_ns = 0;                    ///< arrival of the packet of `echo`
  detail::Buffer* response = nullptr;          ///< owned; kept for the slot's next response, if that fits
  uint64_t response_ticket = 0;                ///< ticket of the last packet that refers to `response`
  Assembly* assembly = nullptr;                ///< not null in kReceiving only
  void* call = nullptr;                        ///< the endpoint's record of the running request
};

/// The fields that few sessions need. A session takes them with its first packet of a long message, RFR, request that
/// permits a whole long response, or short paired probe, and keeps them until its end.
struct ServerExtras {
  RangeQueue ranges;                 ///< not empty: ServerSession::kRanges is due
  uint64_t long_bytes_sent = 0;      ///< ServerSession::long_bytes_sent()
  uint64_t long_bytes_received = 0;  ///< ServerSession::long_bytes_received()
  uint32_t heard_long_epoch = 0;     ///< ServerSession::heard_long_epoch()
  uint32_t pair_peer = 0;            ///< ServerSession::pair_peer()
  uint32_t pair_token = 0;           ///< token of the last pair reply; valid with ServerPath::has_pair_token()
  uint32_t pair_echo = 0;            ///< number of the paired short probe that the next pair reply answers
};

/// Memory that the server sessions of one endpoint share.
struct ServerPools {
  base::Pool<ServerSlot> slots;
  base::Pool<std::array<ServerSlot*, 2>> slot_pairs;  ///< of sessions of which only the first two slots have memory
  base::Pool<Assembly, 8> assemblies;
  base::Pool<ServerExtras, 8> extras;
  NumberWindow::Pool number_bits;
  /// Largest payload that the transport takes for packets of long messages; 0: no more than ServerTerms says.
  uint32_t large_payload_bytes = 0;

  /// Gives back the memory of slots if no session has any.
  void trim() {
    slots.trim();
    slot_pairs.trim();
  }
};

}  // namespace tern::session
