// The program on each simulated host of a run: a Nexus, and endpoints that are client and server at once. The seed
// decides which calls of the library they make. Test code.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <tern/rpc.h>
#include <tern/sim.h>

#include "sim/ledger.h"
#include "sim/plan.h"
#include "sim/random.h"

namespace tern::session {
class ClientSession;
}

namespace sim_test {

class Machine;

/// The shortest possible round trip between two hosts.
class RoundTrips {
 public:
  explicit RoundTrips(const tern::sim::Topology& topology);
  uint64_t ns(uint32_t a, uint32_t b) const;

 private:
  /// One-way times between two hosts' switches, and from a host to its switch.
  std::vector<std::vector<int64_t>> between_ns_;
  std::vector<int64_t> to_switch_ns_;
  std::vector<uint32_t> switch_of_;
  std::vector<int64_t> latency_ns_;
};

/// The state that all machines of a run share.
struct World {
  World(const Plan& its_plan, std::string repeat)
      : plan(its_plan), oracle(plan, std::move(repeat)), troubles(plan), ledger(plan, oracle, troubles) {}

  const Plan& plan;
  Oracle oracle;
  Troubles troubles;
  Ledger ledger;
  tern::sim::Simulation* simulation = nullptr;
  std::vector<Machine*> machines;  ///< null: its host is down
  uint32_t boots = 0;

  enum class Phase : uint8_t {
    kWork,    ///< endpoints make calls
    kFinish,  ///< the network is healed, and all kept requests are answered
  };
  Phase phase = Phase::kWork;

  uint32_t sessions_begun = 0;
  uint64_t packets_sent = 0;  ///< by endpoints that no longer exist
  std::unique_ptr<RoundTrips> round_trips;

  /// Requests kept outside of all hosts. They may outlive their endpoints.
  struct Kept {
    tern::Request request;
    uint64_t name;
  };
  std::vector<Kept> attic;
};

/// An endpoint and its workload.
class Agent {
 public:
  Agent(World& world, Machine& machine, tern::sim::Host& host, uint16_t id, uint64_t seed);
  /// Ends the endpoint. It drops some of its kept requests before that and the others after it.
  ~Agent();

  tern::Rpc<tern::Sim>& rpc() { return *endpoint_; }
  Place place() const { return place_; }
  /// Releases its buffers.
  void drop_buffers() { pool_.clear(); }
  void destroy_sessions();
  /// Opens a new session to `server` and makes calls on it, which must be answered. Returns how many were accepted.
  size_t call_afresh(const Place& server);
  size_t requests_kept() const { return kept_.size(); }

  // -- For trials --

  /// Opens a session with these options and returns its index.
  size_t open(const Place& server, const tern::SessionOptions& options);
  /// Makes a call without a deadline on that session. The handler answers after `handler_time`. Null: the call was
  /// refused.
  Call* call(size_t link, size_t request_bytes, size_t response_bytes, tern::Duration handler_time);
  /// Null: the session no longer exists.
  const tern::session::ClientSession* session_of(size_t link) const;
  const EndpointPlan& plan() const { return plan_; }
  /// Checks that no session has measured a round trip shorter than the cable allows (rule kRoundTrips).
  void check_round_trips() const;

 private:
  struct Link {
    tern::Session session;
    Place server;
    tern::Duration began;
    uint32_t queued = 0;  ///< calls that have not ended
    bool is_gone = false;
    bool was_open = false;  ///< a call has been answered
  };
  struct Resting {
    tern::MsgBuf buffer;
    uint64_t pattern;
  };
  struct Kept {
    tern::Request request;
    uint64_t name;
  };

  // The workload.
  void step();
  void step_later();
  size_t add_session(const Place& server);
  void forget_session(size_t link);
  size_t any_session();
  bool may_have_ended(const Link& link) const;
  void check_round_trips(const Link& link) const;
  void cancel_something();
  void cancel_soon(uint64_t name);
  void misuse();
  void call_some();
  void draw_call(Call& call);
  size_t draw_bytes();
  bool make_call(Call& call, size_t link, uint64_t outer = 0);
  bool make_call(Call& call, size_t link, uint64_t outer, tern::MsgBuf request, tern::MsgBuf response);
  void check_refusal(const Call& call, const Link& link, tern::Status status) const;
  void on_done(uint64_t name, uint64_t outer, tern::Completion& done);
  void leave(Call& call);

  // Handlers.
  void on_tiny(tern::Request request);
  void on_request(uint16_t type, tern::Request request);
  void answer(Call& call, tern::Request request);
  void answer_with_msgbuf(Call& call, tern::Request request);
  void keep(Call& call, tern::Request request);
  void answer_kept(uint64_t name);
  void look_at_kept(uint64_t name);
  void nest(Call& call, tern::Request request);

  // Buffers.
  tern::MsgBuf take_buffer(size_t len_bytes);
  void give_buffer(tern::MsgBuf buffer);

  World& world_;
  const EndpointPlan& plan_;
  tern::sim::Host& host_;
  const Place place_;
  Random random_;
  bool is_ending_ = false;
  std::vector<Link> links_;
  std::vector<uint64_t> calls_;  ///< names of the calls that have not ended
  std::vector<uint64_t> old_call_ids_;
  std::vector<Resting> pool_;
  std::vector<Kept> kept_;
  std::unique_ptr<tern::Rpc<tern::Sim>> rpc_;
  tern::Rpc<tern::Sim>* endpoint_ = nullptr;  ///< points to the endpoint of `rpc_`, also while that is being destroyed
};

class Machine {
 public:
  Machine(World& world, tern::sim::Host& host);
  ~Machine();

  const std::vector<std::unique_ptr<Agent>>& agents() const { return agents_; }
  /// Ends the endpoint and opens another one in its place.
  void restart_agent(size_t index);

 private:
  std::unique_ptr<Agent> make_agent(uint16_t id);

  World& world_;
  tern::sim::Host& host_;
  Random random_;
  std::unique_ptr<tern::Nexus> nexus_;
  std::vector<std::unique_ptr<Agent>> agents_;

  friend class Agent;
};

/// Answers a request with the response that its call must get.
void answer_request(World& world, Call& call, tern::Request request);

}  // namespace sim_test
