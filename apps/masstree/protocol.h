// The index server's messages. A parser returns nullopt for a message that is too short, too long or breaks a limit.
// Standard library only; no state.
//
//   request                                     answer
//   kAbout              (nothing)               keys:u64 seed:u64 endpoints:u32     the index's first content
//   kGet                key:u64                 value:u64, or nothing               nothing: no such key
//   kPut                key:u64 value:u64       (nothing)
//   kScan, kScanHere    after:u64 limit:u32     count:u32 last:u64 sum:u64          of the keys greater than `after`
//   kNothing, kNothingHere   (nothing)          (nothing)
//
// Every endpoint serves every key. kScan and kNothing run in a worker, the others in the event loop. `last` is the
// greatest key that the scan has visited (`after`, if it visited no key). `sum` is the sum of the values, modulo 2^64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "../common/messages.h"

namespace ordered {

enum RequestType : uint16_t { kAbout = 1, kGet, kPut, kScan, kScanHere, kNothing, kNothingHere };

/// Why a request was refused: the app_code of kRefused. Code 0 means that the library refused it for the server.
enum Refusal : uint16_t {
  kIsFull = 1,  ///< nothing was changed: the index has its maximum number of keys
  kMalformed,   ///< not one of the messages above
  kNoMemory,    ///< there is no buffer for the answer
};

constexpr uint32_t kScanLimitMax = 1024;  ///< keys; the limit is low because an event loop that scans does nothing else
                                          ///< in that time
constexpr size_t kRequestBytesMax = 16;
constexpr size_t kAnswerBytesMax = 20;

struct About {
  uint64_t keys;
  uint64_t seed;
  uint32_t endpoints;
};
struct PutRequest {
  uint64_t key;
  uint64_t value;
};
struct ScanRequest {
  uint64_t after;
  uint32_t limit;
};
struct ScanAnswer {
  uint32_t count;
  uint64_t last;
  uint64_t sum;
};

constexpr size_t kAboutBytes = 20, kPutBytes = 16, kScanBytes = 12, kScanAnswerBytes = 20;

inline std::optional<About> parse_about(programs::Bytes message) {
  About about = {};
  programs::Reader reader(message);
  const bool is_whole = reader.read(about.keys) && reader.read(about.seed) && reader.read(about.endpoints);
  if (!is_whole || !reader.rest().empty() || about.endpoints < 1 || about.endpoints > UINT16_MAX) return std::nullopt;
  return about;
}
inline std::optional<PutRequest> parse_put(programs::Bytes message) {
  PutRequest put = {};
  programs::Reader reader(message);
  if (!reader.read(put.key) || !reader.read(put.value) || !reader.rest().empty()) return std::nullopt;
  return put;
}
inline std::optional<ScanRequest> parse_scan(programs::Bytes message) {
  ScanRequest scan = {};
  programs::Reader reader(message);
  if (!reader.read(scan.after) || !reader.read(scan.limit) || !reader.rest().empty()) return std::nullopt;
  if (scan.limit < 1 || scan.limit > kScanLimitMax) return std::nullopt;
  return scan;
}
inline std::optional<ScanAnswer> parse_scan_answer(programs::Bytes message) {
  ScanAnswer answer = {};
  programs::Reader reader(message);
  const bool is_whole = reader.read(answer.count) && reader.read(answer.last) && reader.read(answer.sum);
  if (!is_whole || !reader.rest().empty() || answer.count > kScanLimitMax) return std::nullopt;
  return answer;
}

}  // namespace ordered
