// A bad network over any transport: for programs that measure recovery, and for tests. Standard library only.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

namespace tern {
namespace transport {
template <class Inner>
class FaultyImpl;
}

/// The faults of packets when they arrive; probabilities from 0 to 1, each drawn independently.
template <class InnerOptions>
struct FaultyOptions {
  /// The options of the transport below.
  InnerOptions inner;
  /// Lost. A payload by reference of more than 8 KiB is lost with this probability for each 4 KiB of it.
  double drop = 0;
  /// Delivered again, up to `delay_max` later.
  double duplicate = 0;
  /// Delivered after up to eight packets that arrived later, or after `delay_max` if there are none.
  double reorder = 0;
  /// Delivered up to `delay_max` later.
  double delay = 0;
  /// One to four bits of header or payload are flipped, above every checksum.
  double corrupt = 0;
  /// The upper end of the delays above.
  std::chrono::nanoseconds delay_max = std::chrono::milliseconds(1);
  /// With the same seed, the same packets have the same faults.
  uint64_t seed = 1;
};

/// Behaves like `Inner` on the wire and has its name, so that only one side of a session may use it.
template <class Inner>
struct Faulty {
  static constexpr std::string_view kName = Inner::kName;    ///< the name that the peers' endpoints must have, too
  using Impl = transport::FaultyImpl<typename Inner::Impl>;  ///< for the library
  using Options = FaultyOptions<typename Inner::Options>;    ///< for Rpc::create()
};

}  // namespace tern
