// The search for larger packets than those with which a session has opened (clause 7.7.9; RFC 8899, chapters 4 and 5).
// Session layer: pure values; time is an argument.
#pragma once

#include <cstdint>

#include "wire/payload_code.h"

namespace tern::session {

/// Probes one size after the other, from what the route's interface carries downwards, until one is answered. The
/// session works with its safe size meanwhile. Sizes are payload codes (wire/payload_code.h).
class SizeSearch {
 public:
  /// Probes of one size without an answer until a smaller one is tried (RFC 8899, MAX_PROBES).
  static constexpr uint8_t kProbesMax = 3;
  /// Time after which larger sizes than the one found are tried again.
  static constexpr uint64_t kRaiseNs = 60'000'000'000;

  /// `safe_bytes`: the payload with which the session has opened. `bytes_max`: the largest that the route may carry.
  void start(uint32_t safe_bytes, uint32_t bytes_max) {
    *this = SizeSearch();
    least_ = wire::code_of_payload(safe_bytes / 8 * 9);
    if (wire::payload_of_code(least_) < safe_bytes / 8 * 9) least_++;
    const uint8_t largest = wire::code_of_payload(bytes_max);
    if (largest >= least_) largest_ = largest;
  }
  /// A message of several packets begins, for which larger packets would be of use.
  void want() { is_wanted_ = largest_ != 0; }
  bool is_wanted() const { return is_wanted_; }

  /// The largest size that has passed and would still be of use; 0: none.
  uint8_t found() const { return found_; }
  /// The largest size of at most `bytes` that passes and is of use; 0: none.
  uint8_t found_within(uint64_t bytes) const {
    if (wire::payload_of_code(found_) <= bytes) return found_;
    const uint8_t code = wire::code_of_payload(static_cast<uint32_t>(bytes));
    return code >= least_ ? code : 0;
  }
  /// Payload of the next probe. Only after a look() that was true, and until the answer.
  uint32_t probe_bytes() const { return wire::payload_of_code(probed_); }

  /// Only when is_wanted(). True: a probe must be sent now.
  bool look(uint64_t now_ns, uint64_t gap_ns) {
    if (now_ns < next_ns_) return false;
    const bool was_at_rest = now_ns - next_ns_ >= kRaiseNs;  // there were no long messages in the middle of a search
    if (probed_ == 0 || was_at_rest) {
      probed_ = largest_;
      probes_ = 0;
    } else if (probes_ == kProbesMax) {
      probed_ = below(probed_);
      probes_ = 0;
    }
    if (probed_ <= found_) {
      end(now_ns);
      return false;
    }
    probes_++;
    next_ns_ = now_ns + gap_ns;
    return true;
  }
  /// Time of the next look().
  uint64_t next_ns() const { return next_ns_; }
  void on_sent(uint64_t number) { number_ = number; }
  /// Takes an answer of `payload_bytes` to packet `number`. True: it is the answer to the newest probe.
  bool confirm(uint64_t number, uint32_t payload_bytes, uint64_t now_ns) {
    if (probed_ == 0 || number != number_ || payload_bytes != probe_bytes()) return false;
    found_ = probed_;
    end(now_ns);
    return true;
  }
  /// Packets of the size that was found do not pass any more. Smaller ones are probed.
  void fall(uint64_t now_ns) {
    probed_ = below(found_);
    probes_ = 0;
    found_ = 0;
    next_ns_ = 0;
    is_wanted_ = true;
    if (probed_ == 0) end(now_ns);
  }

 private:
  /// The sizes of networks with jumbo frames of 9000 B, and of 1500 B.
  static constexpr uint8_t kCommon[] = {wire::code_of_payload(9000 - 48 - 24), wire::code_of_payload(1500 - 48 - 24)};

  uint8_t below(uint8_t code) const {
    for (const uint8_t common : kCommon) {
      if (common < code && common >= least_) return common;
    }
    return 0;
  }
  void end(uint64_t now_ns) {
    probed_ = 0;
    is_wanted_ = false;
    next_ns_ = found_ == largest_ ? UINT64_MAX : now_ns + kRaiseNs;
  }

  uint64_t next_ns_ = 0;
  uint64_t number_ = 0;  ///< of the newest probe
  uint8_t least_ = 0;    ///< smallest size that is worth a search: an eighth above the safe size
  uint8_t largest_ = 0;  ///< 0: no larger size is worth a search
  uint8_t found_ = 0;
  uint8_t probed_ = 0;  ///< 0: no search is under way
  uint8_t probes_ = 0;  ///< probes of that size
  bool is_wanted_ = false;
};

}  // namespace tern::session
