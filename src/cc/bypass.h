// The steps that an uncongested session leaves out (the paper's section 5.2.2). They are configured at compile time
// only. Benchmarks measure the worth of each step with the library compiled once more with other values
// (microbench/CMakeLists.txt). No other program defines these macros.
#pragma once

#ifndef TERN_BYPASS_UPDATE
#define TERN_BYPASS_UPDATE true
#endif
#ifndef TERN_BYPASS_PACING
#define TERN_BYPASS_PACING true
#endif
#ifndef TERN_BYPASS_TIMESTAMPS
#define TERN_BYPASS_TIMESTAMPS true
#endif

namespace tern::cc {

struct Bypasses {
  bool update;              ///< a low sample of an uncongested session does not reach its controller
  bool pacing;              ///< an uncongested session's packets leave at once
  bool batched_timestamps;  ///< one clock read and one sample a burst
};
inline constexpr Bypasses kBypasses{TERN_BYPASS_UPDATE, TERN_BYPASS_PACING, TERN_BYPASS_TIMESTAMPS};

}  // namespace tern::cc
