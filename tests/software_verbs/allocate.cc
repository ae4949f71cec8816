// The provider's own operator new, which exports.map hides. Tests that count allocations, or make them fail, replace
// the program's: they mean tern's, and not a NIC's driver's.
#include <cstddef>
#include <cstdlib>
#include <new>

void* operator new(size_t bytes) {
  if (void* memory = std::malloc(bytes != 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
