// Whether memory may become transparent huge pages.
#pragma once

#include <tern/detail/export.h>

namespace tern::base {

/// False if the administrator has turned transparent huge pages off (Linux, admin-guide/mm/transhuge.rst). `is_shared`:
/// for the pages of a memfd, otherwise for private memory. Reads a file each time.
TERN_API bool may_become_transparent(bool is_shared);

}  // namespace tern::base
