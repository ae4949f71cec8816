// Several management machines, their endpoints and a bad network, in virtual time from one seed. For tests.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "nexus/management.h"

namespace tern::nexus::test {

using std::chrono::milliseconds;

/// One address of a server.
inline std::array<AddressText, 1> at(std::string_view address) { return {AddressText(address)}; }

/// Faults of the network for each datagram.
struct Weather {
  double drop = 0, duplicate = 0;
  Duration delay_min = std::chrono::microseconds(20), delay_max = std::chrono::microseconds(50);
};

/// An endpoint that behaves as the rpc layer: it handles its notices in order, some time after they arrived.
struct ModelEndpoint {
  struct Held {
    uint32_t remote_key;
    PeerNexus peer;
  };
  EndpointName name;
  uint64_t iteration = 0;
  Duration lag_max{0};                                 ///< longest time until it handles a notice
  double refuses = 0;                                  ///< share of connect requests that it refuses
  wire::Refusal refusal = wire::Refusal::kNoCapacity;  ///< the reason of these refusals
  std::deque<std::pair<Duration, ControlEvent>> inbox;
  uint32_t next_key = 1;
  std::set<uint32_t> connecting;
  std::map<uint32_t, Held> client, server;
  std::vector<ControlEvent> log;  ///< all handled events
  std::set<uint64_t> gone;        ///< boot ids of peers that are gone
  size_t requests_seen = 0;
  bool hears_data = false;  ///< receives data of all peers all the time
  Duration away_until{0};   ///< until then its thread is in a handler or does not run its loop
  bool moves = false;       ///< offers another address with each session
};

struct Host {
  std::string address;
  /// The address to which a NAT has moved the host, if it is not empty. Datagrams to `address` are then lost.
  std::string moved_to;
  const std::string& seen_at() const { return moved_to.empty() ? address : moved_to; }
  bool is_up = true;
  std::unique_ptr<Management> machine;
  std::map<uint16_t, ModelEndpoint> endpoints;
  size_t datagrams_sent = 0;
  size_t datagrams_at_once = 0;  ///< most that waited in the machine

  // The management thread and its socket, in worlds where the thread needs time.
  Duration datagram_time{0};  ///< time to receive or send a datagram
  Duration busy_until{0};
  struct Arrived {
    std::string from;
    std::vector<std::byte> bytes;
  };
  std::deque<Arrived> socket;
  static constexpr size_t kSocketDatagrams = 256;  ///< a socket's capacity with the default net.core.rmem_max
  size_t lost_at_socket = 0;

  // The thread does not run before `away_until`, and it runs only for `slice` of each `slice_period`.
  Duration away_until{0};
  Duration slice_period{0}, slice{0};
  /// The first time from `at` on at which the thread runs.
  Duration runs_at(Duration at) const {
    at = std::max(at, away_until);
    if (slice_period == Duration(0)) return at;
    const Duration into = at % slice_period;
    return into < slice ? at : at - into + slice_period;
  }
  bool runs(Duration at) const { return runs_at(at) == at; }
};

class World {
 public:
  World(uint64_t seed, size_t hosts, ManagementOptions options = {}) : random_(seed), options_(options) {
    hosts_.resize(hosts);
    for (size_t i = 0; i < hosts; i++) {
      hosts_[i].address = "10.0.0." + std::to_string(i + 1) + ":31850";
      boot(i);
    }
  }

  Host& host(size_t i) { return hosts_[i]; }
  ModelEndpoint& endpoint(size_t host, uint16_t id) { return hosts_[host].endpoints.at(id); }
  Duration now() const { return now_; }
  std::mt19937_64& random() { return random_; }
  bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }

  Weather weather;
  std::set<std::pair<size_t, size_t>> cut;  ///< pairs (from, to) whose datagrams are lost
  std::set<wire::ManagementKind> drops;     ///< kinds of messages that are lost
  /// Bytes of injected datagrams and of those sent by hosts, by address.
  std::map<std::string, size_t> bytes_from, bytes_to;
  /// Receives the datagrams to addresses without a host.
  std::function<void(const std::string& to, std::span<const std::byte> bytes)> on_stranger;

  /// Called around each call of a machine, for tests that make its allocations fail.
  std::function<void()> enter, leave;

