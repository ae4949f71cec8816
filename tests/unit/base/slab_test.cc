#include "base/slab.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tern::base {
namespace {

TEST(SlabTest, forget_pages__clears_whole_pages_and_keeps_the_bytes_around_them) {
  constexpr size_t kPage = 4096;
  constexpr size_t kBytes = kHugeSlabBytes;
  auto* const slab = static_cast<char*>(map_slab(kBytes));
  ASSERT_NE(slab, nullptr);
  std::memset(slab, 1, kBytes);
  forget_pages(slab + 1, 4 * kPage);  // three whole pages
  for (size_t i = 0; i < 6 * kPage; i++) {
    ASSERT_EQ(slab[i], i >= kPage && i < 4 * kPage ? 0 : 1) << "at " << i;
  }
  forget_pages(slab + 4 * kPage, kPage - 1);  // none
  EXPECT_EQ(slab[4 * kPage], 1);
  unmap_slab(slab, kBytes);
}

TEST(SlabTest, make_huge__keeps_the_content) {
  auto* const slab = static_cast<char*>(map_slab_in_small_pages());
  ASSERT_NE(slab, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(slab) % kHugeSlabBytes, 0u);
  for (size_t i = 0; i < kHugeSlabBytes; i++) slab[i] = static_cast<char>(i % 251);
  make_huge(slab);
  for (size_t i = 0; i < kHugeSlabBytes; i++) ASSERT_EQ(slab[i], static_cast<char>(i % 251)) << "at " << i;
  unmap_slab(slab, kHugeSlabBytes);
}

}  // namespace
}  // namespace tern::base
