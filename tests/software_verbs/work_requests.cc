// Work requests: posting, execution, completion, flush.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "mlx5.h"

namespace software_verbs {
namespace {

constexpr uint32_t kGarbage = 0xdeadbeef;  ///< written to the invalid fields of a failed completion

QueuePair& pair_of(ibv_qp* qp) { return static_cast<QueuePair&>(*qp); }
CompletionQueue& queue_of(ibv_cq* cq) { return static_cast<CompletionQueue&>(*cq); }
bool is_raw(const QueuePair& queue_pair) { return queue_pair.qp_type == IBV_QPT_RAW_PACKET; }

ibv_wc failed(uint64_t wr_id, ibv_wc_status status, uint32_t qp_num) {
  ibv_wc wc;
  memset(&wc, 0xee, sizeof(wc));
  wc.wr_id = wr_id;
  wc.status = status;
  wc.vendor_err = kGarbage;
  wc.qp_num = qp_num;
  return wc;
}

uint64_t length_of(const ibv_sge* sges, int sge_count) {
  uint64_t length = 0;
  for (int i = 0; i < sge_count; i++) length += sges[i].length;
  return length;
}

/// Returns an error code, as ibv_post_send() does.
int check_send(const QueuePair& queue_pair, const ibv_send_wr& wr) {
  if (queue_pair.state == IBV_QPS_RESET || queue_pair.state == IBV_QPS_INIT || queue_pair.state == IBV_QPS_RTR)
    return EINVAL;
  if (wr.opcode != IBV_WR_SEND && wr.opcode != IBV_WR_SEND_WITH_IMM) return EINVAL;
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > queue_pair.init.cap.max_send_sge) return EINVAL;
  if (is_raw(queue_pair)) {
    if (wr.opcode != IBV_WR_SEND || wr.num_sge < 1) return EINVAL;
    if ((wr.send_flags & IBV_SEND_IP_CSUM) != 0 && !context_of(&queue_pair).settings.has_send_checksums) return EINVAL;
  } else if (wr.wr.ud.ah == nullptr) {
    return EINVAL;
  }
  if ((wr.send_flags & IBV_SEND_INLINE) != 0 && length_of(wr.sg_list, wr.num_sge) > queue_pair.init.cap.max_inline_data)
    return EINVAL;
  return queue_pair.sends.is_full() ? ENOMEM : 0;
}

void queue_send(QueuePair& queue_pair, const ibv_send_wr& wr) {
  SendRequest& request = queue_pair.sends.at(queue_pair.sends.head++);
  request.wr_id = wr.wr_id;
  request.status = IBV_WC_SUCCESS;
  if (!is_raw(queue_pair)) {
    const auto& handle = static_cast<const AddressHandle&>(*wr.wr.ud.ah);
    request.handle = handle.handle;
    request.destination = handle.destination;
    request.attr = handle.attr;
    request.remote_qpn = wr.wr.ud.remote_qpn;
    request.remote_qkey = wr.wr.ud.remote_qkey;
    if (handle.pd != queue_pair.pd) request.status = IBV_WC_LOC_QP_OP_ERR;
  }
  request.has_immediate = wr.opcode == IBV_WR_SEND_WITH_IMM;
  request.immediate = request.has_immediate ? wr.imm_data : 0;
  request.is_signalled = queue_pair.init.sq_sig_all != 0 || (wr.send_flags & IBV_SEND_SIGNALED) != 0;
  request.is_solicited = (wr.send_flags & IBV_SEND_SOLICITED) != 0;
  request.is_inline = (wr.send_flags & IBV_SEND_INLINE) != 0;
  request.has_checksums = (wr.send_flags & IBV_SEND_IP_CSUM) != 0;
  request.is_executed = false;
  request.inline_bytes.clear();
  request.sge_count = request.is_inline ? 0 : static_cast<uint32_t>(wr.num_sge);
  for (int i = 0; i < wr.num_sge; i++) {
    const ibv_sge& sge = wr.sg_list[i];
    const auto* bytes = reinterpret_cast<const std::byte*>(sge.addr);
    if (request.is_inline)
      request.inline_bytes.insert(request.inline_bytes.end(), bytes, bytes + sge.length);
    else
      request.sges[static_cast<size_t>(i)] = sge;
  }
  count(totals.sends);
  if (request.is_signalled) count(totals.signalled_sends);
  if (request.is_inline) count(totals.inline_sends);
}

void execute(QueuePair& queue_pair, SendRequest& request) {
  const Context& context = context_of(&queue_pair);
  for (uint32_t i = 0; i < request.sge_count; i++)
    if (!may_access(context, queue_pair.pd, request.sges[i], 0)) request.status = IBV_WC_LOC_PROT_ERR;
  if (request.status == IBV_WC_SUCCESS) {
    if (holding.load(std::memory_order_relaxed) == Hold::kCompletions) request.checksum = checksum(request);
    if (is_raw(queue_pair))
      transmit_frame(queue_pair, request);
    else
      transmit(queue_pair, request);
  }
  request.is_executed = true;
}

/// Checks that the request's memory and address handle are unchanged, because they belong to the device until the
/// request completes.
void check_held(const QueuePair& queue_pair, const SendRequest& request) {
  const Context& context = context_of(&queue_pair);
  if (!is_raw(queue_pair) && !context.handles.contains(request.handle)) count(totals.address_handles_gone);
  for (uint32_t i = 0; i < request.sge_count; i++) {
    if (may_access(context, queue_pair.pd, request.sges[i], 0)) continue;
    count(totals.modified_sends);
    return;
  }
  if (checksum(request) != request.checksum) count(totals.modified_sends);
}

/// Completes the oldest request.
void complete_send(QueuePair& queue_pair) {
  SendRequest& request = queue_pair.sends.at(queue_pair.sends.done);
  const uint64_t position = queue_pair.sends.done++;
  if (request.status == IBV_WC_SUCCESS && !request.is_signalled) return;
  Completion completion{{}, &queue_pair, position, true};
  if (request.status == IBV_WC_SUCCESS) {
    completion.wc.wr_id = request.wr_id;
    completion.wc.opcode = IBV_WC_SEND;
    completion.wc.qp_num = queue_pair.qp_num;
  } else {
    completion.wc = failed(request.wr_id, request.status, queue_pair.qp_num);
  }
  const bool has_failed = request.status != IBV_WC_SUCCESS && request.status != IBV_WC_WR_FLUSH_ERR;
  complete(queue_of(queue_pair.send_cq), completion, false);
  if (!has_failed || queue_pair.state == IBV_QPS_ERR) return;
  if (context_of(&queue_pair).settings.ends_on_send_error) {
    end_queue_pair(queue_pair);
  } else {
    queue_pair.state = IBV_QPS_SQE;
    flush(queue_pair, false);
  }
}

}  // namespace

