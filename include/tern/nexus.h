// The Nexus: what the endpoints of one host (a process, or a simulated host) share.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <tern/detail/export.h>
#include <tern/duration.h>
#include <tern/status.h>

namespace tern {

class Environment;  // <tern/environment.h>

namespace nexus {
class NexusCore;
}

/// Of a Nexus: Nexus::create().
struct NexusOptions {
  /// Where time, randomness, the management channel and threads come from; null: the operating system.
  /// Must outlive the Nexus.
  Environment* environment = nullptr;
  /// A peer that has not answered for this long is dead: pending calls end with kPeerUnreachable. Time in which this
  /// side's own threads did not run (a paused machine, a busy one) does not count; a peer of endpoints that do not run
  /// their loops may be given up later, after four times as long.
  Duration liveness_timeout = std::chrono::milliseconds(500);
  /// Threads for worker handlers, started with the first worker handler.
  size_t worker_threads = 1;
  /// Requests that may wait for a worker; beyond it clients get kQueueFull.
  size_t worker_queue_limit = 4096;
  /// Nexuses of one IPv4 address, or of one IPv6 /64, that may be this one's clients; more are refused (kQueueFull), so
  /// that one host cannot take all places. Raise it where thousands of processes share an address.
  size_t peers_per_address_max = 1024;
  /// Sessions that clients of one IPv4 address, or of one IPv6 /64, may have with endpoints of this Nexus, those that
  /// ended in the last 5 s included; more are refused (kQueueFull). Raise it for clients with more sessions.
  size_t sessions_per_address_max = 65536;
};

/// One per host; no statics: several may live in one process, on different ports. Owns the management thread
/// (sessions are made and peers' deaths are noticed there, paper appendix B) and the worker pool.
/// Thread-safe. Must outlive its endpoints: calls of one that is left say kMisuse. In a forked child all that may be
/// done with an inherited one is to destroy it.
class Nexus {
 public:
  /// Listens for other Nexuses on `listen_uri`: "udp://HOST:PORT"; an IPv6 HOST in brackets; port 0: any free one.
  /// kMisuse: not such a URI. kUnavailable: the port is taken, the address is not this machine's, no randomness is to
  /// be had, ... kNoMemory.
  TERN_API static Result<std::unique_ptr<Nexus>> create(std::string_view listen_uri, NexusOptions options = {});
  TERN_API ~Nexus();
  Nexus(const Nexus&) = delete;
  Nexus& operator=(const Nexus&) = delete;

  /// As peers on this host can use it: the listen URI with the real port in it.
  TERN_API std::string uri() const;

  nexus::NexusCore& core() { return *core_; }  ///< for the library

 private:
  explicit Nexus(std::shared_ptr<nexus::NexusCore> core);
  std::shared_ptr<nexus::NexusCore> core_;
};

}  // namespace tern
