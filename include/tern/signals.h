// Signals that end a program's event loops. Standard library only.
#pragma once

#include <cstdint>
#include <utility>

#include <tern/detail/export.h>
#include <tern/status.h>

namespace tern {

class Endpoint;

/// The result of stop_on_signals(). While it exists, SIGINT and SIGTERM stop an endpoint. Move-only. Any thread. Must
/// be destroyed before its endpoint.
class [[nodiscard]] SignalStop {
 public:
  /// `other` stops nothing afterwards.
  SignalStop(SignalStop&& other) noexcept : place_(std::exchange(other.place_, kNone)) {}
  SignalStop& operator=(SignalStop&&) = delete;
  /// After this no signal stops the endpoint, and no signal handler in another thread uses it. The last SignalStop of
  /// the process restores the signal handlers from before the first one.
  ~SignalStop() {
    if (place_ != kNone) release(place_);
  }

 private:
  friend TERN_API Result<SignalStop> stop_on_signals(Endpoint& endpoint);
  static constexpr uint32_t kNone = UINT32_MAX;
  explicit SignalStop(uint32_t place) : place_(place) {}
  TERN_API static void release(uint32_t place);

  uint32_t place_;
};

/// From now on SIGINT or SIGTERM makes run_event_loop() of `endpoint` return, as Endpoint::stop() does, until the
/// result is destroyed. Several endpoints of a process, up to 64, are all stopped. A further signal of a kind, more
/// than a second after the first, takes its default action: it ends the process. In a forked child signals do not stop
/// the parent's endpoints; without any of its own they end it. Any thread, but no signal handler. kQueueFull: 64
/// endpoints are stopped by signals already. kUnavailable: the system does not accept a signal handler.
TERN_API Result<SignalStop> stop_on_signals(Endpoint& endpoint);

}  // namespace tern
