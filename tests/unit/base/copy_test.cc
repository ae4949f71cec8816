#include "base/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace tern::base {
namespace {

using Copy = void (*)(std::byte* to, const std::byte* from, size_t len);

/// Copies `len` bytes between unaligned addresses, and checks every byte of the copy and of the memory around it.
void expect_exact(Copy copy, size_t len, size_t from_offset, size_t to_offset) {
  constexpr std::byte kUntouched{0xee};
  std::vector<std::byte> from(from_offset + len), to(to_offset + len + 100, kUntouched);
  for (size_t i = 0; i < from.size(); i++) from[i] = static_cast<std::byte>(i * 7 + i / 251);
  copy(to.data() + to_offset, from.data() + from_offset, len);
  std::vector<std::byte> expected(to_offset + len + 100, kUntouched);
  std::copy(from.begin() + static_cast<ptrdiff_t>(from_offset), from.end(),
            expected.begin() + static_cast<ptrdiff_t>(to_offset));
  ASSERT_TRUE(to == expected) << len << " bytes from " << from_offset << " to " << to_offset;
}

TEST(Copy, copy_bytes__every_small_length) {
  for (size_t len = 0; len <= 200; len++) expect_exact(copy_bytes, len, len % 5, len % 3);
}

TEST(Copy, copy_large__every_length_around_lines_and_pages) {
  for (const size_t border : {0u, 64u, 128u, 4096u, 8192u, 65536u}) {
    for (size_t len = border < 70 ? 0 : border - 70; len <= border + 70; len++) {
      for (const size_t offset : {0u, 1u, 31u}) expect_exact(copy_large, len, offset, 2 * offset);
    }
  }
}

}  // namespace
}  // namespace tern::base
