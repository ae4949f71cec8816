// Network namespaces that a test makes and removes. Needs root and iproute2.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "shell.h"

namespace e2e {

using tern::test::run;

/// A namespace of this process. The namespaces of killed tests are removed first.
class Namespace {
 public:
  /// A text about what this machine lacks for namespaces, or an empty one.
  static std::string missing() {
    if (geteuid() != 0) return "network namespaces need root";
    if (!run("ip -V")) return "no ip command: install iproute2";
    return {};
  }
  explicit Namespace(const std::string& suffix) : name_(kPrefix + std::to_string(getpid()) + "-" + suffix) {
    remove_stale();
    is_made_ = run("ip netns add " + name_) && in("ip link set lo up");
  }
  ~Namespace() { run("ip netns del " + name_); }
  Namespace(const Namespace&) = delete;
  Namespace& operator=(const Namespace&) = delete;

  bool is_made() const { return is_made_; }
  const std::string& name() const { return name_; }
  /// Runs a command inside. True: it succeeded.
  bool in(const std::string& command) const { return run("ip netns exec " + name_ + " " + command); }

 private:
  static constexpr const char* kPrefix = "tern-e2e-";
  static void remove_stale() {
    const std::string prefix = kPrefix;
    if (!std::filesystem::exists("/run/netns")) return;
    for (const auto& entry : std::filesystem::directory_iterator("/run/netns")) {
      const std::string file = entry.path().filename();
      if (!file.starts_with(prefix)) continue;
      const pid_t pid = std::atoi(file.c_str() + prefix.size());
      if (pid > 0 && pid != getpid() && ::kill(pid, 0) != 0) run("ip netns del " + file);
    }
  }

  const std::string name_;
  bool is_made_ = false;
};

/// Moves this thread, and the threads that it starts, into a namespace.
class Inside {
 public:
  explicit Inside(const std::string& name) : before_(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)) {
    const int inside = open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(setns(inside, CLONE_NEWNET), 0);
    close(inside);
  }
  ~Inside() {
    EXPECT_EQ(setns(before_, CLONE_NEWNET), 0);
    close(before_);
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  const int before_;
};

}  // namespace e2e
