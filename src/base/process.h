// Tells a process from the children that it forks. Base layer.
#pragma once

#include <cstddef>
#include <cstdint>

#include <tern/detail/export.h>

namespace tern::base {

/// Returns whole pages of zeros, which a forked child finds as zeros again (madvise(2), MADV_WIPEONFORK). They stay
/// until the end of the process. Null: Linux is older than 4.14, or there is no memory.
void* map_wiped_at_fork(size_t bytes) noexcept;

/// A child that fork(2) makes has another number than its parent: what was made under the parent's number is the
/// parent's. It is a load, where getpid(2) is a system call. Any thread.
TERN_API uint32_t process_number() noexcept;

}  // namespace tern::base
