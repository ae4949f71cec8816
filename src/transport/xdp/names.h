// The transport's name in texts, and sentences that several of its files use. Transport layer: plain values.
#pragma once

#include <tern/status.h>

#include "ethernet/names.h"

namespace tern::transport::xdp {

inline constexpr ethernet::Names kNames{"xdp", "Xdp"};

inline constexpr Status kNoMemory(Code::kNoMemory, "xdp: no memory for an endpoint: free some, or use fewer endpoints");
inline constexpr Status kNoDescriptors(Code::kUnavailable,
                                       "xdp: no file descriptors are left: raise the limit (ulimit -n)");

}  // namespace tern::transport::xdp
