// The kernel's counts of explicit 2 MB pages. Test code.
#pragma once

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <string>

namespace tern::test {

/// The file of a count, such as "nr_hugepages".
inline std::string huge_pages_file(const std::string& name) {
  return "/sys/kernel/mm/hugepages/hugepages-2048kB/" + name;
}

inline size_t read_huge_pages(const std::string& name) {
  size_t pages = 0;
  std::ifstream(huge_pages_file(name)) >> pages;
  return pages;
}

/// Returns the number of pages that are neither used nor reserved.
inline size_t unused_huge_pages() {
  const size_t free = read_huge_pages("free_hugepages"), reserved = read_huge_pages("resv_hugepages");
  return free - std::min(free, reserved);
}

}  // namespace tern::test
