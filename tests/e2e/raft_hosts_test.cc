// Replicas and a client on hosts of their own, over the transports that need a host for each process. The hosts are
// namespaces at one switch. raft_test.cc has the other transports.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "e2e/any_rpc.h"
#include "e2e/killed.h"
#include "e2e/namespaces.h"

namespace {

using e2e::Namespace;

constexpr int kReplicas = 3;

class RaftOnHosts : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string missing = Namespace::missing(); !missing.empty()) GTEST_SKIP() << "SKIPPED: " << missing;
    ASSERT_TRUE(switch_.emplace("switch").is_made());
    ASSERT_TRUE(switch_->in("ip link add hub type bridge") && switch_->in("ip link set hub up"));
    for (int i = 1; i <= kReplicas + 1; i++) {
      const std::string number = std::to_string(i);
      const auto& host = hosts_.emplace_back(std::make_unique<Namespace>(number));
      ASSERT_TRUE(host->is_made());
      ASSERT_TRUE(host->in("ip link add tern0 type veth peer name port" + number + " netns " + switch_->name()));
      ASSERT_TRUE(switch_->in("ip link set port" + number + " master hub up"));
      ASSERT_TRUE(host->in("ip address add 10.79.0." + number + "/24 dev tern0") && host->in("ip link set tern0 up"));
    }
  }
  ~RaftOnHosts() override {
    for (int i = 1; i <= static_cast<int>(replicas_.size()); i++) kill_replica(i);
  }

  void start_replica(int id) {
    const std::string command =
        "exec ip netns exec " + hosts_[static_cast<size_t>(id - 1)]->name() +
        " '" TERN_BUILD_DIR "'/apps/raft_server --wait=block --election_ms=500 --id=" + std::to_string(id) + flags();
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
      _exit(1);
    }
    replicas_.push_back(pid);
  }
  void kill_replica(int id) {
    pid_t& pid = replicas_[static_cast<size_t>(id - 1)];
    if (pid <= 0) return;
    e2e::kill_running(pid);
    pid = -1;
  }
  /// Runs the client on the host without a replica, which says what fails. True: it exited with 0.
  bool run_client(const std::string& its_flags) const {
    const std::string command = "ip netns exec " + hosts_.back()->name() +
                                " timeout -k 5 100 '" TERN_BUILD_DIR "'/apps/raft_client --patience_seconds=60 " +
                                its_flags + flags();
    return std::system((command + " >/dev/null").c_str()) == 0;
  }

 private:
  static std::string flags() {
    const bool is_dpdk = std::string_view(GetParam()) == "dpdk";
    return " --transport=" + std::string(GetParam()) +
           " --replicas=1=10.79.0.1:31850,2=10.79.0.2:31850,3=10.79.0.3:31850" +
           (is_dpdk ? " '--transport_options=device=net_af_packet0;iface=tern0'" : "");
  }

  std::optional<Namespace> switch_;
  std::vector<std::unique_ptr<Namespace>> hosts_;
  std::vector<pid_t> replicas_;
};

std::vector<const char*> over_hosts() {
  std::vector<const char*> names = e2e::transports();
  std::erase_if(names, [](std::string_view name) { return name != "xdp" && name != "dpdk"; });
  return names;
}
INSTANTIATE_TEST_SUITE_P(Over, RaftOnHosts, testing::ValuesIn(over_hosts()),
                         [](const auto& with) { return std::string(with.param); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RaftOnHosts);

TEST_P(RaftOnHosts, nothing_is_lost_when_a_replica_is_killed) {
  for (int id = 1; id <= kReplicas; id++) start_replica(id);
  ASSERT_TRUE(run_client("--put=colour=blue"));
  kill_replica(1);  // it may be the leader or a follower
  EXPECT_TRUE(run_client("--load --clients=2 --keys=100 --operations=200 --read_back=50"));
  EXPECT_TRUE(run_client("--swap=colour=blue=green")) << "the swap succeeds if the value is still blue";
}

}  // namespace
