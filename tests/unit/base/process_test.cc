#include "base/process.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

namespace tern::base {
namespace {

/// Forks, and returns the exit status of the child, which calls `f`.
template <class F>
int in_child(F&& f) {
  const pid_t child = fork();
  if (child == 0) _exit(f());
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ProcessTest, process_number__stays_in_a_process_and_differs_in_its_children) {
  const uint32_t own = process_number();
  EXPECT_EQ(process_number(), own);
  EXPECT_EQ(in_child([own] {
              const uint32_t childs = process_number();
              if (childs == own) return 1;
              if (childs != process_number()) return 2;
              return in_child([own, childs] {
                const uint32_t grandchilds = process_number();
                return grandchilds == own || grandchilds == childs ? 3 : 0;
              });
            }),
            0);
  EXPECT_EQ(process_number(), own);
}

TEST(ProcessTest, process_number__is_one_for_all_threads) {
  EXPECT_EQ(in_child([] {
              std::array<uint32_t, 4> seen{};
              std::array<std::thread, 4> threads;
              for (size_t i = 0; i < threads.size(); i++) {
                threads[i] = std::thread([&seen, i] { seen[i] = process_number(); });
              }
              for (std::thread& thread : threads) thread.join();
              for (const uint32_t each : seen) {
                if (each != process_number()) return 1;
              }
              return 0;
            }),
            0);
}

}  // namespace
}  // namespace tern::base
