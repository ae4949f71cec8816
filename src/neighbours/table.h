// The destinations of an interface, their next hops, and the requests to the kernel about them. Neighbours layer: a
// pure state machine, whose input is the kernel's answers and the time. One thread.
//
// A report of the kernel only says that something has changed. The table then asks for the current state, so that
// neither the order of reports and answers nor a lost report matters.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/address.h"
#include "base/linked_list.h"
#include "base/pool.h"
#include "frames/mac_address.h"
#include "neighbours/ip_key.h"
#include "neighbours/messages.h"

namespace tern::neighbours {

/// A destination of a Table.
enum class Id : uint32_t {};

///   kAsking ──> kKnown ──> kFailed ──> kKnown, or kAsking when there is a route again
///      └──────────────────────^
enum class State : uint8_t { kAsking, kKnown, kFailed };

/// Why a destination has failed.
enum class Reason : uint8_t {
  kNone,
  kNotOneHost,      ///< multicast, broadcast, loopback or wildcard
  kNoRoute,         ///< there is no route by this interface
  kOtherInterface,  ///< the route or the scope is of another interface
  kBlackhole,       ///< the route's type is this; the same holds for the next two reasons
  kUnreachable,
  kProhibited,
  kNoMemory,  ///< no memory for the kernel's answer
  kSilent,    ///< the next hop does not answer
};

class Table {
  struct Destination;
  struct Hop;

 public:
  /// A known destination whose route is gone has failed after this time. A next hop that does not answer has failed
  /// after the same time. Linux asks for a neighbour three times, a second apart.
  static constexpr uint64_t kGiveUpNs = 3'000'000'000;
  static constexpr uint64_t kAskAgainNs = 1'000'000'000;
  /// The time between attempts to reach a next hop that has failed.
  static constexpr uint64_t kRetryNs = 5'000'000'000;
  /// The most hops that the kernel is made to ask for at one time. Peers can name addresses that no host has, and each
  /// address takes space in a socket and in the kernel's table, which has 1024 entries by default
  /// (net.ipv4.neigh.default.gc_thresh3).
  static constexpr size_t kAskedMax = 256;
  /// The most changes that are reported at one time.
  static constexpr size_t kChangesMax = 64;

  /// One request to the kernel. The answer must be given before the next call of another function.
  struct Action {
    Destination* destination = nullptr;  ///< not null: look up its route, then call on_route() or on_no_route()
    Hop* hop = nullptr;                  ///< not null: look up its neighbour entry, then call on_neighbour()
    base::SocketAddress ip;              ///< of the destination or of the hop
  };

  /// `salt` must be random, so that no peer can choose addresses that collide.
  Table(uint32_t interface, const frames::MacAddress& own_mac, uint64_t salt)
      : interface_(interface), own_mac_(own_mac), destinations_(0, IpHash{salt}), hops_(0, IpHash{salt}) {}
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  ~Table();

  /// Returns a reference to the destination; the port does not matter. Returns nothing if there is no memory.
  std::optional<Id> find(const base::SocketAddress& destination);
  /// Must be called once for each find().
  void release(Id id);

  State state(Id id) const;
  /// Must be called only when kKnown.
  const frames::MacAddress& mac(Id id) const;
  Reason reason(Id id) const;
  /// The destination's address; its port is 0.
  const base::SocketAddress& address(Id id) const;
  /// The destination itself, or its gateway. Null: the destination has no route by the interface.
  const base::SocketAddress* next_hop(Id id) const;
  size_t size() const { return destinations_.size(); }
  size_t hops() const { return hops_.size(); }

  /// Returns an action with neither pointer set if there is nothing to ask now. Each call returns another action.
  Action next_action(uint64_t now_ns);
  /// Passes the actions of this time, at most `count`, to one of two functions.
  template <class Route, class Neighbour>
  void for_each_action(int count, uint64_t now_ns, Route&& ask_for_route, Neighbour&& ask_for_neighbour) {
    for (int i = 0; i < count; i++) {
      const Action action = next_action(now_ns);
      if (action.destination != nullptr) {
        ask_for_route(action);
      } else if (action.hop != nullptr) {
        ask_for_neighbour(action);
      } else {
        return;
      }
    }
  }
  /// The time at which next_action() or take_changes() has something; 0: now; UINT64_MAX: never.
  uint64_t next_action_ns() const;
  void on_route(Destination* destination, const RouteMessage& route, uint64_t now_ns);
  void on_no_route(Destination* destination, Reason reason, uint64_t now_ns);
  /// `entry` is null if the kernel has no entry. If the result is an address, the caller sends a datagram to it, so
  /// that the kernel asks for the neighbour. If the datagram cannot be sent now, the caller calls on_postponed().
  [[nodiscard]] std::optional<base::SocketAddress> on_neighbour(Hop* hop, const NeighbourMessage* entry,
                                                                uint64_t now_ns);
  void on_postponed(Hop* hop) { set_asked(hop, false); }

