#include "session/client_terms.h"

#include <gtest/gtest.h>

#include "session/client_session.h"

namespace tern::session {
namespace {

TEST(SharedTerms, equal_terms_have_one_copy) {
  ClientPools pools;
  CommonTerms fast, slow, slowest;
  slow.rto_ns_min = 5'000'000;
  slowest.rto_ns_min = 6'000'000;
  const ClientShared& first = pools.terms.find_or_add(fast);
  const ClientShared& second = pools.terms.find_or_add(slow);
  const ClientShared& third = pools.terms.find_or_add(slowest);
  EXPECT_EQ(&pools.terms.find_or_add(fast), &first);
  EXPECT_EQ(&pools.terms.find_or_add(slow), &second);
  EXPECT_EQ(&pools.terms.find_or_add(slowest), &third);
  EXPECT_EQ(first.rto_ns_min, 1'000'000u);
  EXPECT_EQ(second.rto_ns_min, 5'000'000u);
  EXPECT_EQ(third.rto_ns_min, 6'000'000u);
  for (const ClientShared* copy : {&first, &second, &third}) EXPECT_EQ(copy->pools, &pools);
}

TEST(SharedTerms, session_without_a_controller_has_no_record_of_one) {
  ClientPools pools;
  ClientTerms terms;
  const ClientSession plain(terms, pools);
  EXPECT_TRUE(plain.has_memory());
  EXPECT_EQ(pools.controls.taken(), 0u);
  terms.controller = cc::FixedRate(1000);
  {
    const ClientSession paced(terms, pools);
    EXPECT_EQ(pools.controls.taken(), 1u);
    EXPECT_EQ(paced.rate_bytes_per_sec(), 1000u);
    EXPECT_EQ(plain.rate_bytes_per_sec(), cc::kUnlimited);
  }
  EXPECT_EQ(pools.controls.taken(), 0u);
}

}  // namespace
}  // namespace tern::session
