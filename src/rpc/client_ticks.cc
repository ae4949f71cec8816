// ClientSessions: timers of sessions (docs/protocol.md, 4.3, 4.4, 5.5, 6.4).

#include <algorithm>
#include <bit>
#include <span>
#include <string>

#include "base/status_text.h"
#include "rpc/client_sessions.h"

namespace tern::rpc {

using session::ClientSession;

namespace {

/// Time from the transport's report that a peer is gone to the session's end. The management usually gives its reason
/// sooner.
constexpr uint64_t kPeerLostNs = 50'000'000;
/// A session without a timer within this many RTOs is not checked at each RTO.
constexpr uint64_t kRestRtos = 4;
/// Most sessions that one iteration checks. A pass over more sessions takes several iterations, between which packets
/// are received, because a check of a session that is in no cache takes a tenth of a microsecond, and 50 000 checks an
/// RTO.
constexpr size_t kTicksPerRun = 64;
/// Most sessions whose rest ends in one iteration. After a pause of the machine all may be due.
constexpr size_t kRestsPerRun = 8 * kTicksPerRun;
/// An endpoint reports once in this time, on average: a report is a visit of two sessions that may be in no cache, and
/// without a limit nearly each call on one of 200 000 sessions would be followed by a report. The longest delay is well
/// before the server frees a response by itself (clause 5.5.2).
constexpr uint64_t kReportGapNs = 10'000;
constexpr uint64_t kReportDelayNsMax = 10'000'000'000;
/// Memory is prefetched this many sessions ahead, because a check takes a few ns and a cache miss a hundred.
constexpr size_t kTicksAhead = 8;

constexpr Status kSilent(
    Code::kPeerUnreachable,
    "the peer has not answered for the liveness timeout: create a new session, or use SessionOptions::reconnect");
constexpr Status kFruitless(Code::kNoResponse,
                            "the server has not sent the rest of the response, although packets could pass");

/// True if the session's calls have ended since the last check. The next check is when its report is due.
bool is_done_for_now(const Client& client) {
  return client.is_resting && client.is_plain() && client.session.is_at_rest();
}

/// Returns the status of a session that ended because its packets of full length do not pass any more.
Status narrow_path(const ClientSession& session) {
  const std::string bytes = std::to_string(session.payload_bytes_max() + wire::kHeaderBytes);
  return base::status_of(
      Code::kPeerUnreachable,
      "full packets do not pass between the peers any more, but short ones do: a route has a smaller MTU, or a policer "
      "drops long packets; lower the transport's datagram size on either side",
      {"packets of ", bytes,
       " bytes do not pass between the peers any more, but short ones do: a route has a smaller MTU, or a policer "
       "drops long packets; lower the transport's datagram size on either side"});
}

}  // namespace

// ---- Paced sessions ----

bool ClientSessions::depart_later(Client* client) {
  if (client->is_departing) return true;  // it was listed for a packet that is not paced
  if (!departures_.add(context_.now_ns, client->session.departure_ns(), client->session.local_key())) return false;
  client->is_departing = true;
  context_.agenda.at_latest(departures_.next_ns());
  return true;
}

void ClientSessions::run_departures() {
  departures_.run(context_.now_ns, [this](uint32_t key) {
    if (Client* client = table_.find(key); client != nullptr) {
      client->is_departing = false;
      list_to_send(client);
    }
  });
  if (!departures_.empty()) context_.agenda.at_latest(departures_.next_ns());
}

// ---- Timeouts ----

/// Called before a session is used that was not used for a while.
void ClientSessions::begin_to_tick(Client* client) {
  set_asleep(client, false);
  client->session.forget_old_credits(context_.now_ns);
  client->session.forget_old_congestion(context_.now_ns);
  client->is_ticking = true;
  client->begins_plainly = context_.tracer == nullptr;
  if (ticking_.size() >= rests_at_once_from_ && client->begins_plainly) {
    client->looks |= Client::kRestsAtOnce;
  }
  client->tick_place = static_cast<uint32_t>(ticking_.size());
  ticking_.push_back(client);
  context_.agenda.at_latest(context_.now_ns + context_.rto_ns_min);
}

void ClientSessions::set_report_delay() {
  pools_.report_delay_min_ns = std::min(resting_.size() * kReportGapNs, kReportDelayNsMax);
}

/// The cache misses of all these sessions overlap.
void ClientSessions::end_rests_of(std::span<const uint32_t> keys) {
  for (const uint32_t key : keys) table_.prefetch(key);
  for (const uint32_t key : keys) {
    if (const Client* client = table_.find(key)) client->session.prefetch();
  }
  for (const uint32_t key : keys) {
    Client* client = table_.find(key);
    if (client == nullptr) continue;
    client->is_resting = false;
    start_ticking(client);
  }
}

void ClientSessions::run_ticks(uint64_t read_until_ns) {
  if (!resting_.empty() && resting_.next_ns() <= context_.now_ns) {
    uint32_t keys[kTicksPerRun];
    size_t count = 0;
    const auto end_rests = [&] {
      end_rests_of({keys, count});
      count = 0;
    };
    resting_.run(context_.now_ns, kRestsPerRun, [&](uint32_t key) {
      keys[count++] = key;
      if (count == kTicksPerRun) end_rests();
    });
    end_rests();
    set_report_delay();
  }
  run_pass(read_until_ns);
  if (!resting_.empty()) context_.agenda.at_latest(resting_.next_ns());
}

/// Begins or continues a pass over ticking_. Sessions that are added meanwhile are checked in the next pass.
void ClientSessions::run_pass(uint64_t read_until_ns) {
  Agenda& agenda = context_.agenda;
  pass_end_ = std::min(pass_end_, ticking_.size());
  const bool begins = pass_next_ >= pass_end_;
  if (begins) {
    const bool is_large = ticking_.size() > kTicksPerRun;
    if (is_large && context_.now_ns < pass_due_ns_) return agenda.at_latest(pass_due_ns_);
    pass_next_ = 0;
    pass_end_ = ticking_.size();
    pass_due_ns_ = context_.now_ns + context_.rto_ns_min;
  }
  const bool is_one_run = begins && pass_end_ <= kTicksPerRun;
  for (size_t looks = 0; pass_next_ < pass_end_ && looks < kTicksPerRun; looks++) {
    if (pass_next_ + kTicksAhead < pass_end_) __builtin_prefetch(ticking_[pass_next_ + kTicksAhead]);
    Client* client = ticking_[pass_next_];
    if (!client->is_dead && !is_done_for_now(*client) && tick(client, read_until_ns)) {
      pass_next_++;
      continue;
    }
    stop_ticking(client);
    if (!client->is_dead) try_rest(client);
  }
  if (is_one_run) return;  // the agenda has the times of its sessions
  pass_due_ns_ = std::min(pass_due_ns_, agenda.next_ns());
  agenda.at_latest(pass_next_ < pass_end_ ? context_.now_ns : pass_due_ns_);
}

/// Takes the session out of ticking_. The present pass has checked the sessions before pass_next_, and will check those
/// up to pass_end_.
void ClientSessions::stop_ticking(Client* client) {
  client->is_ticking = client->begins_plainly = false;
  client->rest_by_ticks();
  size_t place = client->tick_place;
  if (pass_next_ < pass_end_) {
    if (place < pass_next_) move_ticking(--pass_next_, &place);
    if (place < pass_end_) move_ticking(--pass_end_, &place);
  }
  move_ticking(ticking_.size() - 1, &place);
  ticking_.pop_back();
}

/// Called when a call has ended on a session that ticks together with many others. Without calls it needs no tick,
/// which would have to get its cache lines again.
void ClientSessions::rest_at_once(Client* client) {
  if (client->is_resting && client->is_plain()) [[likely]] {
    if (!client->session.try_rest()) return;
    stop_ticking(client);
    fall_asleep(client);
    return;
  }
  if (!client->session.is_at_rest() || tick(client, context_.now_ns) || client->is_dead) return;
  stop_ticking(client);
  try_rest(client);
}

/// Called when a session has left ticking_.
void ClientSessions::try_rest(Client* client) {
  if (client->session.try_rest() && client->is_plain()) fall_asleep(client);
  if (ticking_.empty() && resting_.empty()) pools_.trim();
}

/// Marks a session at rest whose next call cannot be refused, if there are many sessions.
inline void ClientSessions::fall_asleep(Client* client) {
  if (context_.receiving == Receiving::kAhead) set_asleep(client, true);
}

void ClientSessions::set_asleep(Client* client, bool is_asleep) {
  if (client->is_asleep == is_asleep) return;
  client->is_asleep = is_asleep;
  table_.set_asleep(client->session.local_key(), is_asleep);
}

/// Ends the session if the transport lost its peer kPeerLostNs ago. Returns true if it has ended the session.
bool ClientSessions::end_if_lost(Client* client) {
  if (!client->has_lost_peer()) return false;
  const uint64_t lost_for_ns = client->peer_lost_for_ns(context_.now_ns);
  if (lost_for_ns >= kPeerLostNs) {
    fail(client,
         {Code::kPeerUnreachable,
          "the transport to the peer is gone: create a new session, or use SessionOptions::reconnect"},
         true);
    return true;
  }
  context_.agenda.at_latest(context_.now_ns + kPeerLostNs - lost_for_ns);
  return false;
}

/// Ticks the session. Returns false if the session needs no tick until its next call.
bool ClientSessions::tick(Client* client, uint64_t read_until_ns) {
  if (end_if_lost(client)) return false;
  const session::ClientTick result = client->session.tick(context_.now_ns, read_until_ns);
  const uint64_t soon_ns = context_.now_ns + context_.rto_ns_min;
  uint64_t next_ns = result.next_ns;
  if (result.has_timed_out) context_.counters.timeouts++;
  if (result.wants_pair_probe) {
    client->is_pair_probe_due = true;
    list_path_probe(client);
  }
  if (result.ask_liveness) context_.nexus.ask_liveness(context_.port, client->session.local_key());
  if (result.has_failed) {
    const Status why = result.is_path_narrow ? narrow_path(client->session) : kSilent;
    if (result.is_path_narrow) log_narrow_path(client, why);
    fail(client, why, true);
    return false;
  }
  const auto end_calls_of = [&](uint64_t mask, Status status) {
    for (; mask != 0; mask &= mask - 1) {
      if (!completions_.reserve_one()) {
        next_ns = std::min(next_ns, soon_ns);  // the call ends when there is memory
        return;
      }
      end_call_early(client, client->session.slot(static_cast<uint32_t>(std::countr_zero(mask))), status);
    }
  };
  end_calls_of(result.fruitless_mask, kFruitless);
  end_calls_of(result.expired_mask, kLateCall);
  finish_queued(client, kLateCall, [&](const QueuedCall& call) {
    const bool is_late = is_too_late(client, call);
    if (is_late && completions_.reserve_one()) return true;
    next_ns = std::min(next_ns, is_late ? soon_ns : call.deadline_ns - least_ns(client));
    return false;
  });
  if (client->has_queue()) start_queued(client);
  bool must_stay = client->has_lost_peer() || (client->has_queue() && client->session.has_free_slot());
  if (client->session.wants_to_send()) {
    if (!waits_for_pace(client)) list_to_send(client);
    must_stay = true;
  }
  if (must_stay) next_ns = std::min(next_ns, soon_ns);
  return next_ns != UINT64_MAX && !rest(client, next_ns);
}

/// Lets the session rest until `until_ns`. Returns false if that is too soon, and the session stays in ticking_.
bool ClientSessions::rest(Client* client, uint64_t until_ns) {
  const uint64_t now_ns = context_.now_ns;
  const bool is_soon = until_ns - now_ns < kRestRtos * context_.rto_ns_min || until_ns <= now_ns;
  if (is_soon || (client->is_resting && until_ns < client->rest_until_ns)) {
    context_.agenda.at_latest(until_ns);
    return false;
  }
  if (client->is_resting) return true;                         // at worst its check comes too early
  if (!resting_.add(until_ns, client->session.local_key())) {  // no memory
    context_.agenda.at_latest(until_ns);
    return false;
  }
  client->is_resting = true;
  client->rest_until_ns = until_ns;
  set_report_delay();
  return true;
}

}  // namespace tern::rpc
