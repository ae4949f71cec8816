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

  /// Adds a range of whole pages, all free. It does not coalesce with other ranges. False: no memory to keep account
  /// of it; nothing has changed.
  [[nodiscard]] bool add(std::byte* base, size_t bytes);
  /// The smallest free run of at least `pages` (the lowest address among equals) loses its first `pages`. Null: none,
  /// or no memory to keep account of it.
  std::byte* take(size_t pages);
  /// `run` came from take() and has not been given back. Needs no memory.
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

  std::vector<Range> ranges_;  ///< by base
  using Runs = std::set<std::pair<size_t, std::byte*>>;
  bool reserve_node();
  void keep_node(Runs::node_type node);
  Runs::node_type take_node();
  void add_free(size_t pages, std::byte* run, Runs::node_type node);

  Runs free_runs_;  ///< pages, start
  /// Nodes for free_runs_, at least one for each run that is out: what gives memory back must not need any. Keys count
  /// up, to be different.
  Runs spare_nodes_;
  size_t spare_names_ = 0;
  size_t runs_out_ = 0;
  size_t pages_used_ = 0;
};

}  // namespace tern::memory
