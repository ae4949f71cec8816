// The names that error texts use for the transport. Ethernet layer: plain values.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>

#include <tern/status.h>

#include "base/check.h"
#include "base/status_text.h"

namespace tern::ethernet {

/// The names of a transport, such as {"mlx5", "Mlx5"}. Both have static storage duration.
struct Names {
  std::string_view transport;  ///< begins each text
  std::string_view type;       ///< the public type, whose Options a text may name
};

/// Returns a Status whose text is "TRANSPORT: " and the parts (at most 15 parts); see base::status_of().
inline Status status_of(const Names& names, Code code, const char* otherwise,
                        std::initializer_list<std::string_view> parts) noexcept {
  std::array<std::string_view, 17> all = {names.transport, ": "};
  CHECK(parts.size(), <=, all.size() - 2);
  std::copy(parts.begin(), parts.end(), all.begin() + 2);
  return base::status_of(code, otherwise, std::span(all).first(parts.size() + 2));
}

}  // namespace tern::ethernet
