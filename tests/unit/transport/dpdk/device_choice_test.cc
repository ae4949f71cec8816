// The device that an endpoint gets for the text of Dpdk::Options::device. Over net_null, whose devices EAL has already.
#include <rte_dev.h>

#include <memory>
#include <string>

#include "unit/transport/dpdk/port_fixture.h"

namespace tern::transport::dpdk_test {
namespace {

class DpdkDeviceChoice : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(start_eal({}).ok()); }
  void TearDown() override {
    for (const char* const name : {"net_null5", "net_null6"}) {
      uint16_t id = 0;
      if (rte_eth_dev_get_port_by_name(name, &id) != 0) continue;
      rte_eth_dev_info info{};
      EXPECT_EQ(rte_eth_dev_info_get(id, &info), 0);
      EXPECT_EQ(rte_dev_remove(info.device), 0);
    }
  }

  static DpdkChoice choice_of(const char* device) {
    DpdkChoice choice;
    choice.device = device;
    choice.address = "10.0.0.1/24";
    choice.receive_buffers = 512;
    return choice;
  }
  static std::shared_ptr<DpdkPort> open(const char* device) { return open_port(choice_of(device)); }
  static std::string why_not(const char* device) {
    const auto port = DpdkPort::open(choice_of(device));
    return port.ok() ? "ok" : std::string(port.status().message());
  }
};

TEST_F(DpdkDeviceChoice, only_device__is_one_port__with_and_without_its_name) {
  ASSERT_EQ(rte_dev_probe("net_null5"), 0);
  for (const auto& [first, second] : {std::pair("", "net_null5"), {"net_null5", ""}, {"", ""}}) {
    const auto one = open(first);
    ASSERT_NE(one, nullptr);
    EXPECT_EQ(open(second).get(), one.get()) << first << " " << second;
  }
  const auto one = open("");
  DpdkChoice other = choice_of("net_null5");
  other.queues = 1;
  const auto refused = DpdkPort::open(other);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("has net_null5 with another queues:"), std::string::npos)
      << refused.status().message();
}

TEST_F(DpdkDeviceChoice, empty_name__is_the_free_device_rather_than_the_open_one) {
  ASSERT_EQ(rte_dev_probe("net_null5"), 0);
  ASSERT_EQ(rte_dev_probe("net_null6"), 0);
  EXPECT_NE(why_not("").find("EAL has found 2 free ports"), std::string::npos) << why_not("");
  const auto five = open("net_null5"), free = open("");
  ASSERT_TRUE(five != nullptr && free != nullptr);
  EXPECT_EQ(free->facts().name, "net_null6");
  EXPECT_EQ(open(""), free);
  EXPECT_EQ(open("net_null6"), free);
}

TEST_F(DpdkDeviceChoice, empty_name__is_no_device__if_several_are_open) {
  ASSERT_EQ(rte_dev_probe("net_null5"), 0);
  ASSERT_EQ(rte_dev_probe("net_null6"), 0);
  const auto five = open("net_null5"), six = open("net_null6");
  EXPECT_NE(why_not("").find("EAL has found no free port"), std::string::npos) << why_not("");
}

TEST_F(DpdkDeviceChoice, arguments_of_a_device_that_eal_has__are_refused__unless_it_has_them) {
  ASSERT_EQ(rte_dev_probe("net_null5"), 0);
  ASSERT_EQ(rte_dev_probe("net_null6,size=128"), 0);
  EXPECT_EQ(why_not("net_null5;size=256"),
            "dpdk: EAL has the device net_null5 already, with other arguments, which stay: leave the arguments out of "
            "Dpdk::Options::device, or give them to EAL");
  EXPECT_NE(why_not("net_null6;size=256").find("EAL has the device net_null6 already"), std::string::npos);
  EXPECT_EQ(why_not("net_null5"), "ok");
  EXPECT_EQ(why_not("net_null6"), "ok");
  EXPECT_EQ(why_not("net_null6;size=128"), "ok");
}

}  // namespace
}  // namespace tern::transport::dpdk_test
