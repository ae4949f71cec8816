// Machines against each other in bad weather, from many seeds; then the weather clears, and everybody must agree.
#include "management_weather.h"

namespace tern::nexus::test {
namespace {

TEST(ManagementRandom, after_bad_weather_nobody_holds_half_a_session) {
  size_t established = 0, gone = 0;
  for (uint64_t seed = 1; seed <= 300; seed++) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    BadWeather weather(seed);
    weather.run();
    established += weather.established();
    gone += weather.gone();
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(established, 1000u);  // otherwise nothing was tested
  EXPECT_GT(gone, 100u);
}

}  // namespace
}  // namespace tern::nexus::test
