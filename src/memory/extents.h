// Runs of 4 KiB pages in the chunks of an arena: best fit, split and coalesced.
// Memory layer. Not thread-safe: the arena's mutex guards it. Does not access the memory of the runs.
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

  /// Adds a range of whole pages, all free. Ranges do not coalesce. False: there is no memory for the tables, and
  /// nothing has changed.
  [[nodiscard]] bool add(std::byte* base, size_t bytes);
  /// Takes the first `pages` of the smallest free run that is long enough. Of runs of equal length, takes the one with
  /// the lowest address. Null: there is no such run, or no memory for the tables.
  std::byte* take(size_t pages);
  /// Frees a run. `run` is from take(), and must not be freed twice. Needs no memory.
  void give(std::byte* run);

  /// The start and the number of pages of every run that is taken.
  std::vector<std::pair<std::byte*, size_t>> used_runs() const;
  void check_invariants() const;

 private:
  static constexpr uint32_t kFree = 1u << 31;

  struct Range {
    std::byte* base;
    size_t pages;
    std::vector<uint32_t> tags;  ///< at a run's first and last page: its length in pages, with kFree if it is free

    size_t page_of(const std::byte* at) const { return static_cast<size_t>(at - base) / kPageBytes; }
    std::byte* at(size_t page) const { return base + page * kPageBytes; }
    void tag(size_t first, size_t count, uint32_t free) {
      tags[first] = tags[first + count - 1] = static_cast<uint32_t>(count) | free;
    }
  };
  const Range& range_of(const std::byte* at) const;
  Range& range_of(const std::byte* at) { return const_cast<Range&>(std::as_const(*this).range_of(at)); }

  std::vector<Range> ranges_;  ///< by base
  using Runs = std::set<std::pair<size_t, std::byte*>>;
  bool reserve_node();
  void keep_node(Runs::node_type node);
  Runs::node_type take_node();
  void add_free(size_t pages, std::byte* run, Runs::node_type node);

  Runs free_runs_;  ///< by number of pages and start
  /// Nodes for free_runs_, at least one for each taken run, because give() must not need memory. The keys count up, so
  /// that they differ.
  Runs spare_nodes_;
  size_t spare_names_ = 0;
  size_t runs_out_ = 0;
};

}  // namespace tern::memory
