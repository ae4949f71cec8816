// A call of a client session: its slot, and the state of a message of several packets.
// Session layer: plain values.
//
// The life of a slot:
//
//   kFree --begin--> kSending --last packet acknowledged--> kWaiting --packet 0 of a longer response--> kReceiving
//     ^                  |                                     |                                           |
//     +------------------+------------ response complete ------+-------------------------------------------+
//     |                  +------------ end_early() ------------+-----> kEnded (asks the server to forget it)
//     +------------------------------- answered or cancel acknowledged --+
//
// kBlocked is kFree, but takes no call: block_slot().
#pragma once

#include <cstddef>
#include <cstdint>

#include <tern/counters.h>
#include <tern/detail/buffer.h>
#include <tern/detail/inline_function.h>

#include "base/pool.h"
#include "cc/any_controller.h"
#include "cc/pacer.h"
#include "session/client_terms.h"
#include "session/credit_policy.h"
#include "session/windows.h"
#include "wire/header.h"

namespace tern {
struct Completion;
}

namespace tern::session {

using Continuation = detail::InlineFunction<Completion&>;

/// What a packet of a response takes until it has arrived (clause 5.4).
struct AwaitedCost {
  uint8_t packets = 1;  ///< packets of the session's own size that it counts as, rounded up
  uint8_t credits = 1;  ///< credits of the endpoint's own receive queue
};

/// A message of more than one packet, on its way to the server or from it.
struct Transfer {
  IndexWindow window;  ///< request: acknowledged packets; response: received ones
  IndexSet lost;       ///< indices of the packets to send (request) or to ask for (response) again
  uint32_t packets = 0;
  uint32_t next = 0;           ///< lowest index that was never sent or asked for
  uint32_t restarts = 0;       ///< response: packets 0 that contradicted an earlier one (clause 5.3.1)
  uint32_t payload_bytes = 0;  ///< of a full packet; packet 0 of a response has the session's own (clause 5.1.1)
  uint8_t payload_code = 0;
  AwaitedCost cost;    ///< response: of a full packet
  uint32_t bytes = 0;  ///< request: its length, so that sending a packet does not load the buffer's control line
};

/// One call in flight. The slot has `request` and `response` until the caller takes them.
struct ClientSlot {
  enum class Phase : uint8_t { kFree, kSending, kWaiting, kReceiving, kEnded, kBlocked };

  uint32_t request_number = 0;
  // The common case writes these fields at once, as one word.
  uint16_t packets_in_flight = 0;  ///< records of sent packets that name this slot
  Phase phase = Phase::kFree;
  /// 0: no packet was sent; otherwise 1 plus the rounds of losses since the last progress (clause 4.3.3), at most 255.
  /// kWaiting: 1 plus the probes that gaps have caused (clause 4.4.3).
  uint8_t rounds = 0;
  uint16_t type = 0;
  /// Size that packet 0 of the response may have (clause 5.3.3), as a payload code; 0: the session's own. In kSending
  /// there is space in the receive queue for it.
  uint8_t whole_code = 0;
  uint32_t call_sequence = 0;  ///< for cancel()
  uint64_t bit = 0;            ///< the slot's bit in the session's masks
  detail::Buffer* request = nullptr;
  uint64_t ticket = 0;  ///< ticket of the last packet that refers to `request`
  detail::Buffer* response = nullptr;
  uint64_t deadline_ns = UINT64_MAX;  ///< UINT64_MAX: none. ClientSession::set_deadline() sets another one
  Transfer* transfer = nullptr;       ///< kSending or kReceiving of more than one packet
  // The next cache line begins here.
  Continuation continuation;
  // The common case does not use the fields below.
  uint32_t response_bytes = 0;  ///< kReceiving
  /// kFree: the slot's request number if the slot was free at the last look; the number with all bits inverted if the
  /// server knows that the slot's last response has arrived (clause 5.5).
  uint32_t rested_number = 0;
  /// kWaiting, kEnded: time at which the phase began. kSending and kReceiving with losses in `rounds`: time at which
  /// the first loss was found, on the session's watched clock.
  uint64_t waiting_since_ns = 0;
  /// kWaiting: time of the next probe. kEnded: time of the next cancel. kSending and kReceiving with losses in
  /// `rounds`: time at which the last loss was found.
  uint64_t ask_at_ns = UINT64_MAX;

  /// kFree: true if the server knows that the last response has arrived.
  bool is_reported() const { return rested_number == ~request_number; }
  bool is_unreported() const { return phase == Phase::kFree && !is_reported(); }
  void set_reported() { rested_number = ~request_number; }
  /// kFree: marks the slot as not reported, and as not free at the last look (Reports::look()). Stores an older
  /// request number of the slot, because no later request has it.
  void set_unreported() { rested_number = request_number - wire::kSlotsMax; }
  /// kFree: true if the slot was also free at the last look, and is not reported.
  bool has_rested() const { return rested_number == request_number; }
  bool was_sent() const { return rounds != 0; }
  bool has_fruitless_rounds() const { return rounds > 1; }
};
static_assert(sizeof(ClientSlot) == 160);

/// True if the slot, which must not be free, has the buffers and the continuation of its call.
inline bool has_call(const ClientSlot& slot) {
  return slot.phase != ClientSlot::Phase::kEnded && slot.phase != ClientSlot::Phase::kBlocked;
}

/// The controller of a session that has one, and what it allows.
struct ClientControl {
  ClientControl(const cc::AnyController& initial, uint32_t seed) : controller(initial), pacer(seed) {}

  cc::AnyController controller;
  cc::Pacer pacer;
  cc::Allowance allowance;  ///< the controller's, with its rate bounded by ClientSession::apply_allowance()
};

}  // namespace tern::session
