// The common fixture of tests over the software verbs provider: each test begins with a provider without faults, and
// leaves no objects of the provider behind. Over another libibverbs these tests are skipped.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

#include "software_verbs/control.h"

namespace software_verbs {

/// Must be called only if control() is not null.
inline const Control& provider() { return *control(); }
inline Counters counters() {
  Counters counters{};
  provider().read_counters(&counters);
  return counters;
}

class ProviderTest : public testing::Test {
 protected:
  /// If the test is skipped, `IsSkipped()` is true afterwards; a derived SetUp() must then return.
  void SetUp() override {
    if (control() == nullptr) GTEST_SKIP() << "not over the software verbs provider";
    provider().reset();
    unsetenv("SOFTWARE_VERBS");
  }
  /// Must be called after a derived fixture has destroyed its own objects.
  void TearDown() override {
    unsetenv("SOFTWARE_VERBS");
    if (control() == nullptr) return;
    provider().reset();
    const Counters left = counters();
    EXPECT_EQ(left.contexts, 0u);
    EXPECT_EQ(left.protection_domains, 0u);
    EXPECT_EQ(left.memory_regions, 0u);
    EXPECT_EQ(left.registered_bytes, 0u);
    EXPECT_EQ(left.address_handles, 0u);
    EXPECT_EQ(left.completion_channels, 0u);
    EXPECT_EQ(left.completion_queues, 0u);
    EXPECT_EQ(left.queue_pairs, 0u);
  }

  static Counters counters() { return software_verbs::counters(); }
  /// Sets SOFTWARE_VERBS for the next listing of devices.
  static void set(const char* settings) { setenv("SOFTWARE_VERBS", settings, 1); }
};

}  // namespace software_verbs
