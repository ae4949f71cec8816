// A network interface that endpoints of this process share: its XDP program, its queues, and each endpoint's lane
// through them. Transport layer.
//
// Each endpoint has a home queue: it sends there, and the device is asked to bring its datagrams there. Datagrams that
// arrive at another queue of this process are taken by an endpoint that looks at that queue, and put into the inbox of
// the one that they are for. An endpoint looks at its home queue and at its share of the queues that are nobody's home,
// and now and then at all others, because their endpoints may be in a long handler.
//
// Locks, in the order in which they are taken: that of the process's ports (port.cc), Port::mutex_, those of queues and
// inboxes. The way of data takes only the last: an endpoint finds another by its slot, and slots and queues stay until
// the port closes. An endpoint that receives takes Port::mutex_ if it is free, to see who has which queue now.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tern/detail/export.h>
#include <tern/status.h>

#include "base/address.h"
#include "base/thread_safety.h"
#include "base/wait.h"
#include "ethernet/lane_key.h"
#include "neighbours/interface.h"
#include "transport/xdp/inbox.h"
#include "transport/xdp/queue.h"
#include "transport/xdp/steering.h"

namespace tern::transport::xdp {

/// How frames reach the process.
enum class Wish : uint8_t { kBest, kZeroCopy, kNative, kGeneric };

struct PortChoice {
  neighbours::Interface interface;  ///< in the calling thread's network namespace
  Wish wish = Wish::kBest;
  uint32_t queues = 0;  ///< 0: one for each endpoint, while there are free ones
  uint32_t receive_buffers = 2048;
};

class Lane;

/// Shared by the endpoints of the process at the same interface. The last one closes it. Any thread.
class TERN_API Port {
 public:
  static constexpr uint32_t kLanesMax = 256;
  static constexpr uint32_t kQueuesMax = 64;
  static constexpr uint32_t kLinkBytes = 18;  ///< Ethernet's header, and a VLAN tag

  /// kMisuse: another endpoint of this process has the interface with other settings. kUnavailable: see
  /// Steering::open() and Queue::open(); also, no queue is free. kNoMemory.
  static Result<std::shared_ptr<Port>> open(const PortChoice& choice);
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  /// A lane for datagrams to `own`, whose kernel socket the caller has. kUnavailable: no queue or place is left, or
  /// another process has the port. kNoMemory.
  Result<std::unique_ptr<Lane>> attach(const std::shared_ptr<Port>& self, const base::SocketAddress& own);
  /// Bytes of the longest IP packet that a frame of the queues holds.
  uint32_t mtu_bytes_max() const { return frame_bytes_ - Queue::kHeadroomBytes - kLinkBytes; }
  /// Of the link, as the driver tells; otherwise 10 Gbit/s.
  uint64_t link_bytes_per_sec() const { return link_bytes_per_sec_; }
  /// "zero_copy", "native" or "generic".
  std::string_view mode() const;
  uint32_t queue_count() const { return queue_count_.load(std::memory_order_acquire); }
  /// In a forked child, which must not do anything else: closes its descriptors of the parent's. May be called again.
  void close_in_child();

 private:
  friend class Lane;
  class Registry;

  /// Of an endpoint at a queue. kLeft: the endpoint has ended, and the kernel may still read its frames.
  enum class Place : uint8_t { kFree, kTaken, kLeft };
  using Places = std::array<Place, Queue::kPlaces>;

  /// An endpoint's place at the port. Made once, and used by one endpoint after another.
  struct Slot {
    std::atomic<ethernet::LaneKey> key{0};  ///< 0: no endpoint
    Inbox inbox;
    // Under the port's mutex.
    bool is_used = false;
    base::SocketAddress own;
    uint32_t queue = 0;  ///< index of the home queue
    uint32_t place = 0;  ///< at it
  };

  struct Spot {
    uint32_t queue;
    uint32_t place;
  };

