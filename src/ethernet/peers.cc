#include "ethernet/peers.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/try.h"

namespace tern::ethernet {

void Peers::start(std::unique_ptr<neighbours::Resolver> resolver, const Own& own) {
  resolver_ = std::move(resolver);
  own_ = own;
}

Result<EndpointAddress> Peers::read(std::span<const std::byte> bytes) const {
  EndpointAddress address;
  if (!decode_address(bytes, &address) || address.datagram_bytes < kDatagramBytesMin || address.end.is_link_local()) {
    return status_of(names_, Code::kMisuse, "the peer's data-path address is not that of this transport",
                     {"the peer's data-path address is not that of an endpoint over ", names_.transport,
                      ": both sides must run the same transport"});
  }
  if (address.end.family() != own_.address.family()) {
    return status_of(names_, Code::kUnavailable, "the peer's address is of the other IP family",
                     {"the peer has an IPv4 address and this endpoint an IPv6 address, or the other way round: set ",
                      names_.type, "::Options on either side so that both have one family"});
  }
  return address;
}

Result<uint32_t> Peers::connect(const EndpointAddress& address, uint64_t now_ns) {
  if (const auto known = ids_.find(encode_address(address)); known != ids_.end()) {
    ++peers_[known->second].references;
    return known->second;
  }
  const auto neighbour = resolver_->find(address.end, now_ns);
  if (!neighbour.ok()) return neighbour.status();
  Result<uint32_t> made = resolver_->state(*neighbour) == neighbours::State::kFailed ? resolver_->failure(*neighbour)
                                                                                     : make(address, *neighbour);
  if (!made.ok()) resolver_->release(*neighbour);
  return made;
}

Result<uint32_t> Peers::connect(std::span<const std::byte> bytes, uint64_t now_ns, uint64_t& refused) {
  const Result<EndpointAddress> address = read(bytes);
  if (address.ok()) return connect(*address, now_ns);
  ++refused;
  return address.status();
}

/// The peer takes over the reference to `neighbour`, unless there is no memory.
Result<uint32_t> Peers::make(const EndpointAddress& address, neighbours::Id neighbour) {
  const bool is_more = free_ids_.empty();
  const size_t count = peers_.size() + (is_more ? 1 : 0);
  const uint32_t id = is_more ? static_cast<uint32_t>(peers_.size()) : free_ids_.back();
  const EndpointAddress::Bytes name = encode_address(address);
  if (!base::try_reserve(peers_, count) || !base::try_reserve(routes_, count) || !base::try_reserve(free_ids_, count) ||
      !base::try_grow([&] { ids_.emplace(name, id); }) ||
      !base::try_grow([&] { by_neighbour_.emplace(neighbour, id); })) {
    ids_.erase(name);
    return status_of(names_, Code::kNoMemory, "no memory for another peer",
                     {"no memory for another peer: free some, or end sessions"});
  }
  if (is_more) {
    peers_.emplace_back();
    routes_.emplace_back();
  } else {
    free_ids_.pop_back();
  }
  peers_[id] = {.references = 1, .neighbour = neighbour, .address = address};
  routes_[id].datagram_bytes = std::min<uint32_t>(address.datagram_bytes, own_.datagram_bytes);
  adopt(id);
  return id;
}

void Peers::disconnect(uint32_t id) {
  Peer& peer = peers_[id];
  CHECK(peer.references, >, 0u);
  if (--peer.references > 0) return;
  CHECK(!routes_[id].has_frame());
  const auto [first, last] = by_neighbour_.equal_range(peer.neighbour);
  by_neighbour_.erase(std::find_if(first, last, [id](const auto& entry) { return entry.second == id; }));
  resolver_->release(peer.neighbour);
  ids_.erase(encode_address(peer.address));
  free_ids_.push_back(id);
  routes_[id] = {};
}

/// Builds the headers of a peer whose MAC address is known. A MAC address that becomes unknown stays in use until there
/// is a new one. An open frame gets the new headers, which are as long as the old ones.
void Peers::adopt(uint32_t id) {
  const Peer& peer = peers_[id];
  if (peer.references == 0 || has_failed_) return;
  Route& route = routes_[id];
  const bool is_known = resolver_->state(peer.neighbour) == neighbours::State::kKnown;
  if (!is_known && !route.is_ready) return;
  route.headers = frames::FrameTemplate({
      .source_mac = own_.mac,
      .destination_mac = is_known ? resolver_->mac(peer.neighbour) : route.headers.destination_mac(),
      .source = own_.address,
      .destination = peer.address.end,
      .vlan = own_.vlan,
      .vlan_priority = 0,
      .traffic_class = own_.traffic_class,
  });
  route.is_ready = true;
}

bool Peers::is_dead(uint32_t id) const {
  const Peer& peer = peers_[id];
  if (peer.references == 0 || has_failed_) return true;
  return !routes_[id].is_ready && resolver_->state(peer.neighbour) == neighbours::State::kFailed;
}

Status Peers::failure(uint32_t id) const {
  const Peer& peer = peers_[id];
  if (peer.references == 0 || has_failed_ || !is_dead(id)) return {};
  return resolver_->failure(peer.neighbour);
}

bool Peers::update(uint64_t now_ns) {
  const neighbours::Resolver::Changes changes = resolver_->update(now_ns);
  for (const neighbours::Id neighbour : changes.ids) {
    const auto [first, last] = by_neighbour_.equal_range(neighbour);
    for (auto entry = first; entry != last; ++entry) adopt(entry->second);
  }
  return changes.is_interface;
}

Status Peers::own_failure() const {
  const Status failure = resolver_->own_failure();
  if (failure.ok()) return failure;
  return status_of(names_, failure.code(), "the network interface, or the endpoint's address, is gone",
                   {failure.message(), "; the endpoint has failed for good: make a new one"});
}

void Peers::set_own_mac(const frames::MacAddress& mac) {
  own_.mac = mac;
  for (uint32_t id = 0; id < peers_.size(); ++id) adopt(id);
}

void Peers::fail() {
  has_failed_ = true;
  for (Route& route : routes_) route.is_ready = false;
}

}  // namespace tern::ethernet
