#include "frames/mac_address.h"

#include <charconv>
#include <cstring>

namespace tern::frames {

namespace {

constexpr std::string_view kDigits = "0123456789abcdef";
constexpr size_t kTextBytes = 3 * MacAddress::kBytes - 1;  // two digits a byte, and colons between

}  // namespace

MacAddress MacAddress::from_bytes(std::span<const std::byte> bytes) {
  MacAddress mac;
  std::memcpy(mac.bytes_.data(), bytes.data(), kBytes);
  return mac;
}

std::optional<MacAddress> MacAddress::parse(std::string_view text) {
  if (text.size() != kTextBytes) return std::nullopt;
  MacAddress mac;
  for (size_t i = 0; i < kBytes; i++) {
    const char* const digits = text.data() + 3 * i;
    const auto [end, error] = std::from_chars(digits, digits + 2, mac.bytes_[i], 16);
    if (error != std::errc() || end != digits + 2) return std::nullopt;
    if (i > 0 && digits[-1] != ':') return std::nullopt;
  }
  return mac;
}

std::string MacAddress::to_text() const {
  std::string text;
  for (const uint8_t byte : bytes_) {
    if (!text.empty()) text += ':';
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace tern::frames
