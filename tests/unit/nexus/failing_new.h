// A global operator new that tests can make fail. Include it in only one file of an executable. For tests.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace tern::nexus::test {

/// Counts the allocations of this thread while `is_on`. Every `every`-th one fails, and the one with the number `once`.
struct Shortage {
  bool is_on = false;
  size_t count = 0, every = 0, once = 0, failed = 0;

  bool fails() {
    if (!is_on) return false;
    count++;
    const bool does = count == once || (every != 0 && count % every == 0);
    failed += does;
    return does;
  }
};
inline thread_local Shortage shortage;

}  // namespace tern::nexus::test

[[gnu::noinline]] void* operator new(size_t size) {
  if (tern::nexus::test::shortage.fails()) throw std::bad_alloc();
  if (void* memory = std::malloc(size); memory != nullptr) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new[](size_t size) { return operator new(size); }
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return tern::nexus::test::shortage.fails() ? nullptr : std::malloc(size);
}
[[gnu::noinline]] void* operator new[](size_t size, const std::nothrow_t& tag) noexcept {
  return operator new(size, tag);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
