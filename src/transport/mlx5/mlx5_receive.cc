#include "transport/mlx5/mlx5_receive.h"

#include <endian.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include "base/status_text.h"
#include "rdma/flow.h"

namespace tern::transport {

using rdma::OverflowedQueue;

bool Mlx5Receive::open(ibv_context* context, ibv_pd* domain, uint32_t strides, uint32_t stride_bytes, std::byte* memory,
                       uint32_t key) {
  context_ = context;
  domain_ = domain;
  ring_.create(strides, memory, stride_bytes, key);
  return events_.open(context);
}

Status Mlx5Receive::start(const Frames& frames) {
  stop();
  const Status status = make(frames);
  if (!status.ok()) stop();
  return status;
}

void Mlx5Receive::stop() {
  flow_.reset();
  pair_.reset();
  table_.reset();
  queue_.reset();
  if (completions_ != nullptr) drain();
  completions_.reset();
}

Status Mlx5Receive::refusal(const char* what) const {
  return base::status_of(Code::kUnavailable, "mlx5: the device has no queues for another endpoint",
                         {"mlx5: ", ibv_get_device_name(context_->device), " did not create a ", what, " (",
                          std::strerror(errno), "): lower Mlx5::Options::receive_buffers, or use fewer endpoints"});
}

Status Mlx5Receive::make(const Frames& frames) {
  if (Status status = make_completions(); !status.ok()) return status;
  if (Status status = make_queue(); !status.ok()) return status;
  if (Status status = make_pair(); !status.ok()) return status;
  ring_.post();
  rdma::UdpFlow flow(frames.port, frames.mac.bytes(), frames.vlan, frames.address);
  flow_.reset(ibv_create_flow(pair_.get(), flow.attributes()));
  if (flow_ != nullptr) return {};
  if (errno == EPERM) {
    return {Code::kUnavailable,
            "mlx5: this process may not steer frames (CAP_NET_RAW): run `setcap cap_net_raw+ep PROGRAM`, or run it as "
            "root"};
  }
  const std::string port = std::to_string(frames.address.port());
  return base::status_of(Code::kUnavailable, "mlx5: the device refused to steer frames to the endpoint",
                         {"mlx5: ", ibv_get_device_name(context_->device), " refused to steer frames of UDP port ",
                          port, " to the endpoint (", std::strerror(errno),
                          "): it needs flow steering; update its firmware, or choose another port or device"});
}

Status Mlx5Receive::make_completions() {
  ibv_cq_init_attr_ex attributes{};
  attributes.cqe = kEntries - 1;  // the driver rounds up to a power of two above
  attributes.channel = events_.channel();
  attributes.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
  attributes.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  ibv_cq_ex* const made = ibv_create_cq_ex(context_, &attributes);
  if (made == nullptr) return refusal("completion queue that may overflow");
  completions_.reset(ibv_cq_ex_to_cq(made));
  arm_number_ = 0;
  raw_ = {};
  mlx5dv_obj object{};
  object.cq.in = completions_.get();
  object.cq.out = &raw_;
  errno = mlx5dv_init_obj(&object, MLX5DV_OBJ_CQ);
  const bool is_usable = errno == 0 && std::has_single_bit(raw_.cqe_cnt) && raw_.cqe_cnt >= 2 &&
                         raw_.cqe_cnt <= OverflowedQueue::kStridesPerDescriptor &&
                         (raw_.cqe_size == 64 || raw_.cqe_size == 128);
  if (!is_usable) return refusal("completion queue that can be read");
  entries_.create(static_cast<std::byte*>(raw_.buf), raw_.cqe_cnt, raw_.cqe_size, ring_.strides());
  return {};
}

Status Mlx5Receive::make_queue() {
  ibv_wq_init_attr attributes{};
  attributes.wq_type = IBV_WQT_RQ;
  attributes.max_wr = ring_.descriptors();
  attributes.max_sge = 1;
  attributes.pd = domain_;
  attributes.cq = completions_.get();
  mlx5dv_wq_init_attr strided{};
  strided.comp_mask = MLX5DV_WQ_INIT_ATTR_MASK_STRIDING_RQ;
  strided.striding_rq_attrs.single_stride_log_num_of_bytes =
      static_cast<uint32_t>(std::countr_zero(ring_.stride_bytes()));
  strided.striding_rq_attrs.single_wqe_log_num_of_strides = OverflowedQueue::kStridesPerDescriptorLog;
  queue_.reset(mlx5dv_create_wq(context_, &attributes, &strided));
  if (queue_ == nullptr) return refusal("strided receive queue");
  ibv_wq_attr ready{};
  ready.attr_mask = IBV_WQ_ATTR_STATE;
  ready.wq_state = IBV_WQS_RDY;
  errno = ibv_modify_wq(queue_.get(), &ready);
  if (errno != 0) return refusal("strided receive queue ready");
  mlx5dv_rwq descriptors{};
  mlx5dv_obj object{};
  object.rwq.in = queue_.get();
  object.rwq.out = &descriptors;
  errno = mlx5dv_init_obj(&object, MLX5DV_OBJ_RWQ);
  const bool is_usable = errno == 0 && descriptors.wqe_cnt == ring_.descriptors() &&
                         descriptors.stride >= sizeof(mlx5_mprq_wqe) && descriptors.dbrec != nullptr;
  if (!is_usable) return refusal("strided receive queue that can be written");
  ring_.attach(descriptors);
  return {};
}

/// Makes a queue pair that only receives: a table of one queue, without hashing.
Status Mlx5Receive::make_pair() {
  ibv_wq* queue = queue_.get();
  ibv_rwq_ind_table_init_attr one{};
  one.log_ind_tbl_size = 0;
  one.ind_tbl = &queue;
  table_.reset(ibv_create_rwq_ind_table(context_, &one));
  if (table_ == nullptr) return refusal("table of receive queues");
  std::array<uint8_t, 40> key{};  // of Toeplitz
  ibv_qp_init_attr_ex attributes{};
  attributes.qp_type = IBV_QPT_RAW_PACKET;
  attributes.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
  attributes.pd = domain_;
  attributes.rwq_ind_tbl = table_.get();
  attributes.rx_hash_conf.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ;
  attributes.rx_hash_conf.rx_hash_key_len = static_cast<uint8_t>(key.size());
  attributes.rx_hash_conf.rx_hash_key = key.data();
  attributes.rx_hash_conf.rx_hash_fields_mask = 0;
  pair_.reset(ibv_create_qp_ex(context_, &attributes));
  return pair_ != nullptr ? Status() : refusal("queue pair for raw packets");
}

/// ibv_req_notify_cq() would tell the NIC libibverbs' own count of what has been read, which stays 0.
void Mlx5Receive::arm() {
  constexpr size_t kArmRecord = 1, kDoorbellAt = 0x20;  // the values of mlx5's own library
  constexpr uint32_t kConsumerMask = 0xffffff;
  const uint32_t command = (arm_number_ & 3) << 28 | (ring_.position() & kConsumerMask);
  __atomic_store_n(&raw_.dbrec[kArmRecord], htobe32(command), __ATOMIC_RELEASE);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // the record is there before the doorbell
  auto* const doorbell = reinterpret_cast<uint64_t*>(static_cast<std::byte*>(raw_.cq_uar) + kDoorbellAt);
  __atomic_store_n(doorbell, htobe64(uint64_t{command} << 32 | raw_.cqn), __ATOMIC_RELEASE);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace tern::transport
