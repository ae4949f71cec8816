#include "base/slab.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>

#include "own_file.h"

namespace tern::base {
namespace {

/// Bytes of transparent huge pages in the mapping that begins at `slab`, or in the one that it is a part of.
size_t transparent_bytes_at(const void* slab) {
  std::ifstream maps("/proc/self/smaps");
  const auto at = reinterpret_cast<uintptr_t>(slab);
  bool is_here = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    const char* const last = line.data() + line.size();
    const auto [dash, error] = std::from_chars(line.data(), last, begin, 16);
    if (error == std::errc() && dash != last && *dash == '-') {
      std::from_chars(dash + 1, last, end, 16);
      is_here = begin <= at && at < end;
    } else if (is_here && line.starts_with("AnonHugePages:")) {
      return std::stoul(line.substr(14)) * 1024;
    }
  }
  return 0;
}

TEST(SlabTest, forget_pages__clears_whole_pages_and_keeps_the_bytes_around_them) {
  const auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  constexpr size_t kBytes = kHugeSlabBytes;
  auto* const slab = static_cast<char*>(map_slab(kBytes));
  ASSERT_NE(slab, nullptr);
  std::memset(slab, 1, kBytes);
  forget_pages(slab + 1, 4 * page_bytes);  // three whole pages
  for (size_t i = 0; i < 6 * page_bytes; i++) {
    ASSERT_EQ(slab[i], i >= page_bytes && i < 4 * page_bytes ? 0 : 1) << "at " << i;
  }
  forget_pages(slab + 4 * page_bytes, page_bytes - 1);  // none
  EXPECT_EQ(slab[4 * page_bytes], 1);
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

TEST(SlabTest, make_huge__makes_no_huge_page_where_these_are_turned_off) {
  test::expect_zero_with_own_file("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n", [] {
    auto* const slab = static_cast<char*>(map_slab_in_small_pages());
    if (slab == nullptr) return 1;
    std::memset(slab, 1, kHugeSlabBytes);
    make_huge(slab);
    return transparent_bytes_at(slab) == 0 ? 0 : 2;
  });
}

}  // namespace
}  // namespace tern::base
