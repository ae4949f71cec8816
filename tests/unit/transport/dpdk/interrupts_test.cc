// Lanes that sleep at one queue of a device with interrupts: virtio, whose other end is the vhost device of a child,
// because one process cannot open both ends.
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <string>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/wait.h"
#include "own_folder.h"
#include "unit/transport/dpdk/port_fixture.h"

namespace tern::transport::dpdk_test {
namespace {

DpdkChoice choice_of(const std::string& device, const char* address) {
  DpdkChoice choice;
  choice.device = device;
  choice.address = address;
  choice.receive_buffers = 512;
  choice.eal = "--no-huge -m 256 --no-shconf --no-pci --no-telemetry";
  return choice;
}

/// The child: tells that its device exists. Then sends a frame to each address that it is told, and tells that it did.
void send_frames(int parent, const std::string& path) {
  const auto port = open_port(choice_of("net_vhost0;iface=" + path, "10.0.0.1/24"));
  if (port == nullptr || write(parent, "", 1) != 1) return;
  TestLane lane(*port);
  base::SocketAddress to;
  while (read(parent, &to, sizeof(to)) == sizeof(to)) {
    wait_for_link(*port);
    send(*lane.lane, frame_to(to, 1));
    if (write(parent, "", 1) != 1) return;
  }
}

TEST(DpdkInterrupts, frame_whose_interrupt_an_endpoint_in_a_handler_has_taken__wakes_its_lane) {
  const test::OwnFolder folder(::testing::TempDir() + "tern-interrupts");
  const std::string path = folder.file("vhost");
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  base::Descriptor ours(ends[0]), theirs(ends[1]);
  const pid_t child = fork();
  if (child == 0) {
    ours.reset();
    send_frames(theirs.get(), path);
    _exit(0);
  }
  theirs.reset();
  char done = 0;
  ASSERT_EQ(read(ours.get(), &done, 1), 1);
  const auto port = open_port(choice_of("net_virtio_user0;path=" + path, "10.0.0.2/24"));
  ASSERT_NE(port, nullptr);
  ASSERT_TRUE(port->facts().has_interrupts);
  EXPECT_EQ(port->facts().receive_descriptors, 256);  // of the 512 that are wished
  wait_for_link(*port);
  {
    TestLane busy(*port), asleep(*port);
    base::WaitSet busy_waits, waits;
    ASSERT_TRUE(busy_waits.open() && waits.open());
    ASSERT_TRUE(busy->add_to(busy_waits, 0).ok() && asleep->add_to(waits, 0).ok());
    ASSERT_TRUE(busy->arm());
    ASSERT_TRUE(asleep->arm());
    ASSERT_EQ(write(ours.get(), &asleep.own, sizeof(asleep.own)), static_cast<ssize_t>(sizeof(asleep.own)));
    ASSERT_EQ(read(ours.get(), &done, 1), 1);
    epoll_event event{};
    ASSERT_EQ(busy_waits.wait({&event, 1}, UINT64_MAX), 1u);
    busy->disarm();  // takes the interrupt, and then does not poll
    // The port's thread looks every 8 ms. The hosts' next frames, which would end the sleep as well, come after
    // seconds.
    const auto bound = std::chrono::milliseconds(500) * patience();
    const uint64_t end_ns = base::monotonic_ns() + std::chrono::nanoseconds(bound).count();
    ASSERT_EQ(waits.wait({&event, 1}, end_ns), 1u);
    asleep->disarm();
    EXPECT_EQ(receive(asleep), std::vector{1u});
  }
  ours.reset();
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

}  // namespace
}  // namespace tern::transport::dpdk_test
