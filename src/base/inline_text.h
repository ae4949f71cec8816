// Short text that is stored in the object: copying it never allocates.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

namespace tern::base {

/// Holds at most `kBytesMax` bytes and cuts a longer text. Callers check fits() first.
template <size_t kBytesMax>
class InlineText {
 public:
  static_assert(kBytesMax < 256);
  InlineText() = default;
  InlineText(std::string_view text)  // NOLINT(google-explicit-constructor): as std::string
      : size_(static_cast<uint8_t>(std::min(text.size(), kBytesMax))) {
    std::copy_n(text.begin(), size_, bytes_.begin());
  }
  InlineText(const std::string& text) : InlineText(std::string_view(text)) {}  // NOLINT(google-explicit-constructor)
  InlineText(const char* text) : InlineText(std::string_view(text)) {}         // NOLINT(google-explicit-constructor)

  static bool fits(std::string_view text) { return text.size() <= kBytesMax; }
  std::string_view view() const { return {bytes_.data(), size_}; }
  operator std::string_view() const { return view(); }          // NOLINT(google-explicit-constructor)
  operator std::string() const { return std::string(view()); }  // NOLINT(google-explicit-constructor)
  size_t size() const { return size_; }
  auto begin() const { return bytes_.begin(); }
  auto end() const { return bytes_.begin() + size_; }
  friend bool operator==(const InlineText& a, const InlineText& b) { return a.view() == b.view(); }
  friend bool operator==(const InlineText& a, std::string_view b) { return a.view() == b; }
  friend bool operator==(const InlineText& a, const std::string& b) { return a.view() == b; }
  friend bool operator==(const InlineText& a, const char* b) { return a.view() == b; }
  friend std::ostream& operator<<(std::ostream& out, const InlineText& text) { return out << text.view(); }

 private:
  std::array<char, kBytesMax> bytes_{};
  uint8_t size_ = 0;
};

}  // namespace tern::base
