// The client end of a session, with what the endpoint keeps beside the protocol's state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include <tern/detail/buffer.h>
#include <tern/endpoint.h>
#include <tern/status.h>

#include "base/linked_list.h"
#include "nexus/control.h"
#include "session/client_session.h"
#include "transport/transport.h"

namespace tern::rpc {

struct Run;

/// A call that waits for a slot, or for its session to open.
struct QueuedCall {
  detail::Buffer* request;
  detail::Buffer* response;
  uint64_t deadline_ns;
  uint32_t sequence;
  uint16_t type;
  session::Continuation continuation;
};

/// The handshake and the path proof of a session that is being opened. Times are ns on the endpoint's clock.
struct Opening {
  uint64_t timeout_ns;    ///< SessionOptions::connect_timeout
  uint64_t until_ns = 0;  ///< deadline of the path proof; 0: the server has not accepted a session yet
  uint64_t next_path_probe_ns;
  uint64_t path_probe_gap_ns;
  uint64_t asked_at_ns;           ///< time of the connect request
  uint64_t patience_ns;           ///< limit for the data address's answer; then the handshake begins again
  uint64_t over_at_ns;            ///< end of patience_ns, which begins with the path proof
  uint64_t proof_began_ns = 0;    ///< time of the first path probe of this handshake
  uint64_t path_answered_ns = 0;  ///< time of the data address's answer to a short probe
  std::vector<nexus::AddressText> nexus_addresses;  ///< addresses of the server's host name
  uint64_t pair_at_ns;                              ///< time to try one address and port pair instead (clause 7.7.4)
  bool has_paired = false;                          ///< the pair was tried
  transport::PathError path_error = transport::PathError::kNone;  ///< the last error of the session's packets
  nexus::AddressBytes data_address;                               ///< address of the server's data path
  nexus::AddressText nexus_address;                               ///< the address that has answered
  nexus::SessionTerms wish;                                       ///< the terms of the connect request
  uint16_t peer_endpoint;

  /// Starts the time limit of the path proof. Called at the server's first answer, because the session may have waited
  /// long for its turn.
  void limit(uint64_t now_ns) {
    if (until_ns == 0) until_ns = now_ns + std::min(timeout_ns, UINT64_MAX - now_ns);
  }
  bool is_in_time(uint64_t now_ns) const { return until_ns == 0 || now_ns < until_ns; }
};

/// The state of a session that connects again by itself (SessionOptions::reconnect). It passes from one Client to the
/// next.
struct Reconnect {
  SessionOptions options;
  std::vector<nexus::AddressText> nexus_addresses;  ///< addresses of the server's host name at create_session()
  uint16_t peer_endpoint;
  uint64_t pause_ns = 0;   ///< the latest pause
  uint64_t begin_ns = 0;   ///< time at which the present attempt begins or began
  uint64_t opened_ns = 0;  ///< time at which the session last opened; 0: the present attempt has not opened it
};

/// What only some sessions have: those that are not open, those with waiting calls, and those that reconnect.
struct ClientExtras {
  std::unique_ptr<Opening> opening;               ///< null: the session is open
  std::unique_ptr<std::deque<QueuedCall>> queue;  ///< null: no call waits
  std::unique_ptr<Reconnect> reconnect;           ///< null: the session ends with this Client
  detail::SessionWaiter* waiters = nullptr;       ///< waiters of Endpoint::opened(), the newest first
  /// Name in tern::Session of a session that reconnects, which each Client passes to the next; 0: Client::name().
  uint64_t public_name = 0;

  bool is_empty() const {
    return opening == nullptr && queue == nullptr && reconnect == nullptr && waiters == nullptr && public_name == 0;
  }
};

/// The fields that every call touches come first, here and in the session. They fill three cache lines, which the
/// session's own state follows.
struct alignas(64) Client {
  Client(const session::ClientTerms& terms, session::ClientPools& pools) : session(terms, pools) {}

