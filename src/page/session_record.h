// A session's figures on a page, and back. Page layer; any thread, no state.
#pragma once

#include <algorithm>
#include <cstdint>

#include <tern/duration.h>
#include <tern/session.h>

#include "page/layout.h"

namespace tern::page {

/// A page may hold any number: those that are no Duration become the longest one.
inline Duration duration_of(uint64_t ns) { return Duration(static_cast<int64_t>(std::min<uint64_t>(ns, INT64_MAX))); }

SessionRecord record_of(uint64_t name, const SessionInfo& info);
/// All but `peer`, which would refer to the record, and `status`, of which a record has none.
SessionInfo info_of(const SessionRecord& record);

}  // namespace tern::page
