// Rpc<Transport>: an Endpoint with its event loop. Standard library only.
#pragma once

#include <cstddef>
#include <memory>

#include <tern/detail/export.h>
#include <tern/endpoint.h>
#include <tern/nexus.h>
#include <tern/transport.h>

namespace tern {

namespace rpc {
template <class Impl>
class RpcCore;
}

/// One endpoint over one transport, run by one thread. The library has the members for its own transports, so that
/// programs compile declarations only.
template <Transport T>
class Rpc final : public Endpoint {
 public:
  /// `nexus` must outlive the Rpc. kUnavailable: the transport does not run here; the message says what it needs.
  /// kNoMemory. kMisuse: the endpoint id is taken, or an option is out of range.
  static Result<std::unique_ptr<Rpc>> create(Nexus& nexus, typename T::Options transport_options = {},
                                             RpcOptions options = {});
  /// Calls close(0): continuations of pending calls run here, with kCancelled. Another thread than the owner may
  /// destroy the endpoint once the owner runs the loop no more and holds no Request of it. The owner must not destroy a
  /// MsgBuf of it meanwhile, because its memory would then never be returned.
  ~Rpc();

  /// Runs until stop(), or for `duration`. The first loop call binds the owner thread.
  /// kMisuse: called from a handler, continuation, timer or posted function. kWrongThread. kUnavailable: the transport
  /// has failed for good, such as a device that was removed; the message says why. All sessions have ended then, and
  /// new ones fail, for that reason. kSessionReset: the endpoint is closed.
  Status run_event_loop(Duration duration = Duration::max());
  /// Runs one iteration, without blocking. Returns the number of packets handled. Errors as of run_event_loop().
  Result<size_t> run_event_loop_once();
  /// A descriptor for a program's own epoll loop. It is readable when run_event_loop_once() has something to do, timers
  /// included. Each call arms it, and so does the end of each later run of the loop. The first call binds the owner
  /// thread. kUnavailable: no descriptors are left. kNoMemory. kSessionReset: the endpoint is closed.
  Result<int> descriptor();
  /// The time at which run_event_loop_once() has something to do, on the endpoint's clock. A packet, or a function of
  /// another thread, may come before. now() or less: call it at once. Duration::max(): it waits only for these. For a
  /// program that polls many endpoints, or runs in a simulated host. Only in the thread that runs the loop.
  Duration next_due();
  /// Closes the endpoint. From now on new requests and sessions are refused; calls in this endpoint's sessions are
  /// still accepted, because handlers may need them for their answers. Runs the loop until all calls and requests have
  /// ended, for `drain` at most, cancels the others, and ends all sessions. The closed endpoint can only be destroyed.
  /// A `drain` of NexusOptions::liveness_timeout gives clients the time to fetch their answers. kWrongThread.
  Status close(Duration drain);

  rpc::RpcCore<typename T::Impl>& core() { return *owned_; }  ///< for the library

 private:
  explicit Rpc(std::unique_ptr<rpc::RpcCore<typename T::Impl>> core);
  static Result<std::unique_ptr<Rpc>> make(Nexus& nexus, typename T::Options transport_options,
                                           const RpcOptions& options);
  std::unique_ptr<rpc::RpcCore<typename T::Impl>> owned_;
};

}  // namespace tern
