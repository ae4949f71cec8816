// See management.h. FieldReader checks that every read is within bounds; parse_management() checks every range.
#include "wire/management.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "wire/credits.h"
#include "wire/fields.h"
#include "wire/header.h"

namespace tern::wire {
namespace {

/// The first protocol version in which terms are longer than 94 bytes. In a request of an older version, padding
/// follows these 94 bytes.
constexpr uint8_t kLongTermsVersion = 2;

void read_terms(FieldReader& in, ManagementTerms& terms) {
  terms.transport_bytes = in.number<uint8_t>();
  in.raw(terms.transport.data(), terms.transport.size());
  terms.address_bytes = in.number<uint8_t>();
  in.raw(terms.address.data(), terms.address.size());
  terms.session_key = in.number<uint32_t>();
  terms.endpoint_id = in.number<uint16_t>();
  terms.payload_bytes_max = in.number<uint32_t>();
  terms.window = in.number<uint8_t>();
  terms.credits = in.number<uint8_t>();
  terms.first_number = in.number<uint32_t>();
  terms.path_token = in.number<uint32_t>();
  terms.credit_unit = in.number<uint8_t>();
}

void write_terms(FieldWriter& out, const ManagementTerms& terms) {
  out.number(terms.transport_bytes);
  out.raw(terms.transport.data(), terms.transport.size());
  out.number(terms.address_bytes);
  out.raw(terms.address.data(), terms.address.size());
  out.number(terms.session_key);
  out.number(terms.endpoint_id);
  out.number(terms.payload_bytes_max);
  out.number(terms.window);
  out.number(terms.credits);
  out.number(terms.first_number);
  out.number(terms.path_token);
  out.number(terms.credit_unit);
}

bool read_flag(FieldReader& in, bool& flag) {
  const uint8_t value = in.number<uint8_t>();
  flag = value == 1;
  return value <= 1;
}

/// Reads the request's body. Returns true if its fields are in range. Padding may hold any bytes (clause 7.1.4).
bool read_request(FieldReader& in, ManagementMessage& m) {
  m.version_min = in.number<uint8_t>();
  m.version_max = in.number<uint8_t>();
  m.to_endpoint = in.number<uint16_t>();
  read_terms(in, m.terms);
  m.cookie = in.number<uint64_t>();
  if (m.version_min > m.version_max || m.sender_run == 0) return false;
  // This code cannot interpret the terms of a later version. It needs only the address of the refusal (clause 7.2.3).
  if (m.version_min > kTermsVersion) {
    ManagementTerms sender;
    sender.endpoint_id = m.terms.endpoint_id;
    sender.session_key = m.terms.session_key;
    m.terms = sender;
    return true;
  }
  if (m.version_max < kLongTermsVersion) {
    m.terms.first_number = m.terms.path_token = 0;
    m.terms.credit_unit = kPacketCredits;
  }
  return is_valid(m.terms);
}

bool read_reply(FieldReader& in, ManagementMessage& m) {
  m.to_endpoint = in.number<uint16_t>();
  m.to_key = in.number<uint32_t>();
  const uint8_t code = in.number<uint8_t>();
  const uint8_t refusal = in.number<uint8_t>();
  m.version_min = in.number<uint8_t>();
  // A code or a reason that only later servers know is still a refusal.
  m.code = code <= static_cast<uint8_t>(Code::kUnavailable) ? static_cast<Code>(code) : Code::kRefused;
  m.refusal = refusal < kRefusals ? static_cast<Refusal>(refusal) : Refusal::kOther;
  if (m.code != Code::kOk) return m.refusal != Refusal::kNone;
  read_terms(in, m.terms);
  return m.refusal == Refusal::kNone && m.sender_run != 0 && is_valid(m.terms) && m.terms.credits >= 1;
}

bool read_cookie(FieldReader& in, ManagementMessage& m) {
  m.to_endpoint = in.number<uint16_t>();
  m.to_key = in.number<uint32_t>();
  m.cookie = in.number<uint64_t>();
  return m.receiver_run != 0 && m.cookie != 0;
}

bool read_session_name(FieldReader& in, ManagementMessage& m) {
  m.to_endpoint = in.number<uint16_t>();
  m.to_key = in.number<uint32_t>();
  m.from_key = in.number<uint32_t>();
  m.cookie = in.number<uint64_t>();
  if (!read_flag(in, m.from_client)) return false;
  m.liveness = in.number<uint8_t>();
  return m.kind == ManagementKind::kAnswer ? m.liveness <= kLivenessMax : m.liveness == 0;
}

}  // namespace

const char* refusal_text(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNone:
      return "";
    case Refusal::kNoSuchEndpoint:
      return "the server's Nexus has no endpoint with this id; check the URI's last part, or try again once the server "
             "has made its Rpc";
    case Refusal::kNoCapacity:
      return "the server has no capacity for another session; raise RpcOptions::server_sessions_max there";
    case Refusal::kNoCommonVersion:
      return "no common protocol version; bring both sides to releases that share one";
    case Refusal::kTransportMismatch:
      return "the endpoints use different transports, or versions of one; use the same Rpc<Transport> and the same "
             "release of tern on both sides";
    case Refusal::kMtuMismatch:
      return "MTU: full-size packets do not pass between the endpoints; lower the transport's datagram size";
    case Refusal::kEndpointClosing:
      return "the server's endpoint is closing; connect to another, or later";
    case Refusal::kNoMemory:
      return "the server has no memory for another session";
    case Refusal::kSessionClosed:
      return "the server has closed the session before it was open; connect again";
    case Refusal::kOther:
      return "the server refused the session";
    case Refusal::kStaleRun:
      return "the server's Nexus has restarted; connect again";
    case Refusal::kPeersPerAddress:
      return "the server's Nexus accepts no more peers from this IPv4 address or IPv6 /64; raise "
             "NexusOptions::peers_per_address_max there";
    case Refusal::kSessionsPerAddress:
      return "the server's Nexus accepts no more sessions from this IPv4 address or IPv6 /64; raise "
             "NexusOptions::sessions_per_address_max there";
    case Refusal::kNexusFull:
      return "the server's Nexus has 65536 peers or 4194304 sessions, the most that one Nexus can have; end some, or "
             "create another Nexus";
    case Refusal::kOtherUser:
      return "the server's endpoint belongs to another user, and accepts only peers of its own user";
    case Refusal::kEndpointShare:
      return "the server's endpoint accepts no more sessions from this host; raise "
             "RpcOptions::server_sessions_per_peer_max there";
    case Refusal::kOtherHost:
      return "the server cannot find the client's endpoint in its own network namespace";
    case Refusal::kNoWayBack:
      return "the server's endpoint cannot send to the client's data-path address";
    case Refusal::kOtherFabric:
      return "the server's endpoint is on another fabric (InfiniBand, RoCE v1 and RoCE v2 are three)";
    case Refusal::kOtherPartition:
      return "the server's endpoint is in another partition, or neither side is a full member of the partition";
    case Refusal::kOtherSubnet:
      return "the server's endpoint is in another InfiniBand subnet, which verbs cannot reach";
  }
  return "";
}

