#include "page/page_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <new>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/file_size.h"
#include "base/regular_file.h"
#include "base/status_text.h"
#include "base/try.h"
#include "page/process.h"
#include "page/read.h"

namespace tern::page {

namespace {

/// Number of pages of killed processes that stay in shared memory, to find the reason: 4 MiB with one endpoint each.
constexpr size_t kDeadPagesKept = 16;
/// Number of names to try for a page. Each Nexus of a process has a page of its own.
constexpr int kNamesTried = 4096;

Status cannot(std::string_view what, const std::string& path, std::string_view reason) {
  return base::status_of(Code::kUnavailable, "the page of NexusOptions::page cannot be created",
                         {"the page of NexusOptions::page cannot be created: ", what, " ", path, ": ", reason});
}
Status cannot(std::string_view what, const std::string& path, int error) {
  return cannot(what, path, std::generic_category().message(error));
}

/// Removes the oldest pages of processes that were killed.
void tidy_shared_memory() {
  struct Old {
    timespec written;
    std::string path;
  };
  std::vector<Old> dead;
  for (std::string& path : find_pages()) {
    struct stat about;
    if (lstat(path.c_str(), &about) != 0) continue;
    const base::Descriptor file = open_page(path);
    Header header;
    if (file && read_header(read_from(file), header).ok() && life_of(header.process) == PageLife::kDead) {
      dead.push_back({about.st_mtim, std::move(path)});
    }
  }
  if (dead.size() <= kDeadPagesKept) return;
  std::sort(dead.begin(), dead.end(), [](const Old& a, const Old& b) {
    return std::pair(a.written.tv_sec, a.written.tv_nsec) > std::pair(b.written.tv_sec, b.written.tv_nsec);
  });
  for (size_t i = kDeadPagesKept; i < dead.size(); i++) unlink(dead[i].path.c_str());
}

base::Descriptor make_file(const std::string& path) {
  return base::Descriptor(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
}

/// Makes a file with a new name in shared memory. May throw std::bad_alloc.
Result<std::pair<std::string, base::Descriptor>> make_shared_memory() {
  const std::string prefix = shared_memory_prefix() + std::to_string(getpid()) + ".";
  for (int i = 0; i < kNamesTried; i++) {
    std::string path = prefix + std::to_string(i);
    base::Descriptor file = make_file(path);
    if (file) return std::pair(std::move(path), std::move(file));
    if (errno != EEXIST) return cannot("creating", path, errno);
  }
  return cannot("creating", prefix + "*", EEXIST);
}

/// Makes the file that the user has named, and replaces an older page. May throw std::bad_alloc.
Result<std::pair<std::string, base::Descriptor>> make_named(std::string_view option) {
  std::string path(option);
  base::Descriptor file = make_file(path);
  if (!file && errno == EEXIST) {
    const base::Descriptor old = open_page(path);
    if (!old) return cannot("opening", path, base::reason_not_opened(errno));
    Header header;
    if (const Status status = read_header(read_from(old), header); !status.ok()) {
      return base::status_of(Code::kUnavailable, "the file of NexusOptions::page exists, and is not a page",
                             {"NexusOptions::page names ", path, ", which exists and is not a page (", status.message(),
                              "): remove it, or name another file"});
    }
    if (header.state == State::kOpen && life_of(header.process) == PageLife::kAlive) {
      return base::status_of(
          Code::kUnavailable, "the file of NexusOptions::page is the page of a running Nexus",
          {"NexusOptions::page names ", path, ", which is the page of a running Nexus: give each Nexus its own file"});
    }
    unlink(path.c_str());
    file = make_file(path);
  }
  if (!file) return cannot("creating", path, errno);
  return std::pair(std::move(path), std::move(file));
}

/// Extends the file by `bytes`, and reserves them in the file system. Writing to a hole would end the process by SIGBUS
/// if there is no space.
bool grow(int file, size_t from, size_t bytes) {
  if (!base::set_file_size(file, from + bytes)) return false;
  const int error = posix_fallocate(file, static_cast<off_t>(from), static_cast<off_t>(bytes));
  if (error == 0) return true;
  (void)base::set_file_size(file, from);
  errno = error;
  return false;
}

void* map(int file, size_t from, size_t bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(from));
  return at == MAP_FAILED ? nullptr : at;
}

constexpr size_t kHeaderBytes = header_bytes(kCounters);
constexpr size_t kSegmentBytes = segment_bytes(kCounters);

void fill(Header* header, std::string_view uri) {
  auto* name = reinterpret_cast<char*>(header + 1);
  for_each_counter(EndpointCounters(), [&name](const char* part, const char* counter, const char*, uint64_t) {
    const std::string_view prefix(part), rest(counter);
    CHECK(prefix.size() + 1 + rest.size(), <, kNameBytes);
    std::copy(prefix.begin(), prefix.end(), name);
    name[prefix.size()] = '.';
    std::copy(rest.begin(), rest.end(), name + prefix.size() + 1);
    name += kNameBytes;
  });
  header->version = kVersion;
  header->header_bytes = kHeaderBytes;
  header->segment_bytes = kSegmentBytes;
  header->counters = kCounters;
  header->name_bytes = kNameBytes;
  header->session_bytes = sizeof(SessionRecord);
  header->sessions_max = kSessionsMax;
  header->end_bytes = sizeof(EndRecord);
  header->ends_max = kEndsMax;
  header->process = own_process();
  header->created_unix_s = time(nullptr);
  header->program = own_program();
  set_text(header->uri, uri);
  header->state = State::kOpen;
  header->magic = kMagic;
}

}  // namespace

// ---- The file ----

Status PageFile::check(std::string_view option) {
  if (option == "shm" || option.find('/') != std::string_view::npos) return {};
  return {Code::kMisuse, "NexusOptions::page must be \"shm\", or the path of a file with a slash in it (\"./page\")"};
}

Result<std::shared_ptr<PageFile>> PageFile::create(std::string_view option, std::string_view uri) {
  const bool is_shared_memory = option == "shm";
  if (is_shared_memory) tidy_shared_memory();
  auto made = is_shared_memory ? make_shared_memory() : make_named(option);
  if (!made.ok()) return made.status();
  auto& [path, file] = *made;
  void* const at = grow(file.get(), 0, kHeaderBytes) ? map(file.get(), 0, kHeaderBytes) : nullptr;
  if (at == nullptr) {
    const Status status = cannot("no space for", path, errno);
    unlink(path.c_str());
    return status;
  }
  auto* const header = new (at) Header;
  fill(header, uri);
  return std::shared_ptr<PageFile>(new PageFile(std::move(path), is_shared_memory, std::move(file), header));
}

PageFile::~PageFile() {
  if (getpid() == pid_) {
    std::atomic_ref(header_->state).store(State::kClosed, std::memory_order_release);
    if (is_shared_memory_) unlink(path_.c_str());
  }
  munmap(header_, kHeaderBytes);
}

/// Null: no memory, or no space in the file system.
void* PageFile::reserve_and_map(size_t index) {
  const size_t from = kHeaderBytes + index * kSegmentBytes;
  const bool is_new = index == header_->segments;
  if (is_new && !grow(file_.get(), from, kSegmentBytes)) return nullptr;
  void* const at = map(file_.get(), from, kSegmentBytes);
  if (at == nullptr && is_new) (void)base::set_file_size(file_.get(), from);
  return at;
}

std::unique_ptr<SegmentWriter> PageFile::add(uint16_t endpoint_id, std::string_view transport) {
  base::MutexLock lock(mutex_);
  const size_t index = free_.empty() ? header_->segments : free_.back();
  if (!base::try_reserve(free_, header_->segments + 1)) return nullptr;  // so that give_back() needs no memory
  void* const at = reserve_and_map(index);
  if (at == nullptr) return nullptr;
  std::unique_ptr<SegmentWriter> writer(new (std::nothrow)
                                            SegmentWriter(shared_from_this(), index, static_cast<std::byte*>(at)));
  if (writer == nullptr) {
    munmap(at, kSegmentBytes);
    return nullptr;
  }
  if (free_.empty()) {
    new (at) Segment;
    std::atomic_ref(header_->segments).store(static_cast<uint32_t>(index + 1), std::memory_order_release);
  } else {
    free_.pop_back();
  }
  Segment& segment = writer->segment();
  const uint64_t sequence = segment.sequence;  // only grows, so that a reader notices the change
  writer->begin();
  std::memset(static_cast<std::byte*>(at) + sizeof(Segment), 0, kSegmentBytes - sizeof(Segment));
  segment = {.sequence = sequence + 1, .state = State::kOpen, .endpoint_id = endpoint_id};
  set_text(segment.transport, transport);
  writer->end();
  return writer;
}

void PageFile::give_back(size_t index) {
  base::MutexLock lock(mutex_);
  free_.push_back(index);
}

// ---- A segment ----

SegmentWriter::~SegmentWriter() {
  if (getpid() == file_->pid_) {
    begin();
    segment().state = State::kClosed;
    end();
    file_->give_back(index_);
  }
  munmap(bytes_, kSegmentBytes);
}

void SegmentWriter::begin() {
  std::atomic_ref sequence(segment().sequence);
  sequence.store(sequence.load(std::memory_order_relaxed) | 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);  // later stores are not seen before it
}

void SegmentWriter::end() {
  std::atomic_ref sequence(segment().sequence);
  sequence.store(sequence.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

void SegmentWriter::write_counters(const EndpointCounters& counters) {
  auto* value = reinterpret_cast<uint64_t*>(bytes_ + sizeof(Segment));
  for_each_counter(counters, [&value](const char*, const char*, const char*, uint64_t count) { *value++ = count; });
  segment().published_ns = base::monotonic_ns();
}

}  // namespace tern::page
