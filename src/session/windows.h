// Small sets of numbers that slide: packet indices of a message, packet numbers of a direction.
// Session layer: pure values, without time.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/pool.h"
#include "wire/header.h"

namespace tern::session {

/// Added to the first number of each direction, which is random, so that numbers before it are not negative.
inline constexpr uint64_t kNumberBase = 1u << 24;

/// Returns the full count nearest to `near` whose low 24 bits are `number24`.
inline uint64_t expand_number(uint32_t number24, uint64_t near) {
  const auto difference = static_cast<int32_t>((number24 - static_cast<uint32_t>(near)) << 8) >> 8;
  return near + static_cast<int64_t>(difference);
}

/// Most words in the bitmap of a credit return, each for 64 packets: 4 MB of packets of 1 kB (clause 4.2.2). Servers of
/// this version send NumberWindow::kWords.
inline constexpr uint32_t kCreditReturnWordsMax = 64;

/// Most response packets for which one RFR may ask (clause 5.4). The server sends them in one burst.
inline constexpr uint32_t kRfrPacketsMax = 32;

/// A set of indices in [base, base + kSpan). All indices below base are in it, by definition.
class IndexWindow {
 public:
  static constexpr uint32_t kSpan = 1024;

  uint32_t base() const { return base_; }
  uint32_t end() const { return base_ + kSpan; }
  bool is_within(uint32_t index) const { return index - base_ < kSpan; }
  bool contains(uint32_t index) const {
    return index < base_ || (is_within(index) && (bits_[word(index)] & bit(index)) != 0);
  }
  /// Adds an index. Returns false if the set has it already, or if it lies beyond the span.
  bool insert(uint32_t index) {
    if (!is_within(index) || (bits_[word(index)] & bit(index)) != 0) return false;
    bits_[word(index)] |= bit(index);
    while ((bits_[word(base_)] & bit(base_)) != 0) {
      bits_[word(base_)] &= ~bit(base_);
      base_++;
    }
    return true;
  }

 private:
  static uint32_t word(uint32_t index) { return index / 64 % (kSpan / 64); }
  static uint64_t bit(uint32_t index) { return uint64_t{1} << (index % 64); }
  uint32_t base_ = 0;
  uint64_t bits_[kSpan / 64] = {};
};

/// A set of indices within IndexWindow::kSpan of each other.
class IndexSet {
 public:
  bool empty() const { return size_ == 0; }
  bool contains(uint32_t index) const { return (bits_[word(index)] & bit(index)) != 0; }
  void insert(uint32_t index) {
    if (contains(index)) return;
    bits_[word(index)] |= bit(index);
    size_++;
  }
  void erase(uint32_t index) {
    if (!contains(index)) return;
    bits_[word(index)] &= ~bit(index);
    size_--;
  }
  /// The lowest member. All members must be in [from, from + kSpan). Must not be called when the set is empty.
  uint32_t lowest(uint32_t from) const {
    uint32_t index = from;
    for (;;) {
      const uint64_t rest = bits_[word(index)] >> (index % 64);
      if (rest != 0) return index + static_cast<uint32_t>(std::countr_zero(rest));
      index = (index / 64 + 1) * 64;
    }
  }

 private:
  static uint32_t word(uint32_t index) { return index / 64 % (IndexWindow::kSpan / 64); }
  static uint64_t bit(uint32_t index) { return uint64_t{1} << (index % 64); }
  uint32_t size_ = 0;
  uint64_t bits_[IndexWindow::kSpan / 64] = {};
};

/// A bit for each of the last 256 packet numbers: it has arrived. Each function takes the largest number. All numbers
/// between the largest one of the last call and the present one have arrived, except for that of insert().
class NumberBits {
 public:
  static constexpr uint32_t kSpan = 256;
  static constexpr size_t kWords = kSpan / 64;

  /// All numbers from `first` on have arrived.
  explicit NumberBits(uint64_t first) : settled_(first - 1) {}

  /// `full` must be in the last 256 numbers.
  bool has(uint64_t full, uint64_t largest) {
    settle(largest);
    return (bits_[word(full)] & bit(full)) != 0;
  }
  /// `full` must be in the last 256 numbers, or be larger than `largest`, which it then replaces.
  void insert(uint64_t full, uint64_t largest) {
    settle(largest);
    if (full > largest) {
      clear(largest, full);
      settled_ = full;
    }
    bits_[word(full)] |= bit(full);
  }
  /// Bit 63 - j of word i says that largest - 64 i - j has arrived.
  void bitmap(uint64_t (&words)[kWords], uint64_t largest) {
    settle(largest);
    const uint64_t top = largest / 64;
    const uint32_t shift = 63 - largest % 64;
    for (size_t i = 0; i < kWords; i++) {
      words[i] = bits_[(top - i) % kRingWords] << shift;
      if (shift != 0) words[i] |= bits_[(top - i - 1) % kRingWords] >> (64 - shift);
    }
  }

