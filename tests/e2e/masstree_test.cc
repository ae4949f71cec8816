// The programs of apps/masstree as their users run them. Their load checks every answer itself. These tests do not
// measure speed, except in virtual time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <tern/rpc.h>
#include <tern/transport/udp.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "../apps/masstree/backend.h"
#include "../apps/masstree/protocol.h"
#include "../apps/masstree/server.h"
#include "e2e/caller.h"
#include "e2e/program.h"
#include "own_folder.h"

using namespace e2e;
using testing::HasSubstr;

namespace {

/// The number with this name in the line of this phase. -1: there is none.
double metric(const Outcome& outcome, const std::string& phase, const std::string& name) {
  const std::string& text = outcome.output;
  const size_t line = text.find("\"phase\":\"" + phase + "\"");
  const size_t at = line == std::string::npos ? line : text.find("\"" + name + "\":", line);
  if (at == std::string::npos || at > text.find('\n', line)) {
    ADD_FAILURE() << "no " << name << " of " << phase << " in " << text;
    return -1;
  }
  return std::strtod(text.c_str() + at + name.size() + 3, nullptr);
}

/// "NAME FLAGS" of apps/, which runs until this object ends.
class Program {
 public:
  explicit Program(const std::string& command) {
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      const std::string shell = "exec '" TERN_BUILD_DIR "'/apps/" + command + " 2> " + folder_.file("error");
      execl("/bin/sh", "sh", "-c", shell.c_str(), static_cast<char*>(nullptr));
      _exit(1);
    }
  }
  ~Program() { end(SIGKILL); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  /// What it has written on standard error.
  std::string text() const {
    std::stringstream text;
    text << std::ifstream(folder_.file("error")).rdbuf();
    return text.str();
  }
  /// True if it has a page in shared memory (--page=shm).
  bool has_page() const {
    const std::string mark = "." + std::to_string(pid_) + ".";
    const auto is_its_page = [&](const std::filesystem::directory_entry& file) {
      const std::string name = file.path().filename();
      return name.starts_with("tern-page.") && name.find(mark) != std::string::npos;
    };
    return std::any_of(std::filesystem::directory_iterator("/dev/shm"), {}, is_its_page);
  }
  /// True if it has a handler for SIGTERM.
  bool catches_signals() const {
    std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
    uint64_t caught = 0;
    for (std::string word; status >> word;) {
      if (word == "SigCgt:") status >> std::hex >> caught;
    }
    return (caught >> (SIGTERM - 1) & 1) != 0;
  }
  /// The exit code. -1: a signal has ended it.
  int end(int signal) {
    if (pid_ <= 0) return -1;
    ::kill(pid_, signal);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  const tern::test::OwnFolder folder_{testing::TempDir() + "masstree-test"};
  pid_t pid_ = -1;
};

/// A server that runs until this object ends.
class Server : public Program {
 public:
  Server(const std::string& transport, const std::string& flags)
      : Program("masstree --role=server --wait=adaptive --server=127.0.0.1:0 --transport=" + transport + " " + flags) {
    EXPECT_TRUE(wait_for([&] { return text().ends_with('\n'); })) << text();
    const size_t begin = text().find("tern://");
    EXPECT_NE(begin, std::string::npos) << text();
    if (begin != std::string::npos) address_ = text().substr(begin + 7, text().find('\n') - begin - 7);
  }
  const std::string& address() const { return address_; }

 private:
  std::string address_;
};

/// Two transports are enough to test a program, and processes over software devices would share two CPUs with the
/// kernel.
std::vector<const char*> over() {
  std::vector<const char*> names = transports_of_one_host();
  std::erase_if(names, [](std::string_view name) { return name != "shm" && name != "udp"; });
  return names;
}

class Masstree : public testing::TestWithParam<const char*> {
 protected:
  std::string with(const std::string& flags) const {
    return "masstree --json --wait=adaptive --transport=" + std::string(GetParam()) + " " + flags;
  }
};
INSTANTIATE_TEST_SUITE_P(Over, Masstree, testing::ValuesIn(over()),
                         [](const auto& with) { return std::string(with.param); });

}  // namespace

TEST_P(Masstree, a_run_checks_every_answer) {
  const Outcome outcome =
      run(with("--processes --keys=4000 --seconds=0.1 --rounds=2 --server_threads=2 --workers=2 "
               "--client_threads=2 --put_share=0.2 --insert_share=0.2 --scan_share=0.1"));
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  for (const char* phase : {"plain", "worker", "dispatch"}) {
    EXPECT_GT(metric(outcome, phase, "get_mrps"), 0);
    EXPECT_GT(metric(outcome, phase, "put_p99_us"), 0);
  }
  EXPECT_GT(metric(outcome, "worker", "scan_p50_us"), 0);
  EXPECT_GT(metric(outcome, "dispatch", "scan_p50_us"), 0);
  EXPECT_GT(metric(outcome, "hop_worker", "nothing_p50_us"), 0);
  EXPECT_GT(metric(outcome, "hop_dispatch", "nothing_p50_us"), 0);
  EXPECT_EQ(metric(outcome, "summary", "keys_read_back"), 4500);
  EXPECT_GT(metric(outcome, "summary", "answers_checked"), 9000);
}

TEST_P(Masstree, the_index_alone_is_measured_in_the_same_process) {
  const Outcome outcome = run(with("--keys=4000 --seconds=0.05 --rounds=1 --phases=plain"));
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_GT(metric(outcome, "summary", "index_get_mops_per_thread"), 0);
  EXPECT_GT(metric(outcome, "summary", "get_rate_of_index"), 0);
}

TEST_P(Masstree, lost_and_delayed_packets_lose_no_key) {
  const Outcome outcome =
      run(with("--keys=1000 --seconds=0.3 --rounds=1 --put_share=0.5 --insert_share=0.3 --scan_share=0.2 "
               "--phases=worker --drop=0.01 --dup=0.01 --reorder=0.01 --delay=0.01"));
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_GT(metric(outcome, "worker", "put_mrps"), 0);
  EXPECT_EQ(metric(outcome, "summary", "keys_read_back"), 1125);
}

/// Each client takes over the keys of its predecessor.
TEST_P(Masstree, a_server_outlives_its_clients) {
  Server server(GetParam(), "--keys=2000 --inserts_max=20");
  const std::string client = with(
      "--role=client --seconds=0.1 --rounds=1 --put_share=0.5 --insert_share=0.5 "
      "--phases=plain --server=" +
      server.address());
  for (int i = 0; i < 2; i++) {
    const Outcome outcome = run(client);
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_GT(metric(outcome, "plain", "refused_full"), 0) << "the index has room for 20 new keys";
    EXPECT_EQ(outcome.output.find("\"workers\""), std::string::npos) << "the client does not know the server's flags";
  }
  EXPECT_EQ(server.end(SIGINT), 0);
}

TEST_P(Masstree, a_server_that_is_killed_ends_its_client_with_a_sentence) {
  Server server(GetParam(), "--keys=2000");
  const std::string client = with("--role=client --seconds=60 --phases=plain --server=" + server.address());
  std::future<Outcome> running = std::async(std::launch::async, [&] { return run(client); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // at any point of its run
  server.end(SIGKILL);
  const Outcome outcome = running.get();
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, testing::StartsWith("masstree: "));
  EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
}

TEST_P(Masstree, a_signal_ends_the_measurement_of_the_index_with_a_sentence) {
  Program program(with("--keys=1000 --seconds=10000 --rounds=1 --page=shm"));
  ASSERT_TRUE(wait_for([&] { return program.has_page(); })) << program.text();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // until it measures the index
  EXPECT_EQ(program.end(SIGTERM), 130);
  EXPECT_THAT(program.text(), testing::EndsWith("masstree: interrupted before everything was read back\n"));
}

/// The index would take seconds to fill.
TEST_P(Masstree, a_signal_ends_the_start_of_a_server) {
  Program program(with("--role=server --server=127.0.0.1:0 --keys=5000000"));
  ASSERT_TRUE(wait_for([&] { return program.catches_signals(); })) << program.text();
  EXPECT_EQ(program.end(SIGTERM), 130);
  EXPECT_EQ(program.text(), "");
}

#ifndef TERN_IS_SANITIZED
/// A server that claims to have 67 million keys.
TEST(MasstreeMemory, a_client_without_memory_for_its_check_names_the_remedy) {
  auto nexus = tern::Nexus::create("tern://127.0.0.1:0");
  ASSERT_TRUE(nexus.ok());
  auto rpc = tern::Rpc<tern::Udp>::create(**nexus);
  ASSERT_TRUE(rpc.ok());
  ordered::Index index(1);
  ordered::ServerOptions options;
  options.about = {1u << 26, 1, 1};
  ordered::Server<ordered::Index> server(index, options);
  ASSERT_TRUE(server.add_handlers(**rpc).ok());
  const std::string command =
      "masstree --role=client --transport=udp --wait=block --server=" + (*nexus)->uri().substr(strlen("tern://"));
  std::future<Outcome> running = std::async(std::launch::async, [&] { return run(command, "ulimit -v 1000000; "); });
  while (running.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    ASSERT_TRUE((*rpc)->run_event_loop(std::chrono::milliseconds(1)).ok());
  }
  const Outcome outcome = running.get();
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.output,
            "masstree: there is no memory for the check of that many keys; give the server fewer --keys\n");
}

TEST(MasstreeSim, no_thread_for_the_measurement_of_the_hand_over) {
  rlimit stack = {};
  ASSERT_EQ(getrlimit(RLIMIT_STACK, &stack), 0);
  if (stack.rlim_max != RLIM_INFINITY) GTEST_SKIP() << "stacks larger than the address space are not allowed";
  const Outcome outcome = run("masstree_sim --keys=1000 --milliseconds=1", "ulimit -s 200000000000; ");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, testing::StartsWith("masstree_sim: cannot measure the hand-over to a worker (--step_ns "
                                                  "can give its times): the system does not allow another thread"));
  EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
}
#endif

