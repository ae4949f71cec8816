// The descriptors that a program keeps if the process starts it.
#include "transport/dpdk/device_descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <optional>

#include "base/descriptor.h"

namespace tern::transport {
namespace {

using base::Descriptor;

bool is_closed_on_exec(const Descriptor& descriptor) { return (fcntl(descriptor.get(), F_GETFD) & FD_CLOEXEC) != 0; }

TEST(DeviceDescriptors, descriptors_of_devices_are_closed_on_exec) {
  std::optional<DeviceDescriptors> life(std::in_place);
  const Descriptor device(open("/dev/zero", O_RDONLY)), memory(memfd_create("test", 0)), event(eventfd(0, 0));
  const Descriptor packets(socket(AF_PACKET, SOCK_RAW, 0));  // needs root
  life.reset();
  EXPECT_TRUE(is_closed_on_exec(device));
  EXPECT_TRUE(is_closed_on_exec(memory));
  EXPECT_TRUE(is_closed_on_exec(event));
  if (packets) {
    EXPECT_TRUE(is_closed_on_exec(packets));
  }
}

TEST(DeviceDescriptors, other_descriptors_stay_open_on_exec) {
  const Descriptor before(open("/dev/zero", O_RDONLY));
  std::optional<DeviceDescriptors> life(std::in_place);
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const Descriptor read_end(ends[0]), write_end(ends[1]), file(open("/proc/self/maps", O_RDONLY));
  const Descriptor stream(socket(AF_INET, SOCK_STREAM, 0)), local(socket(AF_UNIX, SOCK_DGRAM, 0));
  life.reset();
  EXPECT_FALSE(is_closed_on_exec(before));
  for (const Descriptor* one : {&read_end, &write_end, &file, &stream, &local}) EXPECT_FALSE(is_closed_on_exec(*one));
}

}  // namespace
}  // namespace tern::transport
