// find_launch(): its results from valid and invalid environments of launchers and hosts files.
#include "../microbench/common/launch.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace programs {
namespace {

using Variables = std::map<std::string, std::string>;

constexpr uint16_t kPort = 31850;

class LaunchTest : public testing::Test {
 protected:
  /// Returns the text of the error, or an empty text with the result in `launch`.
  std::string find(const LaunchRequest& request, const Variables& variables = {}) {
    launch = {};
    return find_launch(
        request,
        [&](const char* name) {
          const auto found = variables.find(name);
          return found == variables.end() ? std::nullopt : std::optional(found->second);
        },
        launch);
  }
  /// Returns "HOST:PORT ..." in the order of ranks.
  std::string places() const {
    std::string all;
    for (const Place& place : launch.places) all += (all.empty() ? "" : " ") + place.text();
    return all;
  }
  void expect_problem(const LaunchRequest& request, const Variables& variables, const std::string& part) {
    const std::string problem = find(request, variables);
    EXPECT_NE(problem.find(part), std::string::npos) << "'" << problem << "' lacks '" << part << "'";
    EXPECT_EQ(problem.find('\n'), std::string::npos) << problem;
  }

  static LaunchRequest by(const std::string& launcher) {
    LaunchRequest request;
    request.launcher = launcher;
    request.port = kPort;
    return request;
  }
  static LaunchRequest by_hosts(const std::string& text, uint32_t rank = 0) {
    LaunchRequest request = by("hosts");
    request.hosts_file = text;
    request.rank = rank;
    return request;
  }
  static Variables slurm(const std::string& nodes, const std::string& tasks, uint32_t rank, uint32_t ranks) {
    return {{"SLURM_PROCID", std::to_string(rank)},
            {"SLURM_STEP_NUM_TASKS", std::to_string(ranks)},
            {"SLURM_STEP_NODELIST", nodes},
            {"SLURM_STEP_TASKS_PER_NODE", tasks}};
  }
  static Variables openmpi(uint32_t rank, uint32_t ranks) {
    return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)}, {"OMPI_COMM_WORLD_SIZE", std::to_string(ranks)}};
  }
  static Variables pod(const std::string& name, const std::string& index) {
    return {{"HOSTNAME", name}, {"JOB_COMPLETION_INDEX", index}};
  }
  static LaunchRequest kubernetes(uint32_t ranks) {
    LaunchRequest request = by("kubernetes");
    request.ranks = ranks;
    request.service = "tern";
    return request;
  }

  Launch launch;
};

// --- Slurm ---

TEST_F(LaunchTest, slurm_one_process_a_node) {
  EXPECT_EQ(find(by("slurm"), slurm("n[1-3]", "1(x3)", 1, 3)), "");
  EXPECT_EQ(launch.rank, 1u);
  EXPECT_EQ(places(), "n1:31850 n2:31850 n3:31850");
}

TEST_F(LaunchTest, slurm_several_processes_a_node_have_ports_in_turn) {
  EXPECT_EQ(find(by("slurm"), slurm("n[1-2],login", "2(x2),3", 6, 7)), "");
  EXPECT_EQ(places(), "n1:31850 n1:31851 n2:31850 n2:31851 login:31850 login:31851 login:31852");
  EXPECT_EQ(launch.places[6].index_on_host, 2u);
}

TEST_F(LaunchTest, slurm_lists_are_read_in_every_form) {
  const std::vector<std::pair<std::string, std::string>> lists = {
      {"one", "one"},
      {"a,b-1.example.org", "a b-1.example.org"},
      {"n[08-11]", "n08 n09 n10 n11"},
      {"n[1,3-4,7]", "n1 n3 n4 n7"},
      {"n[001-002]-ib,x", "n001-ib n002-ib x"},
      {"r[0-1]n[0-2]", "r0n0 r0n1 r0n2 r1n0 r1n1 r1n2"},
      {"10.0.0.[1-2]", "10.0.0.1 10.0.0.2"},
      {"n[9-9]", "n9"},
  };
  for (const auto& [list, expected] : lists) {
    const auto hosts = launch_detail::expand_slurm_hosts(list);
    ASSERT_TRUE(hosts) << list;
    std::string all;
    for (const std::string& host : *hosts) all += (all.empty() ? "" : " ") + host;
    EXPECT_EQ(all, expected);
  }
}