  void boot(size_t i) {
    Host& h = hosts_[i];
    h.endpoints.clear();
    h.is_up = true;
    h.machine = std::make_unique<Management>(
        options_, Management::Hooks{[this] { return random_(); },
                                    [this, i](EndpointName name) { return hosts_[i].endpoints.at(name.id).iteration; },
                                    [this, i] {
                                      if (leave) leave();
                                      send_datagrams(i);
                                      if (enter) enter();
                                    }});
  }
  void crash(size_t i) {
    hosts_[i].is_up = false;
    hosts_[i].endpoints.clear();
  }
  void add_endpoint(size_t i, uint16_t id) {
    ModelEndpoint e;
    e.name = {id, ++registrations_};
    until_done([&] { return hosts_[i].machine->add_endpoint(e.name, "udp"); });
    hosts_[i].endpoints.emplace(id, std::move(e));
  }
  void remove_endpoint(size_t i, uint16_t id) {
    inside([&] { hosts_[i].machine->remove_endpoint(endpoint(i, id).name, now_); });
    hosts_[i].endpoints.erase(id);
    pump(i);
  }

  SessionTerms terms(uint32_t key) {
    SessionTerms t;
    t.transport = "udp";
    t.address.size = 6;
    t.session_key = key;
    t.payload_bytes_max = 1376;
    t.window = 8;
    t.credits = 32;
    return t;
  }
  uint32_t connect(size_t i, uint16_t from, size_t to, uint16_t peer_endpoint,
                   Duration timeout = std::chrono::seconds(2)) {
    ModelEndpoint& e = endpoint(i, from);
    const uint32_t key = e.next_key++;
    e.connecting.insert(key);
    const SessionTerms wish = terms(key);
    const auto address = at(hosts_[to].address);
    until_done([&] { return hosts_[i].machine->connect(e.name, address, peer_endpoint, wish, timeout, now_); });
    pump(i);
    return key;
  }
  /// Connects to the first of these addresses that answers.
  uint32_t connect(size_t i, uint16_t from, std::vector<AddressText> addresses, uint16_t peer_endpoint,
                   Duration timeout = std::chrono::seconds(2)) {
    ModelEndpoint& e = endpoint(i, from);
    const uint32_t key = e.next_key++;
    e.connecting.insert(key);
    EXPECT_TRUE(hosts_[i].machine->connect(e.name, addresses, peer_endpoint, terms(key), timeout, now_));
    pump(i);
    return key;
  }
  void hint(size_t i, const std::string& to, Unreachable why) {
    inside([&] { hosts_[i].machine->on_unreachable(to, why, now_); });
    pump(i);
  }
  void disconnect(size_t i, uint16_t id, uint32_t key, bool is_client) {
    ModelEndpoint& e = endpoint(i, id);
    e.connecting.erase(is_client ? key : 0);
    (is_client ? e.client : e.server).erase(key);
    inside([&] { hosts_[i].machine->disconnect(e.name, key, is_client, now_); });
    pump(i);
  }

  /// Runs all events up to `until`.
  void run_until(Duration until) {
    while (true) {
      Duration at = until;
      size_t actor = SIZE_MAX;
      uint32_t inbox_of = 0;
      bool is_packet = false;
      if (!packets_.empty() && packets_.begin()->first < at) {
        at = packets_.begin()->first;
        is_packet = true;
      }
      for (size_t i = 0; i < hosts_.size(); i++) {
        if (!hosts_[i].is_up) continue;
        const Duration turn_at = hosts_[i].runs_at(std::max(hosts_[i].busy_until, now_));
        if (!hosts_[i].socket.empty() && turn_at < at) {
          at = turn_at;
          actor = i;
          is_packet = false;
          inbox_of = kSocket;
        }
        const Duration wanted_at = hosts_[i].machine->next_deadline();
        const Duration deadline =
            wanted_at == Duration::max() ? wanted_at : std::max(turn_at, hosts_[i].runs_at(wanted_at));
        if (deadline < at) {
          at = deadline;
          actor = i;
          is_packet = false;
          inbox_of = 0;
        }
        for (auto& [id, e] : hosts_[i].endpoints) {
          if (e.inbox.empty() || std::max({e.inbox.front().first, now_, e.away_until}) >= at) continue;
          at = std::max({e.inbox.front().first, now_, e.away_until});
          actor = i;
          is_packet = false;
          inbox_of = id;
        }
      }
      now_ = std::max(now_, at);
      if (is_packet) {
        deliver();
      } else if (actor == SIZE_MAX) {
        return;
      } else if (inbox_of == kSocket) {
        turn(actor);
      } else if (inbox_of != 0) {
        handle(actor, static_cast<uint16_t>(inbox_of));
      } else {
        inside([&] { hosts_[actor].machine->on_time(now_); });
        pump(actor);
      }
    }
  }
  void run_for(Duration duration) { run_until(now_ + duration); }

