// What a load knows about the index, and the check of an answer. Positions number the keys in ascending order. One
// thread writes position p, and numbers its PUTs of the key. Any thread may call the members, unless a comment says
// otherwise.
//
// The floor of a key is the newest version that was acknowledged or read. The model also has the last version issued. A
// read must not find a version below the floor at its beginning, nor above the last version issued before its end. If
// the floor was 0, the key may be missing; if also no PUT of the key was issued, the key must be missing.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "keys.h"
#include "protocol.h"

namespace ordered {

class Model {
 public:
  /// `keys`: the server has keys 0 to `keys` - 1 of the seed. `inserts` is the number of further keys that it may get.
  /// At first the model knows no versions of any key.
  Model(uint64_t seed, uint64_t keys, uint64_t inserts) : known_(keys + inserts) {
    std::vector<uint64_t> sorted(keys + inserts);
    for (uint64_t i = 0; i < sorted.size(); i++) sorted[i] = key_of(seed, i);
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; i < sorted.size(); i++) known_[i].key = sorted[i];
  }
  size_t size() const { return known_.size(); }
  uint64_t key(size_t position) const { return known_[position].key; }
  uint32_t floor(size_t position) const { return known_[position].floor; }
  bool is_there(size_t position) const { return floor(position) > 0; }
  /// The number of keys that are in the index.
  size_t count() const {
    return static_cast<size_t>(
        std::count_if(known_.begin(), known_.end(), [](const Known& known) { return known.floor > 0; }));
  }
  /// True if a PUT of the key is under way. Must be called by the key's writer.
  bool is_pending(size_t position) const { return known_[position].issued != known_[position].floor; }

  // ---- For the key's writer ----

  /// Returns the version of the next PUT. No PUT of the key may be under way.
  uint32_t issue(size_t position) {
    const uint32_t version = known_[position].issued + 1;
    known_[position].issued = version;
    return version;
  }
  void acknowledged(size_t position, uint32_t version) { raise(known_[position].floor, version); }
  /// The last PUT was refused. The key was not in the index.
  void refused(size_t position) { known_[position].issued = 0; }
  /// Sets the state of a key before the first PUT from its `value` in the index, which any program may have written.
  /// Returns the error; empty: the value is right.
  std::string take_over(size_t position, std::optional<uint64_t> value) {
    const uint32_t version = value ? static_cast<uint32_t>(*value) : 0;
    if (value && (version == 0 || *value != value_of(key(position), version))) return not_its_own(position, *value);
    known_[position].issued = version;
    known_[position].floor = version;
    return {};
  }

  // ---- For readers. Each function returns the error in the answer; empty: the answer is right ----

  /// `floor` is the key's floor when the read began.
  std::string read(size_t position, uint32_t floor, std::optional<uint64_t> value) {
    if (!value) return floor == 0 ? "" : name(position) + " has gone, which had version " + std::to_string(floor);
    const auto version = static_cast<uint32_t>(*value);
    if (*value != value_of(key(position), version)) return not_its_own(position, *value);
    if (version < floor) return name(position) + " has fallen " + from_to(floor, version) + kOrAnother;
    if (version == 0 || version > known_[position].issued) {
      return name(position) + " has version " + std::to_string(version) + ", which nobody has written" + kOrAnother;
    }
    raise(known_[position].floor, version);
    return {};
  }

