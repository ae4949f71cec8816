#include "base/check.h"

#include <gtest/gtest.h>

#include <memory>

namespace tern::base {
namespace {

enum class Colour { kRed, kGreen };

TEST(Check, condition__true_passes_and_is_evaluated_once) {
  int evaluations = 0;
  CHECK(++evaluations == 1);
  EXPECT_EQ(evaluations, 1);
  const auto owner = std::make_unique<int>(1);
  CHECK(owner);
  CHECK(owner.get());
  CHECK(Colour::kRed != Colour::kGreen && !(1 > 2));
  CHECK((std::is_same_v<int, int>));
}

TEST(Check, comparison__that_holds_passes_and_operands_are_evaluated_once) {
  int left = 0, right = 0;
  CHECK(++left, <=, ++right);
  EXPECT_EQ(left, 1);
  EXPECT_EQ(right, 1);
}

TEST(Check, both_forms__are_one_statement) {
  const bool is_checked = false;
  if (is_checked)
    CHECK(is_checked);
  else
    CHECK(1, <, 2);
}

TEST(CheckDeathTest, condition__false_aborts_with_place_and_expression) {
  const int* none = nullptr;
  EXPECT_DEATH(CHECK(none != nullptr), "check_test\\.cc:[0-9]+: CHECK failed: none != nullptr \\(false\\)");
  EXPECT_DEATH(CHECK(!true), "CHECK failed: !true");
}

TEST(CheckDeathTest, comparison__that_does_not_hold_aborts_with_both_values) {
  const uint8_t three = 3;
  EXPECT_DEATH(CHECK(three, ==, 4), "check_test\\.cc:[0-9]+: CHECK failed: three == 4 \\(3 against 4\\)");
}

}  // namespace
}  // namespace tern::base
