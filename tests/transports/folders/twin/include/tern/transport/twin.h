// UDP under another name, for tests/transports/check.
#pragma once

#include <string_view>

#include <tern/transport/udp.h>

namespace tern {
namespace transport {
class TwinImpl;
}

struct Twin {
  static constexpr std::string_view kName = "twin";
  using Impl = transport::TwinImpl;
  using Options = Udp::Options;
};

}  // namespace tern
