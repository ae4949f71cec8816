// What the tests of the mlx5 transport share: endpoints over the software provider on a veth pair
// (tests/software_verbs, cable), kernel sockets at its other end, and frames.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cable/far.h"
#include "software_verbs/control.h"
#include "transport/mlx5/mlx5.h"

namespace tern::transport::mlx5_test {

inline constexpr auto kPatience = std::chrono::seconds(30);  // a bound for what must happen, never waited for in full
inline constexpr uint32_t kTestKey = 0x00c00007;
inline constexpr int kDevice = 2;  // mlx5_0, for the provider
inline constexpr const char *kNear4 = "10.77.0.1", *kFar4 = "10.77.0.2", *kNear6 = "fd77::1", *kFar6 = "fd77::2";

inline const software_verbs::Control& provider() { return *software_verbs::control(); }
inline software_verbs::Counters counters() {
  software_verbs::Counters read;
  provider().read_counters(&read);
  return read;
}

using test::Far;
using test::FarSocket;
using test::RawSocket;

inline bool run(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

inline wire::Header header_of(uint32_t number, size_t payload_bytes) {
  return wire::client_header(wire::Kind::kRequest, wire::kFirst, kTestKey, number, 64, wire::kNoDeadline, 5,
                             static_cast<uint32_t>(payload_bytes));
}
/// A packet as it travels.
inline std::vector<std::byte> packet_of(uint32_t number, size_t payload_bytes, std::byte value) {
  std::vector<std::byte> bytes(wire::kHeaderBytes + payload_bytes, value);
  wire::Header header = header_of(number, payload_bytes);
  header.add_length(bytes.size());
  wire::store_header(bytes.data(), header);
  return bytes;
}

/// Options with one that is not the default.
template <class Field, class Value>
Mlx5::Options with(Field Mlx5::Options::*field, const Value& value) {
  Mlx5::Options options;
  options.*field = value;
  return options;
}

/// An endpoint, and what it has received.
struct End {
  struct Received {
    uint32_t number;
    std::vector<std::byte> payload;
  };

  explicit End(const Mlx5::Options& options = {}, std::string_view host = "") {
    auto made = memory::Arena::create({.huge_pages = false, .chunk_bytes = 1u << 20});
    if (!made.ok()) std::abort();
    arena = *made;
    auto created = Mlx5Impl::create(options, Context(*arena, host));
    status = created.status();
    if (created.ok()) mlx5 = std::move(*created);
  }
  ~End() {
    mlx5.reset();
    for (detail::Buffer* buffer : buffers) memory::Arena::release(buffer);
    if (arena != nullptr) arena->orphan();
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  Mlx5Impl* operator->() const { return mlx5.get(); }

  /// One iteration of an event loop.
  size_t turn() {
    const size_t packets = mlx5->receive([this](const wire::Header& header, const Payload& payload) {
      got.push_back({header.number(), {payload.data, payload.data + payload.bytes}});
    });
    mlx5->flush();
    return packets;
  }
  bool send(PeerId peer, uint32_t number, const std::byte* data = nullptr, size_t bytes = 0,
            detail::Buffer* buffer = nullptr) {
    return mlx5->send(peer, header_of(number, bytes), data, bytes, buffer);
  }
  bool send(PeerId peer, uint32_t number, detail::Buffer* buffer, size_t bytes) {
    return send(peer, number, buffer->data(), bytes, buffer);
  }
  /// Released with the endpoint.
  detail::Buffer* filled(size_t bytes, std::byte value) {
    detail::Buffer* buffer = arena->alloc(bytes);
    std::fill_n(buffer->data(), bytes, value);
    return buffers.emplace_back(buffer);
  }
  /// IP and port.
  base::SocketAddress where() const {
    ethernet::EndpointAddress address;
    EXPECT_TRUE(decode_address(mlx5->address(), &address));
    return address.end;
  }

  memory::Arena* arena = nullptr;
  std::unique_ptr<Mlx5Impl> mlx5;
  Status status;
  std::vector<Received> got;
  std::vector<detail::Buffer*> buffers;
};

/// False: it has not come true after kPatience.
inline bool run_until(const std::vector<End*>& ends, const std::function<bool()>& is_true) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!is_true()) {
    for (End* end : ends) end->turn();
    if (std::chrono::steady_clock::now() > until) return false;
  }
  return true;
}

/// A new peer of `from` that is ready.
inline PeerId connect(End& from, const base::SocketAddress& to, uint16_t datagram_bytes = 1472) {
  auto peer = from->connect(encode_address(ethernet::EndpointAddress{to, datagram_bytes}), "");
  EXPECT_TRUE(peer.ok()) << peer.status().message();
  if (!peer.ok()) return 0;
  EXPECT_TRUE(run_until({&from}, [&] { return from->peer_state(*peer) == PeerState::kReady; }));
  return *peer;
}
inline PeerId connect(End& from, const End& to) { return connect(from, to.where()); }

class Mlx5Test : public ::testing::Test {
 protected:
  void SetUp() override {
    if (software_verbs::control() == nullptr) GTEST_SKIP() << "not over the software verbs provider";
    if (Far::path() == nullptr) GTEST_SKIP() << "not on a cable (tests/cable)";
    provider().reset();
  }
  /// Nothing is left of any endpoint.
  void TearDown() override {
    if (software_verbs::control() == nullptr) return;
    provider().reset();
    const software_verbs::Counters left = counters();
    EXPECT_EQ(left.contexts, 0u);
    EXPECT_EQ(left.protection_domains, 0u);
    EXPECT_EQ(left.memory_regions, 0u);
    EXPECT_EQ(left.registered_bytes, 0u);
    EXPECT_EQ(left.completion_channels, 0u);
    EXPECT_EQ(left.completion_queues, 0u);
    EXPECT_EQ(left.queue_pairs, 0u);
    EXPECT_EQ(left.receive_queues, 0u);
    EXPECT_EQ(left.indirection_tables, 0u);
    EXPECT_EQ(left.steering_rules, 0u);
  }
};

}  // namespace tern::transport::mlx5_test
