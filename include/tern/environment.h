// The environment of a Nexus: time, randomness, the management channel and threads. The default is the operating
// system; a simulated host has its own. Standard library only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tern/detail/export.h>
#include <tern/duration.h>
#include <tern/status.h>

namespace tern {

/// The reason why a datagram did not reach a Nexus, according to this machine or an ICMP message. It is only a hint:
/// the next datagram may arrive.
enum class Unreachable : uint8_t {
  kSilent,     ///< no reason is known
  kPort,       ///< ICMP: nothing listens on the port
  kHost,       ///< the host does not answer on its network
  kNetwork,    ///< there is no route
  kForbidden,  ///< a firewall has dropped it
};

/// Receives the events of a management channel. Called only by the channel's thread.
class ManagementSink {
 public:
  virtual ~ManagementSink() = default;
  /// A datagram has arrived. `from` is "HOST:PORT" in numeric form. The bytes may be anything.
  virtual void on_datagram(std::string_view from, std::span<const std::byte> bytes) = 0;
  /// Called after each event, and at the time that the last call returned. Returns the latest time of the next call, on
  /// the environment's clock; Duration::max(): only after an event.
  virtual Duration on_turn(Duration now) = 0;
  /// A datagram to `to` was not delivered. A stranger may have forged the ICMP message. Never called from within
  /// another call of the sink.
  virtual void on_unreachable(std::string_view /*to*/, Unreachable /*why*/) {}
};

/// Unreliable datagrams between the Nexuses, with the thread that serves them.
class ManagementChannel {
 public:
  virtual ~ManagementChannel() = default;  ///< stops and joins the thread; the sink is not called afterwards
  /// Sends a datagram, which may be lost. Called only from within the sink's calls. `to` is in the form of
  /// on_datagram().
  virtual void send(std::string_view to, std::span<const std::byte> bytes) = 0;
  /// Makes the channel's thread call on_turn() soon. Any thread.
  virtual void wake() = 0;
  /// The bound address, "HOST:PORT" in numeric form.
  virtual std::string local_address() const = 0;
  /// True if the channel can send to addresses of the family of `address` ("HOST:PORT", numeric). Any thread.
  virtual bool reaches(std::string_view /*address*/) const { return true; }
};

/// Worker threads for handlers registered with HandlerOptions::worker.
class WorkerPool {
 public:
  virtual ~WorkerPool() = default;  ///< runs all submitted tasks, then joins the threads
  /// Queues a task. False: the queue is full. Any thread.
  virtual bool submit(std::function<void()> task) = 0;
  /// As submit(), but the task may wait for flush(), so that the pool wakes its threads once for many tasks. Any
  /// thread.
  virtual bool submit_later(std::function<void()> task) { return submit(std::move(task)); }
  /// Called after one or several submit_later(), also refused ones. Any thread.
  virtual void flush() {}
};

/// The environment of one Nexus: NexusOptions::environment.
class Environment {
 public:
  virtual ~Environment() = default;
  /// Monotonic time, on the same clock as the endpoints' transports. Any thread.
  virtual Duration now() = 0;
  /// 64 random bits that a stranger cannot guess. 0: the system has none, and the caller's operation fails. Any thread.
  virtual uint64_t random() = 0;
  /// Binds "HOST:PORT" and starts the channel's thread. The sink must outlive the channel.
  virtual Result<std::unique_ptr<ManagementChannel>> listen(std::string_view address, ManagementSink& sink) = 0;
  /// Resolves "HOST:PORT" to its numeric form. May block in the name service. create_session() calls it in the owner's
  /// thread.
  virtual Result<std::string> resolve(std::string_view host_and_port) = 0;
  /// As resolve(), for all addresses of the host, 1 to 8, in the order in which they are tried.
  virtual Result<std::vector<std::string>> resolve_all(std::string_view host_and_port) {
    auto address = resolve(host_and_port);
    if (!address.ok()) return address.status();
    return std::vector<std::string>{*address};
  }
  /// Starts the workers. At most `queue_limit` tasks may wait. Called in the owner's thread of the endpoint that has
  /// the first request for a worker, and again if it failed.
  virtual Result<std::unique_ptr<WorkerPool>> start_workers(size_t threads, size_t queue_limit) = 0;
};

/// The operating system's clock, getrandom(2) or /dev/urandom, a UDP socket and std::thread.
TERN_API Environment& real_environment();

}  // namespace tern
