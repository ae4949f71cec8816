// The RPCs of other replicas to this one.
#include <algorithm>
#include <utility>

#include "port.h"

namespace replicated {

namespace {

/// Maximum number of remembered ids. It is far larger than a cluster, but bounded because any sender can invent ids.
constexpr size_t kPeersMax = 64;

}  // namespace

void Port::receive_hello(tern::Request request) {
  Reader reader(request.bytes());
  Head head;
  if (!read_head(reader, head) || !reader.rest().empty()) {
    counters_.malformed++;
    return request.fail(kMalformedMessage);
  }
  auto refusal = check_head(head);
  Peer* from = refusal ? nullptr : sender(head.from);
  // True if this replica has met all others, in this life or an earlier one. If so, a sender without memory that this
  // replica has not met in this life has lost its memory.
  const bool have_met_all = raft_ != nullptr || !is_pristine_;
  if (from != nullptr && !head.has_memory && have_met_all && from->life == 0) refusal = kLostMemory;
  if (refusal) {
    counters_.refused++;
    return request.fail(*refusal);
  }
  if (from == nullptr) return request.respond();  // the sender will ask again
  from->life = head.life;
  const auto answer = request.response(kHelloAnswerBytes);
  if (!answer.ok()) return;
  Writer(*answer).write(life_).write(static_cast<uint8_t>(!is_pristine_));
  request.respond();
}

bool Port::is_forgettable(uint64_t id, const Peer& peer) const {
  for (unsigned i = 0; i < raft_->configuration.n; i++) {
    if (raft_->configuration.servers[i].id == id) return false;
  }
  const bool has_calls = peer.append_sent.request != nullptr || peer.snapshot_sent.request != nullptr || peer.votes > 0;
  return peer.is_met && !peer.has_session && !has_calls && !peer.append && !peer.snapshot;
}

Port::Peer* Port::sender(uint64_t id) {
  if (const auto found = peers_.find(id); found != peers_.end()) return &found->second;
  if (peers_.size() >= kPeersMax) {
    // Before libraft runs there is no configuration, so it is unknown which peers to keep.
    const auto other = raft_ == nullptr ? peers_.end() : std::find_if(peers_.begin(), peers_.end(), [&](const auto& p) {
      return is_forgettable(p.first, p.second);
    });
    if (other == peers_.end()) return nullptr;
    peers_.erase(other);
    counters_.forgotten++;
  }
  return &peers_[id];
}

bool Port::has_lost_memory(const Head& head) {
  // A new replica has received the log before it becomes a voter; a snapshot that is being installed is not in our log
  // yet.
  if (!head.is_voter || raft_ == nullptr || !is_pristine_ || is_installing() || last_index() != 0) return false;
  (void)check("replica " + std::to_string(head.from) + " counts this replica as a voter: " + explain(kLostMemory));
  return true;
}

std::optional<Refusal> Port::check_head(const Head& head) {
  if (head.cluster != options_.cluster) return kOtherCluster;
  if (head.to != 0 && head.to != options_.id) return kOtherReplica;
  if (head.from == options_.id) return kSameId;
  if (head.election_us != election_us_) return kOtherTimes;
  if (!problem_.empty()) return kStopped;
  for (unsigned i = 0; raft_ != nullptr && i < raft_->configuration.n; i++) {
    const raft_server& server = raft_->configuration.servers[i];
    if (server.id == head.from && head.address != server.address) return kSameId;
  }
  const auto known = peers_.find(head.from);
  if (raft_ == nullptr && known != peers_.end() && known->second.address != head.address) return kSameId;
  if (known != peers_.end() && known->second.life != 0 && known->second.life != head.life && !head.has_memory) {
    return kLostMemory;
  }
  return std::nullopt;
}

void Port::receive(tern::Request request) {
  const StepScope scope(*this, Step::kReceive);
  Reader reader(request.bytes());
  Head head;
  raft_message message;
  if (!read_head(reader, head)) {
    counters_.malformed++;
    return request.fail(kMalformedMessage);
  }
  if (const auto refusal = check_head(head)) {
    counters_.refused++;
    return request.fail(*refusal);
  }
  if (has_lost_memory(head)) {
    counters_.refused++;
    return request.fail(kStopped);
  }
  if (!decode(reader.rest(), head.from, message)) {
    counters_.malformed++;
    return request.fail(kMalformedMessage);
  }
  const bool is_append = message.type == RAFT_IO_APPEND_ENTRIES;
  const bool is_snapshot = message.type == RAFT_IO_INSTALL_SNAPSHOT;
  if (!is_append && !is_snapshot && message.type != RAFT_IO_REQUEST_VOTE) {
    counters_.malformed++;
    return request.fail(kMalformedMessage);
  }
  Peer* const found = sender(head.from);
  if (found == nullptr) {
    release(message);
    return request.respond();
  }
  Peer& from = *found;
  from.life = head.life;
  if (from.address != head.address) {
    if (from.has_session) (void)endpoint_.destroy_session(from.session);
    from.has_session = false;
    from.address = head.address;
  }
  if (raft_ == nullptr || is_closed_ || !is_deliverable(message)) {
    release(message);
    return request.respond();  // without a result; the sender will ask again
  }
  if (is_append) counters_.appends_received++;
  if (is_snapshot) {
    counters_.snapshots_received++;
    settle(true);  // stores earlier appends, because the snapshot replaces the log
  }
  std::optional<tern::Request>& waiting = is_snapshot ? from.snapshot : from.append;
  if (waiting && (is_append || is_snapshot)) {
    waiting->respond();  // its sender has given it up
    waiting.reset();
  }
  if (is_append) {
    raft_append_entries& append = message.append_entries;
    from.append_until = append.prev_log_index + append.n_entries;
    skip_compacted(append);
    // The end of our log may contain entries that were not compared with the leader's, and the append may have been
    // shortened. Without this limit libraft would commit those entries (the minimum is in rule 5 of AppendEntries, Raft
    // paper, figure 2).
    append.leader_commit = std::min<raft_index>(append.leader_commit, from.append_until);
    late_commit_.reset();
    if (append.n_entries > 0 && append.leader_commit > raft_->commit_index) put_off_commit(head.from, append);
  }
  message.server_id = head.from;
  message.server_address = from.address.c_str();
  delivering_ = {head.from, is_snapshot, &request};
  if (message.type == RAFT_IO_REQUEST_VOTE && head.is_voter) {
    deliver_as_voter(message);
  } else {
    on_message_(&io_, &message);
  }
  // The new term could not be stored, and libraft has not taken the snapshot (recvMessage()).
  if (is_snapshot && !problem_.empty()) release(message);
  settled_(false);
  const bool is_answered = delivering_.request == nullptr;
  delivering_ = {};
  if (is_answered) return;
  if ((is_append && !appended_.empty()) || (is_snapshot && is_installing())) {
    waiting = std::move(request);  // the result is sent when the append or snapshot is stored
  } else {
    request.respond();
  }
}

/// libraft votes only if its own configuration says that it is a voter (electionVote()). But the configuration that
/// made it a voter may be committed and not have arrived here yet; then no candidate could be elected without this
/// vote. The vote counts by the candidate's configuration (Raft thesis, 4.1). Also, only a voter forgets a leader from
/// which it has not heard for an election timeout (tickFollower()).
void Port::deliver_as_voter(raft_message& message) {
  raft_server* const self = server(options_.id);
  const int role = self == nullptr ? RAFT_VOTER : std::exchange(self->role, RAFT_VOTER);
  const auto now_us = static_cast<raft_time>(std::chrono::duration_cast<std::chrono::microseconds>(time()).count());
  if (role != RAFT_VOTER && raft_->state == RAFT_FOLLOWER && now_us >= raft_->election_timer_start + election_us_) {
    raft_->follower_state.current_leader.id = 0;
  }
  on_message_(&io_, &message);
  if (self != nullptr) self->role = role;  // a request for a vote does not change the configuration
}

/// Handles an append that begins before the end of our snapshot. libraft would refuse it, because it no longer knows
/// the term of that entry. The leader would then go back by one entry each time, to a snapshot that is older than ours,
/// and begin again. The entries of a snapshot are committed, and each later leader has them (Raft paper, 5.4.3). So
/// they count as compared.
void Port::skip_compacted(raft_append_entries& append) const {
  const uint64_t last = raft_->log.snapshot.last_index;
  if (is_installing() || append.prev_log_index >= last || term_at(append.prev_log_index) != 0) return;
  const uint64_t known = std::min<uint64_t>(last - append.prev_log_index, append.n_entries);
  append.prev_log_index = last;
  append.prev_log_term = raft_->log.snapshot.last_term;
  if (known == 0) return;
  append.n_entries -= static_cast<unsigned>(known);
  if (append.n_entries > 0) {
    std::move(append.entries + known, append.entries + known + append.n_entries, append.entries);
  } else {
    raft_free(append.entries[0].batch);
    raft_free(append.entries);
    append.entries = nullptr;
  }
}

/// Postpones the commit of an append, because the leader waits for the answer, and not for the execution of commands
/// here.
void Port::put_off_commit(uint64_t from, raft_append_entries& append) {
  const uint64_t last_term = append.entries[append.n_entries - 1].term;
  late_commit_from_ = from;
  late_commit_ = raft_append_entries{
      append.term, append.prev_log_index + append.n_entries, last_term, append.leader_commit, nullptr, 0};
  append.leader_commit = raft_->commit_index;
}

bool Port::is_deliverable(const raft_message& message) {
  switch (message.type) {
    case RAFT_IO_REQUEST_VOTE:
      if (is_installing()) return false;
      if (now() >= votes_from_) return true;
      counters_.votes_withheld++;
      return false;
    case RAFT_IO_APPEND_ENTRIES:
      return prepare_append(message.append_entries);
    default:
      return message.install_snapshot.term != raft_->current_term || raft_state(raft_) != RAFT_LEADER;
  }
}

void Port::answer(raft_message message) {
  const auto respond = [&message](tern::Request& request) {
    const auto space = request.response(encoded_bytes(message));
    if (!space.ok()) return;
    encode(message, *space);
    request.respond();
  };
  const auto found = peers_.find(message.server_id);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  // libraft reports the whole length of its log, including entries that it has not compared with the leader's. A leader
  // whose log is not longer takes those entries for its own (recvAppendEntries(), replicationUpdate()).
  if (message.type == RAFT_IO_APPEND_ENTRIES_RESULT && message.append_entries_result.rejected == 0 &&
      !is_ending_snapshot_) {
    auto& last_index = message.append_entries_result.last_log_index;
    last_index = std::min<raft_index>(last_index, peer.append_until);
  }
  const bool is_delivered = delivering_.request != nullptr && delivering_.from == message.server_id;
  if (is_delivered && delivering_.is_snapshot == is_ending_snapshot_) {
    respond(*std::exchange(delivering_.request, nullptr));
  } else if (is_delivered && delivering_.is_snapshot && !peer.append) {
    respond(*std::exchange(delivering_.request, nullptr));  // refused at once
  } else if (is_ending_snapshot_) {
    if (!peer.snapshot) return;
    respond(*peer.snapshot);
    peer.snapshot.reset();
  } else if (peer.append) {
    respond(*peer.append);
    peer.append.reset();
  }
}

}  // namespace replicated
