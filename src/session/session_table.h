// Session keys of one endpoint. They are random, so that a stranger cannot guess one, and one comparison finds them.
// Session layer: no I/O; time and random numbers are arguments. Allocates without throwing.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "base/slab.h"

namespace tern::session {

/// Maps a key (on the wire) to an object. The table has a power of two of places, and a key's low bits are its place.
/// A key is drawn again until its place is free. At most half of the places are taken, and three quarters in a large
/// table, which would fill the caches otherwise. So two draws are enough on average, or four. Knowing all other keys of
/// a table therefore tells one or two bits of a key.
///
/// The key of an ended session rests for kRestNs (clause 6.5). A name (64 bits, Session::name) is not used twice among
/// 2^30 sessions: its low half is the key, and its high half counts the sessions.
///
/// An object can be asleep. Then its place alone tells it from others: find_awake() does not find it, and find_asleep()
/// does.
template <class T>
class SessionTable {
 public:
  SessionTable() = default;
  /// The highest bit of all names is that of `first_name`, whose other bits must be 0.
  explicit SessionTable(uint64_t first_name) : names_(first_name >> 32) {}

  /// Longer than a packet stays in a network.
  static constexpr uint64_t kRestNs = 5'000'000'000;
  /// A draw fails with a probability of at most three quarters. All draws together fail with one of 10^-16.
  static constexpr int kDrawsMax = 128;

  T* find(uint32_t key) const {
    const Entry& entry = entries_[key & mask_];
    return static_cast<uint32_t>(entry.live_name) == key ? entry.known() : nullptr;
  }
  /// Prefetches the place of a key or name.
  void prefetch(uint64_t name) const { __builtin_prefetch(&entries_[name & mask_]); }
  T* find_name(uint64_t name) const {
    const Entry& entry = entries_[name & mask_];
    return entry.name() == name ? entry.known() : nullptr;
  }
  T* find_awake(uint64_t name) const {
    const Entry& entry = entries_[name & mask_];
    return entry.live_name == name ? entry.known() : nullptr;
  }
  T* find_asleep(uint64_t name) const { return find_awake(name | kAsleep); }
  /// Objects are awake at first, and after rename_to(). Without effect if no object has the key.
  void set_asleep(uint32_t key, bool is_asleep) {
    uint64_t& name = entries_[key & mask_].live_name;
    if (static_cast<uint32_t>(name) == key) name = is_asleep ? name | kAsleep : name & ~kAsleep;
  }
  /// Draws a free key with `random()`, which returns 32 bits. False: no memory, or the numbers are not random.
  template <class Random>
  bool draw(uint64_t now_ns, Random&& random, uint32_t* key) {
    if (!has_space() && !grow(now_ns)) return false;
    for (int i = 0; i < kDrawsMax; i++) {
      *key = random();
      if (is_free(entries_[*key & mask_], now_ns)) return true;
    }
    return false;
  }
  /// Adds an object. `key` must be that of the last draw(). Returns the session's name.
  uint64_t put(uint32_t key, T* object) {
    Entry& entry = entries_[key & mask_];
    if (entry.is_resting()) resting_--;
    names_ = (names_ & kFirstBit) | ((names_ + 1) & ((kAsleep >> 32) - 1));
    entry = {reinterpret_cast<uintptr_t>(object), names_ << 32 | key};
    size_++;
    return entry.live_name;
  }
  /// Makes the name of a live session point to `object`.
  void rename_to(uint64_t name, T* object) { entries_[name & mask_] = {reinterpret_cast<uintptr_t>(object), name}; }
  /// Removes a session. Its key rests.
  void retire(uint32_t key, uint64_t now_ns) {
    Entry& entry = entries_[key & mask_];
    entry.word = now_ns << 1 | 1;
    entry.live_name = uint64_t{key} << 32 | stranger_to(key & mask_);
    size_--;
    resting_++;
  }
  /// Removes a session whose key was never sent to a peer, so that the key may be used again at once.
  void erase(uint32_t key) {
    entries_[key & mask_] = {0, stranger_to(key & mask_)};
    size_--;
  }
  size_t size() const { return size_; }
  template <class F>
  void for_each(F&& f) const {
    for_each_name([&f](uint64_t, T* object) { f(object); });
  }
  /// Calls `f(name, object)`. An object with two names is visited twice.
  template <class F>
  void for_each_name(F&& f) const {
    for (uint64_t i = 0; i <= mask_; i++) {
      if (entries_[i].is_live()) f(entries_[i].name(), entries_[i].known());
    }
  }
  /// Visits `places` places of the table, beginning with place `from`: calls `f(name, object)` for each object there,
  /// until `f` returns false. Returns the place at which to go on; 0: the table is at its end. Objects that come or go
  /// between two calls may be missed or visited twice.
  template <class F>
  uint64_t visit(uint64_t from, uint64_t places, F&& f) const {
    for (uint64_t i = from; i <= mask_; i++) {
      if (i - from == places) return i;
      if (entries_[i].is_live() && !f(entries_[i].name(), entries_[i].known())) return i == mask_ ? 0 : i + 1;
    }
    return 0;
  }

