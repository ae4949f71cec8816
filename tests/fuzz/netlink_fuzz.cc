// Any bytes as the content of a netlink socket. Every reader of src/neighbours reads every message, and a table of
// destinations gets the messages as reports and as answers. An input is in memory of exactly its size.
#include <linux/rtnetlink.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>

#include "neighbours/messages.h"
#include "neighbours/table.h"

namespace {

using namespace tern::neighbours;
using tern::base::SocketAddress;

constexpr uint32_t kInterface = 77;
constexpr const char* kDestinations[] = {"10.0.0.2", "10.1.2.3", "fd00::2", "fe80::2"};

void require(bool is_true) {
  if (!is_true) std::abort();
}

class World {
 public:
  World() : table_(kInterface, tern::frames::MacAddress({2, 0, 0, 0, 0, 1}), 14) {
    for (const char* text : kDestinations) require(table_.find(*SocketAddress::parse_ip(text)).has_value());
  }

  void on_message(const nlmsghdr& message) {
    if (const auto interface = read_link(message)) {
      require(interface->index != 0 && interface->name.size() < IFNAMSIZ);
      require(interface->vlan != 0 || interface->parent == 0);
    }
    if (const auto end = read_end(message)) require(*end >= 0 && *end <= 4095);
    read_address(message);
    const auto route = read_route(message);
    const auto neighbour = read_neighbour(message);
    if (route) {
      require(route->destination.length <= 8 * route->destination.ip.ip().size());
      require(route->destination.covers(route->destination.ip));
      table_.on_route_change(route->destination);
    }
    if (neighbour) {
      require(!neighbour->mac || !neighbour->mac->is_zero());
      require(neighbour->is_valid() || !neighbour->is_watched());
      table_.on_neighbour_change(neighbour->ip);
    }
    answer(route, neighbour);
    table_.check_invariants();
    now_ns_ += 500'000'000;
  }

 private:
  void answer(const std::optional<RouteMessage>& route, const std::optional<NeighbourMessage>& neighbour) {
    for (int i = 0; i < 20; i++) {
      const Table::Action action = table_.next_action(now_ns_);
      if (action.destination != nullptr && route) {
        table_.on_route(action.destination, *route, now_ns_);
      } else if (action.destination != nullptr) {
        table_.on_no_route(action.destination, Reason::kNoRoute, now_ns_);
      } else if (action.hop != nullptr) {
        const auto asked = table_.on_neighbour(action.hop, neighbour ? &*neighbour : nullptr, now_ns_);
        require(!neighbour || !neighbour->is_watched() || !asked);
      }
    }
    table_.take_changes();
  }

  Table table_;
  uint64_t now_ns_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::unique_ptr<std::byte[]> exact(new std::byte[size]);
  std::ranges::copy(std::as_bytes(std::span(data, size)), exact.get());
  World world;
  for_each_message({exact.get(), size}, [&](const nlmsghdr& message) { world.on_message(message); });
  return 0;
}
