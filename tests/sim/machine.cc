#include "sim/machine.h"

#include <algorithm>
#include <cstring>

#include "e2e/traffic.h"
#include "rpc/endpoint_core.h"

namespace sim_test {

using tern::Code;
using tern::Completion;
using tern::Duration;
using tern::MsgBuf;
using tern::Request;
using tern::Session;
using tern::Status;

namespace {

constexpr size_t kPoolMax = 24;
constexpr size_t kTinyTypes = kNameBytes;
constexpr Duration kLookGap = std::chrono::milliseconds(1);

}  // namespace

// ---- RoundTrips ----

RoundTrips::RoundTrips(const tern::sim::Topology& topology)
    : to_switch_ns_(topology.hosts()), switch_of_(topology.hosts()) {
  constexpr int64_t kFar = INT64_MAX / 4;
  const size_t switches = topology.switches().size();
  between_ns_.assign(switches, std::vector<int64_t>(switches, kFar));
  for (size_t i = 0; i < switches; i++) {
    between_ns_[i][i] = 0;
    latency_ns_.push_back(topology.switches()[i].latency.count());
  }
  for (const auto& link : topology.links()) {
    const int64_t delay_ns = link.options.delay.count();
    if (link.a.kind == link.b.kind) {
      auto& there = between_ns_[link.a.index][link.b.index];
      auto& back = between_ns_[link.b.index][link.a.index];
      there = std::min(there, delay_ns + latency_ns_[link.b.index]);
      back = std::min(back, delay_ns + latency_ns_[link.a.index]);
    } else {
      const bool is_a_host = link.a.kind == tern::sim::Node::Kind::kHost;
      const uint32_t host = is_a_host ? link.a.index : link.b.index;
      to_switch_ns_[host] = delay_ns;
      switch_of_[host] = is_a_host ? link.b.index : link.a.index;
    }
  }
  for (size_t by = 0; by < switches; by++) {
    for (size_t from = 0; from < switches; from++) {
      for (size_t to = 0; to < switches; to++) {
        between_ns_[from][to] = std::min(between_ns_[from][to], between_ns_[from][by] + between_ns_[by][to]);
      }
    }
  }
}

uint64_t RoundTrips::ns(uint32_t a, uint32_t b) const {
  const uint32_t at = switch_of_[a], to = switch_of_[b];
  const int64_t ends_ns = to_switch_ns_[a] + to_switch_ns_[b];
  return static_cast<uint64_t>(2 * ends_ns + latency_ns_[at] + between_ns_[at][to] + latency_ns_[to] +
                               between_ns_[to][at]);
}

// ---- Machine ----

Machine::Machine(World& world, tern::sim::Host& host)
    : world_(world), host_(host), random_(world.plan.seed * 977 + host.index() * 31 + 1000003 * ++world.boots) {
  const HostPlan& plan = world.plan.hosts[host.index()];
  host.set_cost(plan.cost);
  host.set_worker_time([time = plan.worker_time] { return time; });
  tern::NexusOptions options = host.nexus_options();
  options.liveness_timeout = plan.liveness_timeout;
  options.worker_threads = plan.worker_threads;
  options.worker_queue_limit = plan.worker_queue_limit;
  auto nexus = tern::Nexus::create(host.uri(), options);
  if (!nexus.ok()) world.oracle.broken("Nexus::create(): %s", std::string(nexus.status().message()).c_str());
  nexus_ = std::move(*nexus);
  for (size_t i = 0; i < plan.endpoints.size(); i++) agents_.push_back(make_agent(static_cast<uint16_t>(i)));
  world.machines[host.index()] = this;
}

Machine::~Machine() { world_.machines[host_.index()] = nullptr; }

std::unique_ptr<Agent> Machine::make_agent(uint16_t id) {
  return std::make_unique<Agent>(world_, *this, host_, id, random_.split());
}

void Machine::restart_agent(size_t index) {
  agents_[index].reset();
  agents_[index] = make_agent(static_cast<uint16_t>(index));
}

// ---- Agent ----

Agent::Agent(World& world, Machine& machine, tern::sim::Host& host, uint16_t id, uint64_t seed)
    : world_(world),
      plan_(world.plan.hosts[host.index()].endpoints[id]),
      host_(host),
      place_{host.index(), id},
      random_(seed) {
  tern::Sim::Options transport = host.transport_options();
  transport.receive_queue_packets = plan_.receive_queue_packets;
  transport.send_queue_packets = plan_.send_queue_packets;
  auto rpc = tern::Rpc<tern::Sim>::create(*machine.nexus_, transport, plan_.rpc);
  if (!rpc.ok()) world.oracle.broken("Rpc::create(): %s", std::string(rpc.status().message()).c_str());
  rpc_ = std::move(*rpc);
  endpoint_ = rpc_.get();
  const auto check = [&](Status status) {
    if (!status.ok()) world.oracle.broken("a new endpoint: %s", std::string(status.message()).c_str());
  };
  tern::HandlerOptions large, worker, small;
  large.max_request_bytes = worker.max_request_bytes = 8u << 20;
  worker.worker = true;
  small.max_request_bytes = kSmallLimitBytes;
  check(endpoint_->on_request(kTiny, [this](Request request) { on_tiny(std::move(request)); }));
  check(endpoint_->on_request(
      kDispatch, [this](Request request) { on_request(kDispatch, std::move(request)); }, large));
  check(endpoint_->on_request(
      kWorker, [this](Request request) { on_request(kWorker, std::move(request)); }, worker));
  check(endpoint_->on_request(
      kSmall, [this](Request request) { on_request(kSmall, std::move(request)); }, small));
  check(host.run(*rpc_));
  step_later();
}

Agent::~Agent() {
  is_ending_ = true;
  for (const Kept& kept : kept_) world_.ledger.on_outcome(*world_.ledger.find(kept.name), Call::Outcome::kDropped);
  while (!kept_.empty() && random_.chance(500)) kept_.pop_back();
  for (uint64_t name : calls_) world_.ledger.find(name)->may_be_cancelled = true;
  world_.packets_sent += endpoint_->counters().packets_sent;
  rpc_.reset();
  if (!calls_.empty()) world_.oracle.broken(*world_.ledger.find(calls_.front()), "its endpoint has ended without it");
}

// ---- The workload ----

void Agent::step_later() {
  const auto gap = static_cast<uint64_t>(world_.plan.step_gap.count());
  const auto delay = Duration(static_cast<int64_t>(random_.between(0, 2 * gap)));
  if (Status status = endpoint_->after(delay, [this] { step(); }).status(); !status.ok()) {
    world_.oracle.broken("after(): %s", std::string(status.message()).c_str());
  }
}

void Agent::step() {
  if (world_.phase != World::Phase::kWork || world_.ledger.calls() > 2 * world_.plan.calls) return;
  const auto live = std::count_if(links_.begin(), links_.end(), [](const Link& link) { return !link.is_gone; });
  const uint64_t draw = random_.below(100);
  if (live == 0 || (draw < 6 && static_cast<uint32_t>(live) < world_.plan.sessions)) {
    add_session({});
  } else if (draw < 9) {
    const size_t link = any_session();
    check_round_trips();
    const Status status = endpoint_->destroy_session(links_[link].session);
    if (status.ok() && links_[link].is_gone) world_.oracle.broken("destroy_session() of a session that is gone is ok");
    if (!status.ok() && !may_have_ended(links_[link])) {
      world_.oracle.broken("destroy_session(): %s", std::string(status.message()).c_str());
    }
    forget_session(link);
  } else if (draw < 12) {
    misuse();
  } else if (random_.chance(world_.plan.early_permille)) {
    cancel_something();
  } else {
    call_some();
  }
  step_later();
}

/// Opens a session to that server, or to any one.
size_t Agent::add_session(const Place& server) {
  Place to = server;
  if (world_.phase == World::Phase::kWork) {
    to.host = static_cast<uint32_t>(random_.below(world_.plan.hosts.size()));
    to.endpoint = static_cast<uint16_t>(random_.below(world_.plan.hosts[to.host].endpoints.size()));
  }
  tern::SessionOptions options;
  options.window = static_cast<uint8_t>(random_.between(1, world_.plan.window_max));
  options.connect_timeout = world_.plan.connect_timeout;
  if (random_.chance(world_.plan.paced_permille)) {
    options.rate_bytes_per_sec = random_.magnitude(world_.plan.rate_bytes_per_sec_min, 2'000'000'000);
  }
  if (random_.chance(world_.plan.controlled_permille))
    options.congestion_control = draw_congestion_control(random_, world_.plan);
  return open(to, options);
}

size_t Agent::open(const Place& server, const tern::SessionOptions& options) {
  const std::string uri = world_.simulation->host(server.host).uri() + "/" + std::to_string(server.endpoint);
  const auto session = endpoint_->create_session(uri, options);
  if (!session.ok()) {
    world_.oracle.broken("create_session(): %s", std::string(session.status().message()).c_str());
  }
  links_.push_back({*session, server, world_.simulation->now()});
  world_.sessions_begun++;
  return links_.size() - 1;
}

Call* Agent::call(size_t link, size_t request_bytes, size_t response_bytes, Duration handler_time) {
  Call& call = world_.ledger.add();
  call.type = kDispatch;
  call.action = handler_time == Duration(0) ? Action::kAnswer : Action::kLater;
  call.handler_time = handler_time;
  call.request_bytes = std::max(request_bytes, kNameBytes);
  call.response_bytes = call.room_bytes = response_bytes;
  return make_call(call, link) ? &call : nullptr;
}

const tern::session::ClientSession* Agent::session_of(size_t link) const {
  return tern::rpc::EndpointCore::of(*endpoint_).client_session(links_[link].session);
}

/// A measured round trip may be too short by the clock's granularity at both ends.
void Agent::check_round_trips(const Link& link) const {
  constexpr uint64_t kGranularityNs = 2;
  const auto* session = tern::rpc::EndpointCore::of(*endpoint_).client_session(link.session);
  if (session == nullptr || !session->rtt().has_sample()) return;
  const uint64_t least_ns = world_.round_trips->ns(place_.host, link.server.host);
  const uint64_t seen_ns = session->rtt().min_ns();
  if (seen_ns + kGranularityNs >= least_ns) return;
  world_.oracle.broken(Rule::kRoundTrips,
                       "host %u/%u has seen a round trip to host %u of %llu ns, and the cable alone takes %llu ns",
                       place_.host, place_.endpoint, link.server.host, static_cast<unsigned long long>(seen_ns),
                       static_cast<unsigned long long>(least_ns));
}

void Agent::check_round_trips() const {
  if (world_.plan.is_corrupt() || world_.plan.has_drifting_clocks) return;
  for (const Link& link : links_) {
    if (!link.is_gone) check_round_trips(link);
  }
}

/// Returns the index of a session, mostly of one that exists.
size_t Agent::any_session() {
  const auto count = links_.size();
  const auto first = static_cast<size_t>(random_.below(count));
  for (size_t i = 0; i < count && !random_.chance(20); i++) {
    if (!links_[(first + i) % count].is_gone) return (first + i) % count;
  }
  return first;
}

/// The session stays in the list, so that later calls can misuse it. Its calls may end with kCancelled.
void Agent::forget_session(size_t link) {
  links_[link].is_gone = true;
  for (uint64_t name : calls_) {
    Call& call = *world_.ledger.find(name);
    if (call.session == link) call.may_be_cancelled = true;
  }
}

void Agent::destroy_sessions() {
  for (size_t i = 0; i < links_.size(); i++) {
    if (links_[i].is_gone) continue;
    (void)endpoint_->destroy_session(links_[i].session);  // a fault may have ended it already
    forget_session(i);
  }
}

void Agent::cancel_something() {
  if (!old_call_ids_.empty() && random_.chance(100)) {
    const uint64_t id = old_call_ids_[static_cast<size_t>(random_.below(old_call_ids_.size()))];
    if (endpoint_->cancel({id}).ok()) world_.oracle.broken("cancel() of a call that has ended is ok");
    return;
  }
  if (calls_.empty()) return;
  Call& call = *world_.ledger.find(calls_[static_cast<size_t>(random_.below(calls_.size()))]);
  call.may_be_cancelled = true;
  (void)endpoint_->cancel({call.call_id});  // kMisuse: it has ended, and its continuation waits for the transport
}

/// Makes calls that break a rule. Each must be refused, keep its buffers and run no continuation.
void Agent::misuse() {
  Call& call = world_.ledger.add();
  call.client = place_;
  MsgBuf request = take_buffer(random_.below(3000));
  MsgBuf response = take_buffer(64);
  if (!request || !response) return;
  std::byte* const request_at = request.bytes().data();
  std::byte* const response_at = response.bytes().data();
  write_request(request.bytes(), call.name);
  write_response(response.bytes(), call.name);
  const auto then = [this, name = call.name](Completion&) {
    world_.oracle.broken(*world_.ledger.find(name), "the continuation of a refused call ran");
  };
  Status status;
  Code expected = Code::kMisuse;
  const auto enqueue = [&](tern::Session session, uint16_t type, MsgBuf&& to_send, MsgBuf&& to_fill) {
    status = endpoint_->enqueue_request(session, type, std::move(to_send), std::move(to_fill), then).status();
  };
  switch (random_.below(4)) {
    case 0: {
      MsgBuf none;
      enqueue(links_[any_session()].session, kDispatch, std::move(request), std::move(none));
      break;
    }
    case 1:
      enqueue(links_[any_session()].session, kDispatch, std::move(request), std::move(request));
      break;
    case 2:
      enqueue(links_[any_session()].session, 4096, std::move(request), std::move(response));
      break;
    default:
      expected = Code::kSessionReset;
      enqueue(Session{}, kDispatch, std::move(request), std::move(response));
      break;
  }
  if (status.ok()) world_.oracle.broken(call, "a call that breaks a rule was accepted");
  if (status.code() != expected && status.code() != Code::kSessionReset) {
    world_.oracle.broken(call, "it was refused with: %s", std::string(status.message()).c_str());
  }
  if (request.bytes().data() != request_at || response.bytes().data() != response_at ||
      !is_request(request.bytes(), call.name) || !is_response(response.bytes(), call.name)) {
    world_.oracle.broken(call, "a refused call did not leave its buffers alone");
  }
}

void Agent::call_some() {
  const size_t link = any_session();
  if (links_[link].is_gone && !random_.chance(50)) return;
  const uint64_t count = random_.chance(100) ? random_.between(1, 2 * world_.plan.window_max) : random_.between(1, 4);
  for (uint64_t i = 0; i < count; i++) {
    Call& call = world_.ledger.add();
    draw_call(call);
    if (!make_call(call, link)) return;
    if (random_.chance(world_.plan.early_permille / 2)) cancel_soon(call.name);
  }
}

/// Cancels a call mostly while its request is in the network, so that either packet may overtake the other.
void Agent::cancel_soon(uint64_t name) {
  const auto delay = Duration(static_cast<int64_t>(random_.magnitude(0, 30'000)));
  (void)endpoint_->after(delay, [this, name] {
    Call& call = *world_.ledger.find(name);
    if (call.has_ended) return;
    call.may_be_cancelled = true;
    (void)endpoint_->cancel({call.call_id});
  });
}

size_t Agent::draw_bytes() {
  const Plan& plan = world_.plan;
  if (random_.chance(plan.bulk_permille)) return random_.magnitude(16 << 10, plan.bulk_bytes_max);
  if (random_.chance(600)) return random_.between(kNameBytes, 64);
  // Some lengths are near multiples of a packet's payload.
  if (random_.chance(200)) return plan.simulation.frame_bytes * random_.between(1, 4) - random_.between(60, 70);
  return random_.magnitude(kNameBytes, random_.chance(200) ? 16 << 10 : 1500);
}

void Agent::draw_call(Call& call) {
  const Plan& plan = world_.plan;
  call.request_bytes = draw_bytes();
  call.response_bytes = random_.chance(50) ? random_.below(kNameBytes) : draw_bytes();
  const uint64_t draw = random_.below(100);
  call.type = draw < 15 ? kTiny : draw < 70 ? kDispatch : draw < 90 ? kWorker : draw < 98 ? kSmall : kUnknown;
  if (call.type == kTiny) call.request_bytes = call.response_bytes = static_cast<size_t>(random_.below(kTinyTypes));
  // Handlers mostly answer at once.
  const uint64_t action = random_.below(100);
  call.action = action < 60   ? Action::kAnswer
                : action < 66 ? Action::kAnswerMsgBuf
                : action < 70 ? Action::kAnswerTwice
                : action < 80 ? Action::kLater
                : action < 84 ? Action::kPost
                : action < 88 ? Action::kNested
                : action < 91 ? Action::kAttic
                : action < 95 ? Action::kFail
                : action < 98 ? Action::kDrop
                              : Action::kHold;
  call.app_code = static_cast<uint16_t>(random_.between(1, 65535));
  call.handler_time = random_.duration(Duration(1), plan.handler_time_max);
  call.room_bytes = random_.chance(20) ? random_.below(call.response_bytes + 1) : call.response_bytes;
  if (random_.chance(plan.early_permille / 2) || (call.action == Action::kHold && random_.chance(500))) {
    call.deadline = random_.duration(Duration(1), std::max<Duration>(plan.fault_time, std::chrono::milliseconds(1)));
  }
}

bool Agent::make_call(Call& call, size_t link, uint64_t outer) {
  MsgBuf request = take_buffer(call.request_bytes);
  MsgBuf response = take_buffer(call.room_bytes);
  if (!request || !response) {
    if (!world_.plan.has_limited_memory) world_.oracle.broken(call, "there is no memory for its buffers");
    return false;
  }
  return make_call(call, link, outer, std::move(request), std::move(response));
}

/// `request` has the right length already. False: it was refused.
bool Agent::make_call(Call& call, size_t link, uint64_t outer, MsgBuf request, MsgBuf response) {
  write_request(request.bytes(), call.name);
  call.client = place_;
  call.server = links_[link].server;
  call.session = link;
  call.session_began = links_[link].began;
  call.was_open = links_[link].was_open;
  call.room_bytes = response.capacity();
  call.started = endpoint_->now();
  call.request_at = std::as_const(request).bytes().data();
  call.response_at = std::as_const(response).bytes().data();
  tern::CallOptions options;
  options.deadline = call.deadline;
  const uint64_t name = call.name;
  const auto id = endpoint_->enqueue_request(
      links_[link].session, call.type, std::move(request), std::move(response),
      [this, name, outer](Completion& done) { on_done(name, outer, done); }, options);
  if (!id.ok()) {
    check_refusal(call, links_[link], id.status());
    if (std::as_const(request).bytes().data() != call.request_at ||
        std::as_const(response).bytes().data() != call.response_at || !is_request(request.bytes(), call.name)) {
      world_.oracle.broken(call, "a refused call did not leave its buffers alone");
    }
    if (id.status().code() == Code::kSessionReset) links_[link].is_gone = true;
    return false;
  }
  call.call_id = (*id).value;
  call.position = calls_.size();
  calls_.push_back(name);
  links_[link].queued++;
  if (links_[link].is_gone) call.may_be_cancelled = true;
  world_.ledger.on_accepted(call);
  return true;
}

/// True: the session may have ended without a completion that says so, by this endpoint, a refusal or a fault.
bool Agent::may_have_ended(const Link& link) const {
  const bool may_be_refused = world_.plan.has_limited_sessions || world_.plan.has_limited_memory;
  return is_ending_ || link.is_gone || may_be_refused || world_.plan.is_corrupt() ||
         world_.troubles.explain(place_.host, link.server.host, link.began, link.was_open);
}

void Agent::check_refusal(const Call& call, const Link& link, Status status) const {
  switch (status.code()) {
    case Code::kQueueFull:
      if (link.queued >= plan_.rpc.queue_limit) return;
      break;
    case Code::kNoMemory:
      if (world_.plan.has_limited_memory) return;
      break;
    case Code::kSessionReset:
      if (may_have_ended(link)) return;
      break;
    default:
      break;
  }
  world_.oracle.broken(call, "it was refused with: %s", std::string(status.message()).c_str());
}

void Agent::on_done(uint64_t name, uint64_t outer, Completion& done) {
  Call& call = *world_.ledger.find(name);
  if (is_ending_) call.may_be_cancelled = true;
  call.was_open = links_[call.session].was_open;
  world_.ledger.on_ended(call, done, endpoint_->now());
  if (done.status.ok()) links_[call.session].was_open = true;
  leave(call);
  if (outer != 0) answer_kept(outer);
  // Both buffers are used again at once, which shows whether the library still reads or writes them.
  const uint64_t draw = random_.below(10);
  if (draw < 3 && world_.phase == World::Phase::kWork && world_.ledger.calls() < world_.plan.calls) {
    Call& next = world_.ledger.add();
    draw_call(next);
    next.request_bytes = std::min(next.request_bytes, done.request.capacity());
    if (next.type != kTiny)
      next.request_bytes = std::max(next.request_bytes, std::min(kNameBytes, done.request.capacity()));
    if (next.request_bytes < kNameBytes) next.type = kTiny;
    next.response_bytes =
        next.type == kTiny ? next.request_bytes : std::min(next.response_bytes, done.response.capacity());
    if (!done.request.resize(next.request_bytes)) world_.oracle.broken(call, "its request has lost its capacity");
    e2e::fill(done.response.bytes(), random_.bits());
    (void)make_call(next, call.session, 0, std::move(done.request), std::move(done.response));
  } else if (draw < 9) {
    give_buffer(std::move(done.request));
    give_buffer(std::move(done.response));
  }  // else they go back to the arena
}

void Agent::leave(Call& call) {
  calls_[call.position] = calls_.back();
  world_.ledger.find(calls_.back())->position = call.position;
  calls_.pop_back();
  links_[call.session].queued--;
  if (old_call_ids_.size() < 32) {
    old_call_ids_.push_back(call.call_id);
  } else {
    old_call_ids_[static_cast<size_t>(random_.below(32))] = call.call_id;
  }
}

size_t Agent::call_afresh(const Place& server) {
  size_t calls = 0;
  const size_t link = add_session(server);
  static constexpr Action kActions[] = {Action::kAnswer, Action::kAnswerMsgBuf, Action::kAnswerTwice, Action::kPost};
  for (size_t i = 0; i < 4; i++) {
    Call& call = world_.ledger.add();
    draw_call(call);
    call.type = i == 2 ? kWorker : kDispatch;
    call.action = kActions[i];
    call.deadline = Duration::max();
    call.request_bytes = std::max(kNameBytes, i == 3 ? size_t{20'000} : std::min<size_t>(call.request_bytes, 3000));
    call.response_bytes = std::min<size_t>(call.response_bytes, 20'000);
    call.room_bytes = call.response_bytes;
    if (make_call(call, link)) calls++;
  }
  return calls;
}

// ---- Handlers ----

void Agent::on_tiny(Request request) {
  const auto bytes = request.bytes();
  world_.ledger.on_handler(place_, kTiny, bytes, endpoint_->now());
  const size_t length = bytes.size();
  if (auto room = request.response(length); room.ok()) e2e::fill(*room, ~length);
  request.respond();
}

void Agent::on_request(uint16_t type, Request request) {
  Call* call = world_.ledger.on_handler(place_, type, request.bytes(), endpoint_->now());
  if (call == nullptr) return request.fail(1);  // the network has damaged it
  if (random_.chance(50)) host_.spend(random_.duration(Duration(1), std::chrono::microseconds(100)));
  Action action = call->action;
  if (type == kWorker) {  // runs outside of the endpoint's thread
    if (action == Action::kAnswerMsgBuf || action == Action::kNested) action = Action::kAnswer;
    if (action == Action::kLater || action == Action::kHold) action = Action::kPost;
  }
  if (action == Action::kHold && world_.phase == World::Phase::kFinish) action = Action::kAnswer;
  switch (action) {
    case Action::kAnswer:
      return answer(*call, std::move(request));
    case Action::kAnswerMsgBuf:
      return answer_with_msgbuf(*call, std::move(request));
    case Action::kAnswerTwice:
      if (auto room = request.response(random_.below(2 * call->response_bytes + 100)); room.ok()) {
        e2e::fill(*room, random_.bits());
      }
      return answer(*call, std::move(request));
    case Action::kLater:
    case Action::kHold:
      return keep(*call, std::move(request));
    case Action::kPost: {
      const Status status = endpoint_->post([this, name = call->name, kept = std::move(request)]() mutable {
        Call& later = *world_.ledger.find(name);
        world_.ledger.check_kept(later, kept.bytes());
        answer(later, std::move(kept));
      });
      if (!status.ok()) world_.ledger.on_outcome(*call, Call::Outcome::kDropped);  // the endpoint ends
      return;
    }
    case Action::kNested:
      return nest(*call, std::move(request));
    case Action::kAttic:
      world_.attic.push_back({std::move(request), call->name});
      return;
    case Action::kFail:
      world_.ledger.on_outcome(*call, Call::Outcome::kFailed);
      return request.fail(call->app_code);
    case Action::kDrop:
      return world_.ledger.on_outcome(*call, Call::Outcome::kDropped);
  }
}

void answer_request(World& world, Call& call, Request request) {
  auto room = request.response(call.response_bytes);
  if (!room.ok()) {
    if (!world.plan.has_limited_memory) world.oracle.broken(call, "there is no memory for its answer");
    world.ledger.on_outcome(call, Call::Outcome::kDropped);
    return;
  }
  write_response(*room, call.name);
  world.ledger.on_outcome(call, Call::Outcome::kAnswered);
  request.respond();
}

void Agent::answer(Call& call, Request request) { answer_request(world_, call, std::move(request)); }

void Agent::answer_with_msgbuf(Call& call, Request request) {
  MsgBuf reply = take_buffer(call.response_bytes);
  if (!reply) return answer(call, std::move(request));
  write_response(reply.bytes(), call.name);
  world_.ledger.on_outcome(call, Call::Outcome::kAnswered);
  request.respond(std::move(reply));
}

void Agent::keep(Call& call, Request request) {
  kept_.push_back({std::move(request), call.name});
  const Duration delay = call.action == Action::kHold ? kLookGap : call.handler_time;
  (void)endpoint_->after(delay, [this, name = call.name] { look_at_kept(name); });  // refused: the endpoint ends
}

void Agent::look_at_kept(uint64_t name) {
  const auto kept = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& one) { return one.name == name; });
  if (kept == kept_.end()) return;
  Call& call = *world_.ledger.find(name);
  world_.ledger.check_kept(call, kept->request.bytes());
  const bool is_cancelled = kept->request.is_cancelled();
  if (is_cancelled && !call.has_ended && !call.may_be_cancelled && call.deadline == Duration::max() &&
      !world_.plan.is_corrupt() && !world_.plan.has_limited_memory && !world_.troubles.explain(call)) {
    world_.oracle.broken(call, "its handler is told that it is cancelled");
  }
  if (call.action == Action::kHold && !is_cancelled && world_.phase == World::Phase::kWork) {
    (void)endpoint_->after(kLookGap, [this, name] { look_at_kept(name); });
    return;
  }
  answer_kept(name);
}

void Agent::answer_kept(uint64_t name) {
  const auto kept = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& one) { return one.name == name; });
  if (kept == kept_.end()) return;
  Request request = std::move(kept->request);
  kept_.erase(kept);
  Call& call = *world_.ledger.find(name);
  world_.ledger.check_kept(call, request.bytes());
  answer(call, std::move(request));
}

/// Answers when the nested call has ended, whatever its status is.
void Agent::nest(Call& call, Request request) {
  if (links_.empty()) return answer(call, std::move(request));
  const size_t link = any_session();
  kept_.push_back({std::move(request), call.name});
  Call& inner = world_.ledger.add();
  draw_call(inner);
  if (inner.action == Action::kNested || inner.action == Action::kHold) inner.action = Action::kAnswer;
  // Requests that wait for each other's slots would wait for ever. Avoiding that is the duty of the program.
  inner.deadline =
      std::min<Duration>(inner.deadline, random_.duration(std::chrono::microseconds(1), std::chrono::milliseconds(20)));
  if (!make_call(inner, link, call.name)) answer_kept(call.name);
}

// ---- Buffers ----

/// Returns a kept buffer or a new one. Checks that nothing has written into the buffer while it was kept.
MsgBuf Agent::take_buffer(size_t len_bytes) {
  for (Resting& resting : pool_) {
    if (resting.buffer.capacity() < len_bytes || resting.buffer.capacity() > 4 * len_bytes + 4096) continue;
    if (!e2e::is_filled(resting.buffer.bytes(), resting.pattern)) {
      world_.oracle.broken("host %u/%u: the library wrote into a buffer after it had returned it", place_.host,
                           place_.endpoint);
    }
    MsgBuf buffer = std::move(resting.buffer);
    resting = std::move(pool_.back());
    pool_.pop_back();
    (void)buffer.resize(len_bytes);
    return buffer;
  }
  return endpoint_->alloc_msgbuf(len_bytes);
}

void Agent::give_buffer(MsgBuf buffer) {
  const uint64_t pattern = random_.bits();
  e2e::fill(buffer.bytes(), pattern);
  if (pool_.size() < kPoolMax) pool_.push_back({std::move(buffer), pattern});
}

}  // namespace sim_test
