// The two sides of a program: interruption, CPUs, and a server in a separate process.
// The main thread calls these functions, unless a comment says otherwise.
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

/// Exit code of a program that was interrupted before it finished, by the convention of shells.
inline constexpr int kInterruptedExit = 128 + SIGINT;

/// After this call SIGINT and SIGTERM only set `interrupted`. A signal that comes more than a second after the first
/// one ends the process at once, unless it is a server process: its parent process ends it.
void catch_interrupts();

/// The CPUs that the sides are pinned to, in order: --cpus, or by default the CPUs that this process may use. Empty if
/// --cpus is wrong; the error message has then been printed.
std::vector<int> side_cpus();

/// Pins the calling thread. If the system refuses, the thread runs unpinned, and the measured times show it.
void pin_to(int cpu);

/// Lets the calling thread run on any of `cpus`.
void pin_to_any(const std::vector<int>& cpus);

inline constexpr const char* kNoThread =
    "the system does not allow another thread; raise its limit (ulimit -u, pids.max)";

/// Adds a thread that is pinned to `cpu` and runs `body`. Returns false if the system gives no more threads
/// (kNoThread).
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

/// A process that runs this program as a server. It ends with this object, and with this process, even if this process
/// is killed.
class ServerProcess {
 public:
  ServerProcess() = default;
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  ~ServerProcess() { static_cast<void>(stop()); }

  /// Starts the server, and returns when clients can reach it. Returns false if it did not start; one of the two
  /// processes has then printed a sentence. `words` are the program and its flags; the last value of a repeated flag
  /// counts. Must be called at most once.
  [[nodiscard]] bool start(std::vector<std::string> words);
  /// Starts the server with the flags of this process and --role=server.
  [[nodiscard]] bool start(int argc, char** argv);

  const std::string& uri() const { return uri_; }

  /// True until the process ends by itself.
  bool is_running();

  /// Asks the process to end, and kills it after 20 seconds. Returns a sentence if it has failed, or an empty text;
  /// also if it has ended by itself before. An interruption of both processes is no failure.
  [[nodiscard]] std::string stop();
  /// Kills the process.
  void kill();

 private:
  bool read_uri(int fd);

  pid_t pid_ = -1;
  int status_ = 0;  ///< wait status of the process, after its end
  std::string uri_;
};

/// Reports to the parent process that a server can now be reached at `uri`. Ends this process if the parent has ended.
void announce_server(const std::string& uri);

}  // namespace programs
