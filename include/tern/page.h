// Pages: files in which a process shows its endpoints and their sessions (NexusOptions::page) to other processes of the
// same user. The program tern-top prints them. Standard library only.
//
// A reader blocks no writer and needs no cooperation: the page of a killed process stays as it was at its end. The
// file's bytes are not trusted: invalid pages are refused, and invalid parts are left out. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tern/detail/export.h>
#include <tern/duration.h>
#include <tern/session.h>
#include <tern/status.h>

namespace tern {

/// The state of the process of a page.
enum class PageLife : uint8_t {
  kAlive,    ///< the process runs
  kDead,     ///< the process has ended without destroying its Nexus; another process may have its id now
  kUnknown,  ///< the process is in another container (PID or time namespace), or there is no /proc
};

/// A session of an endpoint. A page shows at most 1000 sessions of each endpoint: those with the most packets since the
/// endpoint's last look at all of its sessions, which it takes about every 100 ms.
struct PageSession {
  uint64_t name = 0;  ///< Session::name
  std::string peer;   ///< SessionInfo::peer
  SessionInfo info;   ///< the other fields of SessionInfo, except for payload_bytes and status
};

/// A session that has ended; a page has the last 16 of each endpoint.
struct PageEnd {
  uint64_t name = 0;      ///< Session::name
  Code code = Code::kOk;  ///< the reason
  std::string reason;     ///< Status::message()
};

/// An endpoint as of its last writing.
struct PageEndpoint {
  uint16_t id = 0;                    ///< RpcOptions::endpoint_id
  std::string transport;              ///< "shm", "udp", ...
  bool is_closed = false;             ///< it was destroyed; these are its last values
  bool is_consistent = true;          ///< false: its thread was killed or stopped while it wrote
  Duration published{0};              ///< CLOCK_MONOTONIC of the last writing; it writes at most every 100 ms, and
                                      ///< not while it has no work. 0: never
  uint64_t client_sessions = 0;       ///< sessions that it has created and that are alive
  uint64_t server_sessions = 0;       ///< sessions of clients that are alive
  std::vector<uint64_t> counters;     ///< in the order of Page::counter_names
  std::vector<PageSession> sessions;  ///< the busiest first
  std::vector<PageEnd> ends;          ///< the newest first
};

/// The contents of a page, which a Nexus writes.
struct Page {
  std::string file;                        ///< the path of the file
  uint64_t pid = 0;                        ///< of the process
  PageLife life = PageLife::kUnknown;      ///< of the process, now
  bool is_closed = false;                  ///< the Nexus was destroyed
  std::string program;                     ///< the process's name, as ps has it
  std::string uri;                         ///< Nexus::uri()
  int64_t created_unix_s = 0;              ///< when the Nexus was made
  std::vector<std::string> counter_names;  ///< "transport.system_calls"; as for_each_counter() of the writer has them
  std::vector<PageEndpoint> endpoints;     ///< those with a place in the page
};

/// Reads a page. kUnavailable: there is no such file, it cannot be read, it is not a page, or it has another version;
/// the message names the case. kNoMemory.
TERN_API Result<Page> read_page(const std::string& file);
/// Returns the paths of the pages in shared memory that this user's processes have made (NexusOptions::page "shm"),
/// including those of killed processes. Empty also if there is no memory.
TERN_API std::vector<std::string> find_pages();

}  // namespace tern
