// Files of other kinds have a reason of their own, which no failure of open() has.
#include "base/regular_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>

#include "own_folder.h"

namespace tern::base {
namespace {

constexpr const char* kNotRegular = "it is not a regular file";

class RegularFile : public ::testing::Test {
 protected:
  /// Why open_regular() refuses the file; "": it does not.
  static std::string refusal(const std::string& path, int flags) {
    struct stat about;
    const Descriptor file = open_regular(path.c_str(), flags, about);
    return file ? "" : reason_not_opened(errno);
  }
  const test::OwnFolder folder_{::testing::TempDir() + "tern-regular-file-test"};
};

TEST_F(RegularFile, regular_file_is_opened) {
  EXPECT_EQ(refusal(folder_.file("new"), O_WRONLY | O_CREAT), "");
  EXPECT_EQ(refusal(folder_.file("new"), O_RDONLY), "");
}

TEST_F(RegularFile, other_kinds_are_named) {
  ASSERT_EQ(mkfifo(folder_.file("fifo").c_str(), 0600), 0);
  EXPECT_EQ(refusal(folder_.file("fifo"), O_RDONLY), kNotRegular);
  EXPECT_EQ(refusal(folder_.file("fifo"), O_WRONLY), kNotRegular) << "no reader";
  EXPECT_EQ(refusal(folder_.path(), O_RDONLY), kNotRegular);
  EXPECT_EQ(refusal("/dev/null", O_WRONLY), kNotRegular);
}

TEST_F(RegularFile, failure_of_open_keeps_its_reason) {
  EXPECT_EQ(refusal(folder_.file("absent"), O_RDONLY), std::generic_category().message(ENOENT));
  // open() fails with EINVAL if the file system refuses the name, as FAT does with a colon.
  EXPECT_EQ(reason_not_opened(EINVAL), std::generic_category().message(EINVAL));
}

}  // namespace
}  // namespace tern::base
