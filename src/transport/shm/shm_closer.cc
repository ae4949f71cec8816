#include "transport/shm/shm_closer.h"

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <new>
#include <thread>
#include <utility>

#include "base/process.h"
#include "base/threads.h"

namespace tern::transport::shm {

namespace {

/// The closes of one process that run. Never destroyed, because their threads may outlive main(). A forked child, which
/// has no such threads, makes its own.
struct Closes {
  const uint32_t process = base::process_number();
  std::atomic<size_t> running{0};
};
std::atomic<Closes*> closes{nullptr};

bool is_of_this_process(const Closes* known) { return known != nullptr && known->process == base::process_number(); }

Closes* find_or_make() {
  Closes* known = closes.load(std::memory_order_acquire);
  if (is_of_this_process(known)) return known;
  auto* made = new (std::nothrow) Closes;
  if (made == nullptr || closes.compare_exchange_strong(known, made, std::memory_order_acq_rel)) return made;
  delete made;
  return known;
}

}  // namespace

size_t connections_to_close() {
  const Closes* known = closes.load(std::memory_order_acquire);
  return is_of_this_process(known) ? known->running.load(std::memory_order_relaxed) : 0;
}

void close_elsewhere(base::Descriptor connection) {
  if (!connection) return;
  ::shutdown(connection.get(), SHUT_RDWR);  // so that the other side need not wait for the close
  Closes* const its = find_or_make();
  if (its == nullptr) return;  // `connection` is closed here
  its->running++;
  std::thread thread;
  // One thread each, because any close may take for ever.
  const bool is_started = base::start_thread(thread, "tern-close", [its, closed = std::move(connection)]() mutable {
    closed.reset();
    its->running--;
  });
  if (is_started) return thread.detach();
  its->running--;  // start_thread() has closed the connection
}

}  // namespace tern::transport::shm
