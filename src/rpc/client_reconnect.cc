// ClientSessions: sessions that connect again by themselves (SessionOptions::reconnect), and coroutines that wait for a
// session.
//
//   create() -> connecting -> open -> lost: replace() -> pause in backing_off_ -> connecting -> ...
//                    \---- refused, or no answer ----^
//
// On the wire each attempt is a new session with a Client and random numbers of its own. The old Client ends with its
// calls, as any session does. The program's name of the session is a second name in the table, whose key never leaves
// the endpoint. It passes from each Client to the next.

#include <algorithm>
#include <new>
#include <utility>

#include "base/try.h"
#include "rpc/client_sessions.h"
#include "rpc/handshake.h"

namespace tern::rpc {

/// Gives a new session its second name.
Status ClientSessions::keep_connecting(Client* client, const SessionOptions& options) {
  auto reconnect = std::unique_ptr<Reconnect>(new (std::nothrow) Reconnect{options, {}, 0});
  if (reconnect == nullptr) return kNoMemory;
  const Opening& opening = *client->opening();
  if (!base::try_grow([&] { reconnect->nexus_addresses = opening.nexus_addresses; })) return kNoMemory;
  reconnect->peer_endpoint = opening.peer_endpoint;
  reconnect->begin_ns = context_.now_ns;
  RandomNumbers random(context_.nexus.environment());
  uint32_t key = 0;
  const bool has_key = table_.draw(context_.now_ns, random, &key);
  if (random.has_failed())
    return {
        Code::kUnavailable,
        "the system gives no random numbers for another session: allow getrandom(2) or /dev/urandom in the sandbox"};
  if (!has_key) return kNoMemory;
  client->extras->public_name = table_.put(key, client);
  client->extras->reconnect = std::move(reconnect);
  reconnecting_++;
  return {};
}

/// Makes the end of this Client the end of the session.
void ClientSessions::forget_reconnect(Client* client) {
  if (client->reconnect() == nullptr) return;
  client->extras->reconnect.reset();
  table_.erase(static_cast<uint32_t>(client->public_name()));
  reconnecting_--;
}

/// Finds a session that destroy() has taken out of the table because it reconnects, and that ends in the next
/// iteration.
Client* ClientSessions::find_ending(uint32_t key) const {
  const auto found = std::find_if(ending_.begin(), ending_.end(), [key](const Client* client) {
    return !client->is_dead && static_cast<uint32_t>(client->public_name()) == key;
  });
  return found != ending_.end() ? *found : nullptr;
}

/// Makes the Client that continues a dead session after a pause. False: the endpoint closes, or there is no memory, and
/// the session has ended.
bool ClientSessions::replace(Client* client) {
  auto opening = std::unique_ptr<Opening>(new (std::nothrow) Opening);
  Reconnect& reconnect = *client->reconnect();
  const auto copy_address = [&] {
    opening->nexus_addresses = reconnect.nexus_addresses;
    opening->peer_endpoint = reconnect.peer_endpoint;
  };
  Client* next = nullptr;
  if (!context_.is_closing && opening != nullptr && base::try_grow(copy_address)) {
    if (auto begun = begin(opening, reconnect.options); begun.ok()) next = *begun;
  }
  if (next == nullptr) {
    forget_reconnect(client);
    return false;
  }
  const uint64_t least_ns = std::max<uint64_t>(to_ns(reconnect.options.reconnect_pause), 1);
  const uint64_t most_ns = std::max(to_ns(reconnect.options.reconnect_pause_max), least_ns);
  // After a session that was open for long enough, the pauses begin with the shortest one again.
  const bool was_open = reconnect.opened_ns != 0 && context_.now_ns - reconnect.opened_ns >= most_ns;
  reconnect.pause_ns = was_open || reconnect.pause_ns == 0 ? least_ns : std::min(2 * reconnect.pause_ns, most_ns);
  reconnect.opened_ns = 0;
  // Half of the pause is random, so that the clients of a server do not connect again all at once.
  const uint64_t half_ns = reconnect.pause_ns / 2;
  reconnect.begin_ns = context_.now_ns + half_ns + context_.nexus.environment().random() % (half_ns + 1);
  next->extras->public_name = client->public_name();
  table_.rename_to(next->public_name(), next);
  next->extras->reconnect = std::move(client->extras->reconnect);
  next->extras->waiters = std::exchange(client->extras->waiters, nullptr);
  backing_off_.push_back(next);
  context_.agenda.at_latest(next->reconnect()->begin_ns);
  return true;
}

void ClientSessions::run_backing_off() {
  for (size_t i = 0; i < backing_off_.size();) {
    Client* client = backing_off_[i];
    const bool is_ending = client->reconnect() == nullptr;  // destroyed by the application; dead in the next iteration
    if (!client->is_dead && (is_ending || context_.now_ns < client->reconnect()->begin_ns)) {
      if (!is_ending) context_.agenda.at_latest(client->reconnect()->begin_ns);
      i++;
      continue;
    }
    backing_off_[i] = backing_off_.back();
    backing_off_.pop_back();
    if (client->is_dead) {
      client->is_backing_off = false;
      continue;
    }
    if (const Status status = ask_nexus(client); !status.ok()) {
      fail(client, status, false);  // adds a new Client to the list
      client->is_backing_off = false;
    }
  }
}

/// True if calls of earlier attempts of the session of dead_[index] have not ended.
bool ClientSessions::has_earlier_calls(size_t index) const {
  const Client* client = dead_[index];
  if (client->public_name() == client->name()) return false;  // it does not reconnect
  return std::any_of(dead_.begin(), dead_.begin() + static_cast<ptrdiff_t>(index), [&](const Client* earlier) {
    return earlier->public_name() == client->public_name() && has_calls_to_end(earlier);
  });
}

// ---- Coroutines that wait for a session ----

Result<bool> ClientSessions::wait_for_open(Session session, detail::SessionWaiter* waiter) {
  Client* client = find(session);
  if (client == nullptr) return Status(Code::kSessionReset, "this session has ended already");
  if (client->session.state() == session::ClientSession::State::kOpen) return false;
  waiter->next = std::exchange(client->extras->waiters, waiter);
  return true;
}

/// The session may be dead and wait for its last calls, or be destroyed and have lost its name already.
void ClientSessions::stop_waiting(Session session, detail::SessionWaiter* waiter) {
  const auto unlink = [waiter](Client* client) {
    if (client->extras == nullptr) return;
    for (detail::SessionWaiter** link = &client->extras->waiters; *link != nullptr; link = &(*link)->next) {
      if (*link != waiter) continue;
      *link = waiter->next;
      return;
    }
  };
  if (Client* client = find(session); client != nullptr) unlink(client);
  for (const auto* list : {&dead_, &ending_}) {
    for (Client* client : *list) {
      if (client->public_name() == session.name) unlink(client);
    }
  }
}

/// Resumes all waiters of a session that has opened or ended (`status`). A waiter may end the wait of others, or wait
/// for another session. An exception of the program ends the process, as in every callback.
void ClientSessions::resume_waiters(Client* client, Status status) noexcept {
  while (client->extras != nullptr && client->extras->waiters != nullptr) {
    detail::SessionWaiter* const waiter = client->extras->waiters;
    client->extras->waiters = waiter->next;
    waiter->run(waiter, status);
  }
  client->drop_empty_extras();
}

}  // namespace tern::rpc
