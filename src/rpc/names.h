// Counts how often lists name an object. For check_invariants() only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/check.h"

namespace tern::rpc {

/// The objects that one or several lists name.
template <class T>
class Names {
 public:
  void add(const T* item) { items_.push_back(item); }
  template <class List>
  void add_all(const List& list) {
    for (size_t i = 0; i < list.size(); i++) add(list[i]);
  }
  /// Must be called before count().
  void sort() { std::sort(items_.begin(), items_.end()); }
  size_t count(const T* item) const {
    const auto [first, last] = std::equal_range(items_.begin(), items_.end(), item);
    return static_cast<size_t>(last - first);
  }
  const std::vector<const T*>& items() const { return items_; }

 private:
  std::vector<const T*> items_;
};

template <class T, class List>
Names<T> names_of(const List& list) {
  Names<T> names;
  names.add_all(list);
  names.sort();
  return names;
}

/// CHECKs that the list names only sessions that exist, each at most once.
template <class T>
void check_known(const Names<T>& list, const Names<T>& known) {
  for (const T* item : list.items()) {
    CHECK(known.count(item), ==, 1u);
    CHECK(list.count(item), ==, 1u);
  }
}

}  // namespace tern::rpc
