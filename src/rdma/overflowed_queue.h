// The completion queue of a strided receive queue. It is far smaller than the receive queue: the NIC overwrites entries
// on purpose, and the reader learns from the entries' positions which packets have arrived (eRPC, appendix A). RDMA
// layer; owner thread only. Reads and writes memory only; makes no calls to the device.
//
// A packet's position is its number among all packets ever received, modulo 2^25, because a completion has 16 bits of
// its descriptor's count, and the stride's index. Entry i has the positions i, i + n, i + 2n ... one after the other,
// where n is the number of entries. Therefore the entry of position p has one of three values. With p, the packet has
// arrived, and the entry has the NIC's information about it. With p - n, the packet has not arrived. With p + kn, the
// packet has arrived, and its completion is lost.
//
// The NIC writes an entry's last word after the rest, and entries in order. Therefore the word of the entry before
// tells whether the NIC may have begun to overwrite an entry that was just read.
#pragma once

#include <endian.h>
#include <infiniband/mlx5dv.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/check.h"

namespace tern::rdma {

class OverflowedQueue {
 public:
  /// Strides of one receive descriptor; the number is eRPC's.
  static constexpr uint32_t kStridesPerDescriptorLog = 9;
  static constexpr uint32_t kStridesPerDescriptor = 1u << kStridesPerDescriptorLog;
  /// Positions are modulo this number.
  static constexpr uint32_t kCycle = 1u << (16 + kStridesPerDescriptorLog);

  enum class Seen : uint8_t {
    kNothing,      ///< the packet has not arrived
    kCompleted,    ///< the packet has arrived, with its completion
    kOverwritten,  ///< the packet has arrived, and its completion is lost
    kTooLong,      ///< a frame took several strides, so that positions and entries no longer match: make a new queue
    kFailed,       ///< the NIC has reported an error, or writes data that this reader does not understand
  };
  struct Completion {
    uint32_t bytes;    ///< of the frame
    bool is_ip_good;   ///< the NIC has found the IPv4 header's checksum right
    bool is_udp_good;  ///< the NIC has found the UDP checksum right
  };

  /// Takes over the entries of a new queue, before the NIC writes one. `count` must be a power of two, at least 2.
  /// `entry_bytes` is 64 or 128. The NIC must always be less than `reach` packets ahead of the reader.
  void create(std::byte* entries, uint32_t count, uint32_t entry_bytes, uint32_t reach) {
    CHECK(std::has_single_bit(count) && count >= 2 && count <= kStridesPerDescriptor, ==, true);
    CHECK(entry_bytes == kEntryBytes || entry_bytes == 2 * kEntryBytes, ==, true);
    base_ = entries + (entry_bytes - kEntryBytes);  // the NIC writes the second half of a long entry
    count_ = count;
    entry_bytes_ = entry_bytes;
    reach_ = reach;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t before = (i - count) % kCycle;
      mlx5_cqe64& entry = *reinterpret_cast<mlx5_cqe64*>(const_cast<std::byte*>(at(i)));
      entry = {};
      entry.wqe_id = htobe16(static_cast<uint16_t>(before >> kStridesPerDescriptorLog));
      entry.wqe_counter = htobe16(before % kStridesPerDescriptor);
      entry.op_own = MLX5_CQE_RESP_SEND << 4;
    }
  }

  /// Returns whether the packet of a position has arrived. The packets before it must have arrived. Fills in
  /// `completion` with kCompleted, and only then.
  [[gnu::always_inline]] Seen look(uint32_t position, Completion* completion) const {
    const std::byte* const entry = at(position);
    const Place place = place_of(entry);
    if (place == place_of(position)) [[likely]] {
      const uint32_t bytes = be32toh(word<offsetof(mlx5_cqe64, byte_cnt)>(entry));
      const uint8_t checks = byte<offsetof(mlx5_cqe64, hds_ip_ext)>(entry);
      if (place_of(at(position - 1)) != place_of(position - 1)) [[unlikely]]
        return Seen::kOverwritten;
      if (bytes >> kStridesAt > 1) [[unlikely]]  // a frame of several strides, or a filler
        return Seen::kTooLong;
      *completion = {bytes & kLengthMask, (checks & MLX5_CQE_L3_OK) != 0, (checks & MLX5_CQE_L4_OK) != 0};
      return Seen::kCompleted;
    }
    if (place == place_of(position - count_)) [[likely]]
      return Seen::kNothing;
    return look_again(position);
  }

