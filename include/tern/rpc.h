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

/// One endpoint over one transport, run by one thread. Its members are in the library for the library's own
/// transports; a program's file sees declarations only.
template <Transport T>
class Rpc final : public Endpoint {
 public:
  /// kUnavailable: the transport does not run here, the message says what it needs. kNoMemory. kMisuse: an endpoint id
  /// that is taken, or a transport's option out of range. `nexus` must outlive the Rpc.
  static Result<std::unique_ptr<Rpc>> create(Nexus& nexus, typename T::Options transport_options = {},
                                             RpcOptions options = {});
  /// close(0). Continuations of what was pending run in here, with kCancelled.
  ~Rpc();

  /// Runs until stop(), or for `duration`. The first loop call binds the owner thread.
  /// kMisuse: called from a handler, continuation, timer or posted function. kWrongThread.
  Status run_event_loop(Duration duration = Duration::max());
  /// One iteration, never blocks. Result: packets handled.
  Result<size_t> run_event_loop_once();
  /// For a program's own epoll loop: readable when run_event_loop_once() has something to do, timers included. From
  /// the first call on, each iteration leaves the endpoint armed to make it so. kUnavailable: no descriptors are left.
  /// kNoMemory.
  Result<int> descriptor();
  /// When run_event_loop_once() has something to do next, on the endpoint's clock, unless a packet or mail comes
  /// before: not later than now() if it is to be called at once, Duration::max() if there is nothing to wait for but
  /// these. For a program that polls many endpoints, or lives in a simulated host. In the thread that runs the loop
  /// only.
  Duration next_due();
  /// Refuses clients' new requests and new sessions (calls of its own are still taken: handlers that must be answered
  /// may need them), runs the loop until what is in flight has ended, `drain` at the longest, then cancels the rest and
  /// closes every session. Afterwards only destruction is left.
  Status close(Duration drain);

  rpc::RpcCore<typename T::Impl>& core() { return *owned_; }  ///< for the library

 private:
  explicit Rpc(std::unique_ptr<rpc::RpcCore<typename T::Impl>> core);
  static Result<std::unique_ptr<Rpc>> make(Nexus& nexus, typename T::Options transport_options,
                                           const RpcOptions& options);
  std::unique_ptr<rpc::RpcCore<typename T::Impl>> owned_;
};

struct Shm;
struct Udp;

}  // namespace tern
