#include "base/thread_id.h"

#include <atomic>

namespace tern::base {

constinit thread_local uint64_t own_thread_id = 0;

uint64_t thread_id() {
  static constinit std::atomic<uint64_t> next{1};
  if (own_thread_id == 0) own_thread_id = next.fetch_add(1, std::memory_order_relaxed);
  return own_thread_id;
}

}  // namespace tern::base
