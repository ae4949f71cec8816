// An Ethernet address. Frames layer: a plain value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tern::frames {

class MacAddress {
 public:
  static constexpr size_t kBytes = 6;

  /// 00:00:00:00:00:00, which no interface has.
  constexpr MacAddress() = default;
  constexpr explicit MacAddress(const std::array<uint8_t, kBytes>& bytes) : bytes_(bytes) {}
  /// Reads the first six of `bytes`, which are in the order of the wire. There must be at least six; more are ignored.
  static MacAddress from_bytes(std::span<const std::byte> bytes);
  /// Parses "02:00:5e:00:00:01": two hexadecimal digits a byte. Returns nothing if the text has another form.
  static std::optional<MacAddress> parse(std::string_view text);
  static constexpr MacAddress broadcast() { return MacAddress({0xff, 0xff, 0xff, 0xff, 0xff, 0xff}); }

  /// The text in the form that parse() reads, in lower case.
  std::string to_text() const;
  /// In the order of the wire.
  std::span<const std::byte, kBytes> bytes() const { return std::as_bytes(std::span(bytes_)); }
  /// Multicast or broadcast, which is not the address of one interface.
  constexpr bool is_group() const { return (bytes_[0] & 1) != 0; }
  constexpr bool is_broadcast() const { return *this == broadcast(); }
  constexpr bool is_zero() const { return *this == MacAddress(); }
  friend constexpr bool operator==(const MacAddress&, const MacAddress&) = default;

 private:
  std::array<uint8_t, kBytes> bytes_{};
};

}  // namespace tern::frames
