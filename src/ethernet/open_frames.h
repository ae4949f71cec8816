// Sends small packets; the packets to one peer share a frame. Ethernet layer; the endpoint's thread.
//
// A packet is copied after other packets into its peer's open frame, which lies in a slot of the transport's send
// queue. A queue may gather a long packet from message memory, in a frame of its own. flush() writes the headers in
// front of the packets of all open frames. A frame is queued when it is opened, so that frames leave in the order of
// their first packets.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include <tern/detail/buffer.h>

#include "base/copy.h"
#include "ethernet/peers.h"
#include "frames/frame_template.h"
#include "wire/header.h"

namespace tern::ethernet {

/// Writes a packet's header, with its length and without flags.
inline void put_header(std::byte* to, const wire::Header& header, size_t packet_bytes) {
  wire::Header sent = header;
  sent.set_length_and_flags(packet_bytes, 0);
  wire::store_header(to, sent);
}

/// The functions of a transport's send queue that OpenFrames uses. A slot stays at its address until its frame has
/// left.
template <class Q>
concept FrameQueue = requires(Q queue, const Q const_queue, typename Q::Slot& slot,
                              const frames::FrameTemplate& headers, size_t bytes) {
  /// The most frames that can be queued between two flushes.
  { Q::kSlots } -> std::convertible_to<uint32_t>;
  /// Returns a slot for the next frame; null: the queue is full now.
  { queue.next() } -> std::same_as<typename Q::Slot*>;
  /// The size of an open frame, headers included.
  { const_queue.frame_bytes_max() } -> std::convertible_to<uint32_t>;
  /// Queues the slot that next() returned. Its frame is complete when close() is called, before the queue is posted.
  /// Returns the place of its headers; the packets follow.
  { queue.open(slot) } -> std::same_as<std::byte*>;
  /// Writes the headers of an open frame whose packets have `bytes` in total.
  {queue.close(slot, headers, bytes)};
};

/// A queue that can send long data without copying it.
template <class Q>
concept GatheringQueue = FrameQueue<Q> &&
    requires(Q queue, const Q const_queue, typename Q::Slot& slot, const frames::FrameTemplate& headers,
             const wire::Header& header, const std::byte* data, size_t bytes, const detail::Buffer* buffer) {
  /// Data above this length is sent in a frame of its own.
  { const_queue.copied_bytes_max() } -> std::convertible_to<size_t>;
  /// Queues the slot that next() returned, with a frame of one packet: a header, and `bytes` of data in message memory.
  {queue.add(slot, headers, header, data, bytes, buffer)};
};

template <class Queue>
class OpenFrames {
  static_assert(FrameQueue<Queue>);

 public:
  /// Counts the packets that were sent, and the packets that never can be sent.
  OpenFrames(Peers& peers, Queue& queue, uint64_t& packets_sent, uint64_t& send_errors)
      : peers_(peers), queue_(queue), packets_sent_(packets_sent), send_errors_(send_errors) {}
  OpenFrames(const OpenFrames&) = delete;
  OpenFrames& operator=(const OpenFrames&) = delete;

  class Sender;

  /// Closes the open frames. The queue can then be posted.
  void flush() {
    for (uint32_t i = 0; i < count_; ++i) {
      if (opened_[i].slot != nullptr) finish(opened_[i]);
    }
    count_ = 0;
  }
  /// Must be called when the queue has dropped its frames.
  void forget() {
    for (uint32_t i = 0; i < count_; ++i) peers_.route(opened_[i].peer).end_frame();
    count_ = 0;
  }

 private:
  using Slot = typename Queue::Slot;
  static constexpr size_t kHeaderBytes = wire::kHeaderBytes;

  /// A frame that was opened since the last flush.
  struct Opened {
    uint32_t peer;
    Slot* slot;          ///< null: the frame is closed
    std::byte* packets;  ///< the first packet; the frame's headers are in front of it
  };

