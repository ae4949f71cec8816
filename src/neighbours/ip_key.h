// IP addresses as keys of hash tables. Neighbours layer: pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/address.h"

namespace tern::neighbours {

/// An IP address without port and scope.
struct IpKey {
  std::array<uint64_t, 2> words{};
  sa_family_t family = AF_UNSPEC;

  explicit IpKey(const base::SocketAddress& ip) : family(ip.family()) {
    std::memcpy(words.data(), ip.ip().data(), ip.ip().size());
  }
  friend bool operator==(const IpKey&, const IpKey&) = default;
};

/// `salt` must be random, so that no peer can choose addresses that collide.
struct IpHash {
  uint64_t salt;

  size_t operator()(const IpKey& key) const {
    uint64_t hash = salt;
    for (const uint64_t word : key.words) {
      hash = (hash ^ word) * 0x9e3779b97f4a7c15;  // 2^64 divided by the golden ratio
      hash ^= hash >> 32;
    }
    return hash * (salt | 1);
  }
};

}  // namespace tern::neighbours
