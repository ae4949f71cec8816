#include "replica.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

namespace replicated {

namespace {

/// Maximum total size of the commands of a batch, unless one command alone is longer.
constexpr size_t kBatchBytesMax = 1u << 20;

unsigned to_units(tern::Duration time) {
  return static_cast<unsigned>(std::chrono::duration_cast<std::chrono::microseconds>(time).count());
}

Bytes bytes_of(const raft_buffer& buffer) { return {static_cast<const std::byte*>(buffer.base), buffer.len}; }

}  // namespace

Replica::Replica(tern::Endpoint& endpoint, tern::Environment& environment, Storage& storage, ReplicaOptions options)
    : endpoint_(endpoint),
      options_(std::move(options)),
      port_(endpoint, environment, storage, options_.port, [this](bool is_late) {
        after();
        if (is_late) prepare_pending();
      }) {
  fsm_.version = 1;
  fsm_.data = this;
  fsm_.apply = [](raft_fsm* fsm, const raft_buffer* command, void** result) {
    *result = nullptr;
    static_cast<Replica*>(fsm->data)->apply(*command);
    return 0;
  };
  fsm_.snapshot = [](raft_fsm* fsm, raft_buffer** buffers, unsigned* count) {
    Replica& self = *static_cast<Replica*>(fsm->data);
    // libraft would put the configuration into the snapshot even if it may be rolled back (takeSnapshot()).
    if (self.raft_.configuration_uncommitted_index != 0) return RAFT_BUSY;
    const size_t bytes = self.machine_.snapshot_bytes();
    auto* buffer = static_cast<raft_buffer*>(raft_malloc(sizeof(raft_buffer)));
    auto* data = static_cast<std::byte*>(raft_malloc(bytes));
    if (buffer == nullptr || data == nullptr) {
      raft_free(buffer);
      raft_free(data);
      return RAFT_BUSY;  // libraft tries again
    }
    self.machine_.write_snapshot({data, bytes});
    *buffer = {data, bytes};
    *buffers = buffer;
    *count = 1;
    self.on_snapshot();
    return 0;
  };
  fsm_.restore = [](raft_fsm* fsm, raft_buffer* snapshot) {
    Replica& self = *static_cast<Replica*>(fsm->data);
    if (!self.machine_.restore(bytes_of(*snapshot))) {
      // libraft would continue without the snapshot's content.
      self.stop(
          "a snapshot cannot be read: it is damaged, or of another version of this program; start this replica "
          "with a new id and --join, and let raft_client --add it");
      return RAFT_MALFORMED;
    }
    self.applied_bytes_ = 0;
    raft_free(snapshot->base);
    return 0;
  };
}

Replica::~Replica() {
  detach();
  fail_pending();
  for (Waiting& waiting : queue_) raft_free(waiting.command.base);
  changing_.reset();
  if (is_initialized_) raft_close(&raft_, nullptr);
}

std::string Replica::open() {
  if (std::string problem = port_.open(); !problem.empty()) return problem;
  if (raft_init(&raft_, port_.io(), &fsm_, options_.port.id, options_.port.address.c_str()) != 0) {
    return "libraft does not start: " + std::string(raft_errmsg(&raft_));
  }
  is_initialized_ = true;
  raft_set_election_timeout(&raft_, to_units(options_.port.election_timeout));
  raft_set_heartbeat_timeout(&raft_, to_units(options_.port.heartbeat));
  raft_set_install_snapshot_timeout(&raft_, to_units(options_.port.snapshot_timeout));
  raft_set_max_catch_up_round_duration(&raft_, to_units(options_.port.snapshot_timeout));
  raft_set_snapshot_threshold(&raft_, options_.snapshot_entries);
  raft_set_snapshot_trailing(&raft_, std::max(options_.trailing_entries, 1u));
  raft_set_pre_vote(&raft_, true);

  auto status = port_.add_handlers();
  if (status.ok()) {
    status = endpoint_.on_request(kExecute, [this](tern::Request request) { execute(std::move(request)); },
                                  {.max_request_bytes = kRequestBytesMax});
  }
  if (status.ok()) {
    status = endpoint_.on_request(kChange, [this](tern::Request request) { change(std::move(request)); },
                                  {.max_request_bytes = kChangeHeadBytes + kAddressBytesMax});
  }
  if (status.ok()) {
    status = endpoint_.on_request(kAbout, [this](tern::Request request) { tell(std::move(request)); },
                                  {.max_request_bytes = 64});
  }
  if (status.ok()) {
    const auto echo = [this](tern::Request request) {
      const Port::StepScope scope(port_, Step::kEcho);
      answer(std::move(request), ".");
    };
    status = endpoint_.on_request(kEcho, echo, {.max_request_bytes = kRequestBytesMax});
  }
  if (!status.ok()) return "no handlers: " + std::string(status.message());

  if (!port_.is_pristine() || options_.replicas.empty()) {
    start();
    return problem();
  }
  std::vector<std::pair<uint64_t, std::string>> others;
  for (const auto& replica : options_.replicas) {
    if (replica.first != options_.port.id) others.push_back(replica);
  }
  port_.meet(others, [this] {
    if (std::string problem = begin_cluster(); !problem.empty()) return stop(std::move(problem));
    start();
  });
  return problem();
}

std::string Replica::begin_cluster() {
  raft_configuration configuration;
  raft_configuration_init(&configuration);
  int error = 0;
  for (const auto& [id, address] : options_.replicas) {
    if (error == 0) error = raft_configuration_add(&configuration, id, address.c_str(), RAFT_VOTER);
  }
  if (error == 0) error = raft_bootstrap(&raft_, &configuration);
  raft_configuration_close(&configuration);
  if (error == 0) return {};
  return port_.problem().empty() ? "no cluster of these replicas: " + std::string(raft_strerror(error))
                                 : port_.problem();
}

void Replica::start() {
  if (const int error = raft_start(&raft_); error != 0) {
    return stop("the stored state cannot be used: " + std::string(raft_strerror(error)));
  }
  is_started_ = true;
  port_.on_started(&raft_);
  after();
}

void Replica::stop(std::string problem) {
  if (problem_.empty()) problem_ = std::move(problem);
}

/// Must follow every call of libraft.
void Replica::after() {
  if (is_in_after_ || !is_started_) return;
  is_in_after_ = true;
  port_.settle();
  if (raft_.state == RAFT_UNAVAILABLE && problem().empty()) {
    const std::string why = raft_errmsg(&raft_);
    stop("libraft has stopped: " + (why.empty() ? "its log contradicts the leader's" : why));
  }
  if (is_leader() && raft_.current_term != leading_term_) lead();
  if (!is_leader() && (!pending_.empty() || !queue_.empty())) fail_pending();
  submit();
  is_in_after_ = false;
}

void Replica::lead() {
  fail_pending();
  leading_term_ = raft_.current_term;
  is_ready_ = false;
  port_.lease().clear();
  barrier_.data = this;
  const int error = raft_barrier(&raft_, &barrier_, [](struct raft_barrier* barrier, int status) {
    auto& self = *static_cast<Replica*>(barrier->data);
    self.is_ready_ = status == 0;
  });
  if (error != 0) return stop("a new leader cannot write to its log: " + std::string(raft_strerror(error)));
  port_.settle(true);  // stores the barrier as our last entry before any result is handled
}

bool Replica::has_lease() {
  return is_ready() && problem().empty() && port_.now() < port_.lease().end(raft_.configuration, raft_.id);
}

// ---- commands ----

void Replica::answer(tern::Request request, std::string_view bytes) {
  auto space = request.response(bytes.size());
  if (!space.ok()) return;  // the client tries again
  std::memcpy(space->data(), bytes.data(), bytes.size());
  request.respond();
}

void Replica::reply(tern::Request request, uint64_t configuration, std::string_view said) {
  // An uncommitted configuration may be rolled back.
  const bool is_known = configuration == raft_.configuration_index || raft_.configuration_index == 0 ||
                        raft_.configuration_uncommitted_index != 0;
  if (is_known) [[likely]]
    return answer(std::move(request), said);
  std::string replicas;
  for (unsigned i = 0; i < raft_.configuration.n; i++) {
    replicas.append(replicas.empty() ? "" : "\n").append(raft_.configuration.servers[i].address);
  }
  auto space = request.response(1 + 8 + 2 + replicas.size() + said.size() - 1);
  if (!space.ok()) return;
  Writer(*space)
      .write(static_cast<uint8_t>(static_cast<uint8_t>(said[0]) | kHasReplicas))
      .write(uint64_t{raft_.configuration_index})
      .write_text<uint16_t>(replicas)
      .write(said.data() + 1, said.size() - 1);
  request.respond();
}

void Replica::refuse(tern::Request request, uint64_t configuration) {
  raft_id leader = 0;
  const char* address = nullptr;
  if (is_started_) raft_leader(&raft_, &leader, &address);
  if (leader == raft_.id) leader = 0;  // this leader cannot serve now
  const std::string_view uri = leader != 0 && address != nullptr ? address : "";
  std::string said(1 + 8 + uri.size(), '\0');
  Writer(std::as_writable_bytes(std::span(said)))
      .write(Outcome::kNotLeader)
      .write(uint64_t{leader})
      .write(uri.data(), uri.size());
  reply(std::move(request), configuration, said);
}

void Replica::execute(tern::Request request) {
  const Port::StepScope scope(port_, Step::kExecute);
  uint64_t cluster = 0, configuration = 0;
  uint8_t flags = 0;
  const auto say = [&](Outcome outcome) {
    const char byte = static_cast<char>(outcome);
    reply(std::move(request), configuration, {&byte, 1});
  };
  Reader reader(request.bytes());
  if (!reader.read(cluster) || !reader.read(configuration) || !reader.read(flags)) {
    const char malformed = static_cast<char>(Outcome::kMalformed);
    return answer(std::move(request), {&malformed, 1});
  }
  if (cluster != options_.port.cluster) return say(Outcome::kWrongCluster);
  const auto command = parse_command(reader.rest());
  if (!command || command->operation == Operation::kReserve) return say(Outcome::kMalformed);
  if (!is_leader() || !problem().empty()) return refuse(std::move(request), configuration);
  if (command->operation == Operation::kGet && (flags & kLeaseRead) != 0 && has_lease()) {
    return reply(std::move(request), configuration, machine_.read(command->key));
  }
  if (const auto outcome = machine_.last_outcome(command->client, command->sequence)) return say(*outcome);
  const Bytes bytes = reader.rest();
  if (queue_.size() >= options_.queue_max || queue_bytes_ + bytes.size() > options_.queue_bytes_max) {
    return say(Outcome::kBusy);
  }
  raft_buffer buffer = {raft_malloc(bytes.size()), bytes.size()};
  if (buffer.base == nullptr) return say(Outcome::kBusy);
  std::memcpy(buffer.base, bytes.data(), bytes.size());
  const tern::Duration arrived = port_.time();
  enqueue({std::move(request), configuration, nullptr, buffer, 0, arrived});
}

void Replica::enqueue(Waiting waiting) {
  queue_bytes_ += waiting.command.len;
  queue_.push_back(std::move(waiting));
  after();
}

void Replica::submit() {
  while (is_ready() && pending_.empty() && !queue_.empty() && problem().empty()) {
    buffers_.clear();
    size_t bytes = 0;
    uint64_t index = raft_last_index(&raft_);
    while (!queue_.empty() && buffers_.size() < options_.batch_max) {
      bytes += queue_.front().command.len;
      if (bytes > kBatchBytesMax && !buffers_.empty()) break;
      queue_bytes_ -= queue_.front().command.len;
      buffers_.push_back(queue_.front().command);
      pending_.push_back(std::move(queue_.front()));
      pending_.back().index = ++index;
      queue_.pop_front();
    }
    apply_.data = this;
    const int error = raft_apply(&raft_, &apply_, buffers_.data(), static_cast<unsigned>(buffers_.size()),
                                 [](struct raft_apply* apply, int status, void*) {
                                   if (status != 0) static_cast<Replica*>(apply->data)->fail_pending();
                                 });
    if (error != 0) {
      for (const raft_buffer& buffer : buffers_) raft_free(buffer.base);
      if (error != RAFT_NOTLEADER) stop("the log takes no more entries: " + std::string(raft_strerror(error)));
      return fail_pending();
    }
    port_.settle();
  }
}

/// Loads the data that a batch will need into this CPU's caches while the followers store the batch.
void Replica::prepare_pending() const {
  if (!is_leader()) return;
  for (const Waiting& waiting : pending_) machine_.prepare(bytes_of(waiting.command));
}

void Replica::apply(const raft_buffer& command) {
  const uint64_t index = raft_.last_applied + 1;
  const std::string_view said = machine_.apply(index, bytes_of(command));
  applied_bytes_ += command.len;
  if (applied_bytes_ >= options_.snapshot_bytes) raft_set_snapshot_threshold(&raft_, 1);
  if (pending_.empty() || pending_.front().index != index || !is_leader()) return;
  Waiting waiting = std::move(pending_.front());
  pending_.pop_front();
  if (!waiting.request) return (this->*waiting.then)(static_cast<Outcome>(said[0]));
  reply(std::move(*waiting.request), waiting.configuration, said);
  if (options_.is_measured) served_.add(port_.now() - waiting.arrived);
}

/// libraft counts only entries, but few long entries can take much memory. With long entries the snapshot is taken
/// sooner, and fewer entries stay.
void Replica::on_snapshot() {
  const bool is_sooner = applied_bytes_ >= options_.snapshot_bytes;
  const uint64_t entries = raft_.last_applied - raft_.log.snapshot.last_index;
  const uint64_t trailing =
      is_sooner ? std::min<uint64_t>(options_.trailing_entries, entries / 4) : uint64_t{options_.trailing_entries};
  raft_set_snapshot_trailing(&raft_, std::max(static_cast<unsigned>(trailing), 1u));
  raft_set_snapshot_threshold(&raft_, options_.snapshot_entries);
  applied_bytes_ = 0;
}

/// This replica is no longer the leader. Another leader may still commit the commands in the log; the other commands
/// will not be committed. Clients repeat their commands at the new leader, with the same numbers.
void Replica::fail_pending() {
  const auto fail = [this](std::deque<Waiting> all, bool is_in_log) {
    for (Waiting& waiting : all) {
      if (!is_in_log) raft_free(waiting.command.base);
      if (waiting.request) {
        refuse(std::move(*waiting.request), waiting.configuration);
      } else {
        (this->*waiting.then)(Outcome::kNotLeader);
      }
    }
  };
  fail(std::exchange(pending_, {}), true);
  if (is_leader()) return;
  queue_bytes_ = 0;
  fail(std::exchange(queue_, {}), false);
}

}  // namespace replicated
