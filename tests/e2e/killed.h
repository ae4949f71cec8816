// The end of a child process by SIGKILL. Test code.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <csignal>

namespace e2e {

/// Kills the child process and returns its wait status. The test fails if the process had ended before: by a CHECK or
/// by a report of a sanitizer, for example, which looks like its death to its peers.
inline int kill_running(pid_t pid) {
  int status = 0;
  if (pid <= 0) {
    ADD_FAILURE() << "it has ended";
    return status;
  }
  ::kill(pid, SIGKILL);
  waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "it had ended: wait status " << status;
  return status;
}

}  // namespace e2e
