// The properties of verbs that programs may rely on. Every case also holds for Soft-RoCE: run the executable without
// LD_LIBRARY_PATH on a host that has Soft-RoCE.
#include <fcntl.h>

#include <cerrno>
#include <future>

#include "software_verbs/endpoint.h"

namespace software_verbs {
namespace {

constexpr size_t kReceive = 32 << 10;  ///< offset at which endpoints receive

struct VerbsTest : testing::Test {
  void SetUp() override {
    ASSERT_TRUE(a.is_ready() && b.is_ready()) << "no usable device";
    to_b = a.handle_of(b);
    ASSERT_NE(to_b, nullptr);
  }
  void send_text(uint64_t wr_id, const std::string& text) {
    write_at(a, 0, text);
    ASSERT_EQ(a.send(wr_id, to_b, b, 0, static_cast<uint32_t>(text.size())), 0);
    const ibv_wc wc = Endpoint::next(a.send_cq);
    ASSERT_EQ(wc.wr_id, wr_id);
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
  }
  Endpoint a{Sizes{.inline_bytes = 64}};
  Endpoint b;
  ibv_ah* to_b = nullptr;
};

TEST_F(VerbsTest, payload_arrives_behind_40_bytes_of_route_header) {
  ASSERT_EQ(b.post_receive(7, kReceive, 1000), 0);
  send_text(1, "hello");
  const ibv_wc wc = Endpoint::next(b.recv_cq);
  ASSERT_EQ(wc.wr_id, 7u);
  ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_RECV);
  EXPECT_EQ(wc.byte_len, kGrhBytes + 5);
  EXPECT_EQ(wc.qp_num, b.qp->qp_num);
  EXPECT_EQ(wc.src_qp, a.qp->qp_num);
  EXPECT_EQ(text_at(b, kReceive + kGrhBytes, 5), "hello");
  EXPECT_TRUE((wc.wc_flags & IBV_WC_GRH) != 0);
  EXPECT_EQ(b.memory[kReceive + 20], std::byte{0x45});  // RoCE v2 over IPv4: an IP header without options
  ibv_gid gid;
  ASSERT_EQ(ibv_query_gid(a.context, 1, a.gid_index, &gid), 0);
  EXPECT_EQ(std::memcmp(b.memory.data() + kReceive + 32, gid.raw + 12, 4), 0);  // its source address
}

TEST_F(VerbsTest, gather_and_scatter_lists_keep_the_order_of_bytes) {
  std::array<ibv_sge, 2> into{ibv_sge{reinterpret_cast<uintptr_t>(b.memory.data() + kReceive), 42, b.mr->lkey},
                              ibv_sge{reinterpret_cast<uintptr_t>(b.memory.data()), 100, b.mr->lkey}};
  ibv_recv_wr receive{7, nullptr, into.data(), 2};
  ibv_recv_wr* bad_receive = nullptr;
  ASSERT_EQ(ibv_post_recv(b.qp, &receive, &bad_receive), 0);
  write_at(a, 0, "abc");
  write_at(a, 1000, "defg");
  std::array<ibv_sge, 2> from;
  ibv_send_wr wr = a.send_request(1, to_b, b, from.data(), 0, 3);
  from[1] = {reinterpret_cast<uintptr_t>(a.memory.data() + 1000), 4, a.mr->lkey};
  wr.num_sge = 2;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
  EXPECT_EQ(Endpoint::next(b.recv_cq).byte_len, kGrhBytes + 7);
  EXPECT_EQ(text_at(b, kReceive + kGrhBytes, 2) + text_at(b, 0, 5), "abcdefg");
}

TEST_F(VerbsTest, linked_requests_arrive_in_order) {
  for (uint64_t i = 0; i < 3; i++) ASSERT_EQ(b.post_receive(i, kReceive + i * 1000, 1000), 0);
  std::array<ibv_sge, 3> sges;
  std::array<ibv_send_wr, 3> wrs;
  for (size_t i = 0; i < 3; i++) {
    write_at(a, i * 100, "number " + std::to_string(i));
    wrs[i] = a.send_request(i, to_b, b, &sges[i], i * 100, 8);
    if (i > 0) wrs[i - 1].next = &wrs[i];
  }
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a.qp, wrs.data(), &bad), 0);
  for (uint64_t i = 0; i < 3; i++) {
    EXPECT_EQ(Endpoint::next(b.recv_cq).wr_id, i);
    EXPECT_EQ(text_at(b, kReceive + i * 1000 + kGrhBytes, 8), "number " + std::to_string(i));
    EXPECT_EQ(Endpoint::next(a.send_cq).wr_id, i);
  }
}

