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
  bool answer_at_once = true;  ///< where that needs no clock, an answer leaves as soon as its handler has returned
  bool common_case = true;     ///< one packet each way is tried first (rpc/fast_path.h)
  // tern's own, for many sessions:
  bool look_ahead = true;    ///< the sessions of a burst's packets, and of the calls that these begin, are prefetched
  bool rest_at_once = true;  ///< a session rests with its last answer, and is not looked at again
  // tern's own, for long messages over UDP:
  bool receive_in_place = true;  ///< a large packet that continues a message is received where it belongs

  friend bool operator==(const Shortcuts&, const Shortcuts&) = default;
};

}  // namespace tern::cc
