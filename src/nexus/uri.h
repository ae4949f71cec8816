// The names of Nexuses and endpoints: "tern://HOST:PORT/E".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <tern/status.h>

namespace tern::nexus {

inline constexpr std::string_view kUriScheme = "tern://";
/// The scheme of URIs before "tern://". It has the same meaning.
inline constexpr std::string_view kOldUriScheme = "udp://";

struct ParsedUri {
  std::string host_and_port;  ///< "HOST:PORT", an IPv6 HOST in brackets
  uint16_t port = 0;
  uint16_t endpoint_id = 0;  ///< 0 if the URI has none
  bool has_endpoint = false;
};

/// Parses "tern://HOST:PORT/E", where "/E" may be left out. Does not resolve HOST. kMisuse: the status names the wrong
/// part, and how to write it. May throw std::bad_alloc.
Result<ParsedUri> parse_uri(std::string_view uri);

}  // namespace tern::nexus
