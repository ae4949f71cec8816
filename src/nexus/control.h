// What endpoints and their Nexus say to each other: plain values, passed through mailboxes.
// Nexus room: does not know packet formats or slots.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <tern/status.h>

#include "base/inline_text.h"
#include "base/try.h"
#include "wire/management.h"

namespace tern::nexus {

/// A peer endpoint's transport address, as its transport made it. Opaque here.
struct AddressBytes {
  std::array<std::byte, 64> bytes{};
  uint8_t size = 0;
};

using TransportName = base::InlineText<wire::kTransportNameBytesMax>;
/// "HOST:PORT" in numeric form; the longest is an IPv6 address with a scope.
using AddressText = base::InlineText<63>;

/// What one side of a session tells the other in the handshake (docs/protocol.md, 7).
struct SessionTerms {
  TransportName transport;   ///< "shm", "udp", ...; both sides must name the same
  AddressBytes address;      ///< of the endpoint's data path
  uint32_t session_key = 0;  ///< wire::session_key of this side: the other writes it into its packets
  uint16_t endpoint_id = 0;
  uint32_t payload_bytes_max = 0;                             ///< per packet; the session uses the smaller of the two
  uint8_t window = 0;                                         ///< slots, 1..64; the server may lower the client's wish
  uint8_t credits = 0;                                        ///< start limit, 1..128; the server's word counts
  uint32_t first_number = 0;                                  ///< of this side's first data packet; 24 bits
  uint32_t path_token = 0;                                    ///< from a server: what the first path probes must carry
  wire::CreditUnit credit_unit = wire::CreditUnit::kPackets;  ///< from a server: what its credit limits count
};

/// A refusal whose reason travels: what answer_connect() should be given, and what the client's kConnectResult says.
inline Status refusal_status(wire::Refusal refusal) {
  // What may be tried again later has a code of its own.
  const auto code = [refusal] {
    switch (refusal) {
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
  };
  return {code(), wire::refusal_text(refusal)};
}

/// Names a peer Nexus: where it is reached and which run of it this is.
struct PeerNexus {
  AddressText address;   ///< "HOST:PORT", numeric
  uint64_t boot_id = 0;  ///< random; another one after a restart, or after either side has given the other up
};

enum class PeerLiveness : uint8_t {
  kInCallback,  ///< the endpoint's thread is inside one loop iteration: an application callback runs
  kIdle,        ///< the Nexus answers; the endpoint is not in a callback
  kNoSession,   ///< the Nexus answers, but the endpoint or session is not there any more
  kRestarted,   ///< another run answers at this address. Never in an event: kPeerGone says it for all sessions
};

/// When an endpoint last heard a peer on the data path. The endpoint writes it when it is asked (kAskLife), the
/// management thread looks before it gives the peer up.
class PeerLife {
 public:
  /// Management thread, while no question waits. The question ends with the last copy of the pointer, in any thread.
  /// Throws bad_alloc: no question waits.
  static std::shared_ptr<PeerLife> ask(const std::shared_ptr<PeerLife>& life) {
    life->is_asked_.store(true, std::memory_order_relaxed);
    return {life.get(), [life](PeerLife* asked) { asked->is_asked_.store(false, std::memory_order_release); }};
  }
  /// Management thread: a question waits. False: what was noted in answer to it is seen from now on.
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

/// From the Nexus to an endpoint; handled by the endpoint's owner thread in its loop.
struct ControlEvent {
  enum class Kind : uint8_t {
    kConnectRequest,  ///< server side: a client wants a session. Answer with answer_connect(token, ...).
    kConnectResult,   ///< client side: `status`, and if ok `terms` of the server and `peer`
    kDisconnected,    ///< the peer has closed the session `local_key` (`is_client_side`: our side is the client)
    kPeerGone,        ///< the Nexus run peer.boot_id is dead or has restarted: `status`; ends all sessions with it
    kLiveness,        ///< answer to ask_liveness() for session `local_key`
    /// Pings to the run peer.boot_id are not answered: EndpointPort::note_life() if sessions with it have had packets
    /// that proved themselves since `since_ns`. The event is to be kept until the endpoint has read all that had
    /// arrived for it, or has tried for long: then its destruction says that there was nothing.
    kAskLife,
  };
  Kind kind;
  bool is_client_side = false;
  PeerLiveness liveness = PeerLiveness::kIdle;
  uint32_t local_key = 0;
  uint64_t token = 0;
  uint64_t since_ns = 0;  ///< kAskLife
  Status status;
  SessionTerms terms;
  PeerNexus peer;
  std::shared_ptr<PeerLife> life;  ///< kAskLife
};

/// An endpoint as its Nexus sees it. Made by the endpoint, registered with NexusCore::add_endpoint(). The management
/// thread pushes; the owner thread drains.
class EndpointPort {
 public:
  /// `wake` ends the owner's wait(); called by the management thread, also while the endpoint is being destroyed
  /// (until remove_endpoint() returns). `orphan` is called once, by the thread that destroys the Nexus while the
  /// endpoint is still registered: afterwards every call of the endpoint is to be refused.
  EndpointPort(uint16_t endpoint_id, std::string_view transport_name, std::function<void()> wake,
               std::function<void()> orphan = nullptr)
      : id(endpoint_id), transport(transport_name), wake_(std::move(wake)), orphan_(std::move(orphan)) {}

  const uint16_t id;
  const TransportName transport;
  /// Written by the owner thread around each loop iteration: odd inside, even outside. A thread that stays inside is
  /// in an application callback.
  std::atomic<uint64_t> iteration{0};

  /// False: no memory, and `event` is as it was. Pushing it again later is all that is needed.
  [[nodiscard]] bool push(ControlEvent& event) {
    {
      std::lock_guard lock(mutex_);
      if (!base::try_reserve(events_, events_.size() + 1)) return false;
      events_.push_back(std::move(event));
      has_events_.store(true, std::memory_order_release);
    }
    wake_();
    return true;
  }
  /// Owner: cheap question first.
  bool has_events() const { return has_events_.load(std::memory_order_acquire); }
  std::vector<ControlEvent> drain() {
    std::lock_guard lock(mutex_);
    has_events_.store(false, std::memory_order_relaxed);
    return std::exchange(events_, {});
  }
  /// Owner, for a kAskLife: a session with that run of the peer last had a packet that proved itself at `heard_at_ns`.
  static void note_life(const ControlEvent& question, uint64_t heard_at_ns) { question.life->note(heard_at_ns); }

  /// Any thread: the Nexus was destroyed before the endpoint.
  bool is_orphaned() const { return is_orphaned_.load(std::memory_order_acquire); }
  /// The process is a fork() of the one that made the port: nothing of it may be used but to be destroyed.
  bool is_forked() const { return getpid() != pid_; }

 private:
  friend class NexusCore;
  void become_orphan() {
    is_orphaned_.store(true, std::memory_order_release);
    if (orphan_) orphan_();
  }

  const std::function<void()> wake_, orphan_;
  const pid_t pid_ = getpid();
  std::atomic<bool> is_orphaned_{false};
  std::shared_ptr<void> nexus_;  ///< what is registered keeps the core: calls after the Nexus's end find it gone
  std::atomic<bool> has_events_{false};
  std::mutex mutex_;
  std::vector<ControlEvent> events_;
};

}  // namespace tern::nexus
