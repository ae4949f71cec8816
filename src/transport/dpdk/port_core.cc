#include "transport/dpdk/port_core.h"

#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>
#include <random>
#include <utility>

#include "base/clock.h"
#include "base/status_text.h"
#include "base/try.h"
#include "ethernet/names.h"
#include "ethernet/setup.h"
#include "neighbours/kernel_host.h"
#include "neighbours/own_host.h"
#include "transport/dpdk/dpdk_pool.h"
#include "transport/dpdk/eal.h"

namespace tern::transport {

namespace {

using base::status_of;
using neighbours::KernelHost;
using neighbours::OwnHost;

constexpr ethernet::Names kNames{"dpdk", "Dpdk"};
constexpr Status kNoPortMemory{Code::kNoMemory, "dpdk: no memory for a port: free some"};

/// True if the kernel has an interface with this index and MTU. `index`: 0 for none.
bool has_mtu(uint32_t index, uint32_t mtu_bytes) {
  if (index == 0) return false;
  const auto interface = neighbours::interface_by_index(index);
  return interface.ok() && interface->mtu_bytes == mtu_bytes;
}

/// IANA's dynamic ports: 49152 to 65535.
constexpr uint32_t kPortMin = 49152, kPorts = 65536 - kPortMin;
constexpr uint32_t kHostFrames = 256;
/// Used if the driver does not report the rate: 10 Gbit/s.
constexpr uint32_t kMegabits = 10'000;
constexpr uint32_t kMbufCache = 128;

DpdkWishes wishes_of(const DpdkChoice& choice) {
  DpdkWishes wishes;
  wishes.queues = choice.queues;
  wishes.mtu_bytes = choice.mtu_bytes;
  wishes.receive_buffers = choice.receive_buffers;
  wishes.is_own_mode = !choice.address.empty();
  const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
  wishes.cpus = cpus > 0 ? static_cast<uint32_t>(cpus) : 1;
  return wishes;
}

Status why_refused(const std::string& device, std::string_view what, int error) {
  const std::string line = eal_reason();
  return status_of(Code::kUnavailable, "dpdk: the driver refuses to start the device",
                   {"dpdk: the driver of ", device, " refuses ", what, " (", std::strerror(error < 0 ? -error : error),
                    ")", line, ": see the driver's guide for what it needs"});
}

/// `error`: of the failed call for a flow rule.
Status why_no_rule(const std::string& device, const rte_flow_error& error) {
  const int number = rte_errno;
  Status status{Code::kUnavailable, "dpdk: the driver refuses a flow rule: see the driver's guide for what it needs"};
  (void)base::try_grow([&] {
    const std::string what = error.message != nullptr ? "a flow rule: " + std::string(error.message) : "a flow rule";
    status = why_refused(device, what, number);
  });
  return status;
}

}  // namespace

// ---- FrameRing

void FrameRing::Deleter::operator()(rte_ring* ring) const { std::free(ring); }

bool FrameRing::open(uint32_t count) {
  const ssize_t bytes = rte_ring_get_memsize(count);
  void* const memory = bytes <= 0 ? nullptr : std::aligned_alloc(RTE_CACHE_LINE_SIZE, static_cast<size_t>(bytes));
  if (memory == nullptr) return false;
  ring_.reset(static_cast<rte_ring*>(memory));
  return rte_ring_init(ring_.get(), "tern", count, RING_F_SC_DEQ) == 0;
}

void FrameRing::drain() const {
  std::array<rte_mbuf*, 32> frames;
  while (const uint32_t count = pop(frames)) rte_pktmbuf_free_bulk(frames.data(), count);
}

// ---- Beginning and end

Result<std::unique_ptr<PortCore>> PortCore::open(const DpdkChoice& choice, const DeviceText& text,
                                                 const std::optional<neighbours::OwnAddress>& own) {
  const DpdkWishes wishes = wishes_of(choice);
  const EalChoice eal{choice.eal, guess_memory_bytes(wishes), text.name.empty()};
  if (Status status = start_eal(eal); !status.ok()) return status;
  const SilentOutput silence;
  std::unique_ptr<PortCore> core(new (std::nothrow) PortCore(choice));
  if (core == nullptr) return kNoPortMemory;
  core->own_ = own;
  auto device = DeviceHandle::open(text);
  if (!device.ok()) return device.status();
  core->device_ = std::move(*device);
  core->id_ = core->device_->port_id();
  core->has_barrier_ = QueueGate::prepare();
  if (Status status = core->start(wishes); !status.ok()) return status;
  if (Status status = core->open_host(); !status.ok()) return status;
  core->join_groups();
  {
    const base::MutexLock lock(core->mutex_);
    core->mac_ = core->facts_.mac;
  }
  if (Status status = core->start_thread(); !status.ok()) return status;
  return core;
}

PortCore::~PortCore() {
  const SilentOutput silence;
  stop_thread();
  if (has_callbacks_) {
    for (const rte_eth_event_type event : {RTE_ETH_EVENT_INTR_RMV, RTE_ETH_EVENT_INTR_LSC}) {
      while (rte_eth_dev_callback_unregister(id_, event, on_event, this) == -EAGAIN) usleep(1000);
    }
  }
  stop_device();
  host_.reset();
  device_.reset();  // the driver frees its mbufs; then their pools can be freed
  for (const auto& slot : owned_slots_) slot->inbox.drain();
  if (host_inbox_.get() != nullptr) host_inbox_.drain();
  if (host_outbox_.get() != nullptr) host_outbox_.drain();
}

Status PortCore::failure() const {
  if (!is_gone_.load(std::memory_order_relaxed)) [[likely]]
    return {};
  return status_of(Code::kUnavailable, "dpdk: the device was removed",
                   {"dpdk: the device ", facts_.name, " was removed: plug it in, and create a new endpoint"});
}

// ---- The device

Status PortCore::start(const DpdkWishes& wishes) {
  const DpdkDevice& device = device_->facts();
  if (!own_ && device.info.if_index == 0) {
    return status_of(
        Code::kUnavailable, "dpdk: the device needs Dpdk::Options::address",
        {"dpdk: the device ", device.name,
         " has no interface in the kernel that would give it an address: set Dpdk::Options::address, such ",
         "as 10.0.0.1/24"});
  }
  Status status;
  for (const DpdkSteering steering : possible_steerings(device, wishes)) {
    auto plan = plan_dpdk(device, wishes, steering);
    if (!plan.ok()) return plan.status();
    status = start_as(*plan);
    if (status.ok()) {
      fill_facts();
      return open_interrupts();
    }
    stop_device();
  }
  return status;
}

Status PortCore::start_as(const DpdkPlan& plan) {
  plan_ = plan;
  // A rule of tern's must not take traffic from the kernel.
  const bool wants_isolation = plan.steering == DpdkSteering::kFlows && !own_;
  rte_flow_error error{};
  if (wants_isolation) is_isolated_ = rte_flow_isolate(id_, 1, &error) == 0;
  if (Status status = configure(plan); !status.ok()) return status;
  // A driver without rte_flow is refused before queues and memory are set up.
  if (plan.steering == DpdkSteering::kFlows && !can_steer()) return why_refused(facts_.name, "flow rules", ENOTSUP);
  if (Status status = make_queues(plan); !status.ok()) return status;
  if (Status status = start_device(); !status.ok()) return status;
  return can_steer() ? Status() : why_refused(facts_.name, "to steer frames", ENOTSUP);
}

Status PortCore::configure(const DpdkPlan& plan) {
  clear_eal_log();
  facts_.name = device_->facts().name;
  rte_ether_addr mac{};
  (void)rte_eth_macaddr_get(id_, &mac);
  facts_.mac = frames::MacAddress::from_bytes(std::as_bytes(std::span(mac.addr_bytes)));
  int error = rte_eth_dev_configure(id_, plan.queues, plan.queues, &plan_.conf);
  if (error != 0) {  // without interrupts then
    plan_.conf.intr_conf = {};
    error = rte_eth_dev_configure(id_, plan.queues, plan.queues, &plan_.conf);
  }
  if (error == -EBUSY) {
    return status_of(
        Code::kUnavailable, "dpdk: the program uses the port itself",
        {"dpdk: the program has started the port ", facts_.name, " itself: stop it, or use another device"});
  }
  if (error != 0) return why_refused(facts_.name, "its configuration", error);
  // The configuration's MTU only sizes buffers, and is what rte_eth_dev_get_mtu() returns from now on.
  if (choice_.mtu_bytes != 0) error = rte_eth_dev_set_mtu(id_, static_cast<uint16_t>(plan.mtu_bytes));
  // A device without an MTU of its own; or its interface has this MTU, and the process has no right to change it.
  const bool is_forbidden = error == -EPERM || error == -EACCES;
  if (error == -ENOTSUP || (is_forbidden && has_mtu(device_->facts().info.if_index, plan.mtu_bytes))) error = 0;
  return error == 0 ? Status() : why_refused(facts_.name, "the MTU of Dpdk::Options::mtu", error);
}

Status PortCore::make_queues(const DpdkPlan& plan) {
  // A driver may have frames of an earlier attempt.
  if (queues_ != nullptr) retired_queues_.push_back(std::move(queues_));
  queues_.reset(new (std::nothrow) PortQueue[plan.queues]);
  if (queues_ == nullptr) return kNoPortMemory;
  const int socket = std::max(rte_eth_dev_socket_id(id_), 0);
  static std::atomic<uint32_t> pools_made{0};
  for (uint16_t i = 0; i < plan.queues; ++i) {
    const std::string name = "tern_rx_" + std::to_string(pools_made.fetch_add(1));
    PortQueue& queue = queues_[i];
    queue.pool.reset(make_receive_pool(name, plan, kMbufCache, socket));
    if (queue.pool == nullptr) {
      const std::string mbufs = std::to_string(plan.mbufs), bytes = std::to_string(plan.mbuf_bytes);
      return status_of(Code::kUnavailable, "dpdk: EAL has no memory for received frames",
                       {"dpdk: EAL has no memory for ", mbufs, " frames of ", bytes,
                        " bytes: make hugepages (/proc/sys/vm/nr_hugepages), raise -m in Dpdk::Options::eal, or lower ",
                        "Dpdk::Options::receive_buffers or queues"});
    }
    if (!has_barrier_) {
      queue.receive_gate.claim();
      queue.send_gate.claim();
    }
    const auto numa_node = static_cast<unsigned>(socket);
    int error = rte_eth_rx_queue_setup(id_, i, plan.receive_descriptors, numa_node, nullptr, queue.pool.get());
    if (error == 0) error = rte_eth_tx_queue_setup(id_, i, plan.send_descriptors, numa_node, nullptr);
    if (error != 0) return why_refused(facts_.name, "its queues", error);
  }
  return {};
}

Status PortCore::start_device() {
  (void)rte_eth_promiscuous_disable(id_);  // an earlier program may have enabled it
  const int error = rte_eth_dev_start(id_);
  is_started_ = error == 0;
  if (error != 0) return why_refused(facts_.name, "to start", error);
  (void)rte_eth_dev_callback_register(id_, RTE_ETH_EVENT_INTR_RMV, on_event, this);
  (void)rte_eth_dev_callback_register(id_, RTE_ETH_EVENT_INTR_LSC, on_event, this);
  has_callbacks_ = true;
  return {};
}

/// Tries the planned steering. False: the device refuses it.
bool PortCore::can_steer() {
  // The address of a port in own mode; otherwise any address serves for the attempt.
  base::SocketAddress address = own_ ? own_->ip : base::SocketAddress::loopback(AF_INET);
  address.set_port(kPortMin);
  switch (plan_.steering) {
    case DpdkSteering::kFlows:
      flows_ = FlowRules::probe(id_, target_of(address), !own_, is_started_);
      return flows_.has_value();
    case DpdkSteering::kHashes: {
      const base::MutexLock lock(mutex_);
      hashes_ = HashTable::create(id_, device_->facts().info, address.family());
      return hashes_ != nullptr;
    }
    case DpdkSteering::kShared:
      return true;
  }
  return false;
}

void PortCore::stop_device() {
  if (has_callbacks_) {
    (void)rte_eth_dev_callback_unregister(id_, RTE_ETH_EVENT_INTR_RMV, on_event, this);
    (void)rte_eth_dev_callback_unregister(id_, RTE_ETH_EVENT_INTR_LSC, on_event, this);
    has_callbacks_ = false;
  }
  if (is_started_) device_->stop();
  is_started_ = false;
  flows_.reset();
  rte_flow_error error{};
  if (is_isolated_) (void)rte_flow_isolate(id_, 0, &error);
  is_isolated_ = false;
}

void PortCore::fill_facts() {
  rte_eth_link link{};
  const bool has_link = rte_eth_link_get_nowait(id_, &link) == 0;
  const bool tells_speed = has_link && link.link_speed != 0 && link.link_speed != RTE_ETH_SPEED_NUM_UNKNOWN;
  is_link_up_.store(has_link && link.link_status == RTE_ETH_LINK_UP, std::memory_order_relaxed);
  facts_.bytes_per_sec = uint64_t{tells_speed ? link.link_speed : kMegabits} * 1'000'000 / 8;
  facts_.mtu_bytes = plan_.mtu_bytes;
  facts_.interface_index = device_->facts().info.if_index;
  facts_.makes_checksums = plan_.makes_checksums;
  facts_.checks_checksums = plan_.checks_checksums;
  facts_.gathers = plan_.gathers;
  facts_.uses_dma = device_->facts().has_dma;
  facts_.is_steered = plan_.steering != DpdkSteering::kShared;
  facts_.receive_descriptors = plan_.receive_descriptors;
  facts_.send_descriptors = plan_.send_descriptors;
}

/// Opens the interrupts of the queues. Only this attempt shows whether the driver has interrupts.
Status PortCore::open_interrupts() {
  facts_.has_interrupts = plan_.conf.intr_conf.rxq != 0;
  for (uint16_t i = 0; i < plan_.queues && facts_.has_interrupts; ++i) {
    base::Descriptor& set = queues_[i].interrupts;
    set = base::Descriptor(epoll_create1(EPOLL_CLOEXEC));
    if (!set) return {Code::kUnavailable, "dpdk: no descriptors are left for a port: raise ulimit -n"};
    facts_.has_interrupts = rte_eth_dev_rx_intr_ctl_q(id_, i, set.get(), RTE_INTR_EVENT_ADD, nullptr) == 0 &&
                            rte_eth_dev_rx_intr_enable(id_, i) == 0 && rte_eth_dev_rx_intr_disable(id_, i) == 0;
  }
  return {};
}

Status PortCore::open_host() {
  if (!host_inbox_.open(kHostFrames) || !host_outbox_.open(kHostFrames)) return kNoPortMemory;
  const auto send = [this](std::span<const std::byte> frame) { queue_for_host(frame); };
  if (own_) {
    OwnHost::Options options;
    options.name = facts_.name;
    options.mac = facts_.mac;
    options.address = *own_;
    options.mtu_bytes = facts_.mtu_bytes;
    options.vlan = choice_.vlan;
    auto host = OwnHost::create(options, send, base::monotonic_ns());
    if (!host.ok()) return host.status();
    host_ = std::move(*host);
    return {};
  }
  auto interface = ethernet::find_interface(kNames, facts_.name, facts_.interface_index);
  if (interface.ok() && choice_.vlan != 0) interface = ethernet::find_vlan(kNames, *interface, choice_.vlan);
  if (!interface.ok()) return interface.status();
  facts_.interface_index = interface->index;
  auto host = KernelHost::create(interface->index, choice_.vlan, send);
  if (!host.ok()) return host.status();
  host_ = std::move(*host);
  return {};
}

/// Makes the port receive multicast frames, which neighbour discovery needs. A driver that refuses both ways does not
/// filter groups (net_memif).
void PortCore::join_groups() {
  std::vector<rte_ether_addr> groups;
  for (const frames::MacAddress& group : host_->groups()) {
    std::memcpy(groups.emplace_back().addr_bytes, group.bytes().data(), frames::MacAddress::kBytes);
  }
  if (groups.empty()) return;
  if (rte_eth_dev_set_mc_addr_list(id_, groups.data(), static_cast<uint32_t>(groups.size())) != 0) {
    (void)rte_eth_allmulticast_enable(id_);
  }
}

// ---- Endpoints

bool PortCore::has_address(const base::SocketAddress& address) const {
  const uint32_t count = slot_count_.load(std::memory_order_acquire);
  base::SocketAddress wanted = address;
  for (uint32_t i = 0; i < count; ++i) {
    const ethernet::LaneKey key = slots_[i].load(std::memory_order_relaxed)->key.load(std::memory_order_relaxed);
    wanted.set_port(static_cast<uint16_t>(key));
    if (key != 0 && ethernet::lane_key_of(wanted) == key) return true;
  }
  wanted.set_port(0);
  return own_ && wanted == own_->ip;
}

Result<LaneSlot*> PortCore::attach(base::SocketAddress* own) {
  const base::MutexLock lock(mutex_);
  if (Status status = failure(); !status.ok()) return status;
  if (Status status = choose_port(own); !status.ok()) return status;
  const auto queue = choose_queue(*own);
  if (!queue.ok()) return queue.status();
  const auto taken = take_slot();
  if (!taken.ok()) return taken.status();
  LaneSlot& slot = **taken;
  slot.own = *own;
  slot.queue.store(*queue, std::memory_order_relaxed);
  if (Status status = steer(slot); !status.ok()) return status;
  slot.is_used = true;
  slot.inbox.drain();  // frames from threads that had found the slot's last endpoint
  PortQueue& lanes_queue = queues_[*queue];
  if (lanes_queue.lanes.load(std::memory_order_relaxed) != 0) claim(*queue);  // from now on the users take locks
  lanes_queue.lanes.fetch_add(1, std::memory_order_seq_cst);
  slot.key.store(ethernet::lane_key_of(*own), std::memory_order_release);
  return &slot;
}

void PortCore::detach(LaneSlot& slot) {
  const base::MutexLock lock(mutex_);
  slot.key.store(0, std::memory_order_relaxed);
  slot.is_armed.store(false, std::memory_order_relaxed);
  const uint16_t number = slot.queue.load(std::memory_order_relaxed);
  if (slot.rule != nullptr) flows_->remove(std::exchange(slot.rule, nullptr));
  if (hashes_ != nullptr && number != 0) hashes_->free(slot.own.port());
  if (queues_[number].lanes.fetch_sub(1, std::memory_order_seq_cst) > 1) unclaim(number);
  slot.inbox.drain();
  slot.is_used = false;
  // The endpoint may have taken the interrupt of others that sleep at its queue, and it will not read their frames.
  for (const auto& other : owned_slots_) {
    if (other->is_used && other->queue.load(std::memory_order_relaxed) == number &&
        other->is_armed.load(std::memory_order_relaxed)) {
      other->wake.wake();
    }
  }
}

/// Adds the new rule before it removes the old one, so that no frame is without a rule, unless the device has no place
/// for both. The interface has the new address already.
Status PortCore::follow_mac(LaneSlot& slot, const frames::MacAddress& mac) {
  const base::MutexLock lock(mutex_);
  mac_ = mac;
  if (slot.rule == nullptr || slot.rule_mac == mac || !flows_->has_mac()) return {};
  FlowTarget target = target_of(slot.own);
  target.mac = mac;
  const uint16_t queue = slot.queue.load(std::memory_order_relaxed);
  clear_eal_log();
  rte_flow_error error{};
  rte_flow* rule = flows_->add(target, queue, &error);
  flows_->remove(std::exchange(slot.rule, nullptr));
  if (rule == nullptr) {
    error = {};
    rule = flows_->add(target, queue, &error);
  }
  if (rule == nullptr) return why_no_rule(facts_.name, error);
  slot.rule = rule;
  slot.rule_mac = mac;
  return {};
}

Status PortCore::choose_port(base::SocketAddress* own) {
  const auto is_free = [&] { return find(ethernet::lane_key_of(*own)) == nullptr; };
  if (own->port() != 0) {
    if (is_free()) return {};
    const std::string port = std::to_string(own->port());
    return status_of(Code::kUnavailable, "dpdk: another endpoint of this process has the UDP port",
                     {"dpdk: another endpoint of this process has the UDP port ", port, " at ", facts_.name,
                      ": leave it out of Dpdk::Options::bind, or choose another one"});
  }
  std::minstd_rand random(std::random_device{}());
  const auto first = static_cast<uint32_t>(random() % kPorts);
  for (uint32_t i = 0; i < kPorts; ++i) {
    own->set_port(static_cast<uint16_t>(kPortMin + (first + i) % kPorts));
    if (is_free() && (hashes_ == nullptr || hashes_->is_free(own->port()))) return {};
  }
  return {Code::kUnavailable, "dpdk: all UDP ports of the device are in use: use fewer endpoints"};
}

Result<uint16_t> PortCore::choose_queue(const base::SocketAddress& own) {
  if (plan_.steering == DpdkSteering::kShared) return uint16_t{0};
  if (hashes_ != nullptr && !hashes_->is_free(own.port()))
    return uint16_t{0};  // queue 0, with all frames that have no other queue
  for (uint16_t i = 1; i < plan_.queues; ++i) {
    if (queues_[i].lanes.load(std::memory_order_relaxed) == 0) return i;
  }
  const std::string queues = std::to_string(plan_.queues - 1);
  return status_of(Code::kUnavailable, "dpdk: all queues are in use: raise Dpdk::Options::queues",
                   {"dpdk: all ", queues, " queues of ", facts_.name,
                    " are in use by an endpoint each: raise Dpdk::Options::queues, or use fewer endpoints"});
}

Result<LaneSlot*> PortCore::take_slot() {
  for (const auto& slot : owned_slots_) {
    if (!slot->is_used) return slot.get();
  }
  const auto count = static_cast<uint32_t>(owned_slots_.size());
  if (count == kLanesMax) {
    return Status(Code::kUnavailable, "dpdk: a device has at most 256 endpoints in a process: use fewer endpoints");
  }
  std::unique_ptr<LaneSlot> slot(new (std::nothrow) LaneSlot);
  if (slot == nullptr || !slot->inbox.open(kInboxFrames)) return kNoPortMemory;
  if (!slot->wake.open()) {
    return Status(Code::kUnavailable, "dpdk: no descriptors are left for an endpoint: raise ulimit -n");
  }
  slots_[count].store(slot.get(), std::memory_order_relaxed);
  owned_slots_.push_back(std::move(slot));
  slot_count_.store(count + 1, std::memory_order_release);
  return owned_slots_.back().get();
}

Status PortCore::steer(LaneSlot& slot) {
  const uint16_t queue = slot.queue.load(std::memory_order_relaxed);
  if (queue == 0) return {};
  if (hashes_ != nullptr && !hashes_->lead(slot.own.port(), queue)) {
    return why_refused(facts_.name, "to steer a UDP port to a queue", rte_errno);
  }
  if (!flows_) return {};
  clear_eal_log();
  rte_flow_error error{};
  slot.rule_mac = facts_.mac;
  slot.rule = flows_->add(target_of(slot.own), queue, &error);
  return slot.rule != nullptr ? Status() : why_no_rule(facts_.name, error);
}

}  // namespace tern::transport
