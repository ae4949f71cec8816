// Faults of the software mlx5 on demand, and the requests that it refuses and the frames that it drops.
#include <sys/wait.h>

#include <cerrno>

#include "mlx5_endpoint.h"

namespace software_verbs {
namespace {

using Mlx5Faults = Mlx5;

constexpr uint8_t kAllOk = MLX5_CQE_L2_OK | MLX5_CQE_L3_OK | MLX5_CQE_L4_OK;

bool inject(const std::vector<std::byte>& frame) { return control()->inject_frame(2, frame.data(), frame.size()); }
void set_settings(const char* settings) {
  setenv("SOFTWARE_VERBS", (std::string("devices=0,mlx5=nv0,") + settings).c_str(), 1);
}

TEST_F(Mlx5Faults, each_call_fails_on_demand_and_nothing_is_left) {
  for (const char* verb : {"ibv_open_device", "ibv_alloc_pd", "ibv_reg_mr", "ibv_create_comp_channel", "ibv_create_cq",
                           "ibv_create_cq_ex", "mlx5dv_create_wq", "mlx5dv_init_obj", "ibv_modify_wq",
                           "ibv_create_rwq_ind_table", "ibv_create_qp_ex", "ibv_create_qp", "ibv_modify_qp"}) {
    ASSERT_TRUE(control()->fail_calls(verb, 0, 1, ENOMEM)) << verb;
    {
      RawEndpoint endpoint;
      EXPECT_FALSE(endpoint.is_ready()) << verb;
    }
    EXPECT_EQ(counters().contexts, 0u) << verb;
  }
  RawEndpoint endpoint;
  ASSERT_TRUE(endpoint.is_ready());
  ASSERT_TRUE(control()->fail_calls("ibv_create_flow", 0, 1, EBUSY));
  EXPECT_FALSE(endpoint.steer(4000));
  EXPECT_EQ(errno, EBUSY);
  ASSERT_TRUE(control()->fail_calls("ibv_query_device_ex", 0, 1, EIO));
  ibv_device_attr_ex attr{};
  EXPECT_EQ(ibv_query_device_ex(endpoint.context, nullptr, &attr), EIO);
  ASSERT_TRUE(control()->fail_calls("mlx5dv_query_device", 0, 1, EIO));
  mlx5dv_context direct{};
  EXPECT_EQ(mlx5dv_query_device(endpoint.context, &direct), EIO);
  ASSERT_TRUE(control()->fail_calls("ibv_post_send", 0, 1, ENOMEM));
  EXPECT_EQ(endpoint.send(make_frame({})), ENOMEM);
}

TEST_F(Mlx5Faults, rules_of_a_wrong_size_or_order_are_refused) {
  RawEndpoint endpoint;
  ASSERT_TRUE(endpoint.is_ready());
  const auto refuses = [&](auto change) {
    RawEndpoint::Rule rule = RawEndpoint::rule_for(4000);
    change(rule);
    errno = 0;
    return endpoint.steer(rule) ? 0 : errno;
  };
  EXPECT_EQ(refuses([](auto& rule) { rule.eth.size--; }), EINVAL);
  EXPECT_EQ(refuses([](auto& rule) { rule.attr.size -= 4; }), EINVAL);
  EXPECT_EQ(refuses([](auto& rule) { rule.attr.num_of_specs = 2; }), EINVAL);
  EXPECT_EQ(refuses([](auto& rule) { rule.attr.num_of_specs = 4; }), EINVAL);
  EXPECT_EQ(refuses([](auto& rule) { rule.attr.port = 2; }), EINVAL);
  EXPECT_EQ(refuses([](auto& rule) { rule.udp.type = IBV_FLOW_SPEC_ETH; }), EINVAL);
  EXPECT_EQ(refuses([](auto& rule) { rule.attr.type = IBV_FLOW_ATTR_SNIFFER; }), EOPNOTSUPP);
  EXPECT_EQ(refuses([](auto& rule) { rule.ip.mask.ttl = 1; }), EOPNOTSUPP);
  EXPECT_EQ(refuses([](auto&) {}), 0);
  EXPECT_EQ(ibv_destroy_qp(endpoint.qp), EBUSY);
  EXPECT_EQ(ibv_destroy_rwq_ind_table(endpoint.table), EBUSY);
  EXPECT_EQ(ibv_destroy_wq(endpoint.wq), EBUSY);
  EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(endpoint.cq)), EBUSY);
  EXPECT_EQ(ibv_destroy_cq(endpoint.send_cq), EBUSY);
}

