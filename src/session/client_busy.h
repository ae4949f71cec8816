// The part of a client session that only a session with calls needs.
// Session layer: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "session/client_slot.h"
#include "session/loss_detection.h"
#include "session/path_check.h"
#include "session/path_proof.h"
#include "session/probe_timer.h"
#include "session/sent_packets.h"
#include "session/silence_timer.h"
#include "session/size_search.h"

namespace tern::session {

/// What a session needs to watch over its calls. Ticks and long messages use it; a call that is soon answered does not.
struct ClientWatch {
  LossTimer loss_timer;
  ProbeTimer probe_timer;
  SilenceTimer silence;
  PathCheck path_check;
  SizeSearch size_search;
  FollowTimer follow_timer;
  uint64_t heard_epoch = 0;          ///< epoch in which ClientPools::response_share last counted this session
  uint64_t receiving_ask_at_ns = 0;  ///< time at which all slots in kReceiving send their next probe
  uint64_t gap_ask_again_ns = 0;     ///< earliest time at which another gap in the server's numbers causes probes
  uint64_t largest_part = 0;         ///< number of the newest RFR that a response packet has answered
  uint64_t next_miss_ns = 0;         ///< earliest time at which ClientSession::note_miss() counts again
  uint32_t awaited_packets = 0;      ///< response packets that were asked for and have not arrived
  uint8_t transfer_cursor = 0;       ///< slot of the long message whose turn is next
};

/// A session gets this record with its first call after a rest (ClientSession::wake()), and gives it back when it has
/// no call and owes no report. The sessions in use at the same time are few, and take the records that were given back
/// last, so that these stay in the cache. A record of which less is written leaves space there for others.
struct alignas(64) ClientBusy {
  static constexpr size_t kFirstSlots = 8;  ///< the default window

  // Memory for a session with few calls at a time.
  ClientSlot* first_slots[kFirstSlots] = {};
  SentPackets::Embedded first_sent;
  ClientSlot first_slot;  ///< the slot that is taken first; most sessions take no other

  uint64_t made_mask = 0;   ///< slots that have memory
  uint64_t sample_ns = 0;   ///< ClientSession::last_sample_ns_ when the session woke
  bool is_watched = false;  ///< `watch` exists
  union {
    ClientWatch watch;  ///< made when it is first used (ClientSession::watch())
  };
  ClientBusy() {}  // makes no `watch`
};
static_assert(std::is_trivially_destructible_v<ClientWatch>);

/// The memory and the limits that the client sessions of one endpoint share.
struct ClientPools {
  SharedTerms terms{this};
  base::Pool<ClientControl, 8> controls;
  base::Pool<ClientBusy> busy;
  base::Pool<ClientSlot> slots;
  base::Pool<Transfer, 8> transfers;
  /// Free space in the endpoint's own receive queue, in credits, from which RFRs take (clause 5.4), and the unit of
  /// these credits (wire/credits.h).
  int32_t response_credits_free = 64;
  uint8_t credit_unit = 0;
  /// How many more sessions at rest may report now (clause 5.5). Without a limit, a hundred thousand reports at once
  /// would delay calls for longer than a session waits for the answer to its report.
  int32_t reports_free = 256;
  /// A session at rest reports after at least this long, because many others will report, too (clause 5.5).
  uint64_t report_delay_min_ns = 0;
  ResponseShare response_share;  ///< response packets that one session may await (clause 5.4)
  ControllerCounters controller_counters;

  /// Gives back the memory for calls that no session has.
  void trim() {
    busy.trim();
    slots.trim();
  }
};

}  // namespace tern::session
