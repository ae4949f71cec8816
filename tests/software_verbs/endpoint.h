// Helpers for the cases of verbs_test.cc: a device's context with one UD queue pair, and waits with a time limit.
#pragma once

#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <poll.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "software_verbs/control.h"

namespace software_verbs {

inline constexpr uint32_t kQkey = 0x11223344;
inline constexpr size_t kGrhBytes = 40;
inline constexpr int kLocalWrite = IBV_ACCESS_LOCAL_WRITE;   // clang warns of the enumerator in the macro ibv_reg_mr
inline constexpr auto kPatience = std::chrono::seconds(20);  // Soft-RoCE in an emulated machine stalls for 100 ms

/// The context of the first device with an active port, or null.
inline ibv_context* open_first(int index = 0) {
  int devices = 0;
  ibv_device** list = ibv_get_device_list(&devices);
  ibv_context* context = list != nullptr && index < devices ? ibv_open_device(list[index]) : nullptr;
  if (list != nullptr) ibv_free_device_list(list);
  return context;
}

/// The index of a RoCE v2 GID over IPv4, or 0 if there is none.
inline uint8_t find_gid_index(ibv_context* context) {
  std::array<ibv_gid_entry, 32> entries;
  const ssize_t found = ibv_query_gid_table(context, entries.data(), entries.size(), 0);
  for (ssize_t i = 0; i < found; i++) {
    const ibv_gid_entry& entry = entries[static_cast<size_t>(i)];
    if (entry.gid_type == IBV_GID_TYPE_ROCE_V2 && entry.gid.raw[10] == 0xff && entry.gid.global.subnet_prefix == 0)
      return static_cast<uint8_t>(entry.gid_index);
  }
  return 0;
}

struct Sizes {
  uint32_t sends = 16;
  uint32_t receives = 16;
  int completions = 64;
  uint32_t inline_bytes = 0;
  bool signals_all = true;
  uint16_t pkey_index = 0;
  int device = 0;
};

class Endpoint {
 public:
  explicit Endpoint(Sizes sizes = {}, ibv_qp_state state = IBV_QPS_RTS) {
    context = open_first(sizes.device);
    if (context == nullptr) return;
    pd = ibv_alloc_pd(context);
    channel = ibv_create_comp_channel(context);
    send_cq = ibv_create_cq(context, sizes.completions, nullptr, nullptr, 0);
    recv_cq = ibv_create_cq(context, sizes.completions, this, channel, 0);
    mr = ibv_reg_mr(pd, memory.data(), memory.size(), kLocalWrite);
    ibv_qp_init_attr init{};
    init.send_cq = send_cq;
    init.recv_cq = recv_cq;
    init.cap = {sizes.sends, sizes.receives, 2, 2, sizes.inline_bytes};
    init.qp_type = IBV_QPT_UD;
    init.sq_sig_all = sizes.signals_all;
    qp = ibv_create_qp(pd, &init);
    if (qp != nullptr) move(state, sizes.pkey_index);
    gid_index = find_gid_index(context);
    ibv_query_port(context, 1, &port);
  }
  ~Endpoint() {
    for (ibv_ah* handle : handles) ibv_destroy_ah(handle);
    if (qp != nullptr) ibv_destroy_qp(qp);
    if (mr != nullptr) ibv_dereg_mr(mr);
    if (send_cq != nullptr) ibv_destroy_cq(send_cq);
    if (recv_cq != nullptr) ibv_destroy_cq(recv_cq);
    if (channel != nullptr) ibv_destroy_comp_channel(channel);
    if (pd != nullptr) ibv_dealloc_pd(pd);
    if (context != nullptr) ibv_close_device(context);
  }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  bool is_ready() const { return qp != nullptr && mr != nullptr && qp->state == IBV_QPS_RTS; }

