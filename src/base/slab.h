// Memory for many objects of one size. Large slabs are made of huge pages if the system has any, because tens of
// thousands of sessions that are visited at random otherwise cost a TLB miss for each of their cache lines.
#pragma once

#include <cstddef>

#include <tern/detail/export.h>

#include "base/try.h"

namespace tern::base {

inline constexpr size_t kHugeSlabBytes = 2u << 20;

/// Returns at least `bytes` of memory, aligned to 64 bytes. A slab of kHugeSlabBytes or more is a whole number of huge
/// pages, and is aligned to one. Pages that are not touched take no memory. Null: there is no memory.
TERN_API void* map_slab(size_t bytes);
/// As map_slab(kHugeSlabBytes), for a slab that fills slowly: until make_huge() its memory is small pages, so that the
/// part without objects takes none.
TERN_API void* map_slab_in_small_pages();
/// Makes the slab a huge page, because it is full. Without effect if the system has none, or the administrator
/// has turned them off.
TERN_API void make_huge(void* slab);
/// `bytes` must be the value that was passed to map_slab().
TERN_API void unmap_slab(void* slab, size_t bytes);

/// Gives the pages that lie wholly within these bytes back to the system. Private memory only, whose content the caller
/// has no use for. Its next use takes zeroed pages.
TERN_API void forget_pages(void* begin, size_t bytes);

/// try_reserve() of a vector that is mostly short. malloc may return memory that others have used before, which would
/// take pages although the vector has not been long.
template <class Vector>
[[nodiscard]] bool try_reserve_untouched(Vector& vector, size_t count) {
  const size_t before = vector.capacity();
  if (!try_reserve(vector, count)) return false;
  if (vector.capacity() == before) return true;
  auto* const begin = reinterpret_cast<char*>(vector.data() + vector.size());
  forget_pages(begin, static_cast<size_t>(reinterpret_cast<char*>(vector.data() + vector.capacity()) - begin));
  return true;
}

}  // namespace tern::base
