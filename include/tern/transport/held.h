// A transport that transmits late, as NICs with long queues do: for tests of who owns a buffer when.
// Standard library only.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

namespace tern {
namespace transport {
template <class Inner>
class HeldImpl;
}

/// Packets are held from the first one that is queued until one of the two limits is reached, then leave together. With
/// both 0 they leave with the next flush, as without this layer.
template <class InnerOptions>
struct HeldOptions {
  /// Of the transport below.
  InnerOptions inner;
  /// Iterations of the event loop that they are held for. 0: no such limit.
  uint32_t hold_flushes = 8;
  /// They leave in the first iteration after this time, if it ends before. 0: no such limit.
  std::chrono::nanoseconds hold_time{0};
};

/// Behaves as `Inner` on the wire and has its name. Message memory is read when the packets leave, and transmit tickets
/// are released after that, so both are late and in bulk.
template <class Inner>
struct Held {
  static constexpr std::string_view kName = Inner::kName;  ///< what the peers' endpoints must have, too
  using Impl = transport::HeldImpl<typename Inner::Impl>;  ///< for the library
  using Options = HeldOptions<typename Inner::Options>;    ///< for Rpc::create()
};

}  // namespace tern
