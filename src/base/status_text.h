// Statuses whose text is built at run time, with an address, a port or a size in it. For control events only.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>

#include <tern/detail/export.h>
#include <tern/status.h>

namespace tern::base {

/// A process keeps at most this many different texts, for ever. Most programs have a few.
inline constexpr size_t kStatusTextsMax = 1024;
inline constexpr size_t kStatusTextBytesMax = 400;

/// Returns a Status whose text is the concatenation of `parts`. The text is `otherwise` instead if the concatenation is
/// longer than kStatusTextBytesMax, if kStatusTextsMax other texts are kept already, or if there is no memory.
/// `otherwise` must have static storage duration. Any thread.
TERN_API Status status_of(Code code, const char* otherwise, std::span<const std::string_view> parts) noexcept;
inline Status status_of(Code code, const char* otherwise, std::initializer_list<std::string_view> parts) noexcept {
  return status_of(code, otherwise, std::span(parts.begin(), parts.size()));
}

}  // namespace tern::base
