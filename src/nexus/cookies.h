// Cookies: the proof that a client receives at the address from which it asks, without a word kept about it
// (docs/protocol.md, 7.3.2). Nexus room. Time and randomness are arguments.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>

#include <tern/duration.h>

namespace tern::nexus {

/// A keyed hash of 64 bits that nobody can guess who does not have the key (SipHash-2-4). Never fails.
uint64_t keyed_hash(const std::array<uint64_t, 2>& key, std::string_view text, uint64_t a, uint64_t b);

class Cookies {
 public:
  /// A cookie is good for one to two of these: longer than any client waits for its answer to come and go.
  static constexpr Duration kKeyLife = std::chrono::seconds(4);

  explicit Cookies(std::function<uint64_t()> random) : random_(std::move(random)) {}

  /// Never 0.
  uint64_t make(std::string_view address, uint64_t token, uint64_t run, Duration now);
  bool is_good(uint64_t cookie, std::string_view address, uint64_t token, uint64_t run, Duration now);

 private:
  using Key = std::array<uint64_t, 2>;
  void turn_keys(Duration now);
  static uint64_t cookie_of(const Key& key, std::string_view address, uint64_t token, uint64_t run);

  const std::function<uint64_t()> random_;
  Key key_{}, key_before_{};
  Duration key_since_{};
  bool has_keys_ = false;
};

}  // namespace tern::nexus
