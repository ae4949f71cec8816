// The port's RPCs, in both directions.
#include <algorithm>
#include <utility>

#include "port.h"

namespace replicated {

namespace {

constexpr size_t kAnswerBytes = 64;  ///< holds every result
constexpr uint32_t kVoteCallsMax = 2;
constexpr size_t kHelloAnswerBytes = 8 + 1;
/// Ids that are remembered: many more than a cluster has, although anybody can invent some.
constexpr size_t kPeersMax = 64;

}  // namespace

// ---- calls to others ----

Port::Peer& Port::peer(uint64_t id, std::string_view address) {
  Peer& peer = peers_[id];
  if (peer.address != address) {
    if (peer.has_session) (void)endpoint_.destroy_session(peer.session);
    peer.has_session = false;
    peer.address = address;
  }
  return peer;
}

Head Port::head_to(uint64_t id) const {
  const auto election_us = std::chrono::duration_cast<std::chrono::microseconds>(options_.election_timeout).count();
  return {options_.cluster, options_.id,     id, life_, static_cast<uint32_t>(election_us), !is_pristine_,
          is_voter(id),     options_.address};
}

bool Port::is_voter(uint64_t id) const {
  for (unsigned i = 0; raft_ != nullptr && i < raft_->configuration.n; i++) {
    const raft_server& server = raft_->configuration.servers[i];
    if (server.id == id) return server.role == RAFT_VOTER;
  }
  return false;
}

bool Port::open_session(Peer& peer) {
  if (peer.has_session) return true;
  if (is_closed_ || now() < peer.retry_at) return false;
  peer.retry_at = now() + options_.heartbeat;
  auto session = endpoint_.create_session(peer.address, {.connect_timeout = options_.election_timeout});
  if (!session.ok()) return false;
  peer.session = *session;
  return peer.has_session = true;
}

int Port::send(raft_io_send* request, const raft_message* message, raft_io_send_cb callback) {
  const Sent sent = {request, callback, 0};
  switch (message->type) {
    case RAFT_IO_REQUEST_VOTE_RESULT:
    case RAFT_IO_APPEND_ENTRIES_RESULT:
      answer(*message);
      sent_.push_back(sent);
      return 0;
    case RAFT_IO_REQUEST_VOTE:
    case RAFT_IO_APPEND_ENTRIES:
      return call(message->server_id, peer(message->server_id, message->server_address), *message, {}, sent);
    case RAFT_IO_INSTALL_SNAPSHOT:
      return call(message->server_id, peer(message->server_id, message->server_address), *message,
                  encode_configuration(message->install_snapshot.conf), sent);
    default:
      return RAFT_NOCONNECTION;  // a leadership transfer: nobody asks for one
  }
}

int Port::call(uint64_t id, Peer& peer, const raft_message& message, std::string_view configuration, const Sent& sent) {
  const bool is_append = message.type == RAFT_IO_APPEND_ENTRIES;
  const bool is_snapshot = message.type == RAFT_IO_INSTALL_SNAPSHOT;
  const bool is_busy = is_append     ? peer.append_sent.request != nullptr
                       : is_snapshot ? peer.snapshot_sent.request != nullptr
                                     : peer.votes >= kVoteCallsMax;
  if (is_busy || !open_session(peer)) return RAFT_NOCONNECTION;

  raft_message part = message;
  uint64_t term = 0;
  if (is_append) {
    part.append_entries.n_entries = entries_that_fit(message.append_entries, options_.append_bytes_max);
    term = message.append_entries.term;
  }
  const Head head = head_to(id);
  const size_t message_bytes = encoded_bytes(part, configuration);
  tern::MsgBuf request = endpoint_.alloc_msgbuf(encoded_bytes(head) + message_bytes);
  tern::MsgBuf response = endpoint_.alloc_msgbuf(kAnswerBytes);
  if (!request || !response) return RAFT_NOCONNECTION;  // libraft tries again
  Writer writer(request.bytes());
  encode(head, writer);
  encode(part, request.bytes().subspan(encoded_bytes(head)), configuration);

  const tern::Duration at = now();
  // A deadline would have appends refused for a while where one of them had taken long, with a snapshot (Endpoint,
  // HandlerOptions). Those under way too long are cancelled here (tick()).
  const tern::Duration deadline =
      message.type == RAFT_IO_REQUEST_VOTE ? options_.election_timeout : tern::Duration::max();
  const auto kind = static_cast<uint16_t>(message.type);
  const auto accepted = endpoint_.enqueue_request(
      peer.session, is_snapshot ? kSnapshot : kMessage, std::move(request), std::move(response),
      [this, id, kind, term, at](tern::Completion& done) { on_called(id, kind, term, at, done); },
      {.deadline = deadline});
  if (!accepted.ok()) {
    if (accepted.status().code() == tern::Code::kSessionReset) peer.has_session = false;
    return RAFT_NOCONNECTION;
  }
  if (is_append) {
    peer.append_sent = sent;
    peer.append_call = *accepted;
    peer.append_expires = at + options_.election_timeout;
    counters_.appends_sent++;
    if (part.append_entries.n_entries < message.append_entries.n_entries) {
      peer.sent_until = message.append_entries.prev_log_index + part.append_entries.n_entries + 1;
      has_cut_append_ = true;
    }
  } else if (is_snapshot) {
    peer.snapshot_sent = sent;
    peer.snapshot_call = *accepted;
    peer.snapshot_expires = at + options_.snapshot_timeout;
    counters_.snapshots_sent++;
  } else {
    peer.votes++;
    sent_.push_back(sent);
  }
  return 0;
}

void Port::on_called(uint64_t id, uint16_t kind, uint64_t term, tern::Duration sent, tern::Completion& done) {
  const StepScope scope(options_.on_step, Step::kAnswer);
  Peer& peer = peers_[id];
  if (kind == RAFT_IO_REQUEST_VOTE) peer.votes--;
  if (is_closed_ || raft_ == nullptr) return;
  if (kind != RAFT_IO_REQUEST_VOTE) {
    Sent& under_way = kind == RAFT_IO_APPEND_ENTRIES ? peer.append_sent : peer.snapshot_sent;
    under_way.status = done.status.ok() ? 0 : RAFT_NOCONNECTION;
    sent_.push_back(std::exchange(under_way, {}));
  }
  if (done.status.ok()) {
    on_answer(id, kind, term, sent, std::as_const(done.response).bytes());
  } else {
    on_failure(id, peer, done);
  }
  settled_();
}

void Port::cancel_late() {
  for (auto& [id, peer] : peers_) {
    if (peer.append_sent.request != nullptr && now() > peer.append_expires) (void)endpoint_.cancel(peer.append_call);
    if (peer.snapshot_sent.request != nullptr && now() > peer.snapshot_expires)
      (void)endpoint_.cancel(peer.snapshot_call);
  }
}

void Port::on_answer(uint64_t id, uint16_t kind, uint64_t term, tern::Duration sent, Bytes answer) {
  if (answer.empty() || !problem_.empty()) return;
  raft_message message;
  const uint16_t expected = kind == RAFT_IO_REQUEST_VOTE ? RAFT_IO_REQUEST_VOTE_RESULT : RAFT_IO_APPEND_ENTRIES_RESULT;
  if (!decode(answer, id, message)) {
    counters_.malformed++;
    return;
  }
  if (message.type != expected) {
    counters_.malformed++;
    release(message);
    return;
  }
  const std::string address = peers_[id].address;
  message.server_id = id;
  message.server_address = address.c_str();
  if (kind == RAFT_IO_APPEND_ENTRIES && raft_state(raft_) == RAFT_LEADER && raft_->current_term == term &&
      message.append_entries_result.term == term) {
    lease_.promise(id, sent);
  }
  on_message_(&io_, &message);
}

void Port::on_failure(uint64_t id, Peer& peer, const tern::Completion& done) {
  using tern::Code;
  switch (done.status.code()) {
    case Code::kCancelled:
    case Code::kDeadline:
    case Code::kNoResponse:
    case Code::kQueueFull:
    case Code::kNoMemory:
    case Code::kTooLarge:
      return;
    case Code::kRefused:
      break;
    default:  // the session has failed, and is opened again with the next message
      if (peer.has_session) (void)endpoint_.destroy_session(peer.session);
      peer.has_session = false;
      return;
  }
  const auto refusal = static_cast<Refusal>(done.app_code);
  if (done.app_code == 0) return;  // the library's: there is no handler yet
  const std::string sentence =
      "replica " + std::to_string(id) + " at " + peer.address + " refuses us: " + explain(refusal);
  // These two are ours to stop for. In all others either of us may be the one that is wrong.
  if (refusal == kSameId || refusal == kLostMemory) {
    (void)check(sentence);
  } else if (!std::exchange(peer.has_complained, true) && options_.complain) {
    options_.complain(sentence);
  }
}

// ---- meeting ----

void Port::meet(const std::vector<std::pair<uint64_t, std::string>>& others, std::function<void()> done) {
  met_ = std::move(done);
  for (const auto& [id, address] : others) peer(id, address).is_met = false;
  for (const auto& [id, address] : others) say_hello(id);
  if (others.empty()) std::exchange(met_, nullptr)();
}

void Port::say_hello(uint64_t id) {
  Peer& peer = peers_[id];
  if (is_closed_ || peer.is_met || !problem_.empty()) return;
  const auto later = [this, id] { (void)endpoint_.after(options_.heartbeat, [this, id] { say_hello(id); }); };
  if (!open_session(peer)) return later();
  const Head head = head_to(id);
  tern::MsgBuf request = endpoint_.alloc_msgbuf(encoded_bytes(head));
  tern::MsgBuf response = endpoint_.alloc_msgbuf(kHelloAnswerBytes);
  if (!request || !response) return later();
  Writer writer(request.bytes());
  encode(head, writer);
  const auto accepted = endpoint_.enqueue_request(peer.session, kHello, std::move(request), std::move(response),
                                                  [this, id](tern::Completion& answer) { on_hello(id, answer); },
                                                  {.deadline = options_.election_timeout});
  if (accepted.ok()) return;
  peer.has_session = false;
  later();
}

void Port::on_hello(uint64_t id, tern::Completion& done) {
  Peer& peer = peers_[id];
  if (is_closed_ || peer.is_met) return;
  Reader reader(std::as_const(done.response).bytes());
  uint64_t life = 0;
  uint8_t has_memory = 0;
  if (done.status.ok() && reader.read(life) && reader.read(has_memory) && life != 0) {
    peer.is_met = true;
    peer.life = life;
    const bool are_all_met = std::all_of(peers_.begin(), peers_.end(), [](const auto& p) { return p.second.is_met; });
    if (are_all_met && met_) std::exchange(met_, nullptr)();
  } else {
    if (!done.status.ok()) on_failure(id, peer, done);
    (void)endpoint_.after(options_.heartbeat, [this, id] { say_hello(id); });
  }
  settled_();
}

void Port::receive_hello(tern::Request request) {
  Reader reader(request.bytes());
  Head head;
  if (!read_head(reader, head) || !reader.rest().empty()) {
    counters_.malformed++;
    return request.fail(kMalformedMessage);
  }
  auto refusal = check_head(head);
  Peer* from = refusal ? nullptr : sender(head.from);
  // We have met all others, in this life or an earlier one; and this one, who says that it has no memory, we have not.
  const bool have_met_all = raft_ != nullptr || !is_pristine_;
  if (from != nullptr && !head.has_memory && have_met_all && from->life == 0) refusal = kLostMemory;
  if (refusal) {
    counters_.refused++;
    return request.fail(*refusal);
  }
  if (from == nullptr) return request.respond();  // it will ask again
  from->life = head.life;
  const auto answer = request.response(kHelloAnswerBytes);
  if (!answer.ok()) return;
  Writer(*answer).write(life_).write(static_cast<uint8_t>(!is_pristine_));
  request.respond();
}

// ---- calls of others ----

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
    // Before libraft runs there is no configuration that says whom to keep.
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
  // A new replica has the log before it is a voter; what is being installed is still to be in ours.
  if (!head.is_voter || raft_ == nullptr || !is_pristine_ || is_installing() || last_index() != 0) return false;
  (void)check("replica " + std::to_string(head.from) + " has us as a voter: " + explain(kLostMemory));
  return true;
}

