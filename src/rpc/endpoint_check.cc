// EndpointCore::check_invariants() and census(): an endpoint's sessions, lists, flags, counts and buffers against each
// other, between two iterations of its loop. For tests; nothing else calls it.

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "rpc/endpoint_core.h"

namespace tern::rpc {

using session::ClientSession;
using session::ClientSlot;
using session::ServerSlot;

namespace {

/// How often a list names something.
template <class T>
class Names {
 public:
  void add(const T* item) { items_.push_back(item); }
  template <class List>
  void add_all(const List& list) {
    for (size_t i = 0; i < list.size(); i++) add(list[i]);
  }
  void sort() { std::sort(items_.begin(), items_.end()); }
  size_t count(const T* item) const {
    const auto [first, last] = std::equal_range(items_.begin(), items_.end(), item);
    return static_cast<size_t>(last - first);
  }
  const std::vector<const T*>& items() const { return items_; }

 private:
  std::vector<const T*> items_;
};

template <class T, class List>
Names<T> names_of(const List& list) {
  Names<T> names;
  names.add_all(list);
  names.sort();
  return names;
}

/// Every list names sessions that exist, each at most once.
template <class T>
void check_known(const Names<T>& list, const Names<T>& known) {
  for (const T* item : list.items()) {
    CHECK(known.count(item), ==, 1u);
    CHECK(list.count(item), ==, 1u);
  }
}

}  // namespace

void EndpointCore::check_invariants() const {
  check_clients();
  check_servers();
  check_buffers();
  check_shares();
}

void EndpointCore::check_clients() const {
  Names<Client> known;
  size_t live = 0;
  clients_.for_each([&](const Client* client) {
    known.add(client);
    CHECK(client->is_dead, ==, false);
    CHECK(clients_.find(client->session.local_key()) == client, ==, true);
    live++;
  });
  CHECK(live, ==, clients_.size());
  for (const Client* client : dead_clients_) {
    known.add(client);
    CHECK(client->is_dead, ==, true);
  }
  known.sort();
  CHECK(known.items().size(), ==, client_pool_.taken());
  const auto to_send = names_of<Client>(clients_to_send_);
  const auto ticking = names_of<Client>(ticking_);
  const auto opening = names_of<Client>(opening_);
  const auto ending = names_of<Client>(ending_);
  const auto path_probes = names_of<Client>(path_probes_);
  check_known(to_send, known);
  check_known(ticking, known);
  check_known(opening, known);
  check_known(ending, known);
  check_known(path_probes, known);

  size_t resting = 0, departing = 0, slots = 0, blocked = 0;
  for (const Client* client : known.items()) {
    CHECK(to_send.count(client) == 1, ==, client->is_listed_to_send);
    CHECK(ticking.count(client) == 1, ==, client->is_ticking);
    CHECK(opening.count(client) == 1, ==, client->is_opening);
    CHECK(ending.count(client) == 1, ==, client->is_ending);
    CHECK(path_probes.count(client) == 1, ==, client->is_in_path_probes);
    slots += client->slots;
    blocked += client->session.blocked_slots();
    if (client->is_dead) continue;
    client->session.check_invariants();
    resting += client->is_resting;
    departing += client->is_departing;
    if (client->session.state() == ClientSession::State::kOpen) {
      // Whoever waits for an answer is looked at again.
      if (client->session.busy_mask() != 0) CHECK(client->is_ticking || client->is_resting, ==, true);
    } else {
      CHECK(client->opening != nullptr, ==, true);
    }
    if (client->queue != nullptr) {
      CHECK(client->queue->empty(), ==, false);
      CHECK(client->queue->size(), <=, options_.queue_limit);
    }
  }
  CHECK(slots, ==, slots_max_);
  // Nothing that names a session needs memory for it any more.
  CHECK(waiting_for_ticket_.capacity(), >=, waiting_for_ticket_.size() + slots - blocked);
  for (const auto* list : {&ticking_, &opening_, &ending_, &path_probes_, &dead_clients_}) {
    CHECK(list->capacity(), >=, known.items().size());
  }
  CHECK(resting, <=, resting_.size());
  CHECK(departing, <=, departures_.size());
  // Whoever waits for the Nexus's answer is not looked at.
  const auto proves_path = [](const Client* client) { return client->is_accepted; };
  const bool is_due = !ticking_.empty() || std::any_of(opening_.begin(), opening_.end(), proves_path);
  if (is_due) CHECK(next_due_ns_, !=, UINT64_MAX);
  const auto check_due = [this](uint64_t at_ns) {
    const uint64_t due_ns = std::max(at_ns, now_ns_);  // what is late is due now
    CHECK(next_due_ns_, <=, due_ns);
  };
  if (!timers_.empty()) check_due(timers_.front().at_ns);
  if (!departures_.empty()) check_due(departures_.next_ns());
  if (!resting_.empty()) check_due(resting_.next_ns());
}

void EndpointCore::check_servers() const {
  Names<Server> known;
  size_t live = 0, waiting = 0;
  servers_.for_each([&](const Server* server) {
    known.add(server);
    live++;
    CHECK(server->is_dead, ==, false);
    server->session.check_invariants();
    for (uint32_t i = 0; i < server->session.window(); i++) {
      const ServerSlot* slot = server->session.slot(i);
      if (slot == nullptr) continue;
      const auto* incoming = static_cast<const Incoming*>(slot->call);
      // A request that runs is with the application, and what the application has is that slot's.
      CHECK(incoming != nullptr, ==, slot->phase == ServerSlot::Phase::kRunning);
      if (incoming == nullptr) continue;
      CHECK(incoming->server == server && incoming->slot == slot, ==, true);
      CHECK(incoming->mailbox == mailbox_ && incoming != spare_, ==, true);
      CHECK(incoming->is_cancelled.load(std::memory_order_relaxed), ==, false);
      waiting += incoming->waits_in_loop;
    }
  });
  CHECK(live, ==, servers_.size());
  CHECK(live, <=, options_.server_sessions_max);
  waiting_requests_.check_invariants();
  CHECK(waiting, ==, waiting_requests_.size());
  for (const Server* server : dead_servers_) {
    known.add(server);
    CHECK(server->is_dead, ==, true);
  }
  known.sort();
  CHECK(known.items().size(), ==, server_pool_.taken());
  const auto to_send = names_of<Server>(servers_to_send_);
  check_known(to_send, known);
  for (const Server* server : known.items()) CHECK(to_send.count(server) == 1, ==, server->is_listed_to_send);
}

/// Records of peers against sessions, budgets against what is in the slots.
void EndpointCore::check_shares() const {
  peers_.check_invariants();
  size_t claims[kBudgets] = {};
  const auto check_claim = [&](Budget budget, const detail::Buffer* buffer, const Server* server, uint32_t slot,
                               size_t bytes) {
    const Claim* claim = claim_of(buffer);
    CHECK(claim != nullptr, ==, true);
    CHECK(claim->server == server && claim->run == server->run, ==, true);
    CHECK(claim->slot, ==, slot);
    CHECK(claim->bytes, ==, bytes);
    claims[static_cast<size_t>(budget)]++;
  };
  size_t pathless = 0;
  servers_.for_each([&](const Server* server) {
    CHECK(peers_.find_run(server->run->key) == server->run, ==, true);
    CHECK(server->is_pathless, ==, !server->session.is_open());
    pathless += server->is_pathless;
    for (uint32_t i = 0; i < server->session.window(); i++) {
      const ServerSlot* slot = server->session.slot(i);
      if (slot == nullptr) continue;
      if (slot->assembly != nullptr) {
        check_claim(Budget::kArriving, slot->assembly->buffer, server, i, slot->request_bytes);
      }
      if (slot->response != nullptr && slot->response->capacity_bytes > kUncountedBytes) {
        check_claim(Budget::kResponses, slot->response, server, i, slot->response->capacity_bytes);
      }
    }
  });
  CHECK(claims[static_cast<size_t>(Budget::kArriving)], ==, peers_.claims(Budget::kArriving));
  CHECK(claims[static_cast<size_t>(Budget::kResponses)], ==, peers_.claims(Budget::kResponses));
  CHECK(peers_.bytes(Budget::kArriving), <=, options_.receive_budget_bytes);
  for (const Server* server = pathless_.first(); server != nullptr; server = pathless_.after(server)) {
    CHECK(server->is_pathless, ==, true);
    CHECK(next_due_ns_, <=, std::max(server->path_until_ns, now_ns_));
    pathless--;
  }
  CHECK(pathless, ==, 0u);
  clients_.for_each([&](const Client* client) { CHECK(client->run != nullptr, ==, client->is_accepted); });
  size_t servers = 0, clients = 0;
  peers_.for_each_run([&](const Run* run) {
    size_t uses = 0;
    for (const Server* server = run->servers.first(); server != nullptr; server = run->servers.after(server)) {
      CHECK(server->run == run && !server->is_dead, ==, true);
      servers++;
      uses++;
    }
    CHECK(run->server_sessions, ==, uses);
    for (const Client* client = run->clients.first(); client != nullptr; client = run->clients.after(client)) {
      CHECK(client->run == run && !client->is_dead, ==, true);
      clients++;
      uses++;
    }
    CHECK(run->uses, ==, uses + run->abandoned);
    CHECK(run->abandoned, <=, run->host->abandoned);
    CHECK(run->host->server_sessions, <=, servers_.size());
  });
  CHECK(servers, ==, servers_.size());
  CHECK(clients, <=, clients_.size());
}

/// Each message buffer that the endpoint has is in use, of its arenas, and in one place only.
void EndpointCore::check_buffers() const {
  Names<detail::Buffer> owned;
  const auto add = [&](const detail::Buffer* buffer) {
    if (buffer == nullptr) return;
    CHECK(buffer->in_use, ==, 1);
    CHECK(arena_.owns(buffer) || received_.owns(buffer), ==, true);
    owned.add(buffer);
  };
  add(path_buffer_);
  for (const Finished& call : waiting_for_ticket_) {
    add(call.request);
    add(call.response);
  }
  for (const Releases* list : {&releases_, &later_releases_}) {
    for (const detail::Buffer* buffer = list->first; buffer != nullptr; buffer = buffer->next) add(buffer);
  }
  if (releases_.first == nullptr) CHECK(later_releases_.first == nullptr, ==, true);
  const auto add_calls = [&](const Client* client) {
    for (uint64_t mask = client->session.busy_mask(); mask != 0; mask &= mask - 1) {
      const ClientSlot* slot = client->session.slot(static_cast<uint32_t>(std::countr_zero(mask)));
      if (!has_call(*slot)) continue;
      add(slot->request);
      add(slot->response);
    }
    if (client->queue == nullptr) return;
    for (const QueuedCall& call : *client->queue) {
      add(call.request);
      add(call.response);
    }
  };
  clients_.for_each(add_calls);
  for (const Client* client : dead_clients_) add_calls(client);
  servers_.for_each([&](const Server* server) {
    for (uint32_t i = 0; i < server->session.window(); i++) {
      const ServerSlot* slot = server->session.slot(i);
      if (slot == nullptr) continue;
      add(slot->response);
      if (slot->assembly != nullptr) add(slot->assembly->buffer);
      if (const auto* incoming = static_cast<const Incoming*>(slot->call); incoming != nullptr) {
        add(incoming->response);
        add(incoming->copy);
      }
    }
  });
  owned.sort();
  for (const detail::Buffer* buffer : owned.items()) CHECK(owned.count(buffer), ==, 1u);
  const size_t out = arena_.buffers_out() + (&received_ != &arena_ ? received_.buffers_out() : 0);
  CHECK(owned.items().size(), <=, out);
}

EndpointCore::Census EndpointCore::census() const {
  Census census;
  census.client_sessions = clients_.size() + dead_clients_.size();
  census.server_sessions = servers_.size() + dead_servers_.size();
  servers_.for_each([&](const Server* server) {
    for (uint32_t i = 0; i < server->session.window(); i++) {
      const ServerSlot* slot = server->session.slot(i);
      if (slot != nullptr && session::ServerSession::is_busy(*slot)) census.requests_open++;
    }
  });
  census.buffers_out = arena_.buffers_out() + (&received_ != &arena_ ? received_.buffers_out() : 0);
  if (path_buffer_ != nullptr) census.buffers_out--;
  census.arriving_bytes = peers_.bytes(Budget::kArriving);
  census.response_bytes = peers_.bytes(Budget::kResponses);
  census.next_due_ns = next_due_ns_;
  return census;
}

}  // namespace tern::rpc
