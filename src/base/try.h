// Containers that grow without throwing, for growth that a peer can cause (docs/using.md, Promises). Base layer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <stdexcept>

namespace tern::base {

/// Runs `grow`, which allocates. Returns false if there is no memory. The container then has the state that `grow`
/// guarantees for an exception.
template <class F>
[[nodiscard]] bool try_grow(F&& grow) noexcept {
  try {
    grow();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  } catch (const std::length_error&) {
    return false;
  }
}

/// Makes the capacity at least `count` elements, so that `count` elements fit without an allocation. Grows as
/// push_back() does. Returns false if there is no memory.
template <class Vector>
[[nodiscard]] bool try_reserve(Vector& vector, size_t count) noexcept {
  if (vector.capacity() >= count) return true;
  return try_grow([&] { vector.reserve(std::max(count, 2 * vector.capacity())); }) ||
         try_grow([&] { vector.reserve(count); });
}

}  // namespace tern::base
