// Replicas of apps/raft on simulated hosts, one situation in each test. tests/raft/sim runs them under all faults.
#include "unit/apps/raft_cluster.h"

namespace {

using namespace replicated_test;
using replicated::Operation;

TEST(RaftReplica, three_replicas_elect_a_leader_and_store_puts) {
  Cluster cluster;
  ASSERT_TRUE(cluster.wait_for_leader());
  for (int i = 0; i < 100; i++) {
    const auto result = cluster.put("key" + std::to_string(i % 10), std::to_string(i));
    ASSERT_EQ(result.problem, "");
    ASSERT_EQ(result.outcome, Outcome::kDone);
  }
  EXPECT_EQ(cluster.get("key3").value, "93");
  EXPECT_EQ(cluster.get("nothing").outcome, Outcome::kNotFound);
  cluster.simulation().run_for(50ms);
  for (uint32_t i = 0; i < 3; i++) EXPECT_EQ(cluster.replica(i)->machine().keys(), 10u) << i;
}

TEST(RaftReplica, seven_replicas_go_on_without_three) {
  Cluster cluster({.begin = 7});
  ASSERT_TRUE(cluster.wait_for_leader());
  EXPECT_EQ(cluster.put("key", "before").outcome, Outcome::kDone);
  for (int i = 0; i < 3; i++) {
    cluster.crash(cluster.leader());
    ASSERT_TRUE(cluster.wait_for_leader());
    EXPECT_EQ(cluster.get("key").value, "before");
  }
  EXPECT_EQ(cluster.put("key", "after").outcome, Outcome::kDone);
}

/// Two replicas receive a command one turn later than the majority that the client waits for.
TEST(RaftReplica, all_five_replicas_have_a_command_soon) {
  Cluster cluster({.begin = 5});
  ASSERT_TRUE(cluster.wait_for_leader());
  cluster.simulation().run_for(5ms);
  for (int i = 0; i < 20; i++) {
    ASSERT_EQ(cluster.put("key", std::to_string(i)).outcome, Outcome::kDone);
    cluster.simulation().run_for(20us);  // much less than a heartbeat
    for (uint32_t j = 0; j < 5; j++) {
      const raft& state = cluster.replica(j)->state();
      EXPECT_EQ(state.last_stored, cluster.replica(cluster.leader())->state().last_stored) << j;
    }
  }
}

TEST(RaftReplica, replica_comes_back_from_its_storage) {
  Cluster cluster;
  ASSERT_TRUE(cluster.wait_for_leader());
  for (int i = 0; i < 20; i++) {
    const uint32_t victim = cluster.leader();
    cluster.crash(victim);
    const auto result = cluster.put("key", std::to_string(i));
    ASSERT_EQ(result.problem, "");
    cluster.boot(victim);
    cluster.simulation().run_for(100ms);
    ASSERT_EQ(cluster.replica(victim)->problem(), "");
    const auto log_end = cluster.replica(cluster.leader())->state().commit_index;
    EXPECT_EQ(cluster.replica(victim)->state().commit_index, log_end) << "it has not caught up";
  }
  EXPECT_EQ(cluster.get("key").value, "19");
}

TEST(RaftReplica, all_come_back_from_their_storages) {
  Cluster cluster;
  ASSERT_TRUE(cluster.wait_for_leader());
  EXPECT_EQ(cluster.put("key", "value").outcome, Outcome::kDone);
  for (uint32_t i = 0; i < 3; i++) cluster.crash(i);
  for (uint32_t i = 0; i < 3; i++) cluster.boot(i);
  ASSERT_TRUE(cluster.wait_for_leader());
  EXPECT_EQ(cluster.get("key").value, "value");
}

TEST(RaftReplica, replica_that_has_lost_its_memory_is_refused_under_its_old_id) {
  Cluster cluster;
  ASSERT_TRUE(cluster.wait_for_leader());
  const uint32_t victim = (cluster.leader() + 1) % 3;
  cluster.crash(victim);
  cluster.forget(victim);
  cluster.boot(victim);
  ASSERT_TRUE(cluster.simulation().run_until([&] { return !cluster.replica(victim)->problem().empty(); }, 1s));
  EXPECT_NE(cluster.replica(victim)->problem().find("start this replica with a new id"), std::string::npos)
      << cluster.replica(victim)->problem();
  EXPECT_EQ(cluster.put("key", "value").outcome, Outcome::kDone) << "the others go on";
}

TEST(RaftReplica, voter_that_has_lost_its_memory_and_waits_to_be_added_stops) {
  bool is_joining = false;
  Cluster cluster({.tune = [&](uint32_t, replicated::ReplicaOptions& options) {
    if (is_joining) options.replicas.clear();
  }});
  ASSERT_TRUE(cluster.wait_for_leader());
  EXPECT_EQ(cluster.put("key", "value").outcome, Outcome::kDone);
  const uint32_t victim = (cluster.leader() + 1) % 3;
  cluster.crash(victim);
  cluster.forget(victim);
  is_joining = true;
  cluster.boot(victim);
  ASSERT_TRUE(cluster.simulation().run_until([&] { return !cluster.replica(victim)->problem().empty(); }, 1s));
  EXPECT_NE(cluster.replica(victim)->problem().find("counts this replica as a voter: this id has taken part before"),
            std::string::npos)
      << cluster.replica(victim)->problem();
  EXPECT_EQ(cluster.replica(victim)->machine().keys(), 0u);
  EXPECT_EQ(cluster.put("key", "later").outcome, Outcome::kDone) << "the others go on";
}

TEST(RaftReplica, added_replica_that_has_lost_its_memory_begins_no_other_cluster) {
  bool is_lost = false;
  Cluster* made = nullptr;
  Cluster cluster({.begin = 3, .spares = 1, .tune = [&](uint32_t i, replicated::ReplicaOptions& options) {
                     if (!is_lost || i != 3) return;
                     for (uint32_t j = 0; j < 4; j++) options.replicas.emplace_back(j + 1, made->uri(j));
                   }});
  made = &cluster;
  ASSERT_TRUE(cluster.wait_for_leader());
  EXPECT_EQ(cluster.change(replicated::Action::kAdd, 4, cluster.uri(3)), "done");
  cluster.crash(3);
  cluster.forget(3);
  is_lost = true;
  cluster.boot(3);
  ASSERT_TRUE(cluster.simulation().run_until([&] { return !cluster.replica(3)->problem().empty(); }, 1s));
  EXPECT_NE(cluster.replica(3)->problem().find("this id has taken part before"), std::string::npos)
      << cluster.replica(3)->problem();
}

/// Replica 3 becomes a voter by an entry that the two others commit. One of the others crashes before the entry reaches
/// replica 3.
TEST(RaftReplica, replica_votes_before_it_knows_that_it_is_a_voter) {
  Cluster cluster({.begin = 1, .spares = 2});
  ASSERT_TRUE(cluster.wait_for_leader());
  EXPECT_EQ(cluster.change(replicated::Action::kAdd, 2, cluster.uri(1)), "done");
  const auto role_of_3 = [&](uint32_t at) {
    const raft_configuration& known = cluster.replica(at)->state().configuration;
    for (unsigned i = 0; i < known.n; i++) {
      if (known.servers[i].id == 3) return known.servers[i].role;
    }
    return -1;
  };
  cluster.start_change(replicated::Action::kAdd, 3, cluster.uri(2));
  ASSERT_TRUE(cluster.simulation().run_until([&] { return role_of_3(0) == RAFT_VOTER; }, 1s));
  ASSERT_EQ(role_of_3(2), RAFT_SPARE);
  cluster.crash(2);
  ASSERT_TRUE(cluster.simulation().run_until(
      [&] {
        const raft& leader = cluster.replica(0)->state();
        return leader.configuration_uncommitted_index == 0 && leader.commit_index >= leader.configuration_index;
      },
      1s));
  cluster.crash(0);
  cluster.crash(1);
  cluster.boot(0);
  cluster.boot(2);
  EXPECT_TRUE(cluster.wait_for_leader());
  EXPECT_EQ(cluster.put("key", "value").outcome, Outcome::kDone);
}

TEST(RaftReplica, long_commands_bring_a_snapshot_sooner) {
  Cluster cluster({.tune = [](uint32_t, replicated::ReplicaOptions& options) { options.snapshot_bytes = 10'000; }});
  ASSERT_TRUE(cluster.wait_for_leader());
  for (int i = 0; i < 50; i++) ASSERT_EQ(cluster.put("key", std::string(1000, 'x')).outcome, Outcome::kDone);
  cluster.simulation().run_for(100ms);
  for (uint32_t i = 0; i < 3; i++) {
    const raft& state = cluster.replica(i)->state();
    EXPECT_GT(state.log.snapshot.last_index, 30u);
    EXPECT_GT(state.log.offset, 20u) << "and the entries before it are gone";
  }
}

TEST(RaftReplica, commands_that_wait_are_bounded_in_bytes) {
  Cluster cluster({.tune = [](uint32_t, replicated::ReplicaOptions& options) { options.queue_bytes_max = 500; }});
  ASSERT_TRUE(cluster.wait_for_leader());
  for (int i = 0; i < 50; i++) ASSERT_EQ(cluster.put("key", std::string(300, 'x')).outcome, Outcome::kDone);
  EXPECT_NE(cluster.put("key", std::string(600, 'x')).problem, "") << "until its patience ends";
  EXPECT_EQ(cluster.get("key").value, std::string(300, 'x'));
}

TEST(RaftReplica, new_replica_is_added_and_old_one_removed) {
  Cluster cluster({.begin = 3, .spares = 1});
  ASSERT_TRUE(cluster.wait_for_leader());
  EXPECT_EQ(cluster.put("key", "value").outcome, Outcome::kDone);
  EXPECT_EQ(cluster.change(replicated::Action::kAdd, 4, cluster.uri(3)), "done");
  EXPECT_EQ(cluster.change(replicated::Action::kRemove, 1), "done");
  EXPECT_EQ(cluster.change(replicated::Action::kRemove, 1), "done") << "asked twice";
  cluster.crash(0);
  ASSERT_TRUE(cluster.wait_for_leader());
  EXPECT_EQ(cluster.get("key").value, "value");
  EXPECT_EQ(cluster.replica(3)->state().configuration.n, 3u);
  EXPECT_NE(cluster.change(replicated::Action::kAdd, 1, cluster.uri(0)).find("ids up to 4 have been used"),
            std::string::npos);
  // Three replicas are left, and a majority is two: one replica may crash.
  cluster.crash(cluster.leader());
  ASSERT_TRUE(cluster.wait_for_leader());
  EXPECT_EQ(cluster.put("key", "later").outcome, Outcome::kDone);
}

TEST(RaftReplica, replica_far_behind_gets_a_snapshot) {
  Cluster cluster({.tune = [](uint32_t, replicated::ReplicaOptions& options) {
    options.snapshot_entries = 50;
    options.trailing_entries = 5;
  }});
  ASSERT_TRUE(cluster.wait_for_leader());
  const uint32_t victim = (cluster.leader() + 1) % 3;
  cluster.crash(victim);
  for (int i = 0; i < 200; i++) ASSERT_EQ(cluster.put("key" + std::to_string(i), std::string(1000, 'x')).problem, "");
  cluster.boot(victim);
  cluster.simulation().run_for(200ms);
  EXPECT_EQ(cluster.replica(victim)->machine().keys(), 200u);
  EXPECT_GE(cluster.replica(victim)->counters().snapshots_received, 1u);
  // The replica recovers from a snapshot, too.
  cluster.crash(victim);
  cluster.boot(victim);
  cluster.simulation().run_for(100ms);
  EXPECT_EQ(cluster.replica(victim)->machine().keys(), 200u);
  EXPECT_EQ(cluster.replica(victim)->problem(), "");
}

TEST(RaftReplica, swap_is_executed_once_although_its_answer_is_lost) {
  Cluster cluster;
  ASSERT_TRUE(cluster.wait_for_leader());
  EXPECT_EQ(cluster.put("key", "0").outcome, Outcome::kDone);
  cluster.simulation().set_faults({.drop = 0.1, .duplicate = 0.05, .reorder = 0.05});
  bool is_crashing = false;
  for (int i = 0; i < 50; i++) {
    const uint32_t leader = cluster.leader();
    if (i % 5 == 0 && leader < 3 && !is_crashing) {
      is_crashing = true;
      cluster.simulation().after(100us, [&cluster, leader] { cluster.crash(leader); });
      cluster.simulation().after(5ms, [&, leader] {
        cluster.boot(leader);
        is_crashing = false;
      });
    }
    const auto result = cluster.run(Operation::kSwap, "key", std::to_string(i + 1), std::to_string(i));
    ASSERT_EQ(result.problem, "");
    ASSERT_EQ(result.outcome, Outcome::kDone) << i;
  }
}

TEST(RaftReplica, leader_reads_by_its_lease_and_loses_it_with_its_majority) {
  Cluster cluster({.tune_client = [](replicated::ClientOptions& options) { options.has_lease_reads = true; }});
  ASSERT_TRUE(cluster.wait_for_leader());
  EXPECT_EQ(cluster.put("key", "value").outcome, Outcome::kDone);
  cluster.simulation().run_for(5ms);
  const uint32_t leader = cluster.leader();
  EXPECT_TRUE(cluster.replica(leader)->has_lease());
  const auto before = cluster.replica(leader)->state().commit_index;
  EXPECT_EQ(cluster.get("key").value, "value");
  EXPECT_EQ(cluster.replica(leader)->state().commit_index, before) << "the read went through the log";
  for (uint32_t i = 0; i < 3; i++) {
    if (i != leader) cluster.simulation().set_partition(i, leader, true);
  }
  cluster.simulation().run_for(kElection);
  EXPECT_FALSE(cluster.replica(leader)->has_lease());
}

TEST(RaftReplica, replica_of_another_cluster_is_refused) {
  std::vector<std::string> complaints;
  Cluster cluster({.tune = [&](uint32_t i, replicated::ReplicaOptions& options) {
    if (i == 2) options.port.cluster = 8;
    options.port.complain = [&](const std::string& sentence) { complaints.push_back(sentence); };
  }});
  ASSERT_TRUE(cluster.simulation().run_until([&] { return complaints.size() >= 3; }, 1s));
  for (const std::string& sentence : complaints) {
    EXPECT_NE(sentence.find("it belongs to another cluster"), std::string::npos) << sentence;
  }
  EXPECT_FALSE(cluster.wait_for_leader(100ms)) << "a cluster begins with all that are listed";
}

TEST(RaftReplica, second_replica_with_an_id_is_refused) {
  Cluster cluster(
      {.begin = 3, .spares = 1, .tune = [](uint32_t i, replicated::ReplicaOptions& options) {
         if (i != 3) return;
         options.port.id = 2;  // the id of another replica; this one is configured as an initial member of the cluster
         for (uint64_t j = 0; j < 3; j++) {
           options.replicas.emplace_back(j + 1, "tern://10.0.0." + std::to_string(j == 1 ? 4 : j + 1) + ":31850");
         }
       }});
  ASSERT_TRUE(cluster.wait_for_leader());
  ASSERT_TRUE(cluster.simulation().run_until([&] { return !cluster.replica(3)->problem().empty(); }, 1s));
  EXPECT_NE(cluster.replica(3)->problem().find("another replica has the id of this one"), std::string::npos)
      << cluster.replica(3)->problem();
}

TEST(RaftClient, gives_up_when_replicas_send_it_in_circles) {
  Cluster cluster({.tune_client = [](replicated::ClientOptions& options) { options.redirects_max = 5; }});
  ASSERT_TRUE(cluster.wait_for_leader());
  // The leader is cut off from the client. The other replicas name it until its session has failed, and then the client
  // asks it again.
  const uint32_t leader = cluster.leader();
  cluster.simulation().set_partition(3, leader, true);
  const auto result = cluster.put("key", "value");
  EXPECT_NE(result.problem.find("from one to the other 5 times"), std::string::npos) << result.problem;
}

TEST(RaftClient, gives_up_when_no_replica_answers) {
  Cluster cluster;
  for (uint32_t i = 0; i < 3; i++) cluster.crash(i);
  EXPECT_NE(cluster.put("key", "value").problem.find("no leader has answered within 2000 ms"), std::string::npos);
}

/// The end of the client's endpoint must be reported neither as a fault of the replicas nor as a lack of memory.
TEST(RaftClient, hears_nothing_after_the_end_of_its_endpoint) {
  Cluster cluster;
  ASSERT_TRUE(cluster.close_clients().ok());
  std::string problem;
  cluster.client().put("key", "value", [&](const replicated::Reply& reply) { problem = reply.problem; });
  EXPECT_EQ(problem, "");
}

TEST(RaftClient, of_another_cluster_is_refused) {
  Cluster cluster({.tune_client = [](replicated::ClientOptions& options) { options.cluster = 8; }});
  EXPECT_NE(cluster.put("key", "value").problem.find("belongs to another cluster"), std::string::npos);
}

}  // namespace
