#include "transport/xdp/xdp.h"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/descriptor.h"
#include "ethernet/setup.h"
#include "neighbours/neighbours.h"
#include "transport/options.h"

namespace tern::transport {

static_assert(TransportImpl<XdpImpl>);

namespace {

using ethernet::status_of;
using neighbours::Interface;
using xdp::kNames, xdp::kNoMemory;

constexpr Status kBadReceiveBuffers(Code::kMisuse,
                                    "xdp: Xdp::Options::receive_buffers must be a power of two, 512 to 32768");
constexpr Status kBadDatagramBytes(Code::kMisuse, "xdp: Xdp::Options::datagram_bytes must be 536 to 3774, or 0");
constexpr Status kBadMode(
    Code::kMisuse, "xdp: Xdp::Options::mode must be zero_copy, native or generic, or empty for the best of them");

std::optional<xdp::Wish> parse_mode(std::string_view text) {
  if (text.empty()) return xdp::Wish::kBest;
  if (text == "zero_copy") return xdp::Wish::kZeroCopy;
  if (text == "native") return xdp::Wish::kNative;
  if (text == "generic") return xdp::Wish::kGeneric;
  return std::nullopt;
}

/// Moves the calling thread to another network namespace for the object's lifetime.
class NamespaceVisit {
 public:
  NamespaceVisit() = default;
  NamespaceVisit(const NamespaceVisit&) = delete;
  NamespaceVisit& operator=(const NamespaceVisit&) = delete;
  ~NamespaceVisit() {
    if (own_) CHECK(setns(own_.get(), CLONE_NEWNET), ==, 0);
  }