std::optional<Refusal> Port::check_head(const Head& head) {
  if (head.cluster != options_.cluster) return kOtherCluster;
  if (head.to != 0 && head.to != options_.id) return kOtherReplica;
  if (head.from == options_.id) return kSameId;
  if (head.election_us != head_to(0).election_us) return kOtherTimes;
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
  const StepScope scope(options_.on_step, Step::kReceive);
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
    return request.respond();  // nothing to say; it will ask again
  }
  (is_append ? counters_.appends_received : counters_.snapshots_received) += is_append || is_snapshot ? 1 : 0;
  // What was appended before is settled first: a snapshot takes the place of the log.
  if (is_snapshot) settle(true);
  std::optional<tern::Request>& waiting = is_snapshot ? from.snapshot : from.append;
  if (waiting && (is_append || is_snapshot)) {
    waiting->respond();  // its sender has given it up
    waiting.reset();
  }
  if (is_append) {
    raft_append_entries& append = message.append_entries;
    from.append_until = append.prev_log_index + append.n_entries;
    // What our log has behind that was not compared with the leader's, and an append may have been cut short: libraft
    // would commit it (Raft paper, figure 2, AppendEntries rule 5, has this minimum).
    append.leader_commit = std::min<raft_index>(append.leader_commit, from.append_until);
  }
  message.server_id = head.from;
  message.server_address = from.address.c_str();
  delivering_ = {head.from, is_snapshot, &request};
  on_message_(&io_, &message);
  // The new term could not be stored, and libraft has left the snapshot where it was (recvMessage()).
  if (is_snapshot && !problem_.empty()) release(message);
  settled_();
  const bool is_answered = delivering_.request == nullptr;
  delivering_ = {};
  if (is_answered) return;
  if ((is_append && !appended_.empty()) || (is_snapshot && is_installing())) {
    waiting = std::move(request);  // the result comes when it is stored
  } else {
    request.respond();
  }
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
  // libraft says how long its log is, also behind what it has compared with the leader's; and a leader that is no
  // further takes what lies there for its own entries (recvAppendEntries(), replicationUpdate()).
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