 private:
  static constexpr uint64_t kFirstBit = uint64_t{1} << 31;
  static constexpr uint64_t kAsleep = uint64_t{1} << 62;  ///< in Entry::live_name; no name has it

  /// A key that leads to the neighbour's place, never to this one.
  static uint32_t stranger_to(uint32_t place) { return place ^ 1; }

  struct Entry {
    /// Live: the object. Resting: the beginning of the rest, shifted left by 1, plus 1. Free: 0.
    uint64_t word = 0;
    /// Live: the name, with kAsleep or without. Otherwise the low half is a key that does not lead here. Resting: the
    /// high half is the key.
    uint64_t live_name = 0;

    /// Live: the name.
    uint64_t name() const { return live_name & ~kAsleep; }
    bool is_resting() const { return (word & 1) != 0; }
    bool is_live() const { return word != 0 && !is_resting(); }
    T* known() const {
      auto* object = reinterpret_cast<T*>(static_cast<uintptr_t>(word));
      if (object == nullptr) __builtin_unreachable();
      return object;
    }
  };
  struct Unmap {
    size_t bytes = 0;
    void operator()(Entry* entries) const { base::unmap_slab(entries, bytes); }
  };
  using Owned = std::unique_ptr<Entry[], Unmap>;

  /// The least number of places for this number of keys.
  static size_t places_for(size_t keys) { return keys < 512 ? 2 * keys : keys + (keys + 2) / 3; }
  bool has_space() const { return places_for(size_ + resting_ + 1) <= size_t{mask_} + 1; }
  static bool has_rested(const Entry& entry, uint64_t now_ns) {
    return entry.is_resting() && now_ns - (entry.word >> 1) >= kRestNs;
  }
  static bool is_free(const Entry& entry, uint64_t now_ns) { return entry.word == 0 || has_rested(entry, now_ns); }

  /// Frees the places of keys that have rested, and grows the table if these are not enough.
  bool grow(uint64_t now_ns) {
    for (uint64_t i = 0; i <= mask_; i++) {
      if (!has_rested(entries_[i], now_ns)) continue;
      entries_[i] = {0, stranger_to(static_cast<uint32_t>(i))};
      resting_--;
    }
    if (has_space()) return true;
    const size_t places = std::bit_ceil(places_for(size_ + resting_ + 1));
    Owned larger(static_cast<Entry*>(base::map_slab(places * sizeof(Entry))), {places * sizeof(Entry)});
    if (larger == nullptr) return false;
    const auto mask = static_cast<uint32_t>(places - 1);
    for (uint64_t i = 0; i <= mask; i++) new (&larger[i]) Entry{0, stranger_to(static_cast<uint32_t>(i))};
    for (uint64_t i = 0; i <= mask_; i++) {
      const Entry& entry = entries_[i];
      if (entry.word == 0) continue;
      const auto key = static_cast<uint32_t>(entry.is_resting() ? entry.live_name >> 32 : entry.live_name);
      Entry& to = larger[key & mask];
      to = entry;
      if (entry.is_resting()) to.live_name = uint64_t{key} << 32 | stranger_to(key & mask);
    }
    owned_ = std::move(larger);
    entries_ = owned_.get();
    mask_ = mask;
    return true;
  }

  Entry first_[2] = {{0, stranger_to(0)}, {0, stranger_to(1)}};
  Entry* entries_ = first_;
  uint32_t mask_ = 1;
  uint64_t names_ = 0;  ///< number of names used so far, and the highest bit of all names
  size_t size_ = 0;
  size_t resting_ = 0;
  Owned owned_;  ///< of huge pages, if it is large
};

}  // namespace tern::session
