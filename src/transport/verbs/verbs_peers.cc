// Peers and their address handles. See verbs.h.
#include <string>
#include <utility>

#include "base/check.h"
#include "base/status_text.h"
#include "base/try.h"
#include "transport/verbs/verbs.h"

namespace tern::transport {

namespace {

constexpr Status kNoPeerMemory(Code::kNoMemory, "verbs: no memory for another peer: free some, or end sessions");
constexpr Status kBadPeerAddress(Code::kMisuse,
                                 "verbs: the peer's data-path address is not that of an endpoint over verbs: both "
                                 "sides must run the same transport");
constexpr uint8_t kHopsMax = 64;

std::string hexadecimal(uint16_t number) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "0x";
  for (int shift = 12; shift >= 0; shift -= 4) text += kDigits[(number >> shift) & 15];
  return text;
}

}  // namespace

/// Returns the reason why packets cannot reach the peer, according to the two addresses. Both sides get the same
/// result.
wire::Refusal VerbsImpl::refusal_of(const VerbsAddress& address) const {
  const rdma::Port& port = objects_->opened.port;
  if (address.fabric != port.fabric) return wire::Refusal::kOtherFabric;
  if (!partitions_meet(address.partition, port.partition)) return wire::Refusal::kOtherPartition;
  const bool is_same_subnet = std::equal(address.gid.begin(), address.gid.begin() + 8, port.gid.begin());
  const bool is_infiniband = port.fabric == rdma::Fabric::kInfiniband;
  return is_infiniband && !is_same_subnet ? wire::Refusal::kOtherSubnet : wire::Refusal::kNone;
}

wire::Refusal VerbsImpl::refusal_of(std::span<const std::byte> bytes) const {
  VerbsAddress address;
  return decode_address(bytes, &address) ? refusal_of(address) : wire::Refusal::kNone;
}

/// The status for refusal_of(), with the differing values of both sides. Ok: kNone.
Status VerbsImpl::unreachable(const VerbsAddress& address) const {
  const rdma::Port& port = objects_->opened.port;
  switch (refusal_of(address)) {
    case wire::Refusal::kOtherFabric:
      return base::status_of(Code::kUnavailable, "verbs: the peer is on another fabric",
                             {"verbs: the peer is on ", rdma::name_of(address.fabric), " and this endpoint on ",
                              rdma::name_of(port.fabric), kChooseFabric});
    case wire::Refusal::kOtherPartition:
      return base::status_of(Code::kUnavailable, "verbs: the peer is in another partition",
                             {"verbs: the peer's P_Key is ", hexadecimal(address.partition), " and this endpoint's ",
                              hexadecimal(port.partition), kChoosePartition});
    case wire::Refusal::kOtherSubnet:
      return {Code::kUnavailable, "verbs: the peer is in another InfiniBand subnet, which verbs cannot reach"};
    default:
      return {};
  }
}

Result<PeerId> VerbsImpl::connect(std::span<const std::byte> bytes, std::string_view host) {
  if (!failure_.ok()) return failure_;
  VerbsAddress address;
  if (!decode_address(bytes, &address) || address.packet_bytes < kPacketBytesMin) {
    ++counters_.peers_refused;
    return kBadPeerAddress;
  }
  if (Status status = unreachable(address); !status.ok()) {
    ++counters_.peers_refused;
    return status;
  }
  if (const auto known = ids_.find(encode_address(address)); known != ids_.end()) {
    ++objects_->peers[known->second].references;
    return known->second;
  }
  return new_peer(address, host);
}

