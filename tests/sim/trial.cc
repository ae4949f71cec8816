#include "sim/trial.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <functional>

#include "rpc/endpoint_core.h"
#include "transport/sim/sim_transport.h"

namespace sim_test {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using tern::Code;
using tern::Duration;
using tern::rpc::EndpointCore;
using tern::session::ClientSession;
using tern::session::ServerSession;
using tern::session::ServerSlot;

int64_t us(Duration duration) { return std::chrono::duration_cast<microseconds>(duration).count(); }

/// A client and a server on two hosts, with the steps of which trials consist.
class Scene {
 public:
  Scene(World& world, Random& random) : world_(world), random_(random) {}

  void run();

 private:
  bool cast();
  void pace();
  void frame_limit();
  void pauses();
  void starved();
  void lost_report();
  void busy_slot();
  void nat();

  size_t open(const tern::SessionOptions& options = {.window = 8});
  Call* call(size_t link, size_t request_bytes, size_t response_bytes, Duration handler_time = {});
  /// Waits at most `limit` for the call's end, and returns its status.
  Code end_of(Call* call, Duration limit);
  bool answers(size_t link);
  bool wait(Duration limit, const std::function<bool()>& done) { return world_.simulation->run_until(done, limit); }
  void wait(Duration time) { world_.simulation->run_for(time); }
  tern::sim::Host& client_host() { return world_.simulation->host(client_->place().host); }
  tern::sim::Host& server_host() { return world_.simulation->host(server_.host); }
  Duration client_timeout() const { return world_.plan.hosts[client_->place().host].liveness_timeout; }
  Duration server_timeout() const { return world_.plan.hosts[server_.host].liveness_timeout; }
  Duration timeout() const { return std::min(client_timeout(), server_timeout()); }
  uint64_t packets_sent() const;
  uint64_t packets_dropped() const;
  size_t responses_kept(size_t link) const;
  tern::sim::Node switch_of(uint32_t host) const;

