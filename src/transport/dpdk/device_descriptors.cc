#include "transport/dpdk/device_descriptors.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/folder.h"

namespace tern::transport {

namespace {

/// visit(descriptor, folder with a link to each, name of its link)
template <class Visit>
void for_each_descriptor(Visit&& visit) {
  const base::Folder folder(opendir("/proc/self/fd"));
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder.get())) {
    const std::string_view name = entry->d_name;
    int fd = -1;
    const bool is_number = std::from_chars(name.begin(), name.end(), fd).ec == std::errc();
    if (is_number && fd != dirfd(folder.get())) visit(fd, dirfd(folder.get()), entry->d_name);
  }
}

bool is_of_device(int fd, int folder, const char* name) {
  int domain = 0;
  socklen_t bytes = sizeof(domain);
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0) return domain == AF_PACKET || domain == AF_XDP;
  char link[64];  // its beginning
  const ssize_t length = readlinkat(folder, name, link, sizeof(link));
  const std::string_view target(link, static_cast<size_t>(std::max<ssize_t>(length, 0)));
  return target.starts_with("/dev/") || target.starts_with("anon_inode:") || target.starts_with("/memfd:");
}

}  // namespace

DeviceDescriptors::DeviceDescriptors() {
  for_each_descriptor([this](int fd, int, const char*) { before_.push_back(fd); });
  std::sort(before_.begin(), before_.end());
}

DeviceDescriptors::~DeviceDescriptors() {
  for_each_descriptor([this](int fd, int folder, const char* name) {
    if (std::binary_search(before_.begin(), before_.end(), fd) || !is_of_device(fd, folder, name)) return;
    const int flags = fcntl(fd, F_GETFD);
    if (flags >= 0) (void)fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
  });
}

}  // namespace tern::transport