  explicit Port(const PortChoice& choice);
  Status start();
  Status add_queue(bool* is_none_left) REQUIRES(mutex_);
  Result<Spot> choose_spot() REQUIRES(mutex_);
  Result<Slot*> take_slot() REQUIRES(mutex_);
  bool take_back_places(uint32_t queue) REQUIRES(mutex_);
  bool find_place(uint32_t queue, uint32_t* place) REQUIRES(mutex_);
  uint32_t lanes_at(uint32_t queue) const REQUIRES(mutex_);
  uint32_t find_emptiest() const REQUIRES(mutex_);
  void detach(Slot& slot, bool is_place_free);
  void detach_locked(Slot& slot, bool is_place_free) REQUIRES(mutex_);
  Slot* find(ethernet::LaneKey key) const;
  /// So that the frames of one queue that wait in the inboxes of all endpoints but one leave that one some.
  uint32_t inbox_frames_max() const {
    return choice_.receive_buffers / std::max(Queue::kPlaces, slot_count_.load(std::memory_order_relaxed));
  }
  Queue& queue(uint32_t index) const { return *queues_[index].load(std::memory_order_relaxed); }
  void log_mode() REQUIRES(mutex_);

  const PortChoice choice_;
  uint32_t frame_bytes_ = 2048;
  uint32_t device_queues_ = 1;
  uint64_t link_bytes_per_sec_ = 1;
  bool has_zero_copy_ = false;
  bool is_native_ = false;

  base::Mutex mutex_;
  std::unique_ptr<Steering> steering_ GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Queue>> owned_queues_ GUARDED_BY(mutex_);
  std::vector<Places> places_ GUARDED_BY(mutex_);  ///< of each queue
  std::vector<std::unique_ptr<Slot>> owned_slots_ GUARDED_BY(mutex_);
  // For threads without the mutex.
  std::array<std::atomic<Queue*>, kQueuesMax> queues_{};
  std::atomic<uint32_t> queue_count_{0};
  std::array<std::atomic<Slot*>, kLanesMax> slots_{};
  std::atomic<uint32_t> slot_count_{0};
  std::atomic<uint32_t> version_{0};  ///< grows when the shares of queues change
};

/// An endpoint's way through a port. The endpoint's thread. In a forked child nothing may be called, and it is not
/// destroyed.
class TERN_API Lane {
 public:
  static constexpr uint32_t kBurstMax = 32;

  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  Queue& home() const { return home_; }
  uint32_t place() const { return slot_.place; }
  /// The kernel may still read frames of the endpoint's place, which stays unused until it has read them.
  void leave_place() { is_place_free_ = false; }

  /// Frames for this endpoint, or such that pass_on() wants to see: those that others have put into the inbox, or those
  /// of a queue. Each of the own queues has its turn, and the inbox has every other one. The caller gives them back.
  uint32_t receive(std::span<Frame, kBurstMax> frames);
  void give_back(std::span<const Frame> frames);
  /// Takes a frame that is not for this endpoint, if another one has its destination. False: nobody does, or has space;
  /// the frame is still the caller's.
  bool pass_on(const Frame& frame);

  /// Adds the lane's descriptors with `name` to the set, which outlives the lane or stop_waiting().
  Status add_to(base::WaitSet& waits, uint64_t name);
  /// The interface has gone: its sockets would end every wait.
  void stop_waiting();
  /// Before sleeping. False: frames are there, and the lane is not armed.
  bool arm();
  void disarm() { slot_.inbox.disarm(); }
  /// There are queues whose frames do not wake this endpoint.
  bool has_foreign() const { return !foreign_.empty(); }
  /// The next receive() that finds nothing else looks at them.
  void look_at_foreign() { until_foreign_ = 1; }

 private:
  friend class Port;
  Lane(std::shared_ptr<Port> port, Port::Slot& slot)
      : port_(std::move(port)), slot_(slot), home_(port_->queue(slot.queue)) {}
  bool refresh() REQUIRES(port_->mutex_);
  void try_refresh();
  uint32_t receive_foreign(std::span<Frame, kBurstMax> frames);

  /// Empty looks at the own queues for one at those that other endpoints have, and other processors write.
  static constexpr uint32_t kForeignLooks = 256;

  const std::shared_ptr<Port> port_;
  Port::Slot& slot_;
  Queue& home_;
  uint32_t version_ = 0;
  uint32_t turn_ = 0;
  uint32_t until_foreign_ = kForeignLooks;
  size_t foreign_turn_ = 0;
  bool is_inbox_first_ = false;
  bool is_attached_ = true;
  bool is_place_free_ = true;
  std::vector<Queue*> own_;
  std::vector<Queue*> foreign_;
  base::WaitSet* waits_ = nullptr;
  uint64_t name_ = 0;
};

}  // namespace tern::transport::xdp
