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
  /// From `bytes` in the order of the wire. There are at least six; those behind are ignored.
  static MacAddress from_bytes(std::span<const std::byte> bytes);
  /// "02:00:5e:00:00:01": two hexadecimal digits a byte. Nothing: the text is another one.
  static std::optional<MacAddress> parse(std::string_view text);
  static constexpr MacAddress broadcast() { return MacAddress({0xff, 0xff, 0xff, 0xff, 0xff, 0xff}); }

  /// As parse() reads it, in lower case.
  std::string to_text() const;
  /// In the order of the wire.
  std::span<const std::byte, kBytes> bytes() const { return std::as_bytes(std::span(bytes_)); }
  /// Not the address of one interface: multicast, or broadcast.
  constexpr bool is_group() const { return (bytes_[0] & 1) != 0; }
  constexpr bool is_broadcast() const { return *this == broadcast(); }
  constexpr bool is_zero() const { return *this == MacAddress(); }
  friend constexpr bool operator==(const MacAddress&, const MacAddress&) = default;

 private:
  std::array<uint8_t, kBytes> bytes_{};
};

}  // namespace tern::frames
