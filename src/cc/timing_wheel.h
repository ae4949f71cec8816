// Names that wait for their departure time, in Carousel's timing wheel (Saeed et al., SIGCOMM'17). Each endpoint has
// one wheel. A name is an opaque number, and the caller looks up its meaning when it departs. Therefore the wheel has
// no pointer to message memory, and a flow that has ended meanwhile costs only its name. Congestion control layer;
// owned by one thread, time is an argument.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "base/check.h"
#include "base/try.h"

namespace tern::cc {

class TimingWheel {
 public:
  /// A packet of 1 kB at 25 Gbit/s takes 335 ns.
  static constexpr uint64_t kSlotNs = 256;
  /// The wheel spans 1 ms. Only flows that share a link with thousands wait longer.
  static constexpr size_t kSlots = 4096;
  static constexpr uint64_t kHorizonNs = kSlotNs * kSlots;

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }

  /// Adds a name, which must not be in the wheel. O(1). A name with a time in the past departs at the next run(). A
  /// name beyond the horizon is put into the last slot, and again when that slot is due. False: no memory, and nothing
  /// has changed.
  [[nodiscard]] bool add(uint64_t now_ns, uint64_t at_ns, uint32_t name) {
    if (slots_ == nullptr) slots_.reset(new (std::nothrow) Slot[kSlots]);
    if (slots_ == nullptr) return false;
    if (spare_ == kNone && !base::try_reserve(entries_, entries_.size() + 1)) return false;
    if (size_ == 0) next_ = std::max(next_, now_ns / kSlotNs);  // run() may not have been called for long
    uint32_t index = spare_;
    if (index == kNone) {
      index = static_cast<uint32_t>(entries_.size());
      entries_.emplace_back();
    } else {
      spare_ = entries_[index].next;
    }
    entries_[index] = {at_ns, name, kNone};
    put(index, std::clamp(slot_of(at_ns), next_, next_ + kSlots - 1));
    size_++;
    return true;
  }
  /// The time of the first departure. Must not be called when the wheel is empty.
  uint64_t next_ns() const { return first_occupied() * kSlotNs; }
  /// Calls depart(name) for each name whose slot is due, in the order of slots; names of one slot in the order of
  /// add(). depart() may call add().
  template <class F>
  void run(uint64_t now_ns, F&& depart) {
    const uint64_t now = now_ns / kSlotNs;
    while (size_ != 0 && first_occupied() <= now) {
      next_ = first_occupied();
      Slot& slot = slots_[next_ % kSlots];
      uint32_t index = slot.first;
      slot = {};
      occupied_[next_ % kSlots / 64] &= ~(uint64_t{1} << (next_ % 64));
      if (occupied_[next_ % kSlots / 64] == 0) words_ &= ~(uint64_t{1} << (next_ % kSlots / 64));
      next_++;
      while (index != kNone) {
        const Entry entry = entries_[index];
        if (slot_of(entry.at_ns) > now) {
          put(index, std::clamp(slot_of(entry.at_ns), next_, next_ + kSlots - 1));
        } else {
          entries_[index].next = spare_;
          spare_ = index;
          size_--;
          depart(entry.name);
        }
        index = entry.next;
      }
    }
    next_ = std::max(next_, now + 1);
  }

  /// CHECKs slots, bits and counts against each other. For tests.
  void check_invariants() const {
    size_t count = 0, spares = 0;
    for (size_t i = 0; slots_ != nullptr && i < kSlots; i++) {
      CHECK((occupied_[i / 64] >> (i % 64) & 1) != 0, ==, slots_[i].first != kNone);
      for (uint32_t index = slots_[i].first; index != kNone; index = entries_[index].next) {
        count++;
        if (entries_[index].next == kNone) CHECK(slots_[i].last, ==, index);
      }
    }
    for (size_t i = 0; i < kWords; i++) CHECK((words_ >> i & 1) != 0, ==, occupied_[i] != 0);
    for (uint32_t index = spare_; index != kNone; index = entries_[index].next) spares++;
    CHECK(count, ==, size_);
    CHECK(count + spares, ==, entries_.size());
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr size_t kWords = kSlots / 64;
  static_assert(kWords == 64, "one word says which words are not zero");
  struct Entry {
    uint64_t at_ns;
    uint32_t name;
    uint32_t next;
  };
  struct Slot {
    uint32_t first = kNone;
    uint32_t last = kNone;
  };

  /// The first slot that does not begin before `at_ns`, so that no name departs early.
  static uint64_t slot_of(uint64_t at_ns) { return at_ns / kSlotNs + (at_ns % kSlotNs != 0 ? 1 : 0); }
  void put(uint32_t index, uint64_t number) {
    Slot& slot = slots_[number % kSlots];
    entries_[index].next = kNone;
    if (slot.first == kNone) {
      slot.first = index;
    } else {
      entries_[slot.last].next = index;
    }
    slot.last = index;
    occupied_[number % kSlots / 64] |= uint64_t{1} << (number % 64);
    words_ |= uint64_t{1} << (number % kSlots / 64);
  }
  /// The number of the first slot, from next_ on, that is not empty.
  uint64_t first_occupied() const {
    const size_t from = next_ % kSlots;
    const uint64_t here = occupied_[from / 64] >> (from % 64);
    if (here != 0) return next_ + static_cast<uint64_t>(std::countr_zero(here));
    // The search goes on in the words after this one, and around to this word's part before `from`.
    const auto rotated = std::rotr(words_, static_cast<int>(from / 64 + 1) % 64);
    const size_t word = (from / 64 + 1 + static_cast<size_t>(std::countr_zero(rotated))) % kWords;
    const size_t slot = word * 64 + static_cast<size_t>(std::countr_zero(occupied_[word]));
    return next_ + (slot + kSlots - from) % kSlots;
  }

  std::unique_ptr<Slot[]> slots_;  ///< null until a name is added
  uint64_t words_ = 0;             ///< bitmap of the words of occupied_ that are not 0
  uint64_t occupied_[kWords] = {};
  uint64_t next_ = 0;  ///< number of the first slot that has not been emptied
  std::vector<Entry> entries_;
  uint32_t spare_ = kNone;
  size_t size_ = 0;
};

}  // namespace tern::cc
