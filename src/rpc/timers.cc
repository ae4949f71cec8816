#include "rpc/timers.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/try.h"

namespace tern::rpc {

bool Timers::is_later(const Timer& a, const Timer& b) {
  return a.at_ns != b.at_ns ? a.at_ns > b.at_ns : a.sequence > b.sequence;
}

bool Timers::add(uint64_t at_ns, detail::InlineFunction<>& then) {
  if (!base::try_reserve(timers_, timers_.size() + 1)) return false;
  timers_.push_back({at_ns, sequence_++, std::move(then)});
  std::push_heap(timers_.begin(), timers_.end(), is_later);
  return true;
}

void Timers::run(uint64_t now_ns) {
  const uint64_t added_from_here = sequence_;
  while (!timers_.empty() && timers_.front().at_ns <= now_ns && timers_.front().sequence < added_from_here) {
    std::pop_heap(timers_.begin(), timers_.end(), is_later);
    detail::InlineFunction<> then = std::move(timers_.back().then);
    timers_.pop_back();
    then.run();
  }
}

void Timers::check_invariants() const {
  CHECK(std::is_heap(timers_.begin(), timers_.end(), is_later));
  for (const Timer& timer : timers_) CHECK(timer.sequence, <, sequence_);
}

}  // namespace tern::rpc
