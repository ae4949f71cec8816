// The properties of the software mlx5 that the transport relies on, over a veth pair between two network namespaces.
#include <sys/wait.h>

#include <algorithm>
#include <thread>

#include "mlx5_endpoint.h"

namespace software_verbs {
namespace {

constexpr uint8_t kAllOk = MLX5_CQE_L2_OK | MLX5_CQE_L3_OK | MLX5_CQE_L4_OK;

TEST_F(Mlx5, device__attributes_and_addresses) {
  RawEndpoint endpoint;
  ASSERT_TRUE(endpoint.is_ready());
  EXPECT_STREQ(ibv_get_device_name(endpoint.context->device), "mlx5_0");
  ibv_device_attr_ex attr{};
  ASSERT_EQ(ibv_query_device_ex(endpoint.context, nullptr, &attr), 0);
  EXPECT_NE(attr.raw_packet_caps & IBV_RAW_PACKET_CAP_IP_CSUM, 0u);
  ibv_port_attr port{};
  ASSERT_EQ(ibv_query_port(endpoint.context, 1, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
  std::array<ibv_gid_entry, 32> gids;
  const ssize_t found = ibv_query_gid_table(endpoint.context, gids.data(), gids.size(), 0);
  ASSERT_GE(found, 4);  // both addresses, each with both types
  const auto has = [&](const char* text) {
    in6_addr wanted;
    inet_pton(AF_INET6, text, &wanted);
    return std::any_of(gids.begin(), gids.begin() + found, [&](const ibv_gid_entry& entry) {
      return entry.gid_type == IBV_GID_TYPE_ROCE_V2 && entry.ndev_ifindex != 0 &&
             std::memcmp(entry.gid.raw, &wanted, sizeof(wanted)) == 0;
    });
  };
  EXPECT_TRUE(has("::ffff:10.77.0.1"));
  EXPECT_TRUE(has("fd77::1"));
  EXPECT_TRUE(has("fe80::ff:fe77:1"));  // from the hardware's address
  EXPECT_EQ(endpoint.ring.cqe_cnt, 8u);
  EXPECT_EQ(endpoint.rwq.stride, 32u);
  mlx5dv_context direct{};
  direct.comp_mask = MLX5DV_CONTEXT_MASK_STRIDING_RQ;
  ASSERT_EQ(mlx5dv_query_device(endpoint.context, &direct), 0);
  EXPECT_EQ(direct.striding_rq_caps.max_single_stride_log_num_of_bytes, 13u);
}

TEST_F(Mlx5, device__threads_look_for_one_and_open_it_at_once) {  // ThreadSanitizer checks this
  const auto look = [] {
    for (int round = 0; round < 20; round++) {
      int count = 0;
      ibv_device** const devices = ibv_get_device_list(&count);
      for (int i = 0; i < count; i++) {
        (void)ibv_get_device_guid(devices[i]);
        if (!mlx5dv_is_supported(devices[i])) continue;
        ibv_context* const context = ibv_open_device(devices[i]);
        EXPECT_NE(context, nullptr);
        if (context != nullptr) ibv_close_device(context);
      }
      ibv_free_device_list(devices);
    }
  };
  std::thread other(look);
  look();
  other.join();
}

TEST_F(Mlx5, receive__datagram_of_the_kernel_has_its_checksum_made) {
  RawEndpoint endpoint;
  ASSERT_TRUE(endpoint.is_ready());
  ASSERT_TRUE(endpoint.steer(4000));
  const int far = open_far_socket(5000);
  send_from_far(far, 4000, "from the kernel");
  const Completed completed = endpoint.wait(0);
  EXPECT_EQ(completed.position, 0u);
  EXPECT_EQ(completed.strides, 1u);
  EXPECT_EQ(completed.bytes, 42u + 15);
  EXPECT_EQ(completed.checks, kAllOk);
  EXPECT_EQ(endpoint.payload_at(0, 15), "from the kernel");
  close(far);
}

TEST_F(Mlx5, send__kernel_socket_takes_the_frame) {
  RawEndpoint endpoint;
  ASSERT_TRUE(endpoint.is_ready());
  const int far = open_far_socket(5001);
  FrameSpec spec;
  spec.to = Wire::kFarAddress;
  spec.from = Wire::kNearAddress;
  std::swap(spec.source, spec.destination);
  spec.port = 5001;
  std::vector<std::byte> frame = make_frame(spec);
  frame[24] = frame[25] = frame[40] = frame[41] = std::byte{0x55};  // the device computes both checksums
  ASSERT_EQ(endpoint.send(frame, IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM), 0);
  EXPECT_EQ(endpoint.next_send(), IBV_WC_SUCCESS);
  std::array<char, 64> received;
  ASSERT_EQ(recv(far, received.data(), received.size(), 0), 5);
  EXPECT_EQ(std::string(received.data(), 5), "hello");
  close(far);
}

TEST_F(Mlx5, loopback__frame_to_the_own_address_is_there_when_the_call_returns) {
  RawEndpoint one, other;
  ASSERT_TRUE(one.is_ready() && other.is_ready());
  ASSERT_TRUE(other.steer(4001));
  FrameSpec spec;
  spec.from = Wire::kNearAddress;
  spec.source = Wire::kNear;
  spec.port = 4001;
  spec.payload = "x";
  ASSERT_EQ(one.send(make_frame(spec), IBV_SEND_SIGNALED | IBV_SEND_INLINE), 0);
  const Completed completed = other.look(0);
  ASSERT_EQ(completed.opcode, MLX5_CQE_RESP_SEND);
  EXPECT_EQ(completed.bytes, 60u);  // padded
  EXPECT_EQ(completed.checks, kAllOk);
  EXPECT_EQ(other.payload_at(0, 1), "x");
  EXPECT_EQ(counters().frames_looped, 1u);
}

TEST_F(Mlx5, loopback__frame_to_the_own_address_reaches_another_process) {
  std::array<int, 2> start;
  ASSERT_EQ(pipe(start.data()), 0);
  const pid_t child = fork();  // before there are other threads
  if (child == 0) {
    char go;
    if (read(start[0], &go, 1) != 1) _exit(1);
    RawEndpoint sender;
    FrameSpec spec;
    spec.from = Wire::kNearAddress;
    spec.source = Wire::kNear;
    spec.port = 4002;
    _exit(sender.is_ready() && sender.send(make_frame(spec)) == 0 ? 0 : 1);
  }
  RawEndpoint receiver;
  ASSERT_TRUE(receiver.is_ready());
  ASSERT_TRUE(receiver.steer(4002));
  ASSERT_EQ(write(start[1], "", 1), 1);
  EXPECT_EQ(receiver.wait(0).checks, kAllOk);
  EXPECT_EQ(receiver.payload_at(0, 5), "hello");
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  close(start[0]);
  close(start[1]);
}

TEST_F(Mlx5, receive__datagram_over_ipv6) {
  RawEndpoint endpoint;
  ASSERT_TRUE(endpoint.is_ready());
  struct {
    ibv_flow_attr attr;
    ibv_flow_spec_ipv6 ip;
    ibv_flow_spec_tcp_udp udp;
  } rule{};
  rule.attr.size = sizeof(rule);
  rule.attr.num_of_specs = 2;
  rule.attr.port = 1;
  rule.ip.type = IBV_FLOW_SPEC_IPV6;
  rule.ip.size = sizeof(rule.ip);
  inet_pton(AF_INET6, "fd77::1", rule.ip.val.dst_ip);
  std::memset(rule.ip.mask.dst_ip, 0xff, 16);
  rule.udp = RawEndpoint::rule_for(4000).udp;
  ibv_flow* const flow = ibv_create_flow(endpoint.qp, &rule.attr);
  ASSERT_NE(flow, nullptr);
  endpoint.flows.push_back(flow);
  const int far = Wire::far([] { return socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0); });
  sockaddr_in6 to{};
  to.sin6_family = AF_INET6;
  to.sin6_port = htons(4000);
  inet_pton(AF_INET6, "fd77::1", &to.sin6_addr);
  ASSERT_EQ(sendto(far, "six", 3, 0, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 3);
  const Completed completed = endpoint.wait(0);
  EXPECT_EQ(completed.bytes, 14u + 40 + 8 + 3);
  EXPECT_EQ(completed.checks, kAllOk);
  close(far);
}

TEST_F(Mlx5, overrun__entries_hold_the_last_eight_positions) {
  RawEndpoint endpoint;
  ASSERT_TRUE(endpoint.is_ready());
  ASSERT_TRUE(endpoint.steer(4000));
  EXPECT_EQ(endpoint.look(3).opcode, MLX5_CQE_INVALID);
  for (int i = 0; i < 20; i++) endpoint.send_to_self(4000, "frame " + std::to_string(i));
  for (uint32_t i = 0; i < 8; i++) {
    const Completed completed = endpoint.look(i);
    EXPECT_EQ(completed.position, i < 4 ? 16 + i : 8 + i);
    EXPECT_EQ(completed.owner, i >= 4);  // the third round has 0 again
  }
  EXPECT_EQ(endpoint.payload_at(3, 7), "frame 3");
  EXPECT_EQ(endpoint.payload_at(19, 8), "frame 19");
}

TEST_F(Mlx5, wrap__descriptors_are_used_in_turn_and_frames_without_one_are_lost) {
  RawEndpoint endpoint(2);
  ASSERT_TRUE(endpoint.is_ready());
  ASSERT_TRUE(endpoint.steer(4000));
  constexpr uint64_t kAll = 2 * RawEndpoint::kStrides;
  for (uint64_t i = 0; i < kAll; i++) endpoint.send_to_self(4000, "first");
  EXPECT_EQ(endpoint.wait(kAll - 1).position, kAll - 1);
  endpoint.send_to_self(4000, "lost!");
  EXPECT_EQ(counters().dropped_no_receive, 1u);
  EXPECT_EQ(endpoint.payload_at(0, 5), "first");
  endpoint.post(1);
  endpoint.send_to_self(4000, "again");
  EXPECT_EQ(endpoint.wait(kAll).position, kAll);
  EXPECT_EQ(endpoint.payload_at(kAll, 5), "again");
  EXPECT_EQ(counters().receive_descriptors, 3u);
  EXPECT_EQ(counters().strides_used, kAll + 1);
  endpoint.post(2);  // one more than there is space for
  endpoint.send_to_self(4000, "more?");
  EXPECT_GE(counters().bad_doorbells, 1u);
}

TEST_F(Mlx5, strides__frame_takes_several_and_stays_in_its_descriptor) {
  RawEndpoint endpoint(2, 64);
  ASSERT_TRUE(endpoint.is_ready());
  ASSERT_TRUE(endpoint.steer(4000));
  const std::string payload(1472, 'p');  // 1514 B in 24 strides: 21 frames fill 504 of 512
  for (int i = 0; i < 22; i++) endpoint.send_to_self(4000, payload);
  const Completed last = endpoint.wait(20);
  EXPECT_EQ(last.position, 480u);
  EXPECT_EQ(last.strides, 24u);
  EXPECT_EQ(last.bytes, 1514u);
  const Completed filler = endpoint.wait(21);
  EXPECT_TRUE(filler.is_filler);
  EXPECT_EQ(filler.position, 504u);
  EXPECT_EQ(filler.strides, 8u);
  EXPECT_EQ(endpoint.wait(22).position, 512u);
  EXPECT_EQ(counters().fillers, 1u);
}

TEST_F(Mlx5, arm__next_completion_raises_one_event_and_earlier_ones_none) {
  RawEndpoint endpoint;
  ASSERT_TRUE(endpoint.is_ready());
  ASSERT_TRUE(endpoint.steer(4000));
  using std::chrono::milliseconds;
  endpoint.send_to_self(4000, "there already");
  endpoint.arm(0);
  EXPECT_FALSE(endpoint.wait_for_event(milliseconds(5)));
  endpoint.send_to_self(4000, "next");
  EXPECT_TRUE(endpoint.wait_for_event(kPatience));
  endpoint.send_to_self(4000, "not armed");
  EXPECT_FALSE(endpoint.wait_for_event(milliseconds(5)));
  endpoint.events--;  // the sequence number of a past event
  endpoint.arm(3);
  endpoint.send_to_self(4000, "stale");
  EXPECT_FALSE(endpoint.wait_for_event(milliseconds(5)));
  endpoint.events++;
  const int far = open_far_socket(5002);
  for (int round = 0; round < 6; round++) {  // with events from the thread, and with more than the two bits of the
                                             // number
    endpoint.arm(4);
    send_from_far(far, 4000, "from the wire");
    EXPECT_TRUE(endpoint.wait_for_event(kPatience));
  }
  EXPECT_EQ(counters().completion_events, 7u);
  close(far);
}

TEST_F(Mlx5, steer__frames_go_where_all_specifications_match) {
  RawEndpoint one, other;
  ASSERT_TRUE(one.is_ready() && other.is_ready());
  ASSERT_TRUE(one.steer(4000));
  RawEndpoint::Rule tagged = RawEndpoint::rule_for(4001);
  tagged.eth.val.vlan_tag = htons(5);
  tagged.eth.mask.vlan_tag = htons(0xfff);
  ASSERT_TRUE(other.steer(tagged));
  const auto arrives = [](const FrameSpec& spec) {
    const std::vector<std::byte> frame = make_frame(spec);
    return control()->inject_frame(2, frame.data(), frame.size());
  };
  EXPECT_TRUE(arrives({}));
  FrameSpec spec;
  spec.port = 4001;
  EXPECT_FALSE(arrives(spec));
  spec.vlan = 0x2005;  // priority 1
  EXPECT_TRUE(arrives(spec));
  spec.vlan = 6;
  EXPECT_FALSE(arrives(spec));
  FrameSpec elsewhere;
  elsewhere.to = Wire::kFarAddress;
  EXPECT_FALSE(arrives(elsewhere));
  elsewhere = {};
  elsewhere.destination = "10.77.0.3";
  EXPECT_FALSE(arrives(elsewhere));
  EXPECT_EQ(one.wait(0).checks, kAllOk);
  EXPECT_EQ(other.wait(0).bytes, 46u + 5);
  EXPECT_GE(counters().dropped_no_flow, 4u);  // the far kernel also asks for neighbours and routers
}

TEST_F(Mlx5, steer__equal_rules_share_a_frame_and_priority_decides_else) {
  RawEndpoint one, other, last;
  ASSERT_TRUE(one.is_ready() && other.is_ready() && last.is_ready());
  ASSERT_TRUE(one.steer(4000));
  RawEndpoint::Rule later = RawEndpoint::rule_for(4000);
  later.attr.priority = 1;
  ASSERT_TRUE(one.steer(later));
  ASSERT_TRUE(other.steer(4000));  // another context: both queues take the frame
  one.send_to_self(4000, "both");
  EXPECT_EQ(one.wait(0).position, 0u);
  EXPECT_EQ(one.look(1).opcode, MLX5_CQE_INVALID);  // the later rule does not take it
  EXPECT_EQ(other.wait(0).position, 0u);
}

TEST_F(Mlx5, receive__vlan_tag_that_the_kernel_takes_out_is_put_back) {
  RawEndpoint endpoint;
  ASSERT_TRUE(endpoint.is_ready());
  RawEndpoint::Rule rule = RawEndpoint::rule_for(4000);
  rule.eth.val.vlan_tag = htons(9);
  rule.eth.mask.vlan_tag = htons(0xfff);
  ASSERT_TRUE(endpoint.steer(rule));
  FrameSpec spec;
  spec.vlan = 9;
  const std::vector<std::byte> frame = make_frame(spec);
  send_frame_from_far(frame);
  const Completed completed = endpoint.wait(0);
  EXPECT_EQ(completed.checks, kAllOk);
  EXPECT_EQ(endpoint.frame_at(0, completed.bytes), frame);
}

TEST_F(Mlx5, memory__is_counted_per_object) {
  RawEndpoint endpoint(8);
  ASSERT_TRUE(endpoint.is_ready());
  ASSERT_TRUE(endpoint.steer(4000));
  const Counters now = counters();
  EXPECT_EQ(now.steering_rules, 1u);
  EXPECT_EQ(now.receive_descriptors, 8u);
  EXPECT_EQ(now.completion_bytes, (8 + 128) * 64u);
  EXPECT_EQ(now.doorbell_bytes, 4 * 8u);             // two completion queues, a receive and a send queue
  EXPECT_EQ(now.descriptor_bytes, 8 * 32u + 16384);  // 64 sends of 32 B of segments and 132 B of inline data
}

}  // namespace
}  // namespace software_verbs
