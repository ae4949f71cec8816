#include "frames/checksum.h"

#include <cstring>

#include "frames/layout.h"

namespace tern::frames {

namespace {

// Words have 64 bits. One is four 16-bit ones, and one's complement sums take a carry back at the lower end: 2^16 is 1
// there, and so is 2^64.

uint64_t load_word(const std::byte* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

uint64_t add_word(uint64_t sum, uint64_t word) {
  sum += word;
  return sum + (sum < word ? 1 : 0);
}

constexpr size_t kLineBytes = 64;

#ifdef __x86_64__
/// One instruction a word: each addition takes the carry of the one before, which no compiler does without a detour.
uint64_t add_line(uint64_t sum, const std::byte* at) {
  asm("addq (%1), %0\n\t"
      "adcq 8(%1), %0\n\t"
      "adcq 16(%1), %0\n\t"
      "adcq 24(%1), %0\n\t"
      "adcq 32(%1), %0\n\t"
      "adcq 40(%1), %0\n\t"
      "adcq 48(%1), %0\n\t"
      "adcq 56(%1), %0\n\t"
      "adcq $0, %0"
      : "+&r"(sum)
      : "r"(at), "m"(*reinterpret_cast<const std::byte(*)[kLineBytes]>(at))
      : "cc");
  return sum;
}
#else
uint64_t add_line(uint64_t sum, const std::byte* at) {
  for (size_t i = 0; i < kLineBytes; i += sizeof(uint64_t)) sum = add_word(sum, load_word(at + i));
  return sum;
}
#endif

uint16_t fold(uint64_t words) {
  uint64_t sum = (words & 0xffff) + (words >> 16 & 0xffff) + (words >> 32 & 0xffff) + (words >> 48);
  sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(sum + (sum >> 16));
}

/// Of bytes that begin at an even offset.
uint16_t sum_of(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= kLineBytes; left -= kLineBytes, at += kLineBytes) sum = add_line(sum, at);
  for (; left >= sizeof(sum); left -= sizeof(sum), at += sizeof(sum)) sum = add_word(sum, load_word(at));
  if (left > 0) {
    uint64_t last = 0;
    std::memcpy(&last, at, left);  // zeros behind the last byte change no sum
    sum = add_word(sum, last);
  }
  return fold(sum);
}

}  // namespace

void ChecksumSum::add(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const uint16_t sum = sum_of(bytes);
  sum_ = add_sums(sum_, is_odd_ ? swap_bytes(sum) : sum);
  is_odd_ ^= bytes.size() % 2 != 0;
}

void ChecksumSum::add_number(uint16_t value) { sum_ = add_sums(sum_, network_order(value)); }

void add_pseudo_header(ChecksumSum& sum, std::span<const std::byte> addresses, uint16_t udp_bytes) {
  sum.add(addresses);
  sum.add_number(kProtocolUdp);
  sum.add_number(udp_bytes);
}

}  // namespace tern::frames
