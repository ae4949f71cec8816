// The address of an endpoint over raw Ethernet, and its bytes in the handshake. Ethernet layer; any thread, no state.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/address.h"

namespace tern::ethernet {

struct EndpointAddress {
  static constexpr size_t kBytes = 22;
  using Bytes = std::array<std::byte, kBytes>;

  base::SocketAddress end;      ///< IP and port of its datagrams, without a scope
  uint16_t datagram_bytes = 0;  ///< the longest UDP payload that the endpoint takes
};

EndpointAddress::Bytes encode_address(const EndpointAddress& address);
/// Reads untrusted bytes. Returns false if they are not the address of one endpoint. Does not check whether the
/// endpoint can be reached, or how long its datagrams are.
bool decode_address(std::span<const std::byte> bytes, EndpointAddress* address);

}  // namespace tern::ethernet