Result<PeerId> VerbsImpl::new_peer(const VerbsAddress& address, std::string_view host) {
  std::vector<Peer>& peers = objects_->peers;
  const bool is_more = free_ids_.empty();
  const size_t count = peers.size() + (is_more ? 1 : 0);
  const PeerId id = is_more ? static_cast<PeerId>(peers.size()) : free_ids_.back();
  if (!base::try_reserve(peers, count) || !base::try_reserve(routes_, count) || !base::try_reserve(free_ids_, count) ||
      !base::try_grow([&] { ids_.emplace(encode_address(address), id); })) {
    return kNoPeerMemory;
  }
  std::shared_ptr<Lookup> lookup = look_up(address, host);
  if (lookup == nullptr) {
    ids_.erase(encode_address(address));
    return kNoPeerMemory;
  }
  if (is_more) {
    peers.emplace_back();
    routes_.emplace_back();
  } else {
    free_ids_.pop_back();
  }
  routes_[id] = {.way = {.ah = nullptr, .remote_qpn = address.queue_pair, .remote_qkey = address.key},
                 .packet_bytes = std::min<uint32_t>(address.packet_bytes, packet_bytes_),
                 .quick_bytes = 0};
  peers[id] = {.references = 1, .lookup = std::move(lookup), .address = address};
  return id;
}

/// Starts the lookup of the peer's address handle. Null: see VerbsResolver::start().
std::shared_ptr<VerbsImpl::Lookup> VerbsImpl::look_up(const VerbsAddress& address, std::string_view host) {
  const rdma::Port& port = objects_->opened.port;
  ibv_ah_attr route{};
  route.dlid = address.lid;
  route.sl = static_cast<uint8_t>(options_.service_level);
  route.port_num = port.number;
  route.is_global = port.fabric != rdma::Fabric::kInfiniband || port.needs_global_route;
  std::copy(address.gid.begin(), address.gid.end(), reinterpret_cast<std::byte*>(route.grh.dgid.raw));
  route.grh.sgid_index = static_cast<uint8_t>(port.gid_index);
  route.grh.hop_limit = kHopsMax;
  route.grh.traffic_class = static_cast<uint8_t>(options_.traffic_class);
  return objects_->resolver->start(route, host);
}

/// Takes the handle if the lookup has finished.
void VerbsImpl::adopt(PeerId id) {
  Route& route = routes_[id];
  const Lookup& lookup = *objects_->peers[id].lookup;
  if (lookup.state.load(std::memory_order_acquire) != Lookup::State::kMade) return;
  route.way.ah = lookup.handle.get();
  route.quick_bytes = std::min(route.packet_bytes, inline_bytes_max_);
}

PeerState VerbsImpl::peer_state(PeerId id) {
  const Peer& peer = objects_->peers[id];
  if (peer.references == 0 || !failure_.ok()) return PeerState::kDead;
  if (routes_[id].way.ah == nullptr) adopt(id);
  if (routes_[id].way.ah != nullptr) return PeerState::kReady;
  const bool is_failed = peer.lookup->state.load(std::memory_order_relaxed) == Lookup::State::kFailed;
  return is_failed ? PeerState::kDead : PeerState::kConnecting;
}

/// True if the peer has a handle, and the queue has a free slot.
bool VerbsImpl::may_send(PeerId id) {
  if (peer_state(id) != PeerState::kReady) return false;
  if (!sends_.is_full()) return true;
  poll_sends();
  is_refused_ = sends_.is_full();
  return !is_refused_;
}

void VerbsImpl::disconnect(PeerId id) {
  Peer& peer = objects_->peers[id];
  CHECK(peer.references, >, 0u);
  if (--peer.references > 0 || !objects_.is_here()) return;  // the parent owns a forked child's handles
  ids_.erase(encode_address(peer.address));
  free_ids_.push_back(id);
  peer.lookup->is_wanted.store(false, std::memory_order_relaxed);
  const std::shared_ptr<Lookup> lookup = std::move(peer.lookup);
  const bool has_sent = routes_[id].way.ah != nullptr;
  routes_[id] = {};
  flush();
  // Soft-RoCE looks at the handle when the packet leaves, and fails the queue pair if there is none.
  if (has_sent && sends_.has_outstanding()) {
    (void)base::try_grow([&] { objects_->retired.push_back({sends_.ticket(), lookup}); });
  }
}

void VerbsImpl::bury_retired() {
  std::erase_if(objects_->retired, [this](const Retired& one) { return one.ticket <= sends_.done(); });
}

}  // namespace tern::transport
