// Compares the fields that Wireshark shows with those that the library's own parsers read from the same bytes. Test
// code.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "e2e/capture.h"
#include "e2e/tshark.h"
#include "wire/header.h"
#include "wire/management.h"
#include "wire/payload_code.h"

namespace e2e {

using tern::wire::Header;
using tern::wire::Kind;
using tern::wire::ManagementKind;
using tern::wire::ManagementMessage;

/// A packet as the library's parser reads it.
struct RealPacket {
  size_t frame;  ///< number of the frame, from 1
  Header header;
  std::span<const std::byte> payload;
  bool is_first_of(Kind kind) const { return header.kind() == kind && (header.flags() & tern::wire::kFirst) != 0; }
};

inline bool is_management(std::span<const std::byte> datagram) {
  return datagram.size() >= 4 && std::memcmp(datagram.data(), "trnM", 4) == 0;
}

/// Visits the data packets of a capture in order.
template <class F>
void each_packet(std::span<const Frame> frames, F&& visit) {
  for (size_t i = 0; i < frames.size(); i++) {
    std::span<const std::byte> left = payload_of(frames[i]);
    if (is_management(left)) continue;
    while (!left.empty()) {
      if (left[0] == std::byte{0}) {
        left = left.subspan(1);
        continue;
      }
      if (left.size() < tern::wire::kHeaderBytes) break;
      const Header header = tern::wire::load_header(left.data());
      if (!tern::wire::is_plausible(header, left.size())) break;
      visit(RealPacket{i + 1, header,
                       left.subspan(tern::wire::kHeaderBytes, header.length() - tern::wire::kHeaderBytes)});
      left = left.subspan(header.length());
    }
  }
}

inline bool is_from_client(const Dissected& item) { return item.number("tern.kind") < 8; }
inline bool is(const Dissected& item, Kind kind) {
  return item.has("tern.kind") && item.number("tern.kind") == static_cast<uint64_t>(kind);
}

template <class F>
size_t count(const Dissection& dissection, F&& is_counted) {
  return static_cast<size_t>(std::count_if(dissection.items.begin(), dissection.items.end(), is_counted));
}

/// Checks that a packet's dissected fields are those of its header.
inline void expect_fields(const Dissected& item, const RealPacket& packet) {
  const Header& header = packet.header;
  const Kind kind = header.kind();
  SCOPED_TRACE("frame " + std::to_string(packet.frame) + ", packet number " + std::to_string(header.number()));
  EXPECT_EQ(item.frame, packet.frame);
  EXPECT_EQ(item.number("tern.kind"), static_cast<uint64_t>(kind));
  EXPECT_EQ(item.number("tern.version"), header.version());
  EXPECT_EQ(item.number("tern.flags"), header.flags());
  EXPECT_EQ(item.number("tern.flags.first"), (header.flags() & tern::wire::kFirst) != 0);
  EXPECT_EQ(item.number("tern.flags.no_echo"), (header.flags() & tern::wire::kNoEcho) != 0);
  EXPECT_EQ(item.number("tern.length"), header.length());
  EXPECT_EQ(item.number("tern.session_key"), header.session_key());
  EXPECT_EQ(item.number("tern.packet_number"), header.number());
  EXPECT_EQ(item.number("tern.request_number"), header.request_number());
  EXPECT_EQ(item.number("tern.slot"), header.request_number() % tern::wire::kSlotsMax);
  const bool is_failure = (header.flags() & tern::wire::kFailure) != 0;
  if (kind == Kind::kRequest || kind == Kind::kRfr) {
    EXPECT_EQ(item.number("tern.index"), header.index());
    EXPECT_EQ(item.number("tern.type"), header.request_type());
    EXPECT_EQ(item.number(kind == Kind::kRfr ? "tern.count" : "tern.message_bytes"), header.message_bytes());
    EXPECT_EQ(item.has("tern.full_payload"), header.payload_code() != 0);
    if (header.payload_code() != 0) {
      EXPECT_EQ(item.number("tern.full_payload"), tern::wire::payload_of_code(header.payload_code()));
    }
  } else if (tern::wire::is_from_client(kind)) {
    EXPECT_EQ(item.number("tern.token"), header.token());
  } else {
    EXPECT_EQ(item.number("tern.credit_limit"), header.credit_limit());
    EXPECT_EQ(item.has("tern.hold_unknown"), header.hold_code() == tern::wire::kHoldTooLong);
    if (!item.has("tern.hold_unknown")) {
      EXPECT_EQ(item.number("tern.hold"), tern::wire::decode_hold(header.hold_code()));
    }
    if (item.number("tern.flags.no_echo") == 0) {
      EXPECT_EQ(item.number("tern.echo"), header.echo());
    }
  }
  if (kind == Kind::kPathReply) {
    EXPECT_EQ(item.number("tern.token"), header.size_or_index());
  }
  if (kind == Kind::kResponse && is_failure) {
    EXPECT_EQ(item.number("tern.failure_code"), header.size_or_index() >> 16);
    EXPECT_EQ(item.number("tern.app_code"), header.size_or_index() & 0xffff);
  } else if (kind == Kind::kResponse) {
    EXPECT_EQ(item.number(packet.is_first_of(kind) ? "tern.message_bytes" : "tern.index"), header.size_or_index());
    EXPECT_EQ(item.has("tern.large"), header.is_large());
  }
  if (packet.is_first_of(Kind::kRequest)) {
    const uint64_t left_ns = tern::wire::decode_time_left(header.deadline_code());
    EXPECT_EQ(item.has("tern.deadline"), left_ns != UINT64_MAX);
    if (item.has("tern.deadline")) {
      EXPECT_NEAR(item.seconds("tern.deadline"), static_cast<double>(left_ns) / 1e9, 1e-9);
    }
  }
  const size_t words = kind == Kind::kCr ? packet.payload.size() / 8 : 0;
  ASSERT_EQ(item.has("tern.arrived") ? item.fields.at("tern.arrived").size() : 0, words);
  for (size_t i = 0; i < words; i++) {
    uint64_t word;
    std::memcpy(&word, &packet.payload[i * sizeof(word)], sizeof(word));
    EXPECT_EQ(std::strtoull(item.fields.at("tern.arrived")[i].c_str(), nullptr, 0), word);
  }
  const size_t finished = kind == Kind::kReport ? packet.payload.size() / 4 : 0;
  EXPECT_EQ(item.has("tern.finished") ? item.fields.at("tern.finished").size() : 0, finished);
}

inline void expect_fields(const Dissected& item, const ManagementMessage& message) {
  using Number = std::pair<const char*, uint64_t>;
  std::vector<Number> numbers = {{"kind", static_cast<uint64_t>(message.kind)},
                                 {"sender_run", message.sender_run},
                                 {"receiver_run", message.receiver_run},
                                 {"token", message.token}};
  const bool names_end = message.kind != ManagementKind::kPing && message.kind != ManagementKind::kPong;
  const bool is_reply = message.kind == ManagementKind::kConnectReply;
  const bool has_terms =
      message.kind == ManagementKind::kConnectRequest || (is_reply && message.code == tern::Code::kOk);
  if (names_end) numbers.push_back({"to_endpoint", message.to_endpoint});
  if (message.to_key != 0) numbers.push_back({"to_key", message.to_key});
  if (message.from_key != 0) {
    numbers.push_back({"from_key", message.from_key});
    numbers.push_back({"from_client", message.from_client});
    numbers.push_back({"liveness", message.liveness});
  }
  if (message.cookie != 0) numbers.push_back({"cookie", message.cookie});
  if (is_reply) {
    numbers.push_back({"code", static_cast<uint64_t>(message.code)});
    numbers.push_back({"refusal", static_cast<uint64_t>(message.refusal)});
  }
  if (has_terms) {
    const auto& terms = message.terms;
    for (const Number& number : std::initializer_list<Number>{{"version_min", message.version_min},
                                                              {"session_key", terms.session_key},
                                                              {"endpoint", terms.endpoint_id},
                                                              {"payload_bytes_max", terms.payload_bytes_max},
                                                              {"window", terms.window},
                                                              {"credits", terms.credits},
                                                              {"first_number", terms.first_number},
                                                              {"path_token", terms.path_token},
                                                              {"credit_unit", terms.credit_unit}}) {
      numbers.push_back(number);
    }
    EXPECT_EQ(item.text("tern.mgmt.transport"), terms.transport_name());
    const unsigned port = std::to_integer<unsigned>(terms.address[1]) | std::to_integer<unsigned>(terms.address[2])
                                                                            << 8;
    EXPECT_EQ(item.number("tern.mgmt.data_port"), port);
    EXPECT_TRUE(item.text("tern.mgmt.data_ip") == "127.0.0.1" || item.text("tern.mgmt.data_ipv6") == "::1");
  }
  for (const auto& [name, value] : numbers) {
    EXPECT_EQ(item.number(std::string("tern.mgmt.") + name), value) << name << " in frame " << item.frame;
  }
}

}  // namespace e2e
