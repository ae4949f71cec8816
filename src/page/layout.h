// The bytes of a page: a file in which a Nexus shows the state of its endpoints to processes that map or read it. Page
// layer: plain values of fixed size, in the machine's byte order. <tern/page.h> reads a page.
//
//   Header                       who writes the page, and the sizes of all that follows
//   names                        Header::counters times Header::name_bytes: "transport.system_calls", zeros behind
//   (zeros up to Header::header_bytes)
//   segment 0                    of one endpoint:
//     Segment                      which endpoint, when it wrote last, how many sessions
//     uint64_t counters[]          in the order of the names
//     SessionRecord sessions[]     the busiest, the busiest first
//     EndRecord ends[]             the sessions that have ended last, the newest first
//     (zeros up to Header::segment_bytes)
//   segment 1 ...
//
// Version: a reader takes its own version only. Within a version, records may become longer at their end: a reader uses
// the sizes in the header, and ignores unknown fields. Names of counters may change without a new version.
//
// Writers: the thread that makes or destroys an endpoint writes the header and Segment::state; the endpoint's owner
// writes all other fields of a segment. Segment::sequence is odd while that thread writes. A reader reads the sequence,
// the segment, and the sequence again; if it has changed or is odd, the reader tries again. Writers never wait for a
// reader.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tern::page {

inline constexpr std::array<char, 8> kMagic = {'t', 'e', 'r', 'n', 'p', 'a', 'g', 'e'};
inline constexpr uint32_t kVersion = 1;
/// Header and segments begin at multiples of this, so that they can be mapped. It is at least the default size of a
/// memory page on every architecture of Linux.
inline constexpr size_t kAlignment = 65536;
inline constexpr size_t kNameBytes = 48;
/// Number of an endpoint's busiest sessions in a page.
inline constexpr size_t kSessionsMax = 1000;
/// Number of an endpoint's ended sessions in a page.
inline constexpr size_t kEndsMax = 16;

/// The identity of a page's process. A process id alone is not enough, because the system uses it again.
struct ProcessName {
  uint64_t pid = 0;
  uint64_t start_ticks = 0;        ///< since the machine's start; field 22 of /proc/PID/stat
  uint64_t pid_namespace = 0;      ///< inode number of /proc/self/ns/pid; a pid has no meaning in another one
  std::array<char, 40> boot_id{};  ///< of /proc/sys/kernel/random/boot_id
};

enum class State : uint32_t {
  kNew,     ///< not ready; a reader ignores it
  kOpen,    ///< the Nexus or endpoint exists if the process lives
  kClosed,  ///< the Nexus or endpoint was destroyed; these are its last values
};

struct Header {
  std::array<char, 8> magic{};
  uint32_t version = 0;
  uint32_t header_bytes = 0;   ///< the first segment begins here
  uint32_t segment_bytes = 0;  ///< distance between the beginnings of two segments
  uint32_t counters = 0;       ///< names, and values in each segment
  uint32_t name_bytes = 0;
  uint32_t session_bytes = 0;  ///< of a SessionRecord
  uint32_t sessions_max = 0;
  uint32_t end_bytes = 0;  ///< of an EndRecord
  uint32_t ends_max = 0;
  uint32_t segments = 0;  ///< written after the new segment; grows
  State state = State::kNew;
  uint32_t reserved = 0;
  ProcessName process;
  int64_t created_unix_s = 0;
  std::array<char, 32> program{};  ///< the process's name, zero-terminated, as all texts are
  std::array<char, 96> uri{};      ///< of the Nexus
};

struct Segment {
  uint64_t sequence = 0;
  State state = State::kNew;
  uint32_t endpoint_id = 0;
  std::array<char, 16> transport{};
  uint64_t published_ns = 0;     ///< CLOCK_MONOTONIC, when the counters were written; 0: never
  uint64_t client_sessions = 0;  ///< open or connecting sessions of create_session()
  uint64_t server_sessions = 0;
  uint32_t sessions = 0;  ///< records that follow
  uint32_t ends = 0;
};

struct SessionRecord {
  uint64_t name = 0;
  uint8_t is_client = 0;
  uint8_t is_open = 0;
  uint8_t window = 0;
  uint8_t reserved = 0;
  uint32_t credits = 0;
  uint32_t congestion_window = 0;
  uint32_t packets_in_flight = 0;
  uint64_t retransmissions = 0;
  uint64_t round_trip_ns = 0, round_trip_ns_min = 0, round_trip_ns_last = 0;
  uint64_t packets_sent = 0, packets_received = 0;
  uint64_t long_bytes_sent = 0, long_bytes_received = 0;
  uint64_t rate_bytes_per_sec = 0;
  std::array<char, 64> peer{};
};

struct EndRecord {
  uint64_t name = 0;
  uint32_t code = 0;  ///< tern::Code
  uint32_t reserved = 0;
  std::array<char, 240> reason{};
};

// There must be no padding, because it could contain other data of the process.
static_assert(std::has_unique_object_representations_v<Header> && std::has_unique_object_representations_v<Segment> &&
              std::has_unique_object_representations_v<SessionRecord> &&
              std::has_unique_object_representations_v<EndRecord>);

/// Sizes in the pages that this library writes.
constexpr size_t round_up(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
constexpr size_t header_bytes(size_t counters) { return round_up(sizeof(Header) + counters * kNameBytes); }
constexpr size_t segment_bytes(size_t counters) {
  return round_up(sizeof(Segment) + counters * sizeof(uint64_t) + kSessionsMax * sizeof(SessionRecord) +
                  kEndsMax * sizeof(EndRecord));
}

}  // namespace tern::page
