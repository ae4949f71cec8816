// Frames that were not sent, failures, events of the interface and of neighbours, and waiting. See xdp.h.
#include <algorithm>
#include <array>

#include "transport/xdp/xdp.h"

namespace tern::transport {

namespace {

/// Interval between checks whether the kernel has released a slot, while the endpoint sleeps; the longer one while the
/// interface is down.
constexpr uint64_t kSpaceNs = 100'000, kDownNs = 10'000'000;
/// Interval between polls of queues whose frames wake only other endpoints, while the endpoint sleeps.
constexpr uint64_t kForeignNs = 10'000'000;

}  // namespace

// ---- Sending ----

[[gnu::noinline]] void XdpImpl::transmit() {
  open_frames_.flush();
  xdp::Sends& sends = objects_->sends;
  if (is_down_) [[unlikely]] {
    kick();
    if (is_down_) {
      counters_.send_errors += sends.drop_queued();
      return;
    }
  }
  counters_.send_errors += sends.submit();
  kick();
}

void XdpImpl::kick() {
  const xdp::Queue::Kicked kicked = objects_->sends.kick(counters_.system_calls);
  if (kicked == xdp::Queue::Kicked::kAll && !has_trouble_ && !is_down_) [[likely]]
    return;
  is_down_ = kicked == xdp::Queue::Kicked::kDown;
  has_trouble_ = kicked == xdp::Queue::Kicked::kSome || !failure_.ok() || !interface_failure_.ok();
}

// ---- Receiving ----

/// Handles a frame that is not a datagram for this endpoint. True: another endpoint has taken it.
[[gnu::noinline]] bool XdpImpl::pass_on(const xdp::Frame& frame, frames::Drop drop) {
  using Passed = xdp::Lane::Passed;
  const Passed passed = objects_->lane->pass_on(frame);
  if (passed == Passed::kTaken) return true;
  ++(passed == Passed::kNoSpace ? counters_.dropped_no_space : counters_.dropped_frames[static_cast<size_t>(drop)]);
  return false;
}

// ---- Failures and events ----

/// Sends the frames again that the kernel has not taken. False: the transport has failed.
[[gnu::noinline]] bool XdpImpl::recover() {
  if (!interface_failure_.ok()) fail(interface_failure_);
  if (!failure_.ok()) return false;
  kick();
  return true;
}

/// Handles events of routes, MAC addresses and the interface. A visitor may call it while receive() reads the queue, so
/// a failure takes effect only in recover().
void XdpImpl::update_neighbours() {
  if (!failure_.ok()) return;
  ethernet::Peers& peers = objects_->peers;
  if (!peers.update(now())) return;
  ++counters_.device_events;
  interface_failure_ = peers.own_failure();
  if (!interface_failure_.ok()) {
    has_trouble_ = true;
    return;
  }
  const frames::MacAddress mac = peers.resolver().interface().mac;
  if (mac == peers.own().mac || mac.is_zero()) return;
  set_own_mac(mac);
}

/// Ends the transport for good: all peers are dead, and queued packets are lost.
void XdpImpl::fail(Status why) {
  if (!failure_.ok()) return;
  failure_ = why;
  has_trouble_ = true;
  open_frames_.forget();
  objects_->peers.fail();
  counters_.send_errors += objects_->sends.drop_queued();
  objects_->lane->stop_waiting();
}

// ---- Sleep ----

bool XdpImpl::prepare_wait() {
  is_armed_ = true;
  if (kept_ != 0) give_back();
  if (objects_->peers.resolver().next_update_ns() <= now()) update_neighbours();
  if (!failure_.ok()) return true;  // until wake()
  if (has_trouble_) return false;
  xdp::Sends& sends = objects_->sends;
  const bool was_refused = sends.has_refused();
  const bool is_refused = was_refused && !sends.make_space();
  if (was_refused && !is_refused) return false;
  uint64_t due_ns = objects_->peers.resolver().next_update_ns();
  if (is_refused) due_ns = std::min(due_ns, now() + (is_down_ ? kDownNs : kSpaceNs));
  if (objects_->lane->has_foreign()) due_ns = std::min(due_ns, now() + kForeignNs);
  timer_.set_at(due_ns);
  return objects_->lane->arm();
}

void XdpImpl::end_wait() {
  if (is_armed_) {
    is_armed_ = false;
    objects_->lane->disarm();
    std::array<epoll_event, 8> events;
    const size_t count = waits_.wait(events, 0);
    bool has_news = false;
    for (size_t i = 0; i < count; ++i) {
      const auto what = static_cast<Waiting>(events[i].data.u64);
      if (what == Waiting::kTimer && timer_.take()) objects_->lane->look_at_foreign();
      if (what == Waiting::kKernel) until_kernel_ = 1;
      // A socket's error only shows that something happened; the neighbours' events say what.
      has_news |= what == Waiting::kTimer || what == Waiting::kNeighbours || (events[i].events & EPOLLERR) != 0;
    }
    if (is_down_) kick();
    if (has_news) update_neighbours();
  }
  wake_.clear();
}

}  // namespace tern::transport
