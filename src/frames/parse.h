// Checks that received frames are UDP datagrams for one endpoint. Frames layer: pure. The bytes are untrusted: no
// function reads beyond the given length, or allocates. The bytes must not change during a call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/address.h"
#include "frames/drop.h"
#include "frames/layout.h"
#include "frames/mac_address.h"

namespace tern::frames {

/// The parts of a frame that the device has found to be right. Software checks the others.
struct DeviceChecks {
  bool ip_header = false;     ///< the IPv4 header's checksum; has no meaning for IPv6
  bool udp_checksum = false;  ///< the UDP checksum, which is not 0
};

/// Accepts the frames to one UDP endpoint.
class FrameParser {
 public:
  struct Own {
    MacAddress mac;
    base::SocketAddress address;  ///< one IP and port; not a wildcard
    uint16_t vlan = 0;            ///< 1 to kVlanMax: frames have this tag, of any priority; 0: frames have no tag
  };
  /// A frame's UDP datagram, or the reason why the frame has no datagram for this endpoint. Fits into two registers.
  struct Datagram {
    const std::byte* payload;  ///< in the frame; null: `drop` has the reason
    uint32_t payload_bytes;    ///< may be 0
    Drop drop;
  };

  FrameParser() : FrameParser(Own{}) {}
  explicit FrameParser(const Own& own);

  /// 42, 46, 62 or 66. No good frame is shorter.
  size_t header_bytes() const { return header_bytes_; }
  /// Ignores bytes of the frame after the IP length, because Ethernet pads short frames. If the length of a frame is
  /// unknown, the caller may pass its whole buffer.
  Datagram parse(std::span<const std::byte> frame, DeviceChecks checks) const;
  /// The sender's IP and port. parse() must have found the frame good.
  base::SocketAddress source_of(std::span<const std::byte> frame) const;

 private:
  using Block = uint64_t __attribute__((vector_size(16)));
  /// Blocks of 16 bytes from these offsets hold every fixed bit of the headers, whatever their size.
  std::array<size_t, 4> block_offsets() const {
    return {0, 16, header_bytes_ - size_t{32}, header_bytes_ - size_t{16}};
  }
  static Block load_block(const std::byte* from) {
    Block block;
    std::memcpy(&block, from, sizeof(block));
    return block;
  }
  /// Returns whether the fixed bits of `frame` are as expected. It must have at least header_bytes_ bytes.
  bool matches(const std::byte* frame) const;
  /// Returns whether a source IP that begins with the byte `first` is surely ordinary. Others need a closer look.
  bool is_ordinary_source(uint8_t first) const {
    return static_cast<uint8_t>(first - 1) < source_limit_ && first != source_not_;
  }
  /// Examines the frame field by field: returns why it must be dropped, or that it is good in an unusual way.
  Datagram examine(std::span<const std::byte> frame, DeviceChecks checks) const;
  Drop examine_link(std::span<const std::byte> frame) const;
  Drop examine_ipv4(std::span<const std::byte> packet, DeviceChecks checks) const;
  Drop examine_ipv6(std::span<const std::byte> packet) const;
  Drop examine_udp(std::span<const std::byte> datagram) const;
  Drop examine_addresses(std::span<const std::byte> source_and_destination) const;
  /// Makes the checks that the device has not made. The rest of the frame must be right.
  Datagram check_sums(std::span<const std::byte> frame, DeviceChecks checks, uint32_t payload_bytes) const;

  std::array<Block, 4> expected_{};
  std::array<Block, 4> mask_{};
  uint8_t header_bytes_;
  uint8_t ip_length_at_;  ///< offset of the IP header's length
  uint8_t ip_extra_;      ///< bytes of the IP length that are not UDP's
  uint8_t source_at_;     ///< offset of the source IP
  uint8_t source_limit_;  ///< see is_ordinary_source()
  uint8_t source_not_;
  bool is_ipv4_;
  Own own_;
};

inline bool FrameParser::matches(const std::byte* frame) const {
  const auto [a, b, c, d] = block_offsets();
  const auto difference = [&](size_t offset, size_t i) {
    return (load_block(frame + offset) ^ expected_[i]) & mask_[i];
  };
  const Block wrong = difference(a, 0) | difference(b, 1) | difference(c, 2) | difference(d, 3);
  return (wrong[0] | wrong[1]) == 0;
}

[[gnu::always_inline]] inline FrameParser::Datagram FrameParser::parse(std::span<const std::byte> frame,
                                                                       DeviceChecks checks) const {
  size_t left = 0;  // bytes after the headers
  if (__builtin_sub_overflow(frame.size(), header_bytes_, &left) || !matches(frame.data())) [[unlikely]]
    return examine(frame, checks);
  const std::byte* const payload = frame.data() + header_bytes_;
  const uint32_t udp_bytes = load16(payload - kUdpBytes + udp::kLength);
  const uint32_t payload_bytes = udp_bytes - kUdpBytes;  // a wrong length: above every `left`
  // Unusual, but possibly good: a UDP length that does not fill the IP length, or a source that may be forged.
  if (udp_bytes + ip_extra_ != load16(frame.data() + ip_length_at_) || payload_bytes > left ||
      !is_ordinary_source(static_cast<uint8_t>(frame[source_at_])) ||
      load_raw16(payload - kUdpBytes + udp::kChecksum) == 0) [[unlikely]] {
    return examine(frame, checks);
  }
  if (!checks.udp_checksum || (is_ipv4_ && !checks.ip_header)) [[unlikely]]
    return check_sums(frame, checks, payload_bytes);
  return {payload, payload_bytes, Drop::kNone};
}

}  // namespace tern::frames
