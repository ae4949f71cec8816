// tern_endpoint_*(): the loop, timers, posted functions, counters.
#include <tern/counters.h>
#include <tern/endpoint.h>
#include <tern/tern.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "c/convert.h"
#include "c/handles.h"

namespace tern::c {
namespace {

/// The counters' names in the order of for_each_counter().
constexpr const char* kCounterNames[] = {
#define TERN_COUNTER(name, what) #name,
#define TERN_TRANSPORT_COUNTER(name, what) "transport." #name,
#define TERN_FRAME_DROP(reason, what) "transport.dropped_frames_" #reason,
#define TERN_FAULT_COUNTER(name, what) "faults." #name,
#define TERN_CONTROLLER_COUNTER(name, what) "controller." #name,
#define TERN_MANAGEMENT_COUNTER(name, what) "management." #name,
#define TERN_MANAGEMENT_DROP(reason, what) "management.dropped_" #reason,
#define TERN_NETWORK_COUNTER(name, what) "network." #name,
#include <tern/detail/counters.inc>
};
static_assert(std::size(kCounterNames) == kCounters);

/// Counts a call of the endpoint's loop while it lasts. The library refuses nested calls, and those of other threads.
class LoopCall {
 public:
  explicit LoopCall(tern_endpoint* endpoint) : calls_(endpoint->loop_calls) {
    calls_.fetch_add(1, std::memory_order_relaxed);
  }
  LoopCall(const LoopCall&) = delete;
  LoopCall& operator=(const LoopCall&) = delete;
  ~LoopCall() { calls_.fetch_sub(1, std::memory_order_release); }

 private:
  std::atomic<uint32_t>& calls_;
};

/// Returns ok if the endpoint has a loop to run.
Status check_loop(const tern_endpoint* endpoint) {
  if (Status status = check(endpoint); !status.ok()) return status;
  if (endpoint->rpc == nullptr)
    return {Code::kMisuse, "the endpoint is being destroyed, and its loop cannot run any more"};
  return {};
}

}  // namespace
}  // namespace tern::c

using namespace tern::c;  // NOLINT(google-build-using-namespace): what follows are names of C

tern_status tern_endpoint_close(tern_endpoint* endpoint, int64_t drain_ns) noexcept {
  if (tern::Status status = check_loop(endpoint); !status.ok()) return to_c(status);
  if (drain_ns < 0) return to_c(kNegative);
  const LoopCall call(endpoint);
  return to_c(endpoint->rpc->close(tern::Duration(drain_ns)));
}

tern_status tern_endpoint_run(tern_endpoint* endpoint, int64_t duration_ns) noexcept {
  if (tern::Status status = check_loop(endpoint); !status.ok()) return to_c(status);
  if (duration_ns < 0) return to_c(kNegative);
  const LoopCall call(endpoint);
  return to_c(endpoint->rpc->run(tern::Duration(duration_ns)));
}

tern_status tern_endpoint_run_once(tern_endpoint* endpoint, size_t* packets) noexcept {
  if (packets != nullptr) *packets = 0;
  if (tern::Status status = check_loop(endpoint); !status.ok()) return to_c(status);
  const LoopCall call(endpoint);
  const auto handled = endpoint->rpc->run_once();
  if (handled.ok() && packets != nullptr) *packets = *handled;
  return to_c(handled.status());
}

tern_status tern_endpoint_stop(tern_endpoint* endpoint) noexcept {
  if (tern::Status status = check(endpoint); !status.ok()) return to_c(status);
  endpoint->endpoint->stop();
  return to_c({});
}

tern_status tern_endpoint_descriptor(tern_endpoint* endpoint, int* descriptor) noexcept {
  if (descriptor == nullptr) return misuse("descriptor is NULL: pass the address of a variable for the descriptor");
  *descriptor = -1;
  if (tern::Status status = check_loop(endpoint); !status.ok()) return to_c(status);
  const auto result = endpoint->rpc->descriptor();
  if (result.ok()) *descriptor = *result;
  return to_c(result.status());
}

tern_status tern_endpoint_next_due(tern_endpoint* endpoint, int64_t* due_ns) noexcept {
  if (due_ns == nullptr) return misuse("due_ns is NULL: pass the address of a variable for the time");
  *due_ns = TERN_FOREVER;
  if (tern::Status status = check_loop(endpoint); !status.ok()) return to_c(status);
  *due_ns = endpoint->rpc->next_due().count();
  return to_c({});
}

tern_status tern_endpoint_post(tern_endpoint* endpoint, tern_function function, void* context) noexcept {
  if (tern::Status status = check(endpoint); !status.ok()) return to_c(status);
  if (function == nullptr) return misuse("function is NULL: pass a function");
  return to_c(endpoint->endpoint->post([function, context] { function(context); }));
}

tern_status tern_endpoint_after(tern_endpoint* endpoint, int64_t delay_ns, tern_function function,
                                void* context) noexcept {
  return tern_timer_start(endpoint, delay_ns, function, context, nullptr);
}

tern_status tern_timer_start(tern_endpoint* endpoint, int64_t delay_ns, tern_function function, void* context,
                             tern_timer* timer) noexcept {
  if (timer != nullptr) *timer = {};
  if (tern::Status status = check(endpoint); !status.ok()) return to_c(status);
  if (function == nullptr) return misuse("function is NULL: pass a function");
  if (delay_ns < 0) return to_c(kNegative);
  const auto result = endpoint->endpoint->after(tern::Duration(delay_ns), [function, context] { function(context); });
  if (result.ok() && timer != nullptr) *timer = {result->value};
  return to_c(result.status());
}

tern_status tern_timer_cancel(tern_endpoint* endpoint, tern_timer timer) noexcept {
  if (tern::Status status = check(endpoint); !status.ok()) return to_c(status);
  return to_c(endpoint->endpoint->cancel_timer({timer.id}));
}

int64_t tern_endpoint_now(const tern_endpoint* endpoint) noexcept {
  return check(endpoint).ok() ? endpoint->endpoint->now().count() : 0;
}

tern_status tern_endpoint_counter(const tern_endpoint* endpoint, const char* name, uint64_t* value) noexcept {
  if (value == nullptr) return misuse("value is NULL: pass the address of a variable for the counter");
  *value = 0;
  if (tern::Status status = check(endpoint); !status.ok()) return to_c(status);
  if (name == nullptr) return misuse("name is NULL: tern_counter_name() lists the names");
  const auto* const found = std::find_if(std::begin(kCounterNames), std::end(kCounterNames),
                                         [name](const char* one) { return std::strcmp(one, name) == 0; });
  if (found == std::end(kCounterNames)) {
    return misuse("no counter has this name: tern_counter_name() lists the names");
  }
  auto left = std::distance(std::begin(kCounterNames), found);
  tern::for_each_counter(endpoint->endpoint->counters(), [&](const char*, const char*, const char*, uint64_t count) {
    if (left-- == 0) *value = count;
  });
  return to_c({});
}

const char* tern_counter_name(size_t index) noexcept {
  return index < std::size(kCounterNames) ? kCounterNames[index] : nullptr;
}

uint64_t tern_endpoint_link_bytes_per_sec(const tern_endpoint* endpoint) noexcept {
  return check(endpoint).ok() ? endpoint->endpoint->link_bytes_per_sec() : 0;
}