TEST_F(VerbsTest, inline_bytes_may_change_after_the_post) {
  ASSERT_EQ(b.post_receive(7, kReceive, 1000), 0);
  write_at(a, 0, "before");
  ASSERT_EQ(a.send(1, to_b, b, 0, 6, IBV_SEND_SIGNALED | IBV_SEND_INLINE), 0);
  write_at(a, 0, "after!");
  ASSERT_EQ(Endpoint::next(b.recv_cq).wr_id, 7u);
  EXPECT_EQ(text_at(b, kReceive + kGrhBytes, 6), "before");
}

TEST_F(VerbsTest, immediate_data_arrives) {
  ASSERT_EQ(b.post_receive(7, kReceive, 1000), 0);
  ibv_sge sge;
  ibv_send_wr wr = a.send_request(1, to_b, b, &sge, 0, 4);
  wr.opcode = IBV_WR_SEND_WITH_IMM;
  wr.imm_data = 0x01020304;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
  const ibv_wc wc = Endpoint::next(b.recv_cq);
  EXPECT_TRUE((wc.wc_flags & IBV_WC_WITH_IMM) != 0);
  EXPECT_EQ(wc.imm_data, 0x01020304u);
}

TEST_F(VerbsTest, packet_with_another_q_key_is_lost) {
  ASSERT_EQ(b.post_receive(7, kReceive, 1000), 0);
  ASSERT_EQ(a.send(1, to_b, b, 0, 5, IBV_SEND_SIGNALED, kQkey + 1), 0);
  EXPECT_EQ(Endpoint::next(a.send_cq).status, IBV_WC_SUCCESS);
  send_text(2, "next");
  ASSERT_EQ(Endpoint::next(b.recv_cq).wr_id, 7u);
  EXPECT_EQ(text_at(b, kReceive + kGrhBytes, 4), "next");
}

TEST_F(VerbsTest, send_above_the_mtu_completes_and_is_lost) {
  const uint32_t mtu = 128u << a.port.active_mtu;
  ASSERT_EQ(b.post_receive(7, kReceive, 16 << 10), 0);
  ASSERT_EQ(a.send(1, to_b, b, 0, mtu + 1), 0);
  EXPECT_EQ(Endpoint::next(a.send_cq).status, IBV_WC_SUCCESS);
  ASSERT_EQ(a.send(2, to_b, b, 0, mtu), 0);
  EXPECT_EQ(Endpoint::next(b.recv_cq).byte_len, kGrhBytes + mtu);
}

TEST_F(VerbsTest, packet_without_a_posted_receive_is_lost) {
  Endpoint marker;
  ASSERT_TRUE(marker.is_ready());
  ASSERT_EQ(marker.post_receive(1, kReceive, 1000), 0);
  send_text(1, "early");
  ASSERT_EQ(a.send(2, a.handle_of(marker), marker, 0, 5), 0);
  ASSERT_EQ(Endpoint::next(marker.recv_cq).wr_id, 1u);  // so "early" has also arrived
  ASSERT_EQ(b.post_receive(7, kReceive, 1000), 0);
  EXPECT_EQ(Endpoint::next(a.send_cq).wr_id, 2u);
  send_text(3, "later");
  ASSERT_EQ(Endpoint::next(b.recv_cq).wr_id, 7u);
  EXPECT_EQ(text_at(b, kReceive + kGrhBytes, 5), "later");
}

