#include "transport/datagram.h"

#include <algorithm>

namespace tern::transport {

size_t skip_packet(std::span<const std::byte> left, bool is_whole, TransportCounters& counters) {
  const auto begin = std::find_if(left.begin(), left.end(), [](std::byte byte) { return byte != std::byte{0}; });
  if (begin != left.begin()) {  // padding (clause 2.5)
    if (is_whole && begin == left.end()) ++counters.dropped_unparsable;
    return static_cast<size_t>(begin - left.begin());
  }
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
