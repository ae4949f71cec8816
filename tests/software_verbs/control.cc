// Faults on demand, held completions and counters.
#include "control.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <string_view>

#include "mlx5.h"

namespace software_verbs {

constinit Totals totals{};
std::atomic<Hold> holding{Hold::kNothing};
std::atomic<bool> are_receives_held{false};

namespace {

constexpr size_t kVerbs = static_cast<size_t>(Verb::kCount);
constexpr std::array<std::string_view, kVerbs> kVerbNames = {
    "ibv_get_device_list", "ibv_open_device",     "ibv_query_device", "ibv_query_port",      "ibv_query_gid",
    "ibv_query_pkey",      "ibv_alloc_pd",        "ibv_reg_mr",       "ibv_create_ah",       "ibv_create_comp_channel",
    "ibv_create_cq",       "ibv_req_notify_cq",   "ibv_get_cq_event", "ibv_poll_cq",         "ibv_create_qp",
    "ibv_modify_qp",       "ibv_post_send",       "ibv_post_recv",    "ibv_get_async_event", "ibv_query_device_ex",
    "ibv_create_cq_ex",    "ibv_create_qp_ex",    "mlx5dv_create_wq", "ibv_modify_wq",       "ibv_create_rwq_ind_table",
    "ibv_create_flow",     "mlx5dv_query_device", "mlx5dv_init_obj",
};

struct Fault {
  uint64_t skipped = 0;
  uint64_t left = 0;
  int error = 0;
};

struct Faults {
  std::mutex mutex;  // locked after the contexts' mutexes
  std::array<Fault, kVerbs> of_verbs;
  uint64_t drop_period = 0;
  uint64_t sent = 0;
  uint64_t drops_left = 0;
  uint64_t corruptions_left = 0;
  size_t corrupted_byte = 0;
  bool are_handles_blocked = false;
  uint64_t blocked = 0;
  std::condition_variable unblocked;
};
std::atomic<bool> has_verb_faults{false};
std::atomic<bool> has_packet_faults{false};

Faults& faults() {
  static auto* const all = new Faults;  // not destroyed, because threads may still wait there at exit
  return *all;
}

/// Calls visit(queue pair, its context) for one queue pair or, if the number is 0, for each, with the context's mutex
/// held.
template <class Visit>
void for_each_queue_pair(uint32_t qp_num, Visit visit) {
  struct Call {
    uint32_t qp_num;
    Visit& visit;
  } call{qp_num, visit};
  for_each_context(
      -1,
      [](Context& context, void* argument) {
        auto& the_call = *static_cast<Call*>(argument);
        const std::lock_guard lock(context.mutex);
        for (QueuePair* queue_pair : context.queue_pairs)
          if (the_call.qp_num == 0 || the_call.qp_num == queue_pair->qp_num) the_call.visit(*queue_pair, context);
      },
      &call);
}

void release(uint32_t qp_num, uint64_t limit) {
  for_each_queue_pair(qp_num, [limit](QueuePair& queue_pair, Context&) { complete_sends(queue_pair, limit); });
}

void hold(Hold what) {
  holding.store(what);
  if (what == Hold::kNothing) release(0, UINT64_MAX);
}

uint64_t held(uint32_t qp_num) {
  uint64_t requests = 0;
  for_each_queue_pair(qp_num, [&requests](QueuePair& queue_pair, Context&) {
    requests += queue_pair.sends.head - queue_pair.sends.done;
  });
  return requests;
}

bool fail_calls(const char* verb, uint64_t skipped, uint64_t calls, int error) {
  const auto* const name = std::find(kVerbNames.begin(), kVerbNames.end(), verb);
  if (name == kVerbNames.end()) return false;
  const std::lock_guard lock(faults().mutex);
  faults().of_verbs[static_cast<size_t>(name - kVerbNames.begin())] = {skipped, calls, error};
  has_verb_faults.store(true);
  return true;
}

void block_address_handles(bool blocked) {
  const std::lock_guard lock(faults().mutex);
  faults().are_handles_blocked = blocked;
  faults().unblocked.notify_all();
}

uint64_t blocked_address_handles() {
  const std::lock_guard lock(faults().mutex);
  return faults().blocked;
}

void raise_event(int index, int event_type) {
  for (int i = 0; i < kDevicesMax; i++) {
    if (index >= 0 && index != i) continue;
    if (event_type == IBV_EVENT_PORT_ERR) device(i).port_state.store(IBV_PORT_DOWN);
    if (event_type == IBV_EVENT_PORT_ACTIVE)  // an mlx5 device follows its interface again
      device(i).port_state.store(i < kDevices ? IBV_PORT_ACTIVE : -1);
    if (event_type == IBV_EVENT_LID_CHANGE) device(i).lid_change.fetch_add(0x10);
    if (event_type == IBV_EVENT_GID_CHANGE) device(i).gid_address.store(read_settings(i).address.s_addr);
  }
  for_each_context(
      index,
      [](Context& context, void* argument) {
        ibv_async_event event{};
        event.event_type = *static_cast<const ibv_event_type*>(argument);
        event.element.port_num = kPort;
        const std::lock_guard lock(context.mutex);
        if (event.event_type == IBV_EVENT_DEVICE_FATAL) context.is_dead = true;
        raise_async(context, event);
      },
      &event_type);
}

void fail_queue_pair(uint32_t qp_num, bool raises_event) {
  for_each_queue_pair(qp_num, [raises_event](QueuePair& queue_pair, Context& context) {
    end_queue_pair(queue_pair);
    if (queue_pair.table != nullptr) {
      const std::lock_guard lock(network().mutex);
      end_receive_queue(*queue_pair.table->queue, MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
    }
    if (!raises_event) return;
    ibv_async_event event{};
    event.event_type = IBV_EVENT_QP_FATAL;
    event.element.qp = &queue_pair;
    raise_async(context, event);
  });
}

void overflow_completions(uint32_t qp_num) {
  for_each_queue_pair(qp_num, [](QueuePair& queue_pair, Context&) {
    if (queue_pair.recv_cq != nullptr) overflow(static_cast<CompletionQueue&>(*queue_pair.recv_cq));
  });
}

template <class Visit>
void for_each_receive_queue(Visit visit) {
  const std::lock_guard lock(network().mutex);
  for (const Port* port : network().ports)
    for (ReceiveQueue* queue : port->queues) visit(*queue);
}

void release_receives(uint64_t limit) {
  for_each_receive_queue([limit](ReceiveQueue& queue) { release_completions(queue, limit); });
}

void hold_receives(bool are_held) {
  are_receives_held.store(are_held);
  if (!are_held) release_receives(UINT64_MAX);
}

uint64_t held_receives() {
  uint64_t completions = 0;
  for_each_receive_queue([&completions](ReceiveQueue& queue) { completions += queue.ring().held.size(); });
  return completions;
}

void fail_receive_queues(uint8_t syndrome) {
  for_each_receive_queue([syndrome](ReceiveQueue& queue) { end_receive_queue(queue, syndrome); });
}

void drop_packets(uint64_t period) {
  const std::lock_guard lock(faults().mutex);
  faults().drop_period = period;
  has_packet_faults.store(true);
}

void drop_next(uint64_t packets) {
  const std::lock_guard lock(faults().mutex);
  faults().drops_left = packets;
  has_packet_faults.store(true);
}

void corrupt_next(uint64_t packets, size_t offset) {
  const std::lock_guard lock(faults().mutex);
  faults().corruptions_left = packets;
  faults().corrupted_byte = offset;
  has_packet_faults.store(true);
}

size_t list_queue_pairs(uint32_t* qp_nums, size_t capacity) {
  size_t found = 0;
  for_each_queue_pair(0, [&](QueuePair& queue_pair, Context&) {
    if (found < capacity) qp_nums[found] = queue_pair.qp_num;
    found++;
  });
  return found;
}

void read_counters(Counters* counters) {
  static_assert(sizeof(Counters) == sizeof(Totals));
  for_each_receive_queue(read_doorbell);
  std::array<uint64_t, sizeof(Totals) / sizeof(uint64_t)> values;
  const auto* from = reinterpret_cast<const std::atomic<uint64_t>*>(&totals);
  for (size_t i = 0; i < values.size(); i++) values[i] = from[i].load(std::memory_order_relaxed);
  memcpy(counters, values.data(), sizeof(*counters));
}

void reset() {
  {
    const std::lock_guard lock(faults().mutex);
    faults().of_verbs = {};
    faults().drop_period = faults().drops_left = faults().corruptions_left = 0;
    has_verb_faults.store(false);
    has_packet_faults.store(false);
  }
  block_address_handles(false);
  hold(Hold::kNothing);
  hold_receives(false);
  for (int i = 0; i < kDevicesMax; i++) {
    device(i).port_state.store(-1);
    device(i).lid_change.store(0);
    device(i).gid_address.store(0);
  }
  for (auto* total = &totals.send_calls; total != &totals.registered_bytes; total++) total->store(0);
}

constexpr Control kControl = {
    reset,
    read_counters,
    hold,
    release,
    held,
    fail_calls,
    block_address_handles,
    blocked_address_handles,
    raise_event,
    fail_queue_pair,
    overflow_completions,
    hold_receives,
    release_receives,
    held_receives,
    fail_receive_queues,
    inject_frame,
    drop_packets,
    drop_next,
    corrupt_next,
    inject_packet,
    list_queue_pairs,
};

}  // namespace

int injected_error(Verb verb) {
  if (!has_verb_faults.load(std::memory_order_relaxed)) return 0;
  const std::lock_guard lock(faults().mutex);
  Fault& fault = faults().of_verbs[static_cast<size_t>(verb)];
  if (fault.left == 0) return 0;
  if (fault.skipped > 0) {
    fault.skipped--;
    return 0;
  }
  fault.left--;
  return fault.error;
}

bool is_packet_dropped() {
  if (!has_packet_faults.load(std::memory_order_relaxed)) return false;
  const std::lock_guard lock(faults().mutex);
  if (faults().drops_left > 0) {
    faults().drops_left--;
    return true;
  }
  return faults().drop_period != 0 && ++faults().sent % faults().drop_period == 0;
}

size_t corrupted_byte() {
  if (!has_packet_faults.load(std::memory_order_relaxed)) return SIZE_MAX;
  const std::lock_guard lock(faults().mutex);
  if (faults().corruptions_left == 0) return SIZE_MAX;
  faults().corruptions_left--;
  return faults().corrupted_byte;
}

void wait_while_blocked() {
  Faults& all = faults();
  std::unique_lock lock(all.mutex);
  all.blocked++;
  all.unblocked.wait(lock, [&all] { return !all.are_handles_blocked; });
  all.blocked--;
}

}  // namespace software_verbs

SOFTWARE_VERBS_EXPORT const software_verbs::Control* software_verbs_control() { return &software_verbs::kControl; }