  void move(ibv_qp_state state, uint16_t pkey_index = 0) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.pkey_index = pkey_index;
    attr.qkey = kQkey;
    if (state == IBV_QPS_RESET) return;
    ASSERT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_QKEY), 0);
    if (state == IBV_QPS_INIT) return;
    attr.qp_state = IBV_QPS_RTR;
    ASSERT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
    if (state == IBV_QPS_RTR) return;
    attr.qp_state = IBV_QPS_RTS;
    ASSERT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
  }
  int end() {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
  }
  ibv_qp_state state() const {
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
    return attr.qp_state;
  }

  /// An address handle for a peer, which is valid as long as the endpoint.
  ibv_ah* handle_of(const Endpoint& peer) {
    ibv_ah_attr attr{};
    attr.port_num = 1;
    attr.dlid = peer.port.lid;
    if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
      attr.is_global = 1;
      attr.grh.sgid_index = gid_index;
      attr.grh.hop_limit = 64;
      ibv_query_gid(peer.context, 1, peer.gid_index, &attr.grh.dgid);
    }
    ibv_ah* const handle = ibv_create_ah(pd, &attr);
    if (handle != nullptr) handles.push_back(handle);
    return handle;
  }

  /// Posts bytes [offset, offset + bytes) of the memory as a receive buffer.
  int post_receive(uint64_t wr_id, size_t offset, uint32_t bytes) {
    ibv_sge sge{reinterpret_cast<uintptr_t>(memory.data() + offset), bytes, mr->lkey};
    ibv_recv_wr wr{wr_id, nullptr, &sge, 1};
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(qp, &wr, &bad);
  }

  /// A send request for bytes [offset, offset + bytes) of the memory.
  ibv_send_wr send_request(uint64_t wr_id, ibv_ah* handle, const Endpoint& peer, ibv_sge* sge, size_t offset,
                           uint32_t bytes, unsigned flags = IBV_SEND_SIGNALED) {
    *sge = {reinterpret_cast<uintptr_t>(memory.data() + offset), bytes, mr->lkey};
    ibv_send_wr wr{};
    wr.wr_id = wr_id;
    wr.sg_list = sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = flags;
    wr.wr.ud = {handle, peer.qp->qp_num, kQkey};
    return wr;
  }
  int send(uint64_t wr_id, ibv_ah* handle, const Endpoint& peer, size_t offset, uint32_t bytes,
           unsigned flags = IBV_SEND_SIGNALED, uint32_t qkey = kQkey) {
    ibv_sge sge;
    ibv_send_wr wr = send_request(wr_id, handle, peer, &sge, offset, bytes, flags);
    wr.wr.ud.remote_qkey = qkey;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, &wr, &bad);
  }

  /// The next completion; wr_id is UINT64_MAX if none arrived in time.
  static ibv_wc next(ibv_cq* cq) {
    ibv_wc wc{};
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    do {
      if (ibv_poll_cq(cq, 1, &wc) == 1) return wc;
    } while (std::chrono::steady_clock::now() < deadline);
    wc.wr_id = UINT64_MAX;
    return wc;
  }
  static int poll_once(ibv_cq* cq) {
    ibv_wc wc;
    return ibv_poll_cq(cq, 1, &wc);
  }
  static bool is_readable(int descriptor, std::chrono::milliseconds patience) {
    pollfd waited{descriptor, POLLIN, 0};
    return ::poll(&waited, 1, static_cast<int>(patience.count())) == 1;
  }

  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* send_cq = nullptr;
  ibv_cq* recv_cq = nullptr;
  ibv_qp* qp = nullptr;
  ibv_mr* mr = nullptr;
  ibv_port_attr port{};
  uint8_t gid_index = 0;
  std::vector<ibv_ah*> handles;
  std::vector<std::byte> memory = std::vector<std::byte>(64 << 10);
};

inline std::string text_at(const Endpoint& endpoint, size_t offset, size_t bytes) {
  return {reinterpret_cast<const char*>(endpoint.memory.data()) + offset, bytes};
}
inline void write_at(Endpoint& endpoint, size_t offset, const std::string& text) {
  std::memcpy(endpoint.memory.data() + offset, text.data(), text.size());
}

}  // namespace software_verbs
