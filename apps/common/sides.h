// The two sides of a program: interruption, CPUs, and a server in a process of its own.
// Called by the main thread, unless a function says otherwise.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "flags.h"

namespace programs {

inline std::atomic<bool> interrupted{false};  ///< SIGINT or SIGTERM has arrived; any thread

/// Exit code of a program that was interrupted before it could finish, as shells have it.
inline constexpr int kInterruptedExit = 128 + SIGINT;

/// From now on SIGINT and SIGTERM only set `interrupted`. A second one ends the process at once.
inline void catch_interrupts() {
  static_assert(std::atomic<bool>::is_always_lock_free);
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted.store(true, std::memory_order_relaxed); };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

/// The CPUs that sides are pinned to, in order: --cpus, else those that this process may use. Empty: --cpus is wrong,
/// and the sentence has been printed.
inline std::vector<int> side_cpus() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    fail("the CPUs that this process may use are not known: %s", std::strerror(errno));
    return cpus;
  }
  if (FLAGS_cpus.empty()) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
    }
    return cpus;
  }
  const char* next = FLAGS_cpus.c_str();
  while (true) {
    char* end = nullptr;
    const long cpu = std::strtol(next, &end, 10);
    const bool is_cpu = end != next && cpu >= 0 && cpu < CPU_SETSIZE && CPU_ISSET(static_cast<int>(cpu), &allowed);
    if (!is_cpu || (*end != ',' && *end != '\0')) {
      fail("--cpus=%s is not a list, as in 0,2, of CPUs that this process may use", FLAGS_cpus.c_str());
      return {};
    }
    cpus.push_back(static_cast<int>(cpu));
    if (*end == '\0') return cpus;
    next = end + 1;
  }
}

/// Pins the calling thread. Refusal is no error: the figures then show it.
inline void pin_to(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  sched_setaffinity(0, sizeof(one), &one);
}

inline constexpr const char* kNoThread = "the system gives no more threads; raise its limit (ulimit -u, pids.max)";

/// Adds a thread that is pinned to `cpu` and runs `body`. False: there is none to be had (kNoThread).
template <class Body>
[[nodiscard]] bool add_thread(std::vector<std::thread>& threads, int cpu, Body body) {
  try {
    threads.emplace_back([cpu, run_body = std::move(body)] {
      pin_to(cpu);
      run_body();
    });
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

/// This program again, as --role=server. Ends with this object, and with this process however it ends.
class ServerProcess {
 public:
  ServerProcess() = default;
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  ~ServerProcess() { stop(); }

  /// Once. Returns when the server can be reached. False: it did not start; a sentence has been printed by one of us.
  [[nodiscard]] bool start(int argc, char** argv) {
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) != 0) {
      fail("no pipe to the server process: %s", std::strerror(errno));
      return false;
    }
    // Flags given twice take the last value, so that ours can follow the user's.
    std::vector<std::string> words(argv, argv + argc);
    words.push_back("--role=server");
    words.push_back("--processes=false");
    words.push_back("--server=" + server_uri().substr(std::strlen("tern://")));
    words.push_back("--ready_fd=" + std::to_string(ready[1]));
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);

    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {  // only async-signal-safe calls from here to exec
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      fcntl(ready[1], F_SETFD, 0);
      execv("/proc/self/exe", arguments.data());
      _exit(1);
    }
    close(ready[1]);
    if (pid_ < 0) fail("no server process: %s", std::strerror(errno));
    const bool is_ready = pid_ > 0 && read_uri(ready[0]);
    close(ready[0]);
    return is_ready;
  }

  const std::string& uri() const { return uri_; }

  /// True as long as it has not ended by itself.
  bool is_running() {
    if (pid_ < 0) return false;
    if (waitpid(pid_, nullptr, WNOHANG) == 0) return true;
    pid_ = -1;
    return false;
  }

  /// Asks it to end; after two seconds makes it.
  void stop() {
    if (pid_ < 0) return;
    kill(pid_, SIGTERM);
    for (int tries = 0; tries < 200; ++tries) {
      if (!is_running()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  bool read_uri(int fd) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!interrupted && std::chrono::steady_clock::now() < give_up) {
      pollfd readable = {fd, POLLIN, 0};
      if (poll(&readable, 1, 100) <= 0) continue;
      char bytes[256];
      const ssize_t got = read(fd, bytes, sizeof(bytes));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;  // it has said why
      uri_.append(bytes, static_cast<size_t>(got));
      if (!uri_.ends_with('\n')) continue;
      uri_.pop_back();
      return true;
    }
    fail(interrupted ? "interrupted while the server process started" : "the server process was not ready in 20 s");
    return false;
  }

  pid_t pid_ = -1;
  std::string uri_;
};

/// A server can be reached at `uri` now: tells whoever started it.
inline void announce_server(const std::string& uri) {
  if (FLAGS_ready_fd < 0) {
    std::fprintf(stderr, "%s: serving over %s at %s\n", gflags::ProgramInvocationShortName(), FLAGS_transport.c_str(),
                 uri.c_str());
    return;
  }
  const std::string line = uri + "\n";
  if (write(FLAGS_ready_fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    fail("nobody reads the address of this server: %s", std::strerror(errno));
  }
  close(FLAGS_ready_fd);
}

}  // namespace programs
