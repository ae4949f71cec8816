// The spare objects behind the handles of the C interface.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "c/handles.h"

namespace tern::c {
namespace {

constexpr size_t kMany = 200;  ///< more than are kept spare

TEST(ObjectsTest, make__takes_the_spare_object_that_was_ended_first) {
  static constinit Objects<tern_nexus> objects;  // their memory is never returned
  std::vector<tern_nexus*> ended;
  for (size_t i = 0; i < kMany; i++) ended.push_back(objects.make());
  for (tern_nexus* object : ended) objects.end(object);
  for (size_t i = 0; i < 2; i++) {
    tern_nexus* const object = objects.make();
    EXPECT_EQ(object, ended[i]);
    objects.end(object);
  }
}

/// Another thread may hold the list's lock at the fork, so that the child must not touch the list.
TEST(ObjectsTest, make__a_forked_child_takes_no_spare_object_and_leaves_none) {
  static constinit Objects<tern_nexus> objects;  // their memory is never returned
  std::vector<tern_nexus*> ended;
  for (size_t i = 0; i < kMany; i++) ended.push_back(objects.make());
  for (tern_nexus* object : ended) objects.end(object);
  const pid_t child = fork();
  if (child == 0) {
    tern_nexus* const own = objects.make();
    if (own == nullptr || std::find(ended.begin(), ended.end(), own) != ended.end()) _exit(1);
    for (size_t i = 0; i < kMany; i++) objects.end(own);  // a list would have a circle
    const tern_nexus* const next = objects.make();
    _exit(next == own || std::find(ended.begin(), ended.end(), next) != ended.end() ? 2 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  tern_nexus* const object = objects.make();
  EXPECT_EQ(object, ended[0]);
  objects.end(object);
}

}  // namespace
}  // namespace tern::c
