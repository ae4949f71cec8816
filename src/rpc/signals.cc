// Endpoints that signals stop. A signal handler may run in any thread that does not block signals, and at any time.

#include <tern/endpoint.h>
#include <tern/signals.h>

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
constinit std::atomic<int> running{0};  // signal handlers that may be using an endpoint
constinit std::array<std::atomic<int64_t>, kSignals.size()> first_ns{};  // when the first of a kind came; 0: none has
constinit base::Mutex registration;                                      // guards the variables below
constinit size_t count GUARDED_BY(registration) = 0;                     // number of endpoints
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
  if (sigaction(signal, nullptr, &current) == 0 && current.sa_handler == stop_all) std::signal(signal, SIG_DFL);
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
  running.fetch_sub(1, std::memory_order_release);
  if (!has_own || is_further(signal)) pass_on(signal);
  errno = error;
}

void restore(size_t signals) REQUIRES(registration) {
  for (size_t i = 0; i < signals; i++) sigaction(kSignals[i], &previous[i], nullptr);
}

bool install() REQUIRES(registration) {
  struct sigaction action = {};
  action.sa_handler = stop_all;
  action.sa_flags = SA_RESTART;
  for (auto& first : first_ns) first.store(0);
  for (size_t i = 0; i < kSignals.size(); i++) {
    if (sigaction(kSignals[i], &action, &previous[i]) == 0) continue;
    restore(i);
    return false;
  }
  return true;
}

/// Removes the endpoint of a place. No signal handler uses it any longer.
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
    if (count == 0 && !install()) {
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
  if (--count == 0) restore(kSignals.size());  // first, as stop_on_signals() installs last
  forget(place);
}

}  // namespace tern
