// The time at which an endpoint has something to do next. Owner thread only.
#pragma once

#include <cstdint>

#include "rpc/transport_port.h"

namespace tern::rpc {

/// The earliest time at which a part of the endpoint needs EndpointCore::run_due(). While the endpoint is armed, its
/// program waits outside of the loop, on the descriptor or until next_due(). Then an earlier time wakes the transport.
class Agenda {
 public:
  explicit Agenda(TransportPort& transport) : transport_(transport) {}

  /// The earliest time, ns on the transport's clock. UINT64_MAX: there is none.
  uint64_t next_ns() const { return next_ns_; }
  void at_latest(uint64_t ns) {
    if (ns >= next_ns_) return;
    next_ns_ = ns;
    disarm();
  }
  /// Forgets the time. Called by run_due(), which then calls every part, and each part sets its next time again.
  void start_over() { next_ns_ = UINT64_MAX; }

  void arm() { is_armed_ = true; }
  /// Called when no program waits any more, because the loop runs or the endpoint closes.
  void leave_armed() { is_armed_ = false; }
  /// Wakes a program that waits, because there is something to do.
  void disarm() {
    if (!is_armed_) [[likely]]
      return;
    is_armed_ = false;
    transport_.wake();
  }

 private:
  TransportPort& transport_;
  uint64_t next_ns_ = UINT64_MAX;
  bool is_armed_ = false;
};

}  // namespace tern::rpc
