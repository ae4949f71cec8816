// The choice of port, GID and P_Key, over the software verbs provider. Its device softN has the GIDs 0 and 1
// (link-local) and 2 and 3 (127.0.0.N+1). Even GIDs are of RoCE v1, and odd ones of v2.
#include "rdma/port.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "software_verbs/provider_fixture.h"

namespace tern::rdma {
namespace {

using software_verbs::provider;

class OpenPort : public software_verbs::ProviderTest {
 protected:
  static PortChoice on_device(const char* name) {
    PortChoice choice;
    choice.device = name;
    return choice;
  }
  static PortChoice at_host(const char* host) {
    PortChoice choice;
    choice.host = host;
    return choice;
  }
  static PortChoice with_port(uint32_t number) {
    PortChoice choice;
    choice.port = number;
    return choice;
  }
  static PortChoice with_gid(uint32_t index) {
    PortChoice choice;
    choice.gid_index = index;
    return choice;
  }
  static PortChoice with_partition(uint32_t index) {
    PortChoice choice;
    choice.partition_index = index;
    return choice;
  }
  static Port found(const PortChoice& choice) {
    auto opened = open_port("verbs", choice);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return opened.ok() ? opened->port : Port{};
  }
  static std::string device_of(const PortChoice& choice) {
    auto opened = open_port("verbs", choice);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return opened.ok() ? ibv_get_device_name(opened->context->device) : "";
  }
  /// Returns the text of a refusal. Each text begins with the transport's name.
  static std::string text_of(const PortChoice& choice) {
    auto opened = open_port("verbs", choice);
    EXPECT_FALSE(opened.ok());
    if (opened.ok()) return "";
    EXPECT_EQ(opened.status().code(), Code::kUnavailable);
    const std::string text(opened.status().message());
    EXPECT_EQ(text.find("verbs: "), 0u) << text;
    return text;
  }
  static void expect_parts(const std::string& text, std::initializer_list<const char*> parts) {
    for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
};

TEST_F(OpenPort, roce__takes_the_routable_gid_of_version_2) {
  const Port port = found({});
  EXPECT_EQ(port.fabric, Fabric::kRoce2);
  EXPECT_EQ(port.gid_index, 3u);
  EXPECT_EQ(port.gid[10], std::byte{0xff});
  EXPECT_EQ(port.gid[15], std::byte{1});
  EXPECT_EQ(port.number, 1u);
  EXPECT_EQ(port.partition, 0xffff);
  EXPECT_EQ(port.mtu_bytes, 4096u);
  EXPECT_EQ(port.bytes_per_sec, 100'000'000'000u / 8);
  EXPECT_EQ(device_of({}), "soft0");
}

TEST_F(OpenPort, listen_host__chooses_the_device_that_has_it) {
  EXPECT_EQ(device_of(at_host("127.0.0.1")), "soft0");
  EXPECT_EQ(device_of(at_host("127.0.0.2")), "soft1");
  EXPECT_EQ(found(at_host("127.0.0.2")).gid_index, 3u);
  for (const char* other : {"0.0.0.0", "::", "10.1.2.3", "2001:db8::1", "no address", ""}) {
    EXPECT_EQ(device_of(at_host(other)), "soft0") << other;
  }
  EXPECT_EQ(device_of(at_host("::ffff:127.0.0.2")), "soft1");
  PortChoice named = at_host("127.0.0.2");
  named.device = "soft0";
  EXPECT_EQ(device_of(named), "soft0") << "what is named is taken";
}

TEST_F(OpenPort, gid_index__chooses_the_version) {
  for (uint32_t index = 0; index < 4; index++) {
    const Port port = found(with_gid(index));
    EXPECT_EQ(port.gid_index, index);
    EXPECT_EQ(port.fabric, index % 2 == 0 ? Fabric::kRoce1 : Fabric::kRoce2);
  }
  for (const uint32_t index : {4u, 7u, 8u, 65534u}) {
    expect_parts(text_of(with_gid(index)), {"port 1 of soft0", "no GID", "ibv_devinfo -v"});
    expect_parts(text_of(with_gid(index)), {("no GID " + std::to_string(index)).c_str()});
  }
}

TEST_F(OpenPort, infiniband__has_a_lid_and_partitions) {
  set("link=infiniband");
  const Port port = found({});
  EXPECT_EQ(port.fabric, Fabric::kInfiniband);
  EXPECT_NE(port.lid, 0u);
  EXPECT_EQ(port.partition, 0xffff);
  EXPECT_FALSE(port.needs_global_route);
  EXPECT_EQ(found(with_partition(1)).partition, 0x8001);
  EXPECT_EQ(found(with_partition(2)).partition, 0x0002);
  EXPECT_EQ(found(with_partition(2)).partition_index, 2u);
  expect_parts(text_of(with_partition(3)), {"port 1 of soft0", "no P_Key at index 3", "pkeys"});
  EXPECT_NE(found(on_device("soft1")).lid, port.lid);
}

TEST_F(OpenPort, partitions__full_membership_comes_first__and_empty_entries_are_none) {
  set("link=infiniband,pkeys=0:0007:8000:8003:ffff");
  const Port port = found({});
  EXPECT_EQ(port.partition, 0x8003);
  EXPECT_EQ(port.partition_index, 3u);
  expect_parts(text_of(with_partition(0)), {"no P_Key at index 0"});
  set("link=infiniband,pkeys=0:0007");
  EXPECT_EQ(found({}).partition, 0x0007);
  set("link=infiniband,pkeys=0");
  expect_parts(text_of({}), {"no P_Key"});
}

TEST_F(OpenPort, mtu__is_the_active_one) {
  for (const uint32_t mtu : {256u, 512u, 1024u, 2048u, 4096u}) {
    set(("mtu=" + std::to_string(mtu)).c_str());
    EXPECT_EQ(found({}).mtu_bytes, mtu);
  }
}

TEST_F(OpenPort, no_device__is_an_error) {
  for (const char* settings : {"devices=0", "devices=-1"}) {
    set(settings);
    expect_parts(text_of({}), {"no RDMA device", "rdma link add"});
    expect_parts(text_of(on_device("soft0")), {"no RDMA device"});
  }
}

TEST_F(OpenPort, other_names__are_told_by_name) {
  expect_parts(text_of(on_device("mlx5_0")), {"no RDMA device mlx5_0", "ibv_devices"});
  expect_parts(text_of(with_port(2)), {"soft", "no port 2", "1 to 1"});
}

TEST_F(OpenPort, port_that_is_not_active__says_its_state) {
  set("port=down");
  expect_parts(text_of({}), {"port 1 of soft0 is not active (", "cable"});
  set("port=init");
  expect_parts(text_of({}), {"is not active (", "subnet manager"});
  set("soft0.port=down");
  EXPECT_EQ(device_of({}), "soft1") << "the first active one";
  expect_parts(text_of(on_device("soft0")), {"port 1 of soft0 is not active"});
}

TEST_F(OpenPort, no_permission__names_the_files) {
  set("open_error=13");
  expect_parts(text_of({}), {"soft0", "Permission denied", "/dev/infiniband/uverbs"});
  set("soft0.open_error=13");
  EXPECT_EQ(device_of({}), "soft1");
}

TEST_F(OpenPort, every_verb_that_fails__is_an_error_with_a_reason) {
  for (const char* verb : {"ibv_get_device_list", "ibv_open_device", "ibv_query_device", "ibv_query_port",
                           "ibv_query_gid", "ibv_query_pkey", "ibv_alloc_pd"}) {
    SCOPED_TRACE(verb);
    ASSERT_TRUE(provider().fail_calls(verb, 0, 1000, EIO));
    const std::string text = text_of(on_device("soft0"));
    if (std::string_view(verb) != "ibv_get_device_list" && std::string_view(verb) != "ibv_alloc_pd") {
      expect_parts(text, {"soft0"});
    }
    EXPECT_GT(text.size(), 40u) << text;
    provider().reset();
  }
}

TEST_F(OpenPort, other_address) {
  set("link=infiniband");
  auto opened = open_port("verbs", {});
  ASSERT_TRUE(opened.ok());
  EXPECT_FALSE(has_other_address(opened->context.get(), opened->port));
  opened->port.partition ^= 1;
  EXPECT_TRUE(has_other_address(opened->context.get(), opened->port)) << "the table has another P_Key there";
  opened->port.partition ^= 1;
  provider().raise_event(-1, IBV_EVENT_LID_CHANGE);
  EXPECT_TRUE(has_other_address(opened->context.get(), opened->port));
  provider().raise_event(-1, IBV_EVENT_PORT_ERR);
  EXPECT_FALSE(has_other_address(opened->context.get(), opened->port)) << "a port that is down has none";
  opened->port.gid[0] = std::byte{0x20};
  provider().raise_event(-1, IBV_EVENT_PORT_ACTIVE);
  provider().reset();
  EXPECT_TRUE(has_other_address(opened->context.get(), opened->port));
}

}  // namespace
}  // namespace tern::rdma
