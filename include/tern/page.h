// Pages: what a process shows of its endpoints and their sessions (NexusOptions::page), read by any process of the same
// user. The program tern-top prints them. Standard library only.
//
// Reading stops nobody, and needs no cooperation: a page of a process that was killed is as it was at its end. A page
// may be anything; what does not make sense is refused or left out. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tern/detail/export.h>
#include <tern/duration.h>
#include <tern/session.h>
#include <tern/status.h>

namespace tern {

/// Whether the process of a page lives.
enum class PageLife : uint8_t {
  kAlive,    ///< it does
  kDead,     ///< it has ended without destroying its Nexus; another process may have its id
  kUnknown,  ///< it is in another container (PID namespace), or there is no /proc
};

/// One of the 1000 sessions of an endpoint that had most packets lately.
struct PageSession {
  uint64_t name = 0;  ///< Session::name
  std::string peer;   ///< SessionInfo::peer
  SessionInfo info;   ///< all other fields of it
};

/// A session that has ended; a page has the last 16 of each endpoint.
struct PageEnd {
  uint64_t name = 0;      ///< Session::name
  Code code = Code::kOk;  ///< why
  std::string reason;     ///< Status::message()
};

/// An endpoint as of its last writing.
struct PageEndpoint {
  uint16_t id = 0;                    ///< RpcOptions::endpoint_id
  std::string transport;              ///< "shm", "udp", ...
  bool is_closed = false;             ///< it was destroyed; these are its last values
  bool is_consistent = true;          ///< false: its thread was killed or stopped while it wrote
  Duration published{0};              ///< CLOCK_MONOTONIC of the last writing; it writes at most every 100 ms, and
                                      ///< not while it has nothing to do. 0: never
  uint64_t client_sessions = 0;       ///< sessions that it has created and that are alive
  uint64_t server_sessions = 0;       ///< sessions of clients that are alive
  std::vector<uint64_t> counters;     ///< in the order of Page::counter_names
  std::vector<PageSession> sessions;  ///< the busiest first
  std::vector<PageEnd> ends;          ///< the newest first
};

/// A page: what a Nexus shows.
struct Page {
  std::string file;                        ///< where it was read
  uint64_t pid = 0;                        ///< of the process
  PageLife life = PageLife::kUnknown;      ///< of the process, now
  bool is_closed = false;                  ///< the Nexus was destroyed
  std::string program;                     ///< the process's name, as ps has it
  std::string uri;                         ///< Nexus::uri()
  int64_t created_unix_s = 0;              ///< when the Nexus was made
  std::vector<std::string> counter_names;  ///< "transport.system_calls"; as for_each_counter() of the writer has them
  std::vector<PageEndpoint> endpoints;     ///< those with a place in the page
};

/// Reads a page. kUnavailable: there is no such file, it cannot be read, it is no page, or one of another version; the
/// message says which. kNoMemory.
TERN_API Result<Page> read_page(const std::string& file);
/// The pages in shared memory that this user's processes have made (NexusOptions::page "shm"), those of processes that
/// were killed included. Empty, too, without memory.
TERN_API std::vector<std::string> find_pages();

}  // namespace tern