namespace {

constexpr size_t kNamedVersions = 10;  ///< so that a number has one digit
constexpr std::string_view kVersionText =
    "no common protocol version: this side speaks up to version C, the server up to version S; bring both sides to "
    "releases that share one";

using VersionText = std::array<char, kVersionText.size() + 1>;

constexpr auto kVersionTexts = [] {
  std::array<std::array<VersionText, kNamedVersions>, kNamedVersions> texts{};
  for (size_t client = 0; client < kNamedVersions; client++) {
    for (size_t server = 0; server < kNamedVersions; server++) {
      VersionText& text = texts[client][server];
      for (size_t i = 0; i < kVersionText.size(); i++) text[i] = kVersionText[i];
      text[kVersionText.find(" C,") + 1] = static_cast<char>('0' + client);
      text[kVersionText.find(" S;") + 1] = static_cast<char>('0' + server);
    }
  }
  return texts;
}();

}  // namespace

const char* version_refusal_text(uint8_t client_version_max, uint8_t server_version_max) {
  if (client_version_max >= kNamedVersions || server_version_max >= kNamedVersions) {
    return refusal_text(Refusal::kNoCommonVersion);
  }
  return kVersionTexts[client_version_max][server_version_max].data();
}

bool is_valid(const ManagementTerms& terms) {
  return terms.transport_bytes >= 1 && terms.transport_bytes <= kTransportNameBytesMax &&
         terms.address_bytes <= kTransportAddressBytesMax && terms.window >= 1 && terms.window <= kSlotsMax &&
         terms.first_number <= kNumberMask && terms.path_token <= kTokenMask && is_credit_unit(terms.credit_unit) &&
         (terms.credits <= kExactCreditsMax || terms.credit_unit != kPacketCredits) &&
         terms.payload_bytes_max >= kPayloadBytesMin && terms.payload_bytes_max <= kPayloadBytesLimit;
}

