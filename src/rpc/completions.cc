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
    if (buffer->in_use == detail::Buffer::kShared) {
      buffer->held_until = std::max(buffer->held_until, ticket);
      if (std::exchange(buffer->is_held, true)) return detail::release_buffer(buffer);  // a list has an owner already
    }
    Releases& list = releases_.first == nullptr ? releases_ : later_releases_;
    buffer->next = std::exchange(list.first, buffer);
    list.ticket = std::max(list.ticket, ticket);
  }
}

void Completions::run_releases() {
  while (releases_.first != nullptr && releases_.ticket <= context_.released) {
    while (releases_.first != nullptr) {
      detail::Buffer* buffer = std::exchange(releases_.first, releases_.first->next);
      const bool is_shared = buffer->in_use == detail::Buffer::kShared;
      if (is_shared && buffer->held_until > context_.released) {  // it was released again, after later packets
        buffer->next = std::exchange(later_releases_.first, buffer);
        later_releases_.ticket = std::max(later_releases_.ticket, buffer->held_until);
        continue;
      }
      buffer->is_held = false;
      detail::release_buffer(buffer);
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
