// DPDK's environment (EAL), which a process starts once. Transport layer; any thread, control events only.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <tern/status.h>

namespace tern::transport {

/// This machine's resources for EAL.
struct EalMachine {
  uint64_t free_hugepage_bytes = 0;
  uint64_t memory_bytes = 0;  ///< in all
  int cpu = 0;                ///< one that this thread may use: the main lcore's, on which nothing runs
};
/// Reads them from the kernel.
EalMachine read_eal_machine();

struct EalChoice {
  std::string arguments;      ///< the user's, separated by blanks; empty: see eal_arguments()
  uint64_t memory_bytes = 0;  ///< which the first port needs
  bool probes_all = false;    ///< without arguments: PCI devices that are bound to DPDK become ports at once
};

/// EAL's command line, the program's name first. Without arguments of the user it asks for memory of this process only,
/// in hugepages if enough of them are free and else in normal pages; for one lcore, so that the others are left for
/// threads that register; and for no telemetry and no files. kMisuse: arguments that would end the process.
Result<std::vector<std::string>> eal_arguments(const EalChoice& choice, const EalMachine& machine);

/// Starts EAL unless it runs, which takes 0.2 s and changes nothing of the calling thread. EAL that the program has
/// started before is used unchanged. EAL's log goes to syslog(3). kMisuse: EAL runs with other arguments. kUnavailable:
/// EAL refuses the arguments, or has no memory; the text has EAL's own reason.
Status start_eal(const EalChoice& choice);

/// True if EAL is running and was started by this process.
bool is_eal_running();

/// Forgets what EAL and drivers have logged.
void clear_eal_log();
/// The first error that EAL or a driver has logged since then, or if there is none, its last line: " (EAL: ...)".
/// Empty: nothing.
std::string eal_reason();

/// Waits until EAL's interrupt thread has handled the pending events, such as the end of a connection that a driver has
/// closed, because the thread must not be handling one when the process ends.
void settle_eal();

/// Gives the calling thread an lcore until it ends, so that it has a cache of mbufs. Does nothing if it has one, or
/// none is left; it then works without a cache, and slower.
void register_eal_thread();

/// Runs `body` in EAL's interrupt thread and waits for it. In that thread drivers handle events of their peers: memif
/// frees a port's rings when the peer disconnects, and frees them twice if another thread stops the port meanwhile. The
/// caller's SilentOutput also holds for `body`. Must not be called by `body`.
void run_in_eal_thread(const std::function<void()>& body);

/// Sends the calling thread's output to stdout and stderr through C streams to syslog(3), because EAL, some drivers and
/// their libraries print there. It does not affect other threads. One thread of the process at a time may have such
/// objects; it may nest them.
class SilentOutput {
 public:
  SilentOutput();
  ~SilentOutput();
  SilentOutput(const SilentOutput&) = delete;
  SilentOutput& operator=(const SilentOutput&) = delete;

 private:
  bool is_inner_ = false;
};

}  // namespace tern::transport
