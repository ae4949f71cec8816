// The values that the load generator writes, and the check of the values that it reads. Standard library only; one
// thread.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol.h"

namespace kv {

using Random = std::mt19937_64;

/// Uniform in [0, 1).
inline double unit(Random& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

/// The bytes of a value, word by word. They are a function of key, version and length. So a reader can check that a
/// value belongs to that key and version, and is complete and intact. Only a damaged value of very few bytes may pass
/// the check.
class ValueStream {
 public:
  ValueStream(uint64_t key, uint64_t version, size_t len_bytes) : state_(mix(mix(mix(key) + version) + len_bytes)) {}
  uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15u); }

 private:
  uint64_t state_;
};

inline void fill_value(std::span<std::byte> value, uint64_t key, uint64_t version) {
  ValueStream stream(key, version, value.size());
  for (size_t at = 0; at < value.size(); at += sizeof(uint64_t)) {
    const uint64_t word = stream.next();
    std::memcpy(value.data() + at, &word, std::min(sizeof(word), value.size() - at));
  }
}

/// Offset of the first word that differs from fill_value(); the value's length if no word differs.
inline size_t damage_in(Bytes value, uint64_t key, uint64_t version) {
  ValueStream stream(key, version, value.size());
  for (size_t at = 0; at < value.size(); at += sizeof(uint64_t)) {
    const uint64_t word = stream.next();
    if (std::memcmp(value.data() + at, &word, std::min(sizeof(word), value.size() - at)) != 0) return at;
  }
  return value.size();
}

/// The distribution of the values' lengths: "N", "MIN..MAX" (uniform) or "etc".
class ValueSizes {
 public:
  /// Values of Facebook's ETC pool: a generalized Pareto distribution with location 0, scale 214.476 and shape 0.348238
  /// (Atikoglu et al., Workload Analysis of a Large-Scale Key-Value Store, SIGMETRICS 2012, section 5), cut to 1 B to 8
  /// KiB. One value in 2000 would be longer.
  static constexpr size_t kEtcBytesMax = 8192;

  static std::optional<ValueSizes> parse(std::string_view text) {
    ValueSizes sizes;
    if (text == "etc") {
      sizes.is_etc_ = true;
      sizes.min_ = 1;
      sizes.max_ = kEtcBytesMax;
      return sizes;
    }
    const size_t dots = text.find("..");
    const bool is_range = dots != std::string_view::npos;
    const std::string_view last = is_range ? text.substr(dots + 2) : text;
    if (!parse(text.substr(0, dots), sizes.min_) || !parse(last, sizes.max_)) return std::nullopt;
    if (sizes.min_ < 1 || sizes.max_ < sizes.min_ || sizes.max_ > kValueBytesMax) return std::nullopt;
    return sizes;
  }
  size_t max() const { return max_; }
  size_t draw(Random& random) const {
    if (!is_etc_) return min_ + random() % (max_ - min_ + 1);
    constexpr double kScale = 214.476, kShape = 0.348238;
    const double size = kScale / kShape * (std::pow(1 - unit(random), -kShape) - 1);
    return std::clamp(static_cast<size_t>(std::min(size, 1e9)), min_, max_);
  }

 private:
  static bool parse(std::string_view text, size_t& to) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
    return error == std::errc() && end == text.data() + text.size();
  }

  size_t min_ = 0, max_ = 0;
  bool is_etc_ = false;
};

/// Chooses the next key; key 0 is the most popular. With skew 0 all keys are equally popular. Otherwise the popularity
/// follows Zipf's law with exponent `skew`, by the approximation of Gray et al., Quickly Generating Billion-Record
/// Synthetic Databases, SIGMOD 1994.
class KeyChooser {
 public:
  /// `skew` must be at least 0 and less than 1.
  KeyChooser(uint64_t keys, double skew) : keys_(keys), skew_(skew) {
    if (skew == 0) return;
    for (uint64_t key = 1; key <= keys; ++key) zeta_ += std::pow(static_cast<double>(key), -skew);
    const double zeta_2 = 1 + std::pow(0.5, skew);
    eta_ = (1 - std::pow(2 / static_cast<double>(keys), 1 - skew)) / (1 - zeta_2 / zeta_);
  }
  uint64_t draw(Random& random) const {
    if (skew_ == 0 || keys_ < 3) return random() % keys_;
    const double share = unit(random);
    if (share * zeta_ < 1) return 0;
    if (share * zeta_ < 1 + std::pow(0.5, skew_)) return 1;
    const double key = static_cast<double>(keys_) * std::pow(eta_ * share - eta_ + 1, 1 / (1 - skew_));
    return std::min(static_cast<uint64_t>(key), keys_ - 1);
  }

 private:
  uint64_t keys_;
  double skew_, zeta_ = 0, eta_ = 0;
};

/// What one client thread knows about every key, and so which versions it may read. One writer owns a key and numbers
/// its versions; all other threads only read it. The floor of a read is the newest version that was acknowledged to the
/// writer, or seen by the reader, before the read began. For the writer itself, the ceiling is the newest version that
/// it issued.
class Checker {
 public:
  explicit Checker(uint64_t keys) : keys_(keys) {}

  /// Writer only. Numbers the next version.
  uint64_t issue(uint64_t key) { return ++keys_[key].issued; }
  /// Writer only, before its first issue(). `stored` is the version found in the store. PUTs of an earlier writer may
  /// still be under way with newer versions, so this function skips a range of numbers.
  void take_over(uint64_t key, uint64_t stored) {
    constexpr uint64_t kNumbersLeft = 1u << 20;
    keys_[key].issued = (stored / kNumbersLeft + 1) * kNumbersLeft;
  }
  uint64_t floor(uint64_t key) const { return keys_[key].floor; }

  /// Records that a PUT of `version` was answered with `stored`. Returns an empty string, or the error message.
  std::string acknowledged(uint64_t key, uint64_t version, uint64_t stored) {
    if (stored < version) return about(key, version) + " was acknowledged as version " + std::to_string(stored);
    if (stored > keys_[key].issued) return written_by_another(key, stored);
    keys_[key].floor = std::max(keys_[key].floor, stored);
    return {};
  }
  /// Checks that a read of `key` may return `record`; `floor` is the key's floor when the read began. Returns an empty
  /// string, or the error message.
  std::string read(uint64_t key, uint64_t floor, const Record& record) {
    if (record.version < floor) {
      return about(key, floor) + " was acknowledged or read before, and is lost: " +
             (record.version == 0 ? "nothing" : "version " + std::to_string(record.version)) + " is there now";
    }
    if (const size_t at = damage_in(record.value, key, record.version); at < record.value.size()) {
      return about(key, record.version) + " is damaged at byte " + std::to_string(at) + " of " +
             std::to_string(record.value.size());
    }
    Known& known = keys_[key];
    if (known.issued != 0 && record.version > known.issued) return written_by_another(key, record.version);
    known.floor = std::max(known.floor, record.version);
    return {};
  }

 private:
  struct Known {
    uint64_t floor = 0;
    uint64_t issued = 0;  ///< 0: this thread has not written the key yet, or does not own it
  };
  static std::string about(uint64_t key, uint64_t version) {
    return "key " + std::to_string(key) + ", version " + std::to_string(version);
  }
  static std::string written_by_another(uint64_t key, uint64_t version) {
    return about(key, version) + " was never written by its owner: give each client process its own --client";
  }

  std::vector<Known> keys_;
};

}  // namespace kv
