// Messages and snapshots are little-endian integers and bytes, back to back. This file takes names from
// apps/common/messages.h. No state.
#pragma once

#include "../common/messages.h"

namespace replicated {

using programs::as_bytes;
using programs::as_text;
using programs::Bytes;
using programs::Reader;
using programs::Writer;

}  // namespace replicated