TEST_F(LaunchTest, malformed_slurm_lists_are_refused) {
  for (const char* list : {"",
                           ",",
                           "a,",
                           ",a",
                           "n[",
                           "n]",
                           "n[]",
                           "n[1",
                           "n1]",
                           "n[1-]",
                           "n[-1]",
                           "n[2-1]",
                           "n[a-b]",
                           "n[1--2]",
                           "n[1,]",
                           "n[1-2",
                           "a b",
                           "a\nb",
                           "n[1 -2]",
                           "n[0-99999999]",
                           "n[0-4294967295]",
                           "n[1-18446744073709551617]",
                           "-n",
                           "a/b",
                           "n[0-999][0-999]",
                           "[[1-2]]",
                           "n[1-2]]"}) {
    EXPECT_FALSE(launch_detail::expand_slurm_hosts(list)) << list;
    expect_problem(by("slurm"), slurm(list, "2", 0, 2), "SLURM_STEP_NODELIST");
  }
  EXPECT_FALSE(launch_detail::expand_slurm_hosts("n" + std::string(100000, '[')));
  EXPECT_FALSE(launch_detail::expand_slurm_hosts("n[" + std::string(100000, '0') + "]"));
}

TEST_F(LaunchTest, malformed_slurm_counts_are_refused) {
  for (const char* tasks : {"", "x", "1(x", "1(x)", "1(x2", "1x2", "(x2)", "-1", "1,,1", "1(x99999999)", "1(x-1)", "3",
                            "1(x3)", "4294967296", "1(x2)2"}) {
    expect_problem(by("slurm"), slurm("n[1-2]", tasks, 0, 2), "SLURM_STEP_TASKS_PER_NODE");
  }
}