  World& world_;
  Random& random_;
  Agent* client_ = nullptr;
  Agent* server_agent_ = nullptr;
  Place server_;
};

bool Scene::cast() {
  const auto hosts = static_cast<uint32_t>(world_.machines.size());
  if (hosts < 2) return false;
  const auto from = static_cast<uint32_t>(random_.below(hosts));
  const auto to = static_cast<uint32_t>((from + random_.between(1, hosts - 1)) % hosts);
  const auto any = [&](uint32_t host) { return world_.machines[host]->agents()[0].get(); };
  client_ = any(from);
  server_agent_ = any(to);
  server_ = server_agent_->place();
  return true;
}

void Scene::run() {
  const Plan& plan = world_.plan;
  // Where something is too small, calls may be refused.
  if (plan.kind == Class::kTight || plan.has_limited_memory || plan.has_limited_sessions || !cast()) return;
  switch (plan.trial) {
    case Trial::kNone:
      return;
    case Trial::kPace:
      return pace();
    case Trial::kFrameLimit:
      return frame_limit();
    case Trial::kPauses:
      return pauses();
    case Trial::kStarved:
      return starved();
    case Trial::kLostReport:
      return lost_report();
    case Trial::kBusySlot:
      return busy_slot();
    case Trial::kNat:
      return nat();
  }
}

size_t Scene::open(const tern::SessionOptions& options) {
  tern::SessionOptions longer = options;
  longer.connect_timeout = seconds(2);
  const size_t link = client_->open(server_, longer);
  if (!answers(link)) world_.oracle.broken("a new session in a healthy network does not answer");
  return link;
}

Call* Scene::call(size_t link, size_t request_bytes, size_t response_bytes, Duration handler_time) {
  return client_->call(link, request_bytes, response_bytes, handler_time);
}

Code Scene::end_of(Call* call, Duration limit) {
  if (call == nullptr) return Code::kSessionReset;
  if (!wait(limit, [call] { return call->has_ended; })) {
    world_.oracle.broken(*call, "it has not ended within %" PRId64 " us", us(limit));
  }
  return call->status;
}

bool Scene::answers(size_t link) { return end_of(call(link, 32, 32), seconds(60)) == Code::kOk; }

uint64_t Scene::packets_sent() const {
  uint64_t packets = 0;
  for (const Machine* machine : world_.machines) {
    for (const auto& agent : machine->agents()) packets += agent->rpc().counters().packets_sent;
  }
  return packets;
}

uint64_t Scene::packets_dropped() const {
  const auto& counters = world_.simulation->counters();
  return counters.dropped_buffer_full + counters.dropped_receive_full + counters.dropped_fault;
}

/// Responses of this session that the server keeps because the client has not reported them.
size_t Scene::responses_kept(size_t link) const {
  const ClientSession* client = client_->session_of(link);
  if (client == nullptr) return 0;
  size_t kept = 0;
  EndpointCore::of(server_agent_->rpc()).for_each_server_session([&](const ServerSession& session) {
    if (session.local_key() != client->remote_key()) return;
    for (uint32_t i = 0; i < session.window(); i++) {
      const ServerSlot* slot = session.slot(i);
      if (slot != nullptr && slot->phase == ServerSlot::Phase::kResponded && slot->response_bytes > 1024) kept++;
    }
  });
  return kept;
}

tern::sim::Node Scene::switch_of(uint32_t host) const {
  const tern::sim::Node node{tern::sim::Node::Kind::kHost, host};
  for (const auto& link : world_.plan.topology.links()) {
    if (link.a == node) return link.b;
    if (link.b == node) return link.a;
  }
  return {};
}

/// A paced session reaches its rate within 5% if neither credits nor queues nor the link limit it.
void Scene::pace() {
  const size_t measured = open();
  if (end_of(call(measured, 64'000, 32), seconds(60)) != Code::kOk) return;
  const ClientSession* session = client_->session_of(measured);
  if (session == nullptr) return;
  const double packet = session->payload_bytes_max() + 24;  // with the header, as the pacer counts
  const double credits = std::min<double>(session->credit_limit(), 32);
  const Duration turn = random_.chance(200) ? nanoseconds(20) : random_.duration(microseconds(2), microseconds(100));
  const Duration late = Duration(static_cast<int64_t>(session->rtt().srtt_ns())) + 3 * turn + microseconds(100);
  const double per_packet_s =
      static_cast<double>(world_.plan.hosts[server_.host].cost.packet_received.count() + 1) / 1e9;
  const double late_s = static_cast<double>(late.count()) / 1e9;
  const double rate = std::min({0.5 * static_cast<double>(world_.plan.slowest_link_bits_per_sec) / 8,
                                0.25 * credits * packet / late_s, 0.25 * packet / per_packet_s, 5e8});
  if (rate < 2e6) return;
  const double packets = std::clamp(std::ceil(rate * 80 * late_s / packet), 200.0, 3000.0);
  const size_t paced = open({.window = 8,
                             .rate_bytes_per_sec = static_cast<uint64_t>(rate),
                             .congestion_control = tern::CongestionControl::kNone});
  client_host().set_cost({turn, nanoseconds(20), nanoseconds(20)});
  wait(milliseconds(1));
  const uint64_t full_before = client_->rpc().counters().transport_full, dropped_before = packets_dropped();
  constexpr size_t kCalls = 4;
  const auto bytes = static_cast<size_t>(std::ceil(packets / kCalls)) * session->payload_bytes_max();
  const double needed_s = static_cast<double>(kCalls * bytes) / session->payload_bytes_max() * packet / rate;
  const Duration begin = world_.simulation->now();
  Call* calls[kCalls];
  for (Call*& each : calls) each = call(paced, bytes, 32);
  bool is_limited = false;
  const auto are_over = [&] {
    const ClientSession* its = client_->session_of(paced);
    is_limited = is_limited || its == nullptr || its->credits_in_flight() >= its->credit_limit();
    return std::all_of(std::begin(calls), std::end(calls), [](Call* one) { return one == nullptr || one->has_ended; });
  };
  if (!wait(seconds(60), are_over)) world_.oracle.broken("calls on a paced session have not ended in a minute");
  const double took_s = static_cast<double>((world_.simulation->now() - begin).count()) / 1e9;
  client_host().set_cost(world_.plan.hosts[client_->place().host].cost);
  const uint64_t full = client_->rpc().counters().transport_full - full_before;
  if (is_limited || full != 0 || packets_dropped() != dropped_before) return;
  // The last packets are answered after they have left.
  const double longest_s = needed_s / 0.95 + late_s;
  const double shortest_s = 0.95 * needed_s - 5 * packet / rate - 1e-4;
  if (took_s > longest_s || took_s < shortest_s) {
    world_.oracle.broken(Rule::kPace,
                         "a rate of %.1f MB/s with turns of %.3f us: %zu packets took %.3f ms, and should take %.3f ms",
                         rate / 1e6, static_cast<double>(turn.count()) / 1e3, static_cast<size_t>(packets),
                         1e3 * took_s, 1e3 * needed_s);
  }
}

/// Full packets stop passing: the call ends with an error that says so, and the client does not flood the path with
/// attempts.
void Scene::frame_limit() {
  const size_t link = open();
  if (!answers(link)) return;
  const size_t payload = client_->session_of(link)->payload_bytes_max();
  const size_t headers = world_.plan.simulation.frame_bytes - payload;
  const bool are_requests_lost = random_.chance(500);
  const uint32_t host = client_->place().host;
  const tern::sim::Node at{tern::sim::Node::Kind::kHost, host}, to = switch_of(host);
  const size_t limit = headers + static_cast<size_t>(random_.between(100, payload - 1));
  const auto check = [this](tern::Status status) {
    if (!status.ok()) world_.oracle.broken("a trial: %s", std::string(status.message()).c_str());
  };
  check(are_requests_lost ? world_.simulation->set_frame_limit(at, to, limit)
                          : world_.simulation->set_frame_limit(to, at, limit));
  constexpr double kPackets = 3;
  const size_t bytes = static_cast<size_t>(kPackets) * payload;
  const uint64_t before = packets_sent();
  const Duration begin = world_.simulation->now();
  world_.troubles.on_host(host, begin + 8 * client_timeout() + seconds(2));
  Call* const lost = are_requests_lost ? call(link, bytes, 32) : call(link, 32, bytes);
  const bool has_ended = wait(8 * client_timeout() + seconds(2), [lost] { return lost == nullptr || lost->has_ended; });
  const double waited_ns = static_cast<double>((world_.simulation->now() - begin).count());
  const double packets = static_cast<double>(packets_sent() - before);
  // The interval of attempts doubles up to a quarter of the timeout, and that of probes grows by a quarter of the time
  // waited. Each is answered, and may cause retransmissions of the packets in flight.
  const double rto_ns = tern::transport::SimImpl::kTraits.rto_ns_min;
  const double attempts =
      2 + std::log(waited_ns / rto_ns) / std::log(1.25) + 4 * waited_ns / static_cast<double>(client_timeout().count());
  const double allowed = 2 * attempts * (1 + kPackets);
  if (packets > allowed) {
    world_.oracle.broken(Rule::kPackets, "full packets do not pass: %.0f packets in %.3f ms, of at most %.0f", packets,
                         waited_ns / 1e6, allowed);
  }
  if (!has_ended) {
    world_.oracle.broken(Rule::kDeaths, "full packets do not pass, and a call has not ended after %.3f ms",
                         waited_ns / 1e6);
  }
  check(world_.simulation->set_frame_limit(at, to, SIZE_MAX));
  check(world_.simulation->set_frame_limit(to, at, SIZE_MAX));
  if (lost != nullptr && !has_ended) (void)end_of(lost, 8 * client_timeout() + seconds(60));
}

/// The client's host pauses, and the server's host right after it. Neither pause takes the other's timeout, but both
/// together take nearly all of it.
void Scene::pauses() {
  const size_t idle = open(), waiting = open();
  const Duration pause = timeout() * 48 / 100;
  if (!world_.plan.checks(Rule::kDeaths)) {
    world_.troubles.on_host(client_->place().host, world_.simulation->now() + 4 * timeout());
    world_.troubles.on_host(server_.host, world_.simulation->now() + 4 * timeout());
  }
  Call* const held = call(waiting, 32, 32, 3 * timeout());
  wait(timeout() * random_.between(10, 100) / 100);
  client_host().pause(pause);
  // The server's pause begins a little before the client's host is awake, so that no sign of life comes in between.
  wait(pause - microseconds(random_.between(10, 1000)));
  server_host().pause(pause);
  wait(pause + 2 * timeout());
  if (client_->session_of(idle) == nullptr || client_->session_of(waiting) == nullptr) {
    world_.oracle.broken(Rule::kDeaths, "host %u paused for %" PRId64 " us, host %u thereafter, and a session is gone",
                         client_->place().host, us(pause), server_.host);
    world_.troubles.on_host(server_.host, world_.simulation->now());
    return;
  }
  if (!answers(idle)) world_.oracle.broken(Rule::kDeaths, "a session does not answer after two pauses");
  if (end_of(held, seconds(60)) != Code::kOk) {
    world_.oracle.broken(Rule::kDeaths, "a call that waited during two pauses was not answered");
  }
}

/// A host whose management thread gets no CPU does not count as dead while its endpoints answer.
void Scene::starved() {
  const size_t link = open();
  const Duration time = 3 * timeout();
  const bool is_server = random_.chance(500);
  tern::sim::Host& host = is_server ? server_host() : client_host();
  tern::sim::TimeSlices slices;
  slices.run = microseconds(1);
  slices.wait = time;
  slices.what = tern::sim::TimeSlices::What::kManagement;
  // The host's other sessions may be idle, and idle sessions give no sign of life.
  world_.troubles.on_silence(host.index(), world_.simulation->now(), world_.simulation->now() + time);
  host.set_time_slices(slices);
  const Duration gap = timeout() / 16;
  for (Duration waited{}; waited < time; waited += gap) {
    Call* const each = call(link, 32, 32);
    wait(gap);
    // The host may still be in a pause of the workload's time slices, which delays an answer and ends no session.
    if (each != nullptr && end_of(each, timeout()) == Code::kOk) continue;
    world_.oracle.broken(Rule::kDeaths,
                         "the management of host %u had no CPU for %" PRId64
                         " us, while its endpoints answered, and a session ended",
                         host.index(), us(waited));
    break;
  }
  host.set_time_slices({});
  wait(timeout());
}

/// The server frees a response although the only report of its arrival was lost.
void Scene::lost_report() {
  const Duration delay = client_->plan().rpc.report_delay;
  if (2 * delay >= timeout() / 4) return;  // such a delay means an absence of the client and not a lost report
  const size_t link = open();
  if (end_of(call(link, 32, 4000), seconds(60)) != Code::kOk) return;
  const uint32_t host = client_->place().host;
  const tern::sim::Node at{tern::sim::Node::Kind::kHost, host};
  if (!world_.simulation->set_faults(at, switch_of(host), {.drop = 1}).ok()) return;
  wait(delay + delay / 2 + microseconds(500));
  (void)world_.simulation->set_faults(at, switch_of(host), {});
  wait(10 * delay + 4 * client_timeout() + seconds(2));
  if (const size_t kept = responses_kept(link); kept != 0) {
    world_.oracle.broken(Rule::kHeld, "a report was lost, and host %u/%u still has %zu responses of an idle session",
                         server_.host, server_.endpoint, kept);
  }
}

/// The server frees a response although another slot of its session always has a call.
void Scene::busy_slot() {
  const Duration delay = client_->plan().rpc.report_delay;
  const size_t link = open();
  const Duration time = 10 * delay + milliseconds(100);
  Call* const busy = call(link, 32, 32, time);
  wait(milliseconds(1));
  if (end_of(call(link, 32, 4000), seconds(60)) != Code::kOk) return;
  wait(time - delay - milliseconds(20));
  if (const size_t kept = responses_kept(link); kept != 0 && busy != nullptr && !busy->has_ended) {
    world_.oracle.broken(Rule::kHeld, "host %u/%u still has %zu responses of a session with one busy slot",
                         server_.host, server_.endpoint, kept);
  }
  (void)end_of(busy, seconds(60));
}

/// A client behind a NAT: sessions open and calls are answered. A flow that the NAT forgets, during a call or without
/// one, ends no session.
void Scene::nat() {
  wait(seconds(1));  // this host's own clients report their responses now, because they cannot do so later
  world_.simulation->set_nat(client_->place().host);
  const size_t link = open();
  if (!answers(link)) return;
  const Duration bound = 8 * timeout() + seconds(2);
  for (int i = 0; i < 4; i++) {
    wait(
        seconds(5));  // a server answers three short probes in this time (clause 7.7.6), some of them for the handshake
    Call* const bulk = call(link, random_.magnitude(32, 64 << 10), random_.magnitude(32, 64 << 10));
    Call* const slow = call(link, 32, 32, random_.duration(microseconds(10), timeout()));
    wait(random_.duration(microseconds(1), timeout() / 4));
    world_.simulation->forget_flows(client_->place().host);
    if (random_.chance(300)) wait(2 * timeout());
    Call* const next = call(link, 32, 32);
    for (Call* each : {bulk, slow, next}) {
      if (end_of(each, bound) == Code::kOk) continue;
      world_.oracle.broken(Rule::kDeaths, "the NAT of host %u has forgotten its flows, and a call was not answered",
                           client_->place().host);
      return;
    }
  }
}

}  // namespace

void run_trial(World& world, Random& random) { Scene(world, random).run(); }

}  // namespace sim_test
