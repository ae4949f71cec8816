// Processes that share an interface: the attachment of the program, later processes, and the state that stays.
#include "transport/xdp/steering.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/if_link.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "unit/transport/xdp/child.h"
#include "unit/transport/xdp/network.h"

using namespace tern::transport::xdp;
using tern::Code;
using tern::Status;
using tern::base::Descriptor;
using tern::base::SocketAddress;
using tern::test::Child;
using tern::test::run;
using tern::test::XdpNetwork;
using testing::HasSubstr;

namespace {

const SocketAddress kAddress = *SocketAddress::parse("10.0.0.1:5000");
constexpr unsigned kIndex = 10;  ///< the index of xdp0
constexpr AttachOptions kByNetlink{.has_links = false};

/// Returns the number of the program at xdp0; 0: no program.
uint32_t attached() {
  LIBBPF_OPTS(bpf_xdp_query_opts, query);
  EXPECT_EQ(bpf_xdp_query(kIndex, 0, &query), 0);
  return query.prog_id != 0 ? query.prog_id : query.drv_prog_id;
}

/// Waits, because the kernel detaches the program a while after the last link is closed.
bool becomes_detached() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20) * tern::patience();
  while (attached() != 0) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

std::unique_ptr<Steering> open(const AttachOptions& options = {}) {
  auto steering = Steering::open(XdpNetwork::interface(), options);
  EXPECT_TRUE(steering.ok()) << steering.status().message();
  return steering.ok() ? std::move(*steering) : nullptr;
}

std::string refusal_of(const AttachOptions& options = {}, const char* interface = "xdp0") {
  const auto steering = Steering::open(XdpNetwork::interface(interface), options);
  EXPECT_EQ(steering.status().code(), Code::kUnavailable);
  return std::string(steering.status().message());
}

/// A process that opens the interface, and the port if it is not 0. It reports the program's number.
auto another(uint16_t port = 0, const AttachOptions& options = {}) {
  return [=] {
    auto steering = Steering::open(XdpNetwork::interface(), options);
    SocketAddress address = kAddress;
    address.set_port(port);
    Status status = steering.status();
    if (status.ok() && port != 0) status = (*steering)->add_port(address, 0);
    const std::string text = status.ok() ? std::to_string(attached()) : std::string(status.message());
    return std::pair(std::move(steering), text);
  };
}

/// Returns the number of owners in the map of ports, without the entries that only show that a process is alive.
size_t ports() {
  Program program;
  EXPECT_EQ(program.open(attached()), 0);
  size_t count = 0;
  program.for_each_port([&](const PortKey& key, const PortEntry&) { count += key.ether_type != 0 ? 1 : 0; });
  return count;
}

class XdpSteering : public tern::test::XdpNetworkTest {};

TEST_F(XdpSteering, first_attaches_and_last_detaches) {
  auto first = open();
  const uint32_t program = attached();
  EXPECT_NE(program, 0u);
  EXPECT_EQ(first->mode(), Mode::kNative);
  EXPECT_TRUE(first->is_attached());
  auto second = open();
  EXPECT_EQ(attached(), program);
  first.reset();
  EXPECT_TRUE(second->is_attached());
  second.reset();
  EXPECT_TRUE(becomes_detached());
}

TEST_F(XdpSteering, process_that_attached_is_killed_and_others_go_on) {
  Child first(another());
  Child second(another());
  EXPECT_EQ(first.said(), second.said());
  first.kill();
  EXPECT_EQ(std::to_string(attached()), second.said());
  Child third(another());
  EXPECT_EQ(third.said(), second.said());
  second.kill();
  third.kill();
  EXPECT_TRUE(becomes_detached());
}

TEST_F(XdpSteering, generic_mode_is_shared_by_processes) {
  Child first(another(0, {.mode = Mode::kGeneric}));
  auto second = open();
  EXPECT_EQ(second->mode(), Mode::kGeneric);
  EXPECT_EQ(std::to_string(attached()), first.said());
  EXPECT_THAT(refusal_of({.mode = Mode::kNative}), HasSubstr("generic mode"));
  second.reset();
  first.end();
  EXPECT_TRUE(becomes_detached());
}

