// Cookies prove that a client receives at the address from which it sends. The server keeps no state for them
// (docs/protocol.md, 7.3.2). Nexus layer. Time and randomness are arguments.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>

#include <tern/duration.h>

namespace tern::nexus {

/// SipHash-2-4: a hash of 64 bits that cannot be guessed without the key. Never fails.
uint64_t keyed_hash(const std::array<uint64_t, 2>& key, std::string_view text, uint64_t a, uint64_t b);

class Cookies {
 public:
  /// A cookie is valid for one to two key lives, which is longer than a client waits for a round trip.
  static constexpr Duration kKeyLife = std::chrono::seconds(4);

  explicit Cookies(std::function<uint64_t()> random) : random_(std::move(random)) {}

  /// Returns a cookie, which is never 0.
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
