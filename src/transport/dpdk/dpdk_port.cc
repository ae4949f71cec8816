#include "transport/dpdk/dpdk_port.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_text.h"
#include "base/thread_safety.h"
#include "neighbours/own_address.h"
#include "transport/dpdk/device_descriptors.h"
#include "transport/dpdk/eal.h"
#include "transport/dpdk/lane_internals.h"
#include "transport/dpdk/port_core.h"

namespace tern::transport {

struct DpdkPort::Internals {
  DeviceText text;
  DpdkChoice choice;
  std::unique_ptr<PortCore> core;
};

/// The ports that are open in this process. Never destroyed, because an endpoint may outlive static objects.
class DpdkPort::Registry {
 public:
  static Registry& get() {
    static Registry& registry = *new Registry;
    return registry;
  }

  Result<std::shared_ptr<DpdkPort>> open(const DpdkChoice& choice, const DeviceText& text,
                                         const std::optional<neighbours::OwnAddress>& own) {
    auto user = std::make_shared<User>();
    const base::MutexLock lock(mutex_);
    if (pid_ == 0) pid_ = getpid();
    if (pid_ != getpid()) {
      return Status(
          Code::kUnavailable,
          "dpdk: this process was forked from one that has ports of DPDK, which a child cannot use: open them "
          "after the fork");
    }
    if (Entry* const entry = find(text)) {
      if (Status status = compare(*entry->port->internals_, choice, text); !status.ok()) return status;
      return share(*entry, std::move(user));
    }
    entries_.reserve(entries_.size() + 1);
    const DeviceDescriptors descriptors;
    auto core = PortCore::open(choice, text, own);
    if (!core.ok()) return core.status();
    std::unique_ptr<Internals> internals(new Internals{text, choice, std::move(*core)});
    auto entry = std::make_unique<Entry>();
    entry->port.reset(new DpdkPort(std::move(internals)));
    entries_.push_back(std::move(entry));
    return share(*entries_.back(), std::move(user));
  }

  /// May throw std::bad_alloc.
  std::shared_ptr<DpdkPort> share_again(DpdkPort* port) {
    auto user = std::make_shared<User>();
    const base::MutexLock lock(mutex_);
    const auto entry =
        std::find_if(entries_.begin(), entries_.end(), [&](auto& one) { return one->port.get() == port; });
    return share(**entry, std::move(user));
  }

 private:
  /// It has no port until it is complete, so that it may be destroyed under the mutex before.
  struct User {
    User() = default;
    ~User() {
      if (port != nullptr) get().release(port);
    }
    User(const User&) = delete;
    User& operator=(const User&) = delete;
    DpdkPort* port = nullptr;
  };
  struct Entry {
    PortCore& core() const { return *port->internals_->core; }
    std::unique_ptr<DpdkPort> port;
    uint32_t users = 0;
    bool is_locked = false;  ///< while another port closes
  };

  /// The open port of a device, whose name may be the one that an endpoint gave or the port's own. No name means the
  /// only port that EAL has found, if that is open. Null: the device has no open port.
  Entry* find(const DeviceText& text) REQUIRES(mutex_) {
    for (const auto& entry : entries_) {
      if (text.name == entry->port->internals_->text.name || text.name == entry->core().facts().name)
        return entry.get();
    }
    uint16_t id = 0;
    const bool is_only = text.name.empty() && entries_.size() == 1 && !entries_.front()->core().device().is_plugged() &&
                         DeviceHandle::free_ports(&id) == 0;
    return is_only ? entries_.front().get() : nullptr;
  }

  static Status compare(const Internals& open, const DpdkChoice& choice, const DeviceText& text) {
    const DpdkChoice& other = open.choice;
    const char* differs = nullptr;
    if (!text.arguments.empty() && text.arguments != open.core->device().facts().arguments)
      differs = "device (its arguments)";
    if (!choice.eal.empty() && choice.eal != other.eal) differs = "eal";
    if (choice.address != other.address) differs = "address";
    if (choice.gateway != other.gateway) differs = "gateway";
    if (choice.queues != other.queues) differs = "queues";
    if (choice.mtu_bytes != other.mtu_bytes) differs = "mtu";
    if (choice.receive_buffers != other.receive_buffers) differs = "receive_buffers";
    if (choice.vlan != other.vlan) differs = "vlan";
    if (differs == nullptr) return {};
    return base::status_of(Code::kMisuse, "dpdk: endpoints of one device must have the same options of the device",
                           {"dpdk: another endpoint of this process has ", open.core->facts().name, " with another ",
                            differs, ": endpoints of one device must have the same device, eal, address, gateway, ",
                            "queues, mtu, receive_buffers and vlan in Dpdk::Options"});
  }