/// No process joins a program that is being detached, and no process fails because another one is faster.
TEST_F(XdpSteering, processes_that_come_and_go_at_once_all_succeed) {
  constexpr int kProcesses = 4, kRounds = 25;
  std::vector<std::unique_ptr<Child>> children;
  const auto come_and_go = [&] {
    std::string text = "ok";
    for (int round = 0; round < kRounds && text == "ok"; round++) {
      auto opened = Steering::open(XdpNetwork::interface(), {});
      if (!opened.ok()) {
        text = opened.status().message();
      } else if (!(*opened)->is_attached()) {
        text = "joined what was gone";
      }
    }
    return std::pair(0, text);
  };
  for (int i = 0; i < kProcesses; i++) children.push_back(std::make_unique<Child>(come_and_go, false));
  for (const auto& child : children) EXPECT_EQ(child->said(), "ok");
  children.clear();
  EXPECT_TRUE(becomes_detached());
}

/// Programs that a process starts inherit no descriptor that keeps the program attached.
TEST_F(XdpSteering, program_that_the_process_starts_does_not_keep_it) {
  auto steering = open();
  ASSERT_EQ(std::system("sleep 1000 & echo $! > /tmp/tern-xdp-test-$PPID"), 0);
  steering.reset();
  EXPECT_TRUE(becomes_detached());
  const std::string file = "/tmp/tern-xdp-test-" + std::to_string(getpid());
  EXPECT_TRUE(run("kill $(cat " + file + "); rm " + file));
}

TEST_F(XdpSteering, forked_child_that_lets_go_does_not_keep_it) {
  auto steering = open();
  EXPECT_TRUE(steering->add_port(kAddress, 0).ok());
  Child child([&] {
    steering->close_in_child();
    (void)steering.release();
    return std::pair(0, std::string("let go"));
  });
  EXPECT_EQ(ports(), 1u);
  EXPECT_TRUE(steering->is_attached());
  steering.reset();
  EXPECT_TRUE(becomes_detached());
}

/// Link numbers are unique on the machine, and interface indices in a namespace.
TEST_F(XdpSteering, interface_of_same_index_in_another_namespace_is_another) {
  auto own = open();
  const uint32_t program = attached();
  {
    const XdpNetwork other_network;
    EXPECT_EQ(attached(), 0u);
    auto other = open();
    EXPECT_NE(attached(), program);
    EXPECT_TRUE(other->is_attached());
  }
  EXPECT_EQ(attached(), program);
}

TEST_F(XdpSteering, interface_that_is_deleted_is_not_attached) {
  auto steering = open();
  EXPECT_TRUE(run("ip link set xdp0 down && ip link set xdp0 up"));
  EXPECT_TRUE(steering->is_attached());
  EXPECT_TRUE(run("ip link del xdp0"));
  EXPECT_FALSE(steering->is_attached());
}

// ---- Kernels without links

TEST_F(XdpSteering, program_left_by_a_killed_process_is_replaced) {
  Child killed(another(5000, kByNetlink));
  const uint32_t left = attached();
  EXPECT_EQ(std::to_string(left), killed.said());
  killed.kill();
  EXPECT_EQ(attached(), left);
  auto next = open();
  EXPECT_NE(attached(), left);
  EXPECT_NE(attached(), 0u);
  next.reset();
  EXPECT_TRUE(becomes_detached());
}

TEST_F(XdpSteering, program_by_netlink_is_joined_while_an_owner_lives_and_detached_by_the_last) {
  Child first(another(0, kByNetlink));
  Child second(another(0, kByNetlink));
  EXPECT_EQ(first.said(), second.said());
  first.end();
  EXPECT_EQ(std::to_string(attached()), second.said());
  auto third = open(kByNetlink);
  EXPECT_EQ(std::to_string(attached()), second.said());
  EXPECT_TRUE(third->is_attached());
  second.kill();
  third.reset();
  EXPECT_EQ(attached(), 0u);
}

// ---- Ports and queues

