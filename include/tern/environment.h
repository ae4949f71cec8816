// What a Nexus takes from the world: time, randomness, its management channel and its threads.
// The real ones by default; a simulated host brings its own. Standard library only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tern/detail/export.h>
#include <tern/duration.h>
#include <tern/status.h>

namespace tern {

/// Why a datagram did not reach a Nexus, as far as this machine or an ICMP message says. Only a hint: the next one may.
enum class Unreachable : uint8_t {
  kSilent,     ///< no reason is known
  kPort,       ///< ICMP: nothing listens on the port
  kHost,       ///< the host does not answer on its network
  kNetwork,    ///< there is no route
  kForbidden,  ///< a firewall says no
};

/// Receives what happens on a management channel. Called by the channel's thread only, one call at a time.
class ManagementSink {
 public:
  virtual ~ManagementSink() = default;
  /// `from` is "HOST:PORT" in numeric form. The bytes are a stranger's.
  virtual void on_datagram(std::string_view from, std::span<const std::byte> bytes) = 0;
  /// Called after any event and at the time that it returned last. Returns when it wants to be called next, at the
  /// latest, on the environment's time base; Duration::max(): never.
  virtual Duration on_turn(Duration now) = 0;
  /// A datagram to `to` was not delivered. Whoever knows the channel's port may have forged that. Never called from
  /// within another call of the sink.
  virtual void on_unreachable(std::string_view /*to*/, Unreachable /*why*/) {}
};

/// Unreliable datagrams between the Nexuses, with the thread that serves them.
class ManagementChannel {
 public:
  virtual ~ManagementChannel() = default;  ///< stops and joins the thread; the sink is not called afterwards
  /// From within the sink's calls only. `to` as on_datagram() names it. Losses are the protocol's business.
  virtual void send(std::string_view to, std::span<const std::byte> bytes) = 0;
  /// Any thread: on_turn() soon.
  virtual void wake() = 0;
  /// The bound address, "HOST:PORT" in numeric form.
  virtual std::string local_address() const = 0;
  /// Any thread: whether addresses of this one's family ("HOST:PORT", numeric) can be sent to.
  virtual bool reaches(std::string_view /*address*/) const { return true; }
};

/// Worker threads for handlers registered with HandlerOptions::worker.
class WorkerPool {
 public:
  virtual ~WorkerPool() = default;  ///< runs what was submitted, then joins
  /// Any thread. False: the queue is at its limit.
  virtual bool submit(std::function<void()> task) = 0;
};

/// The world of one Nexus: NexusOptions::environment.
class Environment {
 public:
  virtual ~Environment() = default;
  /// Monotonic; the same time base as the endpoints' transports. Any thread.
  virtual Duration now() = 0;
  /// 64 bits that a stranger cannot guess; 0: there are none to be had, and what needs them fails. Any thread.
  virtual uint64_t random() = 0;
  /// Binds "HOST:PORT" and starts serving; the sink must outlive the channel.
  virtual Result<std::unique_ptr<ManagementChannel>> listen(std::string_view address, ManagementSink& sink) = 0;
  /// May block in the name service; called by create_session() in the owner's thread. Result: "HOST:PORT", numeric.
  virtual Result<std::string> resolve(std::string_view host_and_port) = 0;
  /// Likewise, all addresses of the host, in the order in which to try them: one at least, 8 at most.
  virtual Result<std::vector<std::string>> resolve_all(std::string_view host_and_port) {
    auto address = resolve(host_and_port);
    if (!address.ok()) return address.status();
    return std::vector<std::string>{*address};
  }
  /// At most `queue_limit` tasks wait. Called by the owner thread of the endpoint that has the first request for a
  /// worker; again if it failed.
  virtual Result<std::unique_ptr<WorkerPool>> start_workers(size_t threads, size_t queue_limit) = 0;
};

/// The operating system's clock, getrandom(2) or /dev/urandom, a UDP socket and std::thread.
TERN_API Environment& real_environment();

}  // namespace tern