  /// The neighbour entry of `ip` has changed.
  void on_neighbour_change(const base::SocketAddress& ip);
  /// Routes to addresses of `prefix` have changed.
  void on_route_change(const Prefix& prefix);
  /// All routes may have changed.
  void on_routes_change();
  /// Reports were lost.
  void on_overrun();
  /// Sets the MAC address of the interface, which is that of its own addresses.
  void set_own_mac(const frames::MacAddress& mac);

  /// Returns the destinations whose state or MAC address has changed since they were found or last reported; valid
  /// until the next call.
  std::span<const Id> take_changes();

  /// For tests.
  void check_invariants() const;

 private:
  struct ByWait {
    template <class T>
    static auto& of(T& item) {
      return item.by_wait;
    }
  };
  struct ByHop {
    template <class T>
    static auto& of(T& destination) {
      return destination.by_hop;
    }
  };
  struct ByChange {
    template <class T>
    static auto& of(T& destination) {
      return destination.by_change;
    }
  };
  /// The items of one list wait equally long, so that the first one is due first.
  template <class T>
  using Waiting = base::LinkedList<T, ByWait>;

  struct Destination {
    base::SocketAddress ip;  ///< port 0
    Id id{};
    uint32_t references = 1;
    State state = State::kAsking;
    frames::MacAddress mac;  ///< while kKnown
    /// From the last route. At most one of these three is set.
    Reason reason = Reason::kNone;
    bool is_own = false;  ///< the destination is an address of this host
    Hop* hop = nullptr;

    bool is_lost = false;  ///< the destination is known, but its route is gone
    uint64_t lost_ns = 0;
    bool is_changed = false;  ///< the destination is in changes_
    uint64_t due_ns = 0;
    Waiting<Destination>* list = nullptr;  ///< the list in which it waits for a look-up of its route
    base::ListLinks<Destination> by_wait;
    base::ListLinks<Destination> by_hop;
    base::ListLinks<Destination> by_change;
  };

  struct Hop {
    base::SocketAddress ip;  ///< port 0
    State state = State::kAsking;
    frames::MacAddress mac;  ///< while kKnown

    bool is_asked = false;  ///< the kernel asks for it, and has no answer yet
    uint64_t asked_ns = 0;  ///< the time since which the kernel asks
    uint64_t due_ns = 0;
    Waiting<Hop>* list = nullptr;  ///< the list in which it waits for a look-up of its entry; null: it does not wait
    base::ListLinks<Hop> by_wait;
    base::LinkedList<Destination, ByHop> destinations;  ///< never empty
  };

  const Destination& at(Id id) const { return *slots_[static_cast<uint32_t>(id)]; }
  template <class T>
  static void wait(T* item, Waiting<T>* list, uint64_t due_ns);
  template <class T>
  static T* take_due(Waiting<T>* list, uint64_t now_ns);
  void make_due(Destination* destination) { wait(destination, &due_routes_, 0); }
  void make_due(Hop* hop) { wait(hop, &due_hops_, 0); }

  Hop* hop_of(const base::SocketAddress& ip);
  void attach(Destination* destination, Hop* hop);
  void detach(Destination* destination);
  void set_asked(Hop* hop, bool is_asked);
  void refresh(Destination* destination);
  void refresh(Hop* hop);

  uint32_t interface_;
  frames::MacAddress own_mac_;
  base::Pool<Destination> destination_pool_;
  base::Pool<Hop> hop_pool_;
  std::unordered_map<IpKey, Destination*, IpHash> destinations_;
  std::unordered_map<IpKey, Hop*, IpHash> hops_;
  std::vector<Destination*> slots_;  ///< by Id
  std::vector<Id> free_;             ///< free ids of slots_; its capacity is that of slots_
  Waiting<Destination> due_routes_;
  Waiting<Destination> later_routes_;  ///< kAskAgainNs
  Waiting<Hop> due_hops_;
  Waiting<Hop> asked_hops_;   ///< kAskAgainNs
  Waiting<Hop> failed_hops_;  ///< kRetryNs
  size_t asked_ = 0;          ///< the number of hops that are asked for
  base::LinkedList<Destination, ByChange> changes_;
  std::array<Id, kChangesMax> reported_{};
};

}  // namespace tern::neighbours
