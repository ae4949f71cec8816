// The values that endpoints and their Nexus pass to each other through mailboxes. Nexus layer: does not know packet
// formats or slots.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tern/status.h>

#include "base/inline_text.h"
#include "base/process.h"
#include "base/thread_safety.h"
#include "base/try.h"
#include "wire/management.h"

namespace tern::nexus {

/// The address of an endpoint's data path, in the format of its transport. The Nexus does not read it.
struct AddressBytes {
  std::array<std::byte, 64> bytes{};
  uint8_t size = 0;
};

using TransportName = base::InlineText<wire::kTransportNameBytesMax>;
/// "HOST:PORT" in numeric form; the longest is an IPv6 address with a scope.
using AddressText = base::InlineText<63>;

/// The terms that one side of a session sends to the other in the handshake (docs/protocol.md, 7).
struct SessionTerms {
  TransportName transport;   ///< both sides must have the same transport: "shm", "udp", ...
  AddressBytes address;      ///< address of the endpoint's data path
  uint32_t session_key = 0;  ///< wire::session_key of this side, which the other side writes into its packets
  uint16_t endpoint_id = 0;
  uint32_t payload_bytes_max = 0;  ///< largest payload of a packet; the session uses the smaller of both sides' values
  uint8_t window = 0;              ///< slots, 1..64; the server may choose fewer than the client asks for
  uint8_t credits = 0;             ///< as in wire::ManagementTerms
  uint32_t first_number = 0;       ///< number of this side's first data packet; 24 bits
  uint32_t path_token = 0;         ///< from a server: the token of the first path probes
  uint8_t credit_unit = 0;         ///< from a server: the unit of its credits (wire/credits.h)
};

/// The code that a server sends with a refusal; kOk for kNone. The client may try again later unless the code is
/// kRefused.
constexpr Code refusal_code(wire::Refusal refusal) {
  switch (refusal) {
    case wire::Refusal::kNone:
      return Code::kOk;
    case wire::Refusal::kNoMemory:
      return Code::kNoMemory;
    case wire::Refusal::kNoCapacity:
    case wire::Refusal::kPeersPerAddress:
    case wire::Refusal::kSessionsPerAddress:
    case wire::Refusal::kNexusFull:
    case wire::Refusal::kEndpointShare:
      return Code::kQueueFull;
    case wire::Refusal::kEndpointClosing:
    case wire::Refusal::kSessionClosed:
      return Code::kSessionReset;
    default:
      return Code::kRefused;
  }
}
/// The status that the client's application gets. `refusal` is not kNone.
inline Status refusal_status(wire::Refusal refusal) { return {refusal_code(refusal), wire::refusal_text(refusal)}; }

/// One run of a peer Nexus.
struct PeerNexus {
  AddressText address;   ///< "HOST:PORT", numeric
  uint64_t boot_id = 0;  ///< random; changes with a restart, and when one side has given the other up
};

enum class PeerLiveness : uint8_t {
  kInCallback,  ///< the endpoint's thread stays in one loop iteration: an application callback runs
  kIdle,        ///< the Nexus answers; the endpoint is not in a callback
  kNoSession,   ///< the Nexus answers, but the endpoint or session has ended
  kRestarted,   ///< another run answers at this address. Not in an event, because kPeerGone ends all sessions
};

/// The time at which an endpoint last received a packet of a peer on the data path. The endpoint writes it in answer to
/// kAskLife. The management thread reads it before it declares the peer dead.
class PeerLife {
 public:
  /// Asks the endpoint. Management thread, while !is_asked(). The question ends when the last copy of the pointer is
  /// destroyed, in any thread. Throws std::bad_alloc; there is then no question.
  static std::shared_ptr<PeerLife> ask(const std::shared_ptr<PeerLife>& life) {
    life->is_asked_.store(true, std::memory_order_relaxed);
    return {life.get(), [life](PeerLife* asked) { asked->is_asked_.store(false, std::memory_order_release); }};
  }
  /// Management thread. Returns false if the question has ended; heard_at_ns() then includes its answer.
  bool is_asked() const { return is_asked_.load(std::memory_order_acquire); }
  /// Any thread. `heard_at_ns`: on the environment's clock.
  void note(uint64_t heard_at_ns) {
    if (heard_at_ns > heard_at_ns_.load(std::memory_order_relaxed)) {
      heard_at_ns_.store(heard_at_ns, std::memory_order_relaxed);
    }
  }
  uint64_t heard_at_ns() const { return heard_at_ns_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> heard_at_ns_{0};
  std::atomic<bool> is_asked_{false};
};

/// An event from the Nexus to an endpoint, whose owner thread handles it in its loop.
struct ControlEvent {
  enum class Kind : uint8_t {
    kConnectRequest,  ///< server side: a client requests a session. Answer with answer_connect(token, ...).
    kConnectResult,   ///< client side: `status`, and if ok `terms` of the server and `peer`
    kDisconnected,    ///< the peer has closed the session `local_key` (`is_client_side`: our side is the client)
    kPeerGone,        ///< the Nexus run peer.boot_id is dead or has restarted: `status`; ends all sessions with it
    kLiveness,        ///< answer to ask_liveness() for session `local_key`
    /// The run peer.boot_id does not answer pings. The endpoint calls EndpointPort::note_life() if a session with that
    /// run has received a packet that proved itself since `since_ns`. The endpoint keeps the event until it has read
    /// all packets that had arrived for it, or has tried for long. The destruction of the event means that the endpoint
    /// has received no other such packet.
    kAskLife,
  };
  Kind kind;
  bool is_client_side = false;
  PeerLiveness liveness = PeerLiveness::kIdle;
  uint32_t local_key = 0;
  uint64_t token = 0;
  uint64_t since_ns = 0;                         ///< kAskLife
  wire::Refusal refusal = wire::Refusal::kNone;  ///< kConnectResult: the server's refusal, from which `status` is made
  Status status;
  SessionTerms terms;
  PeerNexus peer;
  std::shared_ptr<PeerLife> life;  ///< kAskLife
};

/// An endpoint's mailbox for events of its Nexus. The endpoint makes it and registers it with
/// NexusCore::add_endpoint(). The management thread pushes; the owner thread drains.
class EndpointPort {
 public:
  static constexpr size_t kReserved = 8;  ///< events that fit without an allocation in a registered port

