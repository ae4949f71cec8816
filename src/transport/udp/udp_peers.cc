// Peers and the sockets that send to them. See udp.h.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/try.h"
#include "transport/udp/udp.h"

namespace tern::transport {

namespace {

/// Peers with a socket of their own, of all endpoints of the process.
std::atomic<uint32_t> connected_in_process{0};

constexpr Status kNoPeerMemory(Code::kNoMemory, "udp: no memory for another peer: free some, or end sessions");
constexpr Status kBadPeerAddress(Code::kMisuse,
                                 "udp: the peer's data-path address is not that of a UDP endpoint: both sides must run "
                                 "the same transport, bound to a unicast address");
constexpr Status kOtherFamily(
    Code::kUnavailable,
    "udp: the peer's data path takes IPv4 only, but its Nexus was reached by IPv6: bind the peer "
    "to [::], or name it by its IPv4 address");
constexpr Status kNoRoute(Code::kUnavailable,
                          "udp: this machine has no route to the peer's data-path address from the address bound here: "
                          "check routes and Udp::Options::bind on both sides");

}  // namespace

/// Reads a peer's address. Its last two bytes are the datagram_bytes of the peer's endpoint.
Status UdpImpl::resolve(std::span<const std::byte> address, std::string_view host, SocketAddress* target,
                        uint32_t* datagram_bytes) const {
  if (address.size() < 2) return kBadPeerAddress;
  const auto size = address.last(2);
  *datagram_bytes = std::to_integer<uint32_t>(size[0]) | std::to_integer<uint32_t>(size[1]) << 8;
  if (!decode_address(address.first(address.size() - 2), target) || target->is_group() ||
      *datagram_bytes < Options::kDatagramBytesMin) {
    return kBadPeerAddress;
  }
  const auto reached_at = SocketAddress::parse_ip(host);
  if (target->is_wildcard()) {
    if (!reached_at || reached_at->is_wildcard() || reached_at->is_group()) return kBadPeerAddress;
    if (target->family() == AF_INET && reached_at->family() == AF_INET6) return kOtherFamily;
    const uint16_t port = target->port();
    *target = *reached_at;
    target->set_port(port);
  } else if (target->is_link_local() && reached_at) {
    target->set_scope(reached_at->scope());  // the peer's number for the link means nothing on this host
  }
  return {};
}

UdpImpl::PeerName UdpImpl::name_of(const SocketAddress& address, uint32_t datagram_bytes, bool is_paired) {
  PeerName name{};
  std::ranges::copy(encode_address(address).span(), name.begin());
  name[UdpAddressBytes::kBytesMax] = static_cast<std::byte>(datagram_bytes & 0xff);
  name[UdpAddressBytes::kBytesMax + 1] = static_cast<std::byte>(datagram_bytes >> 8);
  name[UdpAddressBytes::kBytesMax + 2] = static_cast<std::byte>(is_paired);
  const uint32_t scope = address.scope();  // a link-local address is another host on each link
  std::memcpy(&name[UdpAddressBytes::kBytesMax + 3], &scope, sizeof(scope));
  return name;
}

/// Makes a peer in its initial state under `name`, and reserves its element of free_ids_. kNoMemory.
Result<PeerId> UdpImpl::new_peer(const PeerName& name) {
  const bool is_more = free_ids_.empty();
  const size_t count = peers_.size() + (is_more ? 1 : 0);
  const PeerId id = is_more ? static_cast<PeerId>(peers_.size()) : free_ids_.back();
  if (!base::try_reserve(peers_, count) || !base::try_reserve(free_ids_, count) ||
      !base::try_grow([&] { ids_.emplace(name, id); })) {
    return kNoPeerMemory;
  }
  if (is_more) {
    peers_.emplace_back();
  } else {
    free_ids_.pop_back();
  }
  peers_[id] = Peer();
  return id;
}

void UdpImpl::free_peer(PeerId id) {
  const Peer& peer = peers_[id];
  ids_.erase(name_of(peer.address, peer.datagram_bytes, peer.is_paired));
  free_ids_.push_back(id);
}

Result<PeerId> UdpImpl::connect_to(std::span<const std::byte> address, std::string_view host, bool is_paired) {
  SocketAddress target;
  uint32_t datagram_bytes = 0;
  if (Status status = resolve(address, host, &target, &datagram_bytes); !status.ok()) {
    ++counters_.peers_refused;
    return status;
  }
  datagram_bytes = std::min(datagram_bytes, datagram_bytes_);
  return is_paired ? pair_with(target, datagram_bytes) : find_or_make(target, datagram_bytes, false);
}

Result<PeerId> UdpImpl::connect_back(PeerId like) {
  const SocketAddress source = SocketAddress::from_sockaddr(source_);
  if (source.port() == 0 || source.is_wildcard() || source.is_group()) return kBadPeerAddress;
  return pair_with(source, peers_[like].datagram_bytes);
}

/// Returns a paired peer. The receive socket sends to the family that it was bound to, and as a wildcard [::] also to
/// IPv4.
Result<PeerId> UdpImpl::pair_with(const SocketAddress& target, uint32_t datagram_bytes) {
  if (target.family() == bound_.family()) return find_or_make(target, datagram_bytes, true);
  if (bound_.family() != AF_INET6 || !bound_.is_wildcard()) return kNoRoute;
  return find_or_make(target.mapped(), datagram_bytes, true);
}

/// Returns the peer of this name, which may be new. Each call that succeeds adds a reference.
Result<PeerId> UdpImpl::find_or_make(const SocketAddress& target, uint32_t datagram_bytes, bool is_paired) {
  const PeerName name = name_of(target, datagram_bytes, is_paired);
  if (const auto known = ids_.find(name); known != ids_.end()) {
    ++peers_[known->second].references;
    return known->second;
  }
  const auto made = new_peer(name);
  if (!made.ok()) return made.status();
  const PeerId id = *made;
  Peer& peer = peers_[id];
  peer.address = target;
  peer.datagram_bytes = datagram_bytes;
  least_datagram_bytes_ = std::min(ids_.size() == 1 ? datagram_bytes_ : least_datagram_bytes_, datagram_bytes);
  peer.is_paired = is_paired;
  peer.shared_bytes = shared_bytes_of(peer);
  peer.shared_since = peer.last_flush = flushes_;
  const bool is_to_connect = !is_paired && may_connect();
  const bool has_socket = is_paired || (is_to_connect && give_socket(peer));
  if (!has_socket) {
    const int error = is_to_connect ? errno : 0;
    const bool unreachable = error == ENETUNREACH || error == EHOSTUNREACH || error == EINVAL || error == EACCES ||
                             error == EPERM || error == EADDRNOTAVAIL || error == EAFNOSUPPORT;
    Descriptor& shared = shared_sockets_[target.family() == AF_INET6 ? 1 : 0];
    if (!unreachable && !shared) shared = open_send_socket(target.family(), bound_, socket_buffer_bytes_);
    if (unreachable || !shared) {
      free_peer(id);
      return unreachable ? kNoRoute : kNoDescriptors;
    }
  }
  peer.references = 1;
  return id;
}

/// Returns the length of a datagram for several packets to `peer`. Packets between two loopback addresses do not leave
/// the host, but those of a pair may: a NAT can forward a loopback address to another host.
uint32_t UdpImpl::shared_bytes_of(const Peer& peer) const {
  const bool is_within_host = peer.address.is_loopback() && !peer.is_paired;
  const bool takes_copies = peer.datagram_bytes >= kHeaderBytes + kCopyBytesMax;
  return is_within_host && takes_copies ? std::max(loopback_bytes_, peer.datagram_bytes) : peer.datagram_bytes;
}

void UdpImpl::disconnect(PeerId id) {
  Peer& peer = peers_[id];
  CHECK(peer.references, >, 0u);
  if (--peer.references > 0) return;
  if (peer.first != kNone && !peer.is_blocked) {
    if (getpid() == pid_) transmit(peer);
    PeerId* const end = dirty_.data() + dirty_count_;
    *std::find(dirty_.data(), end, id) = *(end - 1);
    if (--dirty_count_ == 0) flush_peers();  // the burst is over, and flush() does not see it
  }
  if (peer.is_blocked) lose_kept(id);
  if (peer.socket) {
    std::erase(connected_, id);
    take_socket(peer);
  }
  free_peer(id);
}

/// Asks a connected socket for the MTU of its route: the peer's own, or one that is made for the question.
uint32_t UdpImpl::large_payload_bytes(PeerId id) {
  if (large_payload_bytes() == 0) return 0;
  const Peer& peer = peers_[id];
  Descriptor asking;
  if (!peer.socket) {
    asking = open_send_socket(peer.address.family(), bound_, 0);
    const bool is_connected =
        asking && ::connect(asking.get(), peer.address.sockaddr_data(), peer.address.sockaddr_bytes()) == 0;
    if (!is_connected) return 0;
  }
  const int fd = peer.socket ? peer.socket.get() : asking.get();
  const uint32_t bytes = std::min(route_datagram_bytes(fd, peer.address.family()), datagram_bytes_max_);
  return bytes > peer.datagram_bytes ? bytes - static_cast<uint32_t>(kHeaderBytes) : 0;
}

PathError UdpImpl::take_path_error(PeerId id) {
  Peer& peer = peers_[id];
  int error = 0;
  socklen_t error_bytes = sizeof(error);
  // SO_ERROR reports ICMP messages that came since the last packet.
  if (peer.socket) (void)getsockopt(peer.socket.get(), SOL_SOCKET, SO_ERROR, &error, &error_bytes);
  if (error == 0) error = peer.error;
  peer.error = 0;
  switch (error) {
    case 0:
      return PathError::kNone;
    case EPERM:
    case EACCES:
      return PathError::kForbidden;
    case ECONNREFUSED:
      return PathError::kRefused;
    case EMSGSIZE:
      return PathError::kTooLong;
    default:
      return PathError::kUnreachable;
  }
}

/// True if one more peer may have a socket of its own.
bool UdpImpl::may_connect() const {
  return connected_.size() < connected_max_ &&
         connected_in_process.load(std::memory_order_relaxed) < connected_in_process_max_;
}

/// Opens and connects a socket for `peer`. False: the peer has no socket, and errno says why.
bool UdpImpl::give_socket(Peer& peer) {
  Descriptor fd = open_send_socket(peer.address.family(), bound_, socket_buffer_bytes_);
  if (!fd) return false;
  if (::connect(fd.get(), peer.address.sockaddr_data(), peer.address.sockaddr_bytes()) != 0) return false;
  peer.socket = std::move(fd);
  connected_.push_back(static_cast<PeerId>(&peer - peers_.data()));
  connected_in_process.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void UdpImpl::take_socket(Peer& peer) {
  peer.socket.reset();
  connected_in_process.fetch_sub(1, std::memory_order_relaxed);
}

/// Makes `peer`, which has a socket of its own, send on the shared one. False: there is no descriptor for a shared one.
bool UdpImpl::return_to_shared(Peer& peer) {
  Descriptor& shared = shared_sockets_[peer.address.family() == AF_INET6 ? 1 : 0];
  if (!shared) shared = open_send_socket(peer.address.family(), bound_, socket_buffer_bytes_);
  if (!shared) return false;
  std::erase(connected_, static_cast<PeerId>(&peer - peers_.data()));
  take_socket(peer);
  peer.shared_trains = 0;
  peer.shared_since = flushes_;
  return true;
}

/// Gives a socket of its own to `peer`, which has been using the shared one. It is a new socket while the limit allows
/// that, and otherwise the socket of a peer that was silent during all trains of `peer`. Peers that take turns
/// therefore do not take sockets from each other.
void UdpImpl::take_over_socket(Peer& peer) {
  if (!may_connect() && !connected_.empty()) {
    const auto silent = std::min_element(connected_.begin(), connected_.end(), [this](PeerId a, PeerId b) {
      return peers_[a].last_flush < peers_[b].last_flush;
    });
    Peer& victim = peers_[*silent];
    if (!victim.is_blocked && victim.last_flush < peer.shared_since) (void)return_to_shared(victim);
  }
  if (may_connect()) give_socket(peer);
  peer.shared_trains = 0;
  peer.shared_since = flushes_;
}

int UdpImpl::socket_of(Peer& peer) {
  if (!peer.socket) [[unlikely]] {
    if (peer.is_paired) return receive_socket_.get();
    if (++peer.shared_trains >= kTrainsPerTakeover) take_over_socket(peer);
    if (!peer.socket) return shared_sockets_[peer.address.family() == AF_INET6 ? 1 : 0].get();
  }
  return peer.socket.get();
}

}  // namespace tern::transport
