// The port's RPCs to other replicas. port_receive.cc has the RPCs of other replicas to this one.
#include <algorithm>
#include <utility>

#include "port.h"

namespace replicated {

namespace {

constexpr size_t kAnswerBytes = 64;  ///< large enough for every result
constexpr uint32_t kVoteCallsMax = 2;

}  // namespace

// ---- calls to other replicas ----

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
  return {options_.cluster, options_.id, id, life_, election_us_, !is_pristine_, is_voter(id), options_.address};
}

raft_server* Port::server(uint64_t id) const {
  for (unsigned i = 0; raft_ != nullptr && i < raft_->configuration.n; i++) {
    if (raft_->configuration.servers[i].id == id) return &raft_->configuration.servers[i];
  }
  return nullptr;
}

bool Port::is_voter(uint64_t id) const {
  const raft_server* const found = server(id);
  return found != nullptr && found->role == RAFT_VOTER;
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
    case RAFT_IO_APPEND_ENTRIES: {
      Peer& to = peer(message->server_id, message->server_address);
      if (put_off_append(message->server_id, to, message->append_entries, sent)) return 0;
      return call(message->server_id, to, *message, {}, sent);
    }
    case RAFT_IO_REQUEST_VOTE:
      return call(message->server_id, peer(message->server_id, message->server_address), *message, {}, sent);
    case RAFT_IO_INSTALL_SNAPSHOT:
      return call(message->server_id, peer(message->server_id, message->server_address), *message,
                  encode_configuration(message->install_snapshot.conf), sent);
    default:
      return RAFT_NOCONNECTION;  // a leadership transfer, which no code requests
  }
}

/// A PUT waits for a majority: the leader and half of the other voters. The appends to that half leave at once, and the
/// appends to the others after these were sent. This is not done if the storage's sync() takes time, because the order
/// then gains nothing, and the delayed appends would leave after the sync().
bool Port::put_off_append(uint64_t id, Peer& peer, const raft_append_entries& append, const Sent& sent) {
  if (append.n_entries == 0 || !storage_.is_sync_free() || peer.append_sent.request != nullptr) return false;
  const uint64_t until = append.prev_log_index + append.n_entries;
  if (std::exchange(batch_until_, until) != until) batch_voters_ = 0;
  uint32_t voters = 0;
  bool is_voter = false;
  for (unsigned i = 0; i < raft_->configuration.n; i++) {
    const raft_server& server = raft_->configuration.servers[i];
    if (server.role != RAFT_VOTER) continue;
    voters++;
    if (server.id == id) is_voter = true;
  }
  if (is_voter && batch_voters_ < voters / 2) {
    batch_voters_++;
    return false;
  }
  peer.append_sent = sent;
  peer.put_off = append;  // its entries exist until libraft hears that they were sent
  return has_put_off_ = true;
}

void Port::send_put_off() {
  has_put_off_ = false;
  for (auto& [id, peer] : peers_) {
    if (!peer.put_off) continue;
    raft_message message = {};
    message.type = RAFT_IO_APPEND_ENTRIES;
    message.append_entries = *std::exchange(peer.put_off, std::nullopt);
    Sent sent = std::exchange(peer.append_sent, {});
    sent.status = call(id, peer, message, {}, sent);
    if (sent.status != 0) sent_.push_back(sent);
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

  const tern::Duration at = time();
  // Appends have no deadline: if one of them took long, with a snapshot, the endpoint would refuse later appends with a
  // deadline for a while (Endpoint, HandlerOptions). tick() cancels calls that are under way for too long.
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
  const StepScope scope(*this, Step::kAnswer);
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
  settled_(false);
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
  message.server_id = id;
  message.server_address = peers_[id].address.c_str();
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
    default:  // the session has failed; the next message opens a new one
      if (peer.has_session) (void)endpoint_.destroy_session(peer.session);
      peer.has_session = false;
      return;
  }
  const auto refusal = static_cast<Refusal>(done.app_code);
  if (done.app_code == 0) return;  // the library refused the call: there is no handler yet
  const std::string sentence =
      "replica " + std::to_string(id) + " at " + peer.address + " refuses this one: " + explain(refusal);
  // This replica must stop in these two cases. In all other cases either replica may be the wrong one.
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
  const auto later = [this, id] { run_later(options_.heartbeat, [this, id] { say_hello(id); }); };
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
  if (accepted.status().code() == tern::Code::kSessionReset) peer.has_session = false;
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
    run_later(options_.heartbeat, [this, id] { say_hello(id); });
  }
  settled_(false);
}

}  // namespace replicated
