// The Internet checksum (RFC 1071) of IPv4 headers and UDP datagrams. Frames layer: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tern::frames {

/// Two sums that are both below 0x10000, added with the carry put back.
constexpr uint16_t add_sums(uint16_t a, uint16_t b) {
  const uint32_t sum = uint32_t{a} + b;
  return static_cast<uint16_t>(sum + (sum >> 16));
}

/// The one's complement sum of bytes in ranges of any alignment and length. Its value has its bytes in memory as they
/// belong in a frame (RFC 1071, 2B: the byte order of the machine does not matter).
class ChecksumSum {
 public:
  /// Adds bytes that follow those of the calls before in what is summed; a range before may have ended at an odd
  /// offset.
  void add(std::span<const std::byte> bytes);
  /// Adds the 16-bit number `value` at an even offset.
  void add_number(uint16_t value);
  /// 0 to 0xffff.
  uint16_t value() const { return sum_; }

 private:
  uint16_t sum_ = 0;
  bool is_odd_ = false;  ///< an odd number of bytes was added
};

/// Adds the pseudo header of IPv4 or IPv6 for UDP (RFC 768, RFC 8200 8.1). `addresses`: source and destination as they
/// lie in the IP header, 8 or 32 bytes. `udp_bytes`: the UDP length, its header counted.
void add_pseudo_header(ChecksumSum& sum, std::span<const std::byte> addresses, uint16_t udp_bytes);

/// What a UDP header has for this sum of pseudo header, header and payload: never 0, which says "no checksum".
constexpr uint16_t udp_checksum(uint16_t sum) {
  const auto checksum = static_cast<uint16_t>(~sum);
  return checksum == 0 ? 0xffff : checksum;
}

}  // namespace tern::frames
