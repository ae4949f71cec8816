// Memory for many objects of one size. Large slabs are made of huge pages where the system has them to give: tens of
// thousands of sessions, visited at random, otherwise cost a TLB miss for each of their cache lines.
#pragma once

#include <cstddef>

#include <tern/detail/export.h>

namespace tern::base {

inline constexpr size_t kHugeSlabBytes = 2u << 20;

/// At least `bytes`, 64-byte aligned; a whole number of huge pages, aligned so, if that many bytes or more. Pages that
/// are not touched take no memory. Null: there is none.
TERN_API void* map_slab(size_t bytes);
/// With the same `bytes`.
TERN_API void unmap_slab(void* slab, size_t bytes);

}  // namespace tern::base
