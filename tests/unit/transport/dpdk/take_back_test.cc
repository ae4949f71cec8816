// The end of an endpoint whose frames the driver keeps, as a NIC does while its link is down. DPDK's virtual devices
// keep no frames, so this test replaces the driver's functions for sending and for stopping a queue.
#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include <cerrno>
#include <mutex>
#include <vector>

#include "unit/transport/dpdk/dpdk_fixture.h"

namespace tern::transport::dpdk_test {
namespace {

/// Replaces a port's driver during its lifetime.
class KeepingDriver {
 public:
  explicit KeepingDriver(uint16_t port_id) : functions_(rte_eth_fp_ops[port_id]), burst_(functions_.tx_pkt_burst) {
    now = this;
    functions_.tx_pkt_burst = keep;
  }
  ~KeepingDriver() {
    functions_.tx_pkt_burst = burst_;
    free_all();
    now = nullptr;
  }
  KeepingDriver(const KeepingDriver&) = delete;
  KeepingDriver& operator=(const KeepingDriver&) = delete;

  size_t count() {
    const std::lock_guard lock(mutex_);
    return kept_.size();
  }
  int stop() {
    if (!can_stop) return -ENOTSUP;
    ++stops;
    free_all();
    return 0;
  }

  static KeepingDriver* now;
  bool can_stop = true;
  uint32_t stops = 0, starts = 0;

 private:
  static uint16_t keep(void*, rte_mbuf** frames, uint16_t count) {
    const std::lock_guard lock(now->mutex_);
    now->kept_.insert(now->kept_.end(), frames, frames + count);
    return count;
  }
  void free_all() {
    const std::lock_guard lock(mutex_);
    for (rte_mbuf* const frame : kept_) rte_pktmbuf_free(frame);
    kept_.clear();
  }

  struct rte_eth_fp_ops& functions_;
  const eth_tx_burst_t burst_;
  std::mutex mutex_;  // needed because the port's thread may also send
  std::vector<rte_mbuf*> kept_;
};
KeepingDriver* KeepingDriver::now = nullptr;

/// An endpoint that has sent a frame from message memory. The driver keeps the frame.
struct Sender {
  Sender() : end(std::make_unique<End>(0)) {
    const PeerId peer = connect(*end, raw.where());
    driver = std::make_unique<KeepingDriver>((*end)->port().id());
    EXPECT_TRUE(end->send(peer, 1, end->filled(1400, std::byte{0xa5}), 1400));
    (*end)->flush();
    for (uint32_t i = 0; i < 100; ++i) end->turn();
    EXPECT_GE(driver->count(), 1u);
    EXPECT_LT((*end)->released(), (*end)->ticket());
  }
  End other{0};  // keeps the port open
  RawEnd raw{1};
  std::unique_ptr<End> end;
  std::unique_ptr<KeepingDriver> driver;
};

TEST(DpdkTakeBack, endpoint_ends__when_the_stop_of_its_queue_has_freed_its_frames) {
  Sender sender;
  sender.end.reset();
  EXPECT_EQ(sender.driver->stops, 1u);
  EXPECT_EQ(sender.driver->starts, 1u) << "other endpoints go on";
  sender.driver.reset();
  const PeerId peer = connect(sender.other, sender.raw.where());
  ASSERT_TRUE(sender.other.send(peer, 2));
  EXPECT_EQ(sender.raw.payloads({&sender.other}, 1).size(), 1u);
}

TEST(DpdkTakeBack, endpoint_ends__in_bounded_time__if_the_driver_cannot_stop_a_queue) {
  Sender sender;
  sender.driver->can_stop = false;
  sender.end.reset();
  EXPECT_EQ(sender.driver->starts, 0u);
  EXPECT_GE(sender.driver->count(), 1u);
  sender.driver.reset();  // the frames return later, to a pool that still exists for them
  EXPECT_TRUE(End(0).status.ok());
}

}  // namespace
}  // namespace tern::transport::dpdk_test

// Replaces DPDK's function.
extern "C" int rte_eth_dev_tx_queue_stop(uint16_t, uint16_t) {
  return tern::transport::dpdk_test::KeepingDriver::now->stop();
}
extern "C" int rte_eth_dev_tx_queue_start(uint16_t, uint16_t) {
  ++tern::transport::dpdk_test::KeepingDriver::now->starts;
  return 0;
}
