// Helpers for the cases of mlx5_test.cc and mlx5_faults_test.cc: an mlx5 device's context with a queue pair that sends
// and one that receives.
#pragma once

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "software_verbs/control.h"
#include "software_verbs/mlx5_wire.h"

namespace software_verbs {

inline constexpr auto kPatience = std::chrono::seconds(20);

/// A completion as it is in memory.
struct Completed {
  uint64_t position = 0;  ///< in strides, modulo 2^16 descriptors
  uint32_t bytes = 0;
  uint32_t strides = 0;
  bool is_filler = false;
  uint8_t checks = 0;
  uint8_t opcode = MLX5_CQE_INVALID;
  bool owner = false;
  uint8_t syndrome = 0;
};

class RawEndpoint {
 public:
  static constexpr uint32_t kStrideBytes = 2048;
  static constexpr uint32_t kStrides = 512;

  explicit RawEndpoint(uint32_t descriptors = 2, uint32_t stride_bytes = kStrideBytes, int device = 0)
      : descriptors_(descriptors), stride_bytes_(stride_bytes) {
    int devices = 0;
    ibv_device** list = ibv_get_device_list(&devices);
    if (device < devices && mlx5dv_is_supported(list[device])) context = ibv_open_device(list[device]);
    ibv_free_device_list(list);
    if (context == nullptr) return;
    pd = ibv_alloc_pd(context);
    if (pd == nullptr) return;
    channel = ibv_create_comp_channel(context);
    memory.resize(size_t{descriptors} * kStrides * stride_bytes + kSendBytes);
    mr = ibv_reg_mr_iova2(pd, memory.data(), memory.size(), reinterpret_cast<uintptr_t>(memory.data()),
                          IBV_ACCESS_LOCAL_WRITE);
    if (mr == nullptr || channel == nullptr) return;
    create_receiver();
    create_sender();
  }
  ~RawEndpoint() {
    for (ibv_flow* flow : flows) EXPECT_EQ(ibv_destroy_flow(flow), 0);
    destroy(send_qp, ibv_destroy_qp);
    destroy(qp, ibv_destroy_qp);
    destroy(table, ibv_destroy_rwq_ind_table);
    destroy(wq, ibv_destroy_wq);
    destroy(send_cq, ibv_destroy_cq);
    destroy(reinterpret_cast<ibv_cq*>(cq), ibv_destroy_cq);
    destroy(mr, ibv_dereg_mr);
    destroy(channel, ibv_destroy_comp_channel);
    destroy(pd, ibv_dealloc_pd);
    destroy(context, ibv_close_device);
  }
  RawEndpoint(const RawEndpoint&) = delete;
  RawEndpoint& operator=(const RawEndpoint&) = delete;

  bool is_ready() const { return send_qp != nullptr && qp != nullptr && send_qp->state == IBV_QPS_RTS; }

  struct Rule {
    ibv_flow_attr attr;
    ibv_flow_spec_eth eth;
    ibv_flow_spec_ipv4_ext ip;
    ibv_flow_spec_tcp_udp udp;
  } __attribute__((packed));
  static Rule rule_for(uint16_t port) {
    Rule rule{};
    rule.attr.type = IBV_FLOW_ATTR_NORMAL;
    rule.attr.size = sizeof(rule);
    rule.attr.num_of_specs = 3;
    rule.attr.port = 1;
    rule.eth.type = IBV_FLOW_SPEC_ETH;
    rule.eth.size = sizeof(rule.eth);
    std::memcpy(rule.eth.val.dst_mac, Wire::kNearAddress.data(), 6);
    std::memset(rule.eth.mask.dst_mac, 0xff, 6);
    rule.ip.type = IBV_FLOW_SPEC_IPV4_EXT;
    rule.ip.size = sizeof(rule.ip);
    in_addr address;
    inet_pton(AF_INET, Wire::kNear, &address);
    rule.ip.val.dst_ip = address.s_addr;
    rule.ip.mask.dst_ip = 0xffffffff;
    rule.udp.type = IBV_FLOW_SPEC_UDP;
    rule.udp.size = sizeof(rule.udp);
    rule.udp.val.dst_port = htons(port);
    rule.udp.mask.dst_port = 0xffff;
    return rule;
  }
  bool steer(const Rule& rule) {
    alignas(ibv_flow_attr) std::array<std::byte, sizeof(Rule)> bytes;
    std::memcpy(bytes.data(), &rule, sizeof(rule));
    ibv_flow* const flow = ibv_create_flow(qp, reinterpret_cast<ibv_flow_attr*>(bytes.data()));
    if (flow != nullptr) flows.push_back(flow);
    return flow != nullptr;
  }
  bool steer(uint16_t port) { return steer(rule_for(port)); }

