// The Nexus: the part that the endpoints of one host (a process, or a simulated host) share.
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
class LogSink;      // <tern/log.h>

namespace nexus {
class NexusCore;
}

/// For Nexus::create().
struct NexusOptions {
  /// The source of time, randomness, the management channel and threads. Must outlive the Nexus, and calls of
  /// Request::time_left() in other threads. Null: the operating system.
  Environment* environment = nullptr;
  /// A peer that has not answered for this long is declared dead: pending calls end with kPeerUnreachable. Time in
  /// which this side's own threads did not run (a paused or busy machine) does not count. If this Nexus's endpoints do
  /// not run their loops, a peer may be declared dead later, after four times as long.
  Duration liveness_timeout = std::chrono::milliseconds(500);
  /// Threads for worker handlers, started with the first request for one. If they cannot be started, its client gets
  /// kQueueFull.
  size_t worker_threads = 1;
  /// Requests that may wait for a worker. Clients of further ones get kQueueFull.
  size_t worker_queue_limit = 4096;
  /// Client Nexuses of one IPv4 address, or of one IPv6 /64. Further ones are refused (kQueueFull), so that one host
  /// cannot use the whole table. Raise it if thousands of processes share an address.
  size_t peers_per_address_max = 1024;
  /// Sessions that clients of one IPv4 address, or of one IPv6 /64, may have with endpoints of this Nexus, including
  /// sessions that ended in the last 5 s. Further ones are refused (kQueueFull). Raise it for clients with more
  /// sessions.
  size_t sessions_per_address_max = 65536;
  /// The page: a file in which other processes of this user can read the counters and the busiest sessions of all
  /// endpoints, live and after a crash. "shm": a new file in /dev/shm, which tern-top finds. A text with a slash: the
  /// path of the file; an older page there is replaced. Empty: no page. That is the default, because a library should
  /// not leave files that its user did not ask for, and /dev/shm is small in many containers. Files have mode 0600 and
  /// reserve 192 KiB for each endpoint. They are written every 100 ms while an endpoint has work; calls and packets
  /// cost nothing. The Nexus removes its file in /dev/shm when it ends; a named file stays. Without memory or space the
  /// Nexus works without a page: page() returns the reason, and the endpoints count EndpointCounters::page_missing.
  std::string page{};
  /// Receives the events of sessions, peers, endpoints and transport faults of this Nexus (<tern/log.h>), in the
  /// threads in which they happen. Null: no log.
  std::shared_ptr<LogSink> log{};
};

/// The Nexus of a host. A process may have several, on different ports. It owns the worker pool and the management
/// thread, which opens sessions and detects the death of peers (paper, appendix B). Thread-safe. Must outlive its
/// endpoints; without it, calls of an endpoint return kMisuse. A forked child may only destroy an inherited Nexus.
class Nexus {
 public:
  /// Listens for other Nexuses on `listen_uri`, "tern://HOST:PORT", an IPv6 HOST in brackets. Port 0 takes any free
  /// port. "udp://HOST:PORT", which older programs write, means the same. Management always uses UDP, with every
  /// transport of the endpoints. kMisuse: not such a URI, or an option. kUnavailable: the port is taken, the address is
  /// not this machine's, or the system gives no random numbers. kNoMemory.
  TERN_API static Result<std::unique_ptr<Nexus>> create(std::string_view listen_uri, NexusOptions options = {});
  TERN_API ~Nexus();
  Nexus(const Nexus&) = delete;
  Nexus& operator=(const Nexus&) = delete;

  /// "tern://HOST:PORT" for peers on this host: the listen URI with the real port, and the loopback address in place of
  /// a wildcard. With "/E" after it, it names endpoint E.
  TERN_API std::string uri() const;
  /// The path of the page of NexusOptions::page. kUnavailable: there is no page; the message has the reason.
  TERN_API Result<std::string> page() const;

  nexus::NexusCore& core() { return *core_; }  ///< for the library

 private:
  explicit Nexus(std::shared_ptr<nexus::NexusCore> core);
  std::shared_ptr<nexus::NexusCore> core_;
};

}  // namespace tern
