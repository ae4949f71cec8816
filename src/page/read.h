// Reading a page that somebody else may be writing, or that is none. Page layer; any thread, no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include <tern/detail/export.h>
#include <tern/page.h>

#include "base/descriptor.h"
#include "page/layout.h"

namespace tern::page {

/// Reads bytes of the page from an offset on, and returns how many there were.
using ReadAt = std::function<size_t(uint64_t, std::span<std::byte>)>;
/// Of a file, which must outlive the result. It is read and not mapped, because a mapped file that becomes shorter ends
/// its reader by SIGBUS.
ReadAt read_from(const base::Descriptor& file);
/// A regular file of this user, for reading. None: errno says why.
base::Descriptor open_page(const std::string& path);

/// Reads and checks the header: every offset that its sizes give lies where it should. kUnavailable: it is no page.
Status read_header(const ReadAt& read, Header& header);
/// Reads a page, its header first. `life` and `file` are left as they are. kUnavailable: it is no page. May throw
/// std::bad_alloc.
TERN_API Status read_page(const ReadAt& read, Header& header, Page& page);

/// What the paths of this user's pages in shared memory begin with.
std::string shared_memory_prefix();

}  // namespace tern::page
