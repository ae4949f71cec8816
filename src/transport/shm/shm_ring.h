// One direction of a pair: cells of one cache line in memory that the sender writes and the receiver reads.
// Transport layer; each end belongs to its endpoint's owner thread. Knows of a packet's header only its length.
//
// A record is one or more whole cells that follow each other in memory:
//
//   word 8 | packet header 24 | payload ...          a 32 B payload makes exactly one line
//
// The word is the record's position, a count of bytes that starts at a secret random number. It is written last
// (release), and the receiver polls nothing else (acquire). Bytes of an old payload that lie where the receiver polls
// next look like the expected word with probability 2^-63. A record does not wrap: a padding record (first header
// word 0) fills the rest of the ring.
//
// The receiver publishes its position in its own memory, in the control line of the ring that leads back. The sender
// looks there only when the space that it knows of is used up.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "wire/header.h"

namespace tern::transport::shm {

inline constexpr size_t kCellBytes = 64;
inline constexpr size_t kWordBytes = 8;
inline constexpr size_t kPayloadOffset = kWordBytes + wire::kHeaderBytes;
inline constexpr size_t kCellPayloadBytes = kCellBytes - kPayloadOffset;
/// The longest record. A payload up to kInlinePayloadBytes travels in cells, a larger one by reference: the receiver
/// copies it out of the sender's memory. Up to this length a copy into the ring costs less than the cache misses of a
/// reference (docs/decisions.md).
inline constexpr size_t kRecordBytesMax = 32 * kCellBytes;
inline constexpr size_t kInlinePayloadBytes = kRecordBytesMax - kPayloadOffset;
/// The length of a record with such a payload, in whole cells.
inline constexpr uint64_t record_bytes(uint64_t payload_bytes) {
  return (kPayloadOffset + payload_bytes + kCellBytes - 1) & ~(kCellBytes - 1);
}
inline constexpr uint32_t kRingCellsMin = 256;
inline constexpr uint32_t kRingCellsMax = 65536;
/// Cells that are claimed together (Outbound::claim()).
inline constexpr uint64_t kGroupBytes = 8 * kCellBytes;
static_assert(kRingCellsMin * kCellBytes % kGroupBytes == 0, "a group does not go beyond the end of the ring");

/// Of a longer record or payload only this much is demoted (demote()): prefetchers fetch the rest in time.
inline constexpr size_t kDemotedBytes = 8 * kCellBytes;

/// Moves a cache line to the cache that both CPUs share, because the other end needs it next and has it sooner from
/// there (CLDEMOTE, Intel SDM volume 2; docs/decisions.md). A hint that never faults. CPUs without the instruction do
/// nothing.
inline void demote(const std::byte* line) {
#if defined(__x86_64__)
  using Line = const std::byte[kCellBytes];
  asm volatile("cldemote %0" : : "m"(*reinterpret_cast<Line*>(line)));
#else
  static_cast<void>(line);
#endif
}
/// The same for each 64th byte of the first kDemotedBytes of `bytes` bytes.
inline void demote(const std::byte* from, size_t bytes) {
  const std::byte* const end = from + std::min(bytes, kDemotedBytes);
  for (; from < end; from += kCellBytes) demote(from);
}

/// The control page before the cells.
struct RingControl {
  alignas(kCellBytes)
      std::atomic<uint64_t> consumed;  ///< position up to which the owner has read the ring that leads to it
};
inline constexpr size_t kControlBytes = 4096;
static_assert(sizeof(RingControl) <= kControlBytes);

inline constexpr size_t region_bytes(uint32_t cells) { return kControlBytes + size_t{cells} * kCellBytes; }
inline constexpr bool is_valid_cell_count(uint32_t cells) {
  return cells >= kRingCellsMin && cells <= kRingCellsMax && (cells & (cells - 1)) == 0;
}

inline const std::atomic<uint64_t>& word_at(const std::byte* cell) {
  return *reinterpret_cast<const std::atomic<uint64_t>*>(cell);
}
inline std::atomic<uint64_t>& word_at(std::byte* cell) { return *reinterpret_cast<std::atomic<uint64_t>*>(cell); }

/// Stores the header word by word. A copy of the whole header, which was just made in registers, would store it, load
/// it as a vector before the store buffer can forward it, and store it again.
inline void put_header(std::byte* cell, const wire::Header& header) {
  auto* words = reinterpret_cast<std::atomic<uint64_t>*>(cell + kWordBytes);
  words[0].store(wire::to_little_endian(header.w0), std::memory_order_relaxed);
  words[1].store(wire::to_little_endian(header.w1), std::memory_order_relaxed);
  words[2].store(wire::to_little_endian(header.w2), std::memory_order_relaxed);
}
/// Reads each word of the header once, so that later checks see the same values.
inline wire::Header take_header(const std::byte* cell) {
  const auto* words = reinterpret_cast<const std::atomic<uint64_t>*>(cell + kWordBytes);
  return {wire::to_little_endian(words[0].load(std::memory_order_relaxed)),
          wire::to_little_endian(words[1].load(std::memory_order_relaxed)),
          wire::to_little_endian(words[2].load(std::memory_order_relaxed))};
}

/// The payload of a by-reference packet: where the sender's memory has the data. Three words in the cell, stored and
/// loaded as such, for the reason given at put_header().
struct Reference {
  uint32_t chunk_id;
  uint32_t lease_value;
  uint64_t buffer_offset;  ///< offset of the detail::Buffer in its chunk
  uint32_t data_offset;    ///< offset in the Buffer's data
  uint32_t bytes;
};
inline constexpr size_t kReferenceBytes = 3 * sizeof(uint64_t);
static_assert(kReferenceBytes <= kCellPayloadBytes);

inline bool is_reference(const wire::Header& header) {
  return (header.flags() & wire::kByReference) != 0 && header.length() == wire::kHeaderBytes + kReferenceBytes;
}
inline void put_reference(std::byte* cell, const Reference& reference) {
  auto* words = reinterpret_cast<std::atomic<uint64_t>*>(cell + kPayloadOffset);
  words[0].store(reference.chunk_id | uint64_t{reference.lease_value} << 32, std::memory_order_relaxed);
  words[1].store(reference.buffer_offset, std::memory_order_relaxed);
  words[2].store(reference.data_offset | uint64_t{reference.bytes} << 32, std::memory_order_relaxed);
}
/// Reads each word once, so that the peer cannot change what has been checked.
inline Reference take_reference(const std::byte* cell) {
  const auto* words = reinterpret_cast<const std::atomic<uint64_t>*>(cell + kPayloadOffset);
  const uint64_t chunk_and_lease = words[0].load(std::memory_order_relaxed);
  const uint64_t offset = words[1].load(std::memory_order_relaxed);
  const uint64_t part = words[2].load(std::memory_order_relaxed);
  return {static_cast<uint32_t>(chunk_and_lease), static_cast<uint32_t>(chunk_and_lease >> 32), offset,
          static_cast<uint32_t>(part), static_cast<uint32_t>(part >> 32)};
}

/// True if the packet has this version, and its payload is in the cell. The visitor checks the kind.
inline bool is_plain(uint64_t w0) { return (w0 & (0xf0 | wire::kByReference << 8)) == wire::kVersion << 4; }

/// Copies up to kCellPayloadBytes without reading beyond either end.
inline void copy_small(std::byte* to, const std::byte* from, size_t len) {
  if (len >= 16) [[likely]] {
    std::byte head[16], tail[16];
    std::memcpy(head, from, 16);
    std::memcpy(tail, from + len - 16, 16);
    std::memcpy(to, head, 16);
    std::memcpy(to + len - 16, tail, 16);
  } else if (len >= 8) {
    uint64_t head, tail;
    std::memcpy(&head, from, 8);
    std::memcpy(&tail, from + len - 8, 8);
    std::memcpy(to, &head, 8);
    std::memcpy(to + len - 8, &tail, 8);
  } else {
    for (; len != 0; --len) to[len - 1] = from[len - 1];
  }
}

/// The sender's end. Invariant: limit - capacity <= position <= claimed <= limit, all equal modulo kCellBytes.
struct Outbound {
  uint64_t position = 0;  ///< position of the next record
  uint64_t claimed = 0;   ///< end of the claimed cells, which are free from `position` on
  uint64_t limit = 0;     ///< cells below it may be written; equal to `position`: the ring is full, or not attached
  std::byte* cells = nullptr;
  uint64_t offset_mask = 0;                         ///< position & offset_mask is the offset in `cells`
  const std::atomic<uint64_t>* consumed = nullptr;  ///< in the peer's memory, which may have any value
  bool is_after_long = false;                       ///< the last record took several cells