  Status enter(const std::string& path) {
    const base::Descriptor other(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    base::Descriptor own(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    if (other && own && setns(other.get(), CLONE_NEWNET) == 0) {
      own_ = std::move(own);
      return {};
    }
    return status_of(kNames, Code::kUnavailable, "the network namespace of the option netns cannot be entered",
                     {"the network namespace ", path, " of Xdp::Options::netns cannot be entered (",
                      std::strerror(errno), "): see ip netns; this needs CAP_SYS_ADMIN"});
  }

 private:
  base::Descriptor own_;
};

/// Returns the only Ethernet interface that is up and has an address; nothing if there are several.
std::optional<Interface> find_only_interface() {
  struct Destroyer {
    void operator()(struct if_nameindex* list) const { if_freenameindex(list); }
  };
  const std::unique_ptr<struct if_nameindex, Destroyer> all(if_nameindex());
  std::optional<Interface> only;
  for (const struct if_nameindex* one = all.get(); one != nullptr && one->if_index != 0; ++one) {
    auto found = neighbours::interface_by_index(one->if_index);
    if (!found.ok() || found->is_loopback || found->mac.is_zero() || !found->is_up) continue;
    const auto is_global = [](const base::SocketAddress& address) { return !address.is_link_local(); };
    if (std::none_of(found->addresses.begin(), found->addresses.end(), is_global)) continue;
    if (only) return std::nullopt;
    only = std::move(*found);
  }
  return only;
}

}  // namespace

// ---- Creation ----

Result<std::unique_ptr<XdpImpl>> XdpImpl::create(Options options, const Context& context) {
  if (Status status = check_ranges<Xdp>(options); !status.ok()) return status;
  if (!std::has_single_bit(options.receive_buffers)) return kBadReceiveBuffers;
  if (options.datagram_bytes != 0 && options.datagram_bytes < Options::kDatagramBytesMin) return kBadDatagramBytes;
  if (!parse_mode(options.mode)) return kBadMode;
  std::unique_ptr<XdpImpl> made(new (std::nothrow) XdpImpl(std::move(options), context));
  if (made == nullptr) return kNoMemory;
  NamespaceVisit visit;
  if (!made->options_.netns.empty()) {
    if (Status status = visit.enter(made->options_.netns); !status.ok()) return status;
  }
  if (Status status = made->open(context.listen_host); !status.ok()) return status;
  return made;
}

XdpImpl::XdpImpl(Options options, const Context&)
    : open_frames_(objects_->peers, objects_->sends, counters_.packets_sent, counters_.send_errors),
      options_(std::move(options)),
      delay_target_ns_(1000 * options_.delay_target_us) {}

Status XdpImpl::open(std::string_view listen_host) {
  const auto bind = ethernet::parse_bind(kNames, options_.bind);
  if (!bind.ok()) return bind.status();
  auto interface = find_interface(*bind, listen_host);
  if (!interface.ok()) return interface.status();
  if (interface->is_loopback || interface->mac.is_zero()) {
    return status_of(kNames, Code::kUnavailable, "the network interface has no Ethernet",
                     {"the network interface ", interface->name, " has no Ethernet address, which xdp needs: choose ",
                      "another one (Xdp::Options::interface), or the udp transport"});
  }
  const Status up = ethernet::check_is_up(kNames, "this host", *interface, true);
  if (!up.ok()) return up;
  auto own = ethernet::choose_address(kNames, "this host", *interface, *bind, listen_host);
  return own.ok() ? start(*interface, own->address) : own.status();
}

/// Finds the interface by its name, or by the endpoint's address.
Result<Interface> XdpImpl::find_interface(const base::SocketAddress& bind, std::string_view listen_host) const {
  if (!options_.interface.empty()) {
    auto named = neighbours::interface_by_name(options_.interface);
    if (named.ok()) return named;
    return status_of(kNames, named.status().code(), "there is no such network interface",
                     {named.status().message(), " (Xdp::Options::interface)"});
  }
  const auto listen = base::SocketAddress::parse_ip(listen_host);
  const base::SocketAddress address = bind.is_wildcard() && listen ? *listen : bind;
  if (!address.is_wildcard()) {
    auto found = neighbours::interface_by_address(address);
    if (found.ok() && !found->is_loopback) return found;
  }
  if (auto only = find_only_interface()) return std::move(*only);
  return Status(Code::kUnavailable,
                "xdp: no network interface is chosen: name one in Xdp::Options::interface, or its address in "
                "Xdp::Options::bind or in the listen URI of the Nexus (ip addr lists both)");
}

Status XdpImpl::start(const Interface& interface, base::SocketAddress own) {
  Objects& objects = *objects_;
  if (Status status = objects.kernel.open(&own); !status.ok()) return status;
  auto port = xdp::Port::open({.interface = interface,
                               .wish = *parse_mode(options_.mode),
                               .queues = options_.queues,
                               .receive_buffers = options_.receive_buffers});
  if (!port.ok()) return port.status();
  objects.port = std::move(*port);
  link_bytes_per_sec_ = objects.port->link_bytes_per_sec();
  // The interface's MTU may have been raised since its queues were made.
  const uint32_t mtu_bytes = std::min(interface.mtu_bytes, objects.port->mtu_bytes_max());
  const auto datagram_bytes =
      ethernet::choose_datagram_bytes(kNames, interface.name, mtu_bytes, own.family(), options_.datagram_bytes,
                                      {Options::kDatagramBytesMin, Options::kDatagramBytesMax});
  if (!datagram_bytes.ok()) return datagram_bytes.status();
  auto lane = objects.port->attach(objects.port, own);
  if (!lane.ok()) return lane.status();
  objects.lane = std::move(*lane);
  auto neighbours = neighbours::Neighbours::create(interface.index, own);
  if (!neighbours.ok()) return neighbours.status();
  const frames::MacAddress mac = (*neighbours)->interface().mac;
  objects.peers.start(std::move(*neighbours), {.address = own,
                                               .mac = mac,
                                               .datagram_bytes = *datagram_bytes,
                                               .vlan = 0,
                                               .traffic_class = static_cast<uint8_t>(options_.traffic_class)});
  objects.sends.start(objects.lane->home(), objects.lane->place(), objects.kernel,
                      static_cast<uint32_t>(frames::header_bytes(own.family(), false) + *datagram_bytes));
  set_own_mac(mac);
  address_bytes_ = encode_address(objects.peers.own_address());
  return open_waits();
}

Status XdpImpl::open_waits() {
  if (!waits_.open() || !wake_.open() || !timer_.open()) return xdp::kNoDescriptors;
  const auto add = [this](int fd, Waiting what) { return waits_.add(fd, EPOLLIN, static_cast<uint64_t>(what)); };
  if (!add(wake_.descriptor(), Waiting::kWake) || !add(timer_.descriptor(), Waiting::kTimer) ||
      !add(objects_->peers.resolver().descriptor(), Waiting::kNeighbours) ||
      !add(objects_->kernel.descriptor(), Waiting::kKernel)) {
    return kNoMemory;
  }
  return objects_->lane->add_to(waits_, static_cast<uint64_t>(Waiting::kLane));
}

void XdpImpl::set_own_mac(const frames::MacAddress& mac) {
  ethernet::Peers& peers = objects_->peers;
  peers.set_own_mac(mac);
  objects_->sends.set_own_mac(mac);
  parser_ = frames::FrameParser({mac, peers.own().address, peers.own().vlan});
}

XdpImpl::~XdpImpl() {
  if (!objects_.is_here()) {
    objects_->kernel.close_in_child();
    if (objects_->port != nullptr) objects_->port->close_in_child();
    return;
  }
  open_frames_.forget();
  if (kept_ != 0) give_back();
  if (!objects_->sends.stop()) objects_->lane->leave_place();
  if (objects_->lane != nullptr) objects_->lane->stop_waiting();  // the lane's descriptors outlive waits_
}

// ---- Peers ----

Result<PeerId> XdpImpl::connect(std::span<const std::byte> bytes, std::string_view) {
  if (!failure_.ok()) return failure_;
  return objects_->peers.connect(bytes, now(), counters_.peers_refused);
}

PeerState XdpImpl::peer_state(PeerId id) {
  const ethernet::Peers& peers = objects_->peers;
  if (!peers.is_ready(id)) update_neighbours();
  if (peers.is_ready(id)) return PeerState::kReady;
  return peers.is_dead(id) ? PeerState::kDead : PeerState::kConnecting;
}

void XdpImpl::disconnect(PeerId id) {
  if (!objects_.is_here()) return;
  if (objects_->peers.is_last(id) && objects_->peers.route(id).has_frame()) flush();
  objects_->peers.disconnect(id);
}

}  // namespace tern::transport