  /// Injects a datagram as if `from` had sent it.
  void inject(const std::string& from, size_t to, std::vector<std::byte> bytes) {
    bytes_from[from] += bytes.size();
    packets_.emplace(now_, Packet{from, to, std::move(bytes)});
  }
  std::vector<std::byte> last_of_kind(wire::ManagementKind kind) const {
    const auto found = last_sent_.find(kind);
    return found == last_sent_.end() ? std::vector<std::byte>() : found->second;
  }
  size_t sent_of_kind(wire::ManagementKind kind) const {
    const auto found = sent_.find(kind);
    return found == sent_.end() ? 0 : found->second;
  }

  /// Checks that every session has both ends, that endpoints and machines agree, and that no operation is waiting.
  void expect_settled() {
    for (size_t i = 0; i < hosts_.size(); i++) {
      if (!hosts_[i].is_up) continue;
      hosts_[i].machine->check_invariants();
      size_t held = 0;
      for (auto& [id, e] : hosts_[i].endpoints) {
        held += e.client.size() + e.server.size();
        EXPECT_TRUE(e.connecting.empty()) << "host " << i << " endpoint " << id;
        EXPECT_TRUE(e.inbox.empty());
        for (auto& [key, session] : e.client)
          EXPECT_TRUE(has_end(i, key, session, true)) << "host " << i << " client " << key;
        for (auto& [key, session] : e.server)
          EXPECT_TRUE(has_end(i, key, session, false)) << "host " << i << " server " << key;
      }
      EXPECT_EQ(held, hosts_[i].machine->census().sessions_established) << "host " << i;
    }
  }

 private:
  struct Packet {
    std::string from;
    size_t to;
    std::vector<std::byte> bytes;
  };

  static constexpr uint32_t kSocket = UINT32_MAX;

  template <class F>
  void inside(F&& call) {
    if (enter) enter();
    call();
    if (leave) leave();
  }
  /// Repeats a call that found no memory, as NexusCore does.
  template <class F>
  void until_done(F&& call) {
    bool is_done = false;
    for (int i = 0; i < 1000 && !is_done; i++) inside([&] { is_done = call(); });
    ASSERT_TRUE(is_done);
  }

  size_t index_of(const std::string& address) const {
    for (size_t i = 0; i < hosts_.size(); i++) {
      if (hosts_[i].seen_at() == address) return i;
    }
    return SIZE_MAX;
  }

  bool has_end(size_t i, uint32_t key, const ModelEndpoint::Held& session, bool is_client) {
    const size_t other = index_of(session.peer.address);
    if (other == SIZE_MAX || !hosts_[other].is_up) return false;
    for (auto& [id, e] : hosts_[other].endpoints) {
      auto& sessions = is_client ? e.server : e.client;
      const auto found = sessions.find(session.remote_key);
      if (found != sessions.end() && found->second.remote_key == key &&
          found->second.peer.address == hosts_[i].address) {
        return true;
      }
    }
    return false;
  }

  void send_datagrams(size_t i) {
    Host& h = hosts_[i];
    h.datagrams_at_once = std::max(h.datagrams_at_once, h.machine->datagrams().size());
    for (auto& datagram : h.machine->datagrams()) {
      h.datagrams_sent++;
      const auto kind = static_cast<wire::ManagementKind>(datagram.content.view()[5]);
      last_sent_[kind] = {datagram.content.view().begin(), datagram.content.view().end()};
      sent_[kind]++;
      bytes_to[datagram.to] += datagram.content.size;
      h.busy_until = std::max(h.busy_until, now_) + h.datagram_time;
      const size_t to = index_of(datagram.to);
      if (to == SIZE_MAX && on_stranger) on_stranger(datagram.to, datagram.content.view());
      if (to == SIZE_MAX || cut.contains({i, to}) || drops.contains(kind)) continue;
      const int copies = chance(weather.drop) ? 0 : chance(weather.duplicate) ? 2 : 1;
      for (int copy = 0; copy < copies; copy++) {
        const Duration delay(
            std::uniform_int_distribution<int64_t>(weather.delay_min.count(), weather.delay_max.count())(random_));
        packets_.emplace(now_ + delay, Packet{h.seen_at(), to, last_sent_[kind]});
      }
    }
    h.machine->datagrams().clear();
  }
  void pump(size_t i) {
    Host& h = hosts_[i];
    send_datagrams(i);
    for (auto& notice : h.machine->notices()) {
      ModelEndpoint& e = h.endpoints.at(notice.to.id);
      ASSERT_EQ(e.name, notice.to);
      const Duration lag(
          e.lag_max.count() == 0 ? 0 : static_cast<int64_t>(random_() % static_cast<uint64_t>(e.lag_max.count())));
      const Duration at = e.inbox.empty() ? now_ + lag : std::max(e.inbox.back().first, now_ + lag);
      e.inbox.emplace_back(at, std::move(notice.event));
    }
    h.machine->notices().clear();
  }

