// ServerSessions: credit returns that wait for answers (clause 4.2.6), and for how long.
#include <algorithm>

#include "rpc/server_sessions.h"

namespace tern::rpc {

/// Judges anew if credit returns may wait: if the next iteration will probably begin within hold_ns_, because the
/// iterations since the last kept request, and what the program has done between them, took less time each. They never
/// wait if a packet costs several credits.
void ServerSessions::look_at_pace(uint64_t iteration) {
  // The counter counts two for each iteration.
  const bool runs_often = 2 * (context_.now_ns - kept_ns_) < (iteration - kept_iteration_) * hold_ns_;
  is_pace_right_ = runs_often && credits_.packet_credits() == 1;
  kept_iteration_ = iteration;
  kept_ns_ = context_.now_ns;
}

/// False: the credit return would wait for longer than it should, or there is no space in the queue.
inline bool ServerSessions::may_hold(const Server* server) {
  const uint64_t iteration = context_.port.iteration.load(std::memory_order_relaxed);
  if (iteration != kept_iteration_) [[unlikely]]
    look_at_pace(iteration);
  if (!is_pace_right_ || context_.poll_ns <= hold_ns_) return false;
  return server->is_in_held || (held_.size() < kHeldMax && held_.try_reserve(kHeldMax));
}

/// A credit limit that the session's client has at least. A client without an answer in this epoch may know another one
/// than the present one, or have fallen back to that of the handshake (clause 4.5.1). Then one packet may wait.
uint8_t ServerSessions::least_limit(const Server* server) const {
  const bool is_told = server->session.heard_epoch == credits_.epoch();
  return is_told ? credits_.limit() : std::min(credits_.limit(), uint8_t{2});
}

void ServerSessions::queue_held(Server* server) {
  const auto& session = server->session;
  held_.push({session.local_key(), session.newest(), context_.now_ns + hold_ns_});
  context_.agenda.at_latest(held_.front().until_ns);
}

void ServerSessions::owe_credit_return(Server* server, const session::ServerSlot* slot, bool may_wait) {
  if (!may_wait || !may_hold(server) || !server->session.try_hold(slot, least_limit(server))) {
    server->session.owe_credit_return(slot->echo, context_.now_ns);
    return list_to_send(server);
  }
  if (server->is_in_held) return;
  server->is_in_held = true;
  queue_held(server);
}

void ServerSessions::run_held() {
  while (!held_.empty() && held_.front().until_ns <= context_.now_ns) {
    const Held held = held_.pop();
    Server* server = table_.find(held.key);
    if (server == nullptr) continue;  // the session has ended
    const bool is_held = server->session.holds_return();
    const bool is_over =
        is_held && (!is_pace_right_ || static_cast<int32_t>(held.newest - server->session.oldest_held()) >= 0);
    server->is_in_held = is_held && !is_over;
    if (is_over) {
      server->session.return_held();
      list_to_send(server);
    } else if (is_held) {
      queue_held(server);
    }
  }
  if (!held_.empty()) context_.agenda.at_latest(held_.front().until_ns);
}

bool ServerSessions::return_all_held() {
  bool is_due = false;
  while (!held_.empty()) {
    Server* server = table_.find(held_.pop().key);
    if (server == nullptr) continue;
    server->is_in_held = false;
    if (!server->session.holds_return()) continue;
    server->session.return_held();
    list_to_send(server);
    is_due = true;
  }
  return is_due;
}

}  // namespace tern::rpc
