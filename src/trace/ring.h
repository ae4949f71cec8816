// The newest records of one endpoint, in a ring of fixed size. Trace layer.
//
// One thread writes. Any thread may read at the same time: the words are relaxed atomics, which cost a writer nothing,
// and a reader leaves out records that may have been overwritten during its copy.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string_view>
#include <tuple>
#include <utility>

#include "trace/record.h"

namespace tern::trace {

class Ring {
 public:
  static constexpr size_t kRecordsMax = size_t{1} << 26;  ///< 2 GiB

  /// Makes a ring for at least `records` records (1 to kRecordsMax), rounded up to a power of two. Null: no memory.
  static std::unique_ptr<Ring> create(size_t records, std::string_view nexus, std::string_view transport,
                                      uint16_t endpoint);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  /// Writes a record. Only the writer's thread.
  void put(const Record& record) {
    const uint64_t number = count_.load(std::memory_order_relaxed);
    const auto words = std::bit_cast<RecordWords>(record);
    Cell& cell = cells_[number & mask_];
    for (size_t i = 0; i < words.size(); i++) cell[i].store(words[i], std::memory_order_relaxed);
    count_.store(number + 1, std::memory_order_release);
    // A reader that sees a word of the next record sees this count, and knows what that record replaces.
    std::atomic_thread_fence(std::memory_order_release);
  }
  /// The number of records written so far. Any thread.
  uint64_t count() const { return count_.load(std::memory_order_acquire); }
  size_t capacity() const { return mask_ + 1; }
  /// Copies records from number `from` on, until `until` or the array is full, whichever comes first. Returns the
  /// number of copied records, and sets `from` to the number of the first of them, because older ones may be
  /// overwritten. Any thread.
  size_t copy(uint64_t& from, uint64_t until, std::array<Record, 64>& to) const;
  const RingHeader& header() const { return header_; }

  Ring* next = nullptr;      ///< in the list of the process's rings: trace/dump.h
  Ring** link_to = nullptr;  ///< the pointer to this ring in the list

 private:
  using Cell = std::array<std::atomic<uint64_t>, std::tuple_size_v<RecordWords>>;
  Ring(std::unique_ptr<Cell[]> cells, size_t capacity) : cells_(std::move(cells)), mask_(capacity - 1) {}

  const std::unique_ptr<Cell[]> cells_;
  const uint64_t mask_;
  RingHeader header_;
  std::atomic<uint64_t> count_{0};
};

}  // namespace tern::trace
