// The temporary folders of tests (own_folder.h).

#include "own_folder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace tern::test {
namespace {

size_t count_of(const std::string& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

TEST(OwnFolder, folder_of_a_killed_process_is_removed_by_the_next_test) {
  const OwnFolder all(testing::TempDir() + "own-folder-test");
  const std::string prefix = all.file("test");
  const OwnFolder living(prefix);
  const pid_t child = fork();
  if (child == 0) {
    const OwnFolder killed(prefix);
    std::ofstream(killed.file("file")) << "text";
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(count_of(all.path()), 2u) << "the child left a folder";
  const OwnFolder next(prefix);
  EXPECT_EQ(count_of(all.path()), 2u);
  EXPECT_TRUE(std::filesystem::is_directory(living.path()));
  EXPECT_TRUE(std::filesystem::is_directory(next.path()));
}

TEST(OwnFolder, other_names_stay) {
  const OwnFolder all(testing::TempDir() + "own-folder-test");
  for (const char* name : {"test-4000000", "test-4000000.sock", "test-x4000000-a", "other-4000000-a"}) {
    std::ofstream(all.file(name)) << "text";
  }
  const OwnFolder next(all.file("test"));
  EXPECT_EQ(count_of(all.path()), 5u);
}

TEST(OwnFolder, child_leaves_its_parents_folder) {
  const OwnFolder folder(testing::TempDir() + "own-folder-test");
  const pid_t child = fork();
  if (child == 0) {
    folder.~OwnFolder();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(std::filesystem::is_directory(folder.path()));
}

}  // namespace
}  // namespace tern::test
