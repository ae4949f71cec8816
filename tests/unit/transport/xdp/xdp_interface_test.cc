// Endpoints over AF_XDP at an interface whose name changes, or that has fewer send queues than receive queues.
#include <net/if.h>

#include <string>

#include "transport/xdp/port.h"
#include "unit/transport/xdp/xdp_fixture.h"

namespace tern::transport::xdp_test {
namespace {

constexpr const char* kFour = "numrxqueues 4 numtxqueues 4";

class XdpInterface : public WideTest {
 protected:
  void TearDown() override {
    WideTest::TearDown();
    (void)run("ip link del new0");
  }
  static void rename() {
    ASSERT_TRUE(run("ip link set wide0 down && ip link set wide0 name new0"));
    ASSERT_TRUE(run("ip addr replace 10.80.0.1/24 dev new0 && ip link set new0 up"));
    ASSERT_TRUE(run_until({}, [] { return run("ip link show new0 | grep -q LOWER_UP"); }));
  }
  static Xdp::Options renamed() {
    Xdp::Options options = near();
    options.interface = "new0";
    return options;
  }
};

TEST_F(XdpInterface, receive_queue_without_a_send_queue__is_no_endpoints) {
  make_cable("numrxqueues 4 numtxqueues 1", kFour);
  End peer(far()), first(near()), second(near());
  ASSERT_TRUE(second.status.ok()) << second.status.message();
  EXPECT_EQ(second->port().queue_count(), 1u);
  expect_passes(first, peer, {&first, &peer});
  expect_passes(second, peer, {&second, &peer});
}

TEST_F(XdpInterface, queue_of_a_name_that_another_interface_has__is_refused) {
  make_cable(kFour, kFour);
  bool is_taken = false;
  const auto queue = xdp::Queue::open({.interface = "wide0", .interface_index = if_nametoindex("tern0")}, &is_taken);
  test::expect_refusal(queue.status(), "xdp", Code::kUnavailable, "the network interface wide0 is gone");
}

TEST_F(XdpInterface, renamed_interface__takes_further_endpoints) {
  make_cable(kFour, kFour);
  End first(near()), peer(far());
  ASSERT_TRUE(first.status.ok()) << first.status.message();
  rename();
  End second(renamed());
  ASSERT_TRUE(second.status.ok()) << second.status.message();
  EXPECT_EQ(&second->port(), &first->port());
  expect_passes(second, peer, {&first, &second, &peer});
}

TEST_F(XdpInterface, renamed_interface__is_not_mistaken_for_another_with_its_old_name) {
  make_cable(kFour, kFour);
  End first(near()), peer(far());
  ASSERT_TRUE(first.status.ok()) << first.status.message();
  rename();
  ASSERT_TRUE(run("ip link add wide0 " + std::string(kFour) + " type veth peer name other1"));
  ASSERT_TRUE(run("ip link set wide0 up && ip link set other1 up"));
  ASSERT_TRUE(run_until({}, [] { return run("ip link show wide0 | grep -q LOWER_UP"); }));
  End second(renamed());
  ASSERT_TRUE(second.status.ok()) << second.status.message();
  expect_passes(second, peer, {&first, &second, &peer});
}

}  // namespace
}  // namespace tern::transport::xdp_test
