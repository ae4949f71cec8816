#include "base/slab.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

namespace tern::base {
namespace {

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
