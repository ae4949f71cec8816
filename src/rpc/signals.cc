// Endpoints that signals stop. A signal handler may run in any thread that does not block signals, and at any time.

#include <tern/endpoint.h>
#include <tern/signals.h>

#include <unistd.h>

#include <csignal>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <thread>

#include "base/process.h"
#include "base/thread_safety.h"

namespace tern {

namespace {

constexpr size_t kEndpointsMax = 64;
constexpr std::array kSignals = {SIGINT, SIGTERM};

struct Place {
  std::atomic<Endpoint*> endpoint{nullptr};
  std::atomic<uint32_t> process{0};  ///< process_number() of stop_on_signals()
};

// The variables are constant-initialized. A signal handler reads only atomic, lock-free ones.
constinit std::array<Place, kEndpointsMax> places{};
constinit std::atomic<int> running{0};                                   // signal handlers that are running
constinit std::array<std::atomic<int64_t>, kSignals.size()> first_ns{};  // when the first of a kind came; 0: none has
constinit base::Mutex registration;                                      // guards the variables below
constinit uint32_t owner GUARDED_BY(registration) = 0;                   // process_number() of the process of `count`
constinit size_t count GUARDED_BY(registration) = 0;                     // number of its endpoints
constinit bool is_installed GUARDED_BY(registration) = false;            // a forked child inherits the handlers
constinit std::array<struct sigaction, kSignals.size()> previous GUARDED_BY(registration){};
static_assert(std::atomic<Endpoint*>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void stop_all(int signal);

/// True if a signal of this kind came more than kApartNs ago. timeout(1) sends each signal twice at a time: to the
/// process, and to its group.
bool is_further(int signal) {
  constexpr int64_t kApartNs = 1'000'000'000;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t now_ns = now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
  int64_t first = 0;
  const bool is_first = first_ns[signal == kSignals[0] ? 0 : 1].compare_exchange_strong(first, now_ns);
  return !is_first && now_ns - first > kApartNs;
}

/// Lets the signal do what it does without stop_all(), once this handler has returned.
void pass_on(int signal) {
  struct sigaction current = {};
  if (sigaction(signal, nullptr, &current) == 0 && current.sa_handler == stop_all) {
    if (getpid() == 1) _exit(128 + signal);  // the first process of a container, for which default actions do nothing
    std::signal(signal, SIG_DFL);
  }
  raise(signal);
}

/// Stops the endpoints of this process. A further signal, and one in a forked child that has none of its own, does what
/// it does by default.
void stop_all(int signal) {
  const int error = errno;
  bool has_own = false;
  running.fetch_add(1, std::memory_order_seq_cst);
  for (const Place& place : places) {
    Endpoint* endpoint = place.endpoint.load(std::memory_order_seq_cst);
    if (endpoint == nullptr || place.process.load(std::memory_order_relaxed) != base::process_number()) continue;
    has_own = true;
    endpoint->stop();
  }
  if (!has_own || is_further(signal)) pass_on(signal);
  running.fetch_sub(1, std::memory_order_release);
  errno = error;
}

void restore(size_t signals) REQUIRES(registration) {
  for (size_t i = 0; i < signals; i++) sigaction(kSignals[i], &previous[i], nullptr);
  is_installed = false;
}

/// Without effect for the handlers of an earlier endpoint, or of the parent process.
bool install() REQUIRES(registration) {
  if (owner != base::process_number()) count = 0;
  owner = base::process_number();
  if (count == 0) {
    for (auto& first : first_ns) first.store(0);
  }
  if (is_installed) return true;
  struct sigaction action = {};
  action.sa_handler = stop_all;
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kSignals.size(); i++) {
    if (sigaction(kSignals[i], &action, &previous[i]) == 0) continue;
    restore(i);
    return false;
  }
  is_installed = true;
  return true;
}

/// Removes the endpoint of a place. No signal handler that may have seen it is running any longer.
void forget(uint32_t place) {
  places[place].endpoint.store(nullptr, std::memory_order_seq_cst);
  while (running.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
}

}  // namespace

Result<SignalStop> stop_on_signals(Endpoint& endpoint) {
  const base::MutexLock lock(registration);
  for (uint32_t place = 0; place < kEndpointsMax; place++) {
    if (places[place].endpoint.load(std::memory_order_relaxed) != nullptr) continue;
    // A signal that comes once the handler is installed must find the endpoint: it would do nothing but raise the
    // signal.
    places[place].process.store(base::process_number(), std::memory_order_relaxed);
    places[place].endpoint.store(&endpoint, std::memory_order_seq_cst);
    if (!install()) {
      forget(place);
      return Status(Code::kUnavailable, "the system does not accept a handler for SIGINT and SIGTERM");
    }
    count++;
    return SignalStop(place);
  }
  return Status(Code::kQueueFull, "signals stop 64 endpoints already: let one of those stop this one");
}

void SignalStop::release(uint32_t place) {
  const base::MutexLock lock(registration);
  const bool is_own = places[place].process.load(std::memory_order_relaxed) == base::process_number();
  if (is_own && --count == 0) restore(kSignals.size());  // first, as stop_on_signals() installs last
  forget(place);
}

}  // namespace tern
