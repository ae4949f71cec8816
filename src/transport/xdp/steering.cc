#include "transport/xdp/steering.h"

#include <bpf/bpf.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <new>
#include <string_view>
#include <utility>

#include "base/status_text.h"
#include "base/try.h"
#include "transport/xdp/names.h"

namespace tern::transport::xdp {

namespace {

Status refuse(const char* otherwise, std::initializer_list<std::string_view> parts) {
  return base::status_of(Code::kUnavailable, otherwise, parts);
}

}  // namespace

Steering::Steering(const neighbours::Interface& interface, Owner owner, Attachment attachment)
    : interface_(interface), owner_(std::move(owner)), attachment_(std::move(attachment)), rules_(interface.index) {}

Result<std::unique_ptr<Steering>> Steering::open(const neighbours::Interface& interface, const AttachOptions& options) {
  Result<Owner> owner = Owner::create();
  if (!owner.ok()) return owner.status();
  const Turn turn(interface.index);
  Result<Attachment> attachment = attach(interface, options, *owner);
  if (!attachment.ok()) return attachment.status();
  std::unique_ptr<Steering> steering(new (std::nothrow) Steering(interface, std::move(*owner), std::move(*attachment)));
  if (steering == nullptr) return kNoMemory;
  steering->sweep();
  const PortEntry here{steering->owner_.number(), kNoRule, 0};
  if (steering->program().set_port(key_of_owner(here.owner), here) != 0) return kNoMemory;
  return steering;
}

Steering::~Steering() {
  while (!queues_.empty()) remove_socket(queues_.back());
  const Turn turn(interface_.index);
  for (const Port& port : ports_) remove(port.key, port.rule);
  program().remove_port(key_of_owner(owner_.number()));
  leave(attachment_, interface_.index, owner_);
}

void Steering::close_in_child() {
  attachment_ = {};
  owner_.close_in_child();
}

void Steering::sweep() {
  program().for_each_port([&](const PortKey& key, const PortEntry& entry) {
    if (!owner_.is_alive(entry.owner)) remove(key, entry.rule);
  });
  for (uint32_t queue = 0; queue < kQueuesMax; queue++) {
    const uint64_t queue_owner = program().queue_owner(queue);
    if (queue_owner != 0 && !owner_.is_alive(queue_owner)) (void)program().set_queue_owner(queue, 0);
  }
}

void Steering::remove(const PortKey& key, uint32_t rule) {
  program().remove_port(key);
  if (rule != kNoRule) rules_.remove(rule);
}

Status Steering::add_socket(uint32_t queue, int socket) {
  if (!base::try_reserve(queues_, queues_.size() + 1)) return kNoMemory;
  const Turn turn(interface_.index);
  int error = 0;
  if (bpf_map_update_elem(program().map(Map::kSockets), &queue, &socket, BPF_NOEXIST) != 0) error = errno;
  if (error == EEXIST) {
    return refuse("xdp: another process has the queue",
                  {"xdp: another process has queue ", std::to_string(queue), " of ", interface_.present_name(),
                   ": choose another queue, or give the interface more, as with ethtool -L ", interface_.present_name(),
                   " combined 4"});
  }
  if (error == E2BIG) {
    return refuse("xdp: the number of the queue is too large",
                  {"xdp: queue ", std::to_string(queue), " of ", interface_.present_name(), " is not below ",
                   std::to_string(kQueuesMax), ": choose another queue"});
  }
  if (error == 0) error = program().set_queue_owner(queue, owner_.number());
  if (error == 0) {
    queues_.push_back(queue);
    return {};
  }
  if (error == ENOMEM) return kNoMemory;
  return refuse("xdp: the kernel refused the socket of a queue",
                {"xdp: the kernel refused the socket of queue ", std::to_string(queue), " of ",
                 interface_.present_name(), " (", std::strerror(error), "): see the kernel's log"});
}

void Steering::remove_socket(uint32_t queue) {
  const auto place = std::ranges::find(queues_, queue);
  if (place == queues_.end()) return;
  queues_.erase(place);
  const Turn turn(interface_.index);
  if (program().queue_owner(queue) != owner_.number())
    return;  // the socket was closed, and another process has the queue
  (void)program().set_queue_owner(queue, 0);
  (void)bpf_map_delete_elem(program().map(Map::kSockets), &queue);
}

Status Steering::add_port(const base::SocketAddress& address, uint32_t queue) {
  if (!base::try_reserve(ports_, ports_.size() + 1)) return kNoMemory;
  const Turn turn(interface_.index);
  const PortKey key = key_of(address);
  PortEntry entry{};
  if (program().find_port(key, &entry) == 0) {
    if (owner_.is_alive(entry.owner)) {
      return refuse(
          "xdp: another process has the UDP port at the interface",
          {"xdp: another process has ", address.to_text(), " at ", interface_.present_name(), ": choose another port"});
    }
    remove(key, entry.rule);
  }
  entry = {owner_.number(), rules_.add(address, queue).value_or(kNoRule), 0};
  const int error = program().set_port(key, entry);
  if (error == 0) {
    ports_.push_back({key, entry.rule});
    return {};
  }
  remove(key, entry.rule);
  if (error != E2BIG) return kNoMemory;
  return refuse("xdp: too many endpoints at the interface",
                {"xdp: ", interface_.present_name(), " has ", std::to_string(kPortsMax),
                 " endpoints of tern, which is the maximum: use fewer"});
}

void Steering::remove_port(const base::SocketAddress& address) {
  const auto place = std::ranges::find(ports_, key_of(address), &Port::key);
  if (place == ports_.end()) return;
  const Port port = *place;
  ports_.erase(place);
  const Turn turn(interface_.index);
  remove(port.key, port.rule);
}

size_t Steering::ruled_ports() const {
  return static_cast<size_t>(std::ranges::count_if(ports_, [](const Port& port) { return port.rule != kNoRule; }));
}

}  // namespace tern::transport::xdp
