// Handshakes with changed terms over UDP sockets on loopback: the terms that a hostile client can offer to a server,
// and a hostile server to a client. Packets follow, so that both ends use the terms.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <tern/transport/udp.h>

#include "fuzz/endpoint_world.h"
#include "transport/udp/udp.h"

namespace tern {

struct TappedUdp {
  static constexpr std::string_view kName = "udp";
  using Impl = fuzz::TappedImpl<transport::UdpImpl>;
  using Options = Impl::Options;
};
template class Rpc<TappedUdp>;

}  // namespace tern

uint64_t fuzz_packets = 0;  ///< packets that endpoints have read; the runner of the target prints it

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint64_t now_ns = 1'000'000;
  tern::fuzz::World<tern::TappedUdp> world(now_ns, [&](uint32_t) {
    tern::Udp::Options options;
    options.bind = "127.0.0.1";
    options.datagram_bytes = tern::wire::kHeaderBytes + 2 * tern::fuzz::kPayloadBytes;
    options.probed_datagram_bytes = tern::Udp::Options::kDatagramBytesMin;  // longer packets are a mistake here
    return options;
  });
  tern::fuzz::Input input(data, size);
  world.play_terms(input);
  world.expect_health();
  fuzz_packets += world.packets();
  return 0;
}