void complete_sends(QueuePair& queue_pair, uint64_t limit) {
  for (; limit > 0 && queue_pair.sends.has_pending(); limit--) {
    SendRequest& request = queue_pair.sends.at(queue_pair.sends.done);
    if (!request.is_executed)
      execute(queue_pair, request);
    else if (request.status == IBV_WC_SUCCESS)
      check_held(queue_pair, request);
    complete_send(queue_pair);
  }
}

void flush(QueuePair& queue_pair, bool with_receives) {
  while (queue_pair.sends.has_pending()) {
    queue_pair.sends.at(queue_pair.sends.done).status = IBV_WC_WR_FLUSH_ERR;
    complete_send(queue_pair);
  }
  while (with_receives && queue_pair.receives.has_pending()) {
    const uint64_t position = queue_pair.receives.done++;
    const uint64_t wr_id = queue_pair.receives.at(position).wr_id;
    complete(queue_of(queue_pair.recv_cq),
             {failed(wr_id, IBV_WC_WR_FLUSH_ERR, queue_pair.qp_num), &queue_pair, position, false}, false);
  }
}

void fail_receive(QueuePair& queue_pair, ibv_wc_status status) {
  const uint64_t position = queue_pair.receives.done++;
  const uint64_t wr_id = queue_pair.receives.at(position).wr_id;
  complete(queue_of(queue_pair.recv_cq), {failed(wr_id, status, queue_pair.qp_num), &queue_pair, position, false},
           false);
  end_queue_pair(queue_pair);
}

}  // namespace software_verbs

using namespace software_verbs;

extern "C" int software_verbs_post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  *bad_wr = wr;
  if (const int error = injected_error(Verb::kPostSend)) return error;
  QueuePair& queue_pair = pair_of(qp);
  Context& context = context_of(qp);
  const std::lock_guard lock(context.mutex);
  if (context.is_dead) return EIO;
  if (wr == nullptr) return 0;
  int error = 0;
  const uint64_t first = queue_pair.sends.head;
  for (; wr != nullptr && error == 0; wr = wr->next) {
    *bad_wr = wr;
    error = check_send(queue_pair, *wr);
    if (error == 0) queue_send(queue_pair, *wr);
  }
  if (queue_pair.sends.head != first) count(totals.send_calls);
  if (queue_pair.state == IBV_QPS_ERR || queue_pair.state == IBV_QPS_SQE) {
    flush(queue_pair, false);
    return error;
  }
  switch (holding.load()) {
    case Hold::kNothing:
      complete_sends(queue_pair, UINT64_MAX);
      break;
    case Hold::kCompletions:
      for (uint64_t at = std::max(first, queue_pair.sends.done); at != queue_pair.sends.head; at++)
        execute(queue_pair, queue_pair.sends.at(at));
      break;
    case Hold::kSends:
      break;
  }
  return error;
}

extern "C" int software_verbs_post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  *bad_wr = wr;
  if (const int error = injected_error(Verb::kPostRecv)) return error;
  QueuePair& queue_pair = pair_of(qp);
  Context& context = context_of(qp);
  const std::lock_guard lock(context.mutex);
  if (context.is_dead) return EIO;
  if (queue_pair.state == IBV_QPS_RESET || is_raw(queue_pair)) return EINVAL;
  WorkQueue<ReceiveRequest>& receives = queue_pair.receives;
  if (!receives.has_pending()) receive_arrivals(queue_pair);  // these packets arrived before the receive was posted
  const uint64_t first = receives.head;
  int error = 0;
  for (; wr != nullptr; wr = wr->next) {
    *bad_wr = wr;
    if (wr->num_sge < 0 || static_cast<uint32_t>(wr->num_sge) > queue_pair.init.cap.max_recv_sge)
      error = EINVAL;
    else if (receives.is_full())
      error = ENOMEM;
    if (error != 0) break;
    ReceiveRequest& request = receives.at(receives.head++);
    request.wr_id = wr->wr_id;
    request.sge_count = static_cast<uint32_t>(wr->num_sge);
    std::copy_n(wr->sg_list, wr->num_sge, request.sges.begin());
    count(totals.receives);
  }
  if (receives.head != first) count(totals.receive_calls);
  if (queue_pair.state == IBV_QPS_ERR) flush(queue_pair, true);
  return error;
}
