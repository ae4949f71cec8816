// The answers of a replica to a leader's append, when the replica's log has more entries than the leader's.
#include <gtest/gtest.h>
#include <tern/sim.h>

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../apps/raft/replica.h"
#include "raft/memory_storage.h"

namespace raft_test {
namespace {

using namespace std::chrono_literals;
using replicated::Entry;

constexpr tern::Duration kElection = 1s;

struct Answer {
  bool has_come = false;
  uint64_t rejected = 0, last_index = 0;
  bool is_granted = false;  ///< the answer to a request for votes
};

/// The replica on host 0. Its two other replicas do not run: the test sends the messages of replica 2 from host 1.
class Follower {
 public:
  explicit Follower(std::unique_ptr<replicated::Storage> storage = std::make_unique<replicated::MemoryStorage>(),
                    int role = RAFT_VOTER)
      : storage_(std::move(storage)),
        role_(role),
        simulation_(std::move(*tern::sim::Simulation::create(tern::sim::Topology::star(2)))) {
    fill_log();
    boot_replica();
    boot_leader();
    simulation_->run_for(25ms);  // libraft's clock starts at the first tick
  }

  /// Sends a heartbeat, which is an append without entries.
  Answer append(uint64_t term, uint64_t previous_index, uint64_t previous_term, uint64_t commit = 0) {
    raft_message message = {};
    message.type = RAFT_IO_APPEND_ENTRIES;
    message.append_entries.term = term;
    message.append_entries.prev_log_index = previous_index;
    message.append_entries.prev_log_term = previous_term;
    message.append_entries.leader_commit = commit;
    return send(message, 2);
  }
  /// Asks for a vote for replica 3, in whose configuration this replica is a voter.
  Answer ask_for_vote(uint64_t term) {
    raft_message message = {};
    message.type = RAFT_IO_REQUEST_VOTE;
    message.request_vote.term = term;
    message.request_vote.last_log_index = 9;
    message.request_vote.last_log_term = 5;
    return send(message, 3);
  }
  void wait(tern::Duration time) { simulation_->run_for(time); }
  /// Sends a message of `from`, over the RPC for messages or the one for snapshots, and returns the answer.
  Answer send(const raft_message& message, uint64_t from, const std::string& configuration = {}) {
    const std::string address = uri(1).append(from == 3 ? "/3" : "");
    const auto election_us = std::chrono::duration_cast<std::chrono::microseconds>(kElection).count();
    const replicated::Head head = {.cluster = 1,
                                   .from = from,
                                   .to = 1,
                                   .life = 77,
                                   .election_us = static_cast<uint32_t>(election_us),
                                   .has_memory = true,
                                   .is_voter = true,
                                   .address = address};
    auto request =
        rpc_->alloc_msgbuf(replicated::encoded_bytes(head) + replicated::encoded_bytes(message, configuration));
    replicated::Writer writer(request.bytes());
    replicated::encode(head, writer);
    replicated::encode(message, request.bytes().subspan(replicated::encoded_bytes(head)), configuration);
    const auto answer = std::make_shared<Answer>();
    const auto on_end = [answer](tern::Completion& done) {
      if (done.status.code() == tern::Code::kCancelled) return;  // the test has ended
      EXPECT_TRUE(done.status.ok()) << done.status.message() << " " << done.app_code;
      raft_message result;
      if (!replicated::decode(std::as_const(done.response).bytes(), 1, result)) return;
      if (result.type == RAFT_IO_REQUEST_VOTE_RESULT) {
        *answer = {.has_come = true, .is_granted = result.request_vote_result.vote_granted};
      } else {
        *answer = {true, result.append_entries_result.rejected, result.append_entries_result.last_log_index};
      }
    };
    const auto session = rpc_->create_session(uri(0));
    EXPECT_TRUE(session.ok());
    EXPECT_TRUE(rpc_->enqueue_request(*session, configuration.empty() ? replicated::kMessage : replicated::kSnapshot,
                                      std::move(request), rpc_->alloc_msgbuf(256), on_end)
                    .ok());
    simulation_->run_until([&] { return answer->has_come; }, 5ms);
    return *answer;
  }
  /// Sends a snapshot of entries 1 to 9, as the leader of term 5.
  void send_snapshot(std::string data) {
    raft_message message = {};
    message.type = RAFT_IO_INSTALL_SNAPSHOT;
    message.install_snapshot.term = 5;
    message.install_snapshot.last_index = 9;
    message.install_snapshot.last_term = 4;
    message.install_snapshot.conf_index = 1;
    message.install_snapshot.data = {data.data(), data.size()};
    (void)send(message, 2, configuration_);
  }
  const replicated::Replica& replica() const { return *replica_; }
  uint64_t committed() const { return replica_->state().commit_index; }