  /// The state of the model when a scan of the keys after a position begins.
  struct ScanBegin {
    size_t position = 0;
    uint32_t limit = 0;
    std::vector<uint32_t> floors;  ///< of the following positions: as many as a scan can visit, and some more
  };
  void begin_scan(ScanBegin& scan, size_t position, uint32_t limit) const {
    scan.position = position;
    scan.limit = limit;
    scan.floors.resize(std::min(size() - position - 1, size_t{limit} + limit / 4 + 64));
    for (size_t i = 0; i < scan.floors.size(); i++) scan.floors[i] = floor(position + 1 + i);
  }
  std::string check_scan(const ScanBegin& scan, const ScanAnswer& answer) const {
    const std::string where = "the scan behind " + name(scan.position);
    if (answer.count > scan.limit) return where + " has more keys than were asked for";
    if (answer.count == 0 && (answer.last != key(scan.position) || answer.sum != 0)) return where + " is not empty";
    Visited visited;
    bool has_last = answer.count == 0;
    for (size_t i = 0; i < scan.floors.size(); i++) {
      const size_t position = scan.position + 1 + i;
      if (answer.count == scan.limit && key(position) > answer.last) break;
      const bool is_last = answer.count > 0 && key(position) == answer.last;
      has_last = has_last || is_last;
      visited.add(key(position), scan.floors[i], known_[position].issued, is_last);
    }
    if (!has_last) return where + " ends with a key that nobody has written" + kOrAnother;
    if (visited.certain > answer.count) return where + " has left out a key";
    if (visited.certain + visited.possible.size() < answer.count) {
      return where + " has a key that nobody has written" + kOrAnother;
    }
    if (!visited.can_have(answer)) return where + " has a sum that its keys never had" + kOrAnother;
    return {};
  }

 private:
  /// The end of messages about states that another client's PUTs can cause, of which this model does not know.
  static constexpr const char* kOrAnother =
      ", or another client writes: a server may have one client, or several that all have --put_share=0";

  struct Known {  // these fields are together because the position is random and in no cache
    uint64_t key = 0;
    std::atomic<uint32_t> floor{0};
    std::atomic<uint32_t> issued{0};  ///< written by the key's writer only
  };

  /// The keys that a scan has passed, and the values that they may have had.
  struct Visited {
    struct Possible {
      uint64_t tag;
      uint32_t issued;
    };
    size_t certain = 0;              ///< number of keys that the scan must have found
    uint64_t tags = 0;               ///< sum of the tags of these keys
    uint64_t least = 0;              ///< sum of the lowest versions that these keys may have had
    uint64_t most = 0;               ///< sum of the highest versions that these keys may have had
    std::vector<Possible> possible;  ///< keys that were inserted during the scan

    void add(uint64_t key, uint32_t floor, uint32_t issued, bool is_last) {
      if (floor == 0 && issued == 0) return;
      if (floor == 0 && !is_last) return possible.push_back({tag_of(key), issued});
      certain++;
      tags += tag_of(key);
      least += std::max(floor, 1u);
      most += issued;
    }
    bool can_have(const ScanAnswer& answer) const {
      constexpr size_t kPossibleMax = 16;  // the load's windows bound the inserts that overlap with a scan
      if (possible.size() > kPossibleMax) return true;
      for (uint32_t chosen = 0; chosen < 1u << possible.size(); chosen++) {
        if (certain + static_cast<size_t>(std::popcount(chosen)) != answer.count) continue;
        uint64_t versions = answer.sum - tags, low = least, high = most;
        for (size_t i = 0; i < possible.size(); i++) {
          if ((chosen >> i & 1) == 0) continue;
          versions -= possible[i].tag;
          low += 1;
          high += possible[i].issued;
        }
        if (versions >= low && versions <= high) return true;
      }
      return false;
    }
  };

  static void raise(std::atomic<uint32_t>& floor, uint32_t version) {
    uint32_t old = floor;
    while (old < version && !floor.compare_exchange_weak(old, version)) {
    }
  }
  std::string name(size_t position) const { return "key " + std::to_string(key(position)); }
  std::string not_its_own(size_t position, uint64_t value) const {
    return name(position) + " has the value " + std::to_string(value) + ", which is not one of its own";
  }
  static std::string from_to(uint32_t from, uint32_t to) {
    return "from version " + std::to_string(from) + " to " + std::to_string(to);
  }

  std::vector<Known> known_;
};

}  // namespace ordered
