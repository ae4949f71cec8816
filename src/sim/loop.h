// The simulated thread of one endpoint. It runs the event loop when the endpoint has work and its CPU is free.
// Sim layer. All hosts run in one real thread.
#pragma once

#include "sim/network/event_target.h"
#include "transport/sim/sim_transport.h"

namespace tern::rpc {
template <class Impl>
class RpcCore;
}

namespace tern::sim {

class HostCore;

class Loop final : private transport::SimDriver, private EventTarget {
 public:
  using Core = rpc::RpcCore<transport::SimImpl>;

  Loop(HostCore& host, Core& core, transport::SimImpl& impl);
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  ~Loop();

  /// The host's clock has another rate.
  void on_clock_change() { on_ready(); }

 private:
  void on_ready() override;
  void expect(const wire::Header& header) override;
  void on_gone() override;
  void on_event() override;

  HostCore& host_;
  Core& core_;
  transport::SimImpl& impl_;
  Alarm alarm_;
  Picoseconds busy_until_ = 0;
  Picoseconds next_turn_ = 0;  ///< the endpoint has no work before this time; 0: it has work now
};

}  // namespace tern::sim
