// How a transport is named in a program. Standard library only.
#pragma once

#include <concepts>
#include <string_view>

namespace tern {

/// A transport as an argument of Rpc: its options, its name, and the class that implements it (which programs
/// never see: src/transport/transport.h says what it must do).
template <class T>
concept Transport = requires {
  typename T::Options;
  typename T::Impl;
  { T::kName } -> std::convertible_to<std::string_view>;
};

}  // namespace tern