 private:
  std::string uri(uint32_t host) { return simulation_->host(host).uri(); }

  /// Adds entries 1 to 3, and entries 4 and 5 of a leader of term 3 that has committed neither.
  void fill_log() {
    raft_configuration configuration;
    raft_configuration_init(&configuration);
    for (uint64_t id = 1; id <= 3; id++) {
      ASSERT_EQ(raft_configuration_add(&configuration, id, uri(id == 1 ? 0 : 1).append(id == 3 ? "/3" : "").c_str(),
                                       id == 1 ? role_ : RAFT_VOTER),
                0);
    }
    configuration_ = replicated::encode_configuration(configuration);
    raft_configuration_close(&configuration);
    const std::vector<Entry> entries = {{1, RAFT_CHANGE, replicated::as_bytes(configuration_)},
                                        {2, RAFT_BARRIER, {}},
                                        {2, RAFT_BARRIER, {}},
                                        {3, RAFT_BARRIER, {}},
                                        {3, RAFT_BARRIER, {}}};
    ASSERT_EQ(storage_->set_term(3), "");
    ASSERT_EQ(storage_->append(entries), "");
  }
  void boot_replica() {
    const auto status = simulation_->host(0).boot([this](tern::sim::Host& host) {
      auto node = std::make_shared<replicated::Node<tern::Sim>>();
      replicated::ReplicaOptions options;
      options.port.cluster = 1;
      options.port.id = 1;
      options.port.address = host.uri();
      options.port.election_timeout = kElection;
      EXPECT_EQ(node->open(host.uri(), host.nexus_options(), host.transport_options(), {.huge_pages = false}, *storage_,
                           options),
                "");
      replica_ = node->replica.get();
      EXPECT_TRUE(host.run(*node->rpc).ok());
      return node;
    });
    ASSERT_TRUE(status.ok());
  }
  void boot_leader() {
    struct Program {
      std::unique_ptr<tern::Nexus> nexus;
      std::unique_ptr<tern::Rpc<tern::Sim>> rpc;
    };
    const auto status = simulation_->host(1).boot([this](tern::sim::Host& host) {
      auto program = std::make_shared<Program>();
      program->nexus = std::move(*tern::Nexus::create(host.uri(), host.nexus_options()));
      program->rpc =
          std::move(*tern::Rpc<tern::Sim>::create(*program->nexus, host.transport_options(), {.huge_pages = false}));
      EXPECT_TRUE(host.run(*program->rpc).ok());
      rpc_ = program->rpc.get();
      return program;
    });
    ASSERT_TRUE(status.ok());
  }

