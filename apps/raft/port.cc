#include "port.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <span>
#include <thread>
#include <utility>

namespace replicated {

using std::chrono::duration_cast;
using std::chrono::microseconds;

namespace {

/// A copy in memory of raft_malloc(), which libraft frees.
raft_buffer copy_of(std::string_view bytes) {
  raft_buffer buffer = {raft_malloc(std::max<size_t>(bytes.size(), 1)), bytes.size()};
  if (buffer.base != nullptr && !bytes.empty()) std::memcpy(buffer.base, bytes.data(), bytes.size());
  return buffer;
}

}  // namespace

/// Gives a storage's thread access to the endpoint. Closed before the endpoint is destroyed.
struct Port::Gate {
  std::mutex mutex;
  tern::Endpoint* endpoint;  ///< null: detached
  const std::thread::id owner = std::this_thread::get_id();

  /// Runs the function in the owner's loop, unless the port is detached. False: not now, because memory is short.
  template <class F>
  bool post(F function) {
    const std::lock_guard lock(mutex);
    if (endpoint == nullptr) return true;
    const tern::Code code = endpoint->post(std::move(function)).code();
    return code == tern::Code::kOk || code == tern::Code::kSessionReset;
  }
};

Port::Port(tern::Endpoint& endpoint, tern::Environment& environment, Storage& storage, PortOptions options,
           std::function<void(bool)> settled)
    : endpoint_(endpoint),
      environment_(environment),
      storage_(storage),
      options_(std::move(options)),
      election_us_(static_cast<uint32_t>(duration_cast<microseconds>(options_.election_timeout).count())),
      settled_(std::move(settled)),
      life_(environment.random() | 1),
      gate_(std::make_shared<Gate>()),
      lease_(options_.election_timeout, options_.clock_drift_max) {
  gate_->endpoint = &endpoint;
  io_.version = 2;
  io_.impl = this;
  io_.init = [](raft_io*, raft_id, const char*) { return 0; };
  io_.close = [](raft_io* io, raft_io_close_cb callback) {
    of(io).close();
    if (callback != nullptr) callback(io);
  };
  io_.load = [](raft_io* io, raft_term* term, raft_id* vote, raft_snapshot** snapshot, raft_index* first,
                raft_entry** entries,
                size_t* count) { return of(io).load(term, vote, snapshot, first, entries, count); };
  io_.start = [](raft_io* io, unsigned, raft_io_tick_cb on_tick, raft_io_recv_cb on_message) {
    Port& port = of(io);
    port.on_tick_ = on_tick;
    port.on_message_ = on_message;
    port.tick();
    return 0;
  };
  io_.bootstrap = [](raft_io* io, const raft_configuration* configuration) { return of(io).bootstrap(configuration); };
  // libraft's recovery from a lost majority is refused, because it would lose acknowledged commands.
  io_.recover = [](raft_io*, const raft_configuration*) { return RAFT_INVALID; };
  io_.set_term = [](raft_io* io, raft_term term) { return of(io).check(of(io).storage_.set_term(term)); };
  io_.set_vote = [](raft_io* io, raft_id id) { return of(io).check(of(io).storage_.set_vote(id)); };
  io_.send = [](raft_io* io, raft_io_send* request, const raft_message* message, raft_io_send_cb callback) {
    return of(io).send(request, message, callback);
  };
  io_.append = [](raft_io* io, raft_io_append* request, const raft_entry entries[], unsigned count,
                  raft_io_append_cb callback) { return of(io).append(request, entries, count, callback); };
  io_.truncate = [](raft_io* io, raft_index index) { return of(io).check(of(io).storage_.truncate(index)); };
  io_.snapshot_put = [](raft_io* io, unsigned trailing, raft_io_snapshot_put* request, const raft_snapshot* snapshot,
                        raft_io_snapshot_put_cb callback) {
    return of(io).put_snapshot(trailing, request, snapshot, callback);
  };
  io_.snapshot_get = [](raft_io* io, raft_io_snapshot_get* request, raft_io_snapshot_get_cb callback) {
    return of(io).get_snapshot(request, callback);
  };
  io_.time = [](raft_io* io) -> raft_time {
    return static_cast<raft_time>(duration_cast<microseconds>(of(io).time()).count());
  };
  io_.random = [](raft_io* io, int min, int max) { return of(io).random_timeout(min, max); };
  io_.async_work = [](raft_io*, raft_io_async_work*, raft_io_async_work_cb) {
    return RAFT_INVALID;
  };  // libraft never calls this here
}

Port::~Port() { detach(); }

void Port::detach() {
  is_closed_ = true;
  std::lock_guard lock(gate_->mutex);
  gate_->endpoint = nullptr;
}

std::string Port::open() {
  problem_ = storage_.load(saved_);
  if (!problem_.empty()) return problem_;
  is_pristine_ = saved_.term == 0 && saved_.snapshot == nullptr && saved_.entries.empty();
  snapshot_ = saved_.snapshot;
  // The promises of this replica's earlier life (Lease) hold for at most an election timeout.
  votes_from_ = is_pristine_ ? tern::Duration::min() : now() + options_.election_timeout;
  return {};
}

tern::Status Port::add_handlers() {
  auto status = endpoint_.on_request(kHello, [this](tern::Request request) { receive_hello(std::move(request)); },
                                     {.max_request_bytes = kHeadBytes + kAddressBytesMax});
  if (!status.ok()) return status;
  status = endpoint_.on_request(kMessage, [this](tern::Request request) { receive(std::move(request)); },
                                {.max_request_bytes = kMessageBytesMax});
  if (!status.ok()) return status;
  return endpoint_.on_request(kSnapshot, [this](tern::Request request) { receive(std::move(request)); },
                              {.max_request_bytes = kSnapshotMessageBytesMax});
}

void Port::on_started(raft* instance) {
  raft_ = instance;
  // libraft takes the configuration of its last entry, but does not record that it may be uncommitted (src/start.c).
  if (raft_->configuration_index > raft_->commit_index) {
    raft_->configuration_uncommitted_index = raft_->configuration_index;
  }
}

int Port::check(std::string problem) {
  if (problem.empty()) return 0;
  if (problem_.empty()) problem_ = std::move(problem);
  return RAFT_IOERR;
}

// ---- storage ----

int Port::bootstrap(const raft_configuration* configuration) {
  if (!is_pristine_) return RAFT_CANTBOOTSTRAP;
  const std::string bytes = encode_configuration(*configuration);
  if (bytes.empty()) return RAFT_NOMEM;
  const Entry entry = {1, RAFT_CHANGE, as_bytes(bytes)};
  if (int error = check(storage_.set_term(1)); error != 0) return error;
  if (int error = check(storage_.append({&entry, 1})); error != 0) return error;
  if (int error = check(storage_.sync()); error != 0) return error;
  saved_.term = 1;
  saved_.entries.push_back({1, RAFT_CHANGE, bytes});
  return 0;
}

int Port::load(raft_term* term, raft_id* vote, raft_snapshot** snapshot, raft_index* first, raft_entry** entries,
               size_t* count) {
  *term = saved_.term;
  *vote = saved_.vote;
  *first = saved_.first_index;
  *count = saved_.entries.size();
  *entries = nullptr;
  *snapshot = nullptr;
  if (*count > 0) {
    *entries = static_cast<raft_entry*>(raft_malloc(*count * sizeof(raft_entry)));
    if (*entries == nullptr) return RAFT_NOMEM;
    for (size_t i = 0; i < *count; i++) {
      const StoredEntry& entry = saved_.entries[i];
      if (entry.type == RAFT_CHANGE) {
        raft_configuration configuration;
        if (!decode_configuration(as_bytes(entry.bytes), configuration)) return RAFT_MALFORMED;
        raft_configuration_close(&configuration);
      }
      (*entries)[i] = {entry.term, entry.type, copy_of(entry.bytes), nullptr};
      if ((*entries)[i].buf.base == nullptr) return RAFT_NOMEM;
    }
  }
  if (saved_.snapshot != nullptr) {
    raft_io_snapshot_get request = {};
    request.data = snapshot;
    got_.push_back({&request, [](raft_io_snapshot_get* done, raft_snapshot* found, int) {
                      *static_cast<raft_snapshot**>(done->data) = found;
                    }});
    settle();
    if (*snapshot == nullptr) return RAFT_NOMEM;
  }
  saved_ = Saved();
  return 0;
}

int Port::append(raft_io_append* request, const raft_entry* entries, unsigned count, raft_io_append_cb callback) {
  Entry few[4];  // in most cases there is one entry
  for (unsigned i = 0; i < count;) {
    const unsigned n = std::min<unsigned>(count - i, std::size(few));
    for (unsigned j = 0; j < n; j++) {
      const raft_entry& entry = entries[i + j];
      few[j] = {entry.term, entry.type, {static_cast<const std::byte*>(entry.buf.base), entry.buf.len}};
    }
    if (int error = check(storage_.append({few, n})); error != 0) return error;
    i += n;
  }
  appended_.push_back({request, callback});
  return 0;
}

int Port::put_snapshot(unsigned trailing, raft_io_snapshot_put* request, const raft_snapshot* snapshot,
                       raft_io_snapshot_put_cb callback) {
  auto stored = std::make_shared<Snapshot>();
  stored->index = snapshot->index;
  stored->term = snapshot->term;
  stored->configuration_index = snapshot->configuration_index;
  stored->configuration = encode_configuration(snapshot->configuration);
  if (stored->configuration.empty()) return RAFT_NOMEM;
  for (unsigned i = 0; i < snapshot->n_bufs; i++) {
    stored->bytes.append(static_cast<const char*>(snapshot->bufs[i].base), snapshot->bufs[i].len);
  }
  put_ = {request, callback, snapshot->index, trailing, snapshot->bufs, stored, std::nullopt};
  storage_.put_snapshot(stored, [this, gate = gate_, pause = options_.heartbeat](std::string problem) {
    if (std::this_thread::get_id() == gate->owner) {
      put_.problem = std::move(problem);
      if (!is_settling_) (void)endpoint_.post([this] { settled_(false); });
      return;
    }
    const auto outcome = std::make_shared<const std::string>(std::move(problem));
    while (!gate->post([this, outcome] {
      put_.problem = *outcome;
      settled_(false);
    })) {
      std::this_thread::sleep_for(pause);
    }
  });
  return 0;
}

int Port::get_snapshot(raft_io_snapshot_get* request, raft_io_snapshot_get_cb callback) {
  if (snapshot_ == nullptr) return RAFT_NOTFOUND;
  got_.push_back({request, callback});
  return 0;
}

namespace {

/// A copy that libraft frees. Null: no memory.
raft_snapshot* copy_of(const Snapshot& snapshot) {
  auto* copy = static_cast<raft_snapshot*>(raft_malloc(sizeof(raft_snapshot)));
  auto* bufs = static_cast<raft_buffer*>(raft_malloc(sizeof(raft_buffer)));
  const raft_buffer bytes = copy_of(std::string_view(snapshot.bytes));
  raft_configuration configuration;
  if (copy != nullptr && bufs != nullptr && bytes.base != nullptr &&
      decode_configuration(as_bytes(snapshot.configuration), configuration)) {
    *bufs = bytes;
    *copy = {snapshot.index, snapshot.term, configuration, snapshot.configuration_index, bufs, 1};
    return copy;
  }
  raft_free(bytes.base);
  raft_free(bufs);
  raft_free(copy);
  return nullptr;
}

}  // namespace

void Port::call_back(const Put& put, int status) {
  put.callback(put.request, status);
  // libraft frees the memory of another replica's snapshot only if it has restored the snapshot (installSnapshotCb()).
  // That sets last_stored, which is 0 until then (replicationInstallSnapshot()).
  if (put.trailing == 0 && raft_->last_stored != put.index) raft_free(put.buffers);
}

void Port::finish_put() {
  const Put put = std::exchange(put_, {});
  std::string problem = *put.problem;
  if (problem.empty()) {
    snapshot_ = put.snapshot;
    if (put.trailing == 0) {
      problem = storage_.restart_log(put.index + 1);
    } else if (put.index > put.trailing) {
      problem = storage_.drop_before(put.index - put.trailing + 1);
    }
  }
  if (check(std::move(problem)) != 0) {
    put_ = put;  // libraft's request, which close() completes
    put_.problem.reset();
    return;
  }
  is_ending_snapshot_ = put.trailing == 0;
  call_back(put, 0);
  is_ending_snapshot_ = false;
  // The log is empty now, and with it an entry that may have changed the configuration. libraft does not reset this
  // field.
  if (put.trailing == 0) raft_->configuration_uncommitted_index = 0;
}

void Port::settle(bool now) {
  if (is_settling_) return;
  is_settling_ = true;
  if (has_cut_append_) fix_progress();
  const bool is_leader = raft_ != nullptr && raft_state(raft_) == RAFT_LEADER;
  const bool stores_now = now || (storage_.is_sync_free() && !is_leader);
  while (problem_.empty()) {
    if (now && !sent_.empty()) {
      running_sent_.swap(sent_);
      for (const Sent& sent : running_sent_) sent.callback(sent.request, sent.status);
      running_sent_.clear();
    } else if (put_.problem) {
      finish_put();
    } else if (!got_.empty()) {
      for (const Got& got : std::exchange(got_, {})) {
        raft_snapshot* snapshot = copy_of(*snapshot_);
        got.callback(got.request, snapshot, snapshot != nullptr ? 0 : RAFT_NOMEM);
      }
    } else if (stores_now && !appended_.empty()) {
      if (check(storage_.sync()) != 0) break;
      running_appended_.swap(appended_);
      for (const Appended& appended : running_appended_) appended.callback(appended.request, 0);
      running_appended_.clear();
    } else {
      break;
    }
    if (has_cut_append_) fix_progress();
  }
  is_settling_ = false;
  if (problem_.empty() && (!appended_.empty() || late_commit_ || has_put_off_ || must_give_back())) settle_later();
}

/// libraft only frees memory when it hears that a message was sent. That waits for a turn that happens anyway, or for
/// the next tick. libraft must hear of a failure at once.
bool Port::must_give_back() const {
  constexpr size_t kSentMax = 64;
  return sent_.size() >= kSentMax ||
         std::any_of(sent_.begin(), sent_.end(), [](const Sent& sent) { return sent.status != 0; });
}

void Port::settle_later() {
  if (std::exchange(is_settled_later_, true)) return;
  // The outer function runs in this turn of the loop, before the loop transmits. The inner function runs in the next
  // turn.
  const auto post = [this](auto function) { is_settled_later_ = endpoint_.post(std::move(function)).ok(); };
  post([this, post] { post([this] { late_turn(); }); });
}

void Port::late_turn() {
  if (is_closed_) return;
  const StepScope scope(*this, Step::kSettle);
  if (has_put_off_) send_put_off();
  settle(true);
  commit_late();
  is_settled_later_ = false;
  settle(true);
  settled_(true);
}

/// Passes the rest of an append to libraft, as a heartbeat of the same leader after the entries of that append.
void Port::commit_late() {
  if (!late_commit_ || !problem_.empty() || raft_state(raft_) != RAFT_FOLLOWER) return late_commit_.reset();
  raft_message message = {};
  message.type = RAFT_IO_APPEND_ENTRIES;
  message.server_id = late_commit_from_;
  message.append_entries = *late_commit_;
  late_commit_.reset();
  const auto from = peers_.find(message.server_id);
  // If an append still waited for its result, it would take this result as its own.
  if (from == peers_.end() || from->second.append || message.append_entries.term != raft_->current_term) return;
  message.server_address = from->second.address.c_str();
  const raft_time heard = raft_->election_timer_start;
  on_message_(&io_, &message);  // the result is not sent
  raft_->election_timer_start = heard;
}

void Port::close() {
  is_closed_ = true;
  is_settling_ = true;  // prevents further calls of the callbacks
  for (const Sent& sent : std::exchange(sent_, {})) sent.callback(sent.request, RAFT_CANCELED);
  for (auto& [id, peer] : peers_) {
    for (Sent* sent : {&peer.append_sent, &peer.snapshot_sent}) {
      if (sent->request != nullptr) sent->callback(sent->request, RAFT_CANCELED);
      *sent = {};
    }
  }
  for (const Got& got : std::exchange(got_, {})) got.callback(got.request, nullptr, RAFT_CANCELED);
  for (const Appended& appended : std::exchange(appended_, {})) appended.callback(appended.request, RAFT_CANCELED);
  if (const Put put = std::exchange(put_, {}); put.request != nullptr) call_back(put, RAFT_CANCELED);
}

// ---- libraft's log ----

uint64_t Port::last_index() const {
  const raft_log& log = raft_->log;
  const size_t count = log.back >= log.front ? log.back - log.front : log.size - log.front + log.back;
  return std::max<uint64_t>(log.offset + count, log.snapshot.last_index);
}

uint64_t Port::term_at(uint64_t index) const {
  const raft_log& log = raft_->log;
  if (index > log.offset && index <= last_index()) {
    const size_t count = log.back >= log.front ? log.back - log.front : log.size - log.front + log.back;
    if (index - log.offset <= count) return log.entries[(log.front + index - log.offset - 1) % log.size].term;
  }
  return index == log.snapshot.last_index ? log.snapshot.last_term : 0;
}

void Port::roll_back_configuration() {
  const raft_log& log = raft_->log;
  raft_configuration configuration;
  raft_configuration_init(&configuration);
  uint64_t index = raft_->configuration_uncommitted_index - 1;
  for (; index > log.offset; index--) {
    const raft_entry& entry = log.entries[(log.front + index - log.offset - 1) % log.size];
    if (entry.type != RAFT_CHANGE) continue;
    (void)decode_configuration({static_cast<const std::byte*>(entry.buf.base), entry.buf.len}, configuration);
    break;
  }
  if (configuration.n == 0 && snapshot_ != nullptr) {
    (void)decode_configuration(as_bytes(snapshot_->configuration), configuration);
    index = snapshot_->configuration_index;
  }
  raft_configuration_close(&raft_->configuration);
  raft_->configuration = configuration;
  raft_->configuration_index = index;
  raft_->configuration_uncommitted_index = 0;
  counters_.rollbacks++;
}

/// libraft rolls back a configuration whose entry it truncates, but only to a configuration that is still in its log,
/// and not after a restart (src/membership.c, src/start.c). So the port rolls back before libraft sees the conflict.
bool Port::prepare_append(const raft_append_entries& append) {
  if (append.term < raft_->current_term) return true;
  // A term has only one leader.
  if (append.term == raft_->current_term && raft_state(raft_) == RAFT_LEADER) return false;
  // If libraft has dropped the beginning of its log, it would append the log's very first entries after its end.
  if (append.prev_log_index == 0 && append.n_entries > 0 && raft_->log.offset > 0) return false;
  const uint64_t uncommitted = raft_->configuration_uncommitted_index;
  if (uncommitted == 0) return true;
  if (append.prev_log_index > 0 && term_at(append.prev_log_index) != append.prev_log_term) return true;
  for (unsigned i = 0; i < append.n_entries; i++) {
    const uint64_t index = append.prev_log_index + 1 + i;
    const uint64_t term = term_at(index);
    if (term == 0 || index > uncommitted) break;
    if (term == append.entries[i].term) continue;
    roll_back_configuration();
    break;
  }
  return true;
}

/// Corrects libraft's state after a shortened append, because libraft assumes that all entries were sent.
void Port::fix_progress() {
  has_cut_append_ = false;
  for (auto& [id, peer] : peers_) {
    const uint64_t until = std::exchange(peer.sent_until, 0);
    if (until == 0 || raft_state(raft_) != RAFT_LEADER) continue;
    for (unsigned i = 0; i < raft_->configuration.n; i++) {
      raft_progress& progress = raft_->leader_state.progress[i];
      if (raft_->configuration.servers[i].id == id)
        progress.next_index = std::min<uint64_t>(progress.next_index, until);
    }
  }
}

}  // namespace replicated
