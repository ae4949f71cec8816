// Common parts of the tests of the mlx5 transport: endpoints over the software provider on a veth pair
// (tests/software_verbs, cable), kernel sockets at its other end, and frames.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "cable/far.h"
#include "shell.h"
#include "software_verbs/control.h"
#include "transport/mlx5/mlx5.h"
#include "unit/transport/ethernet_end.h"

namespace tern::transport::mlx5_test {

inline constexpr int kDevice = 2;  // mlx5_0, for the provider
inline constexpr const char *kNear4 = "10.77.0.1", *kFar4 = "10.77.0.2", *kNear6 = "fd77::1", *kFar6 = "fd77::2";

inline const software_verbs::Control& provider() { return *software_verbs::control(); }
inline software_verbs::Counters counters() {
  software_verbs::Counters read;
  provider().read_counters(&read);
  return read;
}

using test::connect;
using test::expect_bad_datagrams_are_dropped;
using test::Far;
using test::FarSocket;
using test::frame_to;
using test::header_of;
using test::kPatience;
using test::kTestKey;
using test::packet_of;
using test::RawSocket;
using test::run;
using test::run_until;
using test::says;

/// Options with one value that is not the default.
template <class Field, class Value>
Mlx5::Options with(Field Mlx5::Options::*field, const Value& value) {
  Mlx5::Options options;
  options.*field = value;
  return options;
}

/// An endpoint and the packets that it has received.
struct End : test::EthernetEnd<Mlx5Impl> {
  explicit End(const Mlx5::Options& options = {}, std::string_view host = "") : EthernetEnd(options, host) {}
};

class Mlx5Test : public ::testing::Test {
 protected:
  void SetUp() override {
    if (software_verbs::control() == nullptr) GTEST_SKIP() << "not over the software verbs provider";
    if (Far::path() == nullptr) GTEST_SKIP() << "not on a cable (tests/cable)";
    provider().reset();
  }
  /// Checks that no endpoint has left anything.
  void TearDown() override {
    if (software_verbs::control() == nullptr) return;
    provider().reset();
    const software_verbs::Counters left = counters();
    EXPECT_EQ(left.contexts, 0u);
    EXPECT_EQ(left.protection_domains, 0u);
    EXPECT_EQ(left.memory_regions, 0u);
    EXPECT_EQ(left.registered_bytes, 0u);
    EXPECT_EQ(left.completion_channels, 0u);
    EXPECT_EQ(left.completion_queues, 0u);
    EXPECT_EQ(left.queue_pairs, 0u);
    EXPECT_EQ(left.receive_queues, 0u);
    EXPECT_EQ(left.indirection_tables, 0u);
    EXPECT_EQ(left.steering_rules, 0u);
  }
};

}  // namespace tern::transport::mlx5_test
