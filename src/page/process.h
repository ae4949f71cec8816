// Which process wrote a page, and whether it lives. Page layer; any thread, no state.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include <tern/page.h>

#include "page/layout.h"

namespace tern::page {

/// Of this process. Fields that the system does not tell are 0.
ProcessName own_process();
/// Whether that process lives; kUnknown: /proc says nothing of it here.
PageLife life_of(const ProcessName& process);
/// The name of this process, as the kernel has it.
std::array<char, 32> own_program();

/// As much of `text` as fits, with a zero behind.
template <size_t kBytes>
void set_text(std::array<char, kBytes>& field, std::string_view text) {
  field = {};
  std::copy_n(text.begin(), std::min(text.size(), kBytes - 1), field.begin());
}

}  // namespace tern::page
