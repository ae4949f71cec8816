// Common parts of the tests of the verbs transport: endpoints over the software verbs provider, each with an arena.
#pragma once

#include <gtest/gtest.h>

#include <poll.h>

#include <string_view>
#include <vector>

#include "software_verbs/provider_fixture.h"
#include "transport/verbs/verbs.h"
#include "unit/transport/end.h"

namespace tern::transport::verbs_test {

using software_verbs::counters;
using software_verbs::provider;
using test::kPatience;
using test::kTestKey;
using test::run_until;

/// An endpoint and the packets that it has received.
struct End : test::End<VerbsImpl> {
  explicit End(const Verbs::Options& options = {}, std::string_view host = "") : test::End<VerbsImpl>(options, host) {}
};

inline bool is_readable(int descriptor) {
  pollfd polled{descriptor, POLLIN, 0};
  return poll(&polled, 1, 0) == 1;
}

/// Connects a new peer of `from` and waits until it is ready. The wake() for its address handle has happened.
inline PeerId connect(End& from, const End& to) {
  const PeerId peer = test::connect(from, to->address());
  EXPECT_TRUE(run_until({&from}, [&] { return is_readable(from->descriptor()); }));
  from->end_wait();
  return peer;
}

using VerbsTest = software_verbs::ProviderTest;

}  // namespace tern::transport::verbs_test
