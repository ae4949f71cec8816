// Endpoints over transports with layers: a layer must not hide any property of the transport below.
#include <gtest/gtest.h>
#include <tern/nexus.h>
#include <tern/rpc.h>
#include <tern/transport/faulty.h>
#include <tern/transport/shm.h>
#include <tern/transport/udp.h>

#include <array>
#include <bit>

#include "base/address.h"
#include "rpc/rpc_impl.h"
#include "transport/faulty.h"
#include "transport/shm/shm.h"
#include "transport/udp/udp.h"
#include "unit/transport/fake_transport.h"
#include "unit/transport/held.h"

namespace tern::rpc_test {
namespace {

using transport::FakeImpl;
using transport::Layer;
using transport::TransportImpl;

/// A layer without any effect.
class Transparent : public Layer<FakeImpl> {
 public:
  using Options = Fake::Options;
  using Sender = transport::PlainSender<Transparent>;
  static Result<std::unique_ptr<Transparent>> create(Options options, const transport::Context& context) {
    auto inner = FakeImpl::create(options, context);
    if (!inner.ok()) return inner.status();
    return std::unique_ptr<Transparent>(new Transparent(std::move(*inner)));
  }

 private:
  using Layer::Layer;
};
static_assert(TransportImpl<Transparent>);

/// Layers that lack one member of the contract do not satisfy it.
class WithoutSender : public Layer<FakeImpl> {
 public:
  using Options = Fake::Options;
  static Result<std::unique_ptr<WithoutSender>> create(Options, const transport::Context&);
};
static_assert(!TransportImpl<WithoutSender>);
class WithoutCallBack : public Layer<FakeImpl> {
 public:
  using Options = Fake::Options;
  using Sender = transport::PlainSender<WithoutCallBack>;
  static Result<std::unique_ptr<WithoutCallBack>> create(Options, const transport::Context&);
  void connect_back(transport::PeerId) = delete;
};
static_assert(!TransportImpl<WithoutCallBack>);

template <class T>
class Layers : public testing::Test {};
using LayeredUdp = testing::Types<Udp, Faulty<Udp>, Held<Udp>, Held<Faulty<Udp>>, Faulty<Held<Faulty<Udp>>>>;
TYPED_TEST_SUITE(Layers, LayeredUdp);

TYPED_TEST(Layers, endpoint_without_bind_address_binds_to_the_nexus_host) {
  auto nexus = Nexus::create("tern://127.0.0.1:0");
  ASSERT_TRUE(nexus.ok()) << nexus.status().message();
  auto rpc = Rpc<TypeParam>::create(**nexus);
  ASSERT_TRUE(rpc.ok()) << rpc.status().message();
  const auto address = (*rpc)->core().transport().address();
  base::SocketAddress bound;
  // The last two bytes are datagram_bytes.
  ASSERT_TRUE(transport::decode_address(address.first(address.size() - 2), &bound));
  EXPECT_FALSE(bound.is_wildcard()) << "the endpoint receives on all interfaces";
}

TYPED_TEST(Layers, traits_are_those_of_the_transport_below) {
  constexpr transport::Traits kTraits = TypeParam::Impl::kTraits, kUdp = Udp::Impl::kTraits;
  static_assert(sizeof(kTraits) == 56 + sizeof(transport::Remedies), "compare the new trait here, too");
  EXPECT_EQ(kTraits.has_shared_memory, kUdp.has_shared_memory);
  EXPECT_EQ(kTraits.reads_clock_per_burst, kUdp.reads_clock_per_burst);
  EXPECT_EQ(kTraits.releases_at_once, kUdp.releases_at_once);
  EXPECT_EQ(kTraits.readable_bytes, kUdp.readable_bytes);
  EXPECT_EQ(kTraits.is_virtual, kUdp.is_virtual);
  EXPECT_EQ(kTraits.reports_space, kUdp.reports_space);
  EXPECT_EQ(kTraits.has_pairs, kUdp.has_pairs);
  EXPECT_EQ(kTraits.can_fail, kUdp.can_fail);
  using Shortcuts = std::array<bool, sizeof(cc::Shortcuts)>;
  EXPECT_EQ(std::bit_cast<Shortcuts>(kTraits.shortcuts), std::bit_cast<Shortcuts>(kUdp.shortcuts));
  EXPECT_EQ(kTraits.rto_ns_min, kUdp.rto_ns_min);
  EXPECT_EQ(kTraits.congestion_control, kUdp.congestion_control);
  EXPECT_EQ(kTraits.remedies.packet_bytes, kUdp.remedies.packet_bytes);
  EXPECT_EQ(kTraits.remedies.no_way_back, kUdp.remedies.no_way_back);
}

/// The parts that a layer keeps are shorter than a cell of shm, and a layer that sends later also reads later.
TEST(LayersOverShm, layers_switch_off_traits_that_they_cannot_keep) {
  static_assert(Shm::Impl::kTraits.readable_bytes != 0 && Shm::Impl::kTraits.releases_at_once);
  EXPECT_EQ(Faulty<Shm>::Impl::kTraits.readable_bytes, 0u);
  EXPECT_TRUE(Faulty<Shm>::Impl::kTraits.releases_at_once) << "it changes only what is received";
  EXPECT_FALSE(Held<Shm>::Impl::kTraits.releases_at_once);
  EXPECT_FALSE(Held<Faulty<Shm>>::Impl::kTraits.releases_at_once);
  EXPECT_EQ(Held<Faulty<Shm>>::Impl::kTraits.readable_bytes, 0u);
}

}  // namespace
}  // namespace tern::rpc_test