  /// Each user has its own pointer, so that the last user closes the port under the mutex. A later open of the device
  /// then finds it closed.
  std::shared_ptr<DpdkPort> share(Entry& entry, std::shared_ptr<User> user) REQUIRES(mutex_) {
    ++entry.users;
    user->port = entry.port.get();
    return {std::move(user), entry.port.get()};
  }
  void release(DpdkPort* port) {
    if (pid_ != getpid()) return;
    const base::MutexLock lock(mutex_);
    const auto entry =
        std::find_if(entries_.begin(), entries_.end(), [&](auto& one) { return one->port.get() == port; });
    if (--(*entry)->users != 0) return;
    const std::unique_ptr<Entry> last = std::move(*entry);
    entries_.erase(entry);
    close(*last);
  }
  void close(Entry& entry) REQUIRES(mutex_) {
    if (!entry.core().unmaps_peers_rings()) return entry.port.reset();
    for (const auto& other : entries_) {
      other->is_locked = other->core().unmaps_peers_rings() && other->core().lock_queues();
    }
    entry.port.reset();
    settle_eal();  // a port at the other end of the cable has no rings now
    for (const auto& other : entries_) {
      if (std::exchange(other->is_locked, false)) other->core().unlock_queues();
    }
  }

  base::Mutex mutex_;
  std::atomic<pid_t> pid_{0};
  std::vector<std::unique_ptr<Entry>> entries_ GUARDED_BY(mutex_);
};

DpdkPort::DpdkPort(std::unique_ptr<Internals> internals) : internals_(std::move(internals)) {}
DpdkPort::~DpdkPort() = default;

Result<std::shared_ptr<DpdkPort>> DpdkPort::open(const DpdkChoice& choice) {
  std::optional<neighbours::OwnAddress> own;
  if (!choice.address.empty()) {
    auto parsed = neighbours::OwnAddress::parse(choice.address, choice.gateway);
    if (!parsed.ok()) return parsed.status();
    own = *parsed;
  } else if (!choice.gateway.empty()) {
    return Status(
        Code::kMisuse,
        "dpdk: Dpdk::Options::gateway needs Dpdk::Options::address; without an address, the kernel's routes apply");
  }
  try {
    return Registry::get().open(choice, DeviceText::parse(choice.device), own);
  } catch (const std::bad_alloc&) {
    return Status(Code::kNoMemory, "dpdk: no memory for a port: free some");
  }
}

const DpdkFacts& DpdkPort::facts() const { return internals_->core->facts(); }
neighbours::Host& DpdkPort::host() { return internals_->core->host(); }
bool DpdkPort::is_own_mode() const { return internals_->core->own().has_value(); }
base::SocketAddress DpdkPort::own_address() const {
  return is_own_mode() ? internals_->core->own()->ip : base::SocketAddress();
}
uint16_t DpdkPort::id() const { return internals_->core->id(); }
Status DpdkPort::failure() const { return internals_->core->failure(); }
uint64_t DpdkPort::events() const { return internals_->core->events(); }
bool DpdkPort::is_link_up() const { return internals_->core->is_link_up(); }
DpdkDrops DpdkPort::take_drops() { return internals_->core->take_drops(); }

Result<std::unique_ptr<DpdkLane>> DpdkPort::attach(base::SocketAddress* own) {
  PortCore& core = *internals_->core;
  std::shared_ptr<DpdkPort> self = Registry::get().share_again(this);
  auto taken = core.attach(own);
  if (!taken.ok()) return taken.status();
  LaneSlot& slot = **taken;
  const uint16_t number = slot.queue.load(std::memory_order_relaxed);
  std::unique_ptr<DpdkLane::Internals> made(new (std::nothrow) DpdkLane::Internals{
      .core = core,
      .slot = slot,
      .queue = core.queue(number),
      .port_id = core.id(),
      .queue_id = number,
      .has_interrupts = core.facts().has_interrupts,
      .port = std::move(self),
  });
  std::unique_ptr<DpdkLane> lane;
  if (made != nullptr) lane.reset(new (std::nothrow) DpdkLane(std::move(made)));
  if (lane == nullptr) {
    core.detach(slot);
    return Status(Code::kNoMemory, "dpdk: no memory for an endpoint: free some");
  }
  return lane;
}

}  // namespace tern::transport
