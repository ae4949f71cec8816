#include "sim/loop.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "rpc/rpc_core.h"
#include "sim/host.h"

namespace tern::sim {

using transport::SimImpl;

namespace {
/// An iteration that takes at least this long counts as a long callback (docs/protocol.md, 7.6.2).
constexpr Picoseconds kCallbackTime = 1'000'000 * kPicosecondsPerNs;
}  // namespace

Loop::Loop(HostCore& host, Core& core, SimImpl& impl)
    : host_(host), core_(core), impl_(impl), alarm_(host.nic.targets, this) {
  impl_.set_driver(this);
  Loop::on_ready();
}

Loop::~Loop() { impl_.set_driver(nullptr); }

void Loop::on_ready() {
  next_turn_ = 0;
  alarm_.set(host_.awake_at(std::max(host_.now(), busy_until_)));
}

void Loop::expect(const wire::Header& header) { core_.prefetch(header); }

void Loop::on_gone() {
  // This deletes the Loop itself.
  std::erase_if(host_.loops, [this](const std::unique_ptr<Loop>& loop) { return loop.get() == this; });
}

void Loop::on_event() {
  alarm_.on_event();
  const Picoseconds now = host_.now();
  const Picoseconds start = host_.awake_at(std::max(next_turn_, busy_until_));
  if (start > now) return alarm_.set(start);
  if (host_.nic.running == &impl_) return alarm_.set(now + SimImpl::kPollTime);  // a callback lets time pass

  if (!core_.is_in_turn()) {
    core_.stay_in_callback(false);
    const Status status = core_.begin_turn();
    if (status.code() == Code::kMisuse) return alarm_.set(now + SimImpl::kPollTime);  // the program runs the loop
    if (!status.ok()) return;  // the endpoint is closed: its loop never runs again
    impl_.begin_turn();
  }
  SimImpl* const before = std::exchange(host_.nic.running, nullptr);
  impl_.enter();
  core_.receive();
  const bool may_receive_more = impl_.may_receive_more();
  if (!may_receive_more && core_.is_in_turn()) core_.end_turn();
  busy_until_ = impl_.leave();
  host_.nic.running = before;
  if (may_receive_more) return alarm_.set(host_.awake_at(busy_until_));

  if (busy_until_ >= now + kCallbackTime) {
    // The iteration counter stays odd, so that the Nexus can tell that the endpoint is in a callback.
    core_.stay_in_callback(true);
    next_turn_ = busy_until_;
    return alarm_.set(host_.awake_at(next_turn_));
  }
  if (impl_.has_input()) {
    next_turn_ = std::max(busy_until_, now + 1);
  } else {
    const Duration due = core_.next_due();
    if (due == Duration::max()) {
      next_turn_ = UINT64_MAX;
      return;
    }
    const Picoseconds at = host_.nic.clock.when(static_cast<uint64_t>(due.count()));
    // An endpoint whose next work is in the future polls until then.
    next_turn_ = std::max({at, busy_until_, now + SimImpl::kPollTime});
  }
  alarm_.set(host_.awake_at(next_turn_));
}

}  // namespace tern::sim
