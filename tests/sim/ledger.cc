#include "sim/ledger.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "e2e/traffic.h"
#include "transport/sim/sim_transport.h"
#include "wire/header.h"

namespace sim_test {

namespace wire = tern::wire;
using tern::Code;
using tern::Duration;

namespace {

constexpr const char* kActions[] = {
    "answer", "answer with a MsgBuf", "answer twice", "later", "post", "nested", "attic", "fail", "drop", "hold"};

/// How often each needed packet may be sent where packets are lost, doubled, late or overtaken.
constexpr double kTimesMax = 3;

/// How many retransmitted packets each probe may cause, on average.
constexpr double kBroughtMax = 8;

/// The payload bytes of a packet.
size_t room_bytes(const Plan& plan) {
  return plan.simulation.frame_bytes - tern::transport::SimImpl::kFrameHeaderBytes - wire::kHeaderBytes;
}

double ms(Duration duration) { return static_cast<double>(duration.count()) / 1e6; }

}  // namespace

void write_request(std::span<std::byte> to, uint64_t name) {
  if (to.size() < kNameBytes) return e2e::fill(to, to.size());
  std::memcpy(to.data(), &name, kNameBytes);
  e2e::fill(to.subspan(kNameBytes), name);
}

bool is_request(std::span<const std::byte> bytes, uint64_t name) {
  if (bytes.size() < kNameBytes) return e2e::is_filled(bytes, bytes.size());
  return std::memcmp(bytes.data(), &name, kNameBytes) == 0 && e2e::is_filled(bytes.subspan(kNameBytes), name);
}

void write_response(std::span<std::byte> to, uint64_t name) { e2e::fill(to, ~name); }

bool is_response(std::span<const std::byte> bytes, uint64_t name) { return e2e::is_filled(bytes, ~name); }

// ---- Oracle ----

void Oracle::broken(const char* format, ...) const {
  char what[300];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(what, sizeof(what), format, arguments);
  va_end(arguments);
  end(what, nullptr);
}

void Oracle::broken(const Call& call, const char* format, ...) const {
  char what[300];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(what, sizeof(what), format, arguments);
  va_end(arguments);
  end(what, &call);
}

void Oracle::broken(Rule rule, const char* format, ...) const {
  if (!plan_.checks(rule)) return;
  char what[300];
  const int length = std::snprintf(what, sizeof(what), "rule %s: ", name_of(rule));
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(what + length, sizeof(what) - static_cast<size_t>(length), format, arguments);
  va_end(arguments);
  end(what, nullptr);
}

void Oracle::end(const char* what, const Call* call) const {
  std::fflush(stdout);
  std::fprintf(stderr, "BROKEN after %.6f ms: %s\n", simulation_ != nullptr ? ms(simulation_->now()) : 0.0, what);
  if (call != nullptr) {
    std::fprintf(stderr,
                 "  call %" PRIx64
                 " from host %u/%u to host %u/%u, type %u (%s), %zu B for %zu B (room for %zu); started "
                 "at %.6f ms of its clock, deadline %.3f ms, session since %.6f ms; handler ran %u times; %s%s\n",
                 call->name, call->client.host, call->client.endpoint, call->server.host, call->server.endpoint,
                 call->type, kActions[static_cast<size_t>(call->action)], call->request_bytes, call->response_bytes,
                 call->room_bytes, ms(call->started), call->deadline == Duration::max() ? -1.0 : ms(call->deadline),
                 ms(call->session_began), call->runs, call->has_ended ? "ended" : "not ended",
                 call->may_be_cancelled ? ", cancelled" : "");
  }
  std::fprintf(stderr, "  %s\nrepeat with: %s\n", plan_.text().c_str(), repeat_.c_str());
  std::fflush(stderr);
  std::_Exit(1);
}

// ---- Troubles ----

namespace {

/// The management sends a sign of life every quarter of the liveness timeout (clause 7.5.2). The last one may therefore
/// be a quarter old when a silence begins, and the next one may come a quarter after its end.
constexpr int64_t kSignsPerTimeout = 4;
/// A shorter interval does not count as a silence: it delays an answer, or costs one of several pings.
constexpr int64_t kSilencesPerTimeout = 16;

}  // namespace

Troubles::Troubles(const Plan& plan)
    : plan_(plan),
      until_(plan.hosts.size(), Duration(-1)),
      aftermath_(4 * plan.liveness_max + 2 * plan.connect_timeout) {}

void Troubles::on_host(uint32_t host, Duration until) { until_[host] = std::max(until_[host], until); }

void Troubles::on_all(Duration until) { all_until_ = std::max(all_until_, until); }

void Troubles::on_silence(uint32_t host, Duration from, Duration until) {
  plan_.checks(Rule::kDeaths) ? add({host, kAny, from, until}) : on_host(host, until);
}

void Troubles::on_silence(uint32_t a, uint32_t b, Duration from, Duration until) {
  if (plan_.checks(Rule::kDeaths)) return add({std::min(a, b), std::max(a, b), from, until});
  on_host(a, until);
  on_host(b, until);
}

void Troubles::on_silence(Duration from, Duration until) {
  plan_.checks(Rule::kDeaths) ? add({kAny, kAny, from, until}) : on_all(until);
}

void Troubles::add(const Silence& silence) { silences_.push_back(silence); }

void Troubles::end_all(Duration now) {
  for (Duration& until : until_) until = std::min(until, now);
  all_until_ = std::min(all_until_, now);
  for (Silence& silence : silences_) silence.until = std::min(silence.until, now);
}

bool Troubles::explain(uint32_t a, uint32_t b, Duration session_began, bool was_open) const {
  const Duration until = std::max({until_[a], until_[b], all_until_});
  if (until >= Duration(0) && session_began <= until + aftermath_) return true;
  return is_silence_explained(a, b, session_began, was_open);
}

/// Two silences count as one if the time between them is too short for a sign of life.
bool Troubles::is_silence_explained(uint32_t a, uint32_t b, Duration session_began, bool was_open) const {
  const Duration timeout = std::min(plan_.hosts[a].liveness_timeout, plan_.hosts[b].liveness_timeout);
  // Half of the timeout is enough, because up to a quarter passes before the silence and a quarter after it.
  const Duration enough = was_open ? timeout / 2 : std::min(timeout / 2, plan_.connect_timeout / 4);
  const Duration between = timeout / kSignsPerTimeout + std::chrono::milliseconds(2);
  Duration from{}, until(-1);
  for (const Silence& silence : silences_) {
    const bool is_pair = silence.b != kAny && (silence.a == std::min(a, b) && silence.b == std::max(a, b));
    const bool is_host = silence.b == kAny && (silence.a == kAny || silence.a == a || silence.a == b);
    if (!is_pair && !is_host) continue;
    if (silence.until - silence.from < std::min(timeout / kSilencesPerTimeout, enough)) continue;
    if (until < Duration(0) || silence.from > until + between) {
      from = silence.from;
      until = silence.until;
    } else {
      until = std::max(until, silence.until);
    }
    if (until - from >= enough && session_began <= until + aftermath_) return true;
  }
  return false;
}

Duration Troubles::over() const {
  Duration until = std::max(all_until_, *std::max_element(until_.begin(), until_.end()));
  for (const Silence& silence : silences_) until = std::max(until, silence.until);
  return until + aftermath_ + Duration(1);
}

// ---- Ledger ----

Call& Ledger::add() {
  Call& call = calls_.emplace_back();
  call.name = salt_ + calls_.size() - 1;
  return call;
}

Call* Ledger::find(uint64_t name) {
  return name - salt_ < calls_.size() ? &calls_[static_cast<size_t>(name - salt_)] : nullptr;
}

void Ledger::on_accepted(Call& call) {
  call.is_accepted = true;
  open_++;
  bytes_open_ += call.request_bytes + call.response_bytes;
  if (call.type == kTiny) tiny_calls_[call.request_bytes]++;
}

void Ledger::on_ended(Call& call, const tern::Completion& done, Duration now) {
  if (call.has_ended) oracle_.broken(call, "its continuation ran twice");
  if (!call.is_accepted) oracle_.broken(call, "the continuation of a refused call ran");
  if (done.request.bytes().data() != call.request_at || done.response.bytes().data() != call.response_at) {
    oracle_.broken(call, "its continuation got other buffers than the call had");
  }
  if (done.request.bytes().size() != call.request_bytes || !is_request(done.request.bytes(), call.name)) {
    oracle_.broken(call, "its request was written into");
  }
  check_status(call, done, now);
  if (plan_.is_strict() && call.deadline != Duration::max() && now - call.started > call.deadline + plan_.lateness) {
    oracle_.broken(call, "it ended %.6f ms after its deadline", ms(now - call.started - call.deadline));
  }
  packets_allowed_ += packets_of(call, now);
  call.has_ended = true;
  call.status = done.status.code();
  open_--;
  bytes_open_ -= call.request_bytes + call.response_bytes;
  statuses_[static_cast<size_t>(call.status)]++;
  mix(call.name);
  mix(static_cast<uint64_t>(call.status));
  mix(static_cast<uint64_t>(now.count()));
}

void Ledger::check_status(const Call& call, const tern::Completion& done, Duration now) {
  const Code code = done.status.code();
  const auto impossible = [&](const char* why) {
    oracle_.broken(call, "it ended with status %u (\"%s\", app_code %u): %s", static_cast<unsigned>(code),
                   std::string(done.status.message()).c_str(), done.app_code, why);
  };
  if (done.app_code != 0 && code != Code::kRefused && !plan_.is_corrupt())
    impossible("an application code without a refusal");
  switch (code) {
    case Code::kCancelled:
      if (!call.may_be_cancelled) impossible("the program has not cancelled it");
      return;
    default:
      break;
  }
  if (plan_.is_corrupt()) return;  // damaged packets explain all other outcomes
  const bool is_answered = call.outcome == Call::Outcome::kAnswered;
  switch (code) {
    case Code::kOk:
      return check_answer(call, done);
    case Code::kDeadline:
      return check_deadline(call, now);
    case Code::kRefused:
      if (done.app_code != 0) {
        if (call.outcome != Call::Outcome::kFailed || done.app_code != call.app_code) {
          impossible("its handler has not refused it so");
        }
      } else if (call.type != kUnknown && !troubles_.explain(call)) {
        impossible("there was a handler");
      }
      return;
    case Code::kTooLarge:
      if (call.type == kSmall && call.request_bytes > kSmallLimitBytes) {
        if (call.runs != 0) impossible("and yet its handler ran");
      } else if (!is_answered || call.response_bytes <= call.room_bytes) {
        impossible("neither its request nor its response is too large");
      }
      return;
    case Code::kNoResponse:
      // Where losses may end a session, they may also end a call: all its ranges were lost for two liveness timeouts
      // while a probe of the path has passed (clause 5.3.2).
      if (call.outcome == Call::Outcome::kAnswered && call.response_bytes > room_bytes(plan_) &&
          troubles_.explain(call)) {
        return;
      }
      if (call.outcome != Call::Outcome::kDropped) impossible("its handler has not dropped it");
      return;
    case Code::kQueueFull:
      if (call.runs != 0) impossible("and yet its handler ran");
      if (!plan_.has_limited_sessions && !(plan_.has_limited_workers && call.type == kWorker)) {
        impossible("no queue is limited");
      }
      return;
    case Code::kNoMemory:
      if (!plan_.has_limited_memory) impossible("memory is not limited");
      return;
    case Code::kPeerUnreachable:
    case Code::kSessionReset:
      if (!troubles_.explain(call)) impossible("nothing was wrong with either host, nor with the network");
      return;
    default:
      impossible("no call ends with that");
  }
}

/// The number of packets that the call may cost on both sides: each of its packets, and the answer to it or the RFR for
/// it; a cancel and its answer; probes and their answers, whose interval grows to a quarter of the time waited and then
/// to a quarter of the liveness timeout (clauses 4.4.1 and 4.4.2). Where packets are lost or late, each probe may cause
/// retransmissions of the packets in flight, and each packet may be sent several times.
double Ledger::packets_of(const Call& call, Duration now) const {
  const size_t room = room_bytes(plan_);
  const auto packets = [&](size_t bytes) {
    return static_cast<double>(std::max<size_t>(1, (bytes + room - 1) / room));
  };
  // A long request may be probed once between two acknowledgements (clause 4.4.6).
  const double early_probes = packets(call.request_bytes) >= 16 ? packets(call.request_bytes) : 0;
  const double needed = 2 * packets(call.request_bytes) + 2 * packets(call.response_bytes) + 2 + 2 * early_probes;
  const double waited_ns = static_cast<double>((now - call.started).count());
  constexpr auto kRtoNs = static_cast<double>(tern::transport::SimImpl::kTraits.rto_ns_min);
  const auto liveness_ns = static_cast<double>(plan_.hosts[call.client.host].liveness_timeout.count());
  const double probes =
      waited_ns <= kRtoNs ? 0 : 1 + std::log(waited_ns / kRtoNs) / std::log(1.25) + 4 * waited_ns / liveness_ns;
  if (plan_.is_lossless()) return needed + 2 * probes;
  return kTimesMax * needed + 2 * probes * std::min(needed, kBroughtMax);
}

/// A call ends with kDeadline not earlier than its deadline minus the time of its handler and a round trip, because the
/// server refuses a request, and the client does not start a call, that can no longer finish in time.
void Ledger::check_deadline(const Call& call, Duration now) const {
  if (call.deadline == Duration::max()) oracle_.broken(call, "it ended with kDeadline and has none");
  const Duration elapsed = now - call.started;
  // A server whose clock is fast (by a tenth at most) refuses early.
  const Duration earliest = plan_.has_drift() ? call.deadline * 8 / 10 : call.deadline;
  // Handlers take up to 100 us, or a thousand times as long on slow hosts, and wait as long for their turn. A session
  // may have measured only one round trip, which may contain a turn of the endpoint.
  const Duration too_short = std::chrono::milliseconds(plan_.has_drift() ? 250 : 10);
  if (elapsed < earliest - too_short) oracle_.broken(call, "kDeadline after %.6f ms", ms(elapsed));
}

void Ledger::check_answer(const Call& call, const tern::Completion& done) {
  const auto bytes = done.response.bytes();
  if (bytes.size() != call.response_bytes) {
    oracle_.broken(call, "its response has %zu bytes", bytes.size());
  }
  if (call.type == kTiny) {
    if (!e2e::is_filled(bytes, ~call.request_bytes)) oracle_.broken(call, "its response is damaged");
    if (++tiny_answers_[call.request_bytes] > tiny_runs_[call.request_bytes]) {
      oracle_.broken(call, "more answers than handlers that ran");
    }
    return;
  }
  if (call.outcome != Call::Outcome::kAnswered)
    oracle_.broken(call, "it ended with kOk, and its handler has not answered");
  if (call.runs != 1) oracle_.broken(call, "it ended with kOk");
  if (!is_response(bytes, call.name)) oracle_.broken(call, "its response is damaged, or another call's");
}

Call* Ledger::on_handler(const Place& where, uint16_t type, std::span<const std::byte> bytes, Duration now) {
  mix(static_cast<uint64_t>(now.count()));
  if (type == kTiny && bytes.size() < kNameBytes) {
    if (!e2e::is_filled(bytes, bytes.size()) && !plan_.is_corrupt()) {
      oracle_.broken("a handler of host %u/%u has a damaged request of %zu bytes", where.host, where.endpoint,
                     bytes.size());
    }
    if (++tiny_runs_[bytes.size()] > tiny_calls_[bytes.size()] && !plan_.is_corrupt()) {
      oracle_.broken("more handlers ran for requests of %zu bytes than calls were made", bytes.size());
    }
    return nullptr;
  }
  uint64_t name = 0;
  if (bytes.size() >= kNameBytes) std::memcpy(&name, bytes.data(), kNameBytes);
  Call* call = find(name);
  if (call == nullptr) {
    if (plan_.is_corrupt()) return nullptr;
    oracle_.broken("a handler of host %u/%u has a request of no call: %zu bytes, name %" PRIx64, where.host,
                   where.endpoint, bytes.size(), name);
  }
  mix(name);
  call->runs++;
  if (plan_.is_corrupt()) return call;
  if (call->runs != 1) oracle_.broken(*call, "its handler ran again");
  if (!call->is_accepted) oracle_.broken(*call, "the handler of a refused call ran");
  if (call->has_ended && call->status == Code::kOk) oracle_.broken(*call, "its handler ran after its end");
  if (call->type != type || call->server.host != where.host || call->server.endpoint != where.endpoint) {
    oracle_.broken(*call, "it came to host %u/%u, type %u", where.host, where.endpoint, type);
  }
  check_kept(*call, bytes);
  return call;
}

void Ledger::check_kept(const Call& call, std::span<const std::byte> bytes) const {
  if (plan_.is_corrupt()) return;
  if (bytes.empty() && plan_.has_limited_memory) return;  // there was no memory for the request
  if (bytes.size() != call.request_bytes || !is_request(bytes, call.name)) {
    oracle_.broken(call, "its handler sees a torn request, of %zu bytes", bytes.size());
  }
}

void Ledger::on_outcome(Call& call, Call::Outcome outcome) { call.outcome = outcome; }

const Call* Ledger::first_open() const {
  for (const Call& call : calls_) {
    if (call.is_accepted && !call.has_ended) return &call;
  }
  return nullptr;
}

void Ledger::mix(uint64_t word) {
  hash_ = (hash_ ^ word) * 0x9e3779b97f4a7c15;
  hash_ ^= hash_ >> 29;
}

}  // namespace sim_test
