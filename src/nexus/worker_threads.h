// The worker pool of real programs.
#pragma once

#include <cstddef>
#include <memory>

#include <tern/environment.h>
#include <tern/status.h>

namespace tern::nexus {

/// Starts `threads` threads that run tasks in the order of submission. The pool refuses a task while `queue_limit`
/// tasks wait. Its destructor waits for the submitted tasks. kUnavailable: the system has no threads. kNoMemory.
Result<std::unique_ptr<WorkerPool>> start_worker_threads(size_t threads, size_t queue_limit);

}  // namespace tern::nexus