  transport::PeerId peer = 0;
  uint8_t looks = kIsUnlisted;  ///< mostly 0; otherwise a response needs the checks of these bits
  bool is_ticking = false;      ///< the session is in ClientSessions::ticking_
  /// is_ticking, and the endpoint has no trace: a call may begin in the common way (rpc/fast_path.h).
  bool begins_plainly = false;
  bool is_resting = false;    ///< the session is in ClientSessions::resting_
  bool is_departing = false;  ///< paced: in the timing wheel, which lists it to send when its time comes
  bool is_dead = false;       ///< the session has ended; the object is freed when no list names it
  bool is_asleep = false;     ///< at rest, and perhaps marked for ClientSessions::note_call()
  uint32_t tick_place = 0;    ///< is_ticking: index in ClientSessions::ticking_
  [[no_unique_address]] session::ClientSession session;  // name_high is in its padding
  uint32_t name_high = 0;
  std::unique_ptr<ClientExtras> extras;  ///< null: they would be empty
  Run* run = nullptr;                    ///< run of the server's Nexus; null before is_accepted and after is_dead
  union {
    base::ListLinks<Client> in_run{};  ///< until is_dead
    Status end_status;                 ///< is_dead: the status of its unfinished calls
  };
  union {
    uint64_t rest_until_ns = 0;  ///< is_resting: end of the rest
    uint64_t waits_before_end;   ///< is_dead: Completions::waits() at its end; earlier waiting calls may be its own
  };
  uint32_t peer_lost_us = 0;     ///< has_lost_peer(): time at which the transport lost the peer, us; low half
  uint32_t retransmissions = 0;  ///< packets sent again
  uint32_t packets_shown = 0;    ///< packets sent and received up to Publisher's last look; low half
  bool is_opening : 1 = false;   ///< the session is in ClientSessions::opening_
  bool is_accepted : 1 = false;  ///< the server has accepted the session
  bool has_peer : 1 = false;     ///< `peer` is connected
  bool is_in_path_probes : 1 = false;
  bool is_pair_probe_due : 1 = false;  ///< the session is in ClientSessions::path_probes_ for a pair_probe()
  bool is_ending : 1 = false;          ///< the session is in ClientSessions::ending_
  uint8_t slots = 0;                   ///< slots that it has added to Completions
  bool is_end_announced = false;       ///< is_dead: the program was notified of the end
  bool is_replaced : 1 = false;        ///< is_dead: the session lives on in another Client
  bool is_refused : 1 = false;         ///< the server has refused it
  bool is_backing_off : 1 = false;     ///< in ClientSessions::backing_off_: the Nexus was not asked yet

  // Bits of `looks`:
  static constexpr uint8_t kIsUnlisted = 1;  ///< the session is not on the list to send
  static constexpr uint8_t kHasQueue = 2;    ///< queue() exists
  /// is_ticking, together with many others: the session rests as soon as it has no call
  /// (ClientSessions::rest_at_once())
  static constexpr uint8_t kRestsAtOnce = 4;
  static constexpr uint8_t kHasLostPeer = 8;  ///< `peer_lost_us` is set; responses need no check
  bool is_listed_to_send() const { return (looks & kIsUnlisted) == 0; }
  void note_listed(bool is_listed) {
    looks = is_listed ? looks & static_cast<uint8_t>(~kIsUnlisted) : looks | kIsUnlisted;
  }
  bool rests_at_once() const { return (looks & kRestsAtOnce) != 0; }
  void rest_by_ticks() { looks &= static_cast<uint8_t>(~kRestsAtOnce); }
  // Calls ask these three, and so need no cache line of `extras` and `peer_lost_us`.
  bool has_queue() const { return (looks & kHasQueue) != 0; }
  bool has_lost_peer() const { return (looks & kHasLostPeer) != 0; }
  bool is_plain() const { return (looks & (kHasQueue | kHasLostPeer)) == 0; }  ///< neither of these two
  void note_lost_peer(uint64_t now_ns) {
    if (has_lost_peer()) return;
    peer_lost_us = static_cast<uint32_t>(now_ns / 1000);
    looks |= kHasLostPeer;
  }
  /// Only if has_lost_peer(), and within an hour: the time since then, ns.
  uint64_t peer_lost_for_ns(uint64_t now_ns) const {
    return uint64_t{1000} * (static_cast<uint32_t>(now_ns / 1000) - peer_lost_us);
  }

  /// The name of this Client in the table. No other Client ever has it.
  uint64_t name() const { return uint64_t{name_high} << 32 | session.local_key(); }
  /// The name in tern::Session.
  uint64_t public_name() const { return extras != nullptr && extras->public_name != 0 ? extras->public_name : name(); }

  /// Null: the session is open.
  Opening* opening() const { return extras != nullptr ? extras->opening.get() : nullptr; }
  /// Null: the session ends with this Client.
  Reconnect* reconnect() const { return extras != nullptr ? extras->reconnect.get() : nullptr; }
  /// Only if has_queue().
  std::deque<QueuedCall>& queue() const { return *extras->queue; }
  /// Called when one of the extras has gone.
  void drop_empty_extras() {
    if (extras != nullptr && extras->is_empty()) extras.reset();
  }

  /// Makes the queue, because a call will wait. Throws if there is no memory.
  void begin_queue() {
    if (has_queue()) return;
    auto calls = std::make_unique<std::deque<QueuedCall>>();
    if (extras == nullptr) extras = std::make_unique<ClientExtras>();
    extras->queue = std::move(calls);
    looks |= kHasQueue;
  }
  void end_queue_if_empty() {
    if (!queue().empty()) return;
    extras->queue.reset();
    looks &= static_cast<uint8_t>(~kHasQueue);
    drop_empty_extras();
  }
  /// Removes the first call of the queue.
  void pop_queued() {
    queue().pop_front();
    end_queue_if_empty();
  }
};
static_assert(sizeof(Client) <= 384, "an endpoint may have a million");

}  // namespace tern::rpc