TEST_F(LaunchTest, slurm_outside_of_a_step) {
  expect_problem(by("slurm"), {}, "SLURM_PROCID is not set; start it with srun");
  expect_problem(by("slurm"), {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_NODELIST", "n[1-2]"}},
                 "start it with srun");
  Variables variables = slurm("n[1-2]", "1(x2)", 0, 2);
  variables.erase("SLURM_STEP_NODELIST");
  expect_problem(by("slurm"), variables, "start it with srun");
}

TEST_F(LaunchTest, slurm_another_distribution_is_noticed) {
  Variables variables = slurm("n[1-2]", "2(x2)", 1, 4);
  variables["SLURM_LOCALID"] = "1";
  EXPECT_EQ(find(by("slurm"), variables), "");
  variables["SLURM_LOCALID"] = "0";  // cyclic distribution: rank 1 is the first process of the second node
  expect_problem(by("slurm"), variables, "--distribution=block");
}

TEST_F(LaunchTest, slurm_numbers_that_contradict_each_other) {
  expect_problem(by("slurm"), slurm("n[1-2]", "2(x2)", 0, 3), "makes 4 processes");
  expect_problem(by("slurm"), slurm("n[1-2]", "1(x2)", 2, 2), "rank 2 is not one");
  expect_problem(by("slurm"), slurm("n1", "1", 0, 1), "at least 2");
  expect_problem(by("slurm"), slurm("n1", "65000", 0, 65000), "too many processes");
}

TEST_F(LaunchTest, slurm_with_addresses_of_a_hosts_file) {
  LaunchRequest request = by("slurm");
  request.hosts_file = "10.0.0.1\n10.0.0.2\n";
  EXPECT_EQ(find(request, slurm("n[1-2]", "1(x2)", 1, 2)), "");
  EXPECT_EQ(places(), "10.0.0.1:31850 10.0.0.2:31850");
}

// --- Open MPI ---

TEST_F(LaunchTest, openmpi_fills_hosts_by_slot) {
  LaunchRequest request = by("openmpi");
  request.hosts_file = "# two racks\na slots=2 max_slots=4\n\nb   slots=2 # the rest\n";
  Variables variables = openmpi(2, 3);
  variables["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
  EXPECT_EQ(find(request, variables), "");
  EXPECT_EQ(launch.rank, 2u);
  EXPECT_EQ(places(), "a:31850 a:31851 b:31850");
}

TEST_F(LaunchTest, openmpi_bad_use) {
  LaunchRequest request = by("openmpi");
  expect_problem(request, openmpi(0, 2), "needs --hosts_file");
  expect_problem(request, {}, "OMPI_COMM_WORLD_RANK is not set; start it with mpirun");
  request.hosts_file = "a slots=2\n";
  expect_problem(request, openmpi(0, 3), "room for 2 processes of 3");
  Variables by_node = openmpi(1, 2);
  by_node["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
  expect_problem(request, by_node, "--map-by");
  for (const char* text : {"", "x", "-1", "1.5", "99999999999", "0x1", " 1"}) {
    expect_problem(request, {{"OMPI_COMM_WORLD_RANK", text}, {"OMPI_COMM_WORLD_SIZE", "2"}}, "OMPI_COMM_WORLD_RANK is");
    expect_problem(request, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", text}}, "OMPI_COMM_WORLD_SIZE is");
  }
  request.ranks = 2;
  expect_problem(request, openmpi(0, 2), "--ranks works only with");
}

// --- Kubernetes ---

TEST_F(LaunchTest, kubernetes_pods_have_names_behind_the_service) {
  EXPECT_EQ(find(kubernetes(3), pod("incast-2", "2")), "");
  EXPECT_EQ(launch.rank, 2u);
  EXPECT_EQ(places(), "incast-0.tern:31850 incast-1.tern:31850 incast-2.tern:31850");
}

TEST_F(LaunchTest, kubernetes_bad_use) {
  expect_problem(kubernetes(3), {}, "JOB_COMPLETION_INDEX is not set");
  expect_problem(kubernetes(3), pod("incast-2-x7f", "2"), "completionMode: Indexed");
  expect_problem(kubernetes(3), pod("-2", "2"), "completionMode: Indexed");
  expect_problem(kubernetes(3), pod("", "2"), "completionMode: Indexed");
  expect_problem(kubernetes(3), pod("incast-3", "3"), "rank 3 is not one of the 3");
  expect_problem(kubernetes(1), pod("incast-0", "0"), "at least 2");
  LaunchRequest request = kubernetes(3);
  request.ranks.reset();
  expect_problem(request, pod("incast-2", "2"), "needs --ranks");
  request = kubernetes(3);
  request.service = "a b";
  expect_problem(request, pod("incast-2", "2"), "needs --service");
}

// --- Hosts files ---

TEST_F(LaunchTest, hosts_file_with_ports_and_ipv6) {
  EXPECT_EQ(find(by_hosts("a:4000 slots=2\r\n[fe80::1%eth0]:5000\n::1\n[::2]\nb\na:6000", 5)), "");
  EXPECT_EQ(places(), "a:4000 a:4001 [fe80::1%eth0]:5000 [::1]:31850 [::2]:31850 b:31850 a:6002");
}

TEST_F(LaunchTest, hosts_file_the_same_host_again) {
  EXPECT_EQ(find(by_hosts("a\nb\na\na\n")), "");
  EXPECT_EQ(places(), "a:31850 b:31850 a:31851 a:31852");
}

TEST_F(LaunchTest, hosts_file_only_the_first_ones) {
  LaunchRequest request = by_hosts("a\nb\nc\n");
  request.ranks = 2;
  EXPECT_EQ(find(request), "");
  EXPECT_EQ(places(), "a:31850 b:31850");
  request.ranks = 4;
  expect_problem(request, {}, "room for 3 processes of 4");
}

TEST_F(LaunchTest, hosts_file_bad_lines_are_named) {
  for (const char* line : {"a:0", "a:65536", "a:x", "a:", ":1", "[::1", "[]", "[::1]x", "[::1]:", "a slots=0",
                           "a slots=", "a slots=x", "a slots=-1", "a slots=99999999999", "a slots=70000", "a/b", "-a",
                           "a\x01"
                           "b",
                           "slots=2 a"}) {
    expect_problem(by_hosts("first\n" + std::string(line) + "\n"), {}, "line 2 of the hosts file");
  }
  expect_problem(by_hosts("a:65535 slots=2"), {}, "line 1 of the hosts file");
}

TEST_F(LaunchTest, hosts_file_bad_use) {
  expect_problem(by("hosts"), {}, "needs --rank");
  expect_problem(by_hosts(""), {}, "names no host");
  expect_problem(by_hosts("# nobody\n \n"), {}, "names no host");
  expect_problem(by_hosts("a\n"), {}, "at least 2");
  expect_problem(by_hosts("a\nb\n", 2), {}, "rank 2 is not one of the 2");
  expect_problem(by_hosts("a:4001\na:4000\n"), {}, "a:4001 twice");
}

TEST_F(LaunchTest, flags_of_another_launcher) {
  expect_problem(by("pbs"), {}, "choose from");
  LaunchRequest request = by("slurm");
  request.rank = 1;
  expect_problem(request, slurm("n[1-2]", "1(x2)", 0, 2), "--rank works only with");
  request = by_hosts("a\nb\n");
  request.service = "tern";
  expect_problem(request, {}, "--service works only with");
}

/// Any text must lead to an error, or to processes within the limits.
TEST_F(LaunchTest, random_texts_are_taken_or_refused) {
  std::mt19937_64 random(1);
  constexpr std::string_view kBytes = "an01239[]-,.:%x()= #\n\tslots\x80";
  const auto text = [&] {
    std::string made;
    for (auto left = random() % 24; left > 0; --left) made += kBytes[random() % kBytes.size()];
    return made;
  };
  size_t taken = 0;
  for (int i = 0; i < 100000; ++i) {
    const LaunchRequest request = i % 2 == 0 ? by_hosts(text()) : by("slurm");
    const std::string problem = find(request, slurm(text(), text(), 0, 2));
    if (!problem.empty()) continue;
    ++taken;
    ASSERT_GE(launch.ranks(), 2u);
    ASSERT_LE(launch.ranks(), 65536u);
    for (const Place& place : launch.places) ASSERT_TRUE(launch_detail::is_host(place.host) && place.port != 0);
  }
  EXPECT_GT(taken, 10u);
}

}  // namespace
}  // namespace programs
