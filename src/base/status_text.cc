#include "base/status_text.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <new>

namespace tern::base {

namespace {
/// Texts fill the array from the front, and stay where they are. There is no lock, because a forked child could never
/// take a lock that another thread held at the fork.
constinit std::array<std::atomic<const char*>, kStatusTextsMax> kept_texts{};
}  // namespace

Status status_of(Code code, const char* otherwise, std::span<const std::string_view> parts) noexcept {
  size_t size = 0;
  for (const std::string_view part : parts) size += part.size();
  if (size > kStatusTextBytesMax) return {code, otherwise};
  std::array<char, kStatusTextBytesMax + 1> text;
  char* end = text.data();
  for (const std::string_view part : parts) end = std::copy(part.begin(), part.end(), end);
  *end = '\0';
  const std::string_view wanted(text.data(), size);
  char* copy = nullptr;
  for (auto& place : kept_texts) {
    const char* kept = place.load(std::memory_order_acquire);
    if (kept == nullptr) {
      if (copy == nullptr) copy = new (std::nothrow) char[size + 1];
      if (copy == nullptr) break;
      std::copy_n(text.data(), size + 1, copy);
      if (place.compare_exchange_strong(kept, copy, std::memory_order_acq_rel)) return {code, copy};
    }
    if (kept != wanted) continue;
    delete[] copy;
    return {code, kept};
  }
  delete[] copy;
  return {code, otherwise};
}

}  // namespace tern::base