 private:
  // The ring has more words than the span needs, so that clearing a new word never loses one of the 256 bits.
  static constexpr size_t kRingWords = 8;
  static size_t word(uint64_t full) { return full / 64 % kRingWords; }
  static uint64_t bit(uint64_t full) { return uint64_t{1} << (full % 64); }
  /// Most numbers arrive in order, and most bits are not read. Therefore bits are set only when they are read.
  void settle(uint64_t largest) {
    if (settled_ == largest) return;
    uint64_t next = settled_ + 1;
    if (largest / 64 - settled_ / 64 >= kRingWords) next = (largest / 64 - kRingWords + 1) * 64;
    for (; next <= largest; next++) {
      if (next % 64 == 0) bits_[word(next)] = 0;
      bits_[word(next)] |= bit(next);
    }
    settled_ = largest;
  }
  void clear(uint64_t largest, uint64_t up_to) {
    const uint64_t steps = up_to / 64 - largest / 64;
    for (uint64_t i = 1; i <= steps && i <= kRingWords; i++) bits_[(largest / 64 + i) % kRingWords] = 0;
  }
  uint64_t settled_;  ///< all numbers after this one, up to the largest, have arrived; bits_ ends here
  uint64_t bits_[kRingWords] = {};
};

/// The packet numbers of the other side that have arrived, among the largest one and the 255 before it (clause 3.4).
/// Numbers mostly arrive in order and without a gap, so that the first and the largest one tell everything. Otherwise
/// the window has NumberBits from a pool, until no difference is left among the 256 numbers.
class NumberWindow {
 public:
  static constexpr uint32_t kSpan = NumberBits::kSpan;
  static constexpr size_t kWords = NumberBits::kWords;
  using Pool = base::Pool<NumberBits>;

  /// `first`: the sender's first number, in full.
  explicit NumberWindow(uint32_t first = 1) : largest_(uint64_t{first} - 1), first_(first) {}
  NumberWindow(const NumberWindow&) = delete;
  NumberWindow& operator=(const NumberWindow&) = delete;

  uint64_t largest() const { return largest_; }
  /// Number of packets from the first one to the largest, whether or not they have arrived.
  uint64_t count() const { return largest_ + 1 - first_; }
  /// Most by which a number may be ahead of the largest. An honest sender does not send as many packets without an
  /// answer.
  static constexpr uint64_t kAheadMax = 65536;

  /// Returns the full count of a received number. 0: the number is a duplicate, too old to tell, or too far ahead.
  uint64_t admit(uint32_t number24) const {
    const uint64_t full = expand_number(number24, largest_);
    if (static_cast<int64_t>(full - largest_) > 0) [[likely]]
      return full - largest_ <= kAheadMax ? full : 0;
    // `full` above largest_ is the negative count of a number before the first one.
    if (full > largest_ || largest_ - full >= kSpan) return 0;
    const bool has_arrived = bits_ != nullptr ? bits_->has(full, largest_) : full >= first_;
    return has_arrived ? 0 : full;
  }
  /// Takes memory from the pool if insert() needs it for this result of admit(). False: there is none.
  [[nodiscard]] bool reserve(uint64_t full, Pool& pool) {
    if (full == largest_ + 1 || bits_ != nullptr) [[likely]]
      return true;
    bits_ = pool.take(first_);
    return bits_ != nullptr;
  }
  /// Adds a number. `full` must be the result of admit(), and reserve() must have returned true for it, without an
  /// insert() since.
  void insert(uint64_t full, Pool& pool) {
    if (full == largest_ + 1 && bits_ == nullptr) [[likely]]
      return insert_next();
    insert_out_of_order(full, pool);
  }
  /// Adds the number largest() + 1.
  void insert_next() { largest_++; }
  /// The acknowledgement bitmap: bit 63 - j of word i says that largest() - 64 i - j has arrived.
  void bitmap(uint64_t (&words)[kWords]) const {
    if (bits_ != nullptr) return bits_->bitmap(words, largest_);
    whole_bitmap(words);
  }
  /// Must be called before the window is destroyed, and no other function after it.
  void give_back(Pool& pool) {
    if (bits_ != nullptr) pool.give(std::exchange(bits_, nullptr));
  }

 private:
  /// The bitmap of a window without NumberBits.
  void whole_bitmap(uint64_t (&words)[kWords]) const {
    for (size_t i = 0; i < kWords; i++) {
      const uint64_t bits = std::min<uint64_t>(count() - std::min<uint64_t>(count(), 64 * i), 64);
      words[i] = bits == 0 ? 0 : ~uint64_t{0} << (64 - bits);
    }
  }
  /// insert() while a number is missing, or of one that does not follow the largest. Not inlined, for the others.
  [[gnu::noinline]] void insert_out_of_order(uint64_t full, Pool& pool) {
    if (full == largest_ + 1) {
      insert_next();
    } else {
      bits_->insert(full, largest_);
      largest_ = std::max(largest_, full);
    }
    if (is_whole()) give_back(pool);
  }
  bool is_whole() const {
    uint64_t words[kWords], whole[kWords];
    bitmap(words);
    whole_bitmap(whole);
    return std::equal(words, words + kWords, whole);
  }

  uint64_t largest_;
  NumberBits* bits_ = nullptr;  ///< null: exactly the numbers from first_ to largest_ have arrived
  const uint32_t first_;
};

/// A received credit return: the packet numbers that have arrived, counted back from the newest (clause 4.2).
class ArrivedBitmap {
 public:
  /// `words`: 8 B each, little-endian. They outlive this object.
  ArrivedBitmap(const std::byte* words, uint32_t count) : words_(words), count_(count) {}

  uint32_t words() const { return count_; }
  /// Bit 63 - j says that newest - 64 i - j has arrived.
  uint64_t word(uint32_t i) const {
    uint64_t value;
    std::memcpy(&value, words_ + 8 * i, sizeof(value));
    return wire::to_little_endian(value);
  }
  /// True if the packet `back` before the newest has arrived.
  bool contains(uint64_t back) const {
    return back < uint64_t{64} * count_ && (word(static_cast<uint32_t>(back / 64)) >> (63 - back % 64) & 1) != 0;
  }

 private:
  const std::byte* words_;
  uint32_t count_;
};

}  // namespace tern::session
