// The programs of apps/raft as their users run them. raft_cluster's load itself checks that no acknowledged write is
// lost.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "e2e/any_rpc.h"
#include "e2e/killed.h"
#include "e2e/program.h"
#include "own_folder.h"
#include "own_loopback.h"

namespace {

using testing::HasSubstr;

using e2e::Outcome;
using e2e::run;

/// How often a leader is killed. TERN_RAFT_KILLS changes it for long runs.
std::string kills(int otherwise) {
  const char* wanted = std::getenv("TERN_RAFT_KILLS");
  return "--kills=" + (wanted != nullptr ? std::string(wanted) : std::to_string(otherwise));
}

bool is_software_device(std::string_view transport) { return transport == "verbs" || transport == "mlx5"; }

/// A failover of replicas takes long under sanitizers, so each test has one transport there.
std::vector<const char*> over(bool has_software_devices, [[maybe_unused]] std::string_view with_sanitizers) {
  std::vector<const char*> names = e2e::transports_of_one_host();
  std::erase_if(names, [&](std::string_view name) {
#ifdef TERN_IS_SANITIZED
    if (name != with_sanitizers) return true;
#endif
    return !has_software_devices && is_software_device(name);
  });
  return names;
}

struct Directory : tern::test::OwnFolder {
  Directory() : OwnFolder(std::filesystem::temp_directory_path() / "raft-test") {}
};

/// raft_servers that run until this object ends.
class Servers {
 public:
  ~Servers() {
    for (size_t i = 0; i < pids_.size(); i++) kill(i);
  }
  size_t start(const std::string& flags) {
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      const std::string command = "exec '" TERN_BUILD_DIR "'/apps/raft_server --wait=block --election_ms=500 " + flags;
      execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
      _exit(1);
    }
    pids_.push_back(pid);
    return pids_.size() - 1;
  }
  void kill(size_t i) {
    if (pids_[i] <= 0) return;
    e2e::kill_running(pids_[i]);
    pids_[i] = -1;
  }

 private:
  std::vector<pid_t> pids_;
};

std::string address(int replica) { return tern::test::own_loopback() + ":" + std::to_string(31949 + replica); }
std::string members(std::initializer_list<int> replicas) {
  std::string list;
  for (const int replica : replicas) {
    list += (list.empty() ? "" : ",") + std::to_string(replica) + "=" + address(replica);
  }
  return list;
}

}  // namespace

class RaftFromDisk : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Over, RaftFromDisk, testing::ValuesIn(over(true, "udp")),
                         [](const auto& with) { return std::string(with.param); });

TEST_P(RaftFromDisk, nothing_is_lost_when_leaders_are_killed) {
  const Directory directory;
  const Outcome outcome =
      run("raft_cluster --json --clients=4 --election_ms=500 --transport=" + std::string(GetParam()) +
          " --storage=" + directory.file("replicas") + " " + kills(is_software_device(GetParam()) ? 1 : 2));
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("\"kills\":"));
  EXPECT_THAT(outcome.output, testing::Not(HasSubstr("\"read_back\":0")));
}

class RaftWithoutMemory : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Over, RaftWithoutMemory, testing::ValuesIn(over(false, "shm")),
                         [](const auto& with) { return std::string(with.param); });

TEST_P(RaftWithoutMemory, nothing_is_lost_when_leaders_are_killed) {
  const Outcome outcome =
      run("raft_cluster --json --clients=4 --election_ms=500 --transport=" + std::string(GetParam()) + " " + kills(2));
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("\"kills\":"));
}

#ifndef TERN_IS_SANITIZED  // replicas with sanitizers take minutes for 100 MB
TEST(RaftSnapshot, replica_without_memory_gets_100_megabytes) {
  const std::string transport = " --transport=shm";
  Servers servers;
  const std::string list = members({1, 2, 3}),
                    flags = transport + " --election_ms=3000 --snapshot_entries=60 --trailing_entries=5";
  std::vector<size_t> places;
  for (int i = 1; i <= 3; i++) {
    places.push_back(servers.start("--id=" + std::to_string(i) + " --replicas=" + list + flags));
  }
  const std::string client = "raft_client --patience_seconds=60 --replicas=" + list + transport;
  // 110 values of 1 MB, each of another key.
  const Outcome load =
      run(client + " --load --keys=110 --load_all --value_bytes=1000000 --seconds=0.001 --read_back=3");
  ASSERT_EQ(load.code, 0) << load.output;
  servers.kill(places[2]);
  servers.start("--id=4 --join=" + address(4) + flags);
  Outcome outcome = run(client + " --remove=3");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  outcome = run(client + " --add=4=" + address(4));
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  outcome = run("raft_client --about --replicas=" + members({4}) + transport);
  EXPECT_THAT(outcome.output, HasSubstr("\"snapshots_received\":")) << outcome.output;
  EXPECT_THAT(outcome.output, testing::Not(HasSubstr("\"snapshots_received\":0"))) << outcome.output;
}
#endif

