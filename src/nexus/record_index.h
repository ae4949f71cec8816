// A hash table of records that are named by their index in a table. The links lie in the records. Nexus layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

namespace tern::nexus {

/// `Records` has operator[](uint32_t), which returns a record; `kNext` is the record's link for this table. The caller
/// passes the records and the hashes to each function. Never throws: without memory the table does not grow, and
/// becomes slower.
template <class Record, uint32_t Record::*kNext>
class RecordIndex {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  size_t size() const { return size_; }
  /// Returns the record with this hash for which `is_it(record)` is true; kNone: there is none.
  template <class Records, class IsIt>
  uint32_t find(const Records& records, size_t hash, IsIt&& is_it) const {
    uint32_t at = bucket_of(hash);
    while (at != kNone && !is_it(records[at])) at = records[at].*kNext;
    return at;
  }
  /// Adds a record. `hash_of(record)` returns the hash of any record of the table, which does not change.
  template <class Records, class HashOf>
  void add(Records& records, uint32_t index, HashOf&& hash_of) {
    if (size_ >= count_) grow(records, hash_of);
    size_++;
    records[index].*kNext = std::exchange(bucket_of(hash_of(records[index])), index);
  }
  /// Removes a record, which must be in the table.
  template <class Records>
  void remove(Records& records, uint32_t index, size_t hash) {
    uint32_t* at = &bucket_of(hash);
    while (*at != index) at = &(records[*at].*kNext);
    *at = records[index].*kNext;
    size_--;
  }

 private:
  uint32_t& bucket_of(size_t hash) { return (owned_ != nullptr ? owned_.get() : &first_)[hash & (count_ - 1)]; }
  const uint32_t& bucket_of(size_t hash) const {
    return (owned_ != nullptr ? owned_.get() : &first_)[hash & (count_ - 1)];
  }
  template <class Records, class HashOf>
  void grow(Records& records, HashOf&& hash_of) {
    const size_t before = count_;
    std::unique_ptr<uint32_t[]> larger(new (std::nothrow) uint32_t[2 * before]);
    if (larger == nullptr) return;
    for (size_t i = 0; i < 2 * before; i++) larger[i] = kNone;
    const std::unique_ptr<uint32_t[]> smaller = std::exchange(owned_, std::move(larger));
    count_ = 2 * before;
    for (size_t i = 0; i < before; i++) {
      for (uint32_t at = smaller != nullptr ? smaller[i] : first_, next; at != kNone; at = next) {
        next = records[at].*kNext;
        records[at].*kNext = std::exchange(bucket_of(hash_of(records[at])), at);
      }
    }
  }

  uint32_t first_ = kNone;  ///< the only bucket until the table first grows
  std::unique_ptr<uint32_t[]> owned_;
  size_t count_ = 1;  ///< buckets, a power of two
  size_t size_ = 0;
};

}  // namespace tern::nexus
