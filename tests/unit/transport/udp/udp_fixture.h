// Common parts of the UDP transport's tests: endpoints on loopback, and numbered packets with contents that can be
// checked.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "transport/udp/udp.h"

namespace tern::transport::udp_test {

// A bound for required events; a passing test never waits that long.
inline constexpr auto kPatience = std::chrono::seconds(20);

struct ArenaOwner {
  ArenaOwner() {
    auto made = memory::Arena::create({.huge_pages = false, .chunk_bytes = 1u << 20});
    if (!made.ok()) std::abort();
    arena = *made;
  }
  ~ArenaOwner() { arena->orphan(); }
  memory::Arena* arena;
};
inline memory::Arena& test_arena() {
  static ArenaOwner owner;
  return *owner.arena;
}

/// Returns the address() of an endpoint that receives at `where`.
inline std::vector<std::byte> endpoint_address(const SocketAddress& where, uint32_t datagram_bytes) {
  const UdpAddressBytes encoded = encode_address(where);
  std::vector<std::byte> address(encoded.span().begin(), encoded.span().end());
  address.push_back(static_cast<std::byte>(datagram_bytes & 0xff));
  address.push_back(static_cast<std::byte>(datagram_bytes >> 8));
  return address;
}

inline Udp::Options bound_to(const std::string& address) {
  Udp::Options options;
  options.bind = address;
  return options;
}

inline std::unique_ptr<UdpImpl> make(Udp::Options options = {}) {
  if (options.bind.empty()) options.bind = "127.0.0.1";
  auto made = UdpImpl::create(options, test_arena());
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? std::move(*made) : nullptr;
}

struct Received {
  wire::Header header;
  std::vector<std::byte> payload;
};

/// Receives until `enough` packets have arrived, or kPatience has passed.
inline std::vector<Received> receive_some(UdpImpl& transport, size_t enough) {
  std::vector<Received> all;
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (all.size() < enough && std::chrono::steady_clock::now() < until) {
    const size_t before = all.size();
    const size_t reported = transport.receive([&](const wire::Header& header, const Payload& payload) {
      EXPECT_EQ(payload.lease, nullptr);
      all.push_back({header, {payload.data, payload.data + payload.bytes}});
    });
    EXPECT_EQ(reported, all.size() - before);
  }
  return all;
}

inline constexpr uint32_t kTestKey = 0x00c00007;

inline wire::Header numbered(uint32_t number, uint32_t message_bytes = 0) {
  return wire::client_header(wire::Kind::kRequest, wire::kFirst, kTestKey, number, 64, wire::kNoDeadline, 5,
                             message_bytes);
}

inline std::byte pattern(uint32_t number, size_t at) {
  return static_cast<std::byte>(number * 131 + at * 7 + (at >> 8));
}

inline detail::Buffer* filled(uint32_t number, size_t len) {
  detail::Buffer* buffer = test_arena().alloc(len);
  for (size_t i = 0; i < len; ++i) buffer->data()[i] = pattern(number, i);
  return buffer;
}

inline void expect_pattern(const Received& packet, uint32_t number, size_t len) {
  EXPECT_EQ(packet.header.number(), number);
  EXPECT_EQ(packet.header.session_key(), kTestKey);
  EXPECT_EQ(packet.header.request_type(), 5u);
  EXPECT_EQ(packet.header.length(), wire::kHeaderBytes + len);
  ASSERT_EQ(packet.payload.size(), len);
  for (size_t i = 0; i < len; ++i)
    ASSERT_EQ(packet.payload[i], pattern(number, i)) << "byte " << i << " of packet " << number;
}

inline PeerId must_connect(UdpImpl& from, const UdpImpl& to, std::string_view host = "127.0.0.1") {
  auto peer = from.connect(to.address(), host);
  EXPECT_TRUE(peer.ok()) << peer.status().message();
  return peer.ok() ? *peer : 0;
}

inline bool has_own_socket(const UdpImpl& udp, PeerId peer) {
  return std::ranges::count(udp.census().connected, peer) == 1;
}

/// Appends a numbered packet with `len` bytes of its pattern to a datagram.
inline void append_packet(std::vector<std::byte>& to, uint32_t number, size_t len, uint8_t flags = 0) {
  wire::Header header = numbered(number);
  header.set_length_and_flags(wire::kHeaderBytes + len, flags);
  to.resize(to.size() + wire::kHeaderBytes);
  wire::store_header(to.data() + to.size() - wire::kHeaderBytes, header);
  for (size_t i = 0; i < len; ++i) to.push_back(pattern(number, i));
}

/// A stranger with its own socket, who sends datagrams of any content to an endpoint.
class RawSender {
 public:
  explicit RawSender(const UdpImpl& to) {
    SocketAddress address;
    EXPECT_TRUE(decode_address(to.address().first(to.address().size() - 2), &address));
    fd_ = open_send_socket(address.family(), SocketAddress::loopback(address.family()), 1u << 20);
    EXPECT_EQ(::connect(fd_.get(), address.sockaddr_data(), address.sockaddr_bytes()), 0);
  }
  bool has_input() const {
    pollfd readable{fd_.get(), POLLIN, 0};
    return poll(&readable, 1, 0) > 0;
  }
  void send(const std::vector<std::byte>& bytes) {
    ASSERT_EQ(::send(fd_.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }

 private:
  Descriptor fd_;
};

}  // namespace tern::transport::udp_test