TEST_F(Mlx5Faults, settings_take_away_what_a_device_lacks) {
  const auto create = [](const char* settings) {
    set_settings(settings);
    errno = 0;
    RawEndpoint endpoint;
    return endpoint.is_ready() ? 0 : errno;
  };
  EXPECT_EQ(create("raw=0"), EPERM);
  EXPECT_EQ(create("striding=0"), EOPNOTSUPP);
  set_settings("dv=0");
  EXPECT_EQ(RawEndpoint().context, nullptr);
  set_settings("flows=0");
  RawEndpoint endpoint;
  ASSERT_TRUE(endpoint.is_ready());
  EXPECT_FALSE(endpoint.steer(4000));
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(Mlx5Faults, checksums_can_be_missing) {
  set_settings("ip_csum=0,rx_csum=0,cqe_size=128");
  RawEndpoint endpoint;
  ASSERT_TRUE(endpoint.is_ready());
  ASSERT_TRUE(endpoint.steer(4000));
  ibv_device_attr_ex attr{};
  ASSERT_EQ(ibv_query_device_ex(endpoint.context, nullptr, &attr), 0);
  EXPECT_EQ(attr.raw_packet_caps & IBV_RAW_PACKET_CAP_IP_CSUM, 0u);
  EXPECT_EQ(endpoint.send(make_frame({}), IBV_SEND_IP_CSUM), EINVAL);
  endpoint.send_to_self(4000, "unchecked");
  EXPECT_EQ(endpoint.ring.cqe_size, 128u);
  EXPECT_EQ(endpoint.wait(0).checks, 0);
}

TEST_F(Mlx5Faults, process_without_the_right_to_raw_packets) {
  const pid_t child = fork();
  if (child == 0) {
    if (setresuid(65534, 65534, 65534) != 0) _exit(2);
    RawEndpoint endpoint;
    const int error = errno;
    _exit(endpoint.context != nullptr && endpoint.qp == nullptr && endpoint.send_qp == nullptr && error == EPERM ? 0
                                                                                                                 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(Mlx5Faults, checksum_flags_are_missing_where_something_is_wrong) {
  RawEndpoint endpoint;
  ASSERT_TRUE(endpoint.is_ready());
  ASSERT_TRUE(endpoint.steer(4000));
  constexpr uint8_t kNotL3 = kAllOk & ~MLX5_CQE_L3_OK;
  constexpr uint8_t kNotL4 = kAllOk & ~MLX5_CQE_L4_OK;
  uint64_t number = 0;
  const auto checks_with = [&](size_t offset, uint8_t value) {
    std::vector<std::byte> frame = make_frame({});
    frame[offset] = static_cast<std::byte>(value);
    EXPECT_TRUE(inject(frame));
    return endpoint.wait(number++).checks;
  };
  EXPECT_EQ(checks_with(42, 'h'), kAllOk);
  EXPECT_EQ(checks_with(42, 'j'), kNotL4);
  EXPECT_EQ(checks_with(22, 63), kNotL3);            // time to live: the UDP checksum does not cover it
  EXPECT_EQ(checks_with(20, 0x20), MLX5_CQE_L2_OK);  // a first fragment, with a wrong header checksum
  EXPECT_EQ(checks_with(39, 60), kNotL4);            // longer than the IP packet
  std::vector<std::byte> unchecked = make_frame({});
  unchecked[40] = unchecked[41] = std::byte{0};
  EXPECT_TRUE(inject(unchecked));
  EXPECT_EQ(endpoint.wait(number++).checks, kAllOk);  // no checksum at all
  control()->corrupt_next(1, 44);
  endpoint.send_to_self(4000, "corrupted");
  EXPECT_EQ(endpoint.wait(number++).checks, kNotL4);
}

TEST_F(Mlx5Faults, frames_are_lost_on_demand_and_above_the_mtu) {
  RawEndpoint endpoint;
  ASSERT_TRUE(endpoint.is_ready());
  ASSERT_TRUE(endpoint.steer(4000));
  control()->drop_next(1);
  endpoint.send_to_self(4000, "dropped");
  endpoint.send_to_self(4000, std::string(1473, 'x'));
  EXPECT_EQ(counters().oversized_sends, 1u);
  EXPECT_EQ(counters().dropped_other, 1u);
  EXPECT_EQ(endpoint.look(0).opcode, MLX5_CQE_INVALID);
  control()->raise_event(-1, IBV_EVENT_PORT_ERR);
  endpoint.send_to_self(4000, "port down");
  control()->raise_event(-1, IBV_EVENT_PORT_ACTIVE);
  endpoint.send_to_self(4000, "arrives");
  EXPECT_EQ(endpoint.payload_at(0, 7), "arrives");
  run("ip link set nv0 down");
  ibv_port_attr port{};
  ASSERT_EQ(ibv_query_port(endpoint.context, 1, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_DOWN);
  FrameSpec away;
  away.to = Wire::kFarAddress;
  EXPECT_EQ(endpoint.send(make_frame(away)), 0);
  EXPECT_EQ(endpoint.next_send(), IBV_WC_SUCCESS);
  EXPECT_GE(counters().dropped_other, 3u);
  run("ip link set nv0 up");
}

TEST_F(Mlx5Faults, held_completions_come_later_and_may_overrun_at_once) {
  RawEndpoint endpoint;
  ASSERT_TRUE(endpoint.is_ready());
  ASSERT_TRUE(endpoint.steer(4000));
  control()->hold_receives(true);
  for (int i = 0; i < 12; i++) endpoint.send_to_self(4000, "held");
  EXPECT_EQ(endpoint.look(0).opcode, MLX5_CQE_INVALID);
  EXPECT_EQ(control()->held_receives(), 12u);
  control()->release_receives(2);
  EXPECT_EQ(endpoint.look(1).position, 1u);
  EXPECT_EQ(endpoint.look(2).opcode, MLX5_CQE_INVALID);
  endpoint.arm(2);
  control()->hold_receives(false);
  EXPECT_TRUE(endpoint.wait_for_event(kPatience));
  EXPECT_EQ(endpoint.look(0).position, 8u);
  EXPECT_EQ(endpoint.look(4).position, 4u);
  EXPECT_EQ(counters().completion_events, 1u);
}

TEST_F(Mlx5Faults, errors_end_the_receive_queue) {
  RawEndpoint endpoint;
  ASSERT_TRUE(endpoint.is_ready());
  ASSERT_TRUE(endpoint.steer(4000));
  control()->fail_receive_queues(MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR);
  const Completed failed = endpoint.wait(0);
  EXPECT_EQ(failed.opcode, MLX5_CQE_RESP_ERR);
  EXPECT_EQ(failed.syndrome, MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR);
  EXPECT_EQ(endpoint.wait(1).syndrome, MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
  endpoint.send_to_self(4000, "lost");
  EXPECT_EQ(counters().dropped_other, 1u);
  // After RESET the queue works again; the doorbell record is then 0.
  ibv_wq_attr attr{};
  attr.attr_mask = IBV_WQ_ATTR_STATE;
  for (const ibv_wq_state state : {IBV_WQS_RESET, IBV_WQS_RDY}) {
    attr.wq_state = state;
    ASSERT_EQ(ibv_modify_wq(endpoint.wq, &attr), 0);
  }
  endpoint.send_to_self(4000, "lost");
  EXPECT_EQ(counters().dropped_no_receive, 1u);
  endpoint.posted = 0;
  endpoint.post(1);
  endpoint.send_to_self(4000, "good again");
  EXPECT_EQ(endpoint.wait(2).position, 0u);
}

TEST_F(Mlx5Faults, memory_that_is_not_registered_is_not_written) {
  RawEndpoint endpoint;
  ASSERT_TRUE(endpoint.is_ready());
  ASSERT_TRUE(endpoint.steer(4000));
  ASSERT_EQ(ibv_dereg_mr(endpoint.mr), 0);
  endpoint.mr = nullptr;
  EXPECT_TRUE(inject(make_frame({})));
  EXPECT_EQ(endpoint.wait(0).syndrome, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR);
}

TEST_F(Mlx5Faults, held_sends_belong_to_the_device) {
  RawEndpoint endpoint;
  ASSERT_TRUE(endpoint.is_ready());
  ASSERT_TRUE(endpoint.steer(4000));
  control()->hold(Hold::kCompletions);
  ASSERT_EQ(endpoint.send(make_frame({}), IBV_SEND_SIGNALED, 0), 0);
  ASSERT_EQ(endpoint.send(make_frame({}), IBV_SEND_SIGNALED, 1), 0);
  EXPECT_EQ(endpoint.wait(1).position, 1u);  // both frames have left
  EXPECT_EQ(control()->held(endpoint.send_qp->qp_num), 2u);
  endpoint.memory.back() ^= std::byte{1};  // not part of the two frames
  control()->release(endpoint.send_qp->qp_num, 1);
  EXPECT_EQ(counters().modified_sends, 0u);
  endpoint.memory[endpoint.memory.size() - (32 << 10) + 2048 + 44] ^= std::byte{1};
  control()->hold(Hold::kNothing);
  EXPECT_EQ(counters().modified_sends, 1u);
  EXPECT_EQ(endpoint.next_send(), IBV_WC_SUCCESS);
  EXPECT_EQ(endpoint.next_send(), IBV_WC_SUCCESS);
  EXPECT_EQ(endpoint.next_send(), IBV_WC_GENERAL_ERR);  // there is no third entry
}

TEST_F(Mlx5Faults, failed_sends_end_the_send_queue) {
  RawEndpoint endpoint;
  ASSERT_TRUE(endpoint.is_ready());
  const ibv_mr right = *endpoint.mr;
  endpoint.mr->lkey++;
  ASSERT_EQ(endpoint.send(make_frame({})), 0);
  endpoint.mr->lkey = right.lkey;
  EXPECT_EQ(endpoint.next_send(), IBV_WC_LOC_PROT_ERR);
  ASSERT_EQ(endpoint.send(make_frame({})), 0);
  EXPECT_EQ(endpoint.next_send(), IBV_WC_WR_FLUSH_ERR);
  control()->fail_queue_pair(endpoint.qp->qp_num, true);
  EXPECT_EQ(endpoint.wait(0).syndrome, MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
  ibv_async_event event;
  ASSERT_EQ(ibv_get_async_event(endpoint.context, &event), 0);
  EXPECT_EQ(event.element.qp, endpoint.qp);
  ibv_ack_async_event(&event);
}

TEST_F(Mlx5Faults, process_that_leaves_objects_behind_is_told) {
  const pid_t child = fork();
  if (child == 0) {
    set_settings("leak_check=1");
    new RawEndpoint;
    exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 97);
}

}  // namespace
}  // namespace software_verbs
