// A hostile process over shared memory, which writes its ring by hand. One thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include <tern/detail/buffer.h>

#include "attack/hostile.h"
#include "transport/shm/shm_memory.h"
#include "transport/shm/shm_ring.h"
#include "transport/shm/shm_socket.h"

namespace attack {

namespace shm = tern::transport::shm;

/// Speaks the transport's protocol by hand.
class RawPeer {
 public:
  static constexpr uint32_t kCells = 256;
  static constexpr uint64_t kStart = uint64_t{77} << 20;
  static constexpr size_t kChunkBytes = 64 << 10;

  explicit RawPeer(const shm::Identity& server)
      : identity(*shm::make_identity()),
        listener_(std::move(*shm::listen_as(identity))),
        ring_(std::move(*shm::make_own_memory("hostile-ring", shm::region_bytes(kCells)))),
        doorbell_(std::move(*shm::make_own_memory("hostile-doorbell", 4096))),
        chunk_(std::move(*shm::make_own_memory("hostile-chunk", kChunkBytes))),
        socket_(std::move(*connected(server))) {}

  /// Connects and sends nothing yet. It tries again while the listener's queue is full.
  static tern::Result<shm::Descriptor> connected(const shm::Identity& server) {
    while (true) {
      auto socket = shm::connect_to(server);
      if (socket.ok() || socket.status().code() != tern::Code::kQueueFull) return socket;
      std::this_thread::yield();
    }
  }
  void say_hello() {
    EXPECT_EQ(shm::send_hello(socket_.get(), {identity, kStart, kCells, true}, ring_.fd.get(), doorbell_.fd.get()),
              shm::SendResult::kSent);
  }
  /// Sends hello and waits for the answer. put() works afterwards.
  void join() {
    say_hello();
    shm::Message message;
    const auto until = Clock::now() + kPatience;
    auto result = shm::ReceiveResult::kNothing;
    while (result == shm::ReceiveResult::kNothing && Clock::now() < until) {
      result = shm::receive_message(socket_.get(), message);
      std::this_thread::yield();
    }
    ASSERT_EQ(result, shm::ReceiveResult::kMessage);
    auto mapped = shm::map_peer_memory(message.descriptors[0], shm::region_bytes(message.hello.ring_cells),
                                       shm::PeerMemoryKind::kRing);
    ASSERT_TRUE(mapped.ok());
    in_ = std::move(*mapped);
    out_.attach(ring_.mapping.data(), kCells, kStart, &reinterpret_cast<shm::RingControl*>(in_.data())->consumed);
    inbound_.attach(in_.data(), message.hello.ring_cells, message.hello.ring_start,
                    &reinterpret_cast<shm::RingControl*>(ring_.mapping.data())->consumed);
  }
  /// Writes the terms of a client whose endpoint is this peer.
  void fill(tern::wire::ManagementTerms& terms, uint32_t payload_bytes_max) const {
    terms.transport_bytes = 3;
    std::memcpy(terms.transport.data(), "shm", 3);
    terms.payload_bytes_max = payload_bytes_max;
    terms.address_bytes = sizeof(identity);
    std::memcpy(terms.address.data(), identity.data(), sizeof(identity));
  }
  /// Writes a record of one cell, whatever length the header has.
  void put(const Header& header, std::string_view payload) {
    std::byte* cell = out_.cells + (out_.position & out_.offset_mask);
    shm::put_header(cell, header);
    std::memcpy(cell + shm::kPayloadOffset, payload.data(), std::min(payload.size(), shm::kCellPayloadBytes));
    shm::word_at(cell).store(out_.position, std::memory_order_release);
    out_.position += shm::kCellBytes;
  }
  /// Writes a record of several cells. False: there is no space now.
  bool put_long(const Header& header, std::span<const std::byte> payload) {
    return out_.try_put(header, payload.data(), payload.size());
  }
  /// Hands over message memory. put_reference() works afterwards.
  void announce() {
    EXPECT_EQ(shm::send_chunk(socket_.get(), 0, kChunkBytes, chunk_.fd.get()), shm::SendResult::kSent);
  }
  /// Writes a record whose payload is in our memory, where the record before had its own. `lease_lead`: the lease in
  /// the record is newer than the buffer's by this. False: there is no space now.
  bool put_reference(const Header& header, std::span<const std::byte> payload, uint32_t lease_lead) {
    if (!out_.has_space(shm::kCellBytes)) return false;
    auto* buffer = reinterpret_cast<tern::detail::Buffer*>(chunk_.mapping.data());
    const uint32_t lease = buffer->lease.fetch_add(1, std::memory_order_relaxed) + 1;
    std::memcpy(buffer->data(), payload.data(), payload.size());
    Header sent = header;
    sent.set_length_and_flags(tern::wire::kHeaderBytes + shm::kReferenceBytes, tern::wire::kByReference);
    out_.put_reference(sent, {0, lease + lease_lead, 0, 0, static_cast<uint32_t>(payload.size())});
    return true;
  }
  /// Calls `visit(header, payload bytes)` for each packet that has come.
  template <class Visit>
  void read(Visit&& visit) {
    while (inbound_.has_input()) {
      const Header header = shm::take_header(inbound_.cell_at(inbound_.position));
      if (header.w0 == 0) {
        inbound_.position += inbound_.bytes_to_end(inbound_.position);
        continue;
      }
      const size_t payload_bytes = header.length() - tern::wire::kHeaderBytes;
      visit(header, payload_bytes);
      inbound_.position += shm::record_bytes(payload_bytes);
      if (inbound_.is_publication_due(inbound_.position)) inbound_.publish(inbound_.position);
    }
  }
  /// False: the server no longer reads this ring.
  bool wait_for_room() {
    const auto until = Clock::now() + std::chrono::seconds(1);
    while (Clock::now() < until) {
      if (out_.has_space(4 * shm::kCellBytes)) return true;
      std::this_thread::yield();
    }
    return false;
  }
  std::byte* ring() { return ring_.mapping.data(); }
  shm::Descriptor& socket() { return socket_; }

  const shm::Identity identity;

 private:
  shm::Descriptor listener_;
  shm::OwnMemory ring_, doorbell_, chunk_;
  shm::Descriptor socket_;
  shm::Mapping in_;
  shm::Outbound out_;
  shm::Inbound inbound_;
};

}  // namespace attack
