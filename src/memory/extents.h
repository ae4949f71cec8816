// Runs of 4 KiB pages in the chunks of an arena: best fit, split and coalesced.
// Memory room. Not thread-safe: the arena's mutex guards it. Never touches the memory that it hands out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace tern::memory {

class Extents {
 public:
  static constexpr size_t kPageBytes = 4096;

  /// Adds a range of whole pages, all free. It does not coalesce with other ranges.
  void add(std::byte* base, size_t bytes);
  /// The smallest free run of at least `pages` (the lowest address among equals) loses its first `pages`. Null: none.
  std::byte* take(size_t pages);
  /// `run` came from take() and has not been given back.
  void give(std::byte* run);
  /// `run` came from take() and has not been given back.
  size_t pages_of(const std::byte* run) const;

  size_t pages_used() const { return pages_used_; }
  /// The start and the pages of every run that is out.
  std::vector<std::pair<std::byte*, size_t>> used_runs() const;
  void check_invariants() const;

 private:
  static constexpr uint32_t kFree = 1u << 31;

  struct Range {
    std::byte* base;
    size_t pages;
    std::vector<uint32_t> tags;  ///< of the first and the last page of each run: its pages, with kFree if it is free

    size_t page_of(const std::byte* at) const { return static_cast<size_t>(at - base) / kPageBytes; }
    std::byte* at(size_t page) const { return base + page * kPageBytes; }
    void tag(size_t first, size_t count, uint32_t free) {
      tags[first] = tags[first + count - 1] = static_cast<uint32_t>(count) | free;
    }
  };
  const Range& range_of(const std::byte* at) const;
  Range& range_of(const std::byte* at) { return const_cast<Range&>(std::as_const(*this).range_of(at)); }

  std::vector<Range> ranges_;                          ///< by base
  std::set<std::pair<size_t, std::byte*>> free_runs_;  ///< pages, start
  size_t pages_used_ = 0;
};

}  // namespace tern::memory
