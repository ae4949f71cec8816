// Marks free message memory for AddressSanitizer, which then reports a use after release. Does nothing in builds
// without AddressSanitizer. Memory layer.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define TERN_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TERN_ASAN 1
#endif
#endif

#ifdef TERN_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace tern::memory {

inline void poison([[maybe_unused]] const void* at, [[maybe_unused]] size_t bytes) {
#ifdef TERN_ASAN
  __asan_poison_memory_region(at, bytes);
#endif
}
inline void unpoison([[maybe_unused]] const void* at, [[maybe_unused]] size_t bytes) {
#ifdef TERN_ASAN
  __asan_unpoison_memory_region(at, bytes);
#endif
}

}  // namespace tern::memory
