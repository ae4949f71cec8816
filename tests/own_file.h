// A process with its own content of a system file, which other processes do not see. Test code.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace tern::test {

/// Runs `body` in a child process, where the file `where` has the content `text`, and expects that it returns 0. Skips
/// the test if that needs rights that are missing.
template <class Body>
void expect_zero_with_own_file(const char* where, const std::string& text, Body body) {
  constexpr int kNotHere = 77;
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a process its own " << where;
  char path[] = "/tmp/tern-own-XXXXXX";
  const int file = mkstemp(path);
  ASSERT_EQ(write(file, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ASSERT_EQ(fchmod(file, 0644), 0);
  close(file);
  const pid_t child = fork();
  if (child == 0) {
    const bool is_set = unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                        mount(path, where, nullptr, MS_BIND, nullptr) == 0;
    _exit(is_set ? body() : kNotHere);
  }
  int status = 0;
  waitpid(child, &status, 0);
  unlink(path);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotHere) GTEST_SKIP() << "no mount namespaces here";
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace tern::test
