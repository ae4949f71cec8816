#include "transport/dpdk/eal.h"

#include <rte_alarm.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <sched.h>
#include <syslog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <semaphore>
#include <span>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/folder.h"
#include "base/status_text.h"
#include "base/thread_safety.h"
#include "base/threads.h"

namespace tern::transport {

namespace {

using base::status_of;

constexpr uint64_t kMegabyte = 1u << 20;
/// Memory in normal pages, enough for a few ports. The pages are allocated when they are touched.
constexpr uint64_t kNormalBytes = 512 * kMegabyte;

// ---- What EAL and drivers write

/// The log of EAL and drivers. It allocates nothing, because C code calls it, through which no exception may pass, and
/// also when no memory is left. Never destroyed, because EAL's threads log until the process ends.
class Log {
 public:
  static Log& get() {
    static_assert(std::is_trivially_destructible_v<Log>);
    static constinit Log log;
    return log;
  }

  void add(std::string_view text, bool is_error) {
    const size_t end = text.find_last_not_of(" \n");
    if (end == std::string_view::npos) return;
    text = text.substr(0, end + 1);
    const base::MutexLock lock(mutex_);
    if (!is_error) {
      line_.set(text);
    } else if (error_.bytes == 0) {  // later errors are consequences of the first
      error_.set(text);
    }
  }
  void clear() {
    const base::MutexLock lock(mutex_);
    error_.set({});
    line_.set({});
  }
  std::string reason() {
    const base::MutexLock lock(mutex_);
    const Line& line = error_.bytes == 0 ? line_ : error_;
    return {line.text.data(), line.bytes};
  }

 private:
  struct Line {
    std::array<char, 200> text{};  ///< longer ones are cut
    size_t bytes = 0;

    void set(std::string_view line) { bytes = line.copy(text.data(), text.size()); }
  };

