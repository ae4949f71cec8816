// The provider's own operator new, which exports.map hides. Some tests replace the program's operator new to count
// allocations, or to make them fail. Those tests are about tern, and not about a NIC's driver. A NIC sends and receives
// without memory of the process. If the process has no memory left, the provider uses a reserve, because no exception
// may pass the C functions of libibverbs.
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

constexpr size_t kAlignment = 64;
alignas(kAlignment) std::byte reserve[2 << 20];  // used once: memory that is freed to the reserve is not used again
std::atomic<size_t> used{0};

bool is_of_reserve(const void* memory) { return memory >= reserve && memory < reserve + sizeof(reserve); }

}  // namespace

void* operator new(size_t bytes) {
  if (void* memory = std::malloc(bytes != 0 ? bytes : 1)) return memory;
  const size_t rounded = (bytes + kAlignment) & ~(kAlignment - 1);
  if (rounded > bytes && rounded <= sizeof(reserve)) {
    const size_t at = used.fetch_add(rounded, std::memory_order_relaxed);
    if (at + rounded <= sizeof(reserve)) return reserve + at;
  }
  throw std::bad_alloc();
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void operator delete(void* memory) noexcept {
  if (!is_of_reserve(memory)) std::free(memory);
}
void operator delete[](void* memory) noexcept { operator delete(memory); }
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }
void operator delete[](void* memory, size_t) noexcept { operator delete(memory); }
