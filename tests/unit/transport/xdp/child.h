// Another process of a test: a fork that calls a function, reports the result, and waits until it is ended. Test code.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <utility>

#include "patience.h"

namespace tern::test {

class Child {
 public:
  /// Calls `act()` in the child, which has only the thread that made it. `act()` returns an object to be kept and the
  /// text for said(). The constructor waits for the text; if `waits` is false, said() does.
  template <class F>
  explicit Child(F&& act, bool waits = true) {
    int to_parent[2], to_child[2];
    if (pipe(to_parent) != 0 || pipe(to_child) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(to_parent[0]);
      close(to_child[1]);
      {
        const auto [kept, text] = act();
        (void)!write(to_parent[1], (text + '\n').c_str(), text.size() + 1);
        char byte;
        (void)!read(to_child[0], &byte, 1);  // until the parent writes or ends
      }
      _exit(0);
    }
    close(to_parent[1]);
    close(to_child[0]);
    end_ = to_child[1];
    text_ = to_parent[0];
    if (waits) said();
  }
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  const std::string& said() {
    if (text_ < 0) return said_;
    pollfd readable{text_, POLLIN, 0};
    char byte = 0;
    while (poll(&readable, 1, static_cast<int>(60'000 * patience())) == 1 && read(text_, &byte, 1) == 1 &&
           byte != '\n') {
      said_ += byte;
    }
    EXPECT_EQ(byte, '\n') << "the child says nothing";
    close(std::exchange(text_, -1));
    return said_;
  }
  /// Ends the child, which destroys the kept object.
  void end() {
    if (pid_ <= 0) return;
    said();
    (void)!write(end_, "", 1);  // children that started later have copies of this end
    close(end_);
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    EXPECT_EQ(status, 0);
  }
  void kill() {
    if (pid_ <= 0) return;
    said();
    ::kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, -1), nullptr, 0);
    close(end_);
  }

 private:
  pid_t pid_ = -1;
  int end_ = -1;
  int text_ = -1;
  std::string said_;
};

}  // namespace tern::test
