#include "base/transparent_pages.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstring>

namespace tern::base {
namespace {

/// True if the choice in brackets, as in "always [madvise] never", is not `word`. False if the file cannot be read.
bool is_set_to_other_than(const char* path, const char* word) {
  std::array<char, 128> text{};
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const ssize_t bytes = read(fd, text.data(), text.size() - 1);
  close(fd);
  if (bytes <= 0) return false;
  const char* begin = std::strchr(text.data(), '[');
  if (begin == nullptr) return false;
  const size_t length = std::strlen(word);
  return std::strncmp(begin + 1, word, length) != 0 || begin[1 + length] != ']';
}

}  // namespace

bool may_become_transparent(bool is_shared) {
  if (!is_shared) return is_set_to_other_than("/sys/kernel/mm/transparent_hugepage/enabled", "never");
  return is_set_to_other_than("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "never") &&
         is_set_to_other_than("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "deny");
}

}  // namespace tern::base
