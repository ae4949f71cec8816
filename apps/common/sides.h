// The two sides of a program: interruption, CPUs, and a server in a process of its own.
// Called by the main thread, unless a function says otherwise.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <atomic>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace programs {

inline std::atomic<bool> interrupted{false};  ///< SIGINT or SIGTERM has arrived; any thread

/// Exit code of a program that was interrupted before it could finish, as shells have it.
inline constexpr int kInterruptedExit = 128 + SIGINT;

/// From now on SIGINT and SIGTERM only set `interrupted`. A second one ends the process at once.
void catch_interrupts();

/// The CPUs that sides are pinned to, in order: --cpus, else those that this process may use. Empty: --cpus is wrong,
/// and the sentence has been printed.
std::vector<int> side_cpus();

/// Pins the calling thread. Refusal is no error: the figures then show it.
void pin_to(int cpu);

/// Lets the calling thread run on any of these.
void pin_to_any(const std::vector<int>& cpus);

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

/// This program again, as a server. Ends with this object, and with this process however it ends.
class ServerProcess {
 public:
  ServerProcess() = default;
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  ~ServerProcess() { stop(); }

  /// Once. Returns when the server can be reached. False: it did not start; a sentence has been printed by one of us.
  /// `words` are the program and its flags; of a flag that comes twice the last value counts.
  [[nodiscard]] bool start(std::vector<std::string> words);
  /// Likewise, with the flags of this process and --role=server.
  [[nodiscard]] bool start(int argc, char** argv);

  const std::string& uri() const { return uri_; }

  /// True as long as it has not ended by itself.
  bool is_running();

  /// Asks it to end; after two seconds makes it.
  void stop();
  /// Makes it end at once.
  void kill();

 private:
  bool read_uri(int fd);

  pid_t pid_ = -1;
  std::string uri_;
};

/// A server can be reached at `uri` now: tells whoever started it.
void announce_server(const std::string& uri);

}  // namespace programs
