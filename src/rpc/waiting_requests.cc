#include "rpc/waiting_requests.h"

#include "base/check.h"
#include "rpc/mailbox.h"

namespace tern::rpc {

base::ListLinks<Incoming>& WaitingRequests::InWaiting::of(Incoming& request) { return request.in_waiting; }
const base::ListLinks<Incoming>& WaitingRequests::InWaiting::of(const Incoming& request) { return request.in_waiting; }

void WaitingRequests::add(Incoming* request) {
  list_.add_last(request);
  size_++;
}

void WaitingRequests::unlink(Incoming* request) {
  list_.remove(request);
  size_--;
}

void WaitingRequests::remove(Incoming* request, uint64_t now_ns) {
  is_behind_ |= request->is_hopeless(now_ns);
  unlink(request);
  if (empty()) is_behind_ = false;
}

WaitingRequests::Next WaitingRequests::take(uint64_t now_ns) {
  Incoming* request = list_.first();
  if (request == nullptr) return {};
  const bool is_first_late = request->is_hopeless(now_ns);
  is_behind_ |= is_first_late;
  if (is_behind_ && !is_first_late) request = list_.last();
  unlink(request);
  if (empty()) is_behind_ = false;
  return {request, is_first_late || request->is_hopeless(now_ns)};
}

void WaitingRequests::check_invariants() const {
  size_t count = 0;
  for (const Incoming* request = list_.first(); request != nullptr; request = list_.after(request)) count++;
  CHECK(count, ==, size_);
}

}  // namespace tern::rpc
