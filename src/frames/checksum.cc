#include "frames/checksum.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>

#include "frames/layout.h"

namespace tern::frames {

namespace {

template <class Word>
Word load(const std::byte* from) {
  Word word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

constexpr size_t kLineBytes = 64;

#ifdef __x86_64__
/// Each addition takes the carry of the one before, so that a word costs one instruction. Compilers do not generate
/// this from C++.
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

// Vectors add words of 16 bits, because a chain of carries takes a cycle for each 8 bytes. The instruction that adds
// neighbours takes signed words only. Therefore 2^15 is subtracted from each word, and put back at the end.

constexpr size_t kVectorBytes = sizeof(__m256i);
/// The least and the most bytes of one call. Shorter ranges are faster word by word. In longer ranges, sums of 32 bits
/// might overflow.
constexpr size_t kVectorsMin = 256, kVectorsMax = 64 * 1024;

[[gnu::target("avx2")]] inline __m256i pairs_of(const std::byte* at) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  return _mm256_madd_epi16(_mm256_xor_si256(words, _mm256_set1_epi16(INT16_MIN)), _mm256_set1_epi16(1));
}

/// `bytes`: a multiple of kVectorBytes, at most kVectorsMax.
[[gnu::target("avx2")]] uint64_t sum_of_vectors(const std::byte* at, size_t bytes) {
  constexpr size_t kBlockBytes = 4 * kVectorBytes;
  __m256i a = _mm256_setzero_si256(), b = a;
  const std::byte* const end = at + bytes;
  for (const std::byte* const blocks_end = end - bytes % kBlockBytes; at != blocks_end; at += kBlockBytes) {
    a = _mm256_add_epi32(a, pairs_of(at));
    b = _mm256_add_epi32(b, pairs_of(at + kVectorBytes));
    a = _mm256_add_epi32(a, pairs_of(at + 2 * kVectorBytes));
    b = _mm256_add_epi32(b, pairs_of(at + 3 * kVectorBytes));
  }
  for (; at != end; at += kVectorBytes) a = _mm256_add_epi32(a, pairs_of(at));
  a = _mm256_add_epi32(a, b);
  __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, _MM_SHUFFLE(1, 0, 3, 2)));
  sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, _MM_SHUFFLE(2, 3, 0, 1)));
  const int64_t put_back = int64_t{1 << 15} * static_cast<int64_t>(bytes / sizeof(uint16_t));
  return static_cast<uint64_t>(_mm_cvtsi128_si32(sums) + put_back);
}

bool has_vectors() { return __builtin_cpu_supports("avx2") != 0; }
#else
uint64_t add_line(uint64_t sum, const std::byte* at) {
  for (size_t i = 0; i < kLineBytes; i += sizeof(uint64_t)) sum = add_words(sum, load<uint64_t>(at + i));
  return sum;
}
#endif

}  // namespace

uint64_t sum_of_words(const std::byte* at, size_t left) {
  uint64_t sum = 0;
#ifdef __x86_64__
  while (left >= kVectorsMin && has_vectors()) {
    const size_t bytes = std::min(left, kVectorsMax) & ~(kVectorBytes - 1);
    sum = add_words(sum, sum_of_vectors(at, bytes));
    at += bytes;
    left -= bytes;
  }
#endif
  for (; left >= kLineBytes; left -= kLineBytes, at += kLineBytes) sum = add_line(sum, at);
  if (left == 0) return sum;
  for (; left >= sizeof(sum); left -= sizeof(sum), at += sizeof(sum)) sum = add_words(sum, load<uint64_t>(at));
  if (left >= 4) {
    sum = add_words(sum, load<uint32_t>(at));
    at += 4;
  }
  if ((left & 2) != 0) {
    sum = add_words(sum, load<uint16_t>(at));
    at += 2;
  }
  if ((left & 1) != 0) {
    constexpr uint32_t kShift = std::endian::native == std::endian::little ? 0 : 8;
    sum = add_words(sum, static_cast<uint64_t>(*at) << kShift);
  }
  return sum;
}

void add_pseudo_header(ChecksumSum& sum, std::span<const std::byte> addresses, uint16_t udp_bytes) {
  sum.add(addresses);
  sum.add_number(kProtocolUdp);
  sum.add_number(udp_bytes);
}

}  // namespace tern::frames
