#include "base/process.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

namespace tern::base {

void* map_wiped_at_fork(size_t bytes) noexcept {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  bytes = (bytes + page - 1) / page * page;
  void* const pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return nullptr;
  if (madvise(pages, bytes, MADV_WIPEONFORK) == 0) return pages;
  munmap(pages, bytes);
  return nullptr;
}

uint32_t process_number() noexcept {
  using Mark = std::atomic<uint32_t>;
  static_assert(Mark::is_always_lock_free);
  static Mark* const mark = static_cast<Mark*>(map_wiped_at_fork(sizeof(Mark)));
  if (mark == nullptr) return static_cast<uint32_t>(getpid());
  uint32_t number = mark->load(std::memory_order_relaxed);
  if (number != 0) [[likely]]
    return number;
  static std::atomic<uint32_t> last{0};  // a child's copy goes on from its parent's
  const uint32_t next = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return mark->compare_exchange_strong(number, next, std::memory_order_relaxed) ? next : number;
}

}  // namespace tern::base
