// The Nexus behind its public face: endpoint registry, management thread's shell, worker pool.
// Calls may come from any thread; the state machine runs in the management channel's thread only.
// What is registered keeps the core: once its Nexus is gone, calls are refused or have no effect.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <tern/detail/export.h>
#include <tern/environment.h>
#include <tern/nexus.h>

#include "nexus/control.h"

namespace tern::nexus {

/// "udp://HOST:PORT" or "udp://HOST:PORT/ENDPOINT".
struct ParsedUri {
  std::string host_and_port;
  uint16_t port = 0;
  uint16_t endpoint_id = 0;
};
Result<ParsedUri> parse_uri(std::string_view uri);

/// What calls of an endpoint say whose Nexus is gone.
inline constexpr Status kNexusGone{Code::kMisuse,
                                   "the Nexus was destroyed before its endpoint: it must outlive every Rpc that was "
                                   "made with it; all that is left to do is to destroy the Rpc"};

class TERN_API NexusCore : public std::enable_shared_from_this<NexusCore> {
 public:
  static Result<std::shared_ptr<NexusCore>> create(std::string_view listen_uri, const NexusOptions& options);
  ~NexusCore();
  /// The Nexus goes: ends threads and tells the endpoints that are left. In a forked child it only gives memory and
  /// descriptors back.
  void shut_down();

  bool is_gone() const;
  Environment& environment();
  const NexusOptions& options() const;
  uint64_t boot_id() const;
  std::string uri() const;
  /// Numeric host of the listen address, without the port ("0.0.0.0", "::1").
  std::string listen_host() const;

  /// kMisuse if the id is taken, kNoMemory. The port must stay until remove_endpoint() has returned.
  Status add_endpoint(EndpointPort& port);
  /// Afterwards no event reaches the port. Peers of its remaining sessions are told by the caller's disconnect().
  void remove_endpoint(EndpointPort& port);

  /// Client side: asks the endpoint `peer_endpoint` of the Nexus at one of `peer_addresses` for a session. If ok,
  /// exactly one kConnectResult follows (repeated by the machine until answered, or kPeerUnreachable after
  /// `timeout_ns`), unless forget() comes first. kUnavailable: this Nexus reaches none of them, for they are of another
  /// family. kNoMemory. In both cases nothing follows.
  Status connect(EndpointPort& from, std::span<const AddressText> peer_addresses, uint16_t peer_endpoint,
                 const SessionTerms& terms, uint64_t timeout_ns);
  /// Server side: the answer to a kConnectRequest, as a refusal (status not ok; its code and message travel) or
  /// with our terms. The machine keeps it, and gives it again if the request arrives again.
  /// kNoMemory, of terms only: the client is refused for that reason, and the session is not to be kept.
  Status answer_connect(EndpointPort& from, uint64_t token, const Status& status, const SessionTerms& terms);
  /// Either side has ended the session: tells the peer until it acknowledges or is gone, forgets it here. Never fails:
  /// the room for it was reserved when the session began.
  void disconnect(EndpointPort& from, uint32_t local_key, bool is_client_side);
  /// Client side, before kConnectResult: the session is not wanted any more. If the server says yes after all, it is
  /// told to disconnect. Never fails.
  void forget(EndpointPort& from, uint32_t local_key);
  /// Client side: is the server end of this session alive? Zero or one kLiveness follows; kPeerGone instead if the
  /// peer Nexus does not answer for the liveness timeout.
  void ask_liveness(EndpointPort& from, uint32_t local_key);

  /// Runs `task` on a worker thread. False: the queue is full or there are no threads or memory to be had.
  bool submit_work(std::function<void()> task);

 private:
  struct Impl;
  explicit NexusCore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tern::nexus
