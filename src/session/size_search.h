// The search for larger packets than those with which a session has opened (clause 7.7.9; RFC 8899, chapters 4 and 5).
// Session layer: pure values; time is an argument. Sizes are payload codes (wire/payload_code.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "wire/payload_code.h"

namespace tern::session {

/// What a session knows of the larger packets that its path carries. A session at rest keeps it, so it is small.
struct KnownSizes {
  uint8_t largest = 0;    ///< the largest size to try; 0: no search
  uint8_t found = 0;      ///< the largest size that has passed; 0: none
  uint8_t failed_at = 0;  ///< minute in which `largest` did not pass (SizeSearch::minute_of()); 0: never

  /// `safe_bytes`: the payload with which the session opens. `bytes_max`: the largest that the route may carry.
  static KnownSizes of(uint32_t safe_bytes, uint32_t bytes_max) {
    const uint8_t code = wire::code_of_payload(bytes_max);
    return {.largest = is_of_use(code, safe_bytes) ? code : uint8_t{0}};
  }
  /// True if the size is at least an eighth larger than the safe one.
  static bool is_of_use(uint8_t code, uint32_t safe_bytes) {
    return wire::payload_of_code(code) >= safe_bytes + safe_bytes / 8;
  }
  /// The largest size of at most `bytes` that is known to pass, and is of use; 0: none.
  uint8_t found_within(uint64_t bytes, uint32_t safe_bytes) const {
    if (wire::payload_of_code(found) <= bytes) return found;
    const uint8_t code = wire::code_of_payload(static_cast<uint32_t>(bytes));
    return is_of_use(code, safe_bytes) ? code : 0;
  }
};

/// Tries sizes one at a time, from large to small, and stops at the first that is answered. The first is the largest
/// that the route's interface can send. The session works with its safe size meanwhile. An answer to a larger size may
/// come after the search has gone on or ended, because the server had no CPU for a while. It counts, too.
class SizeSearch {
 public:
  /// After this many probes without an answer the next smaller size is tried (RFC 8899, MAX_PROBES).
  static constexpr uint8_t kProbesMax = 3;

  /// The clock's minute, 1 to 255; it wraps. A search that has not found the largest size is not repeated in the same
  /// minute.
  static uint8_t minute_of(uint64_t now_ns) { return static_cast<uint8_t>(now_ns / 60'000'000'000 % 255 + 1); }

  /// Called when a message of several packets begins.
  void want(const KnownSizes& known) { is_wanted_ = known.found != known.largest; }
  bool is_wanted() const { return is_wanted_; }
  /// Payload of the next probe. Only after a look() that was true, and until the answer.
  uint32_t probe_bytes() const { return wire::payload_of_code(probed_); }

  /// Only when is_wanted(). True: a probe must be sent now.
  bool look(KnownSizes& known, uint32_t safe_bytes, uint64_t now_ns, uint64_t gap_ns) {
    if (now_ns < next_ns_) return false;
    if (probed_ == 0) {
      if (known.failed_at != minute_of(now_ns)) start(known.largest);
    } else if (probes_ == kProbesMax) {
      begin(below(probed_, safe_bytes));
    }
    if (probed_ <= known.found) {
      end(known, now_ns);
      return false;
    }
    probes_++;
    next_ns_ = now_ns + gap_ns;
    return true;
  }
  /// Time of the next look().
  uint64_t next_ns() const { return next_ns_; }
  void on_sent(uint64_t number) {
    first_number_ = std::min(first_number_, number);
    first_of_size_ = std::min(first_of_size_, number);
  }
  /// Takes an answer of `payload_bytes` to packet `number`. True: it is the answer to a probe of the newest search, and
  /// of a larger size than those that were found.
  bool confirm(KnownSizes& known, uint64_t number, uint32_t payload_bytes, uint64_t now_ns) {
    const uint8_t code = wire::code_of_payload(payload_bytes);
    if (wire::payload_of_code(code) != payload_bytes || code > known.largest || code <= known.found) return false;
    const bool is_of_last_size = code == last_size_ && number >= first_of_size_;
    const bool is_of_earlier_size =
        code > last_size_ && is_tried(known, code) && number >= first_number_ && number < first_of_size_;
    if (!is_of_last_size && !is_of_earlier_size) return false;
    known.found = code;
    end(known, now_ns);
    return true;
  }
  /// Called when packets of the size that was found do not pass any more. Begins to try smaller sizes.
  void fall(KnownSizes& known, uint32_t safe_bytes, uint64_t now_ns) {
    start(below(known.found, safe_bytes));
    known.found = 0;
    next_ns_ = 0;
    is_wanted_ = true;
    if (probed_ == 0) end(known, now_ns);
  }

 private:
  /// MTUs of 9000 and 1500 B, less the headers of IPv6 and UDP (48 B) and of a packet (24 B).
  static constexpr uint8_t kCommon[] = {wire::code_of_payload(9000 - 48 - 24), wire::code_of_payload(1500 - 48 - 24)};

  static uint8_t below(uint8_t code, uint32_t safe_bytes) {
    for (const uint8_t common : kCommon) {
      if (common < code && KnownSizes::is_of_use(common, safe_bytes)) return common;
    }
    return 0;
  }
  /// True for the sizes that searches try.
  static bool is_tried(const KnownSizes& known, uint8_t code) {
    return code == known.largest || std::find(std::begin(kCommon), std::end(kCommon), code) != std::end(kCommon);
  }
  /// Begins a search with this size. 0: there is nothing to search, but answers to earlier probes do not count any
  /// more.
  void start(uint8_t size) {
    first_number_ = first_of_size_ = UINT64_MAX;
    begin(size);
  }
  void begin(uint8_t size) {
    probed_ = size;
    probes_ = 0;
    if (size == 0) return;
    last_size_ = size;
    first_of_size_ = UINT64_MAX;
  }
  void end(KnownSizes& known, uint64_t now_ns) {
    begin(0);
    is_wanted_ = false;
    if (known.found != known.largest) known.failed_at = minute_of(now_ns);
  }

  uint64_t next_ns_ = 0;
  uint64_t first_number_ = UINT64_MAX;   ///< of the search's first probe; UINT64_MAX: none has left
  uint64_t first_of_size_ = UINT64_MAX;  ///< of the first probe of `last_size_`; UINT64_MAX: none has left
  uint8_t last_size_ = 0;                ///< size that the search has tried last
  uint8_t probed_ = 0;                   ///< 0: no search is under way
  uint8_t probes_ = 0;                   ///< probes of that size
  bool is_wanted_ = false;
};

}  // namespace tern::session
