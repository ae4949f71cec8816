#include "base/stable_vector.h"

#include <vector>

#include <gtest/gtest.h>

namespace tern::base {
namespace {

TEST(StableVector, elements_begin_with_their_initial_value_and_never_move) {
  StableVector<int, 4> vector;
  std::vector<int*> places;
  for (int i = 0; i < 100; i++) {
    vector.emplace_back();
    EXPECT_EQ(vector[static_cast<size_t>(i)], 0);
    vector[static_cast<size_t>(i)] = i;
    places.push_back(&vector[static_cast<size_t>(i)]);
  }
  EXPECT_EQ(vector.size(), 100u);
  for (size_t i = 0; i < 100; i++) EXPECT_EQ(&vector[i], places[i]);
  int expected = 0;
  vector.for_each([&expected](int value) { EXPECT_EQ(value, expected++); });
  EXPECT_EQ(expected, 100);
}

}  // namespace
}  // namespace tern::base
