#include "base/alarm.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace tern::base {

Alarm::~Alarm() {
  if (timer_ >= 0) close(timer_);
  if (epoll_ >= 0) close(epoll_);
}

Status Alarm::open(int watched) {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_ < 0 || timer_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, watched, &event) != 0 ||
      epoll_ctl(epoll_, EPOLL_CTL_ADD, timer_, &event) != 0) {
    const bool is_of_memory = errno == ENOMEM;
    if (timer_ >= 0) close(std::exchange(timer_, -1));
    if (epoll_ >= 0) close(std::exchange(epoll_, -1));
    if (is_of_memory) return {Code::kNoMemory, "the system has no memory for an epoll set"};
    return {Code::kUnavailable, "no descriptor left for an epoll set: raise RLIMIT_NOFILE"};
  }
  return {};
}

void Alarm::set(uint64_t at_ns) {
  constexpr uint64_t kNsPerSec = 1'000'000'000;
  itimerspec spec{};
  if (at_ns != UINT64_MAX) {
    at_ns = std::max<uint64_t>(at_ns, 1);  // 0 would disarm it
    spec.it_value.tv_sec = static_cast<time_t>(at_ns / kNsPerSec);
    spec.it_value.tv_nsec = static_cast<long>(at_ns % kNsPerSec);
  }
  timerfd_settime(timer_, TFD_TIMER_ABSTIME, &spec, nullptr);  // cannot fail with these arguments
}

}  // namespace tern::base
