// Frames between two network namespaces that a veth pair connects. The kernel's UDP socket receives the frames of a
// template, and the parser accepts the frames of such a socket. Needs root.
#include <gtest/gtest.h>
#include <linux/ethtool.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <string>

#include "base/address.h"
#include "base/descriptor.h"
#include "e2e/namespaces.h"
#include "frames/frame_template.h"
#include "frames/parse.h"
#include "fuzz/frame_reference.h"
#include "patience.h"

using namespace tern::frames;
using reference::as_frame;
using reference::Bytes;
using tern::base::Descriptor;
using tern::base::SocketAddress;

namespace {

const MacAddress kOurMac({0x02, 0, 0x5e, 0, 0, 1});
const MacAddress kKernelMac({0x02, 0, 0x5e, 0, 0, 2});

/// The interface "ours" in one namespace, where the test sends and receives frames, and "kernels" in the other, where
/// the kernel has IP addresses.
class Frames : public testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = e2e::Namespace::missing();
    if (!missing.empty()) GTEST_SKIP() << missing;
    ours_ = std::make_unique<e2e::Namespace>("f1");
    kernels_ = std::make_unique<e2e::Namespace>("f2");
    const bool is_made =
        ours_->is_made() && kernels_->is_made() &&
        e2e::run("ip link add name ours address " + kOurMac.to_text() + " netns " + ours_->name() +
                 " type veth peer name kernels address " + kKernelMac.to_text() + " netns " + kernels_->name());
    if (!is_made) GTEST_SKIP() << "this machine allows no network namespaces or no veth";
    const auto in_kernels = [&](const std::string& command) { return kernels_->in("ip " + command); };
    const std::string neighbour = " lladdr " + kOurMac.to_text() + " dev kernels nud permanent";
    ASSERT_TRUE(ours_->in("ip link set ours up"));
    ASSERT_TRUE(in_kernels("link set kernels up"));
    ASSERT_TRUE(in_kernels("address add 10.77.0.2/24 dev kernels"));
    ASSERT_TRUE(in_kernels("neighbour add 10.77.0.1" + neighbour));
    has_ipv6_ =
        in_kernels("address add fd77::2/64 dev kernels nodad") && in_kernels("neighbour add fd77::1" + neighbour);
  }

  /// Opens our end on port 40001 and the kernel's socket on port 40002. False: the machine has no IPv6.
  bool open(bool is_ipv6) {
    if (is_ipv6 && !has_ipv6_) return false;
    us_ = *SocketAddress::parse(is_ipv6 ? "[fd77::1]:40001" : "10.77.0.1:40001");
    kernel_ = *SocketAddress::parse(is_ipv6 ? "[fd77::2]:40002" : "10.77.0.2:40002");
    packets_ = open_packets(*ours_, "ours");
    const e2e::Inside inside(kernels_->name());
    socket_ = Descriptor(socket(kernel_.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(socket_.get(), kernel_.sockaddr_data(), kernel_.sockaddr_bytes()), 0) << std::strerror(errno);
    // Without this option the kernel leaves UDP checksums to the device, and a veth device computes none.
    ethtool_value no{ETHTOOL_STXCSUM, 0};
    ifreq request{};
    std::strcpy(request.ifr_name, "kernels");
    request.ifr_data = reinterpret_cast<char*>(&no);
    EXPECT_EQ(ioctl(socket_.get(), SIOCETHTOOL, &request), 0) << std::strerror(errno);
    return true;
  }
  static Descriptor open_packets(const e2e::Namespace& where, const char* interface) {
    const e2e::Inside inside(where.name());
    Descriptor packets(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL)));
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_ALL);
    address.sll_ifindex = static_cast<int>(if_nametoindex(interface));
    EXPECT_EQ(bind(packets.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    return packets;
  }
  static bool wait_for(const Descriptor& descriptor) {
    pollfd one{descriptor.get(), POLLIN, 0};
    return poll(&one, 1, static_cast<int>(10'000 * tern::patience())) == 1;
  }

  FrameTemplate::Ends ends() const {
    FrameTemplate::Ends ends;
    ends.source_mac = kOurMac;
    ends.destination_mac = kKernelMac;
    ends.source = us_;
    ends.destination = kernel_;
    return ends;
  }
  Bytes frame_of(const FrameTemplate& frame_template, const Bytes& payload) const {
    Bytes frame(frame_template.header_bytes());
    const auto headers = std::as_writable_bytes(std::span(frame));
    frame_template.write(headers.data(), payload.size());
    const size_t split = payload.size() / 3;
    frame_template.complete_udp_checksum(headers.data(), as_frame(payload).first(split),
                                         as_frame(payload).subspan(split));
    reference::put_all(frame, payload);
    return frame;
  }
  void send(const Bytes& frame) {
    ASSERT_EQ(::send(packets_.get(), frame.data(), frame.size(), 0), static_cast<ssize_t>(frame.size()))
        << std::strerror(errno);
  }
  /// Returns the next datagram from our end that the kernel's socket has received.
  Bytes received() {
    Bytes payload(65536);
    sockaddr_storage from{};
    socklen_t from_bytes = sizeof(from);
    if (!wait_for(socket_)) return {'n', 'o', 'n', 'e'};
    const ssize_t bytes =
        recvfrom(socket_.get(), payload.data(), payload.size(), 0, reinterpret_cast<sockaddr*>(&from), &from_bytes);
    EXPECT_GE(bytes, 0);
    EXPECT_EQ(SocketAddress::from_sockaddr(from), us_);
    payload.resize(static_cast<size_t>(bytes));
    return payload;
  }

  std::unique_ptr<e2e::Namespace> ours_, kernels_;
  bool has_ipv6_ = false;
  Descriptor packets_, other_packets_, socket_;
  SocketAddress us_, kernel_;
};

Bytes payload_of(size_t bytes) {
  Bytes payload(bytes);
  for (size_t i = 0; i < bytes; i++) payload[i] = static_cast<uint8_t>(bytes + 7 * i);
  return payload;
}

}  // namespace

TEST_F(Frames, kernel_socket_accepts_frames_of_a_template) {
  for (const bool is_ipv6 : {false, true}) {
    if (!open(is_ipv6)) continue;
    const FrameTemplate frame_template(ends());
    for (const size_t bytes : {0, 1, 2, 24, 333, 1452}) {
      send(frame_of(frame_template, payload_of(bytes)));
      EXPECT_EQ(received(), payload_of(bytes));
    }
  }
}

TEST_F(Frames, kernel_socket_drops_frames_with_a_wrong_checksum) {
  for (const bool is_ipv6 : {false, true}) {
    if (!open(is_ipv6)) continue;
    const FrameTemplate frame_template(ends());
    const Bytes good = frame_of(frame_template, payload_of(50));
    Bytes bad = good;
    bad.back() ^= 1;
    send(bad);
    bad = frame_of(frame_template, payload_of(51));
    bad[is_ipv6 ? 14 + 6 : 14 + 10] ^= 1;  // IPv6: the next header; IPv4: the header checksum
    send(bad);
    send(good);
    EXPECT_EQ(received(), payload_of(50)) << "the first one that is right";
  }
}

TEST_F(Frames, parser_accepts_frames_of_a_kernel_socket) {
  for (const bool is_ipv6 : {false, true}) {
    if (!open(is_ipv6)) continue;
    FrameParser::Own own;
    own.mac = kOurMac;
    own.address = us_;
    const FrameParser parser(own);
    for (const size_t bytes : {0, 1, 2, 24, 333, 1452}) {
      const Bytes sent = payload_of(bytes);
      ASSERT_EQ(sendto(socket_.get(), sent.data(), sent.size(), 0, us_.sockaddr_data(), us_.sockaddr_bytes()),
                static_cast<ssize_t>(bytes));
      for (bool is_taken = false; !is_taken;) {
        ASSERT_TRUE(wait_for(packets_));
        Bytes frame(65536);
        const ssize_t frame_bytes = recv(packets_.get(), frame.data(), frame.size(), 0);
        ASSERT_GT(frame_bytes, 0);
        frame.resize(static_cast<size_t>(frame_bytes));
        const auto datagram = parser.parse(as_frame(frame), {});
        if (datagram.drop == Drop::kOtherMac) continue;  // a multicast frame that the kernel itself sends
        ASSERT_EQ(name_of(datagram.drop), name_of(Drop::kNone));
        const std::span payload(datagram.payload, datagram.payload_bytes);
        EXPECT_TRUE(std::ranges::equal(payload, as_frame(sent)));
        EXPECT_EQ(parser.source_of(as_frame(frame)), kernel_);
        is_taken = true;
      }
    }
  }
}

TEST_F(Frames, kernel_reads_the_tag) {
  ASSERT_TRUE(open(false));
  other_packets_ = open_packets(*kernels_, "kernels");
  const int on = 1;
  ASSERT_EQ(setsockopt(other_packets_.get(), SOL_PACKET, PACKET_AUXDATA, &on, sizeof(on)), 0);
  FrameTemplate::Ends in_vlan = ends();
  in_vlan.vlan = 77;
  in_vlan.vlan_priority = 5;
  const Bytes frame = frame_of(FrameTemplate(in_vlan), payload_of(100));
  send(frame);
  for (bool is_seen = false; !is_seen;) {
    ASSERT_TRUE(wait_for(other_packets_));
    Bytes bytes(2048), control(256);
    iovec data{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t received_bytes = recvmsg(other_packets_.get(), &message, 0);
    ASSERT_GT(received_bytes, 0);
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    ASSERT_NE(header, nullptr);
    tpacket_auxdata found{};
    std::memcpy(&found, CMSG_DATA(header), sizeof(found));
    if ((found.tp_status & TP_STATUS_VLAN_VALID) == 0) continue;  // a frame that the kernel itself sends
    EXPECT_EQ(found.tp_vlan_tpid, ETH_P_8021Q);
    EXPECT_EQ(found.tp_vlan_tci, 5 << 13 | 77);
    bytes.resize(static_cast<size_t>(received_bytes));
    Bytes without_tag = frame;
    without_tag.erase(without_tag.begin() + 12, without_tag.begin() + 16);
    EXPECT_EQ(bytes, without_tag);
    is_seen = true;
  }
}
