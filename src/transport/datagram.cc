#include "transport/datagram.h"

namespace tern::transport {

size_t skip_packet(std::span<const std::byte> left, TransportCounters& counters) {
  if (left.size() >= wire::kHeaderBytes) {
    const wire::Header header = wire::load_header(left.data());
    if (wire::is_plausible(header, left.size())) {
      ++counters.dropped_bad_reference;
      return header.length();
    }
  }
  ++counters.dropped_unparsable;
  return left.size();
}

}  // namespace tern::transport
