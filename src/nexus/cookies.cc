#include "nexus/cookies.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "nexus/control.h"

namespace tern::nexus {

uint64_t keyed_hash(const std::array<uint64_t, 2>& key, std::string_view text, uint64_t a, uint64_t b) {
  // crypto_shorthash() is plain code. It does not need sodium_init(), which aborts if the system gives no randomness.
  static_assert(sizeof(key) == crypto_shorthash_KEYBYTES && sizeof(uint64_t) == crypto_shorthash_BYTES);
  unsigned char bytes[sizeof(AddressText) + 2 * sizeof(uint64_t)];
  std::memcpy(bytes, &a, sizeof(a));
  std::memcpy(bytes + sizeof(a), &b, sizeof(b));
  const size_t size = std::min(text.size(), sizeof(AddressText));
  std::copy_n(text.begin(), size, bytes + sizeof(a) + sizeof(b));
  uint64_t hash;
  crypto_shorthash(reinterpret_cast<unsigned char*>(&hash), bytes, sizeof(a) + sizeof(b) + size,
                   reinterpret_cast<const unsigned char*>(key.data()));
  return hash;
}

void Cookies::turn_keys(Duration now) {
  if (has_keys_ && now - key_since_ < kKeyLife) return;
  const bool is_next = has_keys_ && now - key_since_ < 2 * kKeyLife;
  key_before_ = is_next ? key_ : Key{random_(), random_()};
  key_ = {random_(), random_()};
  key_since_ = is_next ? key_since_ + kKeyLife : now;
  has_keys_ = true;
}

uint64_t Cookies::cookie_of(const Key& key, std::string_view address, uint64_t token, uint64_t run) {
  return std::max<uint64_t>(keyed_hash(key, address, token, run), 1);
}

uint64_t Cookies::make(std::string_view address, uint64_t token, uint64_t run, Duration now) {
  turn_keys(now);
  return cookie_of(key_, address, token, run);
}

bool Cookies::is_good(uint64_t cookie, std::string_view address, uint64_t token, uint64_t run, Duration now) {
  if (cookie == 0) return false;
  turn_keys(now);
  const auto is_of = [&](const Key& key) {
    const uint64_t expected = cookie_of(key, address, token, run);
    return sodium_memcmp(&expected, &cookie, sizeof(cookie)) == 0;
  };
  return is_of(key_) || is_of(key_before_);
}

}  // namespace tern::nexus