 private:
  static constexpr uint32_t kEntryBytes = sizeof(mlx5_cqe64);
  /// byte_cnt of a strided queue has the frame's length, and above it the number of the frame's strides.
  static constexpr uint32_t kStridesAt = 16, kLengthMask = 0xffff;

  /// A position as an entry has it, in the host's byte order: the last word without the signature and the owner bits,
  /// and the descriptor's count. An entry with another opcode than a packet's equals no position's Place.
  struct Place {
    uint32_t last;
    uint16_t descriptor;
    bool operator==(const Place&) const = default;
  };
  /// wqe_counter, a signature and op_own make up the last word. Its owner bits have no meaning here.
  static constexpr uint32_t kLastAt = offsetof(mlx5_cqe64, wqe_counter);
  static constexpr uint32_t kLastMask = 0xffff00f0;
  static_assert(kLastAt == 60 && offsetof(mlx5_cqe64, op_own) == 63);

  const std::byte* at(uint32_t position) const { return base_ + size_t{position & (count_ - 1)} * entry_bytes_; }
  // Loads with acquire semantics are executed in order.
  template <size_t kOffset>
  static uint32_t word(const std::byte* entry) {
    return __atomic_load_n(reinterpret_cast<const uint32_t*>(entry + kOffset), __ATOMIC_ACQUIRE);
  }
  template <size_t kOffset>
  static uint8_t byte(const std::byte* entry) {
    return __atomic_load_n(reinterpret_cast<const uint8_t*>(entry + kOffset), __ATOMIC_ACQUIRE);
  }
  static Place place_of(const std::byte* entry) {
    const uint32_t last = be32toh(word<kLastAt>(entry)) & kLastMask;
    const auto descriptor =
        __atomic_load_n(reinterpret_cast<const uint16_t*>(entry + offsetof(mlx5_cqe64, wqe_id)), __ATOMIC_ACQUIRE);
    return {last, be16toh(descriptor)};
  }
  static Place place_of(uint32_t position) {
    return {(position % kStridesPerDescriptor) << 16 | MLX5_CQE_RESP_SEND << 4,
            static_cast<uint16_t>(position >> kStridesPerDescriptorLog)};
  }

  /// The entry while the NIC writes this position over the position before (position - n), if that has another
  /// descriptor. The entry looks as if the NIC was far ahead, but then the entry before it would be overwritten, too.
  Place half_written(uint32_t position) const {
    return {place_of(position - count_).last, place_of(position).descriptor};
  }
  /// Called if the entry has neither the position nor position - n: the NIC is ahead, is writing the entry, has used
  /// several strides for a frame, so that later entries have positions of other entries, or has failed.
  [[gnu::noinline]] Seen look_again(uint32_t position) const {
    constexpr int kTries = 1000;  // the NIC writes an entry in some tens of nanoseconds
    for (int i = 0; i < kTries; ++i) {
      const bool is_newest_before = place_of(at(position - 1)) == place_of(position - 1);
      const Place place = place_of(at(position));
      if (place != place_of(at(position))) continue;
      if ((place.last & 0xff) != MLX5_CQE_RESP_SEND << 4) return Seen::kFailed;
      if (is_newest_before && place == half_written(position)) return Seen::kNothing;
      const uint32_t seen = uint32_t{place.descriptor} << kStridesPerDescriptorLog | place.last >> 16;
      const uint32_t ahead = (seen - position) % kCycle;
      if (ahead == kCycle - count_) return Seen::kNothing;
      if (ahead < reach_ && place.last >> 16 < kStridesPerDescriptor) {
        return ahead % count_ == 0 ? Seen::kOverwritten : Seen::kTooLong;
      }
    }
    return Seen::kFailed;
  }

  std::byte* base_ = nullptr;
  uint32_t count_ = 2;
  uint32_t entry_bytes_ = kEntryBytes;
  uint32_t reach_ = 0;
};

}  // namespace tern::rdma
