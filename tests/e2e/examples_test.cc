// Checks every example: it exits with 0 and prints the expected lines. hello is two processes.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace {

struct Example {
  const char* name;
  std::vector<const char*> lines;  ///< the expected lines in order; other lines may be between them
};

const Example kExamples[] = {
    {"coroutine_client",
     {"copy a b: ok", "copy c d: ok", "copy nothing e: the handler refused the request; app_code has its reason",
      "d is 42"}},
    {"deadline_and_cancel",
     {"the first call: the call's deadline passed before its response was complete",
      "the second call: the caller cancelled the call", "the server has given up whatever it had begun"}},
    {"log", {"warnings: 1"}},
    {"nested_rpc", {"tern: Sterna paradisaea", "unicorn: refused for reason 7"}},
    {"own_epoll_loop", {"seen tick 1", "seen tick 2", "seen tick 3", "seen tick 4", "seen tick 5"}},
    {"page", {"seen: 3 calls, 3 requests"}},
    {"post_from_thread", {"THREAD 0", "THREAD 1", "THREAD 2", "THREAD 3"}},
    {"reconnect", {"100 answers of the first server, 100 of the second"}},
    {"simulated_cluster", {"the same seed is the same run, another seed another one"}},
    {"simulated_hello", {"98 answers, 1 failure"}},
    {"two_transports", {"over shm: 1", "over udp: 2", "over shm: 3"}},
    {"worker_handler", {"pong", "scanned by a worker"}},
};

std::filesystem::path directory() { return std::filesystem::path(TERN_BUILD_DIR) / "examples"; }

constexpr const char* kNotBuilt = "the examples are not built: TERN_EXAMPLES=ON";

class Examples : public testing::TestWithParam<Example> {};
INSTANTIATE_TEST_SUITE_P(Run, Examples, testing::ValuesIn(kExamples),
                         [](const auto& with) { return std::string(with.param.name); });

/// Runs the command in a shell. It must exit with 0 and print the expected lines.
void expect_lines(const std::string& command, const std::vector<const char*>& expected_lines) {
  // timeout makes a hanging example a failure of its own, and ends it before the test.
  FILE* output = popen(("timeout -k 5 120 " + command + " 2>&1").c_str(), "r");
  ASSERT_NE(output, nullptr);
  std::vector<std::string> lines;
  std::string all;
  std::array<char, 512> line;
  while (std::fgets(line.data(), line.size(), output) != nullptr) {
    all += line.data();
    lines.emplace_back(line.data(), std::string_view(line.data()).find_last_not_of('\n') + 1);
  }
  const int status = pclose(output);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status << "\n" << all;
  auto from = lines.begin();
  for (const char* expected : expected_lines) {
    const auto found = std::find(from, lines.end(), expected);
    ASSERT_NE(found, lines.end()) << "no line '" << expected << "' at its place in\n" << all;
    from = found + 1;
  }
}

bool succeeds(const char* command) { return std::system(command) == 0; }

}  // namespace

TEST_P(Examples, end_with_0_and_print_what_happened) {
  if (!std::filesystem::exists(directory())) GTEST_SKIP() << kNotBuilt;
  expect_lines("'" + (directory() / GetParam().name).string() + "'", GetParam().lines);
}

// In a network namespace, because the server's port is fixed. The client tries again until the server listens.
TEST(Hello, client_prints_the_answer_of_the_server) {
  if (!std::filesystem::exists(directory())) GTEST_SKIP() << kNotBuilt;
  const char* const isolate = succeeds("unshare -n true 2>/dev/null") ? "unshare -n " : "unshare -rn ";
  if (!succeeds((std::string(isolate) + "true 2>/dev/null").c_str())) GTEST_SKIP() << "no network namespaces here";
  const std::string hello = "\"" + (directory() / "hello").string() + "\"";
  const std::string script =
      "ip link set lo up; " + hello + " & until " + hello + " tern://127.0.0.1:31850; do sleep 0.1; done; kill $!";
  expect_lines(isolate + ("sh -c '" + script + "'"), {"hello"});
}

TEST(ExamplesList, names_every_example) {
  if (!std::filesystem::exists(directory())) GTEST_SKIP() << kNotBuilt;
  std::vector<std::string> built, listed;
  for (const auto& entry : std::filesystem::directory_iterator(directory())) {
    if (entry.is_regular_file() && access(entry.path().c_str(), X_OK) == 0) built.push_back(entry.path().filename());
  }
  for (const Example& example : kExamples) listed.emplace_back(example.name);
  listed.emplace_back("hello");
  std::sort(listed.begin(), listed.end());
  std::sort(built.begin(), built.end());
  EXPECT_EQ(listed, built);
}
