// Transports without endpoints for the conformance suite: sending, receiving, and passing of time.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "conformance/transports.h"
#include "memory/arena.h"
#include "patience.h"
#include "transport/transport.h"

namespace tern::conformance {

using transport::Payload;
using transport::PeerId;
using transport::PeerState;

/// A bound for required events. A passing test never waits that long.
inline const auto kPatience = std::chrono::seconds(20) * patience();
inline const uint64_t kPatienceNs = 20'000'000'000 * patience();

inline std::string pattern(uint32_t number, size_t bytes) {
  std::string text(bytes, 0);
  for (size_t i = 0; i < bytes; i++) text[i] = static_cast<char>(number * 131 + i * 7 + (i >> 8));
  return text;
}

/// A packet's header before the transport sets the length. `number` identifies the packet.
inline wire::Header numbered(uint32_t number) {
  return wire::client_header(wire::Kind::kRequest, wire::kFirst, 0x00c00007, number, 64, wire::kNoDeadline, 5, 32);
}

/// One transport with its arena, and the packets that it has received.
template <class T>
class End {
 public:
  using Impl = typename T::Impl;
  struct Packet {
    uint32_t number;
    std::string bytes;
    bool is_whole;  ///< false: the sender took the memory back during the read
  };

  explicit End(World& world) : End(made_options(world)) {}
  explicit End(typename T::Options options) {
    memory::ArenaOptions arena_options;
    arena_options.shared = Impl::kTraits.has_shared_memory;
    arena_options.huge_pages = false;
    arena_options.chunk_bytes = 1u << 20;
    auto made_arena = memory::Arena::create(arena_options);
    EXPECT_TRUE(made_arena.ok()) << made_arena.status().message();
    arena = *made_arena;
    auto made = Impl::create(std::move(options), transport::Context(*arena, "127.0.0.1"));
    status = made.status();
    if (made.ok()) impl_ = std::move(*made);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ~End() {
    impl_.reset();
    arena->orphan();
  }
  static typename T::Options made_options(World& world) {
    typename T::Options options{};
    provide(options, world);
    return options;
  }

  Impl* operator->() { return impl_.get(); }
  Impl& operator*() { return *impl_; }
  void die() { impl_.reset(); }

  /// Calls receive() once and stores the packets in `got`.
  size_t receive() {
    return impl_->receive([this](const wire::Header& header, const Payload& payload) {
      EXPECT_TRUE((header.flags() & wire::kByReference) != 0 || header.length() == wire::kHeaderBytes + payload.bytes);
      EXPECT_LE(payload.bytes, std::max(impl_->payload_bytes_max(), impl_->large_payload_bytes()));
      Packet packet{header.number(), std::string(payload.bytes, 0), true};
      if (payload.bytes != 0) packet.is_whole = payload.copy_to(reinterpret_cast<std::byte*>(packet.bytes.data()));
      got.push_back(std::move(packet));
    });
  }
  /// Sends bytes without a Buffer, which send() copies.
  bool send(PeerId peer, uint32_t number, std::string_view bytes = {}) {
    return impl_->send(peer, numbered(number), reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), nullptr);
  }
  bool send(PeerId peer, uint32_t number, detail::Buffer* buffer, size_t len) {
    return impl_->send(peer, numbered(number), buffer->data(), len, buffer);
  }
  detail::Buffer* filled(uint32_t number, size_t len) {
    detail::Buffer* buffer = arena->alloc(len);
    std::memcpy(buffer->data(), pattern(number, len).data(), len);
    return buffer;
  }

  memory::Arena* arena = nullptr;
  Status status;  ///< result of create()
  std::vector<Packet> got;

 private:
  std::unique_ptr<Impl> impl_;
};

/// Runs all ends in turn until `is_done`. False: the patience is over.
template <class T>
bool run_until(std::initializer_list<End<T>*> ends, const std::function<bool()>& is_done) {
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  for (uint32_t round = 0; !is_done(); round++) {
    for (End<T>* end : ends) {
      end->receive();
      (*end)->flush();
    }
    if (round % 512 == 511) {
      if (std::chrono::steady_clock::now() > limit) return false;
      std::this_thread::yield();  // another thread or process may be waiting for this CPU
    }
  }
  return true;
}

/// Runs some rounds, so that packets under way arrive.
template <class T>
void run_some(std::initializer_list<End<T>*> ends) {
  for (int round = 0; round < 3000; round++) {
    for (End<T>* end : ends) {
      end->receive();
      (*end)->flush();
    }
  }
}

/// Connects and waits until packets can be sent.
template <class T>
PeerId connect(End<T>& from, End<T>& to) {
  auto peer = from->connect(to->address(), "127.0.0.1");
  EXPECT_TRUE(peer.ok()) << peer.status().message();
  if (!peer.ok()) return 0;
  EXPECT_TRUE(run_until({&from, &to}, [&] { return from->peer_state(*peer) == PeerState::kReady; }));
  return *peer;
}

/// Tries to send until the transport accepts the packet. Both ends run meanwhile.
template <class T>
void must_send(End<T>& from, End<T>& to, PeerId peer, uint32_t number, std::string_view bytes = {}) {
  EXPECT_TRUE(run_until({&from, &to}, [&] { return from.send(peer, number, bytes); }));
}

template <class T>
class Conformance : public testing::Test {
 protected:
  static constexpr transport::Traits kTraits = T::Impl::kTraits;
  World world_;
};

}  // namespace tern::conformance
