// The fixed header of every data-path packet (docs/protocol.md, 2): parses received bytes, and builds headers.
// Wire layer: has no sessions, sockets or time.
//
// Three little-endian 64-bit words, so that a header is built and read in registers:
//
//   word 0   kind 4 | version 4 | flags 8 | length 16 | session key 32
//   word 1   number 24 | payload code 8 (client), hold 8 (server) | request number 32
//   word 2   client: index-or-deadline 21 | request type 12 | message size or token 31
//            server: echo 24 | credit limit 8 | message size or index 31 | large 1
//
// The fields that demultiplexing needs come first (all of word 0 and the number), so that the rest may later be
// encrypted. `length` is the number of bytes of the packet in its datagram or buffer, header included.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <tern/detail/export.h>

namespace tern::wire {

inline constexpr size_t kHeaderBytes = 24;
inline constexpr uint8_t kVersion = 2;
inline constexpr size_t kPacketBytesMax = 65535;      ///< `length` has 16 bits
inline constexpr size_t kMessageBytesMax = 1u << 30;  ///< clause 2.6: 1 GiB
inline constexpr size_t kPayloadBytesMin = 512;       ///< clause 2.7: of a full packet, so that an index fits 21 bits
inline constexpr size_t kPayloadBytesMax = 65536;     ///< of a packet whose payload travels by reference
inline constexpr uint32_t kRequestTypes = 4096;
inline constexpr uint32_t kNumberMask = (1u << 24) - 1;
inline constexpr uint32_t kTokenMask = (1u << 31) - 1;  ///< tokens travel in the size field
inline constexpr uint32_t kIndexMask = (1u << 21) - 1;
inline constexpr uint32_t kSlotBits = 6;  ///< the low bits of a request number are its slot
inline constexpr uint32_t kSlotsMax = 1u << kSlotBits;
static_assert(kMessageBytesMax / kPayloadBytesMin <= kIndexMask + 1);

/// Client kinds are below 8; server kinds are 8 and above. This bit says which session table the packet is for.
enum class Kind : uint8_t {
  kRequest = 1,     ///< data of a request
  kRfr = 2,         ///< request for response packets: the size field is their count, the index field the first of them
  kProbe = 3,       ///< the client asks for the state of its response
  kCancel = 4,      ///< the request has ended early at the client
  kReport = 5,      ///< lists finished requests: the payload has their request numbers
  kPathProbe = 6,   ///< header only, then of full length; opens the session
  kResponse = 8,    ///< data of a response
  kCr = 9,          ///< credit return: acknowledges packet numbers
  kCancelled = 10,  ///< acknowledges kCancel: the server will not run this request number (again)
  kPathReply = 11,  ///< reply to kPathProbe, of the same length
};
inline constexpr bool is_known(uint8_t kind) { return kind < 16 && ((1u << kind) & 0b0000'1111'0111'1110u) != 0; }
inline constexpr bool is_from_client(Kind kind) { return static_cast<uint8_t>(kind) < 8; }

enum Flag : uint8_t {
  kFirst = 1,         ///< packet 0 of its message; on a request the index field carries the deadline
  kByReference = 2,   ///< the payload is a descriptor of the sender's memory; the transport defines its layout
  kWantsCredits = 4,  ///< client: more packets wait than the credit limit allows
  kFailure = 8,       ///< response without data: the size field carries FailureCode and the application's code
  kEcnEcho = 16,      ///< server: the answered packet arrived with a congestion mark
  kNoEcho = 32,       ///< server: the echo field answers no packet
  kPaired = 64,       ///< path probe and reply: one address and port pair serves both directions (clause 7.7.4)
  kTakesWhole = 128,  ///< request: packet 0 of the response may have the size of the payload code (clause 5.3.3)
};

/// The size field of a kFailure response is code << 16 | app_code.
enum class FailureCode : uint8_t {
  kApplication = 0,  ///< Request::fail
  kNoResponse = 1,   ///< the handler dropped the request without a response
  kUnknownType = 2,  ///< the request type has no handler
  kTooLarge = 3,     ///< the request is above max_request_bytes
  kNoMemory = 4,     ///< the receive budget or memory is exhausted
  kDeadline = 5,     ///< the deadline passed before the handler ran
  kOverloaded = 6,   ///< the worker queue is full
  kLost = 8,         ///< acknowledged, but not completely received: packets were damaged above the checksum
  kClosing = 7,      ///< the endpoint is shutting down
};

/// A header in registers. Accessors apply to both directions unless a comment names one.
struct Header {
  uint64_t w0 = 0, w1 = 0, w2 = 0;

  Kind kind() const { return static_cast<Kind>(w0 & 15); }
  uint8_t version() const { return (w0 >> 4) & 15; }
  uint8_t flags() const { return static_cast<uint8_t>(w0 >> 8); }
  /// Kind, version and flags, for one comparison with shape_of().
  uint16_t shape() const { return static_cast<uint16_t>(w0); }
  uint16_t length() const { return static_cast<uint16_t>(w0 >> 16); }
  /// The receiver's name for the session: a random number.
  uint32_t session_key() const { return static_cast<uint32_t>(w0 >> 32); }
  uint32_t number() const { return w1 & kNumberMask; }
  uint32_t request_number() const { return static_cast<uint32_t>(w1 >> 32); }
  // client
  uint32_t index() const { return (flags() & kFirst) != 0 ? 0 : w2 & kIndexMask; }
  uint32_t deadline_code() const { return w2 & kIndexMask; }
  /// Request of several packets, RFR: what a full packet of the message is (wire/payload_code.h, clause 5.1.1). With
  /// kTakesWhole also what packet 0 of the response may be.
  uint8_t payload_code() const { return static_cast<uint8_t>(w1 >> 24); }
  uint32_t request_type() const { return (w2 >> 21) & (kRequestTypes - 1); }
  uint32_t message_bytes() const { return static_cast<uint32_t>(w2 >> 33); }
  /// Returns the type of a request of `payload_bytes` that has no deadline and lies completely in this packet 0. For
  /// any other request the result is above all types, so that one comparison suffices.
  uint64_t plain_request_type(uint32_t payload_bytes) const {
    return std::rotr(w2 - (static_cast<uint64_t>(payload_bytes) << 33) - kIndexMask, 21);
  }
  /// In a probe, cancel, report or path probe: proves that the client has sent the packet (clause 3.9).
  uint32_t token() const { return message_bytes(); }
  // server
  uint8_t hold_code() const { return static_cast<uint8_t>(w1 >> 24); }
  uint32_t echo() const { return w2 & kNumberMask; }
  uint8_t credit_limit() const { return static_cast<uint8_t>(w2 >> 24); }
  /// The message size if kFirst is set, otherwise the packet's index.
  uint32_t size_or_index() const { return static_cast<uint32_t>(w2 >> 32) & 0x7fffffffu; }
  /// The packet answers an RFR with a payload code.
  bool is_large() const { return w2 >> 63 != 0; }

  /// Must be called only for a header whose length is 0.
  void add_length(size_t length_bytes) { w0 += static_cast<uint64_t>(length_bytes) << 16; }
  void add_flags(uint8_t flags) { w0 |= static_cast<uint64_t>(flags) << 8; }
  void clear_flags(uint8_t flags) { w0 &= ~(static_cast<uint64_t>(flags) << 8); }
  /// Must be called only for a client's header, and only once.
  void add_payload_code(uint8_t code) { w1 |= static_cast<uint64_t>(code) << 24; }
  /// Must be called only for a server's header.
  void set_large() { w2 |= uint64_t{1} << 63; }
  void set_length_and_flags(size_t length_bytes, uint8_t extra_flags) {
    w0 = (w0 & ~0xffff0000ull) | static_cast<uint64_t>(length_bytes & 0xffff) << 16 |
         static_cast<uint64_t>(extra_flags) << 8;
  }
};

/// The length is 0 until the transport fills it in, because it depends on how the payload travels.
inline Header client_header(Kind kind, uint8_t flags, uint32_t session_key, uint32_t number, uint32_t request_number,
                            uint32_t index_or_deadline, uint32_t type, uint32_t message_bytes) {
  return {static_cast<uint64_t>(kind) | kVersion << 4 | static_cast<uint64_t>(flags) << 8 |
              static_cast<uint64_t>(session_key) << 32,
          (number & kNumberMask) | static_cast<uint64_t>(request_number) << 32,
          (index_or_deadline & kIndexMask) | static_cast<uint64_t>(type) << 21 |
              static_cast<uint64_t>(message_bytes) << 33};
}
inline Header server_header(Kind kind, uint8_t flags, uint32_t session_key, uint32_t number, uint32_t request_number,
                            uint32_t echo, uint8_t hold_code, uint8_t credit_limit, uint32_t size_or_index) {
  return {
      static_cast<uint64_t>(kind) | kVersion << 4 | static_cast<uint64_t>(flags) << 8 |
          static_cast<uint64_t>(session_key) << 32,
      (number & kNumberMask) | static_cast<uint64_t>(hold_code) << 24 | static_cast<uint64_t>(request_number) << 32,
      (echo & kNumberMask) | static_cast<uint64_t>(credit_limit) << 24 | static_cast<uint64_t>(size_or_index) << 32};
}

inline constexpr uint16_t shape_of(Kind kind, uint8_t flags) {
  return static_cast<uint16_t>(static_cast<unsigned>(kind) | kVersion << 4 | flags << 8);
}

inline uint64_t to_little_endian(uint64_t value) {
  if constexpr (std::endian::native == std::endian::big) return __builtin_bswap64(value);
  return value;
}
/// `bytes` has at least kHeaderBytes. Loads word by word, so that each word goes to a register of its own.
inline Header load_header(const std::byte* bytes) {
  Header header;
  std::memcpy(&header.w0, bytes, 8);
  std::memcpy(&header.w1, bytes + 8, 8);
  std::memcpy(&header.w2, bytes + 16, 8);
  return {to_little_endian(header.w0), to_little_endian(header.w1), to_little_endian(header.w2)};
}
/// Stores word by word, so that the words do not go through memory.
inline void store_header(std::byte* bytes, const Header& header) {
  const std::array<uint64_t, 3> words = {header.w0, header.w1, header.w2};
  for (size_t i = 0; i < words.size(); ++i) {
    const uint64_t little = to_little_endian(words[i]);
    std::memcpy(bytes + i * sizeof(little), &little, sizeof(little));
  }
}
static_assert(sizeof(Header) == kHeaderBytes);

/// Returns whether a packet can begin with these bytes: checks the version, the kind, and that the length is within
/// `available_bytes`. Guarantees nothing else about the packet (clause 2.3).
inline bool is_plausible(const Header& header, size_t available_bytes) {
  return header.version() == kVersion && is_known(static_cast<uint8_t>(header.kind())) &&
         header.length() >= kHeaderBytes && header.length() <= available_bytes;
}

/// A deadline travels as the time left, in 21 bits: a 16-bit mantissa of microseconds and a 5-bit exponent, rounded up.
/// kNoDeadline means that there is no deadline. The range is about 39 hours; a longer time travels as no deadline.
inline constexpr uint32_t kNoDeadline = kIndexMask;
TERN_API uint32_t encode_time_left(uint64_t left_ns);
uint64_t decode_time_left(uint32_t code);  ///< ns; UINT64_MAX for kNoDeadline

/// A hold time is the time for which the server kept the answered packet. It travels in 8 bits: a 4-bit mantissa and a
/// 4-bit exponent in units of 16 ns, rounded down. kHoldTooLong tells the client to take no RTT sample.
inline constexpr uint8_t kHoldTooLong = 255;
inline uint8_t encode_hold(uint64_t hold_ns) {
  if (hold_ns < 16) return 0;
  const uint64_t units = hold_ns / 16;
  // Below 16 units, the code is the number of units. From 16 units on, the code keeps their 5 leading bits; the first
  // of these bits adds 1 to the exponent.
  const auto shift = static_cast<uint32_t>(std::bit_width(units | 16)) - 5;
  const uint64_t code = (shift << 4) + (units >> shift);
  if (code < kHoldTooLong) [[likely]]
    return static_cast<uint8_t>(code);
  return code == kHoldTooLong ? kHoldTooLong - 1 : kHoldTooLong;
}
/// Returns ns. Inline, because each round-trip sample would otherwise save registers for the call.
inline uint64_t decode_hold(uint8_t code) {
  const uint32_t exponent = code >> 4;
  const uint64_t mantissa = code & 15;
  const uint64_t units = exponent == 0 ? mantissa : (16 + mantissa) << (exponent - 1);
  return units * 16;
}

}  // namespace tern::wire
