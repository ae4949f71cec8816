// Reads a page, which another process may be writing, or which may be an invalid file. Page layer; any thread, no
// state.
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

/// Reads bytes of the page from an offset on, and returns the number of bytes read.
using ReadAt = std::function<size_t(uint64_t, std::span<std::byte>)>;
/// Reads from a file, which must outlive the result. The file is not mapped, because a mapped file that becomes shorter
/// ends its reader by SIGBUS.
ReadAt read_from(const base::Descriptor& file);
/// Opens a regular file of this user for reading. Returns no descriptor on failure; errno has the reason, for
/// base::reason_not_opened().
base::Descriptor open_page(const std::string& path);

/// Reads the header and checks it, including all offsets that follow from its sizes. kUnavailable: it is not a page.
Status read_header(const ReadAt& read, Header& header);
/// Reads a page. Does not set `life` and `file`. kUnavailable: it is not a page. May throw std::bad_alloc.
TERN_API Status read_page(const ReadAt& read, Header& header, Page& page);

/// The common beginning of the paths of this user's pages in shared memory.
std::string shared_memory_prefix();

}  // namespace tern::page