TEST_F(VerbsTest, too_short_a_receive_buffer_is_an_error) {
  ASSERT_EQ(b.post_receive(7, kReceive, kGrhBytes + 4), 0);
  send_text(1, "hello");
  const ibv_wc wc = Endpoint::next(b.recv_cq);
  EXPECT_EQ(wc.wr_id, 7u);
  EXPECT_NE(wc.status, IBV_WC_SUCCESS);
}

TEST_F(VerbsTest, send_from_memory_of_another_key_fails) {
  ibv_sge sge;
  ibv_send_wr wr = a.send_request(1, to_b, b, &sge, 0, 100);
  sge.lkey = a.mr->lkey + 0x5500;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
  const ibv_wc wc = Endpoint::next(a.send_cq);
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_NE(wc.status, IBV_WC_SUCCESS);
  EXPECT_NE(a.state(), IBV_QPS_RTS);
}

TEST_F(VerbsTest, send_past_the_end_of_its_region_fails) {
  ASSERT_EQ(a.send(1, to_b, b, a.memory.size() - 10, 11), 0);
  EXPECT_NE(Endpoint::next(a.send_cq).status, IBV_WC_SUCCESS);
}

TEST_F(VerbsTest, error_state_flushes_posted_receives_in_order) {
  for (uint64_t i = 0; i < 5; i++) ASSERT_EQ(b.post_receive(i, kReceive, 1000), 0);
  ASSERT_EQ(b.end(), 0);
  for (uint64_t i = 0; i < 5; i++) {
    const ibv_wc wc = Endpoint::next(b.recv_cq);
    EXPECT_EQ(wc.wr_id, i);
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(wc.qp_num, b.qp->qp_num);
  }
}

