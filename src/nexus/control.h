// What endpoints and their Nexus say to each other: plain values, passed through mailboxes.
// Nexus room: does not know packet formats or slots.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tern/status.h>

#include "wire/management.h"

namespace tern::nexus {

/// A peer endpoint's transport address, as its transport made it. Opaque here.
struct AddressBytes {
  std::array<std::byte, 64> bytes{};
  uint8_t size = 0;
};

/// What one side of a session tells the other in the handshake (docs/protocol.md, 7).
struct SessionTerms {
  std::string transport;     ///< "shm", "udp", ...; both sides must name the same
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
  std::string address;   ///< "HOST:PORT", numeric
  uint64_t boot_id = 0;  ///< random; another one after a restart, or after either side has given the other up
};

enum class PeerLiveness : uint8_t {
  kInCallback,  ///< the endpoint's thread is inside one loop iteration: an application callback runs
  kIdle,        ///< the Nexus answers; the endpoint is not in a callback
  kNoSession,   ///< the Nexus answers, but the endpoint or session is not there any more
  kRestarted,   ///< another run answers at this address. Never in an event: kPeerGone says it for all sessions
};

/// From the Nexus to an endpoint; handled by the endpoint's owner thread in its loop.
struct ControlEvent {
  enum class Kind : uint8_t {
    kConnectRequest,  ///< server side: a client wants a session. Answer with answer_connect(token, ...).
    kConnectResult,   ///< client side: `status`, and if ok `terms` of the server and `peer`
    kDisconnected,    ///< the peer has closed the session `local_key` (`is_client_side`: our side is the client)
    kPeerGone,        ///< the Nexus run peer.boot_id is dead or has restarted: `status`; ends all sessions with it
    kLiveness,        ///< answer to ask_liveness() for session `local_key`
  };
  Kind kind;
  bool is_client_side = false;
  PeerLiveness liveness = PeerLiveness::kIdle;
  uint32_t local_key = 0;
  uint64_t token = 0;
  Status status;
  SessionTerms terms;
  PeerNexus peer;
};

/// An endpoint as its Nexus sees it. Made by the endpoint, registered with NexusCore::add_endpoint(). The management
/// thread pushes; the owner thread drains.
class EndpointPort {
 public:
  /// `wake` ends the owner's wait(); called by the management thread, also while the endpoint is being destroyed
  /// (until remove_endpoint() returns).
  EndpointPort(uint16_t endpoint_id, std::string transport_name, std::function<void()> wake)
      : id(endpoint_id), transport(std::move(transport_name)), wake_(std::move(wake)) {}

  const uint16_t id;
  const std::string transport;
  /// Written by the owner thread around each loop iteration: odd inside, even outside. A thread that stays inside is
  /// in an application callback.
  std::atomic<uint64_t> iteration{0};

  void push(ControlEvent event) {
    {
      std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
      has_events_.store(true, std::memory_order_release);
    }
    wake_();
  }
  /// Owner: cheap question first.
  bool has_events() const { return has_events_.load(std::memory_order_acquire); }
  std::vector<ControlEvent> drain() {
    std::lock_guard lock(mutex_);
    has_events_.store(false, std::memory_order_relaxed);
    return std::exchange(events_, {});
  }

 private:
  std::function<void()> wake_;
  std::atomic<bool> has_events_{false};
  std::mutex mutex_;
  std::vector<ControlEvent> events_;
};

}  // namespace tern::nexus
