// Queue pairs: creation, states, destruction.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "mlx5.h"

namespace software_verbs {
namespace {

QueuePair& pair_of(ibv_qp* qp) { return static_cast<QueuePair&>(*qp); }
CompletionQueue& queue_of(ibv_cq* cq) { return static_cast<CompletionQueue&>(*cq); }

struct Transition {
  ibv_qp_state from, to;
  int required, optional;
};

/// The transitions of UD queue pairs: InfiniBand Architecture Specification, volume 1, table 91. SQD is left out.
constexpr std::array kTransitions = {
    Transition{IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, 0},
    Transition{IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY},
    Transition{IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
    Transition{IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    Transition{IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    Transition{IBV_QPS_SQE, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
};

/// The transitions of raw packet queue pairs: the kernel's table in drivers/infiniband/core/verbs.c.
constexpr std::array kRawTransitions = {
    Transition{IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PORT, 0},
    Transition{IBV_QPS_INIT, IBV_QPS_RTR, 0, 0},
    Transition{IBV_QPS_RTR, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE},
    Transition{IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE},
    Transition{IBV_QPS_SQE, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE},
};

bool is_allowed(std::span<const Transition> transitions, ibv_qp_state from, ibv_qp_state to, int mask) {
  mask &= ~IBV_QP_STATE;
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return mask == 0;
  for (const Transition& transition : transitions) {
    if (transition.from != from || transition.to != to) continue;
    return (mask & transition.required) == transition.required &&
           (mask & ~(transition.required | transition.optional)) == 0;
  }
  return false;
}

/// Returns an error code, as ibv_create_qp() does.
int check_capacities(const Context& context, const ibv_qp_init_attr& init) {
  const Settings& settings = context.settings;
  const bool is_raw = context.port != nullptr;
  if (init.qp_type != (is_raw ? IBV_QPT_RAW_PACKET : IBV_QPT_UD) || init.srq != nullptr) return EOPNOTSUPP;
  if (is_raw && !settings.may_send_raw) return EPERM;
  if (is_raw ? init.cap.max_recv_wr > 0 : !settings.has_ud) return EOPNOTSUPP;
  if (init.send_cq == nullptr || init.recv_cq == nullptr) return EINVAL;
  const ibv_qp_cap& cap = init.cap;
  const bool fits = cap.max_send_wr <= settings.max_qp_wr && cap.max_recv_wr <= settings.max_qp_wr &&
                    cap.max_send_sge <= settings.max_sge && cap.max_recv_sge <= settings.max_sge &&
                    cap.max_inline_data <= settings.max_inline;
  return fits ? 0 : EINVAL;
}

/// The size of mlx5's send descriptors: a control segment, an Ethernet segment and the data segments, of 16 B each, in
/// blocks of 64 B.
uint64_t sent_descriptor_bytes(const QueuePair& queue_pair) {
  const ibv_qp_cap& cap = queue_pair.init.cap;
  const uint64_t data_bytes = std::max<uint64_t>(cap.max_send_sge * 16, cap.max_inline_data + 4);
  return std::bit_ceil(std::max(cap.max_send_wr, 1u) * ((32 + data_bytes + 63) / 64 * 64));
}

void leave_queues(QueuePair& queue_pair) {
  CompletionQueue& send_queue = queue_of(queue_pair.send_cq);
  CompletionQueue& receive_queue = queue_of(queue_pair.recv_cq);
  remove_completions(send_queue, queue_pair);
  remove_completions(receive_queue, queue_pair);
  std::erase(send_queue.senders, &queue_pair);
  if (queue_pair.qp_type == IBV_QPT_RAW_PACKET) {
    std::erase(receive_queue.senders, &queue_pair);
    uncount(totals.descriptor_bytes, sent_descriptor_bytes(queue_pair));
    uncount(totals.doorbell_bytes, kDoorbellRecordBytes);
    close_sender(*context_of(&queue_pair).port);
    return;
  }
  std::erase(receive_queue.receivers, &queue_pair);
  Inbox::close(queue_pair.qp_num);
  if (receive_queue.armed != Armed::kNo)
    unwatch(receive_queue, queue_pair);  // needed because a forked child may hold
                                         // it open
  close(queue_pair.socket);
}

void reset(QueuePair& queue_pair) {
  remove_completions(queue_of(queue_pair.send_cq), queue_pair);
  remove_completions(queue_of(queue_pair.recv_cq), queue_pair);
  queue_pair.sends.head = queue_pair.sends.done = queue_pair.sends.tail = 0;
  queue_pair.receives.head = queue_pair.receives.done = queue_pair.receives.tail = 0;
}

}  // namespace

void end_queue_pair(QueuePair& queue_pair) {
  if (queue_pair.state == IBV_QPS_ERR) return;
  queue_pair.state = IBV_QPS_ERR;
  flush(queue_pair, true);
}

}  // namespace software_verbs

using namespace software_verbs;

SOFTWARE_VERBS_EXPORT ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  if (const int error = injected_error(Verb::kCreateQp)) return fail(error);
  Context& context = context_of(pd);
  const std::lock_guard lock(context.mutex);
  if (context.is_dead) return fail(EIO);
  if (const int error = check_capacities(context, *init)) return fail(error);
  auto* queue_pair = new QueuePair;
  queue_pair->context = pd->context;
  queue_pair->qp_context = init->qp_context;
  queue_pair->pd = pd;
  queue_pair->send_cq = init->send_cq;
  queue_pair->recv_cq = init->recv_cq;
  queue_pair->srq = nullptr;
  queue_pair->state = IBV_QPS_RESET;
  queue_pair->qp_type = init->qp_type;
  queue_pair->events_completed = 0;
  queue_pair->init = *init;
  const bool is_raw = context.port != nullptr;
  if (!(is_raw ? open_sender(*context.port) : open_socket(*queue_pair))) {
    const int error = errno;
    delete queue_pair;
    return fail(error);
  }
  pthread_mutex_init(&queue_pair->mutex, nullptr);
  pthread_cond_init(&queue_pair->cond, nullptr);
  queue_pair->sends.create(init->cap.max_send_wr, init->cap.max_send_sge);
  queue_pair->receives.create(init->cap.max_recv_wr, init->cap.max_recv_sge);
  context.queue_pairs.push_back(queue_pair);
  queue_of(init->send_cq).senders.push_back(queue_pair);
  if (is_raw) {
    queue_pair->qp_num = queue_pair->handle = next_number();
    queue_of(init->recv_cq).senders.push_back(queue_pair);
    count(totals.descriptor_bytes, sent_descriptor_bytes(*queue_pair));
    count(totals.doorbell_bytes, kDoorbellRecordBytes);
  } else {
    queue_of(init->recv_cq).receivers.push_back(queue_pair);
    if (queue_of(init->recv_cq).armed != Armed::kNo) watch(queue_of(init->recv_cq), *queue_pair);
  }
  context.objects++;
  use_domain(pd);
  count(totals.queue_pairs);
  return queue_pair;
}

SOFTWARE_VERBS_EXPORT int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  if (const int error = injected_error(Verb::kModifyQp)) return error;
  Context& context = context_of(qp);
  const std::lock_guard lock(context.mutex);
  if (context.is_dead) return EIO;
  QueuePair& queue_pair = pair_of(qp);
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attr->qp_state : qp->state;
  const size_t pkeys = context.settings.is_infiniband ? context.settings.pkeys.size() : 1;
  if (queue_pair.table != nullptr) return ENOSYS;  // like the kernel's mlx5
  const bool is_raw = qp->qp_type == IBV_QPT_RAW_PACKET;
  const auto transitions =
      is_raw ? std::span<const Transition>(kRawTransitions) : std::span<const Transition>(kTransitions);
  if (!is_allowed(transitions, qp->state, to, mask)) return EINVAL;
  if ((mask & IBV_QP_CUR_STATE) != 0 && attr->cur_qp_state != qp->state) return EINVAL;
  if ((mask & IBV_QP_PORT) != 0 && attr->port_num != kPort) return EINVAL;
  if ((mask & IBV_QP_PKEY_INDEX) != 0 && attr->pkey_index >= pkeys) return EINVAL;
  if (!is_raw) receive_arrivals(queue_pair);  // handles them in the state in which they arrived
  if ((mask & IBV_QP_PKEY_INDEX) != 0) queue_pair.pkey_index = attr->pkey_index;
  if ((mask & IBV_QP_QKEY) != 0) queue_pair.qkey = attr->qkey;
  if ((mask & IBV_QP_SQ_PSN) != 0) queue_pair.sq_psn = attr->sq_psn;
  if (to == IBV_QPS_ERR) end_queue_pair(queue_pair);
  if (to == IBV_QPS_RESET) reset(queue_pair);
  qp->state = to;
  return 0;
}

SOFTWARE_VERBS_EXPORT int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attr, int, ibv_qp_init_attr* init) {
  const std::lock_guard lock(context_of(qp).mutex);
  const QueuePair& queue_pair = pair_of(qp);
  memset(attr, 0, sizeof(*attr));
  attr->qp_state = attr->cur_qp_state = qp->state;
  attr->qkey = queue_pair.qkey;
  attr->sq_psn = queue_pair.sq_psn;
  attr->pkey_index = queue_pair.pkey_index;
  attr->port_num = kPort;
  attr->cap = queue_pair.init.cap;
  *init = queue_pair.init;
  return 0;
}

SOFTWARE_VERBS_EXPORT int ibv_destroy_qp(ibv_qp* qp) {
  QueuePair& queue_pair = pair_of(qp);
  Context& context = context_of(qp);
  check_process(context);
  uint32_t events;
  {
    const std::lock_guard lock(context.mutex);
    if (queue_pair.flows > 0) return EBUSY;
    std::erase(context.queue_pairs, &queue_pair);
    if (queue_pair.table != nullptr)
      destroy_hashing_pair(queue_pair);
    else
      leave_queues(queue_pair);
    forget_async(context, qp);
    events = queue_pair.async_events_reported;
  }
  pthread_mutex_lock(&qp->mutex);
  while (qp->events_completed != events) pthread_cond_wait(&qp->cond, &qp->mutex);
  pthread_mutex_unlock(&qp->mutex);
  pthread_cond_destroy(&qp->cond);
  pthread_mutex_destroy(&qp->mutex);
  leave_domain(qp->pd);
  context.objects--;
  delete &queue_pair;
  uncount(totals.queue_pairs);
  return 0;
}
