// The records of a trace, and the format of trace files. Trace layer.
//
// A file begins with a FileHeader and `names_bytes` of text. The text has a line "kind NUMBER NAME" for each Kind, and
// "packet NUMBER NAME" for each wire::Kind, so that a reader needs no table. Then come `rings` rings. A ring is a
// RingHeader and blocks. A block is a uint32_t n and n Records, the oldest first; a block with n = 0 ends the ring.
// Integers have the byte order of the machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tern::trace {

/// The kind of an event, and the meaning of a Record's `packet` and `value`. record.cc has the names.
enum class Kind : uint8_t {
  kEnqueued = 1,       ///< a call was accepted. value: bytes of the request; packet: number of the call at its client
  kStarted,            ///< the call has a slot, and a request number from now on. packet: number of the call
  kSent,               ///< the transport has taken a packet. value: payload bytes
  kRetransmitted,      ///< the packet that was sent just before was a retransmission
  kReceived,           ///< value: payload bytes
  kHandlerBegin,       ///< value: bytes of the request
  kHandlerEnd,         ///< the handler has returned, and may have kept the request
  kAnswered,           ///< the server has an answer, and will send it. value: its bytes, or 0 for a failure
  kCompleted,          ///< the client has the whole response. value: its bytes, or 0 for a failure
  kContinuationBegin,  ///< not recorded for a call that waits until the transport releases its memory
  kContinuationEnd,
  /// A deadline, cancel(), or the end of the session has ended the call. value: the tern::Code; packet: number of the
  /// call. If the call never had a slot, `request` is 0.
  kEndedEarly,
  kCreditStall,  ///< the session has packets to send, and no credit. value: packets in flight
  kPaced,        ///< the session waits for its rate limit. value: ns
};

/// The record of one event. It has 32 bytes, which are written as four words.
struct Record {
  uint64_t time_ns = 0;  ///< on the endpoint's clock: CLOCK_MONOTONIC, which all processes of a machine share
  uint32_t session = 0;  ///< the server's key of the session, which both ends know; 0: the client does not know it yet
  uint32_t own_key = 0;  ///< this end's key of the session: at a server, `session`
  uint32_t request = 0;  ///< its number, the same at both ends; 0: none
  uint32_t packet = 0;   ///< number of a packet in its direction, the same at both ends
  uint32_t value = 0;    ///< see Kind
  uint16_t type = 0;     ///< of the request, where it is known
  Kind kind = {};        ///< the kind of event
  uint8_t packet_kind = 0;  ///< wire::Kind; kSent, kRetransmitted, kReceived
};
static_assert(sizeof(Record) == 32);
using RecordWords = std::array<uint64_t, sizeof(Record) / sizeof(uint64_t)>;

inline constexpr std::array<char, 8> kMagic = {'T', 'E', 'R', 'N', 'T', 'R', 'C', 'E'};
inline constexpr uint32_t kVersion = 1;

struct FileHeader {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t record_bytes = sizeof(Record);
  uint64_t pid = 0;
  int64_t unix_ns = 0;        ///< CLOCK_REALTIME of the dump
  uint64_t monotonic_ns = 0;  ///< CLOCK_MONOTONIC of the dump
  uint32_t rings = 0;
  uint32_t names_bytes = 0;
};
static_assert(sizeof(FileHeader) == 48);

/// The header of one endpoint's ring.
struct RingHeader {
  std::array<char, 64> nexus{};      ///< "HOST:PORT", zero-padded
  std::array<char, 22> transport{};  ///< zero-padded
  uint16_t endpoint = 0;
  uint64_t records = 0;  ///< number of records that were made; the file has the newest
};
static_assert(sizeof(RingHeader) == 96);

/// The text after the FileHeader, with static storage duration.
const char* names();

}  // namespace tern::trace
