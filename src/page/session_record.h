// Conversion between a session's figures and its record on a page. Page layer; any thread, no state.
#pragma once

#include <algorithm>
#include <cstdint>

#include <tern/duration.h>
#include <tern/session.h>

#include "page/layout.h"

namespace tern::page {

/// A page may contain any number: numbers above Duration::max() become Duration::max().
inline Duration duration_of(uint64_t ns) { return Duration(static_cast<int64_t>(std::min<uint64_t>(ns, INT64_MAX))); }

SessionRecord record_of(uint64_t name, const SessionInfo& info);
/// Sets all fields except `peer`, which would refer to the record, and `status`, which a record does not have.
SessionInfo info_of(const SessionRecord& record);

}  // namespace tern::page
