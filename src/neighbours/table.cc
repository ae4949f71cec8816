#include "neighbours/table.h"

#include <linux/neighbour.h>
#include <linux/rtnetlink.h>

#include <algorithm>

#include "base/check.h"
#include "base/try.h"

namespace tern::neighbours {

namespace {

/// The reason why packets cannot go to `ip`, whatever the routes are.
Reason reason_of(const base::SocketAddress& ip, uint32_t interface) {
  if (ip.is_group() || ip.is_wildcard() || ip.is_loopback()) return Reason::kNotOneHost;
  if (ip.scope() != 0 && ip.scope() != interface) return Reason::kOtherInterface;
  return Reason::kNone;
}

/// The reason why packets cannot go by the route, or kNone.
Reason reason_of(const RouteMessage& route, uint32_t interface) {
  switch (route.type) {
    case RTN_UNICAST:
      if (route.destination.ip.family() == AF_INET && route.table == RT_TABLE_UNSPEC) return Reason::kNoRoute;
      return route.interface == interface ? Reason::kNone : Reason::kOtherInterface;
    case RTN_LOCAL:
      return Reason::kNone;
    case RTN_BLACKHOLE:
      return Reason::kBlackhole;
    case RTN_UNREACHABLE:
      return Reason::kUnreachable;
    case RTN_PROHIBIT:
      return Reason::kProhibited;
    default:  // RTN_BROADCAST, RTN_ANYCAST, RTN_MULTICAST
      return Reason::kNotOneHost;
  }
}

}  // namespace

Table::~Table() {
  for (const auto& [key, destination] : destinations_) {
    detach(destination);
    destination_pool_.give(destination);
  }
}

template <class T>
void Table::wait(T* item, Waiting<T>* list, uint64_t due_ns) {
  if (item->list != nullptr) item->list->remove(item);
  item->list = list;
  item->due_ns = due_ns;
  if (list != nullptr) list->add_last(item);
}

template <class T>
T* Table::take_due(Waiting<T>* list, uint64_t now_ns) {
  T* const item = list->first();
  if (item == nullptr || item->due_ns > now_ns) return nullptr;
  wait<T>(item, nullptr, 0);
  return item;
}

std::optional<Id> Table::find(const base::SocketAddress& destination) {
  base::SocketAddress ip = destination;
  ip.set_port(0);
  const Reason reason = reason_of(ip, interface_);
  // A destination of another interface has a key of its own, so that the addresses of this interface do not find it.
  IpKey key(ip);
  if (reason == Reason::kOtherInterface) key.family = AF_MAX;
  if (const auto found = destinations_.find(key); found != destinations_.end()) {
    found->second->references++;
    return found->second->id;
  }
  if (free_.empty()) {
    if (slots_.size() == UINT32_MAX || !base::try_reserve(slots_, slots_.size() + 1) ||
        !base::try_reserve(free_, slots_.capacity())) {
      return std::nullopt;
    }
    free_.push_back(static_cast<Id>(slots_.size()));
    slots_.push_back(nullptr);
  }
  Destination* const added = destination_pool_.take();
  if (added == nullptr) return std::nullopt;
  if (!base::try_grow([&] { destinations_.emplace(key, added); })) {
    destination_pool_.give(added);
    return std::nullopt;
  }
  added->id = free_.back();
  free_.pop_back();
  slots_[static_cast<uint32_t>(added->id)] = added;
  added->ip = ip;
  added->reason = reason;
  if (reason == Reason::kNone) {
    make_due(added);
  } else {
    added->state = State::kFailed;
  }
  return added->id;
}

void Table::release(Id id) {
  Destination* const destination = slots_[static_cast<uint32_t>(id)];
  if (--destination->references > 0) return;
  detach(destination);
  wait<Destination>(destination, nullptr, 0);
  if (destination->is_changed) changes_.remove(destination);
  IpKey key(destination->ip);
  if (reason_of(destination->ip, interface_) == Reason::kOtherInterface) key.family = AF_MAX;
  destinations_.erase(key);
  slots_[static_cast<uint32_t>(id)] = nullptr;
  free_.push_back(id);
  destination_pool_.give(destination);
}

State Table::state(Id id) const { return at(id).state; }
const frames::MacAddress& Table::mac(Id id) const { return at(id).mac; }
const base::SocketAddress& Table::address(Id id) const { return at(id).ip; }

Reason Table::reason(Id id) const {
  const Destination& destination = at(id);
  if (destination.state != State::kFailed) return Reason::kNone;
  return destination.reason != Reason::kNone ? destination.reason : Reason::kSilent;
}

const base::SocketAddress* Table::next_hop(Id id) const { return at(id).hop != nullptr ? &at(id).hop->ip : nullptr; }

Table::Action Table::next_action(uint64_t now_ns) {
  Action action;
  for (auto* list : {&due_routes_, &later_routes_}) {
    action.destination = take_due(list, now_ns);
    if (action.destination == nullptr) continue;
    action.ip = action.destination->ip;
    return action;
  }
  for (auto* list : {&due_hops_, &asked_hops_, &failed_hops_}) {
    action.hop = take_due(list, now_ns);
    if (action.hop == nullptr) continue;
    action.ip = action.hop->ip;
    return action;
  }
  return action;
}

uint64_t Table::next_action_ns() const {
  if (!changes_.empty()) return 0;
  uint64_t due_ns = UINT64_MAX;
  for (const auto* list : {&due_routes_, &later_routes_}) {
    if (!list->empty()) due_ns = std::min(due_ns, list->first()->due_ns);
  }
  for (const auto* list : {&due_hops_, &asked_hops_, &failed_hops_}) {
    if (!list->empty()) due_ns = std::min(due_ns, list->first()->due_ns);
  }
  return due_ns;
}

void Table::on_route(Destination* destination, const RouteMessage& route, uint64_t now_ns) {
  const Reason reason = reason_of(route, interface_);
  if (reason != Reason::kNone) return on_no_route(destination, reason, now_ns);
  const bool is_own = route.type == RTN_LOCAL;
  Hop* const hop = is_own ? nullptr : hop_of(route.gateway.value_or(destination->ip));
  if (!is_own && hop == nullptr) return on_no_route(destination, Reason::kNoMemory, now_ns);
  destination->reason = Reason::kNone;
  destination->is_lost = false;
  destination->is_own = is_own;
  attach(destination, hop);
  refresh(destination);
}

void Table::on_no_route(Destination* destination, Reason reason, uint64_t now_ns) {
  if (destination->state == State::kKnown && !destination->is_lost) {
    destination->is_lost = true;
    destination->lost_ns = now_ns;
  }
  const bool may_return = destination->is_lost && now_ns - destination->lost_ns < kGiveUpNs;
  if (may_return || reason == Reason::kNoMemory) wait(destination, &later_routes_, now_ns + kAskAgainNs);
  destination->is_own = false;
  attach(destination, nullptr);
  if (may_return) return;
  destination->is_lost = false;
  destination->reason = reason;
  refresh(destination);
}

std::optional<base::SocketAddress> Table::on_neighbour(Hop* hop, const NeighbourMessage* entry, uint64_t now_ns) {
  if (entry != nullptr && entry->is_valid()) {
    hop->state = State::kKnown;
    hop->mac = *entry->mac;
    set_asked(hop, false);
    refresh(hop);
    if (entry->is_watched()) return std::nullopt;
  } else if (!hop->is_asked) {
    if (hop->state == State::kKnown) hop->state = State::kAsking;  // its destinations keep the MAC address
    if (asked_ == kAskedMax) {
      wait(hop, &asked_hops_, now_ns + kAskAgainNs);
      return std::nullopt;
    }
    set_asked(hop, true);
    hop->asked_ns = now_ns;
  } else if ((entry != nullptr && (entry->state & NUD_FAILED) != 0) || now_ns - hop->asked_ns >= kGiveUpNs) {
    hop->state = State::kFailed;
    set_asked(hop, false);
    wait(hop, &failed_hops_, now_ns + kRetryNs);
    refresh(hop);
    return std::nullopt;
  }
  wait(hop, &asked_hops_, now_ns + kAskAgainNs);
  return hop->destinations.first()->ip;
}

void Table::on_neighbour_change(const base::SocketAddress& ip) {
  if (const auto found = hops_.find(IpKey(ip)); found != hops_.end()) make_due(found->second);
}

void Table::on_route_change(const Prefix& prefix) {
  for (const auto& [key, destination] : destinations_) {
    const bool is_fixed = reason_of(destination->ip, interface_) != Reason::kNone;
    if (!is_fixed && prefix.covers(destination->ip)) make_due(destination);
  }
}

void Table::on_routes_change() {
  for (const sa_family_t family : {AF_INET, AF_INET6}) on_route_change({base::SocketAddress::loopback(family), 0});
}

void Table::on_overrun() {
  on_routes_change();
  for (const auto& [key, hop] : hops_) make_due(hop);
}

void Table::set_own_mac(const frames::MacAddress& mac) {
  own_mac_ = mac;
  for (const auto& [key, destination] : destinations_) {
    if (destination->is_own) refresh(destination);
  }
}

std::span<const Id> Table::take_changes() {
  size_t count = 0;
  while (count < reported_.size() && !changes_.empty()) {
    Destination* const destination = changes_.first();
    changes_.remove(destination);
    destination->is_changed = false;
    reported_[count++] = destination->id;
  }
  return std::span(reported_).first(count);
}

/// Returns null if there is no memory.
Table::Hop* Table::hop_of(const base::SocketAddress& ip) {
  const IpKey key(ip);
  if (const auto found = hops_.find(key); found != hops_.end()) return found->second;
  Hop* const hop = hop_pool_.take();
  if (hop == nullptr) return nullptr;
  if (!base::try_grow([&] { hops_.emplace(key, hop); })) {
    hop_pool_.give(hop);
    return nullptr;
  }
  hop->ip = ip;
  make_due(hop);
  return hop;
}

/// `hop` may be null.
void Table::attach(Destination* destination, Hop* hop) {
  if (destination->hop == hop) return;
  detach(destination);
  destination->hop = hop;
  if (hop != nullptr) hop->destinations.add_last(destination);
}

void Table::detach(Destination* destination) {
  Hop* const hop = destination->hop;
  if (hop == nullptr) return;
  destination->hop = nullptr;
  hop->destinations.remove(destination);
  if (!hop->destinations.empty()) return;
  wait<Hop>(hop, nullptr, 0);
  set_asked(hop, false);
  hops_.erase(IpKey(hop->ip));
  hop_pool_.give(hop);
}

void Table::set_asked(Hop* hop, bool is_asked) {
  asked_ = asked_ - (hop->is_asked ? 1 : 0) + (is_asked ? 1 : 0);
  hop->is_asked = is_asked;
}

/// Sets state and MAC address after the route or the hop has changed. A known destination whose next hop is being asked
/// for stays known.
void Table::refresh(Destination* destination) {
  State state = State::kAsking;
  frames::MacAddress mac;
  if (destination->reason != Reason::kNone) {
    state = State::kFailed;
  } else if (destination->is_own) {
    state = State::kKnown;
    mac = own_mac_;
  } else if (destination->hop != nullptr) {
    state = destination->hop->state;
    if (state == State::kKnown) mac = destination->hop->mac;
  }
  if (state == State::kAsking && destination->state == State::kKnown) return;
  if (state == destination->state && mac == destination->mac) return;
  destination->state = state;
  destination->mac = mac;
  if (destination->is_changed) return;
  destination->is_changed = true;
  changes_.add_last(destination);
}

void Table::refresh(Hop* hop) {
  for (Destination* d = hop->destinations.first(); d != nullptr; d = hop->destinations.after(d)) refresh(d);
}

void Table::check_invariants() const {
  size_t attached = 0;
  size_t counted = 0;
  size_t asked = 0;
  for (const auto& [key, destination] : destinations_) {
    CHECK(destination->references, >, 0u);
    CHECK(slots_[static_cast<uint32_t>(destination->id)] == destination);
    CHECK((destination->reason != Reason::kNone) + destination->is_own + (destination->hop != nullptr), <=, 1);
    CHECK(destination->mac.is_zero() == (destination->state != State::kKnown));
    CHECK(!destination->is_lost || destination->list != nullptr);
    if (destination->hop != nullptr) attached++;
  }
  for (const auto& [key, hop] : hops_) {
    CHECK(!hop->destinations.empty());
    if (hop->is_asked) asked++;
    CHECK(hop->state == State::kKnown || hop->list != nullptr);
    for (const Destination* d = hop->destinations.first(); d != nullptr; d = hop->destinations.after(d)) {
      CHECK(d->hop == hop);
      counted++;
    }
  }
  CHECK(attached, ==, counted);
  CHECK(asked, ==, asked_);
  CHECK(asked_, <=, kAskedMax);
  CHECK(destinations_.size() + free_.size(), ==, slots_.size());
}

}  // namespace tern::neighbours
