// A client of the replicated store. It finds the leader, and repeats a command with the same number until it has an
// answer, so that the command is executed once (commands.h). One command at a time; a program that wants more commands
// in parallel creates more clients. Its endpoint's thread owns it. It does not depend on the transport, nor on whether
// the network is simulated.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <tern/endpoint.h>
#include <tern/environment.h>

#include "commands.h"

namespace replicated {

struct ClientOptions {
  uint64_t cluster = 0;
  std::vector<std::string> replicas;                        ///< URIs; at least one. The client learns further replicas
                                                            ///< from answers
  tern::Duration attempt = std::chrono::milliseconds(500);  ///< time after which the client asks another replica
  tern::Duration patience = std::chrono::seconds(10);       ///< time after which a command fails
  tern::Duration pause = std::chrono::milliseconds(1);      ///< before a replica is asked again; doubles up to 64 times
  /// How often replicas may redirect the client before a command fails. An election during a command causes a few
  /// redirections.
  uint32_t redirects_max = 64;
  bool has_lease_reads = false;  ///< the leader may answer a kGet by its lease
};

/// The outcome of a command.
struct Reply {
  /// Empty: the command was executed once, and `outcome` and `value` are its answer. Otherwise an error message: it is
  /// unknown whether the command was, or will be, executed; but it is never executed twice.
  std::string problem;
  Outcome outcome = Outcome::kDone;
  std::string_view value;  ///< valid during the call
};

class Client {
 public:
  using Then = std::function<void(const Reply&)>;

  /// All arguments must outlive the endpoint, and so must the client.
  Client(tern::Endpoint& endpoint, tern::Environment& environment, ClientOptions options);
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// Executes one command. Calls `then` once in the endpoint's loop; `then` may execute the next command. `then` is not
  /// called after the endpoint is closed. Must not be called while a command is under way. If the command exceeds the
  /// limits of commands.h, `then` is called with kMalformed before execute() returns.
  void execute(Operation operation, std::string_view key, std::string_view value, Then then,
               std::string_view expected = {});
  void get(std::string_view key, Then then) { execute(Operation::kGet, key, {}, std::move(then)); }
  void put(std::string_view key, std::string_view value, Then then) {
    execute(Operation::kPut, key, value, std::move(then));
  }
  bool is_busy() const { return then_ != nullptr; }
  /// The replica that the client asks next: the leader, as far as the client knows.
  const std::string& leader() const { return targets_[target_].uri; }
  uint64_t redirects() const { return redirects_total_; }
  uint64_t attempts() const { return attempts_total_; }

 private:
  struct Target {
    std::string uri;
    tern::Session session;
    bool has_session = false;
  };

  void begin_attempt();
  void on_attempt(tern::Completion& done);
  void on_answer(const Answer& answer);
  void on_registered(const Answer& answer);
  void learn(const Answer& answer);
  void redirect(std::string_view to);
  /// Asks the next replica, or the same one, after a pause. Fails the command if `patience` has passed.
  void try_later(bool is_other);
  void finish(Outcome outcome, std::string_view value);
  void fail(std::string problem);
  size_t target_of(std::string_view uri);
  tern::Duration pause();

  tern::Endpoint& endpoint_;
  tern::Environment& environment_;
  const ClientOptions options_;
  std::vector<Target> targets_;
  size_t target_ = 0;           ///< the leader, as far as the client knows
  uint64_t configuration_ = 0;  ///< index of the configuration that targets_ has
  uint64_t client_ = 0;
  uint64_t sequence_ = 0;

  // The command under way.
  std::string command_;  ///< encoded; empty: the client registers
  Operation operation_ = Operation::kGet;
  Then then_;
  tern::Duration begun_{};
  uint32_t attempts_ = 0, redirects_ = 0;
  std::string last_failure_;
  bool is_registering_ = false;
  tern::MsgBuf request_, response_;
  size_t response_bytes_ = 512;

  uint64_t redirects_total_ = 0, attempts_total_ = 0;
};

}  // namespace replicated
