// Writes rings to files: one on demand, and those of the whole process when a CHECK fails. Trace layer; any thread.
#pragma once

#include <string>

#include <tern/status.h>

#include "trace/ring.h"

namespace tern::trace {

/// Writes the records of `ring`, which may grow meanwhile, to a new file of mode 0600, or over an old file. An old file
/// of this user gets mode 0600, too. kUnavailable: it cannot be written, or is not a regular file; the message has the
/// reason, but not the path. Throws std::bad_alloc.
Status dump(const Ring& ring, const std::string& path);

/// Like dump(), to a new file "tern-trace-PID-N" in `folder`, where N is the first free number. A failure leaves no
/// file; its message has the folder.
Status dump_into(const Ring& ring, const std::string& folder);

// Ring calls these. While the process has a ring, a failed CHECK writes all rings to "tern-trace-PID-N" in the working
// directory, or in /tmp if that fails, where N is the first free number. It allocates nothing, and leaves no part of a
// file.
void add_ring(Ring& ring);
void remove_ring(Ring& ring);

}  // namespace tern::trace
