// Statuses whose text is made at run time: an address, a port or a size in it. For control events only.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>

#include <tern/detail/export.h>
#include <tern/status.h>

namespace tern::base {

/// So many different texts are kept in a process, for ever; a program mostly has a few.
inline constexpr size_t kStatusTextsMax = 1024;
inline constexpr size_t kStatusTextBytesMax = 400;

/// A Status whose text is `parts` in a row. `otherwise`, which must have static storage duration, is its text when the
/// row is longer than kStatusTextBytesMax, when kStatusTextsMax others are kept already, or when there is no memory.
/// Any thread.
TERN_API Status status_of(Code code, const char* otherwise, std::span<const std::string_view> parts) noexcept;
inline Status status_of(Code code, const char* otherwise, std::initializer_list<std::string_view> parts) noexcept {
  return status_of(code, otherwise, std::span(parts.begin(), parts.size()));
}

}  // namespace tern::base