TEST_F(VerbsTest, send_posted_in_the_error_state_is_flushed) {
  ASSERT_EQ(a.end(), 0);
  ASSERT_EQ(a.send(1, to_b, b, 0, 5), 0);
  const ibv_wc wc = Endpoint::next(a.send_cq);
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(VerbsTest, request_of_a_list_that_cannot_be_posted_is_named) {
  std::array<ibv_sge, 3> sges;
  std::array<ibv_send_wr, 3> wrs;
  for (size_t i = 0; i < 3; i++) {
    wrs[i] = a.send_request(i, to_b, b, &sges[i], 0, 8);
    if (i > 0) wrs[i - 1].next = &wrs[i];
  }
  wrs[1].send_flags |= IBV_SEND_INLINE;  // too much inline data
  sges[1].length = 16 << 10;
  ibv_send_wr* bad = nullptr;
  EXPECT_NE(ibv_post_send(a.qp, wrs.data(), &bad), 0);
  EXPECT_EQ(bad, &wrs[1]);
  EXPECT_EQ(Endpoint::next(a.send_cq).wr_id, 0u);  // the first was posted
  EXPECT_EQ(Endpoint::poll_once(a.send_cq), 0);
}

TEST_F(VerbsTest, too_many_inline_bytes_are_refused) { EXPECT_NE(a.send(1, to_b, b, 0, 4096, IBV_SEND_INLINE), 0); }

TEST_F(VerbsTest, armed_queue_raises_one_event) {
  for (uint64_t i = 0; i < 2; i++) ASSERT_EQ(b.post_receive(i, kReceive, 1000), 0);
  ASSERT_EQ(fcntl(b.channel->fd, F_SETFL, O_NONBLOCK), 0);
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  ASSERT_EQ(ibv_req_notify_cq(b.recv_cq, 0), 0);
  EXPECT_EQ(ibv_get_cq_event(b.channel, &cq, &cq_context), -1);
  EXPECT_EQ(errno, EAGAIN);
  send_text(1, "one");
  ASSERT_TRUE(Endpoint::is_readable(b.channel->fd, kPatience));
  ASSERT_EQ(ibv_get_cq_event(b.channel, &cq, &cq_context), 0);
  EXPECT_EQ(cq, b.recv_cq);
  EXPECT_EQ(cq_context, &b);
  send_text(2, "two");
  EXPECT_EQ(Endpoint::next(b.recv_cq).wr_id, 0u);
  EXPECT_EQ(Endpoint::next(b.recv_cq).wr_id, 1u);
  EXPECT_EQ(ibv_get_cq_event(b.channel, &cq, &cq_context), -1);  // not armed any more
  EXPECT_EQ(errno, EAGAIN);
  ibv_ack_cq_events(b.recv_cq, 1);
}

TEST_F(VerbsTest, queue_that_is_armed_again_before_its_event_is_taken_raises_another) {
  for (uint64_t i = 0; i < 2; i++) ASSERT_EQ(b.post_receive(i, kReceive, 1000), 0);
  ASSERT_EQ(fcntl(b.channel->fd, F_SETFL, O_NONBLOCK), 0);
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  ASSERT_EQ(ibv_req_notify_cq(b.recv_cq, 0), 0);
  send_text(1, "one");
  ASSERT_TRUE(Endpoint::is_readable(b.channel->fd, kPatience));
  ASSERT_EQ(ibv_req_notify_cq(b.recv_cq, 0), 0);
  ASSERT_EQ(ibv_get_cq_event(b.channel, &cq, &cq_context), 0);
  ibv_ack_cq_events(b.recv_cq, 1);
  EXPECT_EQ(ibv_get_cq_event(b.channel, &cq, &cq_context), -1);
  send_text(2, "two");
  ASSERT_TRUE(Endpoint::is_readable(b.channel->fd, kPatience));
  ASSERT_EQ(ibv_get_cq_event(b.channel, &cq, &cq_context), 0);
  ibv_ack_cq_events(b.recv_cq, 1);
}

TEST_F(VerbsTest, arming_raises_no_event_for_completions_that_are_there) {
  Endpoint marker;
  ASSERT_TRUE(marker.is_ready());
  ASSERT_EQ(marker.post_receive(1, kReceive, 1000), 0);
  ASSERT_EQ(b.post_receive(7, kReceive, 1000), 0);
  send_text(1, "early");
  ASSERT_EQ(a.send(2, a.handle_of(marker), marker, 0, 5), 0);
  ASSERT_EQ(Endpoint::next(marker.recv_cq).wr_id, 1u);  // so "early" has also arrived
  ASSERT_EQ(ibv_req_notify_cq(b.recv_cq, 0), 0);
  EXPECT_FALSE(Endpoint::is_readable(b.channel->fd, std::chrono::milliseconds(0)));
  EXPECT_EQ(Endpoint::next(b.recv_cq).wr_id, 7u);
}

TEST_F(VerbsTest, flush_errors_raise_an_event) {
  ASSERT_EQ(b.post_receive(7, kReceive, 1000), 0);
  ASSERT_EQ(ibv_req_notify_cq(b.recv_cq, 0), 0);
  ASSERT_EQ(b.end(), 0);
  ASSERT_TRUE(Endpoint::is_readable(b.channel->fd, kPatience));
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(b.channel, &cq, &cq_context), 0);
  ibv_ack_cq_events(cq, 1);
  EXPECT_EQ(Endpoint::next(b.recv_cq).status, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(VerbsTest, queue_is_destroyed_after_its_events_are_acknowledged) {
  Endpoint c;
  ASSERT_TRUE(c.is_ready());
  ASSERT_EQ(c.post_receive(7, kReceive, 1000), 0);
  ASSERT_EQ(ibv_req_notify_cq(c.recv_cq, 0), 0);
  ASSERT_EQ(a.send(1, a.handle_of(c), c, 0, 5), 0);
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(c.channel, &cq, &cq_context), 0);  // blocks until the packet arrives
  ASSERT_EQ(ibv_destroy_qp(std::exchange(c.qp, nullptr)), 0);
  std::future<int> destroyed =
      std::async(std::launch::async, [queue = std::exchange(c.recv_cq, nullptr)] { return ibv_destroy_cq(queue); });
  EXPECT_EQ(destroyed.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  ibv_ack_cq_events(cq, 1);
  EXPECT_EQ(destroyed.get(), 0);
}

TEST_F(VerbsTest, unsignalled_sends_have_no_completion) {
  Endpoint quiet{Sizes{.signals_all = false}};
  ASSERT_TRUE(quiet.is_ready());
  ibv_ah* const handle = quiet.handle_of(b);
  for (uint64_t i = 0; i < 4; i++) ASSERT_EQ(quiet.send(i, handle, b, 0, 5, 0), 0);
  ASSERT_EQ(quiet.send(4, handle, b, 0, 5, IBV_SEND_SIGNALED), 0);
  EXPECT_EQ(Endpoint::next(quiet.send_cq).wr_id, 4u);
  EXPECT_EQ(Endpoint::poll_once(quiet.send_cq), 0);
}

TEST_F(VerbsTest, failed_send_completes_though_unsignalled) {
  Endpoint quiet{Sizes{.signals_all = false}};
  ASSERT_TRUE(quiet.is_ready());
  ASSERT_EQ(quiet.send(1, quiet.handle_of(b), b, quiet.memory.size() - 1, 100, 0), 0);
  const ibv_wc wc = Endpoint::next(quiet.send_cq);
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_NE(wc.status, IBV_WC_SUCCESS);
}

TEST_F(VerbsTest, send_before_rts_is_refused) {
  for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR}) {
    Endpoint early{Sizes{}, state};
    ASSERT_NE(early.qp, nullptr);
    EXPECT_NE(early.send(1, early.handle_of(b), b, 0, 5), 0) << state;
  }
}

