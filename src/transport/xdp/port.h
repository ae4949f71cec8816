// A network interface that endpoints of this process share: its XDP program, its queues, and each endpoint's lane
// through them. Transport layer.
//
// Each endpoint has a home queue: it sends there, and the device is asked to bring its datagrams there. Datagrams that
// arrive at another queue of this process are taken by an endpoint that polls that queue, and put into the inbox of
// their endpoint. An endpoint polls its home queue and its share of the queues that are no endpoint's home. From time
// to time it polls all others, because their endpoints may be in a long handler.
//
// Locks, in the order in which they are taken: the lock of the process's ports (port.cc), Port::mutex_, the locks of
// queues and inboxes. The data path takes only the last ones: an endpoint finds another one by its slot, and slots and
// queues exist until the port closes. A receiving endpoint takes Port::mutex_ if it is free, to read the present
// assignment of queues.
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

/// The requested way in which frames reach the process.
enum class Wish : uint8_t { kBest, kZeroCopy, kNative, kGeneric };

struct PortChoice {
  neighbours::Interface interface;  ///< in the calling thread's network namespace; its index stays, its name may not
  Wish wish = Wish::kBest;
  uint32_t queues = 0;  ///< 0: one for each endpoint, while there are free ones
  uint32_t receive_buffers = 2048;
};

class Lane;

/// The endpoints of the process at the same interface share it. The last endpoint closes it. Any thread.
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

  /// Makes a lane for datagrams to `own`, whose kernel socket the caller owns. kUnavailable: no queue or place is left,
  /// or another process has the port. kNoMemory.
  Result<std::unique_ptr<Lane>> attach(const std::shared_ptr<Port>& self, const base::SocketAddress& own);
  /// The length of the longest IP packet that fits a frame of the queues.
  uint32_t mtu_bytes_max() const { return frame_bytes_ - Queue::kHeadroomBytes - kLinkBytes; }
  /// The link's rate as the driver reports it; otherwise 10 Gbit/s.
  uint64_t link_bytes_per_sec() const { return link_bytes_per_sec_; }
  /// "zero_copy", "native" or "generic".
  std::string_view mode() const;
  uint32_t queue_count() const { return queue_count_.load(std::memory_order_acquire); }
  /// In a forked child, which must call nothing else: closes its copies of the parent's descriptors. May be called
  /// again.
  void close_in_child();

 private:
  friend class Lane;
  class Registry;

  /// The state of an endpoint's place at a queue. kLeft: the endpoint has ended, and the kernel may still read its
  /// frames.
  enum class Place : uint8_t { kFree, kTaken, kLeft };
  using Places = std::array<Place, Queue::kPlaces>;

  /// An endpoint's slot at the port. A slot is made once, and reused by later endpoints.
  struct Slot {
    std::atomic<ethernet::LaneKey> key{0};  ///< 0: no endpoint
    Inbox inbox;
    // Under the port's mutex.
    bool is_used = false;
    base::SocketAddress own;
    uint32_t queue = 0;  ///< index of the home queue
    uint32_t place = 0;  ///< the place at that queue
  };

  struct Spot {
    uint32_t queue;
    uint32_t place;
  };

  explicit Port(const PortChoice& choice);
  Status start();
  Status add_queue(bool* is_none_left) REQUIRES(mutex_);
  uint32_t device_queues() const;
  Result<Spot> choose_spot() REQUIRES(mutex_);
  Result<Slot*> take_slot() REQUIRES(mutex_);
  bool take_back_places(uint32_t queue) REQUIRES(mutex_);
  bool find_place(uint32_t queue, uint32_t* place) REQUIRES(mutex_);
  uint32_t lanes_at(uint32_t queue) const REQUIRES(mutex_);
  uint32_t find_emptiest() const REQUIRES(mutex_);
  void detach(Slot& slot, bool is_place_free);
  void detach_locked(Slot& slot, bool is_place_free) REQUIRES(mutex_);
  void announce_shares() REQUIRES(mutex_);
  Slot* find(ethernet::LaneKey key) const;
  /// Limits the frames in an inbox, so that the inboxes of all other endpoints cannot take all frames of a queue from
  /// one endpoint.
  uint32_t inbox_frames_max() const {
    return choice_.receive_buffers / std::max(Queue::kPlaces, slot_count_.load(std::memory_order_relaxed));
  }
  Queue& queue(uint32_t index) const { return *queues_[index].load(std::memory_order_relaxed); }
  void log_mode() REQUIRES(mutex_);

  const PortChoice choice_;
  uint32_t frame_bytes_ = 2048;
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

/// An endpoint's access to a port. The endpoint's thread. A forked child must neither call nor destroy it.
class TERN_API Lane {
 public:
  static constexpr uint32_t kBurstMax = 32;

  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  Queue& home() const { return home_; }
  uint32_t place() const { return slot_.place; }
  /// Tells the port that the kernel may still read frames of the endpoint's place. The place stays unused until the
  /// kernel has read them.
  void leave_place() { is_place_free_ = false; }

  /// Returns frames from the inbox, or from one of this endpoint's queues: frames for this endpoint, and frames to pass
  /// to pass_on(). The inbox has every second turn, and the queues share the others. The caller gives the frames back.
  uint32_t receive(std::span<Frame, kBurstMax> frames);
  void give_back(std::span<const Frame> frames);
  enum class Passed : uint8_t {
    kTaken,    ///< the other endpoint has the frame
    kNoSpace,  ///< the inbox of the other endpoint is full
    kUnknown,  ///< no other endpoint has the destination
  };
  /// Passes a frame to the endpoint that has its destination. The caller keeps it unless this returns kTaken.
  Passed pass_on(const Frame& frame);

  /// Adds the lane's descriptors with `name` to the set, which outlives the lane or stop_waiting().
  Status add_to(base::WaitSet& waits, uint64_t name);
  /// Call it when the interface is gone, because its sockets would end every wait.
  void stop_waiting();
  /// Call it before sleeping. False: frames are waiting, and the lane is not armed.
  bool arm();
  void disarm() { slot_.inbox.disarm(); }
  /// True if there are queues whose frames do not wake this endpoint.
  bool has_foreign() const { return !foreign_.empty(); }
  /// Makes the next receive() without other frames poll those queues.
  void look_at_foreign() { until_foreign_ = 1; }

 private:
  friend class Port;
  Lane(std::shared_ptr<Port> port, Port::Slot& slot)
      : port_(std::move(port)), slot_(slot), home_(port_->queue(slot.queue)) {}
  bool refresh() REQUIRES(port_->mutex_);
  void try_refresh();
  uint32_t receive_foreign(std::span<Frame, kBurstMax> frames);

  /// Number of empty polls of the own queues before one poll of other endpoints' queues, whose cache lines other
  /// processors write.
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
