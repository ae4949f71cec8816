// Almost good frames, and any bytes as a frame: FrameParser is compared with a parser that reads byte after byte, and
// FrameTemplate with frames made field by field. An input is a sequence of frames. Each frame is in memory of exactly
// its
// size.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

#include "frames/frame_template.h"
#include "frames/parse.h"
#include "fuzz/frame_reference.h"
#include "fuzz/fuzz_parts.h"

uint64_t fuzz_packets = 0;  ///< parsed packets; the runner of the target prints it

namespace {

using namespace tern::frames;
using reference::Bytes;
using reference::Fields;
using tern::fuzz::Input;

void require(bool is_true) {
  if (!is_true) std::abort();
}

/// A number that is likely to find an error: small, near `usual`, or any.
uint16_t number(Input& input, uint16_t usual) {
  switch (input.below(4)) {
    case 0:
      return input.u8();
    case 1:
      return static_cast<uint16_t>(usual + input.u8() - 128);
    case 2:
      return static_cast<uint16_t>(usual ^ 1u << input.below(16));
    default:
      return input.u16();
  }
}

Bytes some_bytes(Input& input, uint32_t limit) {
  Bytes bytes(input.below(limit));
  for (uint8_t& byte : bytes) byte = input.u8();
  return bytes;
}

void change_ip(Input& input, Bytes& ip) {
  constexpr uint8_t kFirst[] = {0, 1, 10, 126, 127, 128, 223, 224, 239, 240, 255, 0xfe, 0xff};
  switch (input.below(4)) {
    case 0:
      ip[0] = kFirst[input.below(std::size(kFirst))];
      break;
    case 1:
      ip[input.below(static_cast<uint32_t>(ip.size()))] = input.u8();
      break;
    case 2:
      std::ranges::fill(ip, input.once_in(2) ? 0 : 0xff);
      break;
    default:
      std::ranges::fill(ip, 0);
      ip.back() = static_cast<uint8_t>(input.below(3));
      if (ip.size() == 16 && input.once_in(2)) ip[10] = ip[11] = 0xff;
  }
}

void change_field(Input& input, Fields& fields) {
  const auto ip_length = static_cast<uint16_t>((fields.is_ipv6 ? 8 : 28) + fields.payload.size());
  const auto udp_length = static_cast<uint16_t>(8 + fields.payload.size());
  constexpr uint16_t kTypes[] = {0x8100, 0x88a8, 0x0800, 0x86dd, 0x0806};
  constexpr uint8_t kProtocols[] = {0, 1, 6, 17, 43, 44, 50, 51, 58, 59, 60, 135, 136, 139, 140};
  switch (input.below(22)) {
    case 0:
      fields.destination_mac[input.below(6)] = input.u8();
      break;
    case 1:
      fields.source_mac[input.below(6)] = input.u8();
      break;
    case 2:
      fields.tags.push_back({kTypes[input.below(2)], number(input, 77)});
      break;
    case 3:
      fields.tags.clear();
      break;
    case 4:
      fields.ether_type = kTypes[input.below(std::size(kTypes))];
      break;
    case 5:
      fields.version = static_cast<uint8_t>(input.below(16));
      break;
    case 6:
      fields.header_words = static_cast<int64_t>(input.below(16));
      break;
    case 7:
      fields.options = Bytes(4 * input.below(11), input.u8());
      break;
    case 8:
      fields.traffic_class = input.u8();
      break;
    case 9:
      fields.flow_label = input.u32() & 0xfffff;
      break;
    case 10:
      fields.ip_length = number(input, ip_length);
      break;
    case 11:
      fields.identification = input.u16();
      break;
    case 12:
      fields.fragment = number(input, 0x4000);
      break;
    case 13:
      fields.protocol = kProtocols[input.below(std::size(kProtocols))];
      break;
    case 14:
      fields.ip_checksum = number(input, 0);
      break;
    case 15:
      change_ip(input, fields.source_ip);
      break;
    case 16:
      change_ip(input, fields.destination_ip);
      break;
    case 17:
      fields.destination_port = number(input, fields.destination_port);
      break;
    case 18:
      fields.udp_length = number(input, udp_length);
      break;
    case 19:
      fields.udp_checksum = number(input, 0);
      break;
    default:
      fields.padding = some_bytes(input, 64);
  }
}

void change_bytes(Input& input, Bytes& frame) {
  switch (input.below(4)) {
    case 0:
      frame.resize(input.u16() % (frame.size() + 1));
      break;
    case 1:
      for (uint32_t flips = 1 + input.below(3); flips > 0 && !frame.empty(); flips--) {
        frame[input.u16() % frame.size()] ^= static_cast<uint8_t>(1u << input.below(8));
      }
      break;
    default:
      break;
  }
}

Fields read_fields(Input& input, bool is_ipv6, uint16_t vlan) {
  Fields fields(is_ipv6, vlan);
  fields.source_port = input.u16();
  fields.payload = some_bytes(input, 200);
  return fields;
}

void compare(const FrameParser::Own& own, const Bytes& frame, DeviceChecks checks) {
  const auto copy = std::make_unique<std::byte[]>(frame.size());
  std::ranges::copy(reference::as_frame(frame), copy.get());
  const std::span<const std::byte> bytes(copy.get(), frame.size());
  const FrameParser parser(own);
  const FrameParser::Datagram datagram = parser.parse(bytes, checks);
  const reference::Verdict expected = reference::parse(own, frame, checks);
  fuzz_packets++;
  require(datagram.drop == expected.drop);
  if (datagram.drop != Drop::kNone) return;
  const std::span payload(datagram.payload, datagram.payload_bytes);
  require(std::ranges::equal(payload, reference::as_frame(expected.payload)));
  auto source = tern::base::SocketAddress::from_ip(reference::as_frame(expected.source_ip));
  source.set_port(expected.source_port);
  require(parser.source_of(bytes) == source);
}

/// The frame that a template makes for these fields, its checksum summed over two ranges.
void compare_template(Input& input, const FrameParser::Own& own, Fields fields) {
  FrameTemplate::Ends ends;
  ends.source_mac = MacAddress::from_bytes(reference::as_frame(fields.source_mac));
  ends.destination_mac = own.mac;
  ends.source = tern::base::SocketAddress::from_ip(reference::as_frame(fields.source_ip));
  ends.source.set_port(fields.source_port);
  ends.destination = own.address;
  ends.vlan = own.vlan;
  ends.vlan_priority = static_cast<uint8_t>(input.below(8));
  ends.traffic_class = fields.traffic_class = input.u8();
  const FrameTemplate frame_template(ends);
  const size_t header_bytes = frame_template.header_bytes();
  Bytes frame(header_bytes);
  const auto writable = std::as_writable_bytes(std::span(frame));
  frame_template.write(writable.data(), fields.payload.size());
  const auto payload = reference::as_frame(fields.payload);
  const size_t split = payload.empty() ? 0 : input.u8() % payload.size();
  frame_template.complete_udp_checksum(writable.data(), payload.first(split), payload.subspan(split));
  reference::put_all(frame, fields.payload);

  for (Fields::Tag& tag : fields.tags) tag.control |= static_cast<uint16_t>(ends.vlan_priority << 13);
  if (fields.is_ipv6) {
    const size_t at = header_bytes - 8 - 40;
    fields.flow_label = (frame[at + 1] & 15u) << 16 | frame[at + 2] << 8u | frame[at + 3];
  }
  require(frame == fields.frame());
  compare(own, frame, {});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  for (bool is_first = true; !input.is_empty(); is_first = false) {
    const uint8_t shape = input.u8();
    const bool is_ipv6 = (shape & 1) != 0;
    const uint16_t vlan = (shape & 2) != 0 ? 77 : 0;
    const DeviceChecks checks{.ip_header = (shape & 4) != 0, .udp_checksum = (shape & 8) != 0};
    const FrameParser::Own own = reference::own(is_ipv6, vlan);
    const uint8_t kind = shape >> 4;
    if (kind == 0 && is_first) {  // the rest of the input is the frame
      Bytes frame;
      while (!input.is_empty()) frame.push_back(input.u8());
      compare(own, frame, checks);
    } else if (kind < 4) {
      compare_template(input, own, read_fields(input, is_ipv6, vlan));
    } else {
      Fields fields = read_fields(input, is_ipv6, vlan);
      for (uint32_t changes = input.below(4); changes > 0; changes--) change_field(input, fields);
      Bytes frame = fields.frame();
      change_bytes(input, frame);
      compare(own, frame, checks);
    }
  }
  return 0;
}
