// Makes system calls that send fail in this thread while a test wants it. Only one source file of an executable may
// include it, because it replaces functions of the C library.
#pragma once

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace tern::failing_sends {

inline thread_local int error = 0;          ///< errno of each call; 0: calls succeed
inline thread_local uint64_t let_pass = 0;  ///< the number of calls that succeed first
inline thread_local uint64_t failed = 0;    ///< failed calls so far

/// Makes calls fail during its lifetime.
class Scope {
 public:
  explicit Scope(int with, uint64_t pass_first = 0) {
    error = with;
    let_pass = pass_first;
    failed = 0;
  }
  ~Scope() { error = 0; }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

inline bool fails() {
  if (error == 0) return false;
  if (let_pass != 0) {
    let_pass--;
    return false;
  }
  failed++;
  errno = error;
  return true;
}

}  // namespace tern::failing_sends

// NOLINTBEGIN(misc-definitions-in-headers)
extern "C" ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  return tern::failing_sends::fails() ? -1 : syscall(SYS_sendmsg, fd, message, flags);
}
extern "C" int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  return tern::failing_sends::fails() ? -1 : static_cast<int>(syscall(SYS_sendmmsg, fd, messages, count, flags));
}
extern "C" ssize_t send(int fd, const void* data, size_t bytes, int flags) {
  return tern::failing_sends::fails() ? -1 : syscall(SYS_sendto, fd, data, bytes, flags, nullptr, 0);
}
// NOLINTEND(misc-definitions-in-headers)