TEST_F(XdpSteering, port_of_a_living_process_is_refused_and_of_a_dead_one_taken) {
  Child other(another(kAddress.port()));
  auto own = open();
  const Status refused = own->add_port(kAddress, 0);
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("10.0.0.1:5000"));
  other.kill();
  EXPECT_EQ(ports(), 1u) << "it was killed: its port is still there";
  EXPECT_TRUE(own->add_port(kAddress, 0).ok());
  EXPECT_EQ(ports(), 1u);
  own->remove_port(kAddress);
  own->remove_port(kAddress);
  EXPECT_EQ(ports(), 0u);
}

TEST_F(XdpSteering, next_process_removes_ports_and_queues_of_dead_ones) {
  auto witness = open();
  Child killed([] {
    auto all = another(6000)();
    auto kept = std::make_unique<std::pair<decltype(all.first), Descriptor>>(std::move(all.first),
                                                                             tern::test::open_xdp_socket());
    const Status status = (*kept->first)->add_socket(2, kept->second.get());
    return std::pair(std::move(kept), std::string(status.message()));
  });
  EXPECT_EQ(killed.said(), "ok");
  Program program;
  ASSERT_EQ(program.open(attached()), 0);
  const uint64_t dead = program.queue_owner(2);
  EXPECT_NE(dead, 0u);
  const Descriptor socket = tern::test::open_xdp_socket();
  EXPECT_EQ(witness->add_socket(2, socket.get()).code(), Code::kUnavailable);
  killed.kill();
  EXPECT_EQ(program.queue_owner(2), dead);
  EXPECT_EQ(ports(), 1u);
  auto next = open();
  EXPECT_EQ(program.queue_owner(2), 0u);
  EXPECT_EQ(ports(), 0u);
}

TEST_F(XdpSteering, queue_of_another_process_is_refused_until_its_socket_is_closed) {
  auto one = open();
  auto other = open();
  Descriptor first = tern::test::open_xdp_socket(), second = tern::test::open_xdp_socket();
  EXPECT_TRUE(one->add_socket(1, first.get()).ok());
  const Status refused = other->add_socket(1, second.get());
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("queue 1 of xdp0"));
  first.reset();
  EXPECT_TRUE(other->add_socket(1, second.get()).ok());
  other->remove_socket(1);
  other->remove_socket(1);
  Descriptor third = tern::test::open_xdp_socket();
  EXPECT_TRUE(other->add_socket(1, third.get()).ok());
  EXPECT_EQ(other->add_socket(kQueuesMax, second.get()).code(), Code::kUnavailable);
  EXPECT_EQ(other->add_socket(3, -1).code(), Code::kUnavailable);
}

/// `one` removes a socket that belongs to another process by now.
TEST_F(XdpSteering, late_remove_socket_leaves_the_next_owner_alone) {
  auto one = open();
  auto other = open();
  Descriptor first = tern::test::open_xdp_socket();
  const Descriptor second = tern::test::open_xdp_socket();
  EXPECT_TRUE(one->add_socket(1, first.get()).ok());
  first.reset();
  EXPECT_TRUE(other->add_socket(1, second.get()).ok());
  one->remove_socket(1);
  Program program;
  ASSERT_EQ(program.open(attached()), 0);
  EXPECT_NE(program.queue_owner(1), 0u);
  const Descriptor third = tern::test::open_xdp_socket();
  EXPECT_EQ(one->add_socket(1, third.get()).code(), Code::kUnavailable);
}

TEST_F(XdpSteering, ports_beyond_the_map_are_refused) {
  auto steering = open();
  SocketAddress address = kAddress;
  Status status;
  uint32_t taken = 0;
  for (; taken <= kPortsMax && status.ok(); taken++) {
    address.set_port(static_cast<uint16_t>(1 + taken));
    status = steering->add_port(address, 0);
  }
  EXPECT_EQ(taken, kPortsMax) << "the owner itself takes one place";
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("4096"));
  steering.reset();
  EXPECT_TRUE(becomes_detached());
}

// ---- Refusals

