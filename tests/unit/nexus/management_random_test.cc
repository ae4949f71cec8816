// Machines with each other under random faults, from many seeds. After the faults end, all machines must agree.
#include "management_weather.h"

namespace tern::nexus::test {
namespace {

TEST(ManagementRandom, no_half_open_session_is_left_after_random_faults) {
#ifdef TERN_IS_SANITIZED
  constexpr uint64_t kSeeds = 60;
#else
  constexpr uint64_t kSeeds = 300;
#endif
  size_t established = 0, gone = 0;
  for (uint64_t seed = 1; seed <= kSeeds; seed++) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    BadWeather weather(seed);
    weather.run();
    established += weather.established();
    gone += weather.gone();
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(established, 3 * kSeeds);  // less would mean that the test has tested nothing
  EXPECT_GT(gone, kSeeds / 3);
}

}  // namespace
}  // namespace tern::nexus::test
