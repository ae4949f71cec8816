// The transports that the suite runs over, and the options that each needs in addition to its defaults. A new transport
// is one more type in Transports. It needs provide() only if its default options cannot make an endpoint.
#pragma once

#include <gtest/gtest.h>
#include <tern/sim.h>
#include <tern/transport/faulty.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "cable/xdp_ends.h"
#include "package/outside/unix_device.h"
#include "transport/faulty.h"
#include "transport_impls.h"

#if __has_include(<tern/transport/dpdk.h>)  // it is built
#define TERN_TEST_HAS_DPDK
#include "memif_ports.h"
#endif

namespace tern::conformance {

template <class... T>
using WithFaults = testing::Types<T..., Faulty<T>...>;
using Transports = transports::All::As<WithFaults>;

/// The state that all endpoints of a test share.
class World {
 public:
  /// Gives each endpoint the next host of one simulation.
  sim::Host& next_host() {
    if (simulation_ == nullptr) {
      auto made = sim::Simulation::create(sim::Topology::star(kHosts));
      EXPECT_TRUE(made.ok()) << made.status().message();
      simulation_ = std::move(*made);
    }
    return simulation_->host(next_host_++ % kHosts);
  }
  /// Gives endpoints the two ends of a cable in turn.
  uint32_t next_port() { return next_port_++ % 2; }

 private:
  static constexpr uint32_t kHosts = 8;
  std::unique_ptr<sim::Simulation> simulation_;
  uint32_t next_host_ = 0;
  uint32_t next_port_ = 0;
};

template <class Options>
void provide(Options&, World&) {}  // the defaults make an endpoint
inline void provide(Sim::Options& options, World& world) { options = world.next_host().transport_options(); }
inline void provide(Device::Options& options, World&) { options.device = UnixDevice::create(); }
#ifdef TERN_TEST_HAS_DPDK
inline void provide(Dpdk::Options& options, World& world) { options = test::memif_options(world.next_port()); }
#endif
#ifdef TERN_TEST_HAS_XDP
inline void provide(Xdp::Options& options, World& world) { options = test::xdp_options(world.next_port()); }
#endif
template <class Inner>
void provide(FaultyOptions<Inner>& options, World& world) {
  provide(options.inner, world);
}

/// Options that create() refuses. Each function makes good options bad.
template <class Options>
using Breakers = std::vector<std::function<void(Options&)>>;

/// Sets each field below and above the range of Options::fields().
template <class Options>
Breakers<Options> breakers(const Options*) {
  Breakers<Options> made;
  const auto add = [&made]<class Value>(const OptionField<Options, Value>& field) {
    if constexpr (std::is_integral_v<Value> && !std::is_same_v<Value, bool>) {
      const auto set = [member = field.member](uint64_t value) {
        return [=](Options& options) { options.*member = static_cast<Value>(value); };
      };
      if (field.min > 0) made.push_back(set(field.min - 1));
      if (field.max < std::numeric_limits<Value>::max()) made.push_back(set(field.max + 1));
    }
  };
  std::apply([&add](const auto&... fields) { (add(fields), ...); }, Options::fields());
  return made;
}
inline Breakers<Shm::Options> breakers(const Shm::Options*) {
  return {
      [](Shm::Options& options) { options.ring_cells = 1000; }, [](Shm::Options& options) { options.ring_cells = 128; },
      [](Shm::Options& options) { options.ring_cells = 131072; }, [](Shm::Options& options) { options.peers_max = 0; },
      [](Shm::Options& options) { options.process_peers_max = options.peers_max + 1; }};
}
inline Breakers<Udp::Options> breakers(const Udp::Options*) {
  return {[](Udp::Options& options) { options.datagram_bytes = 575; },
          [](Udp::Options& options) { options.datagram_bytes = 65001; },
          [](Udp::Options& options) { options.bind = "127.0.0.1:99999"; },
          [](Udp::Options& options) { options.bind = ":1"; }};
}
#ifdef TERN_TEST_HAS_DPDK
/// These options are refused before EAL and the device are needed.
inline Breakers<Dpdk::Options> breakers(const Dpdk::Options*) {
  return {[](Dpdk::Options& options) { options.receive_buffers = 1000; },
          [](Dpdk::Options& options) { options.receive_buffers = 131072; },
          [](Dpdk::Options& options) { options.datagram_bytes = 535; },
          [](Dpdk::Options& options) { options.datagram_bytes = 8973; },
          [](Dpdk::Options& options) { options.mtu = 575; },
          [](Dpdk::Options& options) { options.vlan = 4095; },
          [](Dpdk::Options& options) { options.queues = 65; },
          [](Dpdk::Options& options) {
            options = test::memif_options(0);
            options.bind = "10.78.0.9";
          },
          [](Dpdk::Options& options) { options.bind = "[fe80::1]:1"; },
          [](Dpdk::Options& options) { options.address = "10.78.0.1"; },
          [](Dpdk::Options& options) { options.address = "10.78.0.1/33"; },
          [](Dpdk::Options& options) { options.gateway = "10.79.0.1"; }};
}
#endif
#ifdef TERN_TEST_HAS_XDP
inline Breakers<Xdp::Options> breakers(const Xdp::Options*) {
  return {[](Xdp::Options& options) { options.receive_buffers = 1000; },
          [](Xdp::Options& options) { options.receive_buffers = 65536; },
          [](Xdp::Options& options) { options.datagram_bytes = 535; },
          [](Xdp::Options& options) { options.datagram_bytes = 3775; },
          [](Xdp::Options& options) { options.queues = 65; },
          [](Xdp::Options& options) { options.mode = "fast"; },
          [](Xdp::Options& options) { options.bind = "host"; },
          [](Xdp::Options& options) { options.bind = "[fe80::1]:1"; }};
}
#endif
inline Breakers<Sim::Options> breakers(const Sim::Options*) {
  return {[](Sim::Options& options) { options.nic = nullptr; },
          [](Sim::Options& options) { options.receive_queue_packets = 0; },
          [](Sim::Options& options) { options.receive_queue_packets = (1u << 20) + 1; },
          [](Sim::Options& options) { options.send_queue_packets = 0; },
          [](Sim::Options& options) { options.send_queue_packets = (1u << 16) + 1; }};
}
inline Breakers<Device::Options> breakers(const Device::Options*) {
  return {[](Device::Options& options) { options.device = nullptr; }};
}
template <class Inner>
Breakers<FaultyOptions<Inner>> breakers(const FaultyOptions<Inner>*) {
  using Options = FaultyOptions<Inner>;
  Breakers<Options> made = {[](Options& options) { options.drop = -0.1; },
                            [](Options& options) { options.corrupt = 1.1; },
                            [](Options& options) { options.delay_max = std::chrono::nanoseconds(-1); }};
  made.push_back([](Options& options) { breakers(static_cast<const Inner*>(nullptr)).front()(options.inner); });
  return made;
}

template <class T>
struct NameOf {
  static std::string name() { return std::string(T::kName); }
};
template <class Inner>
struct NameOf<Faulty<Inner>> {
  static std::string name() { return "faulty_" + NameOf<Inner>::name(); }
};
struct Names {
  template <class T>
  static std::string GetName(int) {
    return NameOf<T>::name();
  }
};

}  // namespace tern::conformance
