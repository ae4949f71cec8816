// Shared memory: writing packets to the ring that the peer reads. shm.h includes this file.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tern::transport {

/// Sends to one peer several times, with the ring's position in registers.
class ShmImpl::Sender {
 public:
  Sender(ShmImpl& transport, PeerId id) : transport_(transport), peer_(*transport.peers_[id]) { load(); }
  [[gnu::always_inline]] ~Sender() { settle(); }  // inlined everywhere: otherwise the object has an address
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  /// takes() is true for packets of one cell, if a free cell is known. It may be false after a record of several
  /// cells.
  static constexpr size_t kBytesMax = shm::kCellPayloadBytes;
  bool takes(size_t len) const { return len <= kBytesMax && position_ != claimed_; }
  [[gnu::always_inline]] bool send(const wire::Header& header, const std::byte* data, size_t len,
                                   detail::Buffer* buffer) {
    if (len > kBytesMax || (position_ == claimed_ && !claim())) [[unlikely]] {
      settle();
      // The copy is made here, because an object with an address lives in memory, and the common case in registers.
      const wire::Header copy = {header.w0, header.w1, header.w2};
      const bool is_sent = transport_.send_slow(peer_, copy, data, len, buffer);
      load();
      return is_sent;
    }
    wire::Header sent = header;
    sent.add_length(wire::kHeaderBytes + len);
    peer_.out.put_cell(position_, sent, data, len);
    position_ += shm::kCellBytes;
    return true;
  }

 private:
  [[gnu::always_inline]] void load() {
    first_ = position_ = peer_.out.position;
    claimed_ = peer_.out.claimed;
    if (position_ == claimed_) [[unlikely]]
      claimed_ = peer_.out.claim_ahead(position_);
  }
  /// False: no cell is known to be free.
  bool claim() {
    claimed_ = peer_.out.claim(position_);
    return position_ != claimed_;
  }
  /// Adds the packets of one cell each to the ring's position and to the counters.
  [[gnu::always_inline]] void settle() {
    if (position_ == first_) return;
    peer_.out.position = position_;
    transport_.counters_.packets_sent += (position_ - first_) / shm::kCellBytes;
    transport_.touch(peer_);
  }
  ShmImpl& transport_;
  Peer& peer_;
  uint64_t first_;
  uint64_t position_;
  uint64_t claimed_;
};

[[gnu::always_inline]] inline bool ShmImpl::send(PeerId id, const wire::Header& header, const std::byte* data,
                                                 size_t len, detail::Buffer* buffer) {
  return Sender(*this, id).send(header, data, len, buffer);
}

}  // namespace tern::transport
