// The identity of a page's process, and whether the process lives. Page layer; any thread, no state.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include <tern/page.h>

#include "page/layout.h"

namespace tern::page {

/// The identity of this process. Fields that the system does not report are 0.
ProcessName own_process();
/// Whether that process, the writer of a page of this user, lives. kUnknown: /proc does not tell.
PageLife life_of(const ProcessName& process);
/// The name of this process, as the kernel has it.
std::array<char, 32> own_program();

/// The beginning of `text` that fits, zero-terminated.
template <size_t kBytes>
void set_text(std::array<char, kBytes>& field, std::string_view text) {
  field = {};
  std::copy_n(text.begin(), std::min(text.size(), kBytes - 1), field.begin());
}

}  // namespace tern::page