  /// The management thread calls `wake`, which ends the owner's wait(), until remove_endpoint() has returned. The
  /// thread that destroys the Nexus calls `orphan` once if the endpoint is still registered. The endpoint refuses all
  /// calls from then on.
  EndpointPort(uint16_t endpoint_id, std::string_view transport_name, std::function<void()> wake,
               std::function<void()> orphan = nullptr)
      : id(endpoint_id), transport(transport_name), wake_(std::move(wake)), orphan_(std::move(orphan)) {}

  const uint16_t id;
  const TransportName transport;
  /// The owner thread adds 1 at the beginning and at the end of each loop iteration: the value is odd inside, and even
  /// outside. A thread that stays inside for long is in an application callback.
  std::atomic<uint64_t> iteration{0};

  /// Returns false if there is no memory, which it does not need for kReserved events between two calls of drain().
  /// `event` is then unchanged, and the caller pushes it again later.
  [[nodiscard]] bool push(ControlEvent& event) EXCLUDES(mutex_) {
    {
      base::MutexLock lock(mutex_);
      if (!base::try_reserve(events_, events_.size() + 1)) return false;
      events_.push_back(std::move(event));
      has_events_.store(true, std::memory_order_release);
    }
    wake_();
    return true;
  }
  /// Takes no lock, unlike drain(): costs one load. Owner thread.
  bool has_events() const { return has_events_.load(std::memory_order_acquire); }
  /// Calls `visit` with each event, and destroys the events. Not from `visit`. Owner thread.
  template <class Visit>
  void drain(Visit&& visit) EXCLUDES(mutex_) {
    drained_.clear();  // after a visit that has thrown
    {
      base::MutexLock lock(mutex_);
      has_events_.store(false, std::memory_order_relaxed);
      events_.swap(drained_);
    }
    for (ControlEvent& event : drained_) visit(event);
    drained_.clear();
    // Many events at once are rare, and their memory is not kept. Without memory for a small vector the large one
    // stays.
    if (drained_.capacity() <= kReserved) return;
    std::vector<ControlEvent> small;
    if (base::try_reserve(small, kReserved)) drained_.swap(small);
  }
  /// Answers a kAskLife: a session with that run of the peer received its last packet that proved itself at
  /// `heard_at_ns` (on the environment's clock). Owner thread.
  static void note_life(const ControlEvent& question, uint64_t heard_at_ns) { question.life->note(heard_at_ns); }

  /// True if the Nexus was destroyed before the endpoint. Any thread.
  bool is_orphaned() const { return is_orphaned_.load(std::memory_order_acquire); }
  /// True in a forked child of the process that made the port. The child may only destroy it.
  bool is_forked() const { return base::process_number() != process_; }

 private:
  friend class NexusCore;
  /// Makes room for kReserved events. False: no memory.
  bool reserve() EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    return base::try_reserve(events_, kReserved) && base::try_reserve(drained_, kReserved);
  }
  void become_orphan() {
    is_orphaned_.store(true, std::memory_order_release);
    if (orphan_) orphan_();
  }

  const std::function<void()> wake_, orphan_;
  const uint32_t process_ = base::process_number();
  std::atomic<bool> is_orphaned_{false};
  std::shared_ptr<void>
      nexus_;  ///< keeps the core of a registered port, so that calls after the Nexus's end are refused
  std::atomic<bool> has_events_{false};
  base::Mutex mutex_;
  std::vector<ControlEvent> events_ GUARDED_BY(mutex_);
  std::vector<ControlEvent> drained_;  ///< owner only
};

}  // namespace tern::nexus
