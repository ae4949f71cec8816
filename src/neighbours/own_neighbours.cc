#include "neighbours/own_neighbours.h"

#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <string>

#include "base/random.h"
#include "neighbours/texts.h"

namespace tern::neighbours {

namespace {

constexpr int kActionsMax = 256;  ///< the most actions in one update(): about 100 us

}  // namespace

OwnNeighbours::OwnNeighbours(OwnHost* host, uint64_t salt)
    : host_(*host), table_(kNoInterface, host->options().mac, salt) {
  const OwnHost::Options& options = host->options();
  interface_.index = kNoInterface;
  interface_.name = options.name;
  interface_.mac = options.mac;
  interface_.mtu_bytes = options.mtu_bytes;
  interface_.is_up = true;
  interface_.vlan = options.vlan;
  interface_.addresses = {options.address.ip};
}

Result<std::unique_ptr<OwnNeighbours>> OwnNeighbours::create(OwnHost* host) {
  uint64_t salt = 0;
  if (!base::fill_random(&salt, sizeof(salt))) return base::kNoRandom;
  std::unique_ptr<OwnNeighbours> made(new (std::nothrow) OwnNeighbours(host, salt));
  if (made == nullptr) return Status(Code::kNoMemory, "no memory for the neighbours of an endpoint");
  if (!made->listener_.event.open()) {
    return unavailable("the kernel refused an event descriptor for the neighbours of an endpoint",
                       {"the kernel refused an event descriptor for the neighbours of an endpoint (",
                        std::strerror(errno), "): raise the limit (ulimit -n)"});
  }
  if (const Status status = host->add(&made->listener_); !status.ok()) return status;
  made->read_own();
  return made;
}

OwnNeighbours::~OwnNeighbours() { host_.remove(&listener_); }

Result<Id> OwnNeighbours::find(const base::SocketAddress& destination, uint64_t now_ns) {
  base::SocketAddress ip = destination;
  ip.set_scope(0);  // there is only one interface
  const auto id = table_.find(ip);
  if (!id) return Status(Code::kNoMemory, "no memory for another destination");
  ask(now_ns);
  return *id;
}

Status OwnNeighbours::failure(Id id) const {
  if (table_.reason(id) != Reason::kNoRoute) return failure_on_link(table_, id, interface_.name);
  const OwnAddress& own = host_.options().address;
  const std::string destination = table_.address(id).ip_text();
  const std::string address = own.ip.ip_text();
  if (table_.address(id).family() != own.ip.family()) {
    return unavailable("the destination is not of the same IP family as the option address",
                       {destination, " is not of the same IP family as ", address, ", the option address"});
  }
  return unavailable("the destination is not on the link, and the option gateway is empty",
                     {destination, " is not on the link of ", interface_.name, ", whose address is ", address, "/",
                      std::to_string(own.prefix_bits), ": set the option gateway"});
}

Resolver::Changes OwnNeighbours::update(uint64_t now_ns) {
  const bool is_own = read_news();
  ask(now_ns);
  return {table_.take_changes(), is_own};
}

/// Returns true if the interface or own_failure() has changed.
bool OwnNeighbours::read_news() {
  const OwnHost::Listener::News news = host_.take_news(&listener_);
  for (size_t i = 0; i < news.changes; i++) table_.on_neighbour_change(news.changed[i]);
  if (news.is_overrun) table_.on_overrun();
  if (news.is_own) read_own();
  return news.is_own;
}

void OwnNeighbours::read_own() {
  interface_.is_running = host_.is_link_up();
  own_failure_ = host_.failure();
  if (!own_failure_.ok()) interface_.addresses.clear();
}

void OwnNeighbours::ask(uint64_t now_ns) {
  table_.for_each_action(
      kActionsMax, now_ns, [&](const Table::Action& action) { ask_for_route(action, now_ns); },
      [&](const Table::Action& action) { ask_for_neighbour(action, now_ns); });
}

void OwnNeighbours::ask_for_route(const Table::Action& action, uint64_t now_ns) {
  const auto route = host_.options().address.route_to(action.ip, kNoInterface);
  if (route) return table_.on_route(action.destination, *route, now_ns);
  table_.on_no_route(action.destination, Reason::kNoRoute, now_ns);
}

void OwnNeighbours::ask_for_neighbour(const Table::Action& action, uint64_t now_ns) {
  const auto entry = host_.neighbour(action.ip);
  if (!table_.on_neighbour(action.hop, entry ? &*entry : nullptr, now_ns)) return;
  if (!host_.ask(action.ip, now_ns)) table_.on_postponed(action.hop);
}

}  // namespace tern::neighbours
