// Endpoints over AF_XDP at the two ends of a cable (tests/cable): that at tern1 is made in the second namespace. Those
// over other transports are made where the test is.
#pragma once

#if __has_include(<tern/transport/xdp.h>)  // it is built
#define TERN_TEST_HAS_XDP
#include <tern/transport/xdp.h>
#endif

#include <cstdint>
#include <optional>
#include <type_traits>

#include "cable/far.h"

namespace tern::test {

/// The interface at an end of the cable, 0 or 1, if these are options of AF_XDP.
template <class Options>
void set_interface([[maybe_unused]] Options& options, [[maybe_unused]] uint32_t end) {
#ifdef TERN_TEST_HAS_XDP
  if constexpr (std::is_same_v<Options, Xdp::Options>) options.interface = end == 0 ? "tern0" : "tern1";
#endif
}

/// The calling thread is where an endpoint with these options belongs, as long as the object lives.
class Place {
 public:
  template <class Options>
  explicit Place(const Options& options) {
    enter(options);
  }
  void leave() { far_.reset(); }

 private:
  template <class Options>
  void enter([[maybe_unused]] const Options& options) {
    if constexpr (requires { options.inner; }) enter(options.inner);
#ifdef TERN_TEST_HAS_XDP
    if constexpr (std::is_same_v<Options, Xdp::Options>) {
      if (options.interface == "tern1") far_.emplace();
    }
#endif
  }

  std::optional<Far> far_;
};

}  // namespace tern::test
