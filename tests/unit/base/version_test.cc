#include <tern/version.h>

#include <gtest/gtest.h>

#include <string>

namespace {

// TERN_CMAKE_VERSION is the version in CMake's project().
TEST(Version, equals_the_version_of_the_build) {
  const auto dotted = std::to_string(TERN_VERSION_MAJOR) + "." + std::to_string(TERN_VERSION_MINOR) + "." +
                      std::to_string(TERN_VERSION_PATCH);
  EXPECT_EQ(dotted, TERN_CMAKE_VERSION);
  EXPECT_STREQ(TERN_VERSION_TEXT, TERN_CMAKE_VERSION);
}

TEST(Version, later_versions_compare_greater) {
#if TERN_VERSION < TERN_MAKE_VERSION(0, 1, 0) || TERN_VERSION >= TERN_MAKE_VERSION(100, 0, 0)
  FAIL() << TERN_VERSION;
#endif
  EXPECT_LT(TERN_MAKE_VERSION(0, 1, 99), TERN_MAKE_VERSION(0, 2, 0));
  EXPECT_LT(TERN_MAKE_VERSION(0, 99, 99), TERN_MAKE_VERSION(1, 0, 0));
}

}  // namespace