TEST(Raft, one_command_after_the_other) {
  Servers servers;
  const std::string list = members({1, 2, 3});
  for (int i = 1; i <= 3; i++) servers.start("--transport=udp --id=" + std::to_string(i) + " --replicas=" + list);
  const std::string client = "raft_client --transport=udp --replicas=" + list;
  EXPECT_EQ(run(client + " --put=colour=blue").code, 0);
  EXPECT_EQ(run(client + " --get=colour").output, "blue\n");
  EXPECT_EQ(run(client + " --get=colour >/dev/full").code, 1);
  EXPECT_EQ(run(client + " --swap=colour=blue=green").code, 0);
  EXPECT_THAT(run(client + " --swap=colour=blue=red").output, HasSubstr("another value is there"));
  EXPECT_EQ(run(client + " --get=colour --lease_reads").output, "green\n");
  EXPECT_EQ(run(client + " --erase=colour").code, 0);
  EXPECT_THAT(run(client + " --get=colour").output, HasSubstr("there is no such key"));
  EXPECT_EQ(run(client + " --put=sum=1+1=2").code, 0);  // only the first '=' ends the key
  EXPECT_EQ(run(client + " --get=sum").output, "1+1=2\n");
  EXPECT_THAT(run(client + " --about").output, HasSubstr("\"state\":\"leader\""));
  EXPECT_THAT(run(client + " --get=colour --cluster=other").output, HasSubstr("belongs to another cluster"));
}

TEST(RaftBadUse, replica_of_another_cluster_is_refused_with_a_sentence) {
  Servers servers;
  const std::string list = members({1, 2, 3});
  for (int i = 1; i <= 2; i++) servers.start("--transport=udp --id=" + std::to_string(i) + " --replicas=" + list);
  const Directory directory;
  const std::string log = directory.file("log");
  servers.start("--transport=udp --cluster=other --id=3 --replicas=" + list + " 2>" + log);
  std::string said;
  for (int tries = 0; tries < 2000 && said.find("refuses this one") == said.npos; tries++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::ifstream file(log);
    said.assign(std::istreambuf_iterator<char>(file), {});
  }
  EXPECT_THAT(said, HasSubstr("it belongs to another cluster: give both the same --cluster"));
}

TEST(RaftBadUse, replica_with_an_id_of_another_one_stops_with_a_sentence) {
  Servers servers;
  const std::string list = members({1, 2, 3});
  for (int i = 1; i <= 3; i++) servers.start("--transport=udp --id=" + std::to_string(i) + " --replicas=" + list);
  ASSERT_EQ(run("raft_client --transport=udp --put=key=value --replicas=" + list).code, 0);
  const Outcome outcome =
      run("raft_server --transport=udp --wait=block --election_ms=500 --id=2 --replicas=1=" + address(1) +
          ",2=" + address(9) + ",3=" + address(3));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output,
              HasSubstr("another replica has the id of this one: start this one with an id of its own"));
}

TEST(RaftBadUse, replica_without_its_memory_stops_with_a_sentence) {
  Servers servers;
  const std::string list = members({1, 2, 3});
  std::vector<size_t> places;
  for (int i = 1; i <= 3; i++) {
    places.push_back(servers.start("--transport=udp --id=" + std::to_string(i) + " --replicas=" + list));
  }
  ASSERT_EQ(run("raft_client --transport=udp --put=key=value --replicas=" + list).code, 0);
  servers.kill(places[0]);
  const Outcome outcome = run("raft_server --transport=udp --wait=block --election_ms=500 --id=1 --replicas=" + list);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("start this replica with a new id and --join"));
}

TEST(RaftBadUse, directory_of_another_replica_is_refused) {
  const Directory directory;
  const std::string replicas = "--transport=udp --wait=block --replicas=" + members({1, 2, 3});
  Servers servers;
  servers.start("--transport=udp --id=1 --replicas=" + members({1, 2, 3}) + " --storage=" + directory.file("r"));
  for (int tries = 0; tries < 2000 && !std::filesystem::exists(directory.file("r/replica")); tries++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  Outcome outcome = run("raft_server --id=2 --storage=" + directory.file("r") + " " + replicas);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("another replica uses it"));
  servers.kill(0);
  outcome = run("raft_server --id=2 --storage=" + directory.file("r") + " " + replicas);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("this is the directory of replica 1 of raft, not of replica 2 of raft"));
}

