// The XDP program in the kernel, frame by frame (BPF_PROG_TEST_RUN), against the promises of program.h.
#include "transport/xdp/program.h"

#include <bpf/bpf.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "frames/parse.h"
#include "fuzz/frame_reference.h"
#include "unit/transport/xdp/network.h"

using namespace tern::transport::xdp;
using tern::base::SocketAddress;
using tern::frames::Drop;
using tern::frames::reference::Bytes;
using tern::frames::reference::Fields;

namespace {

constexpr uint64_t kOwn = 0x1122334455667788, kOther = 0x8877665544332211;
/// Queue 3 has no owner. Queue 2 has an owner whose socket no longer exists.
constexpr uint32_t kOwnQueue = 0, kOtherQueue = 1, kDeadQueue = 2, kFreeQueue = 3;
constexpr size_t kFrameBytesMin = 14;  ///< the kernel runs a program only for frames of this length

std::string name_of(uint32_t result) {
  return result == XDP_PASS ? "pass" : result == XDP_REDIRECT ? "redirect" : "result " + std::to_string(result);
}

class XdpProgram : public tern::test::XdpNetworkTest {
 protected:
  void SetUp() override {
    XdpNetworkTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(program_.load(), 0);
    for (const uint32_t queue : {kOwnQueue, kOtherQueue}) {
      sockets_.push_back(tern::test::open_xdp_socket());
      const int socket = sockets_.back().get();
      ASSERT_EQ(bpf_map_update_elem(program_.map(Map::kSockets), &queue, &socket, BPF_NOEXIST), 0) << strerror(errno);
    }
    ASSERT_EQ(program_.set_queue_owner(kOwnQueue, kOwn), 0);
    ASSERT_EQ(program_.set_queue_owner(kOtherQueue, kOther), 0);
    ASSERT_EQ(program_.set_queue_owner(kDeadQueue, kOwn), 0);
    for (const bool is_ipv6 : {false, true}) add_port(tern::frames::reference::own(is_ipv6).address, kOwn);
  }

  void add_port(const SocketAddress& address, uint64_t owner) {
    ASSERT_EQ(program_.set_port(key_of(address), {owner, kNoRule, 0}), 0);
  }

  /// Returns the program's result for a frame that arrives at this queue.
  uint32_t result_of(const Bytes& frame, uint32_t queue = kOwnQueue) const {
    xdp_md context{};
    context.data_end = static_cast<uint32_t>(frame.size());
    context.ingress_ifindex = 10;
    context.rx_queue_index = queue;
    LIBBPF_OPTS(bpf_test_run_opts, options, .data_in = frame.data(),
                .data_size_in = static_cast<uint32_t>(frame.size()), .ctx_in = &context,
                .ctx_size_in = sizeof(context));
    EXPECT_EQ(bpf_prog_test_run_opts(program_.descriptor(), &options), 0) << strerror(errno) << ", " << frame.size();
    return options.retval;
  }
  void expect(uint32_t result, const Bytes& frame, const std::string& what, uint32_t queue = kOwnQueue) const {
    EXPECT_EQ(name_of(result_of(frame, queue)), name_of(result)) << what;
  }

