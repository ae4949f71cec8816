// Another process of a test: the test's own executable, started again as a server or a busy client. The two share a
// page, the board. The peer writes its observations there at once, so that they survive its SIGKILL.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "e2e/any_rpc.h"
#include "e2e/killed.h"
#include "own_loopback.h"
#include "patience.h"

namespace e2e {

/// The peer writes these fields and the test reads them, except `command`, `release` and `drain_ms`.
struct Board {
  enum State : uint32_t { kStarting, kReady, kRefused, kClosed };
  enum Command : uint32_t { kRun, kClose, kFork };
  static constexpr size_t kIds = 1 << 16;

  std::atomic<uint32_t> state;
  std::atomic<uint32_t> command;       ///< written by the test; the peer resets it to kRun, except kClose
  std::atomic<uint32_t> release;       ///< written by the test: answers the requests held until now
  std::atomic<uint32_t> drain_ms;      ///< written by the test: drain time of kClose
  char uri[128];                       ///< set in kReady
  std::atomic<uint32_t> refused_code;  ///< a tern::Code, set in kRefused
  char refused_text[256];
  std::atomic<int32_t> child_pid;  ///< after kFork
  // Observations of handlers.
  std::atomic<uint64_t> handled;
  std::atomic<uint64_t> damaged;  ///< requests whose contents are wrong
  std::atomic<uint64_t> held;     ///< kHold requests that wait
  std::atomic<uint64_t> cancels_seen;
  std::atomic<int64_t> time_left_ns;  ///< of the last kHold request at its arrival
  std::atomic<uint64_t> in_sleep;     ///< kSleep handlers begun
  std::atomic<uint8_t> handled_by_id[kIds];
  // Observations of a client.
  std::atomic<uint64_t> completed;
  std::atomic<uint64_t> failed;
  // Counters of endpoint 0 at its last tick.
#define TERN_COUNTER(name, what) std::atomic<uint64_t> name;
#include <tern/detail/counters.inc>
};

/// How long a test waits for a required event. It is long because tests do not measure speed. TERN_TEST_PATIENCE
/// multiplies it on emulated machines.
inline const auto kBound = std::chrono::seconds(60) * tern::patience();

/// Waits until other processes or threads make `is_true()` true. False: kBound has passed.
template <class F>
bool wait_for(F&& is_true) {
  const auto until = std::chrono::steady_clock::now() + kBound;
  while (!is_true()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// Settings of a peer, beside those of any_rpc.h:
///   listen=URI        of its Nexus; default: any port of 127.0.0.1, or over shm and udp of own_loopback()
///   liveness_ms=N     of its Nexus
///   endpoints=N       1 by default, each with a thread of its own
///   backend=URI       where kNested requests go
///   server=URI        makes it a client too, which keeps `outstanding` kWork requests of `request_bytes` under way
///                     there that ask for `reply_bytes`
///   tick_ms=N         how often it looks at the board and writes its counters; 2 by default
///   netns=NAME        the network namespace that it lives in, of `ip netns` or a path
/// TERN_E2E_PEER has default settings for every peer. "%" in them stands for the number of a host of tests/cable: the
/// host of the peer's listen address, or otherwise the smallest number from 2 on without a peer.
class Peer {
 public:
  /// Starts the process and waits until it can be reached or could not make its endpoint; board().state says which.
  explicit Peer(const Settings& settings) {
    const int fd = memfd_create("e2e-board", 0);
    if (fd < 0 || ftruncate(fd, sizeof(Board)) != 0) std::abort();
    board_ = static_cast<Board*>(mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    if (board_ == MAP_FAILED) std::abort();
    std::vector<std::string> words = {"/proc/self/exe", "--peer", "board=" + std::to_string(fd),
                                      "parent=" + std::to_string(getpid())};
    Settings all = settings.with_defaults_of("TERN_E2E_PEER");
    // The software provider of verbs has no devices at other addresses than its own.
    const std::string transport = all.text("transport");
    if (!all.has("listen") && (transport == "shm" || transport == "udp")) {
      all.set("listen", "tern://" + tern::test::own_loopback() + ":0");
    }
    if (all.text("netns").ends_with('%')) choose_host(settings.text("listen"));
    for (const auto& [key, value] : all.values()) {
      words.push_back(key + "=" + value);
      if (host_ != 0) std::replace(words.back().begin(), words.back().end(), '%', static_cast<char>('0' + host_));
    }
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      execv("/proc/self/exe", arguments.data());
      _exit(127);
    }
    ::close(fd);
    EXPECT_TRUE(wait_for([&] { return board_->state.load() != Board::kStarting || has_ended(); })) << "no sign of life";
    if (pid_ < 0) ADD_FAILURE() << "the peer ended while it started";
  }
  /// Closes the process as close() does if it still runs.
  ~Peer() {
    if (pid_ > 0) close();
    munmap(board_, sizeof(Board));
    if (host_ != 0) peers_of_hosts()[host_]--;
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  Board& board() { return *board_; }
  bool is_ready() const { return pid_ > 0 && board_->state.load() == Board::kReady; }
  std::string listen_uri() const { return board_->uri; }
  std::string uri(uint16_t endpoint_id = 0) const { return listen_uri() + "/" + std::to_string(endpoint_id); }
  pid_t pid() const { return pid_; }

  /// Ends the process in order: close(drain), then exit. The test fails if it does not end with status 0.
  void close(uint32_t drain_ms = 0) {
    board_->drain_ms.store(drain_ms);
    board_->command.store(Board::kClose);
    if (!wait_for([&] { return has_ended(); })) {
      ADD_FAILURE() << "the peer does not end";
      return kill();
    }
    EXPECT_TRUE(WIFEXITED(status_) && WEXITSTATUS(status_) == 0) << "wait status " << status_;
    kill_child();
  }
  void kill() {
    status_ = kill_running(pid_);
    pid_ = -1;
  }
  void signal(int number) {
    if (pid_ > 0) ::kill(pid_, number);
  }
  /// Makes the process fork a sleeping child with copies of its descriptors. kill_child() ends the child.
  void fork_child() {
    board_->command.store(Board::kFork);
    EXPECT_TRUE(wait_for([&] { return board_->child_pid.load() != 0; }));
  }
  void kill_child() {
    if (const pid_t child = board_->child_pid.exchange(0); child > 0) ::kill(child, SIGKILL);
  }

 private:
  static std::array<int, 10>& peers_of_hosts() {
    static std::array<int, 10> peers{};
    return peers;
  }
  void choose_host(const std::string& listen) {
    constexpr std::string_view kHosts = "tern://10.77.0.";
    host_ = 2;
    if (listen.starts_with(kHosts)) {
      host_ = static_cast<size_t>(listen[kHosts.size()] - '0');
    } else {
      while (peers_of_hosts().at(host_) != 0) host_++;
    }
    peers_of_hosts().at(host_)++;
  }
  bool has_ended() {
    if (pid_ > 0 && waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = -1;
    return pid_ < 0;
  }

  pid_t pid_ = -1;
  int status_ = 0;
  size_t host_ = 0;  ///< 0: all peers are on the test's host
  Board* board_ = nullptr;
};

inline std::set<std::string> files_in_dev_shm() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) names.insert(entry.path().filename());
  return names;
}
/// Waits until all present files of /dev/shm that are not in `before` have gone, because other programs' files go soon.
inline bool leaves_nothing_in_dev_shm(const std::set<std::string>& before) {
  auto left = files_in_dev_shm();
  return wait_for([&] {
    std::erase_if(left, [&](const auto& name) { return before.contains(name) || !files_in_dev_shm().contains(name); });
    return left.empty();
  });
}

/// The number of open descriptors of a process.
inline size_t descriptors_of(pid_t pid) {
  size_t count = 0;
  DIR* directory = opendir(("/proc/" + std::to_string(pid) + "/fd").c_str());
  if (directory == nullptr) return 0;
  while (readdir(directory) != nullptr) count++;
  closedir(directory);
  return count;
}

/// The number of mappings of a process with `text` in their line of /proc/PID/maps.
inline size_t mappings_of(pid_t pid, std::string_view text) {
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(text) != std::string::npos;
  return count;
}

}  // namespace e2e
