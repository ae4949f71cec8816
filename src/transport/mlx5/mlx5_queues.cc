// Failures, events of the device and the interface, and waiting. See mlx5.h.
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "transport/mlx5/mlx5.h"

namespace tern::transport {

namespace {

constexpr Status kDeviceGone(Code::kUnavailable,
                             "mlx5: the device has failed or was removed: make a new endpoint when it is back");
constexpr Status kQueueLost(
    Code::kUnavailable,
    "mlx5: a queue of the device fails again after each reset: see the kernel's log, and make a "
    "new endpoint");
}  // namespace

// ---- Queues ----

[[gnu::noinline]] void Mlx5Impl::post_sends() {
  frames_.flush();
  if (!objects_->sends.post()) trouble_ |= kSending;
}

[[gnu::noinline]] void Mlx5Impl::poll_sends() {
  objects_->sends.poll();
  take_report();
}

void Mlx5Impl::take_report() {
  const auto report = objects_->sends.take_report();
  if (report.has_sent) resets_ = 0;
  counters_.send_errors += report.errors;
  if (report.has_failed) trouble_ |= kSending;
}

[[gnu::noinline]] void Mlx5Impl::post_receives() {
  resets_ = 0;
  objects_->receives.post();
}

// ---- Failures ----

/// Makes failed queues again, and a stale receive queue. False: they have failed for good.
[[gnu::noinline]] bool Mlx5Impl::recover() {
  if (!failure_.ok()) return false;
  read_events();  // reads the events of this error, so that they are not taken for another error later
  if (!interface_failure_.ok()) fail(interface_failure_);
  if (!failure_.ok()) return false;
  const uint8_t trouble = std::exchange(trouble_, 0);
  if (trouble != kStale) {
    ++counters_.device_resets;
    if (++resets_ > kResetsMax) {
      fail(kQueueLost);
      return false;
    }
  }
  if ((trouble & kSending) != 0) {
    frames_.forget();
    if (!objects_->sends.restart()) fail(kDeviceGone);
  }
  if (failure_.ok() && (trouble & (kReceiving | kStale)) != 0) {
    if (Status status = objects_->receives.start(own_frames()); !status.ok()) fail(status);
  }
  if (!failure_.ok()) return false;
  take_report();
  return trouble_ == 0;
}

/// Ends the transport for good: the NIC no longer reads or writes memory, and all peers are dead.
void Mlx5Impl::fail(Status why) {
  if (!failure_.ok()) return;
  failure_ = why;
  trouble_ = kEverything;
  frames_.forget();
  peers_.fail();  // send() takes the slow path, and refuses
  objects_->sends.stop();
  objects_->receives.stop();
}

[[gnu::noinline]] void Mlx5Impl::read_events() {
  if (const Status failure = read_device_events(); !failure.ok()) fail(failure);
  if (failure_.ok()) update_peers();
}

Status Mlx5Impl::read_device_events() {
  ibv_async_event event;
  Status failure;
  while (ibv_get_async_event(objects_->device.context.get(), &event) == 0) {
    ++counters_.device_events;
    switch (event.event_type) {
      case IBV_EVENT_DEVICE_FATAL:
        failure = kDeviceGone;
        break;
      case IBV_EVENT_CQ_ERR:
        if (objects_->sends.is_of(event.element.cq)) {
          failure = kQueueLost;
        } else {
          trouble_ |= kReceiving;
        }
        break;
      case IBV_EVENT_WQ_FATAL:
        trouble_ |= kReceiving;
        break;
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
        trouble_ |= objects_->sends.is_of(event.element.qp) ? kSending : kReceiving;
        break;
      default:  // a port that is down loses packets until it is back
        break;
    }
    ibv_ack_async_event(&event);
  }
  return failure;
}

/// Handles the kernel's reports about routes, MAC addresses and the interface. A visitor may call it while receive()
/// reads the queue, so a failure takes effect only in recover().
void Mlx5Impl::update_peers() {
  if (!peers_.update(now())) return;
  interface_failure_ = peers_.own_failure();
  if (!interface_failure_.ok()) {
    trouble_ |= kEverything;
    return;
  }
  const frames::MacAddress mac = peers_.resolver().interface().mac;
  if (mac == peers_.own().mac || mac.is_zero()) return;
  set_own_mac(mac);
  trouble_ |= kStale;  // the steering rule has the old MAC address
}

// ---- Sleep ----

bool Mlx5Impl::prepare_wait() {
  if (trouble_ != 0) return false;
  Mlx5Send& sends = objects_->sends;
  if (sends.has_refused() && sends.has_space()) return false;
  is_armed_ = true;
  if (peers_.resolver().next_update_ns() <= now()) read_events();
  neighbour_timer_.set_at(peers_.resolver().next_update_ns());
  if (trouble_ != 0) return false;
  // Completions from before the arming do not end a wait, so poll once more.
  objects_->receives.arm();
  if (sends.has_refused() && (!sends.arm() || sends.has_space())) return false;
  take_report();
  Mlx5Receive::Completion completion;
  return objects_->receives.look(&completion) == Mlx5Receive::Seen::kNothing && trouble_ == 0;
}

void Mlx5Impl::end_wait() {
  if (is_armed_) {
    is_armed_ = false;
    std::array<epoll_event, 6> events;
    const size_t count = waits_.wait(events, 0);
    bool has_events = false;
    for (size_t i = 0; i < count; ++i) {
      const auto fd = static_cast<int>(events[i].data.u64);
      if (fd == objects_->sends.descriptor()) {
        objects_->sends.drain();
      } else if (fd == objects_->receives.descriptor()) {
        objects_->receives.drain();
      } else if (fd != wake_.descriptor()) {
        has_events = true;
      }
    }
    if (has_events && failure_.ok()) read_events();
  }
  wake_.clear();
}

}  // namespace tern::transport
