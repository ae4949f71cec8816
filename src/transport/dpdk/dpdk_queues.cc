// Transmission of frames, failures, events of the port and of neighbours, and waiting. See dpdk.h.
#include <algorithm>
#include <array>

#include "transport/dpdk/dpdk.h"

namespace tern::transport {

namespace {

/// Frames that the driver does not take are lost after this time without progress: the peer of a virtual device is
/// gone, or the link is down.
constexpr uint64_t kStallNs = 10'000'000;
/// A driver that has released no message memory for this time frees frames only when it gets others.
constexpr uint64_t kHeldNs = 10'000'000;
/// Interval between checks whether the driver has freed a slot, while the endpoint sleeps.
constexpr uint64_t kSpaceNs = 100'000;

}  // namespace

// ---- Sending ----

[[gnu::noinline]] void DpdkImpl::transmit() {
  open_frames_.flush();
  const bool has_moved = objects_->sends.transmit();
  if (objects_->sends.has_queued()) [[unlikely]] {
    on_stall(has_moved);
  } else if (stalled_ns_ != 0) [[unlikely]] {
    stalled_ns_ = 0;
    has_trouble_ = !failure_.ok();
  }
}

/// The driver has not taken all frames. The next iteration tries again.
void DpdkImpl::on_stall(bool has_moved) {
  has_trouble_ = true;
  const uint64_t now_ns = now();
  if (has_moved || stalled_ns_ == 0) {
    stalled_ns_ = now_ns;
  } else if (now_ns - stalled_ns_ > kStallNs) {
    counters_.send_errors += objects_->sends.drop_queued();
    stalled_ns_ = 0;
    has_trouble_ = !failure_.ok();
    read_events();
  }
}

/// Called while message memory or slots wait for frames that the driver has.
[[gnu::noinline]] void DpdkImpl::poll_sends() {
  DpdkSends& sends = objects_->sends;
  sends.take_done();
  const uint64_t released = sends.released();
  if (!sends.is_read() || released != released_before_) {
    released_before_ = released;
    held_ns_ = 0;
    return;
  }
  const uint64_t now_ns = now();
  if (held_ns_ == 0) held_ns_ = now_ns;
  if (now_ns - held_ns_ > kHeldNs) sends.stop_gathering();
}

// ---- Receiving ----

/// Handles a frame that is not a datagram for this endpoint.
[[gnu::noinline]] void DpdkImpl::pass_on(uint32_t i, frames::Drop drop) {
  if (objects_->burst[i].data == nullptr) {
    ++counters_.dropped_oversize;
  } else if (!objects_->burst.pass_on(i)) {
    ++counters_.dropped_frames[static_cast<size_t>(drop)];
  }
}

// ---- Failures and events ----

/// Sends the frames again that the driver has not taken. False: the transport has failed.
[[gnu::noinline]] bool DpdkImpl::recover() {
  if (!failure_.ok()) {
    objects_->sends.take_done();
    return false;
  }
  transmit();
  return failure_.ok();
}

[[gnu::noinline]] void DpdkImpl::read_events() {
  const uint64_t events = objects_->port->events();
  counters_.device_events += events - events_;
  events_ = events;
  count_drops();
  if (const Status failure = objects_->port->failure(); !failure.ok()) {
    fail(failure);
    objects_->sends.abandon();
  }
  if (failure_.ok()) update_neighbours();
}

/// Counts the frames that the port has dropped, mostly in its thread, which polls the queue while no endpoint does.
void DpdkImpl::count_drops() {
  const DpdkDrops drops = objects_->port->take_drops();
  for (size_t i = 0; i < drops.frames.size(); ++i) counters_.dropped_frames[i] += drops.frames[i];
  counters_.dropped_no_space += drops.no_space;
}

/// Handles events of routes, MAC addresses and the interface.
void DpdkImpl::update_neighbours() {
  if (!failure_.ok()) return;
  ethernet::Peers& peers = objects_->peers;
  if (!peers.update(now())) return;
  if (const Status failure = peers.own_failure(); !failure.ok()) return fail(failure);
  const frames::MacAddress mac = peers.resolver().interface().mac;
  if (mac == peers.own().mac || mac.is_zero()) return;
  if (const Status refused = set_own_mac(mac); !refused.ok()) fail(refused);
}

/// Ends the transport for good: all peers are dead, and queued packets are lost.
void DpdkImpl::fail(Status why) {
  if (!failure_.ok()) return;
  failure_ = why;
  has_trouble_ = true;
  open_frames_.forget();
  objects_->peers.fail();
  counters_.send_errors += objects_->sends.drop_queued();
}

// ---- Sleep ----

bool DpdkImpl::prepare_wait() {
  is_armed_ = true;
  if (objects_->peers.resolver().next_update_ns() <= now()) read_events();
  if (!failure_.ok()) return true;  // until wake()
  if (stalled_ns_ != 0) return false;
  DpdkSends& sends = objects_->sends;
  const bool was_refused = sends.has_refused();
  const bool is_refused = was_refused && !sends.make_space();
  if (was_refused && !is_refused) return false;
  uint64_t due_ns = objects_->peers.resolver().next_update_ns();
  if (is_refused) due_ns = std::min(due_ns, now() + kSpaceNs);
  timer_.set_at(due_ns);
  return objects_->lane->arm();
}

void DpdkImpl::end_wait() {
  if (is_armed_) {
    is_armed_ = false;
    objects_->lane->disarm();
    count_drops();
    std::array<epoll_event, 8> events;
    const size_t count = waits_.wait(events, 0);
    bool has_news = false;
    for (size_t i = 0; i < count; ++i) {
      const auto what = static_cast<Waiting>(events[i].data.u64);
      if (what == Waiting::kTimer) (void)timer_.take();
      has_news |= what != Waiting::kWake;
    }
    if (has_news) read_events();
  }
  wake_.clear();
}

}  // namespace tern::transport
