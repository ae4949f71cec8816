#include "transport/xdp/owner.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <thread>

#include "base/random.h"
#include "base/status_text.h"

namespace tern::transport::xdp {

namespace {

constexpr auto kPatience = std::chrono::seconds(2);  ///< a turn takes less than a millisecond

struct Name {
  sockaddr_un address{};
  socklen_t bytes = 0;

  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&address); }
};

/// Abstract: the path begins with a zero byte.
Name name_of(const char* kind, uint64_t number) {
  Name name;
  name.address.sun_family = AF_UNIX;
  const int length = std::snprintf(name.address.sun_path + 1, sizeof(name.address.sun_path) - 1,
                                   "tern-xdp-%s-%016" PRIx64, kind, number);
  name.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
  return name;
}

base::Descriptor open_socket() { return base::Descriptor(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)); }

}  // namespace

Result<Owner> Owner::create() {
  base::Descriptor socket = open_socket();
  uint64_t number = 0;
  const auto is_named = [&] {
    if (!base::fill_random(&number, sizeof(number)) || number == 0) return false;
    const Name name = name_of("owner", number);
    return bind(socket.get(), name.data(), name.bytes) == 0;
  };
  if (socket && is_named()) return Owner(number, std::move(socket));
  return base::status_of(Code::kUnavailable, "xdp: no socket for this process's claim to its queues",
                         {"xdp: no socket for this process's claim to its queues (", std::strerror(errno),
                          "): raise the limit of open files, ulimit -n"});
}

bool Owner::is_alive(uint64_t number) const {
  if (number == 0) return false;
  if (number == number_) return true;
  const Name name = name_of("owner", number);
  const bool is_refused = connect(socket_.get(), name.data(), name.bytes) != 0 && errno == ECONNREFUSED;
  sockaddr none{};
  none.sa_family = AF_UNSPEC;
  (void)connect(socket_.get(), &none, sizeof(none));
  return !is_refused;
}

Turn::Turn(uint32_t interface) : socket_(open_socket()) {
  const Name name = name_of("turn", interface);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (socket_ && bind(socket_.get(), name.data(), name.bytes) != 0 && errno == EADDRINUSE &&
         std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace tern::transport::xdp
