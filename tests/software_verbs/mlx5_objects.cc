// Receive work queues, indirection tables, hashing queue pairs, and the attributes of an mlx5 device. The direct verbs
// of libmlx5 are also implemented here, because they use these objects.
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>

#include "mlx5.h"

namespace software_verbs {
namespace {

constexpr uint32_t kStrideBytesLogMin = 6, kStrideBytesLogMax = 13;
constexpr uint32_t kStridesLogMin = 9, kStridesLogMax = 16;
constexpr uint8_t kHashKeyBytes = 40;
constexpr uint32_t kFirstNumber = 0x800000;  ///< above the numbers of UD queue pairs

ReceiveQueue& queue_of(ibv_wq* wq) { return static_cast<ReceiveQueue&>(*wq); }

int query_device_ex(ibv_context* base, const ibv_query_device_ex_input*, ibv_device_attr_ex* attr, size_t size) {
  if (const int error = injected_error(Verb::kQueryDeviceEx)) return error;
  const Settings& settings = context_of(base).settings;
  ibv_device_attr_ex all{};
  if (const int error = ibv_query_device(base, &all.orig_attr)) return error;
  all.rss_caps.supported_qpts = 1u << IBV_QPT_RAW_PACKET;
  all.rss_caps.max_rwq_indirection_tables = 1 << 16;
  all.rss_caps.max_rwq_indirection_table_size = 1;
  all.rss_caps.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ;
  all.rss_caps.rx_hash_fields_mask = IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP;
  all.max_wq_type_rq = 1 << 16;
  all.raw_packet_caps = settings.has_send_checksums ? IBV_RAW_PACKET_CAP_IP_CSUM : 0;
  all.phys_port_cnt_ex = 1;
  memset(attr, 0, size);
  memcpy(attr, &all, std::min(size, sizeof(all)));
  return 0;
}

ibv_cq_ex* create_cq_ex(ibv_context* base, ibv_cq_init_attr_ex* init) {
  if (const int error = injected_error(Verb::kCreateCqEx)) return fail(error);
  if ((init->comp_mask & ~uint32_t{IBV_CQ_INIT_ATTR_MASK_FLAGS}) != 0) return fail(EOPNOTSUPP);
  const uint32_t flags = (init->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0 ? init->flags : 0;
  if ((flags & ~uint32_t{IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN | IBV_CREATE_CQ_ATTR_SINGLE_THREADED}) != 0)
    return fail(EOPNOTSUPP);
  CompletionQueue* const queue = create_completion_queue(base, static_cast<int>(init->cqe), init->cq_context,
                                                         init->channel, static_cast<int>(init->comp_vector));
  if (queue == nullptr) return nullptr;
  queue->ring->ignores_overrun = (flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0;
  return reinterpret_cast<ibv_cq_ex*>(static_cast<ibv_cq*>(queue));
}

int modify_wq(ibv_wq* wq, ibv_wq_attr* attr) {
  if (const int error = injected_error(Verb::kModifyWq)) return error;
  Context& context = context_of(wq);
  const std::lock_guard lock(context.mutex);
  if (context.is_dead) return EIO;
  if (attr->attr_mask == 0 || (attr->attr_mask & ~uint32_t{IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE}) != 0)
    return EINVAL;
  if ((attr->attr_mask & IBV_WQ_ATTR_CURR_STATE) != 0 && attr->curr_wq_state != wq->state) return EINVAL;
  if ((attr->attr_mask & IBV_WQ_ATTR_STATE) == 0) return 0;
  ReceiveQueue& queue = queue_of(wq);
  const std::lock_guard network_lock(network().mutex);
  const ibv_wq_state to = attr->wq_state;
  if (to > IBV_WQS_ERR || (queue.device_state == IBV_WQS_RESET && to == IBV_WQS_ERR) ||
      (queue.device_state == IBV_WQS_ERR && to == IBV_WQS_RDY))
    return EINVAL;
  if (queue.device_state == IBV_WQS_RESET && to == IBV_WQS_RDY) {  // rdma-core: modify_wq() in providers/mlx5/verbs.c
    std::atomic_ref(queue.record()[MLX5_RCV_DBR]).store(0);
    queue.head = queue.done = queue.stride = 0;
  }
  if (to == IBV_WQS_ERR) end_receive_queue(queue, MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
  queue.device_state = wq->state = to;
  return 0;
}

/// rdma-core would write a plain descriptor, which a striding queue misinterprets; here it is an error.
int refuse_request(ibv_wq*, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  *bad_wr = wr;
  return EOPNOTSUPP;
}

int destroy_wq(ibv_wq* wq) {
  ReceiveQueue& queue = queue_of(wq);
  Context& context = context_of(wq);
  check_process(context);
  {
    const std::lock_guard lock(context.mutex);
    if (queue.tables > 0) return EBUSY;
    const std::lock_guard network_lock(network().mutex);
    queue.ring().receive_queues--;
    std::erase(context.port->queues, &queue);
  }
  pthread_cond_destroy(&wq->cond);
  pthread_mutex_destroy(&wq->mutex);
  leave_domain(wq->pd);
  context.objects--;
  delete &queue;
  return 0;
}

ibv_rwq_ind_table* create_rwq_ind_table(ibv_context* base, ibv_rwq_ind_table_init_attr* init) {
  if (const int error = injected_error(Verb::kCreateRwqIndTable)) return fail(error);
  Context& context = context_of(base);
  const std::lock_guard lock(context.mutex);
  if (context.is_dead) return fail(EIO);
  if (init->comp_mask != 0 || init->log_ind_tbl_size != 0) return fail(EOPNOTSUPP);
  auto* table = new IndirectionTable;
  table->context = base;
  table->ind_tbl_handle = 0;
  table->ind_tbl_num = static_cast<int>(next_number());
  table->comp_mask = 0;
  table->queue = &queue_of(init->ind_tbl[0]);
  table->queue->tables++;
  context.objects++;
  count(totals.indirection_tables);
  return table;
}

int destroy_rwq_ind_table(ibv_rwq_ind_table* base) {
  auto* table = static_cast<IndirectionTable*>(base);
  Context& context = context_of(base);
  check_process(context);
  const std::lock_guard lock(context.mutex);
  if (table->users > 0) return EBUSY;
  table->queue->tables--;
  context.objects--;
  delete table;
  uncount(totals.indirection_tables);
  return 0;
}

/// Returns an error code. The rules are those of the kernel's create_rss_qp_tir() in drivers/infiniband/hw/mlx5/qp.c.
int check_hashing_pair(const Context& context, const ibv_qp_init_attr_ex& init) {
  constexpr uint32_t kMask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
  constexpr uint64_t kFields = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 | IBV_RX_HASH_SRC_IPV6 |
                               IBV_RX_HASH_DST_IPV6 | IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP;
  constexpr uint64_t kIpv4 = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4;
  constexpr uint64_t kIpv6 = IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6;
  if (init.comp_mask != kMask || init.qp_type != IBV_QPT_RAW_PACKET) return EOPNOTSUPP;
  if (!context.settings.may_send_raw) return EPERM;
  const ibv_qp_cap& cap = init.cap;
  if (init.send_cq != nullptr || init.recv_cq != nullptr || init.srq != nullptr || cap.max_send_wr != 0 ||
      cap.max_recv_wr != 0 || cap.max_recv_sge != 0)
    return EINVAL;
  const ibv_rx_hash_conf& hash = init.rx_hash_conf;
  if (hash.rx_hash_function != IBV_RX_HASH_FUNC_TOEPLITZ) return EOPNOTSUPP;
  if (hash.rx_hash_key_len != kHashKeyBytes || hash.rx_hash_key == nullptr) return EINVAL;
  if ((hash.rx_hash_fields_mask & ~kFields) != 0) return EOPNOTSUPP;
  const bool has_both = (hash.rx_hash_fields_mask & kIpv4) != 0 && (hash.rx_hash_fields_mask & kIpv6) != 0;
  return has_both ? EINVAL : 0;
}

ibv_qp* create_qp_ex(ibv_context* base, ibv_qp_init_attr_ex* init) {
  if (const int error = injected_error(Verb::kCreateQpEx)) return fail(error);
  Context& context = context_of(base);
  const std::lock_guard lock(context.mutex);
  if (context.is_dead) return fail(EIO);
  if (const int error = check_hashing_pair(context, *init)) return fail(error);
  if (!open_receiver(*context.port)) return nullptr;
  auto* pair = new QueuePair;
  pair->context = base;
  pair->qp_context = init->qp_context;
  pair->pd = init->pd;
  pair->send_cq = pair->recv_cq = nullptr;
  pair->srq = nullptr;
  pair->qp_num = pair->handle = next_number();
  pair->state = IBV_QPS_RESET;
  pair->qp_type = init->qp_type;
  pair->events_completed = 0;
  pair->table = static_cast<IndirectionTable*>(init->rwq_ind_tbl);
  pair->table->users++;
  pthread_mutex_init(&pair->mutex, nullptr);
  pthread_cond_init(&pair->cond, nullptr);
  context.queue_pairs.push_back(pair);
  context.objects++;
  use_domain(init->pd);
  count(totals.queue_pairs);
  return pair;
}

}  // namespace

Pages::Pages(size_t bytes) : bytes_(bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::byte*>(memory);
}
Pages::~Pages() { munmap(data_, bytes_); }

uint32_t next_number() {
  static std::atomic<uint32_t> last{0};
  return kFirstNumber + ++last % kFirstNumber;
}

CompletionRing::CompletionRing(uint32_t the_entry_count, uint32_t the_entry_bytes)
    : entry_count(the_entry_count),
      entry_bytes(the_entry_bytes),
      number(next_number()),
      entries(size_t{entry_count} * entry_bytes),
      doorbells(2 * kDoorbellPageOffset) {
  for (uint32_t i = 0; i < entry_count; i++) {
    std::byte* const end = entries.data() + size_t{i + 1} * entry_bytes;
    end[-1] = std::byte{MLX5_CQE_INVALID << 4};
  }
  count(totals.completion_bytes, size_t{entry_count} * entry_bytes);
  count(totals.doorbell_bytes, kDoorbellRecordBytes);
}
CompletionRing::~CompletionRing() {
  uncount(totals.completion_bytes, size_t{entry_count} * entry_bytes);
  uncount(totals.doorbell_bytes, kDoorbellRecordBytes);
}

ReceiveQueue::ReceiveQueue(uint32_t the_descriptor_count, const mlx5dv_striding_rq_init_attr& strides)
    : ibv_wq{},
      descriptor_count(the_descriptor_count),
      striding(strides),
      descriptors(size_t{descriptor_count} * kDescriptorBytes),
      doorbells(kDoorbellRecordBytes) {
  count(totals.receive_queues);
  count(totals.descriptor_bytes, size_t{descriptor_count} * kDescriptorBytes);
  count(totals.doorbell_bytes, kDoorbellRecordBytes);
}
ReceiveQueue::~ReceiveQueue() {
  uncount(totals.receive_queues);
  uncount(totals.descriptor_bytes, size_t{descriptor_count} * kDescriptorBytes);
  uncount(totals.doorbell_bytes, kDoorbellRecordBytes);
}

void set_operations(Context& context) {
  context.query_device_ex = query_device_ex;
  context.create_cq_ex = create_cq_ex;
  context.modify_wq = modify_wq;
  context.destroy_wq = destroy_wq;
  context.create_rwq_ind_table = create_rwq_ind_table;
  context.destroy_rwq_ind_table = destroy_rwq_ind_table;
  context.create_qp_ex = create_qp_ex;
  if (!context.settings.has_flows) return;
  context.ibv_create_flow = create_flow;
  context.ibv_destroy_flow = destroy_flow;
}

void destroy_hashing_pair(QueuePair& queue_pair) {
  queue_pair.table->users--;
  close_receiver(*context_of(&queue_pair).port);
}

}  // namespace software_verbs

using namespace software_verbs;

// The implementations of libmlx5's functions.
SOFTWARE_VERBS_EXPORT bool software_mlx5_is_supported(ibv_device* base) {
  const auto* device = static_cast<const Device*>(base);
  return device->index >= kDevices && settings_of(*device).has_direct_verbs;
}

SOFTWARE_VERBS_EXPORT int software_mlx5_query_device(ibv_context* base, mlx5dv_context* attr) {
  if (const int error = injected_error(Verb::kQueryDirect)) return error;
  const Context& context = context_of(base);
  if (context.port == nullptr) return EOPNOTSUPP;
  const uint64_t asked = attr->comp_mask;
  attr->version = 0;
  attr->flags = MLX5DV_CONTEXT_FLAGS_CQE_V1;
  attr->comp_mask = 0;
  if ((asked & MLX5DV_CONTEXT_MASK_STRIDING_RQ) == 0) return 0;
  attr->comp_mask = MLX5DV_CONTEXT_MASK_STRIDING_RQ;
  attr->striding_rq_caps = {};
  if (!context.settings.has_strides) return 0;
  attr->striding_rq_caps = {kStrideBytesLogMin, kStrideBytesLogMax, kStridesLogMin, kStridesLogMax,
                            1u << IBV_QPT_RAW_PACKET};
  return 0;
}

SOFTWARE_VERBS_EXPORT ibv_wq* software_mlx5_create_wq(ibv_context* base, ibv_wq_init_attr* init,
                                                      mlx5dv_wq_init_attr* direct) {
  if (const int error = injected_error(Verb::kCreateWq)) return fail(error);
  Context& context = context_of(base);
  if (context.port == nullptr || !context.settings.has_strides) return fail(EOPNOTSUPP);
  const std::lock_guard lock(context.mutex);
  if (context.is_dead) return fail(EIO);
  if (direct == nullptr || direct->comp_mask != MLX5DV_WQ_INIT_ATTR_MASK_STRIDING_RQ || init->comp_mask != 0 ||
      init->wq_type != IBV_WQT_RQ)
    return fail(EOPNOTSUPP);
  const mlx5dv_striding_rq_init_attr& strides = direct->striding_rq_attrs;
  if (strides.single_stride_log_num_of_bytes < kStrideBytesLogMin ||
      strides.single_stride_log_num_of_bytes > kStrideBytesLogMax ||
      strides.single_wqe_log_num_of_strides < kStridesLogMin || strides.single_wqe_log_num_of_strides > kStridesLogMax)
    return fail(EINVAL);
  if (init->max_wr < 1 || init->max_wr > context.settings.max_qp_wr || init->max_sge > 1) return fail(EINVAL);
  auto& completions = static_cast<CompletionQueue&>(*init->cq);
  if (!completions.ring->ignores_overrun) return fail(EOPNOTSUPP);
  init->max_wr = std::bit_ceil(init->max_wr);
  init->max_sge = 1;
  auto* queue = new ReceiveQueue(init->max_wr, strides);
  queue->context = base;
  queue->wq_context = init->wq_context;
  queue->pd = init->pd;
  queue->cq = init->cq;
  queue->wq_num = queue->handle = next_number();
  queue->state = IBV_WQS_RESET;
  queue->wq_type = init->wq_type;
  queue->post_recv = refuse_request;
  pthread_mutex_init(&queue->mutex, nullptr);
  pthread_cond_init(&queue->cond, nullptr);
  const std::lock_guard network_lock(network().mutex);
  completions.ring->receive_queues++;
  context.port->queues.push_back(queue);
  context.objects++;
  use_domain(init->pd);
  return queue;
}

SOFTWARE_VERBS_EXPORT int software_mlx5_init_obj(mlx5dv_obj* objects, uint64_t types) {
  if (const int error = injected_error(Verb::kInitDirect)) return error;
  if ((types & ~uint64_t{MLX5DV_OBJ_CQ | MLX5DV_OBJ_RWQ}) != 0) return EOPNOTSUPP;
  if ((types & MLX5DV_OBJ_CQ) != 0) {
    CompletionRing* const ring = static_cast<CompletionQueue*>(objects->cq.in)->ring.get();
    if (ring == nullptr) return EINVAL;
    *objects->cq.out = {
        ring->entries.data(), ring->record(), ring->entry_count, ring->entry_bytes, ring->uar(), ring->number, 0};
  }
  if ((types & MLX5DV_OBJ_RWQ) != 0) {
    ReceiveQueue& queue = queue_of(objects->rwq.in);
    *objects->rwq.out = {queue.descriptors.data(), queue.record(), queue.descriptor_count, kDescriptorBytes, 0};
  }
  return 0;
}