  base::Mutex mutex_;
  Line error_ GUARDED_BY(mutex_);
  Line line_ GUARDED_BY(mutex_);
};

/// Makes a C stream that passes each written piece to `write`, in the writing thread. Null: no memory.
FILE* open_stream(cookie_write_function_t* write, void* cookie) {
  cookie_io_functions_t functions{};
  functions.write = write;
  FILE* const stream = fopencookie(cookie, "w", functions);
  if (stream != nullptr) setvbuf(stream, nullptr, _IONBF, 0);
  return stream;
}

/// rte_log() writes one message at a time.
ssize_t write_log(void* /*cookie*/, const char* text, size_t bytes) {
  const int level = rte_log_cur_msg_loglevel();
  syslog(level - 1, "%.*s", static_cast<int>(bytes), text);  // DPDK's levels are syslog's, from 1
  Log::get().add({text, bytes}, level <= static_cast<int>(RTE_LOG_ERR));
  return static_cast<ssize_t>(bytes);
}

std::atomic<bool> has_silence{false};
/// True if this thread has a SilentOutput, or is EAL's thread and works for a thread that has one.
constinit thread_local bool is_silent = false;
FILE* real_stdout = nullptr;
FILE* real_stderr = nullptr;

/// Replaces stdout or stderr, to which `cookie` points. The output of other threads is passed on.
ssize_t write_unless_silent(void* cookie, const char* text, size_t bytes) {
  if (!is_silent) {
    FILE* const real = *static_cast<FILE**>(cookie);
    const size_t written = fwrite(text, 1, bytes, real);
    return static_cast<ssize_t>(written);
  }
  const bool is_error = cookie == &real_stderr;
  syslog(is_error ? LOG_ERR : LOG_INFO, "%.*s", static_cast<int>(bytes), text);
  if (is_error) Log::get().add({text, bytes}, true);
  return static_cast<ssize_t>(bytes);
}

// ---- Arguments

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> words;
  size_t begin = 0;
  while ((begin = text.find_first_not_of(" \t\n", begin)) != std::string_view::npos) {
    const size_t end = std::min(text.find_first_of(" \t\n", begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

/// True for -h, --help or its abbreviations, and --log-level=help, for which EAL prints its usage and ends the process.
bool ends_process(std::string_view argument, std::string_view next) {
  constexpr std::string_view kHelp = "--help", kLevel = "--log-level";
  if (argument.starts_with("-h") || argument.starts_with("-vh")) return true;
  if (argument.size() > 2 && kHelp.starts_with(argument)) return true;
  const size_t equals = argument.find('=');
  const std::string_view name = argument.substr(0, equals);
  const std::string_view value = equals == std::string_view::npos ? next : argument.substr(equals + 1);
  return value == "help" && name.size() > 3 && kLevel.starts_with(name);
}

uint64_t read_number(const std::string& path) {
  uint64_t number = 0;
  if (FILE* const file = fopen(path.c_str(), "re")) {
    if (fscanf(file, "%" SCNu64, &number) != 1) number = 0;
    fclose(file);
  }
  return number;
}

uint64_t free_hugepage_bytes() {
  const std::string folder = "/sys/kernel/mm/hugepages";
  uint64_t bytes = 0;
  const base::Folder sizes(opendir(folder.c_str()));
  if (sizes == nullptr) return 0;
  while (const dirent* entry = readdir(sizes.get())) {
    uint64_t kilobytes = 0;
    if (sscanf(entry->d_name, "hugepages-%" SCNu64 "kB", &kilobytes) != 1) continue;
    const uint64_t free_pages = read_number(folder + "/" + entry->d_name + "/free_hugepages");
    const uint64_t reserved = read_number(folder + "/" + entry->d_name + "/resv_hugepages");
    bytes += (free_pages - std::min(free_pages, reserved)) * kilobytes * 1024;
  }
  return bytes;
}

// ---- The start

struct Eal {
  enum class State : uint8_t {
    kNone,     ///< EAL was not started, or refused its arguments
    kOurs,     ///< runs with `arguments`
    kProgram,  ///< the program has started it
  };
  base::Mutex mutex;
  State state GUARDED_BY(mutex) = State::kNone;
  bool was_tried GUARDED_BY(mutex) = false;
  pid_t pid GUARDED_BY(mutex) = 0;
  std::string arguments GUARDED_BY(mutex);             ///< the user's
  std::string words GUARDED_BY(mutex);                 ///< the user's arguments, or the defaults
  std::vector<std::string> command GUARDED_BY(mutex);  ///< EAL keeps pointers into it
};

/// Never destroyed, because EAL is not.
Eal& eal() {
  static Eal& one = *new Eal;
  return one;
}

/// Calls rte_eal_init() in a separate thread, because it changes the thread's affinity, and silences its output.
/// Returns 0 or the error.
int run_init(std::vector<std::string>& command) {
  std::vector<char*> pointers;
  pointers.reserve(command.size() + 1);
  for (std::string& word : command) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  int error = EAGAIN;
  std::thread thread;
  const bool is_started = base::start_thread(thread, "tern-eal", [&] {
    const SilentOutput silence;
    const int used = rte_eal_init(static_cast<int>(command.size()), pointers.data());
    error = used < 0 ? rte_errno : 0;
  });
  if (is_started) thread.join();
  return error;
}

Status why_not_started(const EalChoice& choice, int error) {
  const std::string line = eal_reason();
  const bool has_huge = choice.arguments.find("--no-huge") == std::string::npos;
  if (error == EACCES || (error == ENOMEM && has_huge)) {
    return status_of(Code::kUnavailable, "dpdk: EAL finds no hugepages: make some, or give it --no-huge",
                     {"dpdk: EAL finds not enough free hugepages", line,
                      ": make some (echo 128 > /proc/sys/vm/nr_hugepages), or add --no-huge to Dpdk::Options::eal"});
  }
  if (error == EALREADY) {
    return {Code::kUnavailable,
            "dpdk: EAL has failed to start in this process before, and cannot be started again: restart the program"};
  }
  if (choice.arguments.empty()) {
    return status_of(
        Code::kUnavailable, "dpdk: EAL has failed to start",
        {"dpdk: EAL has failed to start", line, ": see syslog, or give it arguments by Dpdk::Options::eal"});
  }
  return status_of(Code::kUnavailable, "dpdk: EAL refuses the arguments of Dpdk::Options::eal",
                   {"dpdk: EAL refuses the arguments \"", choice.arguments, "\" of Dpdk::Options::eal", line,
                    ": correct them, or leave them empty"});
}

}  // namespace

// ---- Output

SilentOutput::SilentOutput() {
  // Made once and kept, because another thread may have read the stream from `stdout` and be about to write to it.
  static FILE* const out = open_stream(write_unless_silent, &real_stdout);
  static FILE* const err = open_stream(write_unless_silent, &real_stderr);
  is_inner_ = is_silent;
  if (is_inner_) return;
  const bool has_other = has_silence.exchange(true);
  CHECK(has_other, ==, false);
  is_silent = true;
  if (out == nullptr || err == nullptr) return;
  fflush(stdout);
  real_stdout = stdout;
  real_stderr = stderr;
  stdout = out;
  stderr = err;
}

SilentOutput::~SilentOutput() {
  if (is_inner_) return;
  if (real_stdout != nullptr) {
    stdout = real_stdout;
    stderr = real_stderr;
  }
  is_silent = false;
  has_silence.store(false);
}

void clear_eal_log() { Log::get().clear(); }

std::string eal_reason() {
  const std::string line = Log::get().reason();
  return line.empty() ? line : " (" + line + ")";
}

// ---- Arguments

EalMachine read_eal_machine() {
  EalMachine machine;
  machine.free_hugepage_bytes = free_hugepage_bytes();
  const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  if (pages > 0 && page_bytes > 0)
    machine.memory_bytes = static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes);
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return machine;
  while (machine.cpu + 1 < CPU_SETSIZE && !CPU_ISSET(machine.cpu, &set)) ++machine.cpu;
  return machine;
}

Result<std::vector<std::string>> eal_arguments(const EalChoice& choice, const EalMachine& machine) {
  std::vector<std::string> words = split(choice.arguments);
  if (!words.empty()) {
    for (size_t i = 0; i < words.size(); ++i) {
      if (!ends_process(words[i], i + 1 < words.size() ? words[i + 1] : "")) continue;
      return status_of(Code::kMisuse,
                       "dpdk: an argument of Dpdk::Options::eal makes EAL print help and end the process",
                       {"dpdk: the argument ", words[i], " of Dpdk::Options::eal makes EAL print help and end the ",
                        "process: leave it out"});
    }
    words.insert(words.begin(), "tern");
    return words;
  }
  words = {"tern", "--no-telemetry", "--lcores", "0@" + std::to_string(machine.cpu)};
  if (machine.free_hugepage_bytes >= choice.memory_bytes && machine.free_hugepage_bytes != 0) {
    words.insert(words.end(), {"--in-memory", "--single-file-segments"});  // vhost-user shares eight files at most
  } else {
    const uint64_t bytes = std::min(std::max(kNormalBytes, 2 * choice.memory_bytes), machine.memory_bytes / 2);
    words.insert(words.end(),
                 {"--no-huge", "--no-shconf", "-m", std::to_string(std::max<uint64_t>(bytes / kMegabyte, 64))});
  }
  // An empty list of allowed devices, so that EAL probes only devices that are named later.
  if (!choice.probes_all) words.insert(words.end(), {"-a", "ffff:ff:1f.7"});
  return words;
}

// ---- The start

Status start_eal(const EalChoice& choice) {
  Eal& eal = transport::eal();
  const base::MutexLock lock(eal.mutex);
  if (eal.state == Eal::State::kNone && !eal.was_tried && rte_lcore_count() > 0) {
    eal.state = Eal::State::kProgram;
    eal.pid = getpid();
  }
  if (eal.state != Eal::State::kNone && eal.pid != getpid()) {
    return {Code::kUnavailable,
            "dpdk: this process was forked from one that runs EAL, which a child cannot use: start EAL after the fork"};
  }
  if (eal.state == Eal::State::kProgram && !choice.arguments.empty()) {
    return {Code::kMisuse, "dpdk: the program has started EAL itself: leave Dpdk::Options::eal empty"};
  }
  if (eal.state == Eal::State::kOurs && !choice.arguments.empty() && choice.arguments != eal.arguments) {
    return status_of(Code::kMisuse, "dpdk: EAL runs with other arguments: a process has one EAL",
                     {"dpdk: EAL runs with the arguments \"", eal.words,
                      "\", and a process has one EAL: give all endpoints the same Dpdk::Options::eal, or none"});
  }
  if (eal.state != Eal::State::kNone) return {};

  auto command = eal_arguments(choice, read_eal_machine());
  if (!command.ok()) return command.status();
  static FILE* const log = open_stream(write_log, nullptr);
  if (log == nullptr || rte_openlog_stream(log) != 0) return {Code::kNoMemory, "dpdk: no memory for EAL's log"};
  eal.command = std::move(*command);
  std::string words;
  for (const std::string& word : std::span(eal.command).subspan(1)) words += (words.empty() ? "" : " ") + word;
  eal.was_tried = true;
  clear_eal_log();
  if (const int error = run_init(eal.command); error != 0) return why_not_started(choice, error);
  eal.state = Eal::State::kOurs;
  eal.pid = getpid();
  eal.arguments = choice.arguments;
  eal.words = std::move(words);
  return {};
}

bool is_eal_running() {
  Eal& eal = transport::eal();
  const base::MutexLock lock(eal.mutex);
  return eal.state != Eal::State::kNone && eal.pid == getpid();
}

void run_in_eal_thread(const std::function<void()>& body) {
  struct Call {
    const std::function<void()>& body;
    bool is_silent;
    std::binary_semaphore done{0};
  } call{body, is_silent};
  const auto run = [](void* argument) {
    Call& due = *static_cast<Call*>(argument);
    is_silent = due.is_silent;
    due.body();
    is_silent = false;
    due.done.release();
  };
  if (rte_eal_alarm_set(1, run, &call) != 0) return body();  // no memory for an alarm
  call.done.acquire();
}

void settle_eal() {
  // The thread handles several events in a turn, of which this call is one; an event may cause another one.
  for (uint32_t turn = 0; turn < 4; ++turn) run_in_eal_thread([] {});
}

void register_eal_thread() {
  struct Registration {
    bool is_mine = rte_lcore_id() == LCORE_ID_ANY && rte_thread_register() == 0;
    ~Registration() {
      if (is_mine) rte_thread_unregister();
    }
  };
  static thread_local const Registration registration;
}

}  // namespace tern::transport
