// What the tests of the verbs transport share: endpoints over the software verbs provider, each with an arena.
#pragma once

#include <gtest/gtest.h>

#include <poll.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "software_verbs/provider_fixture.h"
#include "transport/verbs/verbs.h"

namespace tern::transport::verbs_test {

inline constexpr auto kPatience = std::chrono::seconds(30);  // a bound for what must happen, never waited for in full
inline constexpr uint32_t kTestKey = 0x00c00007;

using software_verbs::counters;
using software_verbs::provider;

/// An endpoint, and what it has received.
struct End {
  struct Received {
    uint32_t number;
    std::vector<std::byte> payload;
  };

  explicit End(const Verbs::Options& options = {}, std::string_view host = "") {
    auto made = memory::Arena::create({.huge_pages = false, .chunk_bytes = 1u << 20});
    if (!made.ok()) std::abort();
    arena = *made;
    auto created = VerbsImpl::create(options, Context(*arena, host));
    status = created.status();
    if (created.ok()) verbs = std::move(*created);
  }
  ~End() {
    verbs.reset();
    if (arena != nullptr) arena->orphan();
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  VerbsImpl* operator->() const { return verbs.get(); }

  /// One iteration of an event loop.
  size_t turn() {
    const size_t packets = verbs->receive([this](const wire::Header& header, const Payload& payload) {
      got.push_back({header.number(), {payload.data, payload.data + payload.bytes}});
    });
    verbs->flush();
    return packets;
  }
  bool send(PeerId peer, uint32_t number, const std::byte* data = nullptr, size_t bytes = 0,
            detail::Buffer* buffer = nullptr) {
    return verbs->send(peer,
                       wire::client_header(wire::Kind::kRequest, wire::kFirst, kTestKey, number, 64, wire::kNoDeadline,
                                           5, static_cast<uint32_t>(bytes)),
                       data, bytes, buffer);
  }
  bool send(PeerId peer, uint32_t number, detail::Buffer* buffer, size_t bytes) {
    return send(peer, number, buffer->data(), bytes, buffer);
  }
  detail::Buffer* filled(size_t bytes, std::byte value) const {
    detail::Buffer* buffer = arena->alloc(bytes);
    std::fill_n(buffer->data(), bytes, value);
    return buffer;
  }

  memory::Arena* arena = nullptr;
  std::unique_ptr<VerbsImpl> verbs;
  Status status;
  std::vector<Received> got;
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

inline bool is_readable(int descriptor) {
  pollfd polled{descriptor, POLLIN, 0};
  return poll(&polled, 1, 0) == 1;
}

/// A new peer of `from` that is ready; the wake() of its address handle is over.
inline PeerId connect(End& from, const End& to) {
  auto peer = from->connect(to->address(), "");
  EXPECT_TRUE(peer.ok()) << peer.status().message();
  if (!peer.ok()) return 0;
  EXPECT_TRUE(run_until({&from}, [&] { return from->peer_state(*peer) == PeerState::kReady; }));
  EXPECT_TRUE(run_until({&from}, [&] { return is_readable(from->descriptor()); }));
  from->end_wait();
  return *peer;
}

using VerbsTest = software_verbs::ProviderTest;

}  // namespace tern::transport::verbs_test