  void deliver() {
    const Packet packet = std::move(packets_.begin()->second);
    packets_.erase(packets_.begin());
    Host& host = hosts_[packet.to];
    if (!host.is_up) return;
    if (host.datagram_time > Duration(0) || !host.runs(now_)) {
      if (host.socket.size() < Host::kSocketDatagrams) {
        host.socket.push_back({packet.from, packet.bytes});
      } else {
        host.lost_at_socket++;
      }
      return;
    }
    inside([&] { host.machine->on_datagram(packet.from, packet.bytes, now_); });
    pump(packet.to);
  }

  /// Does the work of the channel's thread: it handles the arrived datagrams, and then the timers. A thread that was
  /// descheduled may have been stopped between the two.
  void turn(size_t i) {
    Host& h = hosts_[i];
    const bool was_away = h.away_until != Duration(0) || h.slice_period != Duration(0);
    if (was_away && chance(0.5)) {
      h.machine->on_time(now_);
      pump(i);
    }
    for (const Host::Arrived& arrived : std::exchange(h.socket, {})) {
      h.busy_until = std::max(h.busy_until, now_) + h.datagram_time;
      h.machine->on_datagram(arrived.from, arrived.bytes, now_);
      pump(i);
    }
    h.machine->on_time(now_);
    pump(i);
  }

  void handle(size_t i, uint16_t id) {
    ModelEndpoint& e = endpoint(i, id);
    ControlEvent event = std::move(e.inbox.front().second);
    e.inbox.pop_front();
    e.log.push_back(event);
    e.log.back().life.reset();  // an event with a life would count as a waiting question
    switch (event.kind) {
      case ControlEvent::Kind::kConnectRequest: {
        e.requests_seen++;
        if (chance(e.refuses)) {
          until_done([&] { return hosts_[i].machine->answer_connect(e.name, event.token, e.refusal, {}, now_); });
        } else {
          const uint32_t key = e.next_key++;
          e.server[key] = {event.terms.session_key, event.peer};
          SessionTerms offer = terms(key);
          offer.first_number = key & 0xffffff;
          offer.path_token = key >> 1;
          if (e.moves) std::memcpy(offer.address.bytes.data(), &key, sizeof(key));
          until_done([&] { return hosts_[i].machine->answer_connect(e.name, event.token, {}, offer, now_); });
        }
        pump(i);
        break;
      }
      case ControlEvent::Kind::kConnectResult:
        if (e.connecting.erase(event.local_key) == 0) break;  // forgotten while the event was queued
        if (event.status.ok()) e.client[event.local_key] = {event.terms.session_key, event.peer};
        break;
      case ControlEvent::Kind::kDisconnected:
        (event.is_client_side ? e.client : e.server).erase(event.local_key);
        break;
      case ControlEvent::Kind::kPeerGone:
        EXPECT_TRUE(e.gone.insert(event.peer.boot_id).second) << "kPeerGone twice for one run";
        std::erase_if(e.client, [&](auto& session) { return session.second.peer.boot_id == event.peer.boot_id; });
        std::erase_if(e.server, [&](auto& session) { return session.second.peer.boot_id == event.peer.boot_id; });
        break;
      case ControlEvent::Kind::kAskLife:
        if (e.hears_data) EndpointPort::note_life(event, static_cast<uint64_t>(now_.count()));
        break;
      case ControlEvent::Kind::kLiveness:
        if (event.liveness == PeerLiveness::kNoSession) e.client.erase(event.local_key);
        break;
    }
  }

  std::mt19937_64 random_;
  const ManagementOptions options_;
  std::vector<Host> hosts_;
  Duration now_ = std::chrono::seconds(1);
  uint64_t registrations_ = 0;
  std::multimap<Duration, Packet> packets_;
  std::map<wire::ManagementKind, std::vector<std::byte>> last_sent_;
  std::map<wire::ManagementKind, size_t> sent_;
};

}  // namespace tern::nexus::test
