// EndpointCore::check_invariants() and census(): checks of an endpoint's parts against each other, between two
// iterations of its loop. For tests only.

#include <algorithm>

#include "base/check.h"
#include "rpc/endpoint_core.h"
#include "rpc/names.h"

namespace tern::rpc {

void EndpointCore::check_invariants() const {
  client_sessions_.check_invariants();
  server_sessions_.check_invariants();
  timers_.check_invariants();
  const uint64_t timer_ns = timers_.next_ns();
  CHECK(context_.agenda.next_ns(), <=, std::max(timer_ns, context_.now_ns));  // a late time is due now
  peers_.check_invariants();
  check_runs();
  check_buffers();
}

/// CHECKs the runs' sessions against the sessions of both sides.
void EndpointCore::check_runs() const {
  size_t clients = 0;
  peers_.for_each_run([&](const Run* run) {
    size_t its_clients = 0;
    for (const Client* client = run->clients.first(); client != nullptr; client = run->clients.after(client)) {
      CHECK(client->run == run && !client->is_dead);
      its_clients++;
    }
    CHECK(run->uses, ==, its_clients + run->server_sessions + run->abandoned);
    CHECK(run->abandoned, <=, run->host->abandoned);
    clients += its_clients;
  });
  CHECK(clients, <=, client_sessions_.size());
}

/// CHECKs that each message buffer of the endpoint is in use, of its arenas, and in one place only.
void EndpointCore::check_buffers() const {
  const memory::Arena& arena = context_.arena;
  const memory::Arena& received = context_.received;
  Names<detail::Buffer> owned;
  const auto add = [&](const detail::Buffer* buffer) {
    if (buffer == nullptr) return;
    CHECK(arena.owns(buffer) || received.owns(buffer));
    if (buffer->in_use == detail::Buffer::kShared) return;  // a shared buffer may be in several calls
    CHECK(buffer->in_use, ==, detail::Buffer::kOwned);
    owned.add(buffer);
  };
  add(path_buffer_);
  completions_.for_each_buffer(add);
  client_sessions_.for_each_buffer(add);
  server_sessions_.for_each_buffer(add);
  owned.sort();
  for (const detail::Buffer* buffer : owned.items()) CHECK(owned.count(buffer), ==, 1u);
  CHECK(owned.items().size(), <=, buffers_out());
}

/// Returns the number of buffers in use of both arenas, which may be the same arena.
size_t EndpointCore::buffers_out() const {
  const bool is_one = &context_.received == &context_.arena;
  return context_.arena.buffers_out() + (is_one ? 0 : context_.received.buffers_out());
}

EndpointCore::Census EndpointCore::census() const {
  Census census;
  census.client_sessions = client_sessions_.count();
  census.server_sessions = server_sessions_.count();
  census.requests_open = server_sessions_.requests_open();
  census.buffers_out = buffers_out() - (path_buffer_ != nullptr);
  census.arriving_bytes = peers_.bytes(Budget::kArriving);
  census.response_bytes = peers_.bytes(Budget::kResponses);
  census.next_due_ns = context_.agenda.next_ns();
  return census;
}

}  // namespace tern::rpc
