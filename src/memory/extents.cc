#include "memory/extents.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/try.h"

namespace tern::memory {

bool Extents::add(std::byte* base, size_t bytes) {
  const size_t pages = bytes / kPageBytes;
  CHECK(pages, >, size_t{0});
  CHECK(pages, <, size_t{kFree});
  std::vector<uint32_t> tags;
  const bool has_memory =
      base::try_reserve(ranges_, ranges_.size() + 1) && base::try_grow([&] { tags.resize(pages); }) && reserve_node();
  if (!has_memory) return false;
  const auto place = std::lower_bound(ranges_.begin(), ranges_.end(), base,
                                      [](const Range& range, const std::byte* at) { return range.base < at; });
  Range& range = *ranges_.insert(place, Range{base, pages, std::move(tags)});
  range.tag(0, pages, kFree);
  add_free(pages, base, take_node());
  return true;
}

/// Adds a spare node. False: no memory.
bool Extents::reserve_node() {
  return base::try_grow([this] { spare_nodes_.emplace_hint(spare_nodes_.end(), ++spare_names_, nullptr); });
}

void Extents::keep_node(Runs::node_type node) {
  node.value() = {++spare_names_, nullptr};
  spare_nodes_.insert(spare_nodes_.end(), std::move(node));
}

Extents::Runs::node_type Extents::take_node() { return spare_nodes_.extract(std::prev(spare_nodes_.end())); }

void Extents::add_free(size_t pages, std::byte* run, Runs::node_type node) {
  node.value() = {pages, run};
  free_runs_.insert(std::move(node));
}

const Extents::Range& Extents::range_of(const std::byte* at) const {
  const auto above = std::upper_bound(ranges_.begin(), ranges_.end(), at,
                                      [](const std::byte* a, const Range& range) { return a < range.base; });
  CHECK(above - ranges_.begin(), >, 0);
  const Range& range = *std::prev(above);
  CHECK(range.page_of(at), <, range.pages);
  return range;
}

std::byte* Extents::take(size_t pages) {
  const auto fit = free_runs_.lower_bound({pages, nullptr});
  if (fit == free_runs_.end() || (spare_nodes_.size() <= runs_out_ && !reserve_node())) return nullptr;
  const auto [found, run] = *fit;
  Range& range = range_of(run);
  const size_t first = range.page_of(run);
  auto node = free_runs_.extract(fit);
  range.tag(first, pages, 0);
  if (found != pages) {
    range.tag(first + pages, found - pages, kFree);
    add_free(found - pages, range.at(first + pages), std::move(node));
  } else {
    keep_node(std::move(node));
  }
  ++runs_out_;
  return run;
}

void Extents::give(std::byte* run) {
  Range& range = range_of(run);
  size_t first = range.page_of(run);
  size_t count = range.tags[first];
  CHECK(count & kFree, ==, 0u);
  if (const size_t next = first + count; next < range.pages && (range.tags[next] & kFree) != 0) {
    const size_t after = range.tags[next] & ~kFree;
    keep_node(free_runs_.extract({after, range.at(next)}));
    count += after;
  }
  if (first > 0 && (range.tags[first - 1] & kFree) != 0) {
    const size_t before = range.tags[first - 1] & ~kFree;
    first -= before;
    keep_node(free_runs_.extract({before, range.at(first)}));
    count += before;
  }
  range.tag(first, count, kFree);
  add_free(count, range.at(first), take_node());
  --runs_out_;
}

std::vector<std::pair<std::byte*, size_t>> Extents::used_runs() const {
  std::vector<std::pair<std::byte*, size_t>> runs;
  for (const Range& range : ranges_) {
    for (size_t page = 0; page < range.pages; page += range.tags[page] & ~kFree) {
      if ((range.tags[page] & kFree) == 0) runs.emplace_back(range.at(page), range.tags[page]);
    }
  }
  return runs;
}

void Extents::check_invariants() const {
  size_t free_runs = 0;
  size_t runs_out = 0;
  for (const Range& range : ranges_) {
    bool previous_free = false;
    size_t page = 0;
    while (page < range.pages) {
      const uint32_t tag = range.tags[page];
      const size_t count = tag & ~kFree;
      const bool is_free = (tag & kFree) != 0;
      CHECK(count, >, size_t{0});
      CHECK(page + count, <=, range.pages);
      CHECK(range.tags[page + count - 1], ==, tag);
      if (is_free) {
        CHECK(!previous_free);
        CHECK(free_runs_.count({count, range.at(page)}), ==, size_t{1});
        ++free_runs;
      } else {
        ++runs_out;
      }
      previous_free = is_free;
      page += count;
    }
    CHECK(page, ==, range.pages);
  }
  CHECK(free_runs, ==, free_runs_.size());
  CHECK(runs_out, ==, runs_out_);
  CHECK(spare_nodes_.size(), >=, runs_out_);
}

}  // namespace tern::memory
