// Encodings of the UDP transport's addresses: the bytes in the handshake, and the text of Udp::Options::bind.
// Transport layer: knows neither packets nor sessions. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include <tern/status.h>

#include "base/address.h"

namespace tern::transport {

using base::SocketAddress;

/// The bytes of an address: family (4 or 6), port (little-endian), IP in network order.
struct UdpAddressBytes {
  static constexpr size_t kBytesMax = 1 + 2 + 16;

  std::array<std::byte, kBytesMax> bytes{};
  size_t size = 0;
  std::span<const std::byte> span() const { return {bytes.data(), size}; }
};
UdpAddressBytes encode_address(const SocketAddress& address);
/// Reads bytes from the network. False: they are not an address, or its port is 0.
bool decode_address(std::span<const std::byte> bytes, SocketAddress* address);

/// Parses "HOST", "HOST:PORT", "[V6]" or "[V6]:PORT". Empty text: 0.0.0.0 and any port. Looks up a host name, which may
/// block.
Result<SocketAddress> parse_bind_option(std::string_view text);

}  // namespace tern::transport
