// Two ways to tell threads apart.
#pragma once

#include <cstdint>

#include <tern/detail/export.h>

namespace tern::base {

/// The number of no thread.
inline constexpr uint64_t kNoThreadId = UINT64_MAX;

/// The calling thread's number; 0: it has none yet. Only for thread_id() and is_this_thread(). The TLS model is
/// initial-exec, because an access is then a load relative to the thread pointer, without a call.
extern TERN_API constinit thread_local uint64_t own_thread_id __attribute__((tls_model("initial-exec")));

/// The number of the calling thread. No other thread of the process ever gets the same one.
TERN_API uint64_t thread_id();
/// True if `id` is the calling thread's thread_id().
inline bool is_this_thread(uint64_t id) { return id == own_thread_id; }

#if defined(__x86_64__)
/// The thread pointer, which identifies the calling thread while the thread lives. A later thread may get the same one.
/// To compare it takes one instruction less than to compare thread_id(). The ABI of thread-local storage stores it in
/// the word to which it points.
inline const void* thread_name() {
  const void* name;
  asm("mov %%fs:0, %0" : "=r"(name));
  return name;
}
/// True if the calling thread's thread_name() is `name`.
inline bool is_this_thread(const void* name) {
  bool is_equal;
  asm("cmp %%fs:0, %[name]" : "=@cce"(is_equal) : [name] "r"(name));
  return is_equal;
}
#else
inline const void* thread_name() { return &own_thread_id; }
inline bool is_this_thread(const void* name) { return name == thread_name(); }
#endif

}  // namespace tern::base
