// Common parts of the tests of the DPDK transport: endpoints at the two ends of a memif cable in this process, and a
// lane that sends and receives raw frames at either end.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frames/frame_template.h"
#include "frames/parse.h"
#include "memif_ports.h"
#include "transport/dpdk/dpdk.h"
#include "unit/transport/ethernet_end.h"

namespace tern::transport::dpdk_test {

using test::connect;
using test::header_of;
using test::kPatience;
using test::kTestKey;
using test::packet_of;
using test::run_until;

/// The options of port 0 or 1, with IPv4 or IPv6 addresses. The rings are short, so that they can be filled.
inline Dpdk::Options options_of(uint32_t port, sa_family_t family = AF_INET, uint16_t vlan = 0) {
  Dpdk::Options options = test::memif_options(port);
  options.device = test::memif_device(port, 8);
  if (family == AF_INET6) options.address = port == 0 ? "fd78::1/64" : "fd78::2/64";
  options.vlan = vlan;
  return options;
}

/// An endpoint and the packets that it has received.
struct End : test::EthernetEnd<DpdkImpl> {
  explicit End(uint32_t port) : End(options_of(port)) {}
  explicit End(const Dpdk::Options& options, std::string_view host = "") : EthernetEnd(options, host) {}

  frames::MacAddress mac() const { return impl->port().facts().mac; }
};

/// A stranger at a port. It sends any bytes as a frame and receives the frames to its UDP port.
class RawEnd {
 public:
  explicit RawEnd(uint32_t port, uint16_t udp_port = 4001, sa_family_t family = AF_INET, uint16_t vlan = 0) {
    const Dpdk::Options options = options_of(port, family, vlan);
    auto opened = DpdkPort::open({.device = options.device,
                                  .eal = options.eal,
                                  .address = options.address,
                                  .gateway = "",
                                  .queues = 0,
                                  .mtu_bytes = 0,
                                  .receive_buffers = options.receive_buffers,
                                  .vlan = vlan});
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    port_ = *opened;
    own_ = port_->own_address();
    own_.set_port(udp_port);
    auto lane = port_->attach(&own_);
    EXPECT_TRUE(lane.ok()) << lane.status().message();
    lane_ = std::move(*lane);
    burst_.start(*lane_);
    // The headers have no length, because the test makes all bytes of a frame.
    DpdkSends::Form form;
    form.datagram_bytes = 9100;
    EXPECT_TRUE(sends_.create(*lane_, *arena(), memory_, form).ok());
  }
  ~RawEnd() { sends_.stop(); }

  const base::SocketAddress& where() const { return own_; }
  frames::MacAddress mac() const { return port_->facts().mac; }

  void send(std::span<const std::byte> frame) {
    DpdkSends::Slot* const slot = sends_.next();
    ASSERT_NE(slot, nullptr);
    std::byte* const to = sends_.open(*slot);
    frames::FrameTemplate headers;
    headers.set_destination_mac(frames::MacAddress::broadcast());
    sends_.close(*slot, headers, frame.size());
    std::memcpy(to, frame.data(), frame.size());
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (!sends_.transmit()) ASSERT_LT(std::chrono::steady_clock::now(), until);
  }
  /// A frame with a datagram to `to` and right checksums.
  std::vector<std::byte> frame_to(const End& to, std::span<const std::byte> payload, uint16_t vlan = 0) const {
    const frames::FrameTemplate headers(
        {.source_mac = mac(), .destination_mac = to.mac(), .source = own_, .destination = to.where(), .vlan = vlan});
    std::vector<std::byte> frame(headers.header_bytes() + payload.size());
    headers.write(frame.data(), payload.size());
    std::copy(payload.begin(), payload.end(), frame.begin() + static_cast<ptrdiff_t>(headers.header_bytes()));
    headers.complete_udp_checksum(frame.data(), payload);
    return frame;
  }
  /// Returns the frames received since the last call. Frames of others are passed on.
  std::vector<std::vector<std::byte>> receive() {
    std::vector<std::vector<std::byte>> frames;
    const uint32_t count = burst_.receive();
    for (uint32_t i = 0; i < count; ++i) {
      const std::span<const std::byte> frame = burst_[i].span();
      const auto datagram = frames::FrameParser({mac(), own_, vlan_}).parse(frame, {});
      if (datagram.payload != nullptr) {
        frames.emplace_back(frame.begin(), frame.end());
      } else {
        (void)burst_.pass_on(i);
      }
    }
    if (count != 0) burst_.free();
    return frames;
  }
  /// Waits for the next frames and returns their payloads. Runs `ends` meanwhile.
  std::vector<std::vector<std::byte>> payloads(const std::vector<test::AnyEnd*>& ends, size_t count) {
    std::vector<std::vector<std::byte>> got;
    EXPECT_TRUE(run_until(ends, [&] {
      for (const auto& frame : receive()) {
        const auto datagram = frames::FrameParser({mac(), own_, vlan_}).parse(frame, {});
        got.emplace_back(datagram.payload, datagram.payload + datagram.payload_bytes);
      }
      return got.size() >= count;
    })) << got.size();
    return got;
  }
  void set_vlan(uint16_t vlan) { vlan_ = vlan; }

 private:
  static memory::Arena* arena() {
    static memory::Arena* const made = *memory::Arena::create({.huge_pages = false, .chunk_bytes = 1u << 20});
    return made;
  }

  std::shared_ptr<DpdkPort> port_;
  std::unique_ptr<DpdkLane> lane_;
  base::SocketAddress own_;
  uint16_t vlan_ = 0;
  DpdkMemory memory_{nullptr};  // no payload is gathered
  DpdkBurst burst_;
  DpdkSends sends_;
};

}  // namespace tern::transport::dpdk_test
