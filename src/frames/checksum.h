// The Internet checksum (RFC 1071) of IPv4 headers and UDP datagrams. Frames layer: pure.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "frames/layout.h"

namespace tern::frames {

/// Adds two sums that are both below 0x10000, and adds the carry back.
constexpr uint16_t add_sums(uint16_t a, uint16_t b) {
  const uint32_t sum = uint32_t{a} + b;
  return static_cast<uint16_t>(sum + (sum >> 16));
}

/// A word of 64 bits holds four 16-bit words. One's complement sums add a carry back at the lower end, because 2^16
/// counts as 1 there, and so does 2^64.
constexpr uint64_t add_words(uint64_t a, uint64_t b) {
  const uint64_t sum = a + b;
  return sum + (sum < b ? 1 : 0);
}
/// The sum of `count` bytes of any alignment. An odd last byte counts as if a zero followed it.
uint64_t sum_of_words(const std::byte* bytes, size_t count);

/// The one's complement sum of bytes in ranges of any alignment and length. The bytes of its value are in memory in the
/// order of a frame (RFC 1071, 2B: the byte order of the machine does not matter).
class ChecksumSum {
 public:
  /// Adds bytes that follow the bytes of earlier calls in the summed data. An earlier range may have ended at an odd
  /// offset.
  void add(std::span<const std::byte> bytes) {
    const uint64_t sum = sum_of_words(bytes.data(), bytes.size());
    words_ = add_words(words_, is_odd_ ? std::rotl(sum, 8) : sum);  // multiplication by 256 exchanges the bytes
    is_odd_ ^= bytes.size() % 2 != 0;
  }
  /// Adds kBytes at an even offset. It is for a few bytes, and makes no call.
  template <size_t kBytes>
  void add_few(const std::byte* bytes) {
    static_assert(kBytes % 4 == 0);
    for (size_t at = 0; at + 8 <= kBytes; at += 8) add_word<uint64_t>(bytes + at);
    if constexpr (kBytes % 8 != 0) add_word<uint32_t>(bytes + kBytes - 4);
  }
  /// Adds the 16-bit number `value` at an even offset.
  void add_number(uint16_t value) { words_ = add_words(words_, network_order(value)); }
  /// 0 to 0xffff.
  uint16_t value() const {
    uint64_t sum = (words_ & 0xffffffff) + (words_ >> 32);
    sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    return static_cast<uint16_t>(sum + (sum >> 16));
  }

 private:
  template <class Word>
  void add_word(const std::byte* from) {
    Word word;
    std::memcpy(&word, from, sizeof(word));
    words_ = add_words(words_, word);
  }

  uint64_t words_ = 0;
  bool is_odd_ = false;  ///< an odd number of bytes was added
};

/// Adds the pseudo header of IPv4 or IPv6 for UDP (RFC 768, RFC 8200 8.1). `addresses`: source and destination as they
/// lie in the IP header, 8 or 32 bytes. `udp_bytes`: the UDP length, UDP header included.
void add_pseudo_header(ChecksumSum& sum, std::span<const std::byte> addresses, uint16_t udp_bytes);

/// Returns the checksum field of a UDP header for this sum of pseudo header, header and payload. It is never 0, because
/// 0 means "no checksum".
constexpr uint16_t udp_checksum(uint16_t sum) {
  const auto checksum = static_cast<uint16_t>(~sum);
  return checksum == 0 ? 0xffff : checksum;
}

}  // namespace tern::frames