  /// Posts the next `count` descriptors, with the next parts of the memory.
  void post(uint32_t count) {
    for (; count > 0; count--, posted++) {
      mlx5_mprq_wqe descriptor{};
      const uint64_t bytes = uint64_t{kStrides} * stride_bytes_;
      descriptor.dseg.byte_count = htobe32(static_cast<uint32_t>(bytes));
      descriptor.dseg.lkey = htobe32(mr->lkey);
      descriptor.dseg.addr = htobe64(reinterpret_cast<uintptr_t>(memory.data()) + posted % descriptors_ * bytes);
      std::memcpy(static_cast<std::byte*>(rwq.buf) + (posted & (rwq.wqe_cnt - 1)) * rwq.stride, &descriptor,
                  sizeof(descriptor));
    }
    std::atomic_ref(rwq.dbrec[MLX5_RCV_DBR]).store(htobe32(posted & 0xffff), std::memory_order_release);
  }

  /// Entry `index` of the completion queue. The bytes of its frame may be read after this call.
  Completed look(uint32_t index) const {
    auto* const end = static_cast<std::byte*>(ring.buf) + size_t{index + 1} * ring.cqe_size;
    auto* const words = reinterpret_cast<uint32_t*>(end - sizeof(mlx5_cqe64));
    std::array<uint32_t, 16> copy;
    copy[15] = std::atomic_ref(words[15]).load();  // the device writes this word last
    for (size_t i = 0; i < 15; i++) copy[i] = std::atomic_ref(words[i]).load(std::memory_order_acquire);
    mlx5_cqe64 entry;
    std::memcpy(&entry, copy.data(), sizeof(entry));
    Completed completed;
    completed.opcode = entry.op_own >> 4;
    completed.owner = (entry.op_own & 1) != 0;
    completed.position = uint64_t{be16toh(entry.wqe_id)} * kStrides + be16toh(entry.wqe_counter);
    completed.bytes = be32toh(entry.byte_cnt) & 0xffff;
    completed.strides = be32toh(entry.byte_cnt) >> 16 & 0x3fff;
    completed.is_filler = be32toh(entry.byte_cnt) >> 31 != 0;
    completed.checks = entry.hds_ip_ext;
    if (completed.opcode == MLX5_CQE_RESP_ERR)
      completed.syndrome = reinterpret_cast<const mlx5_err_cqe&>(entry).syndrome;
    return completed;
  }
  /// Waits for completion `number`, counted from the queue's creation: its entry has the owner bit of its round.
  Completed wait(uint64_t number) const {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    Completed completed;
    do {
      completed = look(static_cast<uint32_t>(number & (ring.cqe_cnt - 1)));
      const bool owner = (number & ring.cqe_cnt) != 0;
      if (completed.opcode != MLX5_CQE_INVALID && completed.owner == owner) return completed;
      usleep(50);
    } while (std::chrono::steady_clock::now() < deadline);
    ADD_FAILURE() << "no completion " << number;
    return {};
  }
  /// The frame at a position.
  std::vector<std::byte> frame_at(uint64_t position, size_t bytes) const {
    const auto* from = memory.data() + position % (uint64_t{descriptors_} * kStrides) * stride_bytes_;
    return {from, from + bytes};
  }
  std::string payload_at(uint64_t position, size_t bytes) const {
    const std::vector<std::byte> frame = frame_at(position, 42 + bytes);
    return {reinterpret_cast<const char*>(frame.data()) + 42, bytes};
  }

