// The run allocator against a page map with linear search.
#include "memory/extents.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace tern::memory {
namespace {

constexpr size_t kPage = Extents::kPageBytes;

std::byte* address(size_t page) { return reinterpret_cast<std::byte*>(page * kPage); }  // never touched
size_t page_of(const std::byte* at) { return reinterpret_cast<size_t>(at) / kPage; }

/// One bool for each page. Pages that are never free separate the ranges.
class NaiveExtents {
 public:
  explicit NaiveExtents(size_t pages) : free_(pages, false) {}
  void add(size_t first, size_t pages) { mark(first, pages, true); }
  void mark(size_t first, size_t pages, bool is_free) {
    for (size_t i = first; i < first + pages; ++i) free_[i] = is_free;
  }
  /// Returns the first page of the shortest run that fits, and of the lowest one among equals; 0: no run fits.
  size_t best_fit(size_t pages) const {
    size_t best = 0;
    size_t best_pages = SIZE_MAX;
    for (size_t i = 0; i < free_.size();) {
      size_t end = i;
      while (end < free_.size() && free_[end]) ++end;
      if (end - i >= pages && end - i < best_pages) {
        best = i;
        best_pages = end - i;
      }
      i = end + 1;
    }
    return best;
  }

 private:
  std::vector<bool> free_;
};

TEST(Extents, takes_and_gives_like_a_page_map) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    Extents extents;
    NaiveExtents naive(400);
    // The order of adding is not that of addresses. One page between the first two ranges keeps them apart in the page
    // map.
    for (const auto& [first, pages] : {std::pair<size_t, size_t>{200, 150}, {10, 100}, {111, 50}}) {
      ASSERT_TRUE(extents.add(address(first), pages * kPage));
      naive.add(first, pages);
    }
    std::map<size_t, size_t> out;  // by first page: the number of pages
    for (int step = 0; step < 1000; ++step) {
      if (random() % 2 == 0) {
        const size_t pages = 1 + random() % (random() % 8 == 0 ? 120 : 12);
        std::byte* run = extents.take(pages);
        const size_t expected = naive.best_fit(pages);
        ASSERT_EQ(run, expected == 0 ? nullptr : address(expected)) << "seed " << seed << " step " << step;
        if (run == nullptr) continue;
        naive.mark(expected, pages, false);
        ASSERT_TRUE(out.emplace(expected, pages).second);
      } else if (!out.empty()) {
        auto victim = std::next(out.begin(), static_cast<long>(random() % out.size()));
        extents.give(address(victim->first));
        naive.mark(victim->first, victim->second, true);
        out.erase(victim);
      }
      extents.check_invariants();
      std::map<size_t, size_t> runs;
      for (const auto& [run, pages] : extents.used_runs()) runs.emplace(page_of(run), pages);
      ASSERT_EQ(runs, out);
    }
  }
}

TEST(Extents, adjacent_ranges_do_not_coalesce) {
  Extents extents;
  ASSERT_TRUE(extents.add(address(10), 4 * kPage));
  ASSERT_TRUE(extents.add(address(14), 4 * kPage));
  EXPECT_EQ(extents.take(5), nullptr);
  std::byte* first = extents.take(4);
  std::byte* second = extents.take(4);
  EXPECT_EQ(first, address(10));
  EXPECT_EQ(second, address(14));
  extents.give(first);
  extents.give(second);
  extents.check_invariants();
  EXPECT_EQ(extents.take(8), nullptr);
}

TEST(ExtentsDeathTest, giving_twice_is_caught) {
  Extents extents;
  ASSERT_TRUE(extents.add(address(10), 4 * kPage));
  std::byte* run = extents.take(2);
  extents.give(run);
  EXPECT_DEATH(extents.give(run), "CHECK failed");
}

}  // namespace
}  // namespace tern::memory
