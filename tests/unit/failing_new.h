// Replaces operator new and delete of a test's executable, so that the test can make allocations fail. One source file
// of the executable includes it and defines allocation_fails().
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace tern::test {

/// Called before each allocation in its thread. True: the allocation fails.
bool allocation_fails() noexcept;

[[gnu::noinline]] inline void* allocate(size_t bytes, size_t alignment) noexcept {
  if (allocation_fails()) return nullptr;
  void* at = nullptr;
  return ::posix_memalign(&at, std::max(alignment, sizeof(void*)), std::max<size_t>(bytes, 1)) == 0 ? at : nullptr;
}
inline void* allocate_or_throw(size_t bytes, size_t alignment) {
  if (void* at = allocate(bytes, alignment); at != nullptr) return at;
  throw std::bad_alloc();
}
inline constexpr size_t kAlignment = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace tern::test

void* operator new(size_t bytes) { return tern::test::allocate_or_throw(bytes, tern::test::kAlignment); }
void* operator new[](size_t bytes) { return tern::test::allocate_or_throw(bytes, tern::test::kAlignment); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return tern::test::allocate_or_throw(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return tern::test::allocate_or_throw(bytes, static_cast<size_t>(alignment));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return tern::test::allocate(bytes, tern::test::kAlignment);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return tern::test::allocate(bytes, tern::test::kAlignment);
}
void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return tern::test::allocate(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return tern::test::allocate(bytes, static_cast<size_t>(alignment));
}
// Not inlined, because the compiler would warn about free() of memory from `new`.
[[gnu::noinline]] void operator delete(void* at) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete[](void* at) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete(void* at, size_t) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete[](void* at, size_t) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete(void* at, std::align_val_t) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete[](void* at, std::align_val_t) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete(void* at, size_t, std::align_val_t) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete[](void* at, size_t, std::align_val_t) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete(void* at, const std::nothrow_t&) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete[](void* at, const std::nothrow_t&) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete(void* at, std::align_val_t, const std::nothrow_t&) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete[](void* at, std::align_val_t, const std::nothrow_t&) noexcept { std::free(at); }
