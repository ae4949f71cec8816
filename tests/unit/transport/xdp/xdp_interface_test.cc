// Endpoints over AF_XDP at an interface whose queues or name change, or that has fewer send queues than receive queues.
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.h"
#include "transport/xdp/port.h"
#include "unit/transport/xdp/xdp_fixture.h"

namespace tern::transport::xdp_test {
namespace {

using testing::AssertionResult;

constexpr const char* kFour = "numrxqueues 4 numtxqueues 4";

/// Changes the queues that an interface of this namespace uses, as `ethtool -L` does.
AssertionResult set_queues(const char* interface, uint32_t receive, uint32_t send) {
  const base::Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, interface);
  ethtool_channels channels{};
  channels.cmd = ETHTOOL_SCHANNELS;
  channels.rx_count = receive;
  channels.tx_count = send;
  request.ifr_data = reinterpret_cast<char*>(&channels);
  if (ioctl(socket.get(), SIOCETHTOOL, &request) == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << std::strerror(errno);
}

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
  static std::string why_one_more(uint32_t queues) {
    std::vector<std::unique_ptr<End>> ends;
    for (uint32_t i = 0; i < xdp::Queue::kPlaces; ++i) {
      ends.push_back(std::make_unique<End>(near(queues)));
      EXPECT_TRUE(ends.back()->status.ok()) << ends.back()->status.message();
    }
    return std::string(End(near(queues)).status.message());
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

/// The kernel reports no error for such a queue.
TEST_F(XdpInterface, queue_without_a_send_queue__is_down_until_it_has_one) {
  make_cable(kFour, kFour);
  ASSERT_TRUE(set_queues("wide0", 4, 1));
  bool is_taken = false;
  auto queue = xdp::Queue::open(
      {.interface = "wide0", .interface_index = if_nametoindex("wide0"), .number = 3, .may_zero_copy = false},
      &is_taken);
  ASSERT_TRUE(queue.ok()) << queue.status().message();
  constexpr uint32_t kFrame = 7, kBytes = 60;
  std::fill_n((*queue)->send_frame(kFrame), kBytes, std::byte{0xff});
  const xdp::Queue::Send frame{kFrame, kBytes};
  (*queue)->submit({&frame, 1});
  uint64_t calls = 0;
  EXPECT_EQ((*queue)->kick(calls), xdp::Queue::Kicked::kDown);
  (*queue)->reap();
  EXPECT_FALSE((*queue)->is_done(kFrame));
  ASSERT_TRUE(set_queues("wide0", 4, 4));
  EXPECT_EQ((*queue)->kick(calls), xdp::Queue::Kicked::kAll);
  EXPECT_TRUE(run_until({}, [&] {
    (*queue)->reap();
    return (*queue)->is_done(kFrame);
  }));
}

TEST_F(XdpInterface, queue_of_a_name_that_another_interface_has__is_refused) {
  make_cable(kFour, kFour);
  bool is_taken = false;
  const auto queue = xdp::Queue::open({.interface = "wide0", .interface_index = if_nametoindex("tern0")}, &is_taken);
  test::expect_refusal(queue.status(), "xdp", Code::kUnavailable, "the network interface wide0 is gone");
}

TEST_F(XdpInterface, queues_added_later__are_used) {
  make_cable(kFour, "numrxqueues 4 numtxqueues 1");
  ASSERT_TRUE(set_queues("wide0", 1, 1));
  End first(near());
  ASSERT_TRUE(first.status.ok()) << first.status.message();
  ASSERT_TRUE(set_queues("wide0", 4, 4));
  End second(near()), third(near());
  ASSERT_TRUE(third.status.ok()) << third.status.message();
  EXPECT_EQ(first->port().queue_count(), 3u);
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

TEST_F(XdpInterface, one_endpoint_too_many__is_told_what_there_is_to_change) {
  make_cable("numrxqueues 2 numtxqueues 2", kFour);
  EXPECT_NE(why_one_more(1).find("raise Xdp::Options::queues"), std::string::npos) << why_one_more(1);
  ASSERT_TRUE(run("ip link del wide0"));
  make_cable("numrxqueues 1 numtxqueues 1", "numrxqueues 1 numtxqueues 1");
  for (const uint32_t queues : {0u, 1u}) {
    const std::string why = why_one_more(queues);
    EXPECT_NE(why.find("16 endpoints share each queue of wide0"), std::string::npos) << why;
    EXPECT_NE(why.find("(ethtool -L wide0)"), std::string::npos) << why;
    EXPECT_EQ(why.find("raise"), std::string::npos) << why;
  }
}

}  // namespace
}  // namespace tern::transport::xdp_test
