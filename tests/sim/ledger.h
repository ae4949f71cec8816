// What the oracle knows of a run: every call, what was promised about it, what has happened to it and what may have
// gone wrong around it. Test code; one thread, as all of the simulation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include <tern/rpc.h>
#include <tern/sim.h>

#include "sim/plan.h"

namespace sim_test {

/// Request types.
enum Type : uint16_t {
  kTiny = 1,      ///< requests too short for a name: answered with as many bytes
  kDispatch = 2,  ///< handled in the loop
  kWorker = 3,    ///< handled by a worker
  kSmall = 4,     ///< as kDispatch, with a limit of kSmallLimitBytes
  kUnknown = 5,   ///< no handler
};
inline constexpr size_t kSmallLimitBytes = 3000;
/// From so many bytes on, a request begins with its call's name.
inline constexpr size_t kNameBytes = 8;

/// What a handler does with a request.
enum class Action : uint8_t {
  kAnswer,        ///< at once
  kAnswerMsgBuf,  ///< at once, with a MsgBuf
  kAnswerTwice,   ///< at once, but the room for the answer is asked for a second time
  kLater,         ///< keeps the Request, and answers from a timer
  kPost,          ///< from a posted function
  kNested,        ///< from the continuation of a call of its own
  kAttic,         ///< gives the Request to somebody outside of all hosts, who answers it some time, if the host lives
  kFail,
  kDrop,
  kHold,  ///< keeps the Request until the client does not want it any more, or the network is healed
};

/// Where an endpoint is.
struct Place {
  uint32_t host = 0;
  uint16_t endpoint = 0;
};

struct Call {
  uint64_t name = 0;
  Place client, server;
  uint16_t type = 0;
  Action action = Action::kAnswer;
  uint16_t app_code = 0;  ///< kFail
  size_t request_bytes = 0, response_bytes = 0, room_bytes = 0;
  tern::Duration handler_time{};  ///< kLater and such
  tern::Duration deadline = tern::Duration::max();
  tern::Duration started{};        ///< client's clock
  tern::Duration session_began{};  ///< simulation's clock
  const std::byte* request_at = nullptr;
  const std::byte* response_at = nullptr;
  size_t session = 0;    ///< of the client
  uint64_t call_id = 0;  ///< the endpoint's
  size_t position = 0;   ///< among its client's calls that have not ended

  // What has happened.
  bool is_accepted = false;
  bool was_open = false;          ///< a call on its session has been answered
  bool may_be_cancelled = false;  ///< somebody has cancelled it, or ended its session or its endpoint
  bool has_ended = false;
  uint32_t runs = 0;  ///< of its handler
  enum class Outcome : uint8_t { kNone, kAnswered, kFailed, kDropped } outcome = Outcome::kNone;
  tern::Code status = tern::Code::kOk;
};

/// A broken promise: says so and how to see it again, and ends the process.
class Oracle {
 public:
  Oracle(const Plan& plan, std::string repeat) : plan_(plan), repeat_(std::move(repeat)) {}
  void set_simulation(const tern::sim::Simulation* simulation) { simulation_ = simulation; }
  [[noreturn, gnu::format(printf, 2, 3)]] void broken(const char* format, ...) const;
  [[noreturn, gnu::format(printf, 3, 4)]] void broken(const Call& call, const char* format, ...) const;
  /// Of a rule that is switched off: returns.
  [[gnu::format(printf, 3, 4)]] void broken(Rule rule, const char* format, ...) const;

