// Memory for messages in a sandbox that refuses system calls: the text says what refuses, and what to do.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <string>

#include "memory/arena.h"

namespace tern::memory {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Lets the system call `number` fail with `error`, if its second argument is `second` (-1: any).
bool forbid(int number, int error, int second) {
  const bool is_any = second < 0;
  std::array<sock_filter, 6> filter{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args) + sizeof(uint64_t)),
      BPF_JUMP(BPF_JMP | (is_any ? BPF_JGE : BPF_JEQ) | BPF_K, is_any ? 0 : static_cast<uint32_t>(second), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/// The text of Arena::create() in a process where that call fails, behind its code. "": it has succeeded.
std::string text_without(int number, int error, bool shared = true, int second = -1) {
  int text[2];
  EXPECT_EQ(pipe(text), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (!forbid(number, error, second)) _exit(1);
    ArenaOptions options;
    options.shared = shared;
    const Status status = Arena::create(options).status();
    const std::string line = std::to_string(static_cast<int>(status.code())) + " " + std::string(status.message());
    _exit(!status.ok() && write(text[1], line.data(), line.size()) < 0 ? 1 : 0);
  }
  close(text[1]);
  std::string line(1024, ' ');
  const ssize_t bytes = read(text[0], line.data(), line.size());
  close(text[0]);
  line.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return line;
}

auto has(Code code, const char* part) {
  return AllOf(::testing::StartsWith(std::to_string(static_cast<int>(code)) + " "), HasSubstr(part));
}

TEST(Sandbox, memfd_create_fails_with_its_reason) {
  EXPECT_THAT(text_without(SYS_memfd_create, EPERM), AllOf(has(Code::kUnavailable, "sandbox"), HasSubstr("use udp")));
  EXPECT_THAT(text_without(SYS_memfd_create, ENOSYS), has(Code::kUnavailable, "Linux 3.17"));
  EXPECT_THAT(text_without(SYS_memfd_create, EMFILE), has(Code::kUnavailable, "ulimit -n"));
  EXPECT_THAT(text_without(SYS_memfd_create, ENFILE),
              AllOf(has(Code::kUnavailable, "fs.file-max"), Not(HasSubstr("ulimit -n"))));
  EXPECT_THAT(text_without(SYS_memfd_create, ENOMEM), has(Code::kNoMemory, "ulimit -v"));
}

TEST(Sandbox, refused_calls_are_not_called_a_lack_of_memory) {
  EXPECT_THAT(text_without(SYS_ftruncate, EPERM), has(Code::kUnavailable, "sandbox"));
  EXPECT_THAT(text_without(SYS_madvise, EPERM), has(Code::kUnavailable, "sandbox"));
  EXPECT_THAT(text_without(SYS_madvise, EPERM, false), has(Code::kUnavailable, "sandbox"));
  EXPECT_THAT(text_without(SYS_ftruncate, EPERM, false), "");
}

TEST(Sandbox, refused_seals_may_come_from_the_kernel_or_a_sandbox) {
  EXPECT_THAT(text_without(SYS_fcntl, EPERM, true, F_ADD_SEALS),
              AllOf(has(Code::kUnavailable, "Linux 5.1"), HasSubstr("sandbox")));
}

}  // namespace
}  // namespace tern::memory
