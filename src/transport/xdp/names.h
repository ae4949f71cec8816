// How texts name this transport. Transport layer: plain values.
#pragma once

#include "ethernet/names.h"

namespace tern::transport::xdp {

inline constexpr ethernet::Names kNames{"xdp", "Xdp"};

}  // namespace tern::transport::xdp
