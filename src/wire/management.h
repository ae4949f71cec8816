// The messages between Nexuses (docs/protocol.md, chapter 7): parses received bytes into checked values, and encodes
// them. Wire layer: no sessions, sockets or time. Thread-compatible, allocates nothing.
//
// Every message is one datagram, little-endian, and begins with the same 24 bytes:
//
//   magic 32 | message version 8 | kind 8 | length 16 | sender run 64 | receiver run 64
//
// A body of fixed size per kind follows; a connect request is padded (clause 7.1.4).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <tern/status.h>

namespace tern::wire {

inline constexpr uint32_t kManagementMagic = 0x4d6e7274;  ///< "trnM" in memory order
inline constexpr uint8_t kManagementVersion = 1;
inline constexpr size_t kManagementHeaderBytes = 24;
inline constexpr size_t kManagementBytesMax = 512;
inline constexpr size_t kConnectRequestBytes = 256;  ///< clause 7.1.4: no reply is longer
inline constexpr uint8_t kTermsVersion = 2;  ///< the highest version whose terms this code can read (clause 7.2.3)
inline constexpr size_t kTransportNameBytesMax = 16;
inline constexpr size_t kTransportAddressBytesMax = 64;

enum class ManagementKind : uint8_t {
  kConnectRequest = 1,
  kConnectReply = 2,
  kConfirm = 3,  ///< the client has the session that the reply gave it
  kDisconnect = 4,
  kDisconnectAck = 5,
  kPing = 6,  ///< asks whether the Nexus lives, and whether it knows this relation
  kPong = 7,  ///< the sender run is 0 if the Nexus does not know the relation
  kAsk = 8,   ///< asks whether the session lives
  kAnswer = 9,
  kCookie = 10,  ///< the client must repeat its request with this cookie; until then the server keeps no state for it
                 ///< (clause 7.3.2)
};

/// Why a server refused a session. The reason travels as one byte; the client's side makes the text.
enum class Refusal : uint8_t {
  kNone = 0,
  kNoSuchEndpoint = 1,
  kNoCapacity = 2,
  kNoCommonVersion = 3,
  kTransportMismatch = 4,
  kMtuMismatch = 5,
  kEndpointClosing = 6,
  kNoMemory = 7,
  kSessionClosed = 8,
  kOther = 9,
  kStaleRun = 10,  ///< not final: the request names a run that the server does not know; the client pings the server,
                   ///< then asks again
  kPeersPerAddress = 11,
  kSessionsPerAddress = 12,
  kNexusFull = 13,
  kOtherUser = 14,
  kEndpointShare = 15,
  kOtherHost = 16,
  kNoWayBack = 17,
  // From a comparison of the two transport addresses. If that gives no reason: kNoWayBack.
  kOtherFabric = 18,
  kOtherPartition = 19,
  kOtherSubnet = 20,
};
inline constexpr uint8_t kRefusals = 21;
/// Returns the broken rule and, unless it depends on the transport, the remedy; static storage. "" for kNone.
const char* refusal_text(Refusal refusal);
/// Returns the text of kNoCommonVersion, with both sides' highest versions in it; static storage.
const char* version_refusal_text(uint8_t client_version_max, uint8_t server_version_max);

/// The terms that one side offers in the handshake.
struct ManagementTerms {
  std::array<char, kTransportNameBytesMax> transport{};
  std::array<std::byte, kTransportAddressBytesMax> address{};
  uint8_t transport_bytes = 0;  ///< 1..16
  uint8_t address_bytes = 0;    ///< 0..64
  uint8_t window = 0;           ///< 1..64
  /// From a server: the first credit limit, as packets carry it: 1..128, or 1..255 if credits are bytes. From a client:
  /// the largest unit of credits that it understands; 0: packets only (clause 7.2.2).
  uint8_t credits = 0;
  uint16_t endpoint_id = 0;
  uint32_t session_key = 0;
  uint32_t payload_bytes_max = 0;  ///< 512..kPayloadBytesLimit
  uint32_t first_number = 0;       ///< number of the sender's first data packet; 24 bits
  uint32_t path_token = 0;         ///< server: the token that a path probe must carry, 31 bits; client: 0
  uint8_t credit_unit = 0;         ///< server: the unit of its credits (wire/credits.h); client: 0
  std::string_view transport_name() const { return {transport.data(), transport_bytes}; }
  friend bool operator==(const ManagementTerms&, const ManagementTerms&) = default;
};
inline constexpr uint32_t kPayloadBytesLimit = 1u << 20;
/// Returns whether the terms may be sent: every field is within its range (clause 7.2.2).
bool is_valid(const ManagementTerms& terms);

/// One message of any kind. Fields that a kind does not carry are zero after parsing and ignored when encoding.
struct ManagementMessage {
  ManagementKind kind{};
  uint64_t sender_run = 0;    ///< 0: the sender keeps no state about the receiver
  uint64_t receiver_run = 0;  ///< 0: not known yet
  uint64_t token = 0;         ///< all kinds: the token of the connect request, or of the ping

  // kConnectRequest, kConnectReply
  uint8_t version_min = 0;           ///< of the data path; reply: the chosen version; refusal: the server's highest
  uint8_t version_max = 0;           ///< request only
  Code code = Code::kOk;             ///< reply only; kOk: accepted, and `terms` are valid
  Refusal refusal = Refusal::kNone;  ///< reply only
  ManagementTerms terms;             ///< request, and reply with kOk

  // All kinds except ping and pong name the receiver's end of the session by endpoint and key.
  uint16_t to_endpoint = 0;  ///< the receiver sends it back. kConnectRequest: the server's cookie, 0 if none yet
  uint32_t to_key = 0;       ///< kConnectReply, kCookie and the kinds below
  uint64_t cookie = 0;  ///< the receiver sends it back. kConnectRequest: the server's cookie, 0 if it has sent none yet
  // kConfirm, kDisconnect, kDisconnectAck, kAsk, kAnswer
  uint32_t from_key = 0;
  bool from_client = false;  ///< the sender is the client of the session
  uint8_t liveness = 0;      ///< kAnswer: nexus::PeerLiveness, 0..2

  friend bool operator==(const ManagementMessage&, const ManagementMessage&) = default;
};
inline constexpr uint8_t kLivenessMax = 2;

enum class ManagementDrop : uint8_t {
  kNone,
  kShort,         ///< no header
  kForeign,       ///< another magic: not a message of tern
  kOtherVersion,  ///< another message version
  kUnknownKind,
  kBadLength,  ///< the length field differs from the datagram's length, or from the kind's
  kBadField,   ///< a field is out of its range
};
inline constexpr size_t kManagementDrops = 7;

/// Parses untrusted bytes. Unless the result is kNone, `message` is unspecified.
ManagementDrop parse_management(std::span<const std::byte> bytes, ManagementMessage& message);

/// The bytes of one datagram, stored in the object.
struct ManagementBytes {
  std::array<std::byte, kConnectRequestBytes> bytes;
  uint16_t size = 0;
  std::span<const std::byte> view() const { return std::span(bytes).first(size); }
};
/// `message` must have values that parse_management() accepts.
void encode_management(const ManagementMessage& message, ManagementBytes& out);

}  // namespace tern::wire
