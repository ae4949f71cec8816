#include "transport/xdp/owner.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "unit/transport/xdp/child.h"
#include "unit/transport/xdp/network.h"

using namespace tern::transport::xdp;
using tern::test::Child;

namespace {

class XdpOwner : public tern::test::XdpNetworkTest {};

TEST_F(XdpOwner, is_alive_until_it_is_destroyed) {
  auto own = Owner::create();
  auto other = Owner::create();
  ASSERT_TRUE(own.ok() && other.ok());
  const uint64_t number = other->number();
  EXPECT_NE(number, own->number());
  for (int i = 0; i < 3; i++) {
    EXPECT_TRUE(own->is_alive(number));
    EXPECT_TRUE(other->is_alive(own->number()));
    EXPECT_TRUE(own->is_alive(own->number()));
    EXPECT_FALSE(own->is_alive(number + 1));
    EXPECT_FALSE(own->is_alive(0));
  }
  { const Owner destroyed = std::move(*other); }
  EXPECT_FALSE(own->is_alive(number));
}

TEST_F(XdpOwner, of_a_killed_process_is_dead) {
  auto own = Owner::create();
  ASSERT_TRUE(own.ok());
  Child child([] {
    auto owner = std::make_unique<tern::Result<Owner>>(Owner::create());
    const std::string number = std::to_string((*owner)->number());
    return std::pair(std::move(owner), number);
  });
  const uint64_t number = std::stoull(child.said());
  EXPECT_TRUE(own->is_alive(number));
  child.kill();
  EXPECT_FALSE(own->is_alive(number));
}

/// Interfaces of two namespaces may have the same index.
TEST_F(XdpOwner, belongs_to_its_network_namespace) {
  auto own = Owner::create();
  const tern::test::XdpNetwork elsewhere;
  auto other = Owner::create();
  ASSERT_TRUE(own.ok() && other.ok());
  EXPECT_FALSE(own->is_alive(other->number()));
  EXPECT_FALSE(other->is_alive(own->number()));
}

TEST_F(XdpOwner, turn_waits_for_another_of_the_same_interface_but_not_for_ever) {
  std::optional<Turn> held(std::in_place, 10);
  const Turn of_another_interface(11);
  // The child waits for the turn that this process holds.
  Child child(
      [] {
        auto turn = std::make_unique<Turn>(10);
        return std::pair(std::move(turn), std::string("its turn"));
      },
      false);
  held.reset();
  EXPECT_EQ(child.said(), "its turn");
  // The child keeps the turn until it ends. This process continues without it.
  const Turn impatient(10);
}

}  // namespace