  uint64_t capacity_bytes() const { return offset_mask + kCellBytes; }

  /// `start` must be a secret of the two ends, and below 2^63, so that positions never overflow.
  void attach(std::byte* region, uint32_t ring_cells, uint64_t start, const std::atomic<uint64_t>* peer_consumed) {
    position = claimed = start;
    cells = region + kControlBytes;
    offset_mask = (uint64_t{ring_cells} - 1) * kCellBytes;
    limit = start + capacity_bytes();
    consumed = peer_consumed;
  }

  /// Gets the cache lines of the cells from `at` to the end of their group into this CPU's cache, by a store to each.
  /// `at` must equal `claimed`, with all claimed cells written. Returns the new `claimed`, which equals `at` if no cell
  /// is known to be free.
  ///
  /// The peer has read these lines, so that the first store to each waits for another cache. Without claims, the lines
  /// of about two packets are on their way at a time, because the store buffer has no place for the stores of more
  /// packets (docs/decisions.md). A claim has the lines of all cells on their way. Larger groups are slower, and so are
  /// earlier claims, because the peer's prefetchers take lines back.
  [[gnu::noinline]] uint64_t claim(uint64_t at) {
    is_after_long = false;
    std::byte* const cell = cells + (at & offset_mask);
    const uint64_t offset_in_group = at & (kGroupBytes - kCellBytes);
    if (offset_in_group == 0 && at + kGroupBytes <= limit) [[likely]] {
#pragma GCC unroll 8
      for (uint64_t i = 0; i != kGroupBytes; i += kCellBytes) claim_cell(cell + i);
      return claimed = at + kGroupBytes;
    }
    const uint64_t bytes = std::min(kGroupBytes - offset_in_group, limit - at);
    for (uint64_t i = 0; i != bytes; i += kCellBytes) claim_cell(cell + i);
    return claimed = at + bytes;
  }

