// Encodings of the UDP transport's addresses: the bytes in the handshake, and the text of Udp::Options::bind.
// Transport layer: knows nothing of packets or sessions. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include <tern/status.h>

#include "base/address.h"

namespace tern::transport {

using base::SocketAddress;

/// Family (4 or 6), port (little-endian), IP in network order.
struct UdpAddressBytes {
  static constexpr size_t kBytesMax = 1 + 2 + 16;

  std::array<std::byte, kBytesMax> bytes{};
  size_t size = 0;
  std::span<const std::byte> span() const { return {bytes.data(), size}; }
};
UdpAddressBytes encode_address(const SocketAddress& address);
/// Reads a stranger's bytes. False: they are no address, or its port is 0.
bool decode_address(std::span<const std::byte> bytes, SocketAddress* address);

/// "HOST", "HOST:PORT", "[V6]", "[V6]:PORT". Empty: 0.0.0.0 and any port. A host name is looked up, which may block.
Result<SocketAddress> parse_bind_option(std::string_view text);

}  // namespace tern::transport
