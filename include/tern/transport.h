// The names of transports and of their options in a program. Standard library only.
#pragma once

#include <concepts>
#include <cstdint>
#include <string_view>

namespace tern {

/// A field of a transport's Options that a command line can set by its name (<tern/transport_options.h>): a
/// std::string, a bool or an unsigned integer. Options::fields(), if there is one, returns a std::tuple of all such
/// fields.
template <class Options, class Value>
struct OptionField {
  std::string_view name;      ///< of the member
  Value Options::*member;     ///< the member that gets the value
  uint64_t min = 0;           ///< the smallest value of an integer
  uint64_t max = UINT64_MAX;  ///< the largest value of an integer; that of its type, if that is less
};
template <class Options, class Value, class... Range>
OptionField(std::string_view, Value Options::*, Range...) -> OptionField<Options, Value>;

/// A transport as an argument of Rpc: its options, its name, and the class that implements it (which programs never
/// see; src/transport/transport.h is its contract). Options may list its fields (OptionField).
template <class T>
concept Transport = requires {
  typename T::Options;
  typename T::Impl;
  { T::kName } -> std::convertible_to<std::string_view>;
};

}  // namespace tern
