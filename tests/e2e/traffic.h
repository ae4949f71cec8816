// What the processes of the end-to-end tests say to each other: request types, their contents, and who checks them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace e2e {

/// Request types of a peer.
enum Type : uint16_t {
  kEcho = 1,     ///< any bytes; the answer has the same
  kWork = 2,     ///< an Order; the answer is as the order says
  kWorker = 3,   ///< the same, on a worker thread
  kNested = 4,   ///< passed on as kWork to the peer's own backend; its answer is the answer
  kDrop = 5,     ///< never answered: dropped
  kFail = 6,     ///< an Order; fails with application code `reply_bytes`
  kHold = 7,     ///< kept until the board says `release` (then echoed) or it is cancelled (then dropped)
  kSmall = 8,    ///< kEcho with a limit of kSmallLimitBytes
  kSleep = 9,    ///< an Order; the handler itself sleeps for `delay_us`
  kUnknown = 99  ///< no handler
};
inline constexpr size_t kSmallLimitBytes = 1000;

/// Begins the requests of most types; a pattern of the id fills the rest.
struct Order {
  uint64_t id = 0;
  uint32_t reply_bytes = 0;  ///< of a pattern of ~id
  uint32_t delay_us = 0;     ///< before the answer
};
/// As a delay of kWorker requests: until the board says `release`.
inline constexpr uint32_t kUntilRelease = UINT32_MAX;

/// The same bytes for the same seed; every word of a message differs from every other.
[[gnu::always_inline]] inline uint64_t pattern_word(uint64_t seed, uint64_t index) {
  uint64_t z = seed * 0x9e3779b97f4a7c15 + index + 1;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  return z ^ (z >> 31);
}

// These two functions go through messages of 1 GiB in tests that are not optimised: therefore their loops call nothing.
inline void fill(std::span<std::byte> to, uint64_t seed) {
  std::byte* at = to.data();
  const size_t words = to.size() / sizeof(uint64_t);
  for (size_t i = 0; i < words; i++, at += sizeof(uint64_t)) {
    const uint64_t word = pattern_word(seed, i);
    std::memcpy(at, &word, sizeof(word));
  }
  const size_t rest = to.size() % sizeof(uint64_t);
  const uint64_t last = pattern_word(seed, words);
  if (rest != 0) std::memcpy(at, &last, rest);
}

inline bool is_filled(std::span<const std::byte> bytes, uint64_t seed) {
  const std::byte* at = bytes.data();
  const size_t words = bytes.size() / sizeof(uint64_t);
  for (size_t i = 0; i < words; i++, at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, at, sizeof(word));
    if (word != pattern_word(seed, i)) return false;
  }
  const size_t rest = bytes.size() % sizeof(uint64_t);
  const uint64_t last = pattern_word(seed, words);
  return rest == 0 || std::memcmp(at, &last, rest) == 0;
}

/// `to` has room for an Order.
inline void write_order(std::span<std::byte> to, const Order& order) {
  std::memcpy(to.data(), &order, sizeof(order));
  fill(to.subspan(sizeof(order)), order.id);
}

/// False: too short, or the pattern is damaged.
inline bool read_order(std::span<const std::byte> bytes, Order* order) {
  if (bytes.size() < sizeof(*order)) return false;
  std::memcpy(order, bytes.data(), sizeof(*order));
  return is_filled(bytes.subspan(sizeof(*order)), order->id);
}

}  // namespace e2e
