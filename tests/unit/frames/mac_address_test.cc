#include "frames/mac_address.h"

#include <gtest/gtest.h>

#include <array>

using tern::frames::MacAddress;

TEST(MacAddress, address_survives_its_text) {
  const MacAddress mac({0x02, 0x00, 0x5e, 0xab, 0x09, 0xff});
  EXPECT_EQ(mac.to_text(), "02:00:5e:ab:09:ff");
  EXPECT_EQ(MacAddress::parse("02:00:5e:ab:09:ff"), mac);
  EXPECT_EQ(MacAddress::parse("02:00:5E:AB:09:FF"), mac);
  EXPECT_EQ(MacAddress::from_bytes(mac.bytes()), mac);
}

TEST(MacAddress, malformed_texts_give_no_address) {
  for (const char* text :
       {"", "02:00:5e:ab:09", "02:00:5e:ab:09:f", "02:00:5e:ab:09:fff", "02-00-5e-ab-09-ff", "02:00:5e:ab:09:fg",
        "02:00:5e:ab:-9:ff", "02:00:5e:ab: 9:ff", "02:00:5e:ab:09:ff:01", "0x:00:5e:ab:09:ff", "02:00:5e:ab:+9:ff"}) {
    EXPECT_EQ(MacAddress::parse(text), std::nullopt) << text;
  }
}

TEST(MacAddress, groups_are_multicast_and_broadcast) {
  EXPECT_TRUE(MacAddress::broadcast().is_group());
  EXPECT_TRUE(MacAddress::broadcast().is_broadcast());
  const MacAddress multicast({0x33, 0x33, 0, 0, 0, 1});
  EXPECT_TRUE(multicast.is_group());
  EXPECT_FALSE(multicast.is_broadcast());
  const MacAddress one({0x02, 0, 0, 0, 0, 1});
  EXPECT_FALSE(one.is_group());
  EXPECT_FALSE(one.is_zero());
  EXPECT_TRUE(MacAddress().is_zero());
}
