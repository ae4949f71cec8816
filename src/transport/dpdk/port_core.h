// The implementation of a DPDK port: its queues, its endpoints, and the thread that does the work outside of endpoints.
// Transport layer.
//
//   dpdk_port.cc    open ports of the process; the members of DpdkPort
//   port_core.cc    configuring a device; attaching endpoints
//   port_thread.cc  the port's thread, and frames from one endpoint to another
//   dpdk_lane.cc    an endpoint's calls
//
// Locks, in the order in which they are taken: the lock of the process's ports (dpdk_port.cc), PortCore::mutex_. The
// data path takes neither: an endpoint finds another one by its slot, and slots exist until the port closes.
#pragma once

#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_ring.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <tern/status.h>

#include "base/address.h"
#include "base/descriptor.h"
#include "base/thread_safety.h"
#include "base/wait.h"
#include "ethernet/lane_key.h"
#include "neighbours/host.h"
#include "neighbours/own_address.h"
#include "transport/dpdk/dpdk_device.h"
#include "transport/dpdk/dpdk_plan.h"
#include "transport/dpdk/dpdk_port.h"
#include "transport/dpdk/dpdk_steering.h"
#include "transport/dpdk/driver_faults.h"
#include "transport/dpdk/drop_counts.h"
#include "transport/dpdk/queue_gate.h"

namespace tern::transport {

struct PoolDeleter {
  void operator()(rte_mempool* pool) const { rte_mempool_free(pool); }
};
using PoolPointer = std::unique_ptr<rte_mempool, PoolDeleter>;

/// A ring of frames that any thread fills and one thread empties. It uses the process's heap, because EAL's memory is
/// scarce.
class FrameRing {
 public:
  /// `count` is a power of two; one less fits. False: no memory.
  bool open(uint32_t count);
  rte_ring* get() const { return ring_.get(); }
  bool push(rte_mbuf* frame) const { return rte_ring_mp_enqueue(ring_.get(), frame) == 0; }
  uint32_t pop(std::span<rte_mbuf*> frames) const {
    return rte_ring_sc_dequeue_burst(ring_.get(), reinterpret_cast<void**>(frames.data()),
                                     static_cast<unsigned>(frames.size()), nullptr);
  }
  bool is_empty() const { return rte_ring_empty(ring_.get()) != 0; }
  uint32_t count() const { return rte_ring_count(ring_.get()); }
  /// Frees the frames in it.
  void drain() const;

 private:
  struct Deleter {
    void operator()(rte_ring* ring) const;
  };
  std::unique_ptr<rte_ring, Deleter> ring_;
};

/// A receive queue and a send queue of the same number.
struct alignas(RTE_CACHE_LINE_SIZE) PortQueue {
  QueueGate receive_gate;
  alignas(RTE_CACHE_LINE_SIZE) QueueGate send_gate;
  PoolPointer pool;                ///< of received frames
  base::Descriptor interrupts;     ///< an epoll set with the queue's interrupt, for rte_epoll_wait()
  std::atomic<uint32_t> lanes{0};  ///< written under PortCore's mutex
  uint32_t polls_seen = 0;         ///< by the port's thread
  std::atomic<uint32_t> armed{0};
};

/// An endpoint's slot at the port. A slot is made once, and reused by later endpoints.
struct alignas(RTE_CACHE_LINE_SIZE) LaneSlot {
  // Only the endpoint's thread writes these.
  QueueUser receiver;
  QueueUser sender;
  std::atomic<uint32_t> polls{0};  ///< grows with each poll of the queue
  FrameRing inbox;
  base::WakeEvent wake;
  // All threads use these.
  alignas(RTE_CACHE_LINE_SIZE) std::atomic<ethernet::LaneKey> key{0};  ///< 0: no endpoint
  std::atomic<uint16_t> queue{0};
  std::atomic<bool> is_armed{false};  ///< the endpoint sleeps, or is about to
  // Under PortCore's mutex.
  bool is_used = false;
  base::SocketAddress own;
  rte_flow* rule = nullptr;
  frames::MacAddress rule_mac;
};

class PortCore {
 public:
  static constexpr uint32_t kLanesMax = 256;
  static constexpr uint32_t kInboxFrames = 1024;  ///< more are dropped
  static constexpr uint32_t kBurst = DpdkLane::kBurstMax;

  static Result<std::unique_ptr<PortCore>> open(const DpdkChoice& choice, const DeviceText& text,
                                                const std::optional<neighbours::OwnAddress>& own);
  ~PortCore();
  PortCore(const PortCore&) = delete;
  PortCore& operator=(const PortCore&) = delete;

  uint16_t id() const { return id_; }
  const DpdkFacts& facts() const { return facts_; }
  const DeviceHandle& device() const { return *device_; }
  neighbours::Host& host() { return *host_; }
  const std::optional<neighbours::OwnAddress>& own() const { return own_; }
  PortQueue& queue(uint16_t number) const { return queues_[number]; }
  Status failure() const;
  uint64_t events() const { return events_.load(std::memory_order_relaxed); }
  bool is_link_up() const { return is_link_up_.load(std::memory_order_relaxed); }
  bool unmaps_peers_rings() const { return faults_of(device_->facts().info.driver_name).unmaps_peers_rings; }

  /// From now on until unlock_queues() no thread calls the driver for a queue, so that bursts move no frames. Waits for
  /// running bursts. Control events only. False: the device was removed, and there is nothing to unlock.
  bool lock_queues();
  void unlock_queues();