  void arm(uint64_t consumed) {
    const uint32_t command = htobe32((events & 3) << 28 | MLX5_CQ_DB_REQ_NOT | (consumed & 0xffffff));
    std::atomic_ref(ring.dbrec[1]).store(command, std::memory_order_release);
    auto* const doorbell = reinterpret_cast<uint64_t*>(static_cast<std::byte*>(ring.cq_uar) + MLX5_CQ_DOORBELL);
    std::atomic_ref(*doorbell).store(uint64_t{htobe32(ring.cqn)} << 32 | command);
  }
  bool wait_for_event(std::chrono::milliseconds patience) {
    pollfd waited{channel->fd, POLLIN, 0};
    if (poll(&waited, 1, static_cast<int>(patience.count())) != 1) return false;
    ibv_cq* found = nullptr;
    void* found_context = nullptr;
    EXPECT_EQ(ibv_get_cq_event(channel, &found, &found_context), 0);
    EXPECT_EQ(found, ibv_cq_ex_to_cq(cq));
    ibv_ack_cq_events(found, 1);
    events++;
    return true;
  }

  /// Sends a frame to the near address, so that a queue of this process takes it, and takes the send completion.
  void send_to_self(uint16_t port, const std::string& payload) {
    FrameSpec spec;
    spec.from = Wire::kNearAddress;
    spec.source = Wire::kNear;
    spec.port = port;
    spec.payload = payload;
    ASSERT_EQ(send(make_frame(spec)), 0);
    ASSERT_EQ(next_send(), IBV_WC_SUCCESS);
  }
  /// Copies bytes into `slot` (of 16) after the receive memory, and sends them.
  int send(const std::vector<std::byte>& frame, unsigned flags = IBV_SEND_SIGNALED, uint32_t slot = 0) {
    std::byte* const at = memory.data() + memory.size() - kSendBytes + slot * 2048;
    std::memcpy(at, frame.data(), frame.size());
    // In two parts, to test gathering.
    const auto head = static_cast<uint32_t>(std::min<size_t>(frame.size(), 42));
    std::array<ibv_sge, 2> parts = {
        ibv_sge{reinterpret_cast<uintptr_t>(at), head, mr->lkey},
        ibv_sge{reinterpret_cast<uintptr_t>(at) + head, static_cast<uint32_t>(frame.size()) - head, mr->lkey}};
    ibv_send_wr request{};
    request.wr_id = 7;
    request.sg_list = parts.data();
    request.num_sge = 2;
    request.opcode = IBV_WR_SEND;
    request.send_flags = flags;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(send_qp, &request, &bad);
  }
  ibv_wc_status next_send() const {
    ibv_wc wc{};
    return ibv_poll_cq(send_cq, 1, &wc) == 1 ? wc.status : IBV_WC_GENERAL_ERR;
  }

  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq_ex* cq = nullptr;
  ibv_cq* send_cq = nullptr;
  ibv_wq* wq = nullptr;
  ibv_rwq_ind_table* table = nullptr;
  ibv_qp* qp = nullptr;
  ibv_qp* send_qp = nullptr;
  ibv_mr* mr = nullptr;
  mlx5dv_cq ring{};
  mlx5dv_rwq rwq{};
  std::vector<ibv_flow*> flows;
  std::vector<std::byte> memory;
  uint32_t posted = 0;
  uint32_t events = 0;

 private:
  template <class Object, class Destroy>
  static void destroy(Object* object, Destroy destroy_object) {
    if (object != nullptr) {
      EXPECT_EQ(destroy_object(object), 0);
    }
  }

  static constexpr size_t kSendBytes = 32 << 10;