Descriptor other_program(const char* name) {
  const std::array<bpf_insn, 2> code = {
      {{BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, XDP_PASS}, {BPF_JMP | BPF_EXIT, 0, 0, 0, 0}}};
  return Descriptor(bpf_prog_load(BPF_PROG_TYPE_XDP, name, "GPL", code.data(), code.size(), nullptr));
}

TEST_F(XdpSteering, other_program_on_the_interface_is_left_alone) {
  const Descriptor program = other_program("somebodys");
  ASSERT_EQ(bpf_xdp_attach(kIndex, program.get(), XDP_FLAGS_DRV_MODE, nullptr), 0);
  const uint32_t before = attached();
  for (const Mode mode : {Mode::kAny, Mode::kNative, Mode::kGeneric}) {
    const std::string text = refusal_of({.mode = mode});
    EXPECT_THAT(text, HasSubstr("somebodys"));
    EXPECT_THAT(text, HasSubstr("ip link set dev xdp0 xdp off"));
  }
  EXPECT_EQ(attached(), before);
}

TEST_F(XdpSteering, other_program_by_a_link_is_left_alone) {
  const Descriptor program = other_program("somebodys");
  const Descriptor link(bpf_link_create(program.get(), kIndex, BPF_XDP, nullptr));
  ASSERT_TRUE(link);
  EXPECT_THAT(refusal_of(), HasSubstr("somebodys"));
  EXPECT_NE(attached(), 0u);
}

TEST_F(XdpSteering, program_of_another_version_is_left_alone) {
  const Descriptor program = other_program(kProgramName);
  ASSERT_EQ(bpf_xdp_attach(kIndex, program.get(), XDP_FLAGS_DRV_MODE, nullptr), 0);
  EXPECT_THAT(refusal_of(), HasSubstr("another version of tern"));
  EXPECT_NE(attached(), 0u);
}

TEST_F(XdpSteering, mtu_above_native_mode_is_refused_or_made_generic) {
  ASSERT_TRUE(run("ip link set xdp1 mtu 9000 && ip link set xdp0 mtu 9000"));
  const std::string text = refusal_of({.mode = Mode::kNative});
  EXPECT_THAT(text, HasSubstr("MTU of xdp0, 9000"));
  EXPECT_THAT(text, HasSubstr("mode=generic"));
  EXPECT_EQ(attached(), 0u);
  auto generic = open();
  EXPECT_EQ(generic->mode(), Mode::kGeneric);
  EXPECT_THAT(generic->why_generic(), HasSubstr("MTU"));
  generic.reset();
  ASSERT_TRUE(becomes_detached());
  ASSERT_TRUE(run("ip link set xdp1 mtu 3498 && ip link set xdp0 mtu 3498"));
  EXPECT_EQ(open()->mode(), Mode::kNative);
}

TEST_F(XdpSteering, driver_without_xdp_is_refused_or_made_generic) {
  ASSERT_TRUE(run("ip link add bridge0 type bridge"));
  EXPECT_THAT(refusal_of({.mode = Mode::kNative}, "bridge0"), HasSubstr("driver of bridge0 refuses"));
  const auto generic = Steering::open(XdpNetwork::interface("bridge0"), {});
  ASSERT_TRUE(generic.ok()) << generic.status().message();
}

TEST_F(XdpSteering, interface_that_does_not_exist_is_refused) {
  tern::neighbours::Interface gone;
  gone.index = 999;
  gone.name = "gone0";
  const auto steering = Steering::open(gone, {});
  EXPECT_EQ(steering.status().code(), Code::kUnavailable);
  EXPECT_THAT(std::string(steering.status().message()), HasSubstr("no network interface gone0"));
}

TEST_F(XdpSteering, user_without_capabilities_is_refused) {
  Child nobody([] {
    const auto interface = XdpNetwork::interface();
    if (setresuid(65534, 65534, 65534) != 0) std::abort();
    auto steering = Steering::open(interface, {});
    std::string text(steering.status().message());
    return std::pair(std::move(steering), text);
  });
  EXPECT_THAT(nobody.said(), HasSubstr("no permission"));
  EXPECT_THAT(nobody.said(), HasSubstr("CAP_NET_ADMIN"));
}

}  // namespace
