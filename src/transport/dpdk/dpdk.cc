#include "transport/dpdk/dpdk.h"

#include <algorithm>
#include <bit>
#include <new>
#include <string>
#include <utility>

#include "base/status_text.h"
#include "ethernet/setup.h"
#include "neighbours/host.h"
#include "transport/options.h"

namespace tern::transport {

static_assert(TransportImpl<DpdkImpl>);

namespace {

constexpr Status kBadReceiveBuffers(Code::kMisuse,
                                    "dpdk: Dpdk::Options::receive_buffers must be a power of two, 512 to 65536");
constexpr Status kBadDatagramBytes(Code::kMisuse, "dpdk: Dpdk::Options::datagram_bytes must be 536 to 8972, or 0");
constexpr Status kBadMtu(Code::kMisuse, "dpdk: Dpdk::Options::mtu must be 576 to 9000, or 0");
constexpr Status kNoMemory(Code::kNoMemory,
                           "dpdk: no memory for the endpoint's queues: free some, or use fewer endpoints");
constexpr Status kNoDescriptors(Code::kUnavailable, "dpdk: no file descriptors are left: raise the limit (ulimit -n)");

/// Options::bind without a host, ":PORT", is a wildcard's.
Result<base::SocketAddress> parse_bind(std::string_view text) {
  const bool has_no_host = !text.empty() && text.front() == ':' && !text.starts_with("::");
  return ethernet::parse_bind(DpdkImpl::kNames, has_no_host ? "0.0.0.0" + std::string(text) : std::string(text));
}

}  // namespace

// ---- Creation ----

Result<std::unique_ptr<DpdkImpl>> DpdkImpl::create(Options options, const Context& context) {
  if (Status status = check_ranges<Dpdk>(options); !status.ok()) return status;
  if (!std::has_single_bit(options.receive_buffers)) return kBadReceiveBuffers;
  if (options.datagram_bytes != 0 && options.datagram_bytes < Options::kDatagramBytesMin) return kBadDatagramBytes;
  if (options.mtu != 0 && options.mtu < Options::kMtuMin) return kBadMtu;
  std::unique_ptr<DpdkImpl> made(new (std::nothrow) DpdkImpl(std::move(options), context));
  if (made == nullptr) return kNoMemory;
  if (Status status = made->open(context.listen_host); !status.ok()) return status;
  return made;
}

DpdkImpl::DpdkImpl(Options options, const Context& context)
    : open_frames_(objects_->peers, objects_->sends, counters_.packets_sent, counters_.send_errors),
      arena_(context.arena),
      options_(std::move(options)),
      delay_target_ns_(1000 * options_.delay_target_us) {}

Status DpdkImpl::open(std::string_view listen_host) {
  const Result<base::SocketAddress> bind = parse_bind(options_.bind);
  if (!bind.ok()) return bind.status();
  auto port = DpdkPort::open({.device = options_.device,
                              .eal = options_.eal,
                              .address = options_.address,
                              .gateway = options_.gateway,
                              .queues = options_.queues,
                              .mtu_bytes = options_.mtu,
                              .receive_buffers = options_.receive_buffers,
                              .vlan = static_cast<uint16_t>(options_.vlan)});
  if (!port.ok()) return port.status();
  objects_->port = std::move(*port);
  events_ = objects_->port->events();
  auto own = objects_->port->is_own_mode() ? choose_own_address(*bind) : choose_interface_address(*bind, listen_host);
  return own.ok() ? start(std::move(*own)) : own.status();
}

/// Sets up the address of a device without an interface in the kernel.
Result<DpdkImpl::Own> DpdkImpl::choose_own_address(const base::SocketAddress& bind) const {
  base::SocketAddress address = objects_->port->own_address();
  address.set_port(bind.port());
  if (!bind.is_wildcard() && bind != address) {
    return base::status_of(Code::kMisuse, "dpdk: Dpdk::Options::bind has another address than Dpdk::Options::address",
                           {"dpdk: Dpdk::Options::bind has the address ", bind.ip_text(),
                            ", and Dpdk::Options::address is ", address.ip_text(), ": leave it out of bind"});
  }
  const DpdkFacts& facts = objects_->port->facts();
  return Own{address, facts.mac, facts.mtu_bytes, facts.name};
}

/// Sets up the address of the device's interface in the kernel.
Result<DpdkImpl::Own> DpdkImpl::choose_interface_address(const base::SocketAddress& bind,
                                                         std::string_view listen_host) {
  const DpdkFacts& facts = objects_->port->facts();
  auto interface = ethernet::find_interface(kNames, facts.name, facts.interface_index);
  if (!interface.ok()) return interface.status();
  const Status status = ethernet::check_is_up(kNames, facts.name, *interface, objects_->port->is_link_up());
  if (!status.ok()) return status;
  auto address = ethernet::choose_address(kNames, facts.name, *interface, bind, listen_host);
  if (!address.ok()) return address.status();
  auto socket = ethernet::reserve_port(kNames, &address->address);
  if (!socket.ok()) return socket.status();
  port_socket_ = std::move(*socket);
  return Own{address->address, interface->mac, std::min(facts.mtu_bytes, interface->mtu_bytes), interface->name};
}

/// Makes the endpoint's own queues, after its address is known.
Status DpdkImpl::start(Own own) {
  const DpdkFacts& facts = objects_->port->facts();
  const auto datagram_bytes = ethernet::choose_datagram_bytes(kNames, own.interface, own.mtu_bytes,
                                                              own.address.family(), options_.datagram_bytes,
                                                              {Options::kDatagramBytesMin, Options::kDatagramBytesMax});
  if (!datagram_bytes.ok()) return datagram_bytes.status();
  auto lane = objects_->port->attach(&own.address);
  if (!lane.ok()) return lane.status();
  objects_->lane = std::move(*lane);
  auto resolver = objects_->port->host().resolver(own.address);
  if (!resolver.ok()) return resolver.status();
  objects_->peers.start(std::move(*resolver), {.address = own.address,
                                               .mac = own.mac,
                                               .datagram_bytes = *datagram_bytes,
                                               .vlan = static_cast<uint16_t>(options_.vlan),
                                               .traffic_class = static_cast<uint8_t>(options_.traffic_class)});
  objects_->burst.start(*objects_->lane);
  objects_->memory.reset(new (std::nothrow) DpdkMemory(objects_->port));
  if (objects_->memory == nullptr) return kNoMemory;
  const sa_family_t family = own.address.family();
  Status status =
      objects_->sends.create(*objects_->lane, arena_, *objects_->memory,
                             {.own_mac = own.mac,
                              .header_bytes = static_cast<uint32_t>(frames::header_bytes(family, options_.vlan)),
                              .is_ipv4 = family == AF_INET,
                              .datagram_bytes = *datagram_bytes,
                              .makes_checksums = facts.makes_checksums,
                              .gathers = facts.gathers});
  if (status.ok()) status = open_waits();
  if (!status.ok()) return status;
  status = set_own_mac(own.mac);
  if (!status.ok()) return status;
  address_bytes_ = ethernet::encode_address(objects_->peers.own_address());
  status = arena_.observe(*objects_->memory);
  is_observing_ = status.ok();
  return status;
}

Status DpdkImpl::open_waits() {
  if (!waits_.open() || !wake_.open() || !timer_.open()) return kNoDescriptors;
  const auto add = [this](int fd, Waiting what) {
    return fd < 0 || waits_.add(fd, EPOLLIN, static_cast<uint64_t>(what));
  };
  if (!add(wake_.descriptor(), Waiting::kWake) || !add(timer_.descriptor(), Waiting::kTimer) ||
      !add(objects_->peers.resolver().descriptor(), Waiting::kNeighbours)) {
    return kNoMemory;
  }
  return objects_->lane->add_to(waits_, static_cast<uint64_t>(Waiting::kLane));
}

Status DpdkImpl::set_own_mac(const frames::MacAddress& mac) {
  ethernet::Peers& peers = objects_->peers;
  peers.set_own_mac(mac);
  objects_->sends.set_own_mac(mac);
  parser_ = frames::FrameParser({mac, peers.own().address, peers.own().vlan});
  return objects_->lane->follow_mac(mac);
}

DpdkImpl::~DpdkImpl() {
  if (!objects_.is_here()) return;
  open_frames_.forget();
  objects_->sends.stop();  // from now on message memory is not read
  if (is_observing_) arena_.unobserve();
}

// ---- Peers ----

Result<PeerId> DpdkImpl::connect(std::span<const std::byte> bytes, std::string_view) {
  if (!failure_.ok()) return failure_;
  return objects_->peers.connect(bytes, now(), counters_.peers_refused);
}

PeerState DpdkImpl::peer_state(PeerId id) {
  const ethernet::Peers& peers = objects_->peers;
  if (!peers.is_ready(id)) update_neighbours();
  if (peers.is_ready(id)) return PeerState::kReady;
  return peers.is_dead(id) ? PeerState::kDead : PeerState::kConnecting;
}

void DpdkImpl::disconnect(PeerId id) {
  if (!objects_.is_here()) return;
  if (objects_->peers.is_last(id) && objects_->peers.route(id).has_frame()) flush();
  objects_->peers.disconnect(id);
}

}  // namespace tern::transport
