// The program kv as its users run it: load, overload, full stores, and killed processes. The bounds on times are
// generous, because these tests do not measure speed.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "../apps/kv/protocol.h"
#include "../apps/kv/workload.h"
#include "e2e/caller.h"
#include "e2e/killed.h"
#include "own_folder.h"

using namespace e2e;
using testing::HasSubstr;

namespace {

const char* const kProgram = TERN_BUILD_DIR "/apps/kv";

std::string text_of(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// A directory of this case in shared memory, with a store and the outputs of processes.
class Directory {
 public:
  std::string store() const { return file("store"); }
  std::string file(const std::string& name) const { return folder_.file(name); }

 private:
  tern::test::OwnFolder folder_{"/dev/shm/kv-test"};
};

/// A kv process. The destructor kills it if it still runs.
class Kv {
 public:
  Kv(const Directory& directory, std::vector<std::string> words)
      : out_path_(directory.file("out" + std::to_string(++started))), error_path_(out_path_ + ".err") {
    words.insert(words.begin(), {kProgram, "--wait=adaptive"});
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(open(out_path_.c_str(), O_WRONLY | O_CREAT, 0600), STDOUT_FILENO);
      dup2(open(error_path_.c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
      execv(kProgram, arguments.data());
      _exit(127);
    }
  }
  ~Kv() { kill(); }
  Kv(const Kv&) = delete;
  Kv& operator=(const Kv&) = delete;

  pid_t pid() const { return pid_; }  ///< -1 after its end
  bool is_running() {
    if (pid_ > 0 && waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = -1;
    return pid_ > 0;
  }
  void kill() {
    if (pid_ <= 0) return;
    status_ = kill_running(pid_);
    pid_ = -1;
  }
  /// Ends the server as a user does.
  int interrupt() {
    if (pid_ > 0) ::kill(pid_, SIGINT);
    return exit_code();
  }
  /// Waits for its end and returns its exit code. -1: it did not end, or a signal ended it.
  int exit_code() {
    if (!wait_for([&] { return !is_running(); })) return -1;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
  }
  std::string out() const { return text_of(out_path_); }
  std::string error() const { return text_of(error_path_); }

  /// Waits until the server can be reached, and returns its HOST:PORT.
  std::string address() {
    const std::string mark = "tern://";
    EXPECT_TRUE(wait_for([&] { return error().ends_with('\n') || !is_running(); }));
    const std::string line = error();
    const size_t begin = line.find(mark);
    EXPECT_NE(begin, std::string::npos) << line;
    return begin == std::string::npos ? "" : line.substr(begin + mark.size(), line.find('\n') - begin - mark.size());
  }
  /// The number with this name in the JSON line. -1: there is none.
  double metric(const std::string& name) const {
    const std::string text = out();
    const size_t at = text.find("\"" + name + "\":");
    EXPECT_NE(at, std::string::npos) << name << " in " << text;
    return at == std::string::npos ? -1 : std::strtod(text.c_str() + at + name.size() + 3, nullptr);
  }
  /// Checks that standard error has one sentence and nothing else.
  void expect_one_sentence(const std::string& part) {
    EXPECT_EQ(exit_code(), 1);
    EXPECT_EQ(out(), "");
    const std::string sentence = error();
    EXPECT_THAT(sentence, HasSubstr(part));
    EXPECT_EQ(std::count(sentence.begin(), sentence.end(), '\n'), 1) << sentence;
  }

 private:
  static inline int started = 0;
  const std::string out_path_, error_path_;
  pid_t pid_ = -1;
  int status_ = 0;
};

/// A client by hand: any request to any partition of a server. It does not find out soon that the server is dead, so
/// that a busy one counts as alive. Tests that replace the server call reconnect().
class ByHand {
 public:
  ByHand(const Settings& settings, const std::string& address)
      : caller_(settings.with("liveness_ms", 10'000)), uri_("tern://" + address), session_(caller_.open(uri_ + "/0")) {}

  void reconnect() { session_ = caller_.open(uri_ + "/0"); }
  /// Returns an ended call. The caller must forget() it, because the Caller keeps it and its buffers.
  Call* send(uint16_t type, kv::Bytes request) {
    tern::MsgBuf message = caller_.endpoint().alloc_msgbuf(request.size());
    kv::Writer(message.bytes()).write(request);
    Call* call = caller_.send(session_, type, std::move(message), kv::kGetHeadBytes + kv::kValueBytesMax);
    caller_.end_of(call);
    return call;
  }
  /// The version of a key in partition 0. 0: the key is absent, or the server does not answer.
  uint64_t version_of(uint64_t key) {
    Call* call = send(kv::kGet, std::as_bytes(std::span(&key, 1)));
    if (call == nullptr) return 0;
    const auto record = kv::parse_record(std::as_const(call->response).bytes());
    const uint64_t version = call->is_ok() && record ? record->version : 0;
    call->forget();
    return version;
  }
  /// Waits until the owner of `key`, the client in `process`, has written it that many times more. False: the client
  /// ended before that.
  bool see_writes(Kv& process, uint64_t key, uint64_t count) {
    const uint64_t first = std::max<uint64_t>(version_of(key), 1u << 20);
    EXPECT_TRUE(wait_for([&] { return version_of(key) >= first + count || !process.is_running(); }));
    return process.is_running();
  }

 private:
  Caller caller_;
  const std::string uri_;
  tern::Session session_;
};

class KvProgram : public OverTransports {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kProgram)) GTEST_SKIP() << "kv is not built: scripts/setup programs installs lmdb";
  }
  std::vector<std::string> with(std::vector<std::string> words) const {
    words.push_back(std::string("--transport=") + GetParam());
    return words;
  }
  std::vector<std::string> server(const std::string& address, std::vector<std::string> words = {}) const {
    words.insert(words.end(), {"--role=server", "--memory_mb=32", "--server=" + address});
    return with(std::move(words));
  }
  std::vector<std::string> client(const std::string& address, std::vector<std::string> words = {}) const {
    words.insert(words.end(), {"--role=client", "--json", "--server=" + address});
    return with(std::move(words));
  }
  Directory directory_;
};
INSTANTIATE_TEST_SUITE_P(Over, KvProgram, testing::ValuesIn(transports_of_one_host()),
                         [](const auto& with) { return std::string(with.param); });

/// Cases of the store and of the flags, for which one transport is enough.
class KvStore : public KvProgram {};
INSTANTIATE_TEST_SUITE_P(Over, KvStore, testing::Values("udp"),
                         [](const auto& with) { return std::string(with.param); });

const std::string kAnyPort = "127.0.0.1:0";

}  // namespace

TEST_P(KvProgram, every_read_value_is_checked) {
  Kv run(directory_, with({"--processes", "--json", "--seconds=1", "--server_threads=2", "--client_threads=2",
                           "--keys=1001", "--value_bytes=etc", "--zipf=0.9", "--memory_mb=64"}));
  ASSERT_EQ(run.exit_code(), 0) << run.error();
  for (const char* name : {"rate_mrps", "get_mrps", "put_mrps", "multi_get_mrps", "get_p50_us", "put_p99_us",
                           "multi_get_p999_us", "values_checked"}) {
    EXPECT_GT(run.metric(name), 0) << name;
  }
  EXPECT_EQ(run.metric("keys_read_back"), 1001);
  EXPECT_EQ(run.metric("keys_not_stored"), 0);
  EXPECT_EQ(run.metric("memory_mb"), 64);
  EXPECT_EQ(run.metric("lost") + run.metric("reconnects") + run.metric("refused_full"), 0);
  EXPECT_EQ(run.error(), "");
}

/// At most two requests may wait, and 64 arrive at a time.
TEST_P(KvProgram, overloaded_server_refuses_and_counts_the_refusals) {
  Kv server_run(directory_, server(kAnyPort, {"--queue_max=2"}));
  Kv run(directory_, client(server_run.address(), {"--seconds=1", "--window=64", "--keys=500"}));
  ASSERT_EQ(run.exit_code(), 0) << run.error();
  EXPECT_GT(run.metric("refused_overloaded"), 0);
  EXPECT_EQ(run.metric("refused_full") + run.metric("expired") + run.metric("lost"), 0);
  EXPECT_GT(run.metric("rate_mrps"), 0) << "the server goes on with the requests that it accepts";
  EXPECT_EQ(run.metric("keys_read_back"), 500);
  EXPECT_EQ(server_run.interrupt(), 0);
  EXPECT_THAT(server_run.error(), HasSubstr("requests served; refused:"));
}

/// Deadlines that pass on either side leave PUTs with an unknown outcome.
TEST_P(KvProgram, a_put_that_has_expired_is_repeated) {
  Kv run(directory_, with({"--json", "--seconds=1", "--window=64", "--keys=64", "--get_share=0.5", "--deadline_us=40",
                           "--memory_mb=32"}));
  ASSERT_EQ(run.exit_code(), 0) << run.error();
  EXPECT_GT(run.metric("expired") + run.metric("refused_overloaded"), 0);
  EXPECT_EQ(run.metric("keys_read_back"), 64);
}

/// No call can meet this deadline, so the operations end only after the measurement, in which calls have no deadlines.
TEST_P(KvProgram, a_run_in_which_no_operation_ends_is_refused) {
  Kv(directory_, with({"--json", "--seconds=0.1", "--keys=64", "--deadline_us=0.001", "--memory_mb=32"}))
      .expect_one_sentence("no operation was answered during --seconds");
}

TEST_P(KvStore, full_store_refuses_and_counts_the_refusals) {
  Kv server_run(directory_, with({"--role=server", "--memory_mb=1", "--server=" + kAnyPort}));
  Kv run(directory_, client(server_run.address(), {"--seconds=1", "--keys=2000", "--value_bytes=1024"}));
  ASSERT_EQ(run.exit_code(), 0) << run.error();
  EXPECT_GT(run.metric("refused_full"), 0);
  EXPECT_GT(run.metric("values_checked"), 0) << "stored values can be read";
  EXPECT_GT(run.metric("keys_not_stored"), 0);
  EXPECT_EQ(run.metric("keys_read_back") + run.metric("keys_not_stored"), 2000);
  EXPECT_EQ(run.out().find("memory_mb"), std::string::npos) << "the client does not know the server's flags";
  Kv puts(directory_,
          client(server_run.address(), {"--seconds=0.1", "--keys=20000", "--value_bytes=1024", "--get_share=0"}));
  EXPECT_EQ(puts.exit_code(), 0) << puts.error();
  EXPECT_EQ(server_run.interrupt(), 0);
  EXPECT_THAT(server_run.error(), HasSubstr("store full"));
}

TEST_P(KvProgram, lost_and_delayed_packets_lose_no_key) {
  Kv run(directory_, with({"--json", "--seconds=1", "--drop=0.01", "--dup=0.01", "--reorder=0.01", "--delay=0.01",
                           "--keys=200", "--get_share=0.5", "--memory_mb=32"}));
  ASSERT_EQ(run.exit_code(), 0) << run.error();
  EXPECT_GT(run.metric("put_mrps"), 0);
  EXPECT_EQ(run.metric("keys_read_back"), 200);
}

TEST_P(KvProgram, a_killed_client_harms_no_other) {
  Kv server_run(directory_, server(kAnyPort));
  const std::string address = server_run.address();
  const auto words = [&](const char* which, const char* seconds) {
    return client(address, {"--clients=2", "--keys=64", "--get_share=0.2", which, seconds});
  };
  ByHand watcher(settings(), address);
  const auto start_victim = [&] {
    auto victim = std::make_unique<Kv>(directory_, words("--client=1", "--seconds=60"));
    EXPECT_TRUE(watcher.see_writes(*victim, 1, 10)) << victim->error();
    return victim;
  };
  auto victim = start_victim();  // a slow machine needs seconds for that, in which the survivor would end
  Kv survivor(directory_, words("--client=0", "--seconds=3"));
  int killed = 0;
  while (watcher.see_writes(survivor, 0, 10)) {
    victim->kill();
    if (++killed == 3) break;
    victim = start_victim();
  }
  victim.reset();
  EXPECT_GE(killed, 1) << "the survivor has ended first: " << survivor.error();
  ASSERT_EQ(survivor.exit_code(), 0) << survivor.error();
  EXPECT_EQ(survivor.metric("keys_read_back"), 32);
  EXPECT_EQ(survivor.metric("lost"), 0);
  Kv successor(directory_, words("--client=1", "--seconds=0.2"));
  ASSERT_EQ(successor.exit_code(), 0) << successor.error();
  EXPECT_EQ(successor.metric("keys_read_back"), 32);
}

TEST_P(KvProgram, a_killed_server_and_its_successor_lose_no_acknowledged_write) {
  const std::vector<std::string> store = {"--store=" + directory_.store()};
  auto server_run = std::make_unique<Kv>(directory_, server(kAnyPort, store));
  const std::string address = server_run->address();
  const auto words = [&](const char* which) {
    return client(address, {"--clients=2", "--client_threads=2", "--keys=64", "--get_share=0.5", "--seconds=5",
                            "--reconnect_seconds=60", which});
  };
  Kv one(directory_, words("--client=0"));
  Kv other(directory_, words("--client=1"));
  ByHand watcher(settings(), address);
  // The first process writes key 0, and the other one writes key 2. A slow machine has time for fewer rounds.
  int killed = 0;
  for (; killed < 3 && watcher.see_writes(one, 0, 10) && watcher.see_writes(other, 2, 10); killed++) {
    server_run->kill();
    server_run = std::make_unique<Kv>(directory_, server(address, store));
    ASSERT_EQ(server_run->address(), address);
    watcher.reconnect();
  }
  EXPECT_GE(killed, 1) << one.error() << other.error();
  for (Kv* run : {&one, &other}) {
    ASSERT_EQ(run->exit_code(), 0) << run->error() << server_run->error() << server_run->is_running();
    EXPECT_GE(run->metric("reconnects"), 1);
    EXPECT_GT(run->metric("lost"), 0);
    EXPECT_EQ(run->metric("keys_read_back"), 32);
  }
}

/// The successor has an empty store: the check of the case before can fail.
TEST_P(KvStore, successor_with_an_empty_store_is_detected) {
  auto server_run = std::make_unique<Kv>(directory_, server(kAnyPort));
  const std::string address = server_run->address();
  Kv run(directory_, client(address, {"--keys=64", "--seconds=60", "--reconnect_seconds=60"}));
  EXPECT_TRUE(ByHand(settings(), address).see_writes(run, 0, 10)) << run.error();
  server_run->kill();
  server_run = std::make_unique<Kv>(directory_, server(address));
  run.expect_one_sentence("is lost: nothing is there now");
}

TEST_P(KvStore, damaged_value_in_the_store_is_detected) {
  const std::vector<std::string> words = with({"--json", "--seconds=1", "--get_share=1", "--keys=50",
                                               "--value_bytes=300", "--memory_mb=4", "--store=" + directory_.store()});
  Kv first(directory_, words);
  ASSERT_EQ(first.exit_code(), 0) << first.error();
  // Finds the first version of key 7's value in the file.
  std::vector<std::byte> value(300);
  kv::fill_value(value, 7, (1u << 20) + 1);
  const std::string path = directory_.store() + "/0-of-1.mdb";
  std::string file = text_of(path);
  const std::string_view wanted(reinterpret_cast<const char*>(value.data()), value.size());
  int found = 0;
  for (size_t at = file.find(wanted); at != std::string::npos; at = file.find(wanted, at)) {
    file[at + 123] = static_cast<char>(file[at + 123] ^ 0x10);
    found++;
  }
  ASSERT_GT(found, 0);
  std::ofstream(path, std::ios::in | std::ios::out).write(file.data(), static_cast<std::streamsize>(file.size()));
  Kv(directory_, words).expect_one_sentence("key 7, version 1048577 is damaged at byte 120 of 300");
}

TEST_P(KvProgram, server_that_stays_away_ends_the_client_with_a_sentence) {
  Kv nobody(directory_, client("127.0.0.1:9"));
  nobody.expect_one_sentence("no kv server at tern://127.0.0.1:9");

  auto server_run = std::make_unique<Kv>(directory_, server(kAnyPort));
  const std::string address = server_run->address();
  Kv run(directory_, client(address, {"--keys=64", "--seconds=60", "--reconnect_seconds=1"}));
  EXPECT_TRUE(ByHand(settings(), address).see_writes(run, 0, 10)) << run.error();
  server_run->kill();
  run.expect_one_sentence("did not come back within --reconnect_seconds");
}

TEST_P(KvProgram, a_killed_server_leaves_nothing_behind) {
  const auto files = files_in_dev_shm();
  {
    Kv server_run(directory_, server(kAnyPort));
    EXPECT_NE(server_run.address(), "");
  }
  EXPECT_TRUE(leaves_nothing_in_dev_shm(files));
}

/// The memory belongs to files, which must have no names by the time at which the server claims it.
TEST_P(KvStore, a_server_killed_while_it_claims_its_memory_leaves_none_of_it) {
  Kv server_run(directory_, with({"--role=server", "--server=" + kAnyPort, "--memory_mb=256", "--server_threads=4"}));
  const std::string mark = "tern-kv." + std::to_string(server_run.pid()) + ".";
  const auto path_of_store = [&]() -> std::string {
    for (const std::string& name : files_in_dev_shm()) {
      if (name.starts_with(mark)) return "/dev/shm/" + name;
    }
    return {};
  };
  const auto named_bytes = [&] {
    std::error_code error;  // the files go while it looks
    int64_t bytes = 0;
    for (const auto& file : std::filesystem::directory_iterator(path_of_store(), error)) {
      struct stat status = {};
      if (stat(file.path().c_str(), &status) == 0) bytes += status.st_blocks * 512;
    }
    return bytes;
  };
  constexpr int64_t kPartitionBytes = 64 << 20;  // the kernel takes back what it has given a file only in part
  const auto has_started = [&] { return server_run.error().ends_with('\n') || !server_run.is_running(); };
  EXPECT_TRUE(wait_for([&] { return named_bytes() > kPartitionBytes || has_started(); }));
  server_run.kill();
  EXPECT_LT(named_bytes(), kPartitionBytes);
  if (const std::string left = path_of_store(); !left.empty()) std::filesystem::remove_all(left);
}

TEST_P(KvStore, malformed_requests_are_refused) {
  Kv server_run(directory_, server(kAnyPort));
  ByHand by_hand(settings(), server_run.address());
  const auto expect_refused = [&](uint16_t type, size_t len_bytes) {
    const std::vector<std::byte> request(len_bytes, std::byte{0xff});
    const Call* call = by_hand.send(type, request);
    ASSERT_NE(call, nullptr);
    EXPECT_EQ(call->code(), tern::Code::kRefused) << type << " of " << len_bytes << " B";
    EXPECT_EQ(call->app_code, kv::kMalformed) << type << " of " << len_bytes << " B";
  };
  for (const size_t len_bytes : {0, 1, 7, 9, 16, 5000}) expect_refused(kv::kGet, len_bytes);
  for (const size_t len_bytes : {0, 1, 8, 15}) expect_refused(kv::kPut, len_bytes);
  for (const size_t len_bytes : {0, 7, 9, 8 * 65, 5001}) expect_refused(kv::kMultiGet, len_bytes);
  const std::vector<std::byte> too_large(kv::kPutHeadBytes + kv::kValueBytesMax + 1, std::byte{1});
  EXPECT_EQ(by_hand.send(kv::kPut, too_large)->code(), tern::Code::kTooLarge);
  EXPECT_EQ(by_hand.send(kv::kMultiGet + 1, too_large)->code(), tern::Code::kRefused);

  const auto largest = std::span(too_large).first(kv::kPutHeadBytes + kv::kValueBytesMax);
  EXPECT_TRUE(by_hand.send(kv::kPut, largest)->is_ok());
  EXPECT_EQ(by_hand.version_of(0x0101010101010101), 0x0101010101010101u);
  EXPECT_TRUE(server_run.is_running());
}

TEST_P(KvStore, second_server_of_a_store_is_refused) {
  const std::vector<std::string> store = {"--store=" + directory_.store()};
  Kv first(directory_, server(kAnyPort, store));
  EXPECT_NE(first.address(), "");
  Kv(directory_, server(kAnyPort, store)).expect_one_sentence("another server uses the store at");
  EXPECT_EQ(first.interrupt(), 0);
  Kv(directory_, server(kAnyPort, {store[0], "--server_threads=2"})).expect_one_sentence("another --server_threads");
  Kv(directory_, server(kAnyPort, {"--store=/nowhere/kv"}))
      .expect_one_sentence("cannot open the directory /nowhere/kv");
}

TEST_P(KvStore, wrong_flags_are_refused) {
  for (const auto& [flag, part] :
       std::initializer_list<std::pair<const char*, const char*>>{{"--value_bytes=5..4", "--value_bytes"},
                                                                  {"--value_bytes=100000", "--value_bytes"},
                                                                  {"--get_share=1.5", "--get_share"},
                                                                  {"--multi_get_share=nan", "--multi_get_share"},
                                                                  {"--multi_get_keys=65", "--multi_get_keys"},
                                                                  {"--zipf=1", "--zipf"},
                                                                  {"--keys=0", "--keys"},
                                                                  {"--client=1", "--client"},
                                                                  {"--server_threads=0", "--server_threads"},
                                                                  {"--memory_mb=0", "--memory_mb"},
                                                                  {"--memory_mb=1048576", "try a smaller --memory_mb"},
                                                                  {"--queue_max=0", "--queue_max"},
                                                                  {"--window=0", "--window"},
                                                                  {"--deadline_us=-1", "--deadline_us"},
                                                                  {"--reconnect_seconds=nan", "--reconnect_seconds"},
                                                                  {"--seconds=0", "--seconds"},
                                                                  {"--cpus=x", "--cpus"},
                                                                  {"word", "'word' is not a flag"}}) {
    SCOPED_TRACE(flag);
    Kv(directory_, with({"--json", flag})).expect_one_sentence(part);
  }
}
