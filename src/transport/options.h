// The check of a transport's options in create(), against the ranges that Options::fields() states.
// Transport layer; any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>

#include <tern/detail/export.h>
#include <tern/status.h>
#include <tern/transport.h>

namespace tern::transport {

/// Returns kMisuse with a text that names the transport, the option and its range.
TERN_API Status out_of_range(std::string_view transport, std::string_view option, uint64_t min, uint64_t max) noexcept;

/// Checks the integers of `options` against the ranges of their fields. `T` is the public type (tern::Udp). kMisuse:
/// one is out of range.
template <class T>
Status check_ranges(const typename T::Options& options) noexcept {
  Status status;
  const auto is_in_range = [&]<class Value>(const OptionField<typename T::Options, Value>& field) {
    if constexpr (std::is_integral_v<Value>) {
      const uint64_t value = options.*field.member;
      if (value < field.min || value > field.max) status = out_of_range(T::kName, field.name, field.min, field.max);
    }
    return status.ok();
  };
  std::apply([&](const auto&... field) { (is_in_range(field) && ...); }, T::Options::fields());
  return status;
}

}  // namespace tern::transport
