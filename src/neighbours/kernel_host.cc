#include "neighbours/kernel_host.h"

#include <linux/neighbour.h>
#include <linux/rtnetlink.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "neighbours/neighbours.h"
#include "neighbours/texts.h"

namespace tern::neighbours {

namespace {

using base::MutexLock;
using base::SocketAddress;
using Kind = frames::NeighbourFrame::Kind;

constexpr int kReportsMax = 64;  ///< read at one time

constexpr uint16_t kAdministered = NUD_PERMANENT | NUD_NOARP;        ///< the kernel takes no answers for these entries
constexpr uint16_t kAsked = NUD_INCOMPLETE | NUD_DELAY | NUD_PROBE;  ///< the kernel asks, or will soon

}  // namespace

KernelHost::KernelHost(Interface interface, uint16_t vlan, Send send)
    : index_(interface.index), vlan_(vlan), send_(std::move(send)), interface_(std::move(interface)) {}

Result<std::unique_ptr<KernelHost>> KernelHost::create(uint32_t interface_index, uint16_t vlan, Send send) {
  auto interface = interface_by_index(interface_index);
  if (!interface.ok()) return interface.status();
  std::unique_ptr<KernelHost> host(new (std::nothrow) KernelHost(std::move(*interface), vlan, std::move(send)));
  if (host == nullptr) return Status(Code::kNoMemory, "no memory for the neighbours of a network interface");
  if (const Status status = host->open(); !status.ok()) return status;
  return host;
}

Status KernelHost::open() {
  const MutexLock lock(mutex_);
  int error = events_.open({RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR});
  if (error == 0) error = requests_.open();
  return error == 0 ? Status() : no_netlink(error);
}

Result<std::unique_ptr<Resolver>> KernelHost::resolver(const SocketAddress& source) {
  auto made = Neighbours::create(index_, source);
  if (!made.ok()) return made.status();
  return std::unique_ptr<Resolver>(std::move(*made));
}

bool KernelHost::wants(std::span<const std::byte> frame) const { return frames::is_neighbour_frame(frame, vlan_); }

void KernelHost::on_frame(std::span<const std::byte> bytes, uint64_t now_ns) {
  const auto frame = frames::parse_neighbour_frame(bytes, vlan_);
  if (!frame) return;
  std::optional<Frame> answer;
  {
    const MutexLock lock(mutex_);
    answer = handle(*frame, now_ns);
  }
  if (answer) send_(frames::NeighbourFrameBytes(*answer, vlan_).bytes());
}

/// Returns the answer, if there is one.
std::optional<KernelHost::Frame> KernelHost::handle(const Frame& frame, uint64_t now_ns) {
  if (frame.source_mac == interface_.mac || frame.mac == interface_.mac) return std::nullopt;
  teach(frame, now_ns);
  if (frame.kind != Kind::kSolicitation || !interface_.has_address(frame.target)) return std::nullopt;
  if (!interface_.is_up || interface_.has_address(frame.source) || !answers_.take(now_ns)) return std::nullopt;
  return Frame::answer_to(frame, interface_.mac);
}

/// Follows the kernel's rules for entries that it has (RFC 4861 7.2.5).
void KernelHost::teach(const Frame& frame, uint64_t now_ns) {
  const bool is_solicitation = frame.kind == Kind::kSolicitation;
  const SocketAddress& ip = is_solicitation ? frame.source : frame.target;
  const bool is_answer = frame.is_solicited && interface_.has_address(frame.destination);
  const bool is_override = is_solicitation || frame.is_override;
  if (!may_write_ || ip.is_wildcard() || interface_.has_address(ip)) return;
  if (!(is_answer ? writes_ : news_).take(now_ns)) return;

  std::optional<NeighbourMessage> entry;
  const int error =
      requests_.ask(Request::neighbour(index_, ip), [&](const nlmsghdr& message) { entry = read_neighbour(message); });
  if (error != 0 || !entry || (entry->state & kAdministered) != 0) return;
  const bool is_asked = (entry->state & kAsked) != 0;
  const auto mac = frame.mac ? frame.mac : entry->mac;
  const bool is_other = entry->mac && mac != entry->mac;
  if (!mac || (is_other && !is_override)) return;
  if (!(is_answer && is_asked) && !(entry->is_valid() && is_other)) return;
  const uint16_t state = is_answer ? NUD_REACHABLE : NUD_STALE;
  const int refusal = requests_.ask(Request::change_neighbour(index_, ip, *mac, state), [](const nlmsghdr&) {});
  if (refusal == EPERM) may_write_ = false;
}

void KernelHost::tick(uint64_t now_ns) {
  const MutexLock lock(mutex_);
  if (now_ns < next_look_ns_) return;
  next_look_ns_ = now_ns + kLookNs;
  for (int i = 0; i < kReportsMax; i++) {
    const Netlink::Received received = events_.receive();
    if (received.error == EAGAIN) break;
    is_interface_due_ = true;  // for every event, and if events were lost
  }
  if (!is_interface_due_) return;
  Interface now;
  const int error = read_interface(requests_, Request::link(index_), &now);
  is_interface_due_ = error != 0 && error != ENODEV;
  if (error == ENODEV) interface_.addresses.clear();
  if (error == 0) interface_ = std::move(now);
}

uint64_t KernelHost::next_tick_ns() const {
  const MutexLock lock(mutex_);
  return next_look_ns_;
}

}  // namespace tern::neighbours