  Program program_;
  std::vector<tern::base::Descriptor> sockets_;
};

/// A model of program.h for the ports and queues of XdpProgram. It reads one byte after the other.
bool is_own_datagram(const Bytes& frame) {
  const auto byte = [&](size_t at) { return frame.at(at); };
  const auto number = [&](size_t at) { return byte(at) * 256 + byte(at + 1); };
  const auto has_at = [&](size_t at, const Bytes& bytes) {
    return std::equal(bytes.begin(), bytes.end(), frame.begin() + static_cast<ptrdiff_t>(at));
  };
  if (frame.size() < 14 + 20 + 8) return false;
  if (number(12) == 0x0800) {
    return byte(14) / 16 == 4 && byte(14) % 16 == 5 && number(20) % 0x4000 == 0 && byte(23) == 17 &&
           has_at(30, Fields(false).destination_ip) && number(36) == Fields(false).destination_port;
  }
  if (number(12) != 0x86dd || frame.size() < 14 + 40 + 8) return false;
  return byte(14) / 16 == 6 && byte(20) == 17 && has_at(38, Fields(true).destination_ip) &&
         number(56) == Fields(true).destination_port;
}

uint32_t model(const Bytes& frame, uint32_t queue) {
  return queue == kOwnQueue && is_own_datagram(frame) ? XDP_REDIRECT : XDP_PASS;
}

/// Checks that the parser drops a redirected frame only for reasons that the program cannot detect, and that every
/// frame that the parser accepts was redirected.
void expect_parser_agrees(const Bytes& frame, bool is_redirected) {
  using namespace tern::frames;
  constexpr std::array kSeenByProgram = {Drop::kTruncated, Drop::kVlan,      Drop::kOtherType,
                                         Drop::kIpHeader,  Drop::kIpOptions, Drop::kFragment,
                                         Drop::kOtherIp,   Drop::kOtherPort, Drop::kOtherProtocol};
  for (const bool is_ipv6 : {false, true}) {
    const FrameParser parser(reference::own(is_ipv6));
    const Drop drop = parser.parse(reference::as_frame(frame), {.ip_header = true, .udp_checksum = true}).drop;
    if (drop == Drop::kNone) {
      EXPECT_TRUE(is_redirected);
    }
    const bool is_this_family = frame.size() >= 14 && (frame[12] == 0x86) == is_ipv6;
    if (is_redirected && is_this_family) {
      EXPECT_EQ(std::ranges::count(kSeenByProgram, drop), 0) << tern::frames::name_of(drop);
    }
  }
}

TEST_F(XdpProgram, datagram_to_own_port_on_own_queue_goes_to_socket) {
  for (const bool is_ipv6 : {false, true}) {
    Fields fields(is_ipv6);
    expect(XDP_REDIRECT, fields.frame(), "as it is");
    fields.padding = Bytes(20, 0);
    expect(XDP_REDIRECT, fields.frame(), "padded");
    fields.padding.clear();
    fields.payload.clear();
    expect(XDP_REDIRECT, fields.frame(), "empty");
    fields.payload = Bytes(1400, 7);
    expect(XDP_REDIRECT, fields.frame(), "full");
    fields.traffic_class = 0xff;
    expect(XDP_REDIRECT, fields.frame(), "of any traffic class");
    fields.fragment = 0;
    expect(XDP_REDIRECT, fields.frame(), "may be fragmented, but is not");
    fields.udp_checksum = 0;
    fields.ip_checksum = 1;
    fields.udp_length = 7;
    expect(XDP_REDIRECT, fields.frame(), "of wrong checksums and lengths, which the process counts");
  }
  EXPECT_EQ(program_.counts().foreign_queue + program_.counts().no_socket, 0u);
}

TEST_F(XdpProgram, everything_else_goes_to_kernel) {
  const std::map<std::string, void (*)(Fields&)> changes = {
      {"another port", [](Fields& fields) { fields.destination_port++; }},
      {"ports exchanged", [](Fields& fields) { std::swap(fields.destination_port, fields.source_port); }},
      {"another host", [](Fields& fields) { fields.destination_ip.back()++; }},
      {"another network", [](Fields& fields) { fields.destination_ip.front()++; }},
      {"TCP", [](Fields& fields) { fields.protocol = 6; }},
      {"ICMP", [](Fields& fields) { fields.protocol = 1; }},
      {"a VLAN tag",
       [](Fields& fields) {
         fields.tags = {{0x8100, 5}};
       }},
      {"two VLAN tags",
       [](Fields& fields) {
         fields.tags = {{0x88a8, 5}, {0x8100, 5}};
       }},
      {"VLAN 0",
       [](Fields& fields) {
         fields.tags = {{0x8100, 0}};
       }},
      {"ARP", [](Fields& fields) { fields.ether_type = 0x0806; }},
      {"the other IP version's EtherType", [](Fields& fields) { fields.ether_type ^= 0x0800 ^ 0x86dd; }},
      {"a wrong IP version", [](Fields& fields) { fields.version = 5; }},
      {"options or extension headers", [](Fields& fields) {
         fields.options = Bytes(fields.is_ipv6 ? 8 : 4, 0);
         if (fields.is_ipv6) fields.protocol = 60;
       }}};
  for (const bool is_ipv6 : {false, true}) {
    for (const auto& [what, change] : changes) {
      Fields fields(is_ipv6);
      fields.payload = Bytes(100, 0);
      change(fields);
      expect(XDP_PASS, fields.frame(), what);
    }
  }
  for (const uint16_t fragment : {0x2000, 0x0001, 0x1fff, 0x6001, 0x3fff}) {
    Fields fields;
    fields.fragment = fragment;
    expect(XDP_PASS, fields.frame(), "fragment " + std::to_string(fragment));
  }
  for (uint8_t words = 0; words < 16; words++) {
    Fields fields;
    fields.header_words = words;
    expect(words == 5 ? XDP_REDIRECT : XDP_PASS, fields.frame(), "header words " + std::to_string(words));
  }
  EXPECT_EQ(program_.counts().foreign_queue + program_.counts().no_socket, 0u) << "these have no owner";
}

/// An IPv6 address that begins with the bytes of an IPv4 address is another address.
TEST_F(XdpProgram, addresses_of_both_families_are_different) {
  Fields fields(true);
  fields.destination_ip = Bytes(16, 0);
  std::ranges::copy(Fields(false).destination_ip, fields.destination_ip.begin());
  expect(XDP_PASS, fields.frame(), "IPv6");
  add_port(SocketAddress::from_ip(tern::frames::reference::as_frame(fields.destination_ip)), kOwn);
  expect(XDP_PASS, fields.frame(), "IPv6, port 0");
}

TEST_F(XdpProgram, own_port_on_another_queue_goes_to_kernel_and_is_counted) {
  const Bytes frame = Fields(false).frame();
  expect(XDP_PASS, frame, "another process's queue", kOtherQueue);
  EXPECT_EQ(program_.counts().foreign_queue, 1u);
  expect(XDP_PASS, frame, "a queue without owner", kFreeQueue);
  EXPECT_EQ(program_.counts().foreign_queue, 2u);
  EXPECT_EQ(program_.counts().no_socket, 0u);
  expect(XDP_PASS, frame, "a queue whose socket has gone", kDeadQueue);
  EXPECT_EQ(program_.counts().foreign_queue, 2u);
  EXPECT_EQ(program_.counts().no_socket, 1u);
}

TEST_F(XdpProgram, socket_that_is_closed_leaves_its_queue_to_kernel) {
  const Bytes frame = Fields(false).frame();
  expect(XDP_REDIRECT, frame, "open");
  sockets_.clear();
  expect(XDP_PASS, frame, "closed");
  EXPECT_EQ(program_.counts().no_socket, 1u);
}

TEST_F(XdpProgram, every_port_has_its_own_owner) {
  Fields to_other;
  to_other.destination_port = 7;
  SocketAddress address = tern::frames::reference::own(false).address;
  address.set_port(7);
  add_port(address, kOther);
  expect(XDP_REDIRECT, to_other.frame(), "its own queue", kOtherQueue);
  expect(XDP_PASS, to_other.frame(), "my queue", kOwnQueue);
  expect(XDP_REDIRECT, Fields(false).frame(), "mine", kOwnQueue);
  program_.remove_port(key_of(address));
  expect(XDP_PASS, to_other.frame(), "removed", kOtherQueue);
}

TEST_F(XdpProgram, key_of_an_owner_matches_no_frame) {
  ASSERT_EQ(program_.set_port(key_of_owner(kOwn), {kOwn, kNoRule, 0}), 0);
  for (const bool is_ipv6 : {false, true}) {
    Fields fields(is_ipv6);
    const PortKey key = key_of_owner(kOwn);
    fields.destination_ip.assign(key.ip.begin(), key.ip.begin() + (is_ipv6 ? 16 : 4));
    fields.destination_port = 0;
    expect(XDP_PASS, fields.frame(), "as bytes");
    fields.ether_type = 0;
    expect(XDP_PASS, fields.frame(), "EtherType 0");
  }
}

TEST_F(XdpProgram, every_length_of_good_frames_is_as_model_says) {
  for (const bool is_ipv6 : {false, true}) {
    Fields fields(is_ipv6);
    fields.payload = Bytes(30, 1);
    const Bytes whole = fields.frame();
    for (size_t bytes = kFrameBytesMin; bytes <= whole.size(); bytes++) {
      const Bytes frame(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(bytes));
      expect(model(frame, kOwnQueue), frame, "length " + std::to_string(bytes));
      expect_parser_agrees(frame, result_of(frame) == XDP_REDIRECT);
    }
  }
}

/// Every single bit of the headers is changed.
TEST_F(XdpProgram, every_bit_of_headers_is_as_model_says) {
  for (const bool is_ipv6 : {false, true}) {
    const Bytes good = Fields(is_ipv6).frame();
    size_t redirected = 0;
    for (size_t bit = 0; bit < 8 * (good.size() - Fields(is_ipv6).payload.size()); bit++) {
      Bytes frame = good;
      frame[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
      const uint32_t result = result_of(frame);
      EXPECT_EQ(name_of(result), name_of(model(frame, kOwnQueue))) << "bit " << bit;
      expect_parser_agrees(frame, result == XDP_REDIRECT);
      redirected += result == XDP_REDIRECT ? 1 : 0;
    }
    // Some bits do not matter, such as those of MAC addresses, lengths, checksums and the source.
    EXPECT_GT(redirected, 200u);
  }
}

TEST_F(XdpProgram, random_frames_are_as_model_says) {
  std::mt19937 random(1);
  const auto below = [&](uint32_t limit) { return random() % limit; };
  const Bytes interesting = {0, 1, 2, 4, 5, 6, 8, 17, 0x40, 0x44, 0x45, 0x46, 0x60, 0x81, 0x86, 0x88, 0xdd, 0xff};
  size_t redirected = 0;
  constexpr int kFrames = 30'000;
  for (int i = 0; i < kFrames; i++) {
    Bytes frame;
    if (below(8) == 0) {
      frame.resize(kFrameBytesMin + below(100));
      for (uint8_t& byte : frame) byte = static_cast<uint8_t>(random());
      if (below(2) == 0) {
        frame[12] = below(2) == 0 ? 0x08 : 0x86;
        frame[13] = frame[12] == 0x08 ? 0x00 : 0xdd;
      }
    } else {
      Fields fields(below(2) == 0);
      fields.payload.resize(below(64));
      if (below(8) == 0) fields.tags = {{static_cast<uint16_t>(below(2) == 0 ? 0x8100 : 0x88a8), 5}};
      if (below(8) == 0) fields.options.resize(4 * below(11));
      frame = fields.frame();
      for (uint32_t changes = below(4); changes > 0; changes--) {
        frame[below(static_cast<uint32_t>(std::min<size_t>(frame.size(), 62)))] =
            below(2) == 0 ? static_cast<uint8_t>(random()) : interesting[below(interesting.size())];
      }
      if (below(4) == 0) frame.resize(kFrameBytesMin + below(static_cast<uint32_t>(frame.size() - kFrameBytesMin)));
    }
    const uint32_t queue = below(4) == 0 ? below(4) : kOwnQueue;
    const uint32_t result = result_of(frame, queue);
    ASSERT_EQ(name_of(result), name_of(model(frame, queue))) << "frame " << i;
    if (queue == kOwnQueue) expect_parser_agrees(frame, result == XDP_REDIRECT);
    redirected += result == XDP_REDIRECT ? 1 : 0;
  }
  EXPECT_GT(redirected, size_t{kFrames} / 10);
  EXPECT_LT(redirected, size_t{kFrames} * 9 / 10);
}

TEST_F(XdpProgram, another_process_finds_program_and_maps_by_number) {
  const Program::Identity own = program_.identity();
  EXPECT_EQ(own.name, kProgramName);
  Program other;
  ASSERT_EQ(other.open(own.id), 0);
  EXPECT_EQ(other.identity().tag, own.tag);
  PortEntry entry{};
  ASSERT_EQ(other.find_port(key_of(tern::frames::reference::own().address), &entry), 0);
  EXPECT_EQ(entry.owner, kOwn);
  EXPECT_EQ(other.queue_owner(kOtherQueue), kOther);
  Program none;
  EXPECT_EQ(none.open(UINT32_MAX - 1), ENOENT);
}

/// The tag depends only on the instructions, so that programs of two processes have the same tag.
TEST_F(XdpProgram, tag_does_not_depend_on_maps) {
  Program second;
  ASSERT_EQ(second.load(), 0);
  EXPECT_EQ(second.identity().tag, program_.identity().tag);
  EXPECT_NE(second.identity().id, program_.identity().id);
}

TEST_F(XdpProgram, program_with_other_maps_is_refused) {
  const std::array<bpf_insn, 2> code = {
      {{BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, XDP_PASS}, {BPF_JMP | BPF_EXIT, 0, 0, 0, 0}}};
  const tern::base::Descriptor stranger(
      bpf_prog_load(BPF_PROG_TYPE_XDP, kProgramName, "GPL", code.data(), code.size(), nullptr));
  ASSERT_TRUE(stranger);
  bpf_prog_info info{};
  uint32_t bytes = sizeof(info);
  ASSERT_EQ(bpf_obj_get_info_by_fd(stranger.get(), &info, &bytes), 0);
  Program program;
  EXPECT_EQ(program.open(info.id), EINVAL);
  EXPECT_EQ(program.identity().name, kProgramName);
  EXPECT_NE(program.identity().tag, program_.identity().tag);
}

}  // namespace
