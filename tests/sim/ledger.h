// The oracle's knowledge of a run: every call, the promises about it, the events of its life, and the faults that may
// have touched it. Test code; one thread runs it, and all of the simulation.
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
/// A request of at least this length begins with its call's name.
inline constexpr size_t kNameBytes = 8;

/// How a handler answers a request.
enum class Action : uint8_t {
  kAnswer,        ///< at once
  kAnswerMsgBuf,  ///< at once, with a MsgBuf
  kAnswerTwice,   ///< at once, after it has asked twice for the response's buffer
  kLater,         ///< keeps the Request, and answers from a timer
  kPost,          ///< from a posted function
  kNested,        ///< from the continuation of a call of its own
  kAttic,  ///< moves the Request into World::attic, outside of all hosts, from where it is answered if the host lives
  kFail,
  kDrop,
  kHold,  ///< keeps the Request until the client cancels it or the network is healed
};

/// The host and number of an endpoint.
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

/// Reports a broken promise: prints it and the command that repeats the run, and ends the process.
class Oracle {
 public:
  Oracle(const Plan& plan, std::string repeat) : plan_(plan), repeat_(std::move(repeat)) {}
  void set_simulation(const tern::sim::Simulation* simulation) { simulation_ = simulation; }
  [[noreturn, gnu::format(printf, 2, 3)]] void broken(const char* format, ...) const;
  [[noreturn, gnu::format(printf, 3, 4)]] void broken(const Call& call, const char* format, ...) const;
  /// Returns if the rule is switched off.
  [[gnu::format(printf, 3, 4)]] void broken(Rule rule, const char* format, ...) const;

 private:
  [[noreturn]] void end(const char* what, const Call* call) const;
  const Plan& plan_;
  std::string repeat_;
  const tern::sim::Simulation* simulation_ = nullptr;
};

/// The faults that may explain why a session between two hosts has ended although neither program ended it. The crash
/// or the slowness of a host is an explanation by itself. A pause, a partition or a link that is down is one if it may
/// have lasted for the peer's liveness timeout. A shorter one is not, and neither is a host's own pause except as the
/// silence that its peer observes (rule kDeaths). If the rule is switched off, any fault is an explanation.
class Troubles {
 public:
  explicit Troubles(const Plan& plan);
  void on_host(uint32_t host, tern::Duration until);
  void on_all(tern::Duration until);
  /// No other host receives packets of this host.
  void on_silence(uint32_t host, tern::Duration from, tern::Duration until);
  /// These two hosts do not receive each other's packets.
  void on_silence(uint32_t a, uint32_t b, tern::Duration from, tern::Duration until);
  /// No host receives packets of another one.
  void on_silence(tern::Duration from, tern::Duration until);
  /// Ends all faults now.
  void end_all(tern::Duration now);
  /// True: the faults may have ended a session between these two hosts that began then. `was_open`: a call on it was
  /// answered.
  bool explain(const Call& call) const {
    return explain(call.client.host, call.server.host, call.session_began, call.was_open);
  }
  bool explain(uint32_t a, uint32_t b, tern::Duration session_began, bool was_open) const;
  /// The time from which the faults explain nothing.
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
  tern::Duration aftermath_;  ///< how much later peers may still find out that the other has given up their session
  std::vector<Silence> silences_;  ///< by beginning
};

class Ledger {
 public:
  Ledger(const Plan& plan, const Oracle& oracle, const Troubles& troubles)
      : plan_(plan), oracle_(oracle), troubles_(troubles), salt_(plan.seed << 32 ^ 0x5eed'0000'0000'0000) {}

  Call& add();
  /// Null: no call has this name.
  Call* find(uint64_t name);
  void on_accepted(Call& call);
  /// Checks the whole Completion: its call has not ended before, and the status, the buffers and their content are
  /// right.
  void on_ended(Call& call, const tern::Completion& done, tern::Duration now);
  /// Returns the call to which a handler's request belongs. Null: the request is damaged, or has no name.
  Call* on_handler(const Place& where, uint16_t type, std::span<const std::byte> bytes, tern::Duration now);
  /// Checks that a kept Request still has its call's bytes.
  void check_kept(const Call& call, std::span<const std::byte> bytes) const;
  void on_outcome(Call& call, Call::Outcome outcome);

  size_t calls() const { return calls_.size(); }
  size_t open() const { return open_; }
  uint64_t bytes_open() const { return bytes_open_; }
  /// A call that has not ended. Null: all have ended.
  const Call* first_open() const;
  /// A hash of how and when every call ended.
  uint64_t hash() const { return hash_; }
  const std::vector<uint64_t>& statuses() const { return statuses_; }
  /// The number of packets that the ended calls may have cost (rule kPackets).
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

/// Writes a call's request: its name and a pattern made of the name. A request shorter than a name has a pattern of its
/// length.
void write_request(std::span<std::byte> to, uint64_t name);
bool is_request(std::span<const std::byte> bytes, uint64_t name);
void write_response(std::span<std::byte> to, uint64_t name);
bool is_response(std::span<const std::byte> bytes, uint64_t name);

}  // namespace sim_test
