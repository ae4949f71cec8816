#include "rpc/completions.h"

#include <algorithm>

#include "base/check.h"

namespace tern::rpc {

bool Completions::add_slots(size_t slots) {
  if (!base::try_reserve(waiting_, waiting_.size() + slots_max_ + slots)) return false;
  slots_max_ += slots;
  return true;
}

void Completions::wait(uint64_t ticket, detail::Buffer* request, detail::Buffer* response, Status status,
                       uint16_t app_code, session::Continuation continuation) {
  waiting_.push_back({ticket, request, response, status, app_code, std::move(continuation), waits_++});
  context_.agenda.disarm();
}

void Completions::block_slot(uint64_t session_name, uint32_t slot) {
  waiting_.back().blocked_session = session_name;
  waiting_.back().blocked_slot = slot;
}

void Completions::release_after(uint64_t ticket, detail::Buffer* buffer) {
  if (ticket <= context_.released) {
    detail::release_buffer(buffer);
  } else {
    Releases& list = releases_.first == nullptr ? releases_ : later_releases_;
    buffer->next = std::exchange(list.first, buffer);
    list.ticket = std::max(list.ticket, ticket);
  }
}

void Completions::run_releases() {
  while (releases_.first != nullptr && releases_.ticket <= context_.released) {
    while (releases_.first != nullptr) {
      detail::release_buffer(std::exchange(releases_.first, releases_.first->next));
    }
    releases_ = std::exchange(later_releases_, {});
  }
}

void Completions::check_invariants(size_t slots, size_t blocked) const {
  CHECK(slots, ==, slots_max_);
  CHECK(waiting_.capacity(), >=, waiting_.size() + slots - blocked);
  if (releases_.first == nullptr) CHECK(later_releases_.first == nullptr);
}

}  // namespace tern::rpc
