#include "base/wait.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"

namespace tern::base {

namespace {

constexpr uint64_t kNsPerSec = 1'000'000'000;

timespec timespec_of(uint64_t ns) { return {static_cast<time_t>(ns / kNsPerSec), static_cast<long>(ns % kNsPerSec)}; }

/// Returns null if `deadline_ns` means no limit. Does not read the clock for a deadline of 0.
const timespec* timeout_until(uint64_t deadline_ns, timespec& timeout) {
  if (deadline_ns == UINT64_MAX) return nullptr;
  const uint64_t now_ns = deadline_ns == 0 ? 0 : monotonic_ns();
  timeout = timespec_of(deadline_ns - std::min(deadline_ns, now_ns));
  return &timeout;
}

}  // namespace

bool WaitSet::open() {
  epoll_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  return is_open();
}

bool WaitSet::add(int fd, uint32_t events, uint64_t name) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = name;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return true;
  return errno == EEXIST && epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0;
}

void WaitSet::remove(int fd) { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

size_t WaitSet::wait(std::span<epoll_event> events, uint64_t deadline_ns) {
  timespec storage;
  const timespec* const timeout = timeout_until(deadline_ns, storage);
  const int count_max = static_cast<int>(events.size());
  int count = epoll_pwait2(epoll_.get(), events.data(), count_max, timeout, nullptr);
  if (count < 0 && (errno == ENOSYS || errno == EPERM)) {  // before Linux 5.11, or in a sandbox that refuses the call
    pollfd readable{epoll_.get(), POLLIN, 0};
    ppoll(&readable, 1, timeout, nullptr);
    count = epoll_wait(epoll_.get(), events.data(), count_max, 0);
  }
  return count < 0 ? 0 : static_cast<size_t>(count);
}

bool WakeEvent::open() {
  event_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return static_cast<bool>(event_);
}

void WakeEvent::wake() {
  if (is_raised_.exchange(true, std::memory_order_acq_rel)) return;
  const int saved = errno;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(event_.get(), &one, sizeof(one));  // the counter cannot be full
  errno = saved;
}

void WakeEvent::clear() {
  if (!is_raised_.load(std::memory_order_acquire)) return;
  // If a waker has set the flag but not yet written, the flag stays set. That waker's event then ends the next wait.
  uint64_t count;
  if (read(event_.get(), &count, sizeof(count)) == sizeof(count)) is_raised_.exchange(false, std::memory_order_acq_rel);
}

bool Timer::open() {
  timer_ = Descriptor(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  at_ns_ = UINT64_MAX;
  return static_cast<bool>(timer_);
}

void Timer::set_at(uint64_t at_ns) {
  if (at_ns == at_ns_) return;
  at_ns_ = at_ns;
  itimerspec spec{};
  if (at_ns != UINT64_MAX) spec.it_value = timespec_of(std::max<uint64_t>(at_ns, 1));  // 0 would disarm it
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr);  // cannot fail with these arguments
}

bool Timer::take() {
  uint64_t expirations;
  if (read(timer_.get(), &expirations, sizeof(expirations)) != sizeof(expirations)) return false;
  at_ns_ = UINT64_MAX;
  return true;
}

}  // namespace tern::base
