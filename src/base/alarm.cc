#include "base/alarm.h"

#include <cerrno>
#include <utility>

namespace tern::base {

Status Alarm::open(int watched) {
  WaitSet set;
  Timer timer;
  if (!set.open() || !timer.open() || !set.add(watched, EPOLLIN, 0) || !set.add(timer.descriptor(), EPOLLIN, 0)) {
    if (errno == ENOMEM) return {Code::kNoMemory, "the system has no memory for an epoll set"};
    if (errno == ENFILE) return {Code::kUnavailable, "the system has no descriptor left: raise fs.file-max"};
    if (errno == ENOSPC) return {Code::kUnavailable, "too many files are watched: raise fs.epoll.max_user_watches"};
    return {Code::kUnavailable, "no descriptor left for an epoll set: raise RLIMIT_NOFILE"};
  }
  set_ = std::move(set);
  timer_ = std::move(timer);
  return {};
}

}  // namespace tern::base