 private:
  [[noreturn]] void end(const char* what, const Call* call) const;
  const Plan& plan_;
  std::string repeat_;
  const tern::sim::Simulation* simulation_ = nullptr;
};

/// What explains that a session between two hosts has ended without their programs' doing. A host that crashes or is
/// slow explains it by itself. A pause, a partition or a link that is down does if it may have lasted long enough for
/// the peer's liveness timeout: shorter ones are no reason, and a pause of one's own is none at all beyond the silence
/// that the peer hears (rule kDeaths). Rule switched off: whatever was wrong explains it.
class Troubles {
 public:
  explicit Troubles(const Plan& plan);
  void on_host(uint32_t host, tern::Duration until);
  void on_all(tern::Duration until);
  /// The host is not heard.
  void on_silence(uint32_t host, tern::Duration from, tern::Duration until);
  /// These two do not hear each other.
  void on_silence(uint32_t a, uint32_t b, tern::Duration from, tern::Duration until);
  /// None hears another one.
  void on_silence(tern::Duration from, tern::Duration until);
  /// Whatever was to last longer ends now.
  void end_all(tern::Duration now);
  /// May a session of that time, between these two, have ended? `was_open`: a call on it has been answered.
  bool explain(const Call& call) const {
    return explain(call.client.host, call.server.host, call.session_began, call.was_open);
  }
  bool explain(uint32_t a, uint32_t b, tern::Duration session_began, bool was_open) const;
  /// From then on nothing is explained any more.
  tern::Duration over() const;

 private:
  static constexpr uint32_t kAny = UINT32_MAX;
  struct Silence {
    uint32_t a, b;
    tern::Duration from, until;
  };
  bool is_silence_explained(uint32_t a, uint32_t b, tern::Duration session_began, bool was_open) const;
  void add(const Silence& silence);

  const Plan& plan_;
  std::vector<tern::Duration> until_;
  tern::Duration all_until_{-1};
  tern::Duration aftermath_;       ///< so long later peers may still find out that they have given each other up
  std::vector<Silence> silences_;  ///< by beginning
};

class Ledger {
 public:
  Ledger(const Plan& plan, const Oracle& oracle, const Troubles& troubles)
      : plan_(plan), oracle_(oracle), troubles_(troubles), salt_(plan.seed << 32 ^ 0x5eed'0000'0000'0000) {}

  Call& add();
  /// Null: no call has it.
  Call* find(uint64_t name);
  void on_accepted(Call& call);
  /// The Completion is right in every respect: of a call that has not ended, status, buffers and their content.
  void on_ended(Call& call, const tern::Completion& done, tern::Duration now);
  /// A handler has a request: of which call? Null: of a damaged one, or one without a name.
  Call* on_handler(const Place& where, uint16_t type, std::span<const std::byte> bytes, tern::Duration now);
  /// A Request that is kept still has the bytes of its call.
  void check_kept(const Call& call, std::span<const std::byte> bytes) const;
  void on_outcome(Call& call, Call::Outcome outcome);

  size_t calls() const { return calls_.size(); }
  size_t open() const { return open_; }
  uint64_t bytes_open() const { return bytes_open_; }
  /// One that has not ended; null: all have.
  const Call* first_open() const;
  /// Of how every call ended and when.
  uint64_t hash() const { return hash_; }
  const std::vector<uint64_t>& statuses() const { return statuses_; }
  /// So many packets the calls that have ended may have cost (rule kPackets).
  double packets_allowed() const { return packets_allowed_; }

 private:
  void check_status(const Call& call, const tern::Completion& done, tern::Duration now);
  void check_deadline(const Call& call, tern::Duration now) const;
  double packets_of(const Call& call, tern::Duration now) const;
  void check_answer(const Call& call, const tern::Completion& done);
  void mix(uint64_t word);

  const Plan& plan_;
  const Oracle& oracle_;
  const Troubles& troubles_;
  const uint64_t salt_;
  std::deque<Call> calls_;
  size_t open_ = 0;
  uint64_t bytes_open_ = 0;  ///< of requests and responses
  uint64_t tiny_calls_[kNameBytes] = {}, tiny_runs_[kNameBytes] = {}, tiny_answers_[kNameBytes] = {};
  std::vector<uint64_t> statuses_ = std::vector<uint64_t>(16);
  uint64_t hash_ = 0;
  double packets_allowed_ = 0;
};

/// Request of a call: its name, and a pattern of it. Shorter than a name: a pattern of the length.
void write_request(std::span<std::byte> to, uint64_t name);
bool is_request(std::span<const std::byte> bytes, uint64_t name);
void write_response(std::span<std::byte> to, uint64_t name);
bool is_response(std::span<const std::byte> bytes, uint64_t name);

}  // namespace sim_test
