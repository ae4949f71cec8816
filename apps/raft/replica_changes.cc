// The requests of administrators: changes of the configuration, and reports about this replica.
#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "replica.h"

namespace replicated {

const raft_server* Replica::member(uint64_t id) const {
  const std::span servers(raft_.configuration.servers, raft_.configuration.n);
  const auto found = std::find_if(servers.begin(), servers.end(), [&](const raft_server& s) { return s.id == id; });
  return found != servers.end() ? &*found : nullptr;
}

void Replica::end_change(ChangeOutcome outcome, std::string_view text) {
  if (!changing_) return;
  tern::Request request = std::move(changing_->request);
  changing_.reset();
  std::string bytes(1, static_cast<char>(outcome));
  if (outcome == ChangeOutcome::kOtherLeader) {
    raft_id leader = 0;
    const char* address = nullptr;
    raft_leader(&raft_, &leader, &address);
    if (leader == raft_.id) leader = 0;
    char id[8];
    const uint64_t number = leader;
    std::memcpy(id, &number, sizeof(id));
    bytes.append(id, sizeof(id)).append(leader != 0 && address != nullptr ? address : "");
  } else {
    bytes.append(text);
  }
  answer(std::move(request), bytes);
}

void Replica::change(tern::Request request) {
  const auto parsed = parse_change(request.bytes());
  if (!parsed) return request.fail(kMalformedMessage);
  if (changing_) {
    const char later = static_cast<char>(ChangeOutcome::kLater);
    return answer(std::move(request), {&later, 1});
  }
  changing_.emplace(Changing{std::move(request), *parsed, std::string(parsed->address)});
  if (changing_->change.cluster != options_.port.cluster) {
    return end_change(ChangeOutcome::kRefused,
                      "this replica belongs to another cluster: give the --cluster of that cluster");
  }
  if (!is_ready() || !problem().empty()) return end_change(ChangeOutcome::kOtherLeader, {});
  if (raft_.configuration_uncommitted_index != 0 || raft_.leader_state.promotee_id != 0) {
    return end_change(ChangeOutcome::kLater, {});
  }
  change_.data = this;
  changing_->change.action == Action::kAdd ? add() : remove();
}

void Replica::add() {
  const Change& change = changing_->change;
  if (const raft_server* server = member(change.id); server != nullptr) {
    if (changing_->address != server->address) {
      return end_change(ChangeOutcome::kRefused, "another replica has this id: give the new one a higher id");
    }
    if (server->role == RAFT_VOTER) return end_change(ChangeOutcome::kDone, {});
    return promote();
  }
  const std::span servers(raft_.configuration.servers, raft_.configuration.n);
  uint64_t highest = machine_.highest_replica();
  for (const raft_server& server : servers) {
    highest = std::max<uint64_t>(highest, server.id);
    if (changing_->address == server.address) {
      return end_change(ChangeOutcome::kRefused,
                        "replica " + std::to_string(server.id) + " is at this address: remove it first");
    }
  }
  if (servers.size() >= kReplicasMax) {
    return end_change(ChangeOutcome::kRefused, "a cluster has at most 7 replicas: remove one first");
  }
  if (change.id <= highest) {
    return end_change(ChangeOutcome::kRefused,
                      "ids up to " + std::to_string(highest) + " have been used: give the new replica a higher one");
  }
  Command command;
  command.operation = Operation::kReserve;
  command.sequence = change.id;
  raft_buffer buffer = {raft_malloc(encoded_bytes(command)), encoded_bytes(command)};
  if (buffer.base == nullptr) return end_change(ChangeOutcome::kLater, {});
  encode(command, {static_cast<std::byte*>(buffer.base), buffer.len});
  enqueue({std::nullopt, 0, &Replica::on_reserved, buffer, 0, {}});
}

/// The new replica's id is reserved, or nothing has happened. libraft is applying entries now.
void Replica::on_reserved(Outcome outcome) {
  if (outcome == Outcome::kNotLeader) return end_change(ChangeOutcome::kOtherLeader, {});
  if (outcome != Outcome::kDone) return end_change(ChangeOutcome::kLater, {});
  const auto status = endpoint_.post([this] {
    if (!changing_) return;
    if (!is_ready()) return end_change(ChangeOutcome::kOtherLeader, {});
    const int error =
        raft_add(&raft_, &change_, changing_->change.id, changing_->address.c_str(),
                 [](raft_change* changed, int result) { static_cast<Replica*>(changed->data)->on_changed(result); });
    if (error != 0) return end_change(ChangeOutcome::kRefused, raft_strerror(error));
    after();
  });
  if (!status.ok()) end_change(ChangeOutcome::kLater, {});
}

void Replica::promote() {
  const int error =
      raft_assign(&raft_, &change_, changing_->change.id, RAFT_VOTER,
                  [](raft_change* changed, int status) { static_cast<Replica*>(changed->data)->on_changed(status); });
  if (error != 0) return end_change(ChangeOutcome::kLater, {});
  after();
}

void Replica::remove() {
  if (member(changing_->change.id) == nullptr) return end_change(ChangeOutcome::kDone, {});
  if (raft_.configuration.n == 1) return end_change(ChangeOutcome::kRefused, "the last replica cannot be removed");
  const int error = raft_remove(&raft_, &change_, changing_->change.id, [](raft_change* changed, int status) {
    static_cast<Replica*>(changed->data)->on_changed(status);
  });
  if (error != 0) return end_change(ChangeOutcome::kLater, {});
  after();
}

/// A step of the change is committed, or will never be. libraft is in the middle of a call.
void Replica::on_changed(int status) {
  if (!changing_) return;
  if (status == RAFT_LEADERSHIPLOST || status == RAFT_NOTLEADER) return end_change(ChangeOutcome::kOtherLeader, {});
  if (status == RAFT_NOCONNECTION) {
    return end_change(ChangeOutcome::kRefused,
                      "the new replica does not follow the log: check that it runs, then add it again");
  }
  if (status != 0) return end_change(ChangeOutcome::kRefused, raft_strerror(status));
  if (changing_->change.action == Action::kRemove) return end_change(ChangeOutcome::kDone, {});
  const tern::Status posted = endpoint_.post([this] {
    if (!changing_) return;
    if (!is_ready()) return end_change(ChangeOutcome::kOtherLeader, {});
    add();  // the next step, or the end of the change
  });
  if (!posted.ok()) end_change(ChangeOutcome::kLater, {});
}

void Replica::tell(tern::Request request) {
  static constexpr const char* kStates[] = {"stopped", "follower", "candidate", "leader"};
  raft_id leader = 0;
  const char* address = nullptr;
  if (is_started_) raft_leader(&raft_, &leader, &address);
  std::string text =
      "{\"id\":" + std::to_string(raft_.id) + ",\"state\":\"" + (is_started_ ? kStates[raft_.state] : "waiting") + "\"";
  const auto add_number = [&text](const char* name, uint64_t value) {
    text.append(",\"").append(name).append("\":").append(std::to_string(value));
  };
  add_number("term", raft_.current_term);
  add_number("leader", leader);
  add_number("last_index", is_started_ ? raft_last_index(&raft_) : 0);
  add_number("commit_index", raft_.commit_index);
  add_number("applied_index", raft_.last_applied);
  add_number("snapshot_index", raft_.log.snapshot.last_index);
  add_number("keys", machine_.keys());
  add_number("clients", machine_.clients());
  const PortCounters& counters = port_.counters();
  add_number("malformed", counters.malformed);
  add_number("refused", counters.refused);
  add_number("snapshots_sent", counters.snapshots_sent);
  add_number("snapshots_received", counters.snapshots_received);
  if (options_.is_measured) {
    add_number("served", served_.count());
    add_number("served_p50_ns", served_.quantile_ns(0.5));
    add_number("served_p99_ns", served_.quantile_ns(0.99));
    if (!request.bytes().empty()) served_.clear();
  }
  text += ",\"replicas\":[";
  static constexpr const char* kRoles[] = {"standby", "voter", "spare"};
  for (unsigned i = 0; i < raft_.configuration.n; i++) {
    const raft_server& server = raft_.configuration.servers[i];
    text.append(i > 0 ? "," : "").append("{\"id\":").append(std::to_string(server.id));
    text.append(",\"role\":\"").append(kRoles[server.role]).append("\"}");
  }
  text += "]}";
  answer(std::move(request), text);
}

}  // namespace replicated
