// The owner of a descriptor closes it exactly once.
#include "base/descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <utility>

namespace tern::base {
namespace {

Descriptor open_one() { return Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }
bool is_open(int fd) { return fcntl(fd, F_GETFD) != -1; }

TEST(Descriptor, empty_descriptor_is_false) {
  EXPECT_FALSE(Descriptor());
  EXPECT_FALSE(Descriptor(-1));
  EXPECT_EQ(Descriptor().get(), -1);
}

TEST(Descriptor, closes_at_its_end) {
  int fd;
  {
    const Descriptor owner = open_one();
    ASSERT_TRUE(owner);
    fd = owner.get();
    EXPECT_TRUE(is_open(fd));
  }
  EXPECT_FALSE(is_open(fd));
}

TEST(Descriptor, reset_closes_at_once_and_only_once) {
  Descriptor owner = open_one();
  const int fd = owner.get();
  owner.reset();
  EXPECT_FALSE(owner);
  EXPECT_FALSE(is_open(fd));
  const Descriptor other = open_one();
  EXPECT_EQ(other.get(), fd);  // the system reuses the number
  owner.reset();
  EXPECT_TRUE(is_open(fd));
}

TEST(Descriptor, move_transfers_the_descriptor) {
  Descriptor from = open_one();
  const int fd = from.get();
  Descriptor to(std::move(from));
  EXPECT_EQ(to.get(), fd);
  Descriptor other = open_one();
  const int second = other.get();
  other = std::move(to);
  EXPECT_FALSE(is_open(second));
  EXPECT_EQ(other.get(), fd);
  Descriptor& same = other;
  other = std::move(same);
  EXPECT_TRUE(is_open(fd));
}

}  // namespace
}  // namespace tern::base
