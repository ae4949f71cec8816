// Endpoints for the tests of the shared-memory transport.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "memory/arena.h"
#include "transport/shm/shm.h"

namespace tern::transport {

static_assert(TransportImpl<ShmImpl>);

/// An endpoint with its own arena.
struct ShmEnd {
  explicit ShmEnd(const ShmImpl::Options& options = {}, size_t chunk_bytes = 1 << 20) {
    memory::ArenaOptions arena_options;
    arena_options.shared = true;
    arena_options.huge_pages = false;
    arena_options.chunk_bytes = chunk_bytes;
    auto made = memory::Arena::create(arena_options);
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (!made.ok()) return;
    arena = *made;
    auto transport = ShmImpl::create(options, *arena);
    EXPECT_TRUE(transport.ok()) << transport.status().message();
    if (transport.ok()) shm = std::move(*transport);
  }
  ShmEnd(const ShmEnd&) = delete;
  ~ShmEnd() {
    shm.reset();
    if (arena != nullptr) arena->orphan();
  }
  ShmImpl* operator->() { return shm.get(); }

  /// Receives once, and appends one string of payload bytes per packet to `got`.
  void receive() {
    shm->receive([&](const wire::Header& header, const Payload& payload) {
      headers.push_back(header);
      std::string bytes(payload.bytes, 0);
      intact = payload.copy_to(reinterpret_cast<std::byte*>(bytes.data()));
      were_intact.push_back(intact);
      was_reference = payload.lease != nullptr;
      got.push_back(std::move(bytes));
    });
  }
  bool send(PeerId peer, std::string_view bytes, uint32_t number = 0) {
    const auto header = wire::client_header(wire::Kind::kRequest, wire::kFirst, 7, number, 1, 0, 1, 32);
    return shm->send(peer, header, reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), nullptr);
  }
  bool send(PeerId peer, detail::Buffer* buffer, size_t offset, size_t len) {
    const auto header = wire::client_header(wire::Kind::kRequest, wire::kFirst, 7, 0, 1, 0, 1, 32);
    return shm->send(peer, header, buffer->data() + offset, len, buffer);
  }

  memory::Arena* arena = nullptr;
  std::unique_ptr<ShmImpl> shm;
  std::vector<wire::Header> headers;
  std::vector<std::string> got;
  std::vector<bool> were_intact;
  bool intact = true;  ///< the last packet
  bool was_reference = false;
};

/// For loops that poll, because the other side may need this CPU. On a busy machine a yield costs a time slice, and an
/// endpoint that is only polled checks for new connections only at every 1024th call.
inline void yield_sometimes(uint32_t round) {
  if (round % 512 == 511) std::this_thread::yield();
}

/// Runs all ends in turn until `is_done`. False: the limit has passed, which happens only in failing tests.
inline bool run_until(std::initializer_list<ShmEnd*> ends, const std::function<bool()>& is_done) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(100);
  for (uint32_t round = 0; !is_done(); round++) {
    for (ShmEnd* end : ends) {
      end->receive();
      end->shm->flush();
    }
    if (std::chrono::steady_clock::now() > limit) return false;
    yield_sometimes(round);
  }
  return true;
}
/// Runs a few rounds, so that packets under way arrive.
inline void run_some(std::initializer_list<ShmEnd*> ends) {
  for (int i = 0; i < 3000; i++) {
    for (ShmEnd* end : ends) end->receive();
  }
}

/// Connects `from` to `to`, and returns from's id for it.
inline PeerId connect(ShmEnd& from, ShmEnd& to) {
  auto peer = from->connect(to->address(), "");
  EXPECT_TRUE(peer.ok()) << peer.status().message();
  EXPECT_TRUE(run_until({&from, &to}, [&] { return from->peer_state(*peer) == PeerState::kReady; }));
  return *peer;
}

inline std::string pattern(size_t bytes, uint32_t seed) {
  std::string text(bytes, 0);
  for (size_t i = 0; i < bytes; i++) text[i] = static_cast<char>((i * 31 + seed * 7 + (i >> 8)) & 0xff);
  return text;
}

}  // namespace tern::transport
