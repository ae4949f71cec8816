#include "page/read.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

#include "base/folder.h"
#include "base/regular_file.h"
#include "base/status_text.h"
#include "base/try.h"
#include "page/process.h"
#include "page/session_record.h"

namespace tern {

namespace page {

namespace {

constexpr char kFolder[] = "/dev/shm/";
// Upper limits for the sizes in a page. This library's pages are far below them.
constexpr uint32_t kHeaderBytesMax = 1u << 20;
constexpr uint32_t kSegmentBytesMax = 16u << 20;
constexpr uint32_t kNameBytesMax = 256;
constexpr uint32_t kRecordBytesMax = 4096;
constexpr uint32_t kSegmentsMax = 65536;  // ids of endpoints
/// Number of attempts to read a segment. A writer takes some 100 us every 100 ms, so that after these attempts it must
/// have been stopped while it wrote, or is dead.
constexpr int kTries = 100;

template <class T>
T at(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

/// Makes a text safe for terminals: every byte that is not printable ASCII becomes a question mark.
std::string text_of(std::span<const char> field) {
  std::string text(field.begin(), std::find(field.begin(), field.end(), '\0'));
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

uint64_t counters_bytes(const Header& header) { return uint64_t{header.counters} * sizeof(uint64_t); }
uint64_t sessions_bytes(const Header& header) { return uint64_t{header.sessions_max} * header.session_bytes; }
uint64_t ends_bytes(const Header& header) { return uint64_t{header.ends_max} * header.end_bytes; }

bool is_sound(const Header& header) {
  const uint64_t names_bytes = uint64_t{header.counters} * header.name_bytes;
  const uint64_t segment_bytes = sizeof(Segment) + counters_bytes(header) + sessions_bytes(header) + ends_bytes(header);
  return header.name_bytes != 0 && header.name_bytes <= kNameBytesMax && header.header_bytes <= kHeaderBytesMax &&
         sizeof(Header) + names_bytes <= header.header_bytes && header.session_bytes >= sizeof(SessionRecord) &&
         header.session_bytes <= kRecordBytesMax && header.end_bytes >= sizeof(EndRecord) &&
         header.end_bytes <= kRecordBytesMax && header.segment_bytes <= kSegmentBytesMax &&
         segment_bytes <= header.segment_bytes && header.segments <= kSegmentsMax;
}

PageSession session_of(const SessionRecord& record) {
  PageSession session;
  session.name = record.name;
  session.peer = text_of(record.peer);
  session.info = info_of(record);
  return session;
}

PageEndpoint endpoint_of(const Header& header, std::span<const std::byte> bytes, bool is_consistent) {
  const auto segment = at<Segment>(bytes, 0);
  PageEndpoint endpoint;
  endpoint.id = static_cast<uint16_t>(segment.endpoint_id);
  endpoint.transport = text_of(segment.transport);
  endpoint.is_closed = segment.state == State::kClosed;
  endpoint.is_consistent = is_consistent;
  endpoint.published = duration_of(segment.published_ns);
  endpoint.client_sessions = segment.client_sessions;
  endpoint.server_sessions = segment.server_sessions;
  size_t offset = sizeof(Segment);
  for (uint32_t i = 0; i < header.counters; i++) {
    endpoint.counters.push_back(at<uint64_t>(bytes, offset + i * sizeof(uint64_t)));
  }
  offset += counters_bytes(header);
  for (uint32_t i = 0; i < std::min(segment.sessions, header.sessions_max); i++) {
    endpoint.sessions.push_back(session_of(at<SessionRecord>(bytes, offset + i * size_t{header.session_bytes})));
  }
  offset += sessions_bytes(header);
  for (uint32_t i = 0; i < std::min(segment.ends, header.ends_max); i++) {
    const auto record = at<EndRecord>(bytes, offset + i * size_t{header.end_bytes});
    const auto code = static_cast<Code>(std::min<uint32_t>(record.code, UINT8_MAX));
    endpoint.ends.push_back({record.name, code, text_of(record.reason)});
  }
  return endpoint;
}

/// False: there is no such segment, or it is not ready.
bool read_endpoint(const ReadAt& read, const Header& header, uint64_t offset, std::vector<std::byte>& bytes,
                   Page& page) {
  for (int i = 0;; i++) {
    Segment before, after;
    if (read(offset, std::as_writable_bytes(std::span(&before, 1))) != sizeof(Segment)) return false;
    if (before.state == State::kNew) return false;
    if (read(offset, bytes) != bytes.size()) return false;
    if (read(offset, std::as_writable_bytes(std::span(&after, 1))) != sizeof(Segment)) return false;
    const bool is_consistent = before.sequence == after.sequence && before.sequence % 2 == 0;
    if (is_consistent || i == kTries) {
      page.endpoints.push_back(endpoint_of(header, bytes, is_consistent));
      return true;
    }
    sched_yield();  // the writer may need this CPU
  }
}

}  // namespace

ReadAt read_from(const base::Descriptor& file) {
  return [&file](uint64_t offset, std::span<std::byte> space) {
    size_t bytes = 0;
    while (bytes < space.size()) {
      const auto left = space.subspan(bytes);
      const ssize_t got = pread(file.get(), left.data(), left.size(), static_cast<off_t>(offset + bytes));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      bytes += static_cast<size_t>(got);
    }
    return bytes;
  };
}

base::Descriptor open_page(const std::string& path) {
  struct stat about;
  base::Descriptor file = base::open_regular(path.c_str(), O_RDONLY, about);
  if (!file || about.st_uid == geteuid()) return file;
  errno = EPERM;
  return base::Descriptor();
}

Status read_header(const ReadAt& read, Header& header) {
  if (read(0, std::as_writable_bytes(std::span(&header, 1))) != sizeof(Header) || header.magic != kMagic) {
    return {Code::kUnavailable, "this file is not a page of tern"};
  }
  if (header.version != kVersion) {
    return {Code::kUnavailable, "this page has another version: read it with the tern-top of the program's release"};
  }
  if (!is_sound(header)) return {Code::kUnavailable, "this page is damaged: its sizes contradict each other"};
  return {};
}

Status read_page(const ReadAt& read, Header& header, Page& page) {
  if (const Status status = read_header(read, header); !status.ok()) return status;
  std::vector<std::byte> bytes(size_t{header.counters} * header.name_bytes);
  if (read(sizeof(Header), bytes) != bytes.size())
    return {Code::kUnavailable, "this page is shorter than its header says"};
  for (uint32_t i = 0; i < header.counters; i++) {
    const auto* name = reinterpret_cast<const char*>(bytes.data()) + size_t{i} * header.name_bytes;
    page.counter_names.push_back(text_of({name, header.name_bytes}));
  }
  page.pid = header.process.pid;
  page.is_closed = header.state == State::kClosed;
  page.program = text_of(header.program);
  page.uri = text_of(header.uri);
  page.created_unix_s = header.created_unix_s;
  bytes.assign(sizeof(Segment) + counters_bytes(header) + sessions_bytes(header) + ends_bytes(header), std::byte{0});
  for (uint32_t i = 0; i < header.segments; i++) {
    const uint64_t offset = header.header_bytes + uint64_t{i} * header.segment_bytes;
    if (!read_endpoint(read, header, offset, bytes, page)) break;
  }
  return {};
}

std::string shared_memory_prefix() {
  std::string prefix(kFolder);
  prefix.append("tern-page.").append(std::to_string(geteuid())).append(".");
  return prefix;
}

}  // namespace page

Result<Page> read_page(const std::string& file) {
  Page page;
  Status status;
  const bool has_memory = base::try_grow([&] {
    page.file = file;
    const base::Descriptor descriptor = page::open_page(file);
    if (!descriptor) {
      const std::string reason = base::reason_not_opened(errno);
      status = base::status_of(Code::kUnavailable, "the page cannot be read", {"cannot read ", file, ": ", reason});
      return;
    }
    page::Header header;
    status = page::read_page(page::read_from(descriptor), header, page);
    if (status.ok()) page.life = page::life_of(header.process);
  });
  if (!has_memory) return Status(Code::kNoMemory, "no memory to read a page");
  if (!status.ok()) return status;
  return page;
}

std::vector<std::string> find_pages() {
  std::vector<std::string> paths;
  (void)base::try_grow([&] {
    const std::string prefix = page::shared_memory_prefix();
    const std::string_view name_prefix = std::string_view(prefix).substr(sizeof(page::kFolder) - 1);
    const base::Folder folder(opendir(page::kFolder));
    while (const dirent* entry = folder != nullptr ? readdir(folder.get()) : nullptr) {
      if (!std::string_view(entry->d_name).starts_with(name_prefix)) continue;
      // Any user may make a file with such a name, and the name may contain any byte.
      struct stat about;
      if (fstatat(dirfd(folder.get()), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0) continue;
      if (about.st_uid == geteuid()) paths.push_back(std::string(page::kFolder) + entry->d_name);
    }
    std::sort(paths.begin(), paths.end());
  });
  return paths;
}

}  // namespace tern