ManagementDrop parse_management(std::span<const std::byte> bytes, ManagementMessage& m) {
  if (bytes.size() < kManagementHeaderBytes) return ManagementDrop::kShort;
  m = {};
  FieldReader in(bytes);
  if (in.number<uint32_t>() != kManagementMagic) return ManagementDrop::kForeign;
  if (in.number<uint8_t>() != kManagementVersion) return ManagementDrop::kOtherVersion;
  m.kind = static_cast<ManagementKind>(in.number<uint8_t>());
  if (in.number<uint16_t>() != bytes.size()) return ManagementDrop::kBadLength;
  m.sender_run = in.number<uint64_t>();
  m.receiver_run = in.number<uint64_t>();
  m.token = in.number<uint64_t>();
  bool in_range = true;
  switch (m.kind) {
    case ManagementKind::kConnectRequest:
      in_range = read_request(in, m);
      if (in.failed() || bytes.size() != kConnectRequestBytes) return ManagementDrop::kBadLength;
      return in_range ? ManagementDrop::kNone : ManagementDrop::kBadField;
    case ManagementKind::kConnectReply:
      in_range = read_reply(in, m);
      break;
    case ManagementKind::kCookie:
      in_range = read_cookie(in, m);
      break;
    case ManagementKind::kPing:
      in_range = m.sender_run != 0 && m.receiver_run != 0;
      break;
    case ManagementKind::kPong:
      in_range = m.receiver_run != 0;
      break;
    case ManagementKind::kConfirm:
    case ManagementKind::kDisconnect:
    case ManagementKind::kDisconnectAck:
    case ManagementKind::kAsk:
    case ManagementKind::kAnswer:
      in_range = read_session_name(in, m);
      break;
    default:
      return ManagementDrop::kUnknownKind;
  }
  if (in.failed()) return ManagementDrop::kBadLength;
  if (!in_range) return ManagementDrop::kBadField;
  return in.is_exact() ? ManagementDrop::kNone : ManagementDrop::kBadLength;
}

void encode_management(const ManagementMessage& m, ManagementBytes& out) {
  FieldWriter to(out.bytes);
  to.number(kManagementMagic);
  to.number(kManagementVersion);
  to.number(static_cast<uint8_t>(m.kind));
  to.number(uint16_t{0});  // length, below
  to.number(m.sender_run);
  to.number(m.receiver_run);
  to.number(m.token);
  switch (m.kind) {
    case ManagementKind::kConnectRequest:
      to.number(m.version_min);
      to.number(m.version_max);
      to.number(m.to_endpoint);
      write_terms(to, m.terms);
      to.number(m.cookie);
      to.pad_to(kConnectRequestBytes);
      break;
    case ManagementKind::kCookie:
      to.number(m.to_endpoint);
      to.number(m.to_key);
      to.number(m.cookie);
      break;
    case ManagementKind::kConnectReply:
      to.number(m.to_endpoint);
      to.number(m.to_key);
      to.number(static_cast<uint8_t>(m.code));
      to.number(static_cast<uint8_t>(m.refusal));
      to.number(m.version_min);
      if (m.code == Code::kOk) write_terms(to, m.terms);
      break;
    case ManagementKind::kPing:
    case ManagementKind::kPong:
      break;
    case ManagementKind::kConfirm:
    case ManagementKind::kDisconnect:
    case ManagementKind::kDisconnectAck:
    case ManagementKind::kAsk:
    case ManagementKind::kAnswer:
      to.number(m.to_endpoint);
      to.number(m.to_key);
      to.number(m.from_key);
      to.number(m.cookie);
      to.number(static_cast<uint8_t>(m.from_client));
      to.number(m.liveness);
      break;
  }
  out.size = static_cast<uint16_t>(to.size());
  FieldWriter length(std::span(out.bytes).subspan(6, 2));
  length.number(out.size);
}

}  // namespace tern::wire
