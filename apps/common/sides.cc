#include "sides.h"

#include <fcntl.h>
#include <gflags/gflags.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "flags.h"

namespace programs {

namespace {

constexpr int kNotExecuted = 127;  // exit code, as in shells

std::atomic<int64_t> first_interrupt_ns{0};  // CLOCK_MONOTONIC; 0: none yet
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

/// Signal handler. timeout(1) sends its signal twice within microseconds, to the program and to its process group: this
/// is one interruption, not the impatience that a later signal shows.
void on_interrupt(int number) {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t now_ns = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  int64_t first_ns = 0;
  if (first_interrupt_ns.compare_exchange_strong(first_ns, now_ns)) {
    interrupted.store(true, std::memory_order_relaxed);
  } else if (now_ns - first_ns > 1'000'000'000 && FLAGS_ready_fd < 0) {
    signal(number, SIG_DFL);
    raise(number);
  }
}

/// Why a process with this wait status has failed, or an empty text.
std::string problem_of(int status) {
  const bool is_signal = WIFSIGNALED(status);
  const int number = is_signal ? WTERMSIG(status) : WEXITSTATUS(status);
  const bool is_interruption = is_signal ? number == SIGINT || number == SIGTERM : number == kInterruptedExit;
  if (status == 0 || (interrupted && is_interruption)) return {};
  return std::string("the server process ended ") + (is_signal ? "by signal " : "with exit code ") +
         std::to_string(number);
}

}  // namespace

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

std::vector<int> side_cpus() {
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
      fail("--cpus=%s must be a list of CPUs that this process may use, as in 0,2", FLAGS_cpus.c_str());
      return {};
    }
    cpus.push_back(static_cast<int>(cpu));
    if (*end == '\0') return cpus;
    next = end + 1;
  }
}

void pin_to(int cpu) { pin_to_any({cpu}); }

void pin_to_any(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

bool ServerProcess::start(int argc, char** argv) {
  std::vector<std::string> words(argv, argv + argc);
  words.push_back("--role=server");
  words.push_back("--processes=false");
  words.push_back("--server=" + server_uri().substr(std::strlen("tern://")));
  return start(std::move(words));
}

bool ServerProcess::start(std::vector<std::string> words) {
  int ready[2];
  if (pipe2(ready, O_CLOEXEC) != 0) {
    fail("cannot create a pipe to the server process: %s", std::strerror(errno));
    return false;
  }
  words.push_back("--ready_fd=" + std::to_string(ready[1]));
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {  // only async-signal-safe calls are allowed until exec
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    fcntl(ready[1], F_SETFD, 0);
    execv("/proc/self/exe", arguments.data());
    _exit(kNotExecuted);
  }
  close(ready[1]);
  if (pid_ < 0) fail("cannot start the server process: %s", std::strerror(errno));
  const bool is_ready = pid_ > 0 && read_uri(ready[0]);
  close(ready[0]);
  return is_ready;
}

bool ServerProcess::is_running() {
  if (pid_ < 0) return false;
  if (waitpid(pid_, &status_, WNOHANG) == 0) return true;
  pid_ = -1;
  return false;
}

std::string ServerProcess::stop() {
  if (pid_ > 0) ::kill(pid_, SIGTERM);
  // It writes its trace at its end, which takes seconds on a busy machine.
  for (int tries = 0; tries < 2000; ++tries) {
    if (!is_running()) return problem_of(status_);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill();
  return "the server process did not end within 20 s";
}

void ServerProcess::kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

bool ServerProcess::read_uri(int fd) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!interrupted && std::chrono::steady_clock::now() < give_up) {
    pollfd readable = {fd, POLLIN, 0};
    if (poll(&readable, 1, 100) <= 0) continue;
    char bytes[256];
    const ssize_t got = read(fd, bytes, sizeof(bytes));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      const std::string problem = stop();
      if (interrupted) break;
      const bool has_printed = WIFEXITED(status_) && WEXITSTATUS(status_) == 1;
      if (!has_printed) fail("%s before it was ready", problem.empty() ? "the server process ended" : problem.c_str());
      return false;
    }
    uri_.append(bytes, static_cast<size_t>(got));
    if (!uri_.ends_with('\n')) continue;
    uri_.pop_back();
    return true;
  }
  fail(interrupted ? "interrupted while the server process started" : "the server process was not ready in 20 s");
  return false;
}

void announce_server(const std::string& uri) {
  if (FLAGS_ready_fd < 0) {
    std::fprintf(stderr, "%s: serving over %s at %s\n", gflags::ProgramInvocationShortName(), FLAGS_transport.c_str(),
                 uri.c_str());
    return;
  }
  // Once more: the kernel forgets it when a process executes a program with file capabilities (setcap). If the parent
  // has ended before, the pipe has no reader.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string line = uri + "\n";
  if (write(FLAGS_ready_fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    _exit(fail("cannot write the address of this server: %s", std::strerror(errno)));
  }
  close(FLAGS_ready_fd);
}

}  // namespace programs
