#include "trace/dump.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <system_error>

#include "base/check.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/file_size.h"
#include "base/regular_file.h"
#include "base/status_text.h"

namespace tern::trace {

namespace {

/// The rings of this process. They have no constructor or destructor, because a CHECK may fail at any time.
constinit std::atomic_flag is_locked;
constinit Ring* first_ring = nullptr;  // under is_locked

/// A failed CHECK does not wait for ever, because its own thread may hold the lock.
constexpr int kTries = 10000;
constexpr int kFileNumbers = 4096;

bool try_lock() {
  for (int i = 0; i < kTries; i++) {
    if (!is_locked.test_and_set(std::memory_order_acquire)) return true;
    sched_yield();
  }
  return false;
}
void lock() {
  while (!try_lock()) {
  }
}
void unlock() { is_locked.clear(std::memory_order_release); }

bool write_header(int fd, uint32_t rings) {
  FileHeader header;
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  header.pid = static_cast<uint64_t>(getpid());
  header.unix_ns = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  header.monotonic_ns = base::monotonic_ns();
  header.rings = rings;
  header.names_bytes = static_cast<uint32_t>(std::strlen(names()));
  return base::write_to_file(fd, &header, sizeof(header)) && base::write_to_file(fd, names(), header.names_bytes);
}

bool write_ring(int fd, const Ring& ring) {
  const uint64_t until = ring.count();
  RingHeader header = ring.header();
  header.records = until;
  if (!base::write_to_file(fd, &header, sizeof(header))) return false;
  std::array<Record, 64> records;
  uint32_t count = 0;
  for (uint64_t from = 0; from < until; from += count) {
    count = static_cast<uint32_t>(ring.copy(from, until, records));
    if (count == 0) continue;  // all were overwritten during the copy; `from` has advanced
    if (!base::write_to_file(fd, &count, sizeof(count)) ||
        !base::write_to_file(fd, records.data(), count * sizeof(Record)))
      return false;
  }
  count = 0;
  return base::write_to_file(fd, &count, sizeof(count));
}

/// Makes a new file and writes its name to `path`. Returns -1 on failure.
int open_new(const char* folder, char* path, size_t size) {
  for (int number = 0; number < kFileNumbers; number++) {
    std::snprintf(path, size, "%s/tern-trace-%d-%d", folder, static_cast<int>(getpid()), number);
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0 || errno != EEXIST) return fd;
  }
  return -1;
}

/// Under the lock.
bool write_rings(int fd) {
  uint32_t rings = 0;
  for (const Ring* ring = first_ring; ring != nullptr; ring = ring->next) rings++;
  if (!write_header(fd, rings)) return false;
  for (const Ring* ring = first_ring; ring != nullptr; ring = ring->next) {
    if (!write_ring(fd, *ring)) return false;
  }
  return true;
}

/// Writes all rings to a new file in `folder`. On failure it leaves no file, and `path` empty.
bool dump_rings_into(const char* folder, char* path, size_t size) {
  const int fd = open_new(folder, path, size);
  const bool is_written = fd >= 0 && write_rings(fd);
  if (fd >= 0) close(fd);
  if (fd >= 0 && !is_written) unlink(path);
  if (!is_written) path[0] = 0;
  return is_written;
}

/// The hook of a failed CHECK.
void dump_all(char* path, size_t size) {
  path[0] = 0;
  if (!try_lock()) return;
  if (first_ring != nullptr && !dump_rings_into(".", path, size)) (void)dump_rings_into("/tmp", path, size);
  unlock();
}

/// Opens a file for dump(). A file of this user gets mode 0600, because an older one may have another mode.
base::Descriptor open_private(const char* path) {
  struct stat about;
  base::Descriptor file = base::open_regular(path, O_WRONLY | O_CREAT | O_TRUNC, about);
  if (file && about.st_uid == geteuid() && fchmod(file.get(), 0600) != 0) return base::Descriptor();
  return file;
}

/// Writes the ring to `file`, which is empty if it could not be opened. A failure's text has `where`, which must not be
/// the name of a file: a process keeps each text for ever, and such names are often new ones.
Status dump_to(const base::Descriptor& file, const Ring& ring, std::string_view where) {
  if (file && write_header(file.get(), 1) && write_ring(file.get(), ring)) return {};
  const std::string reason = file ? std::generic_category().message(errno) : base::reason_not_opened(errno);
  return base::status_of(Code::kUnavailable, "the file for the trace cannot be written",
                         {"the file for the trace cannot be written", where, ": ", reason});
}

}  // namespace

Status dump(const Ring& ring, const std::string& path) { return dump_to(open_private(path.c_str()), ring, ""); }

Status dump_into(const Ring& ring, const std::string& folder) {
  std::array<char, PATH_MAX> path{};
  const std::string where = " to " + folder;  // before the call that sets errno
  const base::Descriptor file(open_new(folder.c_str(), path.data(), path.size()));
  const Status status = dump_to(file, ring, where);
  if (file && !status.ok()) unlink(path.data());
  return status;
}

void add_ring(Ring& ring) {
  lock();
  ring.next = first_ring;
  ring.link_to = &first_ring;
  if (ring.next != nullptr) ring.next->link_to = &ring.next;
  first_ring = &ring;
  unlock();
  base::set_check_hook(dump_all);
}

void remove_ring(Ring& ring) {
  if (ring.link_to == nullptr) return;
  lock();
  *ring.link_to = ring.next;
  if (ring.next != nullptr) ring.next->link_to = ring.link_to;
  unlock();
}

}  // namespace tern::trace