  /// claim() before it is known whether the next record takes one cell. Does nothing if the last one took several,
  /// because the stores of a longer record follow each other, and need no claim.
  [[gnu::noinline]] uint64_t claim_ahead(uint64_t at) { return is_after_long ? at : claim(at); }

  /// Writes a record of one cell at `at`, which is `position` now or later: len <= kCellPayloadBytes, at < claimed.
  /// The length in `header` is set.
  void put_cell(uint64_t at, const wire::Header& header, const std::byte* data, size_t len) const {
    std::byte* cell = cells + (at & offset_mask);
    put_header(cell, header);
    copy_small(cell + kPayloadOffset, data, len);
    word_at(cell).store(at, std::memory_order_release);
    demote(cell);
  }

  /// Writes a record of one cell with a by-reference packet. Only if has_space(kCellBytes).
  void put_reference(const wire::Header& header, const Reference& reference) {
    std::byte* cell = cells + (position & offset_mask);
    put_header(cell, header);
    shm::put_reference(cell, reference);
    word_at(cell).store(position, std::memory_order_release);
    demote(cell);
    advance(kCellBytes);
  }

  /// Writes a record with a payload of up to kInlinePayloadBytes. False: there is no space for it now.
  bool try_put(const wire::Header& header, const std::byte* data, size_t len) {
    const uint64_t record = record_bytes(len);
    const uint64_t left = capacity_bytes() - (position & offset_mask);
    const uint64_t padding = record > left ? left : 0;
    if (!has_space(padding + record)) return false;
    if (padding != 0) {
      std::byte* cell = cells + (position & offset_mask);
      std::memset(cell + kWordBytes, 0, sizeof(uint64_t));
      word_at(cell).store(position, std::memory_order_release);
      advance(padding);
    }
    std::byte* cell = cells + (position & offset_mask);
    put_header(cell, header);
    if (len != 0) std::memcpy(cell + kPayloadOffset, data, len);
    word_at(cell).store(position, std::memory_order_release);
    demote(cell, record);
    advance(record);
    return true;
  }

