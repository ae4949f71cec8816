// Conversions between the types of C and of C++: statuses, options, times. C layer. No state.
#pragma once

#include <tern/duration.h>
#include <tern/status.h>
#include <tern/tern.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tern::c {

/// The text of a Status has static storage and ends with a zero byte.
inline tern_status to_c(Status status) { return {static_cast<tern_code>(status.code()), status.message().data()}; }
inline tern_status misuse(const char* rule) { return {TERN_MISUSE, rule}; }

static_assert(static_cast<int>(Code::kOk) == TERN_OK &&
              static_cast<int>(Code::kPeerUnreachable) == TERN_PEER_UNREACHABLE);
static_assert(static_cast<int>(Code::kSessionReset) == TERN_SESSION_RESET);
static_assert(static_cast<int>(Code::kDeadline) == TERN_DEADLINE &&
              static_cast<int>(Code::kCancelled) == TERN_CANCELLED);
static_assert(static_cast<int>(Code::kRefused) == TERN_REFUSED && static_cast<int>(Code::kTooLarge) == TERN_TOO_LARGE);
static_assert(static_cast<int>(Code::kQueueFull) == TERN_QUEUE_FULL &&
              static_cast<int>(Code::kNoMemory) == TERN_NO_MEMORY);
static_assert(static_cast<int>(Code::kWrongThread) == TERN_WRONG_THREAD);
static_assert(static_cast<int>(Code::kNoResponse) == TERN_NO_RESPONSE &&
              static_cast<int>(Code::kMisuse) == TERN_MISUSE);
static_assert(static_cast<int>(Code::kUnavailable) == TERN_UNAVAILABLE);
static_assert(Duration::max().count() == TERN_FOREVER);

/// to_string() of an enumeration of bytes, for any number. The words are literals that end with a zero byte.
template <class Enumeration>
const char* words_of(int32_t value) {
  constexpr Enumeration kUnknown{UINT8_MAX};
  const bool is_byte = value >= 0 && value <= UINT8_MAX;
  return to_string(is_byte ? static_cast<Enumeration>(value) : kUnknown).data();
}

/// The most bytes that later versions may add to a struct of options. A larger size is a mistake.
inline constexpr size_t kLaterBytesMax = 1024;

/// Copies the program's struct to `options`; fields that the program's struct lacks become zero. `first_bytes` is the
/// size of the struct in its first version. A larger struct is of a later version: it is accepted if all fields that
/// this library does not know are zero.
template <class T>
Status read_options(const T* given, size_t first_bytes, T& options) {
  options = {};
  if (given == nullptr) return {};
  // The size of a struct is a multiple of its alignment. Another one would cut a field in two.
  if (given->size < first_bytes || given->size % alignof(T) != 0) {
    return {Code::kMisuse,
            "options->size is not the size of the struct: set it to sizeof the struct, other fields to 0"};
  }
  bool is_known = given->size <= sizeof(T) + kLaterBytesMax;
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(T); is_known && i < given->size; ++i) is_known = bytes[i] == 0;
  if (!is_known) {
    return {Code::kMisuse,
            "the options have a field that this libtern_c does not know, because it is older than the program, or size "
            "is wrong"};
  }
  std::memcpy(&options, given, std::min(given->size, sizeof(T)));
  return {};
}

template <class Value>
Value or_default(Value value, Value otherwise) {
  return value != 0 ? value : otherwise;
}
inline Duration or_default(int64_t ns, Duration otherwise) { return ns != 0 ? Duration(ns) : otherwise; }

inline constexpr Status kNegative(Code::kMisuse, "a duration is negative: it must be 0 ns to TERN_FOREVER");
inline constexpr Status kReserved(Code::kMisuse, "a reserved field of the options is not 0: set it to 0");

inline Status check_congestion_control(int32_t wanted) {
  if (wanted >= TERN_CC_DEFAULT && wanted <= TERN_CC_DCTCP) return {};
  return {Code::kMisuse, "options->congestion_control must be one of TERN_CC_*"};
}

}  // namespace tern::c