TEST_F(VerbsTest, state_changes_need_their_attributes) {
  Endpoint fresh{Sizes{}, IBV_QPS_RESET};
  ASSERT_NE(fresh.qp, nullptr);
  ibv_qp_attr attr{};
  attr.port_num = 1;
  attr.qp_state = IBV_QPS_RTS;
  EXPECT_EQ(ibv_modify_qp(fresh.qp, &attr, IBV_QP_STATE), EINVAL);
  attr.qp_state = IBV_QPS_INIT;
  EXPECT_EQ(ibv_modify_qp(fresh.qp, &attr, IBV_QP_STATE | IBV_QP_PORT), EINVAL);
}

TEST_F(VerbsTest, objects_in_use_are_not_destroyed) {
  EXPECT_EQ(ibv_destroy_cq(a.recv_cq), EBUSY);
  EXPECT_EQ(ibv_dealloc_pd(a.pd), EBUSY);
  EXPECT_EQ(ibv_destroy_comp_channel(a.channel), EBUSY);
}

TEST_F(VerbsTest, address_handle_needs_a_gid_index_that_exists) {
  ibv_ah_attr attr{};
  attr.port_num = 1;
  attr.is_global = 1;
  attr.grh.sgid_index = 200;
  ASSERT_EQ(ibv_query_gid(b.context, 1, b.gid_index, &attr.grh.dgid), 0);
  EXPECT_EQ(ibv_create_ah(a.pd, &attr), nullptr);
}

TEST_F(VerbsTest, two_endpoints_talk_in_both_directions) {
  ibv_ah* const to_a = b.handle_of(a);
  ASSERT_NE(to_a, nullptr);
  ASSERT_EQ(a.post_receive(1, kReceive, 1000), 0);
  ASSERT_EQ(b.post_receive(2, kReceive, 1000), 0);
  write_at(b, 0, "back");
  send_text(1, "there");
  ASSERT_EQ(Endpoint::next(b.recv_cq).wr_id, 2u);
  ASSERT_EQ(b.send(3, to_a, a, 0, 4), 0);
  ASSERT_EQ(Endpoint::next(a.recv_cq).wr_id, 1u);
  EXPECT_EQ(text_at(a, kReceive + kGrhBytes, 4), "back");
}

}  // namespace
}  // namespace software_verbs
