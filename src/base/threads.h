// Threads of the library, and objects that a forked child must not destroy. Base layer.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstddef>
#include <memory>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include <tern/status.h>

namespace tern::base {

/// A T that is not destroyed in a forked child, where its destructor would wait for threads that do not exist.
template <class T>
class OfThisProcess {
 public:
  OfThisProcess() { std::construct_at(get()); }
  OfThisProcess(const OfThisProcess&) = delete;
  OfThisProcess& operator=(const OfThisProcess&) = delete;
  ~OfThisProcess() {
    if (is_here()) std::destroy_at(get());
  }
  bool is_here() const { return getpid() == pid_; }
  T* get() { return reinterpret_cast<T*>(memory_); }
  T& operator*() { return *get(); }
  T* operator->() { return get(); }
  const T* get() const { return reinterpret_cast<const T*>(memory_); }
  const T* operator->() const { return get(); }

 private:
  alignas(T) std::byte memory_[sizeof(T)];
  const pid_t pid_ = getpid();
};

/// Starts a thread that blocks all signals. Returns false if the system has no more threads, or no memory.
template <class F>
bool start_thread(std::thread& thread, const char* name, F body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = true;
  try {
    thread = std::thread(std::move(body));
    pthread_setname_np(thread.native_handle(), name);
  } catch (const std::system_error&) {
    started = false;
  } catch (const std::bad_alloc&) {
    started = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

inline constexpr Status kNoThread{Code::kUnavailable,
                                  "the system does not allow another thread; raise its limit (ulimit -u, cgroup "
                                  "pids.max) or that of memory (ulimit -v), or free memory"};

}  // namespace tern::base