  Result<LaneSlot*> attach(base::SocketAddress* own);
  void detach(LaneSlot& slot);
  Status follow_mac(LaneSlot& slot, const frames::MacAddress& mac);
  bool has_address(const base::SocketAddress& address) const;

  /// The time at which a sleeping endpoint that gets a frame is woken. kLater: the caller is inside a gate, and calls
  /// wake_sleepers() after it has left the gate. The kernel may run a woken thread in place of its waker, and the
  /// endpoint would then wait for the gate until the waker runs again.
  enum class Waking : bool { kAtOnce, kLater };
  /// Gives the frame to the endpoint that has its destination, except `from`, or to the host. False: it is for neither,
  /// and the caller keeps it. A frame for which there is no space is freed.
  bool pass_on(rte_mbuf* frame, const LaneSlot* from, Waking waking);
  /// Puts the frame into the slot's inbox, or frees it if the inbox is full or has `frames_max` frames.
  void hand_over(rte_mbuf* frame, LaneSlot& slot, Waking waking, uint32_t frames_max = UINT32_MAX);
  /// Wakes the sleeping endpoints that have frames in their inboxes.
  void wake_sleepers();
  LaneSlot* find(ethernet::LaneKey key) const;
  /// Frees a frame that is for no endpoint and not for the host, and counts it.
  void drop(rte_mbuf* frame, frames::Drop why);
  DpdkDrops take_drops() { return drops_.take(); }

  /// Makes the port's thread poll often, for an endpoint that sleeps at a device without interrupts. Any thread.
  void begin_nap() {
    if (napping_.fetch_add(1, std::memory_order_seq_cst) == 0) thread_event_.wake();
  }
  void end_nap() { napping_.fetch_sub(1, std::memory_order_relaxed); }

 private:
  explicit PortCore(const DpdkChoice& choice) : choice_(choice) {}

  // port_core.cc
  Status start(const DpdkWishes& wishes);
  Status start_as(const DpdkPlan& plan);
  Status configure(const DpdkPlan& plan);
  Status make_queues(const DpdkPlan& plan);
  Status start_device();
  bool can_steer();
  void stop_device();
  void fill_facts();
  Status open_interrupts();
  Status open_host();
  void join_groups();
  Status choose_port(base::SocketAddress* own) REQUIRES(mutex_);
  Result<uint16_t> choose_queue(const base::SocketAddress& own) REQUIRES(mutex_);
  Result<LaneSlot*> take_slot() REQUIRES(mutex_);
  Status steer(LaneSlot& slot) REQUIRES(mutex_);
  /// The MAC address is that of the port's start.
  FlowTarget target_of(const base::SocketAddress& own) const { return {facts_.mac, own, choice_.vlan}; }

  // port_thread.cc
  static int on_event(uint16_t port, rte_eth_event_type event, void* self, void* detail);
  Status start_thread();
  void stop_thread();
  void run();
  bool look(uint64_t now_ns);
  bool serve_host(uint64_t now_ns);
  bool look_at_queue(uint16_t number);
  uint32_t inbox_frames_max(const rte_mbuf* frame, const LaneSlot& slot) const;
  uint32_t count_polls(uint16_t number) const;
  void claim(uint16_t number);
  void unclaim(uint16_t number);
  void lock_gates();
  std::span<rte_mbuf*> distribute(std::span<rte_mbuf*> frames);
  frames::Drop why_unwanted(std::span<const std::byte> frame) EXCLUDES(mutex_);
  bool send_for_host();
  void queue_for_host(std::span<const std::byte> frame);
  void look_at_link(uint64_t now_ns);
  void give_up_device();

  const DpdkChoice choice_;
  std::optional<neighbours::OwnAddress> own_;
  std::unique_ptr<DeviceHandle> device_;
  uint16_t id_ = 0;
  DpdkPlan plan_;
  DpdkFacts facts_;
  std::unique_ptr<PortQueue[]> queues_;
  std::vector<std::unique_ptr<PortQueue[]>> retired_queues_;
  std::optional<FlowRules> flows_;
  std::unique_ptr<HashTable> hashes_ GUARDED_BY(mutex_);
  bool is_isolated_ = false;
  bool is_started_ = false;
  bool has_callbacks_ = false;
  bool has_barrier_ = false;  ///< if false, all gates stay claimed

  base::Mutex mutex_;
  std::array<std::atomic<LaneSlot*>, kLanesMax> slots_{};
  std::atomic<uint32_t> slot_count_{0};
  std::vector<std::unique_ptr<LaneSlot>> owned_slots_ GUARDED_BY(mutex_);
  frames::MacAddress mac_ GUARDED_BY(mutex_);  ///< of the interface now; facts_ has the one at the port's start

  DropCounts drops_;
  FrameRing host_inbox_;
  FrameRing host_outbox_;
  std::unique_ptr<neighbours::Host> host_;
  std::thread thread_;
  base::WakeEvent thread_event_;  ///< ends the thread's pause
  base::WaitSet thread_wait_;
  std::atomic<uint32_t> napping_{0};
  bool has_received_ = false;  ///< by the port's thread, which alone uses it
  std::atomic<bool> is_stopping_{false};
  std::atomic<bool> is_gone_{false};
  std::atomic<bool> is_link_up_{false};
  std::atomic<bool> is_link_due_{false};  ///< to be looked at
  std::atomic<uint64_t> events_{0};
  bool is_given_up_ = false;  ///< of the port's thread
  uint64_t link_due_ns_ = 0;  ///< of the port's thread
};

}  // namespace tern::transport