  /// True if there is space. Reads the peer's position if the known space is not enough.
  bool has_space(uint64_t bytes) {
    if (limit - position >= bytes) return true;
    refresh();
    return limit - position >= bytes;
  }

  /// Takes over the peer's position if it is plausible: not before the last one, not beyond the written records, and at
  /// the beginning of a cell. Any other value is ignored, so that a hostile peer can only keep its own ring full.
  void refresh() {
    const uint64_t last = limit - capacity_bytes();
    const uint64_t seen = consumed->load(std::memory_order_acquire);
    if (seen - last > position - last || ((seen - last) & (kCellBytes - 1)) != 0) return;
    limit = seen + capacity_bytes();
  }

 private:
  void advance(uint64_t bytes) {
    position += bytes;
    claimed = std::max(claimed, position);
    is_after_long = bytes > kCellBytes;
  }
  /// Stores to the cell's last word. Its first word must stay, because the receiver polls it.
  static void claim_cell(std::byte* cell) {
    auto* last_word = reinterpret_cast<std::atomic<uint64_t>*>(cell + kCellBytes - sizeof(uint64_t));
    last_word->store(0, std::memory_order_relaxed);
  }
};

/// The cell that an end without a ring polls. Its word never equals the position 1.
alignas(kCellBytes) inline constexpr std::byte kNoCell[kCellBytes] = {};

/// The receiver's end.
struct Inbound {
  uint64_t position = 1;  ///< position of the next record
  const std::byte* cells = kNoCell;
  uint64_t offset_mask = 0;
  uint64_t published = 1;               ///< the position that the sender can see
  uint64_t publish_bytes = UINT64_MAX;  ///< a position is published when it is ahead by this: an eighth of the ring
  std::atomic<uint64_t>* consumed = nullptr;  ///< in our own memory

  void attach(const std::byte* region, uint32_t ring_cells, uint64_t start, std::atomic<uint64_t>* own_consumed) {
    position = published = start;
    cells = region + kControlBytes;
    offset_mask = (uint64_t{ring_cells} - 1) * kCellBytes;
    publish_bytes = uint64_t{ring_cells} * kCellBytes / 8;
    consumed = own_consumed;
  }

  /// Ends the input: has_input() is false from now on, whatever the sender writes.
  void stop() {
    cells = kNoCell;
    offset_mask = 0;
  }

  const std::byte* cell_at(uint64_t at) const { return cells + (at & offset_mask); }
  const std::byte* cells_end() const { return cells + offset_mask + kCellBytes; }
  bool has_input() const { return word_at(cell_at(position)).load(std::memory_order_acquire) == position; }
  /// The length from `at` to the end of the ring.
  uint64_t bytes_to_end(uint64_t at) const { return offset_mask + kCellBytes - (at & offset_mask); }
  /// `at`: the position up to which the ring has been read.
  bool is_publication_due(uint64_t at) const { return at - published >= publish_bytes; }
  void publish(uint64_t at) {
    published = at;
    consumed->store(at, std::memory_order_release);
  }
};

}  // namespace tern::transport::shm