TEST(Raft, directory_whose_first_start_was_cut_off_is_used) {
  const Directory directory;
  const std::string own = directory.file("r");
  std::filesystem::create_directory(own);
  std::ofstream(own + "/replica.new") << "repl";
  Servers servers;
  servers.start("--transport=udp --id=1 --replicas=" + members({1, 2, 3}) + " --storage=" + own);
  for (int tries = 0; tries < 2000 && !std::filesystem::exists(own + "/replica"); tries++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(std::filesystem::exists(own + "/replica"));
  EXPECT_FALSE(std::filesystem::exists(own + "/replica.new"));
}

TEST(RaftBadUse, client_without_exactly_one_command_is_refused) {
  const std::string client = "raft_client --replicas=" + members({1, 2, 3});
  for (const char* const flags : {"", " --put=x=1 --get=x", " --erase=a --put=b=c", " --load --put=a=b",
                                  " --about --get=", " --add=4=127.0.0.1:1 --remove=3"}) {
    const Outcome outcome = run(client + flags);
    EXPECT_EQ(outcome.code, 1) << flags;
    EXPECT_THAT(outcome.output, HasSubstr("give exactly one command")) << flags;
  }
}

TEST(RaftBadUse, command_of_another_form_is_refused_with_its_form) {
  const std::string client = "raft_client --replicas=" + members({1, 2, 3});
  for (const char* const flags : {"--get=", "--erase="}) {
    EXPECT_THAT(run(client + " " + flags).output, HasSubstr("must be a KEY that is not empty")) << flags;
  }
  for (const char* const flags : {"--put=", "--put=colour", "--put==blue"}) {
    EXPECT_THAT(run(client + " " + flags).output, HasSubstr("--put must be KEY=VALUE")) << flags;
  }
  for (const char* const flags : {"--swap=", "--swap=colour", "--swap=colour=blue", "--swap==blue=green"}) {
    EXPECT_THAT(run(client + " " + flags).output, HasSubstr("--swap must be KEY=OLD=NEW")) << flags;
  }
  EXPECT_THAT(run(client + " --remove=0").output, HasSubstr("--remove must be an id above 0"));
  EXPECT_THAT(run(client + " --add=").output, HasSubstr("--add is ID=HOST:PORT"));
}

TEST(RaftBadUse, flags_that_make_no_sense_are_refused) {
  const std::string list = members({1, 2, 3});
  EXPECT_THAT(run("raft_server --id=1").output, HasSubstr("give either --replicas"));
  EXPECT_THAT(run("raft_server --id=4 --replicas=" + list).output, HasSubstr("--id=4 is not one of --replicas"));
  EXPECT_THAT(run("raft_server --id=1 --replicas=" + members({1, 2})).output, HasSubstr("three to seven"));
  EXPECT_THAT(run("raft_server --id=1 --replicas=one").output, HasSubstr("'one' is not a replica"));
  EXPECT_THAT(run("raft_server --id=1 --replicas=1=a:1,1=b:1,3=c:1").output, HasSubstr("appears twice"));
  EXPECT_THAT(run("raft_client --get=key").output, HasSubstr("--replicas is missing"));
  EXPECT_THAT(run("raft_cluster --size=2").output, HasSubstr("--size must be between 3 and 7"));
  EXPECT_THAT(run("raft_sim --batch_max=0").output, HasSubstr("--batch_max between 1 and 1024"));
  EXPECT_THAT(run("raft_sim --batch_max=1025").output, HasSubstr("--batch_max between 1 and 1024"));
  EXPECT_THAT(run("raft_sim --operations=0").output, HasSubstr("--operations at least 1"));
  EXPECT_THAT(run("raft_sim --step_ns=-1,2,3,4,5").output, HasSubstr("--step_ns must be five times in ns"));
  EXPECT_THAT(run("raft_sim --wait=block").output, HasSubstr("--wait does not work in a simulation"));
  EXPECT_THAT(run("raft_sim --seconds=1").output, HasSubstr("--seconds has no effect"));
  EXPECT_THAT(run("raft_sim --step_ns=1,2,3,4,5 --cpus=0").output, HasSubstr("--cpus has no effect with --step_ns"));
}
