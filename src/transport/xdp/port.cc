#include "transport/xdp/port.h"

#include <linux/ethtool.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/status_text.h"
#include "base/try.h"
#include "transport/xdp/flow_rules.h"
#include "transport/xdp/messages.h"
#include "transport/xdp/names.h"

namespace tern::transport::xdp {

namespace {

using ethernet::status_of;

/// The kernel frees the queue of a socket some time after the socket was closed. A taken queue is therefore tried again
/// for this time.
constexpr uint64_t kLateNs = 1'000'000'000;
/// The wait for frames in the kernel. An interface that is up sends them in less time.
constexpr uint64_t kSendNs = 20'000'000;

/// The rate of a link that the driver does not report: 10 Gbit/s.
uint64_t link_megabits(uint32_t interface) {
  ethtool_cmd link{};
  link.cmd = ETHTOOL_GSET;
  const uint32_t speed = ask_interface(interface)(&link) == 0 ? ethtool_cmd_speed(&link) : 0;
  return speed == 0 || speed == static_cast<uint32_t>(SPEED_UNKNOWN) ? 10'000 : speed;
}

/// The network namespace of the calling thread. 0: unknown.
ino_t network_namespace() {
  struct stat about {};
  return stat("/proc/thread-self/ns/net", &about) == 0 ? about.st_ino : 0;
}

}  // namespace

/// The ports that are open in this process. Never destroyed, because an endpoint may outlive static objects. A forked
/// child gets a new object, and does not change the ports of its parent.
class Port::Registry {
 public:
  static Registry& get() {
    static std::atomic<Registry*> current{nullptr};
    Registry* known = current.load(std::memory_order_acquire);
    if (known != nullptr && known->pid_ == getpid()) return *known;
    auto* const fresh = new Registry;
    if (current.compare_exchange_strong(known, fresh)) return *fresh;
    delete fresh;  // another thread was faster
    return *known;
  }

  Result<std::shared_ptr<Port>> open(const PortChoice& choice) {
    const auto user = std::make_shared<User>();
    const base::MutexLock lock(mutex_);
    const ino_t network = network_namespace();
    for (Entry& entry : entries_) {
      const PortChoice& open = entry.port->choice_;
      if (entry.network != network || open.interface.index != choice.interface.index) continue;
      if (open.wish == choice.wish && open.receive_buffers == choice.receive_buffers && open.queues == choice.queues) {
        return share(entry, user);
      }
      return status_of(kNames, Code::kMisuse, "endpoints of one interface must have the same options of the interface",
                       {"another endpoint of this process has ", choice.interface.name,
                        " with another mode, queues or receive_buffers: give all endpoints of an interface the same "
                        "three in Xdp::Options"});
    }
    std::unique_ptr<Port> port(new (std::nothrow) Port(choice));
    if (port == nullptr || !base::try_reserve(entries_, entries_.size() + 1)) return kNoMemory;
    if (Status status = port->start(); !status.ok()) return status;
    entries_.push_back({std::move(port), network, 0});
    return share(entries_.back(), user);
  }

 private:
  struct Entry {
    std::unique_ptr<Port> port;
    ino_t network;
    uint32_t users;
  };

  /// The last pointer of one user destroys it. It is made before the port is taken, because that needs memory.
  struct User {
    ~User() {
      if (port != nullptr) get().release(port);
    }
    Port* port = nullptr;
  };

  /// Each user has its own pointer, so that the last user closes the port under the mutex. A later open of the
  /// interface then finds its queues free.
  static std::shared_ptr<Port> share(Entry& entry, const std::shared_ptr<User>& user) {
    ++entry.users;
    user->port = entry.port.get();
    return {user, user->port};
  }
  void release(Port* port) {
    const base::MutexLock lock(mutex_);
    const auto entry =
        std::find_if(entries_.begin(), entries_.end(), [&](auto& one) { return one.port.get() == port; });
    if (--entry->users == 0) entries_.erase(entry);
  }

