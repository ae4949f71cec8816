// A page's writer: the file of a Nexus, and the segments of its endpoints. Page layer.
// PageFile: any thread. SegmentWriter: one thread at a time, the endpoint's owner.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <tern/counters.h>
#include <tern/detail/export.h>
#include <tern/status.h>

#include "base/descriptor.h"
#include "base/thread_safety.h"
#include "page/layout.h"

namespace tern::page {

class SegmentWriter;

class TERN_API PageFile : public std::enable_shared_from_this<PageFile> {
 public:
  /// kMisuse unless `option` is "shm" or has a slash (NexusOptions::page).
  static Status check(std::string_view option);
  /// Makes the file. kUnavailable: it cannot be made, or a living process has it; the message has the reason. May throw
  /// std::bad_alloc.
  static Result<std::shared_ptr<PageFile>> create(std::string_view option, std::string_view uri);
  /// Removes a page in shared memory; a named file stays, marked as closed. Does nothing in a forked child.
  ~PageFile();
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;

  const std::string& path() const { return path_; }
  /// Makes a segment for an endpoint. Null: there is no memory, or no space in the file system.
  std::unique_ptr<SegmentWriter> add(uint16_t endpoint_id, std::string_view transport) EXCLUDES(mutex_);

 private:
  friend class SegmentWriter;
  PageFile(std::string path, bool is_shared_memory, base::Descriptor file, Header* header)
      : path_(std::move(path)), is_shared_memory_(is_shared_memory), file_(std::move(file)), header_(header) {}
  void* reserve_and_map(size_t index);
  void give_back(size_t index) EXCLUDES(mutex_);

  const std::string path_;
  const bool is_shared_memory_;
  const base::Descriptor file_;
  Header* const header_;  ///< mapped
  const pid_t pid_ = getpid();
  base::Mutex mutex_;
  std::vector<size_t> free_ GUARDED_BY(mutex_);  ///< segments of endpoints that are closed
};

/// The segment of one endpoint.
class TERN_API SegmentWriter {
 public:
  SegmentWriter(std::shared_ptr<PageFile> file, size_t index, std::byte* bytes)
      : file_(std::move(file)), index_(index), bytes_(bytes) {}
  /// Marks the segment as closed. It keeps its last values until another endpoint uses it.
  ~SegmentWriter();
  SegmentWriter(const SegmentWriter&) = delete;
  SegmentWriter& operator=(const SegmentWriter&) = delete;

  /// All other members must be called between begin() and end(). Readers wait for end().
  void begin();
  void end();
  Segment& segment() { return *reinterpret_cast<Segment*>(bytes_); }
  void write_counters(const EndpointCounters& counters);
  SessionRecord* sessions() { return reinterpret_cast<SessionRecord*>(bytes_ + kSessionsAt); }
  EndRecord* ends() { return reinterpret_cast<EndRecord*>(bytes_ + kEndsAt); }

 private:
  static constexpr size_t kSessionsAt = sizeof(Segment) + kCounters * sizeof(uint64_t);
  static constexpr size_t kEndsAt = kSessionsAt + kSessionsMax * sizeof(SessionRecord);

  const std::shared_ptr<PageFile> file_;
  const size_t index_;
  std::byte* const bytes_;  ///< mapped
};

}  // namespace tern::page
