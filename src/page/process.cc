#include "page/process.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <optional>
#include <system_error>

#include "base/descriptor.h"

namespace tern::page {

namespace {

/// Reads the beginning of a file of /proc. Empty: there is no such file.
template <size_t kBytes>
std::string_view read_text(const char* path, std::array<char, kBytes>& space) {
  const base::Descriptor file(open(path, O_RDONLY | O_CLOEXEC));
  const ssize_t bytes = file ? read(file.get(), space.data(), kBytes) : 0;
  std::string_view text(space.data(), bytes > 0 ? static_cast<size_t>(bytes) : 0);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

/// The path of a file in /proc/PID.
std::array<char, 48> path_of(uint64_t pid, const char* file) {
  std::array<char, 48> path;
  std::snprintf(path.data(), path.size(), "/proc/%llu/%s", static_cast<unsigned long long>(pid), file);
  return path;
}

/// The number of a namespace; 0: the system does not say.
uint64_t namespace_of(const char* path) {
  struct stat about;
  return stat(path, &about) == 0 ? about.st_ino : 0;
}

/// Field 22 of /proc/PID/stat; 0: there is no such process, or no /proc. The kernel counts it by the boot clock of the
/// reader's time namespace.
uint64_t start_ticks_of(uint64_t pid) {
  std::array<char, 1024> space;
  std::string_view text = read_text(path_of(pid, "stat").data(), space);
  // The second field, the name in parentheses, may have spaces and parentheses.
  const size_t name_end = text.rfind(") ");
  if (name_end == std::string_view::npos) return 0;
  text.remove_prefix(name_end + 2);
  if (text.starts_with('Z') || text.starts_with('X')) return 0;  // dead, but not reaped yet
  for (int field = 3; field < 22; field++) text.remove_prefix(std::min(text.find(' '), text.size() - 1) + 1);
  uint64_t ticks = 0;
  (void)std::from_chars(text.data(), text.data() + text.size(), ticks);
  return ticks;
}

/// Whether `user` is the real, effective or saved user of a process, or that of its file accesses; nothing if that
/// cannot be read. The owner of /proc/PID would not do, because that is root for a process that may not be traced.
std::optional<bool> is_of_user(uint64_t pid, uid_t user) {
  constexpr std::string_view kBegin = "\nUid:";  // then the four users, with a tab before each
  std::array<char, 1024> space;
  std::string_view text = read_text(path_of(pid, "status").data(), space);
  const size_t begin = text.find(kBegin);
  if (begin == std::string_view::npos) return std::nullopt;
  text.remove_prefix(begin + kBegin.size());
  while (text.starts_with('\t')) {
    text.remove_prefix(1);
    uid_t one = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), one);
    if (error != std::errc()) return std::nullopt;
    if (one == user) return true;
    text.remove_prefix(static_cast<size_t>(end - text.data()));
  }
  return false;
}

}  // namespace

ProcessName own_process() {
  ProcessName process;
  process.pid = static_cast<uint64_t>(getpid());
  process.start_ticks = start_ticks_of(process.pid);
  process.pid_namespace = namespace_of("/proc/self/ns/pid");
  std::array<char, 64> space;
  set_text(process.boot_id, read_text("/proc/sys/kernel/random/boot_id", space));
  return process;
}

PageLife life_of(const ProcessName& process) {
  const ProcessName own = own_process();
  if (own.start_ticks == 0 || own.boot_id[0] == 0) return PageLife::kUnknown;  // no /proc
  if (process.boot_id != own.boot_id) return PageLife::kDead;
  if (process.pid_namespace != own.pid_namespace) return PageLife::kUnknown;
  const uint64_t start_ticks = start_ticks_of(process.pid);
  if (start_ticks == 0 || process.start_ticks == 0) return PageLife::kDead;
  if (start_ticks == process.start_ticks) return PageLife::kAlive;
  // The process wrote its start time by the clock of its own time namespace, which it may not be allowed to tell.
  const uint64_t its_clock = namespace_of(path_of(process.pid, "ns/time").data());
  if (its_clock == namespace_of("/proc/self/ns/time")) return PageLife::kDead;
  if (its_clock != 0) return PageLife::kUnknown;
  // Pages of other users are not read, so a process that has nothing of this user has only got the writer's id; unless
  // the writer had the right to take any user, and has given up this one for good. That writer is called dead.
  return is_of_user(process.pid, geteuid()) == false ? PageLife::kDead : PageLife::kUnknown;
}

std::array<char, 32> own_program() {
  std::array<char, 32> program{}, space;
  set_text(program, read_text("/proc/self/comm", space));
  return program;
}

}  // namespace tern::page
