// Common parts of the tests of transports over a NIC: an endpoint with its received packets, and packets to send. Each
// transport's fixture derives its End.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "memory/arena.h"
#include "patience.h"
#include "transport/transport.h"
#include "wire/header.h"

namespace tern::test {

/// A bound for required events. A passing test never waits that long.
inline const auto kPatience = std::chrono::seconds(30) * patience();
inline constexpr uint32_t kTestKey = 0x00c00007;

inline wire::Header header_of(uint32_t number, size_t payload_bytes) {
  return wire::client_header(wire::Kind::kRequest, wire::kFirst, kTestKey, number, 64, wire::kNoDeadline, 5,
                             static_cast<uint32_t>(payload_bytes));
}
/// A packet on the wire.
inline std::vector<std::byte> packet_of(uint32_t number, size_t payload_bytes, std::byte value) {
  std::vector<std::byte> bytes(wire::kHeaderBytes + payload_bytes, value);
  wire::Header header = header_of(number, payload_bytes);
  header.add_length(bytes.size());
  wire::store_header(bytes.data(), header);
  return bytes;
}

/// An endpoint over any transport, and the packets that it has received.
struct AnyEnd {
  struct Received {
    uint32_t number;
    std::vector<std::byte> payload;
  };

  /// Runs one iteration of an event loop.
  virtual size_t turn() = 0;

  std::vector<Received> got;

 protected:
  ~AnyEnd() = default;
};

/// An endpoint over Impl.
template <class Impl>
struct End : AnyEnd {
  template <class Options>
  explicit End(const Options& options, std::string_view host) {
    auto made = memory::Arena::create({.huge_pages = false, .chunk_bytes = 1u << 20});
    if (!made.ok()) std::abort();
    arena = *made;
    auto created = Impl::create(options, transport::Context(*arena, host));
    status = created.status();
    if (created.ok()) impl = std::move(*created);
  }
  virtual ~End() {
    impl.reset();
    for (detail::Buffer* buffer : buffers) memory::Arena::release(buffer);
    if (arena != nullptr) arena->orphan();
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  Impl* operator->() const { return impl.get(); }

  size_t turn() override {
    const size_t packets = impl->receive([this](const wire::Header& header, const transport::Payload& payload) {
      got.push_back({header.number(), {payload.data, payload.data + payload.bytes}});
    });
    impl->flush();
    return packets;
  }
  bool send(transport::PeerId peer, uint32_t number, const std::byte* data = nullptr, size_t bytes = 0,
            detail::Buffer* buffer = nullptr) {
    return impl->send(peer, header_of(number, bytes), data, bytes, buffer);
  }
  bool send(transport::PeerId peer, uint32_t number, detail::Buffer* buffer, size_t bytes) {
    return send(peer, number, buffer->data(), bytes, buffer);
  }
  /// Returns a buffer that the caller must release.
  detail::Buffer* alloc_filled(size_t bytes, std::byte value) const {
    detail::Buffer* buffer = arena->alloc(bytes);
    std::fill_n(buffer->data(), bytes, value);
    return buffer;
  }
  /// Returns a buffer that is released with the endpoint.
  detail::Buffer* filled(size_t bytes, std::byte value) { return buffers.emplace_back(alloc_filled(bytes, value)); }

  memory::Arena* arena = nullptr;
  std::unique_ptr<Impl> impl;
  Status status;
  std::vector<detail::Buffer*> buffers;
};

/// Runs endpoints until the condition holds. False: it did not hold within kPatience.
inline bool run_until(const std::vector<AnyEnd*>& ends, const std::function<bool()>& is_true) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!is_true()) {
    for (AnyEnd* end : ends) end->turn();
    if (std::chrono::steady_clock::now() > until) return false;
  }
  return true;
}

/// Connects a new peer of `from` and waits until it is ready.
template <class Impl>
transport::PeerId connect(End<Impl>& from, std::span<const std::byte> address) {
  auto peer = from->connect(address, "");
  EXPECT_TRUE(peer.ok()) << peer.status().message();
  if (!peer.ok()) return 0;
  EXPECT_TRUE(run_until({&from}, [&] { return from->peer_state(*peer) == transport::PeerState::kReady; }));
  return *peer;
}
template <class Impl>
transport::PeerId connect(End<Impl>& from, const End<Impl>& to) {
  return connect(from, to->address());
}

inline bool says(const Status& status, std::string_view text) {
  return std::string_view(status.message()).find(text) != std::string_view::npos;
}
/// Checks the code of a refusal, and that its text begins with the transport's name and contains `text`.
inline void expect_refusal(const Status& status, std::string_view transport, Code code, std::string_view text) {
  EXPECT_EQ(status.code(), code) << text;
  EXPECT_TRUE(says(status, text)) << text << ": " << status.message();
  EXPECT_EQ(status.message().substr(0, transport.size() + 2), std::string(transport) + ": ");
}

}  // namespace tern::test