  std::string configuration_;  ///< the configuration of replicas 1 to 3
  std::unique_ptr<replicated::Storage> storage_;
  const int role_;
  tern::Rpc<tern::Sim>* rpc_ = nullptr;
  const replicated::Replica* replica_ = nullptr;
  std::unique_ptr<tern::sim::Simulation> simulation_;  ///< destroyed first
};

/// libraft itself answers 5. A leader whose log ends at 4 would then take entry 4 of another leader for its own.
TEST(Answer, heartbeat_is_answered_with_the_compared_length) {
  Follower follower;
  const Answer answer = follower.append(5, 3, 2);
  ASSERT_TRUE(answer.has_come);
  EXPECT_EQ(answer.rejected, 0u);
  EXPECT_EQ(answer.last_index, 3u);
}

/// A leader that has shortened an append still names the commit index of its whole log. libraft would commit entries 4
/// and 5.
TEST(Answer, heartbeat_commits_only_compared_entries) {
  Follower follower;
  const Answer answer = follower.append(5, 3, 2, 6);
  ASSERT_TRUE(answer.has_come);
  EXPECT_EQ(answer.rejected, 0u);
  EXPECT_EQ(follower.committed(), 3u);
}

TEST(Answer, refused_append_is_answered_with_the_length_of_the_log) {
  Follower follower;
  const Answer answer = follower.append(5, 5, 4);
  ASSERT_TRUE(answer.has_come);
  EXPECT_EQ(answer.rejected, 5u);
  EXPECT_EQ(answer.last_index, 5u);
}

/// libraft would continue with a log that lacks the entries of the snapshot. It also does not free all of the snapshot,
/// so LeakSanitizer must check this test and the next two.
TEST(Answer, replica_stops_at_a_snapshot_that_it_cannot_read) {
  Follower follower;
  follower.send_snapshot("no snapshot of ours");
  EXPECT_NE(follower.replica().problem().find("a snapshot cannot be read"), std::string::npos)
      << follower.replica().problem();
}

/// A leader that missed some answers sends entries that are in a snapshot here. libraft refuses them for ever (seed
/// 8790 of raft_check, while no command came).
TEST(Answer, append_that_begins_before_a_snapshot_is_taken) {
  Follower follower;
  const replicated::Machine machine;
  std::string data(machine.snapshot_bytes(), '\0');
  machine.write_snapshot(std::as_writable_bytes(std::span(data)));
  follower.send_snapshot(data);
  follower.wait(50ms);
  ASSERT_EQ(follower.replica().state().log.snapshot.last_index, 9u);
  const Answer heartbeat = follower.append(5, 6, 4);
  ASSERT_TRUE(heartbeat.has_come);
  EXPECT_EQ(heartbeat.rejected, 0u);
  EXPECT_EQ(heartbeat.last_index, 6u);
  for (const unsigned count : {2u, 3u, 5u}) {
    std::vector<raft_entry> entries(count, raft_entry{5, RAFT_BARRIER, {}, nullptr});
    entries[0].term = entries[1].term = 4;
    raft_message message = {};
    message.type = RAFT_IO_APPEND_ENTRIES;
    message.append_entries = {5, 6, 4, 0, entries.data(), count};
    const Answer answer = follower.send(message, 2);
    ASSERT_TRUE(answer.has_come);
    EXPECT_EQ(answer.rejected, 0u);
    EXPECT_EQ(answer.last_index, 6u + count);
  }
  EXPECT_EQ(follower.replica().state().last_stored, 11u);
}

TEST(Answer, replica_ends_while_it_stores_a_snapshot) {
  struct SlowStorage : replicated::MemoryStorage {
    void put_snapshot(std::shared_ptr<const replicated::Snapshot>, std::function<void(std::string)>) override {}
  };
  Follower follower(std::make_unique<SlowStorage>());
  follower.send_snapshot("is not read");
  EXPECT_EQ(follower.replica().problem(), "");
  EXPECT_EQ(follower.replica().counters().snapshots_received, 1u);
}

TEST(Answer, replica_stops_when_it_cannot_store_the_term_of_a_snapshot) {
  struct FullStorage : replicated::MemoryStorage {
    std::string set_term(uint64_t term) override { return term < 5 ? MemoryStorage::set_term(term) : "disk full"; }
  };
  Follower follower(std::make_unique<FullStorage>());
  follower.send_snapshot("is not read");
  EXPECT_EQ(follower.replica().problem(), "disk full");
}

TEST(Answer, senders_of_invented_ids_are_forgotten) {
  Follower follower;
  raft_message message = {};
  message.type = RAFT_IO_APPEND_ENTRIES;
  message.append_entries.term = 1;  // an old term
  for (uint64_t id = 100; id < 300; id++) ASSERT_TRUE(follower.send(message, id).has_come) << id;
  EXPECT_GE(follower.replica().counters().forgotten, 200u - 64);
  EXPECT_EQ(follower.append(5, 3, 2).last_index, 3u);
}

/// The entry that makes this replica a voter may be committed, but not yet in its log. libraft lets only voters forget
/// a leader.
TEST(Answer, replica_that_is_no_voter_yet_votes_when_its_leader_is_gone) {
  Follower follower(std::make_unique<replicated::MemoryStorage>(), RAFT_STANDBY);
  follower.wait(2 * kElection);  // a restarted replica must wait this long
  ASSERT_TRUE(follower.append(5, 3, 2).has_come);
  follower.wait(kElection * 9 / 10);
  const Answer early = follower.ask_for_vote(6);
  ASSERT_TRUE(early.has_come);
  EXPECT_FALSE(early.is_granted);  // leases depend on this refusal
  follower.wait(kElection);
  const Answer late = follower.ask_for_vote(6);
  ASSERT_TRUE(late.has_come);
  EXPECT_TRUE(late.is_granted);
}

}  // namespace
}  // namespace raft_test
