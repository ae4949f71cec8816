// Shortcuts of the common case, which leave out work that is not needed there. By default all shortcuts are on. Only
// microbench/shortcuts switches some of them off, to measure the worth of each. Plain values.
#pragma once

namespace tern::cc {

struct Shortcuts {
  // Section 5.2.2 of the paper, for sessions without congestion:
  bool batched_timestamps = true;  ///< one clock read and one sample per burst, instead of one per packet
  bool controller_bypass = true;   ///< a low sample does not reach the controller
  bool pacer_bypass = true;        ///< packets leave at once, without a departure time
  // Sections 4.2.3 and 4.3 of the paper:
  bool preallocated_responses = true;  ///< a response of one packet lies in the slot's buffer
  bool zero_copy_requests = true;      ///< a handler reads a request of one packet in the transport's memory
  // tern's own:
  bool common_case = true;  ///< one packet each way is tried first (rpc/fast_path.h)

  friend bool operator==(const Shortcuts&, const Shortcuts&) = default;
};

}  // namespace tern::cc
