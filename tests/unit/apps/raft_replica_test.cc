// Replicas of apps/raft on simulated hosts, one thing at a time. The simulator's test under all faults is another.
#include "unit/apps/raft_cluster.h"

namespace {

using namespace replicated_test;
using replicated::Operation;

TEST(RaftReplica, three_replicas_elect_a_leader_and_store_what_clients_put) {
  Cluster cluster(3);
  ASSERT_TRUE(cluster.wait_for_leader());
  for (int i = 0; i < 100; i++) {
    const auto result = cluster.put("key" + std::to_string(i % 10), std::to_string(i));
    ASSERT_TRUE(result.has_ended);
    ASSERT_EQ(result.problem, "");
    ASSERT_EQ(result.outcome, Outcome::kDone);
  }
  const auto result = cluster.get("key3");
  EXPECT_EQ(result.problem, "");
  EXPECT_EQ(result.value, "93");
  EXPECT_EQ(cluster.get("nothing").outcome, Outcome::kNotFound);
  cluster.simulation().run_for(50ms);
  for (uint32_t i = 0; i < 3; i++) EXPECT_EQ(cluster.replica(i)->machine().keys(), 10u) << i;
}

}  // namespace