  void create_receiver() {
    ibv_cq_init_attr_ex cq_init{};
    cq_init.cqe = 7;
    cq_init.channel = channel;
    cq_init.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
    cq_init.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    cq = ibv_create_cq_ex(context, &cq_init);
    if (cq == nullptr) return;
    ibv_wq_init_attr wq_init{};
    wq_init.wq_type = IBV_WQT_RQ;
    wq_init.max_wr = descriptors_;
    wq_init.max_sge = 1;
    wq_init.pd = pd;
    wq_init.cq = ibv_cq_ex_to_cq(cq);
    mlx5dv_wq_init_attr direct{};
    direct.comp_mask = MLX5DV_WQ_INIT_ATTR_MASK_STRIDING_RQ;
    direct.striding_rq_attrs.single_stride_log_num_of_bytes = static_cast<uint32_t>(__builtin_ctz(stride_bytes_));
    direct.striding_rq_attrs.single_wqe_log_num_of_strides = static_cast<uint32_t>(__builtin_ctz(kStrides));
    wq = mlx5dv_create_wq(context, &wq_init, &direct);
    if (wq == nullptr) return;
    mlx5dv_obj objects{};
    objects.cq = {ibv_cq_ex_to_cq(cq), &ring};
    objects.rwq = {wq, &rwq};
    if (mlx5dv_init_obj(&objects, MLX5DV_OBJ_CQ | MLX5DV_OBJ_RWQ) != 0) return;
    ibv_wq_attr ready{};
    ready.attr_mask = IBV_WQ_ATTR_STATE;
    ready.wq_state = IBV_WQS_RDY;
    if (ibv_modify_wq(wq, &ready) != 0) return;
    ibv_rwq_ind_table_init_attr table_init{};
    table_init.ind_tbl = &wq;
    table = ibv_create_rwq_ind_table(context, &table_init);
    if (table == nullptr) return;
    std::array<uint8_t, 40> key{1};
    ibv_qp_init_attr_ex init{};
    init.qp_type = IBV_QPT_RAW_PACKET;
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
    init.pd = pd;
    init.rwq_ind_tbl = table;
    init.rx_hash_conf = {IBV_RX_HASH_FUNC_TOEPLITZ, static_cast<uint8_t>(key.size()), key.data(), 0};
    qp = ibv_create_qp_ex(context, &init);
    if (qp != nullptr) post(descriptors_);
  }
  void create_sender() {
    send_cq = ibv_create_cq(context, 64, nullptr, nullptr, 0);
    if (send_cq == nullptr) return;
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = send_cq;
    init.cap = {64, 0, 4, 0, 128};
    init.qp_type = IBV_QPT_RAW_PACKET;
    send_qp = ibv_create_qp(pd, &init);
    if (send_qp == nullptr) return;
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    if (ibv_modify_qp(send_qp, &attr, IBV_QP_STATE | IBV_QP_PORT) != 0) return;
    for (const ibv_qp_state state : {IBV_QPS_RTR, IBV_QPS_RTS}) {
      attr.qp_state = state;
      if (ibv_modify_qp(send_qp, &attr, IBV_QP_STATE) != 0) return;
    }
  }

  uint32_t descriptors_;
  uint32_t stride_bytes_;
};

class Mlx5 : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string& refusal = Wire::make(); !refusal.empty()) GTEST_SKIP() << refusal;
    if (control() == nullptr) GTEST_SKIP() << "the software provider is not in front of libibverbs";
  }
  void TearDown() override {
    if (IsSkipped()) return;
    setenv("SOFTWARE_VERBS", "devices=0,mlx5=nv0", 1);
    control()->reset();
    const Counters left = counters();
    EXPECT_EQ(left.contexts + left.protection_domains + left.memory_regions + left.completion_channels, 0u);
    EXPECT_EQ(left.completion_queues + left.queue_pairs + left.receive_queues + left.indirection_tables, 0u);
    EXPECT_EQ(left.steering_rules + left.descriptor_bytes + left.completion_bytes + left.doorbell_bytes, 0u);
  }
  static Counters counters() {
    Counters now;
    control()->read_counters(&now);
    return now;
  }
};

}  // namespace software_verbs
