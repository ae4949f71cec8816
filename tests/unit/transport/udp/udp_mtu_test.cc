// The UDP transport over a path that is narrower than its datagrams: two network namespaces and a veth pair.
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "shell.h"
#include "udp_fixture.h"

namespace tern::transport {
namespace {

using namespace udp_test;  // NOLINT(google-build-using-namespace)

using test::run;

/// A network namespace with one end of a veth pair of the given MTU. The other end is in a second namespace.
class Namespaces {
 public:
  explicit Namespaces(int mtu) : name_("tern" + std::to_string(getpid())) {
    own_ = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    const std::string a = name_ + "a", b = name_ + "b", in_a = "ip -n " + a + " ", in_b = "ip -n " + b + " ";
    const std::string size = " mtu " + std::to_string(mtu) + " up";
    ready_ = own_ >= 0 && run("ip netns add " + a) && run("ip netns add " + b) &&
             run(in_a + "link add v0 type veth peer name v0 netns " + b) &&
             run(in_a + "addr add 10.77.0.1/24 dev v0") && run(in_b + "addr add 10.77.0.2/24 dev v0") &&
             run(in_a + "link set lo up") && run(in_b + "link set lo up") && run(in_a + "link set v0" + size) &&
             run(in_b + "link set v0" + size);
  }
  ~Namespaces() {
    leave();
    if (own_ >= 0) close(own_);
    run("ip netns del " + name_ + "a");
    run("ip netns del " + name_ + "b");
  }
  bool ready() const { return ready_; }
  bool enter(char which) {
    const int fd = open(("/run/netns/" + name_ + which).c_str(), O_RDONLY | O_CLOEXEC);
    const bool entered = fd >= 0 && setns(fd, CLONE_NEWNET) == 0;
    if (fd >= 0) close(fd);
    return entered;
  }
  void leave() {
    if (own_ >= 0 && setns(own_, CLONE_NEWNET) != 0) std::abort();  // later tests must not run in this namespace
  }

 private:
  std::string name_;
  int own_ = -1;
  bool ready_ = false;
};

TEST(UdpMtu, datagrams_above_the_path_mtu_are_lost_and_never_fragmented) {
  if (geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  Namespaces namespaces(1000);
  if (!namespaces.ready())
    GTEST_SKIP() << "network namespaces or veth pairs cannot be made here (ip netns, CAP_NET_ADMIN)";
  for (const bool offload : {true, false}) {
    Udp::Options options;
    options.bind = "0.0.0.0";
    options.offload = offload;
    const auto make_in = [&](char which) {
      EXPECT_TRUE(namespaces.enter(which));
      return make(options);
    };
    auto server = make_in('b'), client = make_in('a');
    ASSERT_TRUE(client && server);
    const PeerId peer = must_connect(*client, *server, "10.77.0.2");
    EXPECT_EQ(client->large_payload_bytes(peer), 0u);  // the route carries less than the session begins with
    const size_t full = client->payload_bytes_max();
    detail::Buffer* buffer = filled(0, full);
    constexpr uint32_t kFull = 3;
    for (uint32_t i = 0; i < kFull; ++i) ASSERT_TRUE(client->send(peer, numbered(i), buffer->data(), full, buffer));
    client->flush();
    EXPECT_EQ(client->counters().send_errors, kFull);
    EXPECT_EQ(client->counters().packets_sent, 0u);
    constexpr size_t kFits = 1000 - 20 - 8 - wire::kHeaderBytes;
    const std::pair<size_t, bool> sizes[] = {{kFits, true}, {kFits + 1, false}, {kFits, true}};
    uint32_t number = 0;
    for (const auto& [len, fits] : sizes) {
      const uint64_t before = client->counters().send_errors;
      ASSERT_TRUE(client->send(peer, numbered(number++), buffer->data(), len, buffer));
      client->flush();
      EXPECT_EQ(client->counters().send_errors - before, fits ? 0u : 1u) << len;
    }
    const auto received = receive_some(*server, 2);
    ASSERT_EQ(received.size(), 2u);
    expect_pattern(received[0], 0, kFits);
    EXPECT_EQ(received[1].header.number(), 2u);
    // A short packet that ends the train of full ones passes.
    const uint64_t before = client->counters().send_errors;
    for (uint32_t i = 0; i < kFull; ++i) ASSERT_TRUE(client->send(peer, numbered(i), buffer->data(), full, buffer));
    ASSERT_TRUE(client->send(peer, numbered(kFull), nullptr, 0, nullptr));
    client->flush();
    EXPECT_EQ(client->counters().send_errors - before, kFull);
    const auto last = receive_some(*server, 1);
    ASSERT_EQ(last.size(), 1u);
    EXPECT_EQ(last[0].header.number(), kFull);
    memory::Arena::release(buffer);
    namespaces.leave();
  }
}

TEST(UdpMtu, larger_packets_are_searched_for_from_the_mtu_of_the_route_on) {
  if (geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  Namespaces namespaces(9000);
  if (!namespaces.ready())
    GTEST_SKIP() << "network namespaces or veth pairs cannot be made here (ip netns, CAP_NET_ADMIN)";
  Udp::Options options;
  options.bind = "0.0.0.0";
  ASSERT_TRUE(namespaces.enter('b'));
  auto server = make(options);
  ASSERT_TRUE(namespaces.enter('a'));
  auto client = make(options);
  const PeerId peer = must_connect(*client, *server, "10.77.0.2");
  const size_t large = client->large_payload_bytes(peer);
  EXPECT_EQ(large, 9000u - 28 - wire::kHeaderBytes);
  detail::Buffer* buffer = filled(0, large + 1);
  for (const size_t len : {large, large + 1}) {
    ASSERT_TRUE(client->send(peer, numbered(0), buffer->data(), len, buffer));
    client->flush();  // a train fails as a whole
  }
  EXPECT_EQ(client->counters().send_errors, 1u);
  const auto received = receive_some(*server, 1);
  ASSERT_EQ(received.size(), 1u);
  expect_pattern(received[0], 0, large);
  memory::Arena::release(buffer);
  namespaces.leave();
}

}  // namespace
}  // namespace tern::transport
