// Random bytes of the system. Base layer.
#pragma once

#include <cstddef>

#include <tern/detail/export.h>
#include <tern/status.h>

namespace tern::base {

inline constexpr Status kNoRandom(
    Code::kUnavailable, "the system gives no random numbers: allow getrandom(2) or /dev/urandom in the sandbox");

/// Fills `to` with random bytes: by getrandom(2), or from /dev/urandom where a sandbox refuses that. `bytes`: at most
/// 256, which come whole. False: both are refused. Any thread.
[[nodiscard]] TERN_API bool fill_random(void* to, size_t bytes) noexcept;

}  // namespace tern::base