  /// Writes a packet into the open frame, which has space for it. Returns the place of the next packet.
  static std::byte* put(std::byte* to, const wire::Header& header, const std::byte* data, size_t len) {
    put_header(to, header, kHeaderBytes + len);
    base::copy_bytes(to + kHeaderBytes, data, len);
    return to + kHeaderBytes + len;
  }
  /// Sends a packet that opens a frame, has a frame of its own, is too long, or cannot be sent now. The header is
  /// passed in words, and the function does not throw, so that the callers keep their header and the frame's position
  /// in registers.
  [[gnu::noinline]] bool send_slow(uint32_t peer, uint64_t w0, uint64_t w1, uint64_t w2, const std::byte* data,
                                   size_t len, const detail::Buffer* buffer) noexcept {
    const wire::Header header{w0, w1, w2};
    Route& to = peers_.route(peer);
    if (!to.is_ready) return false;
    if (kHeaderBytes + len > to.datagram_bytes) {
      ++send_errors_;
      return true;  // counts as a loss: it would not fit later either
    }
    Slot* const slot = queue_.next();
    if (slot == nullptr) return false;
    if (to.has_frame()) close(to);
    if (!gather(to, *slot, header, data, len, buffer)) {
      open(peer, to, *slot);
      to.write = put(to.write, header, data, len);
      to.space_bytes -= static_cast<uint32_t>(kHeaderBytes + len);
    }
    ++packets_sent_;
    return true;
  }
  /// Returns false if the packet must be copied.
  bool gather(const Route& to, Slot& slot, const wire::Header& header, const std::byte* data, size_t len,
              const detail::Buffer* buffer) {
    if constexpr (GatheringQueue<Queue>) {
      if (len <= queue_.copied_bytes_max()) return false;
      queue_.add(slot, to.headers, header, data, len, buffer);
      return true;
    }
    return false;
  }
  void open(uint32_t peer, Route& to, Slot& slot) {
    const auto headers = static_cast<uint32_t>(to.headers.header_bytes());
    to.write = queue_.open(slot) + headers;
    to.space_bytes = std::min(queue_.frame_bytes_max() - headers, to.datagram_bytes);
    to.open_index = count_;
    opened_[count_++] = {peer, &slot, to.write};
  }
  /// Closes a frame because another frame to the peer follows.
  void close(Route& to) {
    Opened& opened = opened_[to.open_index];
    finish(opened);
    opened.slot = nullptr;
  }
  void finish(const Opened& opened) {
    Route& to = peers_.route(opened.peer);
    queue_.close(*opened.slot, to.headers, static_cast<size_t>(to.write - opened.packets));
    to.end_frame();
  }

  Peers& peers_;
  Queue& queue_;
  uint64_t& packets_sent_;
  uint64_t& send_errors_;
  uint32_t count_ = 0;
  std::array<Opened, Queue::kSlots> opened_;
};

/// Sends several packets to one peer in a row, and keeps the open frame's position in registers. While it lives, its
/// owner must not use the frames or the peers otherwise.
template <class Queue>
class OpenFrames<Queue>::Sender {
 public:
  Sender(OpenFrames& frames, uint32_t peer) : frames_(frames), route_(frames.peers_.route(peer)), peer_(peer) {
    load();
  }
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;
  ~Sender() { store(); }

  /// `buffer` holds the data, which the queue may gather. Returns false if the packet cannot be sent now, because the
  /// queue is full or the peer is not ready.
  bool send(const wire::Header& header, const std::byte* data, size_t len, const detail::Buffer* buffer) {
    const size_t bytes = kHeaderBytes + len;
    if (bytes > space_bytes_) [[unlikely]] {
      store();
      const bool is_taken = frames_.send_slow(peer_, header.w0, header.w1, header.w2, data, len, buffer);
      load();
      return is_taken;
    }
    write_ = put(write_, header, data, len);
    space_bytes_ -= static_cast<uint32_t>(bytes);
    ++packets_;
    return true;
  }

 private:
  void load() {
    write_ = route_.write;
    space_bytes_ = route_.space_bytes;
    packets_ = 0;
  }
  void store() {
    route_.write = write_;
    route_.space_bytes = space_bytes_;
    frames_.packets_sent_ += packets_;
  }

  OpenFrames& frames_;
  Route& route_;
  uint32_t peer_;
  std::byte* write_;
  uint32_t space_bytes_;
  uint32_t packets_;
};

}  // namespace tern::ethernet