/// Requests that no client of ours sends: the server refuses each of them and goes on.
TEST_P(Masstree, requests_of_a_hostile_client_are_refused) {
  Server server(GetParam(), "--keys=100 --inserts_max=3");
  const Settings settings =
      Settings().set("transport", GetParam()).with("liveness_ms", 10'000);  // nobody kills its server
  Caller caller(settings);
  const tern::Session session = caller.open("tern://" + server.address());
  Call gone;
  gone.ends = 1;
  gone.status = {tern::Code::kSessionReset, "the server has ended the session"};
  const auto send = [&](uint16_t type, const std::vector<std::byte>& bytes) {
    tern::MsgBuf message = caller.endpoint().alloc_msgbuf(bytes.size());
    std::copy(bytes.begin(), bytes.end(), message.bytes().begin());
    Call* call = caller.send(session, type, std::move(message), ordered::kAnswerBytesMax);
    caller.end_of(call);
    EXPECT_NE(call, nullptr) << caller.refusal.message();
    return call != nullptr ? call : &gone;
  };
  const auto code_of = [&](uint16_t type, const std::vector<std::byte>& bytes) {
    Call* call = send(type, bytes);
    EXPECT_EQ(call->code(), tern::Code::kRefused);
    const uint16_t code = call->app_code;
    call->forget();
    return code;
  };
  const std::pair<uint16_t, size_t> types[] = {{ordered::kGet, 8},
                                               {ordered::kPut, ordered::kPutBytes},
                                               {ordered::kScan, ordered::kScanBytes},
                                               {ordered::kScanHere, ordered::kScanBytes}};
  for (const auto& [type, right_bytes] : types) {
    for (size_t len_bytes = 0; len_bytes <= ordered::kRequestBytesMax; len_bytes++) {
      if (len_bytes == right_bytes) continue;
      EXPECT_EQ(code_of(type, std::vector<std::byte>(len_bytes)), ordered::kMalformed) << type << " " << len_bytes;
    }
    Call* call = send(type, std::vector<std::byte>(100'000));
    EXPECT_FALSE(call->is_ok()) << "above the type's limit";
    call->forget();
  }
  for (const uint32_t limit : {0u, ordered::kScanLimitMax + 1, UINT32_MAX}) {
    std::vector<std::byte> scan(ordered::kScanBytes);
    programs::Writer(scan).write(uint64_t{0}).write(limit);
    EXPECT_EQ(code_of(ordered::kScan, scan), ordered::kMalformed);
    EXPECT_EQ(code_of(ordered::kScanHere, scan), ordered::kMalformed);
  }
  for (const uint16_t type : {0, 8, 4095}) {
    Call* call = send(type, std::vector<std::byte>(8));
    EXPECT_FALSE(call->is_ok());
    call->forget();
  }
  // Memory is bounded for all writers together.
  std::mt19937_64 random(1);
  int refused = 0;
  for (int i = 0; i < 20; i++) {
    std::vector<std::byte> put(ordered::kPutBytes);
    programs::Writer(put).write(random()).write(random());
    Call* call = send(ordered::kPut, put);
    if (!call->is_ok()) {
      EXPECT_EQ(call->app_code, ordered::kIsFull);
      refused++;
    }
    call->forget();
  }
  EXPECT_EQ(refused, 17);
  // The server still works: one scan returns all keys.
  std::vector<std::byte> scan(ordered::kScanBytes);
  programs::Writer(scan).write(uint64_t{0}).write(ordered::kScanLimitMax);
  Call* call = send(ordered::kScan, scan);
  ASSERT_TRUE(call->is_ok());
  EXPECT_EQ(ordered::parse_scan_answer(std::as_const(call->response).bytes())->count, 103u);
  call->forget();
  EXPECT_EQ(server.end(SIGINT), 0);
}

/// The simulator gives each thread a CPU and uses given times, so that the result is the same on every machine.
TEST(MasstreeSim, scans_in_workers_leave_gets_alone) {
  const std::string command = "masstree_sim --json --keys=5000 --milliseconds=1 --step_ns=600,700,20000,1500,5000";
  const Outcome outcome = run(command);
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_LE(metric(outcome, "summary", "get_p99_worker_ratio"), 1.5);
  EXPECT_GT(metric(outcome, "summary", "get_p99_dispatch_ratio"), 1.5);
  EXPECT_EQ(metric(outcome, "summary", "keys_read_back"), 5625);
  EXPECT_EQ(run(command).output, outcome.output);
  // Options of the transport change packets.
  const Outcome other = run(command + " --transport_options=safe_frame_bytes=578 --cc=none");
  ASSERT_EQ(other.code, 0) << other.output;
  EXPECT_NE(metric(other, "summary", "trace_hash"), metric(outcome, "summary", "trace_hash"));
  EXPECT_THAT(other.output, HasSubstr("\"cc\":\"none\""));
}

TEST(MasstreeFlags, flags_that_make_no_sense) {
  const std::pair<const char*, const char*> wrong[] = {
      {"masstree --keys=0", "--keys must be between 1"},
      {"masstree --window=0", "--window must be between 1 and 4096"},
      {"masstree --scan_keys=1025", "--scan_keys must be between 1 and 1024"},
      {"masstree --put_share=1.5", "--put_share, --insert_share and --scan_share must be between 0 and 1"},
      {"masstree --phases=plain,none", "--phases must be a list of"},
      {"masstree --phases=", "--phases must be a list of"},
      {"masstree --seconds=1e-10", "--seconds must be at least a microsecond for each of the --rounds"},
      {"masstree --seconds=5e-7 --rounds=1000", "give more --seconds or fewer --rounds"},
      {"masstree --role=client --server=127.0.0.1:9 --transport=udp", "no index server at tern://127.0.0.1:9"},
      {"masstree_sim --keys=3", "--keys must be between 1 for each client thread"},
      {"masstree_sim --step_ns=1,2,3", "--step_ns must be five times in ns"},
      {"masstree_sim --step_ns=1,2,3,4,5,", "--step_ns must be five times in ns"},
      {"masstree_sim --step_ns=-1,2,3,4,5", "--step_ns must be five times in ns"},
      {"masstree_sim --step_ns=99999999999999999999,2,3,4,5", "at most 1000000000"},
      {"masstree_sim --role=server", "--role does not work in a simulation"},
      {"masstree_sim --log", "--log does not work in a simulation"},
      {"masstree_sim --seconds=1", "--seconds has no effect"},
      {"masstree_sim --drop=0.1", "--drop has no effect"},
      {"masstree_sim --cpus=0", "--cpus has no effect"},
      {"masstree_sim --milliseconds=0", "--milliseconds must be between 0.001 and 10000"},
      {"masstree_sim --milliseconds=1e-7", "--milliseconds must be between 0.001 and 10000"}};
  for (const auto& [command, sentence] : wrong) {
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.code, 1) << command;
    EXPECT_THAT(outcome.output, HasSubstr(sentence));
    EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
  }
}
