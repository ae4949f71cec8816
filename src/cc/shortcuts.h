// What the library leaves out of the common case because it is not needed there. All of it is left out; only
// microbench/shortcuts switches some of it on again, to measure what each shortcut is worth. Plain values.
#pragma once

namespace tern::cc {

struct Shortcuts {
  // The paper's section 5.2.2, for sessions without congestion:
  bool batched_timestamps = true;  ///< one clock read and one sample a burst, in place of one a packet
  bool controller_bypass = true;   ///< a low sample does not reach the controller
  bool pacer_bypass = true;        ///< packets leave at once, without a departure time
  // Its sections 4.2.3 and 4.3:
  bool preallocated_responses = true;  ///< a response of one packet lies in the slot's buffer
  bool zero_copy_requests = true;      ///< a handler reads a request of one packet where the transport has it
  // Ours:
  bool common_case = true;  ///< one packet each way is tried first (rpc/fast_path.h)
};

}  // namespace tern::cc
