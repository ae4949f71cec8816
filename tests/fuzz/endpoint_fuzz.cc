// Hostile peers and strangers against live endpoints over an in-memory transport: endpoint_world.h.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fuzz/endpoint_world.h"
#include "unit/transport/fake_transport.h"

namespace tern {

struct TappedFake {
  static constexpr std::string_view kName = "fake";
  using Impl = fuzz::TappedImpl<transport::FakeImpl>;
  using Options = Impl::Options;
};
template class Rpc<TappedFake>;

}  // namespace tern

uint64_t fuzz_packets = 0;  ///< packets that endpoints have read; the runner of the target prints it

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tern::transport::FakeNetwork network;
  tern::fuzz::World<tern::TappedFake> world(network.now_ns, [&](uint32_t) {
    tern::Fake::Options options;
    options.network = &network;
    options.payload_bytes_max = tern::fuzz::kPayloadBytes;
    return options;
  });
  tern::fuzz::Input input(data, size);
  world.play(input);
  world.expect_health();
  fuzz_packets += world.packets();
  return 0;
}