  base::Mutex mutex_;
  const pid_t pid_ = getpid();
  std::vector<Entry> entries_ GUARDED_BY(mutex_);
};

// ---- Beginning and end

Port::Port(const PortChoice& choice) : choice_(choice) {}

Result<std::shared_ptr<Port>> Port::open(const PortChoice& choice) {
  try {
    return Registry::get().open(choice);
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
}

Status Port::start() {
  const base::MutexLock lock(mutex_);
  take_messages();
  const neighbours::Interface& interface = choice_.interface;
  frame_bytes_ = interface.mtu_bytes + kLinkBytes + Queue::kHeadroomBytes <= 2048 ? 2048 : 4096;
  link_bytes_per_sec_ = link_megabits(interface.index) * 1'000'000 / 8;
  AttachOptions options;
  if (choice_.wish != Wish::kBest) options.mode = choice_.wish == Wish::kGeneric ? Mode::kGeneric : Mode::kNative;
  auto steering = Steering::open(interface, options);
  if (!steering.ok()) return steering.status();
  steering_ = std::move(*steering);
  is_native_ = steering_->mode() == Mode::kNative;
  const uint64_t until_ns = base::monotonic_ns() + kLateNs;
  for (uint32_t i = 0; i < std::max(choice_.queues, 1u); ++i) {
    bool is_none_left = false;
    Status status;
    for (;;) {
      status = add_queue(&is_none_left);
      if (!is_none_left || base::monotonic_ns() >= until_ns) break;
      usleep(1000);
    }
    if (is_none_left && i > 0) {
      const std::string free = std::to_string(i), wanted = std::to_string(choice_.queues);
      return status_of(kNames, Code::kUnavailable, "the network interface has not enough free pairs of queues",
                       {interface.name, " has only ", free,
                        " free pairs of a receive and a send queue, and Xdp::Options::queues wants ", wanted,
                        ": lower that number, or give the interface more (ethtool -L ", interface.name, ")"});
    }
    if (!status.ok()) return status;
  }
  has_zero_copy_ = owned_queues_.front()->is_zero_copy();
  log_mode();
  return {};
}

Port::~Port() {
  const base::MutexLock lock(mutex_);
  if (steering_ == nullptr) return;
  for (const auto& queue : owned_queues_) steering_->remove_socket(queue->number());
}

void Port::close_in_child() {
  mutex_.assert_held();  // the child has one thread, and the mutex is as it was in the parent
  steering_->close_in_child();
  const uint32_t count = queue_count();
  for (uint32_t i = 0; i < count; ++i) queue(i).close_in_child();
}

std::string_view Port::mode() const {
  if (has_zero_copy_) return "zero_copy";
  return is_native_ ? "native" : "generic";
}

void Port::log_mode() {
  const std::string mode(this->mode());
  const std::string& why = steering_->why_generic();
  syslog(LOG_INFO, "tern: xdp: %s by mode %s%s%s", choice_.interface.name.c_str(), mode.c_str(),
         why.empty() ? "" : ", because: ", why.c_str());
}

// ---- Queues

/// Queues that can have a socket, which receives and sends. `ethtool -L` changes their number.
uint32_t Port::device_queues() const {
  return queue_pairs(ask_interface(choice_.interface.index), choice_.interface.send_queues);
}

/// Takes the first free queue. A queue that was closed a moment ago counts as taken. The kernel frees it under the lock
/// that attaching the program takes, so that this process's queues are free again when its next port opens.
Status Port::add_queue(bool* is_none_left) {
  *is_none_left = false;
  Queue::Choice wanted;
  wanted.interface_index = choice_.interface.index;
  wanted.interface = choice_.interface.present_name();
  wanted.frame_bytes = frame_bytes_;
  wanted.receive_frames = choice_.receive_buffers;
  wanted.may_copy = choice_.wish != Wish::kZeroCopy;
  wanted.may_zero_copy = choice_.wish != Wish::kNative && steering_->mode() == Mode::kNative;
  const size_t count = owned_queues_.size();
  if (!base::try_reserve(owned_queues_, count + 1) || !base::try_reserve(places_, count + 1)) return kNoMemory;
  const uint32_t all = device_queues();
  for (uint32_t number = 0; number < all && count < kQueuesMax; ++number) {
    const auto has_number = [&](const auto& queue) { return queue->number() == number; };
    if (std::any_of(owned_queues_.begin(), owned_queues_.end(), has_number)) continue;
    wanted.number = number;
    bool is_taken = false;
    auto opened = Queue::open(wanted, &is_taken);
    if (is_taken) continue;
    if (!opened.ok()) return opened.status();
    if (Status status = steering_->add_socket(number, (*opened)->descriptor()); !status.ok()) return status;
    queues_[count].store(opened->get(), std::memory_order_relaxed);
    owned_queues_.push_back(std::move(*opened));
    places_.emplace_back();
    queue_count_.store(static_cast<uint32_t>(count) + 1, std::memory_order_release);
    return {};
  }
  *is_none_left = true;
  const std::string queues = std::to_string(all);
  return status_of(kNames, Code::kUnavailable, "all queues of the network interface are taken",
                   {"all pairs of a receive and a send queue of ", wanted.interface, " (", queues,
                    ") are taken by other processes: end one of them, or give the interface more (ethtool -L ",
                    wanted.interface, ")"});
}

uint32_t Port::lanes_at(uint32_t queue) const {
  const auto is_here = [queue](const auto& slot) { return slot->is_used && slot->queue == queue; };
  return static_cast<uint32_t>(std::count_if(owned_slots_.begin(), owned_slots_.end(), is_here));
}

/// Index of the queue with the fewest endpoints.
uint32_t Port::find_emptiest() const {
  uint32_t best = 0;
  for (uint32_t i = 1; i < owned_queues_.size(); ++i) {
    if (lanes_at(i) < lanes_at(best)) best = i;
  }
  return best;
}

/// Frees the places that ended endpoints have left, if the kernel has read their frames. An interface that was down
/// keeps frames until it is up and a system call makes it send. False: the kernel may still read some.
bool Port::take_back_places(uint32_t queue) {
  Queue& of = *owned_queues_[queue];
  Places& places = places_[queue];
  if (std::find(places.begin(), places.end(), Place::kLeft) == places.end()) return true;
  uint64_t calls = 0;
  (void)of.kick(calls);
  of.reap();
  bool is_all = true;
  for (uint32_t place = 0; place < Queue::kPlaces; ++place) {
    if (places[place] != Place::kLeft) continue;
    const bool is_done = of.is_place_done(place);
    if (is_done) places[place] = Place::kFree;
    is_all = is_all && is_done;
  }
  return is_all;
}

/// False: all places are taken, or the kernel does not give back the places that ended endpoints have left.
bool Port::find_place(uint32_t queue, uint32_t* place) {
  const uint64_t until_ns = base::monotonic_ns() + kSendNs;
  for (;;) {
    const bool is_all_back = take_back_places(queue);
    const Places& places = places_[queue];
    const auto found = std::find(places.begin(), places.end(), Place::kFree);
    *place = static_cast<uint32_t>(found - places.begin());
    if (found != places.end()) return true;
    if (is_all_back || base::monotonic_ns() >= until_ns) return false;
    usleep(1000);
  }
}

/// Returns the queue and the place of the next endpoint: at a new queue, if one is wanted and free.
Result<Port::Spot> Port::choose_spot() {
  uint32_t best = find_emptiest();
  if (choice_.queues == 0 && lanes_at(best) != 0) {
    bool is_none_left = false;
    const Status status = add_queue(&is_none_left);
    if (!status.ok() && !is_none_left) return status;
    best = find_emptiest();
  }
  if (uint32_t place = 0; find_place(best, &place)) return Spot{best, place};
  const std::string name = choice_.interface.present_name();
  const bool has_more = choice_.queues != 0 && choice_.queues < device_queues();
  const std::string remedy =
      has_more ? "raise Xdp::Options::queues" : "give the interface more queues (ethtool -L " + name + ")";
  return status_of(
      kNames, Code::kUnavailable, "all places at the queues of the network interface are taken",
      {"16 endpoints share each queue of ", name, ", which is the maximum: ", remedy, ", or use fewer endpoints"});
}

// ---- Endpoints

Result<Port::Slot*> Port::take_slot() {
  for (const auto& slot : owned_slots_) {
    if (!slot->is_used) return slot.get();
  }
  const auto count = static_cast<uint32_t>(owned_slots_.size());
  if (count == kLanesMax) {
    return Status(Code::kUnavailable, "xdp: an interface has at most 256 endpoints in a process: use fewer endpoints");
  }
  std::unique_ptr<Slot> slot(new (std::nothrow) Slot);
  if (slot == nullptr || !base::try_reserve(owned_slots_, count + 1)) return kNoMemory;
  if (!slot->inbox.open()) return kNoDescriptors;
  slots_[count].store(slot.get(), std::memory_order_relaxed);
  owned_slots_.push_back(std::move(slot));
  slot_count_.store(count + 1, std::memory_order_release);
  return owned_slots_.back().get();
}

Result<std::unique_ptr<Lane>> Port::attach(const std::shared_ptr<Port>& self, const base::SocketAddress& own) {
  const base::MutexLock lock(mutex_);
  const auto spot = choose_spot();
  if (!spot.ok()) return spot.status();
  announce_shares();  // before anything else can fail, because there may be a new queue
  const auto taken = take_slot();
  if (!taken.ok()) return taken.status();
  Slot& slot = **taken;
  slot.own = own;
  slot.queue = spot->queue;
  slot.place = spot->place;
  std::unique_ptr<Lane> lane(new (std::nothrow) Lane(self, slot));
  if (lane == nullptr) return kNoMemory;
  slot.inbox.begin();
  slot.is_used = true;
  places_[slot.queue][slot.place] = Place::kTaken;
  slot.key.store(ethernet::lane_key_of(own), std::memory_order_release);
  Status status = kNoMemory;
  (void)base::try_grow([&] {
    mutex_.assert_held();
    status = steering_->add_port(own, owned_queues_[slot.queue]->number());
  });
  if (!status.ok()) {
    detach_locked(slot, true);
    lane->is_attached_ = false;
    return status;
  }
  return lane;
}

void Port::detach(Slot& slot, bool is_place_free) {
  const base::MutexLock lock(mutex_);
  steering_->remove_port(slot.own);
  detach_locked(slot, is_place_free);
}

void Port::detach_locked(Slot& slot, bool is_place_free) {
  slot.key.store(0, std::memory_order_relaxed);
  slot.inbox.disarm();
  slot.inbox.shut();
  std::array<Frame, Lane::kBurstMax> left;
  while (const uint32_t count = slot.inbox.pop(left)) {
    for (const Frame& frame : std::span(left).first(count)) frame.queue->give_back({&frame, 1});
  }
  places_[slot.queue][slot.place] = is_place_free ? Place::kFree : Place::kLeft;
  slot.is_used = false;
  announce_shares();
}

/// Makes all endpoints read their shares of queues again when the mutex is free. Sleeping endpoints wake for it,
/// because the packets of a new queue would not wake them.
void Port::announce_shares() {
  version_.fetch_add(1, std::memory_order_seq_cst);
  for (const auto& slot : owned_slots_) slot->inbox.wake_if_armed();
}

Port::Slot* Port::find(ethernet::LaneKey key) const {
  if (key == 0) return nullptr;
  const uint32_t count = slot_count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    Slot* const slot = slots_[i].load(std::memory_order_relaxed);
    if (slot->key.load(std::memory_order_relaxed) == key) return slot;
  }
  return nullptr;
}

}  // namespace tern::transport::xdp
