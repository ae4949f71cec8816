// The provider's settings, faults and counters, and the cases in which it is stricter than Soft-RoCE.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <future>

#include "software_verbs/endpoint.h"
#include "software_verbs/provider_fixture.h"

namespace software_verbs {
namespace {

constexpr size_t kReceive = 32 << 10;  ///< offset at which endpoints receive

using FaultsTest = ProviderTest;

/// Two endpoints; a has an address handle of b.
struct Pair {
  explicit Pair(Sizes sizes = {}) : a(sizes), b(sizes) {
    if (a.is_ready() && b.is_ready()) to_b = a.handle_of(b);
  }
  int send(uint64_t wr_id, const std::string& text, unsigned flags = IBV_SEND_SIGNALED) {
    write_at(a, 0, text);
    return a.send(wr_id, to_b, b, 0, static_cast<uint32_t>(text.size()), flags);
  }
  std::string received() { return text_at(b, kReceive + kGrhBytes, 5); }
  Endpoint a, b;
  ibv_ah* to_b = nullptr;
};

TEST_F(FaultsTest, send_slots_are_free_after_a_later_completion_is_polled) {
  Pair pair(Sizes{.sends = 4, .signals_all = false});
  for (uint64_t i = 0; i < 3; i++) ASSERT_EQ(pair.send(i, "quiet", 0), 0);
  ASSERT_EQ(pair.send(3, "loud."), 0);
  EXPECT_EQ(pair.send(4, "full."), ENOMEM);
  EXPECT_EQ(Endpoint::next(pair.a.send_cq).wr_id, 3u);
  for (uint64_t i = 4; i < 8; i++) EXPECT_EQ(pair.send(i, "again", 0), 0);
  EXPECT_EQ(pair.send(8, "stuck"), ENOMEM);  // none of the four was signalled
}

TEST_F(FaultsTest, receive_slots_are_free_after_their_completions_are_polled) {
  Pair pair(Sizes{.receives = 1});
  ASSERT_EQ(pair.b.post_receive(1, kReceive, 1000), 0);
  ASSERT_EQ(pair.send(1, "hello"), 0);
  EXPECT_EQ(pair.b.post_receive(2, kReceive, 1000), ENOMEM);
  EXPECT_EQ(Endpoint::next(pair.b.recv_cq).wr_id, 1u);
  EXPECT_EQ(pair.b.post_receive(2, kReceive, 1000), 0);
}

TEST_F(FaultsTest, too_short_a_receive_buffer_ends_the_queue_pair) {
  Pair pair;
  ASSERT_EQ(pair.b.post_receive(1, kReceive, kGrhBytes + 4), 0);
  ASSERT_EQ(pair.b.post_receive(2, kReceive, 1000), 0);
  ASSERT_EQ(pair.send(1, "hello"), 0);
  EXPECT_EQ(Endpoint::next(pair.b.recv_cq).status, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(Endpoint::next(pair.b.recv_cq).status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(pair.b.state(), IBV_QPS_ERR);
}

TEST_F(FaultsTest, receive_posted_in_the_error_state_is_flushed) {  // on Soft-RoCE only if the program posts it early
                                                                    // enough
  Pair pair;
  ASSERT_EQ(pair.a.end(), 0);
  ASSERT_EQ(pair.a.post_receive(2, kReceive, 1000), 0);
  const ibv_wc wc = Endpoint::next(pair.a.recv_cq);
  EXPECT_EQ(wc.wr_id, 2u);
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(FaultsTest, failed_send_flushes_later_sends_until_the_queue_pair_recovers) {
  Pair pair;
  control()->hold(Hold::kSends);
  ASSERT_EQ(pair.a.send(1, pair.to_b, pair.b, pair.a.memory.size() - 1, 2), 0);
  ASSERT_EQ(pair.send(2, "later", 0), 0);
  control()->hold(Hold::kNothing);
  EXPECT_EQ(Endpoint::next(pair.a.send_cq).status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(Endpoint::next(pair.a.send_cq).status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(pair.a.state(), IBV_QPS_SQE);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  ASSERT_EQ(ibv_modify_qp(pair.a.qp, &attr, IBV_QP_STATE), 0);
  ASSERT_EQ(pair.b.post_receive(1, kReceive, 1000), 0);
  ASSERT_EQ(pair.send(3, "works"), 0);
  EXPECT_EQ(Endpoint::next(pair.b.recv_cq).wr_id, 1u);
}

TEST_F(FaultsTest, failed_send_ends_the_queue_pair_as_on_soft_roce) {
  set("send_error=err");
  Pair pair;
  ASSERT_EQ(pair.a.send(1, pair.to_b, pair.b, pair.a.memory.size() - 1, 2), 0);
  EXPECT_EQ(Endpoint::next(pair.a.send_cq).status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(pair.a.state(), IBV_QPS_ERR);
}

TEST_F(FaultsTest, held_completions_are_released_in_order) {
  Pair pair;
  for (uint64_t i = 0; i < 3; i++) ASSERT_EQ(pair.b.post_receive(i, kReceive, 1000), 0);
  control()->hold(Hold::kCompletions);
  for (uint64_t i = 0; i < 3; i++) ASSERT_EQ(pair.send(i, "hello"), 0);
  for (uint64_t i = 0; i < 3; i++) EXPECT_EQ(Endpoint::next(pair.b.recv_cq).wr_id, i);
  EXPECT_EQ(Endpoint::poll_once(pair.a.send_cq), 0);
  EXPECT_EQ(control()->held(pair.a.qp->qp_num), 3u);
  control()->release(pair.a.qp->qp_num, 2);
  EXPECT_EQ(Endpoint::next(pair.a.send_cq).wr_id, 0u);
  EXPECT_EQ(Endpoint::next(pair.a.send_cq).wr_id, 1u);
  EXPECT_EQ(Endpoint::poll_once(pair.a.send_cq), 0);
  control()->hold(Hold::kNothing);
  EXPECT_EQ(Endpoint::next(pair.a.send_cq).wr_id, 2u);
  EXPECT_EQ(counters().modified_sends, 0u);
}

TEST_F(FaultsTest, memory_that_changes_under_a_held_send_is_counted) {
  Pair pair;
  control()->hold(Hold::kCompletions);
  ASSERT_EQ(pair.send(1, "hello"), 0);
  write_at(pair.a, 0, "other");
  control()->hold(Hold::kNothing);
  EXPECT_EQ(counters().modified_sends, 1u);
}

TEST_F(FaultsTest, address_handle_that_goes_under_a_held_send_is_counted) {
  Pair pair;
  control()->hold(Hold::kCompletions);
  ASSERT_EQ(pair.send(1, "hello"), 0);
  ASSERT_EQ(ibv_destroy_ah(pair.to_b), 0);
  pair.a.handles.clear();
  control()->hold(Hold::kNothing);
  EXPECT_EQ(counters().address_handles_gone, 1u);
}

TEST_F(FaultsTest, held_sends_read_their_memory_when_released) {
  Pair pair;
  ASSERT_EQ(pair.b.post_receive(7, kReceive, 1000), 0);
  control()->hold(Hold::kSends);
  ASSERT_EQ(pair.send(1, "early"), 0);
  write_at(pair.a, 0, "later");
  EXPECT_EQ(Endpoint::poll_once(pair.b.recv_cq), 0);
  control()->hold(Hold::kNothing);
  EXPECT_EQ(Endpoint::next(pair.b.recv_cq).wr_id, 7u);
  EXPECT_EQ(pair.received(), "later");
}

TEST_F(FaultsTest, error_flushes_held_sends_also_unsignalled_ones) {
  Pair pair(Sizes{.signals_all = false});
  control()->hold(Hold::kCompletions);
  for (uint64_t i = 0; i < 3; i++) ASSERT_EQ(pair.send(i, "hello", 0), 0);
  ASSERT_EQ(fcntl(pair.a.context->async_fd, F_SETFL, O_NONBLOCK), 0);
  control()->fail_queue_pair(pair.a.qp->qp_num, true);
  for (uint64_t i = 0; i < 3; i++) {
    const ibv_wc wc = Endpoint::next(pair.a.send_cq);
    EXPECT_EQ(wc.wr_id, i);
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  }
  ibv_async_event event;
  ASSERT_TRUE(Endpoint::is_readable(pair.a.context->async_fd, std::chrono::milliseconds(0)));
  ASSERT_EQ(ibv_get_async_event(pair.a.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_FATAL);
  EXPECT_EQ(event.element.qp, pair.a.qp);
  ibv_ack_async_event(&event);
  EXPECT_EQ(ibv_get_async_event(pair.a.context, &event), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(FaultsTest, queue_pair_is_destroyed_after_its_event_is_acknowledged) {
  Pair pair;
  control()->fail_queue_pair(pair.a.qp->qp_num, true);
  ibv_async_event event;
  ASSERT_EQ(ibv_get_async_event(pair.a.context, &event), 0);
  std::future<int> destroyed =
      std::async(std::launch::async, [qp = std::exchange(pair.a.qp, nullptr)] { return ibv_destroy_qp(qp); });
  EXPECT_EQ(destroyed.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  ibv_ack_async_event(&event);
  EXPECT_EQ(destroyed.get(), 0);
}

TEST_F(FaultsTest, overflow_ends_the_completion_queue_and_its_queue_pairs) {
  Pair pair(Sizes{.completions = 2});
  for (uint64_t i = 0; i < 2; i++) ASSERT_EQ(pair.send(i, "hello"), 0);
  EXPECT_EQ(pair.a.state(), IBV_QPS_RTS);
  ASSERT_EQ(pair.send(2, "hello"), 0);
  EXPECT_EQ(pair.a.state(), IBV_QPS_ERR);
  ibv_async_event event;
  ASSERT_EQ(ibv_get_async_event(pair.a.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_CQ_ERR);
  EXPECT_EQ(event.element.cq, pair.a.send_cq);
  ibv_ack_async_event(&event);
  ASSERT_EQ(ibv_get_async_event(pair.a.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_FATAL);
  ibv_ack_async_event(&event);
  EXPECT_EQ(Endpoint::next(pair.a.send_cq).wr_id, 0u);
  EXPECT_EQ(Endpoint::next(pair.a.send_cq).wr_id, 1u);
  EXPECT_EQ(Endpoint::poll_once(pair.a.send_cq), 0);  // the queue is dead: the flush errors are lost
  EXPECT_EQ(counters().completion_queue_overflows, 1u);
}

TEST_F(FaultsTest, receive_queue_overflows_on_demand) {
  Pair pair;
  control()->overflow_completions(pair.b.qp->qp_num);
  ibv_async_event event;
  ASSERT_EQ(ibv_get_async_event(pair.b.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_CQ_ERR);
  EXPECT_EQ(event.element.cq, pair.b.recv_cq);
  ibv_ack_async_event(&event);
}

TEST_F(FaultsTest, port_that_goes_down_loses_packets_until_it_is_back) {
  Pair pair;
  ASSERT_EQ(pair.b.post_receive(7, kReceive, 1000), 0);
  control()->raise_event(0, IBV_EVENT_PORT_ERR);
  ibv_async_event event;
  ASSERT_EQ(ibv_get_async_event(pair.a.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_PORT_ERR);
  EXPECT_EQ(event.element.port_num, 1);
  ibv_ack_async_event(&event);
  ibv_port_attr port;
  ASSERT_EQ(ibv_query_port(pair.a.context, 1, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_DOWN);
  ASSERT_EQ(pair.send(1, "lost."), 0);
  EXPECT_EQ(Endpoint::next(pair.a.send_cq).status, IBV_WC_SUCCESS);
  control()->raise_event(0, IBV_EVENT_PORT_ACTIVE);
  ASSERT_EQ(pair.send(2, "found"), 0);
  EXPECT_EQ(Endpoint::next(pair.b.recv_cq).wr_id, 7u);
  EXPECT_EQ(pair.received(), "found");
}

TEST_F(FaultsTest, nothing_completes_after_a_fatal_error_of_the_device) {
  Pair pair;
  ASSERT_EQ(pair.b.post_receive(7, kReceive, 1000), 0);
  ASSERT_EQ(pair.send(1, "hello"), 0);
  control()->raise_event(-1, IBV_EVENT_DEVICE_FATAL);
  EXPECT_EQ(Endpoint::poll_once(pair.a.send_cq), 0);
  EXPECT_EQ(Endpoint::poll_once(pair.b.recv_cq), 0);
  EXPECT_EQ(pair.send(2, "hello"), EIO);
  EXPECT_EQ(pair.b.post_receive(8, kReceive, 1000), EIO);
}

TEST_F(FaultsTest, calls_fail_as_often_as_asked) {
  ASSERT_TRUE(control()->fail_calls("ibv_alloc_pd", 1, 1, ENOMEM));
  EXPECT_FALSE(control()->fail_calls("ibv_dance", 0, 1, ENOMEM));
  ibv_context* const context = open_first();
  ibv_pd* const first = ibv_alloc_pd(context);
  EXPECT_NE(first, nullptr);
  EXPECT_EQ(ibv_alloc_pd(context), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  ibv_pd* const third = ibv_alloc_pd(context);
  EXPECT_NE(third, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(first), 0);
  EXPECT_EQ(ibv_dealloc_pd(third), 0);
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST_F(FaultsTest, injected_failure_of_a_post_names_the_first_request) {
  Pair pair;
  ASSERT_TRUE(control()->fail_calls("ibv_post_send", 0, 1, EIO));
  ibv_sge sge;
  ibv_send_wr wr = pair.a.send_request(1, pair.to_b, pair.b, &sge, 0, 5);
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(pair.a.qp, &wr, &bad), EIO);
  EXPECT_EQ(bad, &wr);
  EXPECT_EQ(ibv_post_send(pair.a.qp, &wr, &bad), 0);
}

TEST_F(FaultsTest, address_handles_wait_while_blocked) {
  Pair pair;
  control()->block_address_handles(true);
  std::future<ibv_ah*> handle = std::async(std::launch::async, [&pair] { return pair.b.handle_of(pair.a); });
  while (control()->blocked_address_handles() == 0) std::this_thread::yield();
  ASSERT_EQ(pair.send(1, "hello"), 0);  // the context is not blocked
  control()->block_address_handles(false);
  EXPECT_NE(handle.get(), nullptr);
  EXPECT_EQ(control()->blocked_address_handles(), 0u);
}

TEST_F(FaultsTest, packets_are_dropped_and_corrupted_on_demand) {
  Pair pair;
  for (uint64_t i = 0; i < 4; i++) ASSERT_EQ(pair.b.post_receive(i, kReceive, 1000), 0);
  control()->drop_next(1);
  ASSERT_EQ(pair.send(1, "lost."), 0);
  control()->corrupt_next(1, 4);
  ASSERT_EQ(pair.send(2, "hellO"), 0);
  EXPECT_EQ(Endpoint::next(pair.b.recv_cq).wr_id, 0u);
  EXPECT_EQ(pair.received(), "hell_");
  control()->drop_packets(2);
  for (uint64_t i = 3; i < 7; i++) ASSERT_EQ(pair.send(i, "every"), 0);
  EXPECT_EQ(Endpoint::next(pair.b.recv_cq).wr_id, 1u);
  EXPECT_EQ(Endpoint::next(pair.b.recv_cq).wr_id, 2u);
  EXPECT_EQ(Endpoint::poll_once(pair.b.recv_cq), 0);
}

TEST_F(FaultsTest, datagram_of_any_sender_is_injected) {
  Pair pair;
  ASSERT_EQ(pair.b.post_receive(7, kReceive, 1000), 0);
  ASSERT_TRUE(control()->inject(0, pair.b.qp->qp_num, 0x123456, kQkey + 1, "wrong", 5));
  ASSERT_TRUE(control()->inject(0, pair.b.qp->qp_num, 0x123456, kQkey, "hello", 5));
  const ibv_wc wc = Endpoint::next(pair.b.recv_cq);
  EXPECT_EQ(wc.src_qp, 0x123456u);
  EXPECT_EQ(wc.byte_len, kGrhBytes + 5);
  EXPECT_EQ(pair.received(), "hello");
  EXPECT_EQ(counters().dropped_bad_qkey, 1u);
  ibv_port_attr port;
  ASSERT_EQ(ibv_query_port(pair.b.context, 1, &port), 0);
  EXPECT_EQ(port.qkey_viol_cntr, 1u);
}

TEST_F(FaultsTest, posts_are_counted) {
  Pair pair(Sizes{.inline_bytes = 64, .signals_all = false});
  std::array<ibv_sge, 3> sges;
  std::array<ibv_send_wr, 3> wrs;
  for (size_t i = 0; i < 3; i++) {
    wrs[i] = pair.a.send_request(i, pair.to_b, pair.b, &sges[i], 0, 8, i == 2 ? IBV_SEND_SIGNALED : IBV_SEND_INLINE);
    if (i > 0) wrs[i - 1].next = &wrs[i];
  }
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(pair.a.qp, wrs.data(), &bad), 0);
  EXPECT_EQ(Endpoint::poll_once(pair.b.recv_cq), 0);
  const Counters now = counters();
  EXPECT_EQ(now.send_calls, 1u);
  EXPECT_EQ(now.sends, 3u);
  EXPECT_EQ(now.signalled_sends, 1u);
  EXPECT_EQ(now.inline_sends, 2u);
  EXPECT_EQ(now.packets_sent, 3u);
  EXPECT_EQ(now.dropped_no_receive, 3u);
  EXPECT_EQ(now.queue_pairs, 2u);
  EXPECT_EQ(now.registered_bytes, pair.a.memory.size() + pair.b.memory.size());
}

TEST_F(FaultsTest, infiniband_packet_without_route_header_leaves_its_40_bytes_alone) {
  set("link=infiniband");
  Pair pair;
  ASSERT_EQ(pair.a.port.link_layer, IBV_LINK_LAYER_INFINIBAND);
  ASSERT_NE(pair.a.port.lid, 0);
  ASSERT_EQ(pair.b.post_receive(7, kReceive, 1000), 0);
  write_at(pair.b, kReceive, "untouched");
  ASSERT_EQ(pair.send(1, "hello"), 0);
  const ibv_wc wc = Endpoint::next(pair.b.recv_cq);
  EXPECT_EQ(wc.wc_flags & IBV_WC_GRH, 0u);
  EXPECT_EQ(wc.byte_len, kGrhBytes + 5);
  EXPECT_EQ(wc.slid, pair.a.port.lid);
  EXPECT_EQ(text_at(pair.b, kReceive, 9), "untouched");
  EXPECT_EQ(pair.received(), "hello");
}

TEST_F(FaultsTest, packet_to_a_former_lid_is_lost) {
  set("link=infiniband");
  Pair pair;
  ASSERT_EQ(pair.b.post_receive(7, kReceive, 1000), 0);
  control()->raise_event(0, IBV_EVENT_LID_CHANGE);
  ASSERT_EQ(pair.send(1, "hello"), 0);
  EXPECT_EQ(Endpoint::poll_once(pair.b.recv_cq), 0);
  EXPECT_EQ(counters().dropped_other, 1u);
}

TEST_F(FaultsTest, partitions_are_apart_and_limited_members_too) {
  set("link=infiniband,pkeys=ffff:8001:0001");
  struct Case {
    uint16_t from, to;
    bool arrives;
  };
  for (const Case& wanted : {Case{0, 1, false}, Case{1, 1, true}, Case{2, 1, true}, Case{2, 2, false}}) {
    Endpoint a{Sizes{.pkey_index = wanted.from}};
    Endpoint b{Sizes{.pkey_index = wanted.to}};
    ASSERT_EQ(b.post_receive(7, kReceive, 1000), 0);
    ASSERT_EQ(a.send(1, a.handle_of(b), b, 0, 5), 0);
    EXPECT_EQ(Endpoint::poll_once(b.recv_cq), wanted.arrives ? 1 : 0) << wanted.from << " to " << wanted.to;
  }
  EXPECT_EQ(counters().dropped_bad_pkey, 2u);
}

TEST_F(FaultsTest, devices_reach_each_other) {
  Endpoint a{Sizes{.device = 0}};
  Endpoint b{Sizes{.device = 1}};
  ASSERT_TRUE(a.is_ready() && b.is_ready());
  ASSERT_EQ(b.post_receive(7, kReceive, 1000), 0);
  ASSERT_EQ(a.send(1, a.handle_of(b), b, 0, 5), 0);
  EXPECT_EQ(Endpoint::next(b.recv_cq).wr_id, 7u);
}

TEST_F(FaultsTest, processes_reach_each_other) {
  std::array<int, 2> numbers;
  ASSERT_EQ(pipe(numbers.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    int code = 1;
    {
      Endpoint own;
      Endpoint parent;  // has the parent's address: the same device, another number
      uint32_t parents_number = 0;
      if (read(numbers[0], &parents_number, sizeof(parents_number)) == sizeof(parents_number) && own.is_ready()) {
        ibv_sge sge;
        write_at(own, 0, "child");
        ibv_send_wr wr = own.send_request(1, own.handle_of(parent), parent, &sge, 0, 5);
        wr.wr.ud.remote_qpn = parents_number;
        ibv_send_wr* bad = nullptr;
        code = ibv_post_send(own.qp, &wr, &bad) == 0 ? 0 : 2;
      }
    }
    _exit(code);
  }
  Endpoint own;
  ASSERT_TRUE(own.is_ready());
  ASSERT_EQ(own.post_receive(7, kReceive, 1000), 0);
  ASSERT_EQ(ibv_req_notify_cq(own.recv_cq, 0), 0);
  ASSERT_EQ(write(numbers[1], &own.qp->qp_num, sizeof(own.qp->qp_num)), ssize_t{sizeof(own.qp->qp_num)});
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(own.channel, &cq, &cq_context), 0);
  ibv_ack_cq_events(cq, 1);
  EXPECT_EQ(Endpoint::next(own.recv_cq).wr_id, 7u);
  EXPECT_EQ(text_at(own, kReceive + kGrhBytes, 5), "child");
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close(numbers[0]);
  close(numbers[1]);
}

TEST_F(FaultsTest, hosts_without_rdma_have_no_list_or_an_empty_one) {
  int devices = -1;
  set("devices=-1");
  EXPECT_EQ(ibv_get_device_list(&devices), nullptr);
  EXPECT_EQ(errno, ENOSYS);
  set("devices=0");
  ibv_device** list = ibv_get_device_list(&devices);
  ASSERT_NE(list, nullptr);
  EXPECT_EQ(devices, 0);
  EXPECT_EQ(list[0], nullptr);
  ibv_free_device_list(list);
}

TEST_F(FaultsTest, settings_may_name_one_device) {
  set("soft1.port=down,soft0.open_error=13,soft1.mtu=1024");
  EXPECT_EQ(open_first(0), nullptr);
  EXPECT_EQ(errno, EACCES);
  ibv_context* const context = open_first(1);
  ASSERT_NE(context, nullptr);
  ibv_port_attr port;
  ASSERT_EQ(ibv_query_port(context, 1, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_DOWN);
  EXPECT_EQ(port.active_mtu, IBV_MTU_1024);
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST_F(FaultsTest, limits_are_those_of_the_settings) {
  const auto has_queue_pair = [](const char* settings, Sizes sizes) {
    set(settings);
    return Endpoint{sizes}.is_ready();
  };
  EXPECT_TRUE(has_queue_pair("", {.inline_bytes = 64}));
  EXPECT_FALSE(has_queue_pair("max_inline=0", {.inline_bytes = 1}));
  EXPECT_FALSE(has_queue_pair("max_sge=1", {}));
  EXPECT_FALSE(has_queue_pair("max_qp_wr=15", {}));
  EXPECT_FALSE(has_queue_pair("max_cqe=63", {}));
  EXPECT_FALSE(has_queue_pair("ud=0", {}));
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(FaultsTest, registration_needs_mapped_memory_within_the_limit) {
  set("memlock=8192");
  ibv_context* const context = open_first();
  ASSERT_NE(context, nullptr);
  ibv_pd* const pd = ibv_alloc_pd(context);
  std::vector<std::byte> memory(8193);
  EXPECT_EQ(ibv_reg_mr(pd, memory.data(), 8193, kLocalWrite), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  ibv_mr* const mr = ibv_reg_mr(pd, memory.data(), 8192, kLocalWrite);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(ibv_reg_mr(pd, memory.data(), 1, kLocalWrite), nullptr);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_reg_mr(pd, reinterpret_cast<void*>(4096), 4096, kLocalWrite), nullptr);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST_F(FaultsTest, only_datagram_queue_pairs_can_be_made) {
  Endpoint a;
  ibv_qp_init_attr init{};
  init.send_cq = a.send_cq;
  init.recv_cq = a.recv_cq;
  init.cap = {1, 1, 1, 1, 0};
  init.qp_type = IBV_QPT_RC;
  EXPECT_EQ(ibv_create_qp(a.pd, &init), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(FaultsTest, forked_child_can_close_what_it_inherited) {
  Pair pair;
  const pid_t child = fork();
  if (child == 0) {
    for (const int descriptor : {pair.a.context->cmd_fd, pair.a.context->async_fd, pair.a.channel->fd})
      if (close(descriptor) != 0) _exit(1);
    _exit(0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(pair.b.post_receive(7, kReceive, 1000), 0);
  ASSERT_EQ(pair.send(1, "hello"), 0);
  EXPECT_EQ(Endpoint::next(pair.b.recv_cq).wr_id, 7u);
}

TEST_F(FaultsTest, forked_child_that_destroys_its_parents_object_ends) {
  Endpoint own;
  const pid_t child = fork();
  if (child == 0) {
    ibv_destroy_qp(own.qp);
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
}

#ifndef TERN_IS_SANITIZED  // because LeakSanitizer would end the process first

using LeakDeathTest = FaultsTest;
TEST_F(LeakDeathTest, process_that_leaves_objects_behind_exits_with_a_code) {
  set("leak_check=1");
  EXPECT_EXIT(
      {
        ibv_alloc_pd(open_first());
        exit(0);
      },
      testing::ExitedWithCode(97), "1 protection domains left behind");
}

#endif

}  // namespace
}  // namespace software_verbs
