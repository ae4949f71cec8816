#include "nexus/uri.h"

#include <optional>

#include "base/address.h"

namespace tern::nexus {

namespace {
constexpr Status kBadScheme{Code::kMisuse,
                            "not a tern URI: write \"tern://HOST:PORT/E\", where E is the endpoint id and may be left "
                            "out for 0 (\"udp://\" in place of \"tern://\" means the same)"};
constexpr Status kBadHostAndPort{
    Code::kMisuse,
    "no valid host and port in the URI: write \"tern://HOST:PORT/E\", HOST a name, an IPv4 address, or an IPv6 address "
    "in brackets, PORT from 0 to 65535 (a URI to connect to needs the server's port, 1 to 65535)"};
constexpr Status kBadEndpoint{Code::kMisuse,
                              "no valid endpoint id in the URI: write \"tern://HOST:PORT/E\", E from 0 to 65535, or "
                              "leave \"/E\" out for endpoint 0"};
}  // namespace

Result<ParsedUri> parse_uri(std::string_view uri) {
  const std::string_view scheme = uri.starts_with(kOldUriScheme) ? kOldUriScheme : kUriScheme;
  if (!uri.starts_with(scheme)) return kBadScheme;
  uri.remove_prefix(scheme.size());
  ParsedUri parsed;
  if (const size_t slash = uri.find('/'); slash != std::string_view::npos) {
    const auto endpoint_id = base::parse_u16(uri.substr(slash + 1));
    if (!endpoint_id) return kBadEndpoint;
    parsed.endpoint_id = *endpoint_id;
    parsed.has_endpoint = true;
    uri = uri.substr(0, slash);
  }
  const auto parts = base::split_host_and_port(uri);
  const auto port = parts ? base::parse_u16(parts->port) : std::nullopt;
  if (!port || parts->host.find_first_of("[] ") != std::string_view::npos) return kBadHostAndPort;
  parsed.port = *port;
  parsed.host_and_port = uri;
  return parsed;
}

}  // namespace tern::nexus
