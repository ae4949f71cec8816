// The MAC addresses of the hosts on a link, for an own host. It corresponds to the kernel's table of neighbours.
// Neighbours layer: a pure state machine, whose input is received messages and the time. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/address.h"
#include "base/linked_list.h"
#include "base/pool.h"
#include "frames/mac_address.h"
#include "neighbours/ip_key.h"
#include "neighbours/messages.h"

namespace tern::neighbours {

/// Has entries only for neighbours for which ask() was called, so that strangers cannot fill it.
class NeighbourCache {
  struct Entry;

 public:
  /// The defaults of Linux: mcast_solicit, ucast_solicit, retrans_time_ms, base_reachable_time_ms, gc_stale_time.
  static constexpr uint32_t kSolicitations = 3;
  static constexpr uint64_t kAskAgainNs = 1'000'000'000;
  static constexpr uint64_t kReachableNs = 30'000'000'000;
  static constexpr uint64_t kIdleNs = 60'000'000'000;
  static constexpr size_t kEntriesMax = 65536;  ///< all hosts of a /16; 8 MB
  /// The most neighbours that are asked for at one time. Peers can name addresses that no host has.
  static constexpr size_t kAskedMax = 1024;

  explicit NeighbourCache(uint64_t salt) : entries_(0, IpHash{salt}) {}
  NeighbourCache(const NeighbourCache&) = delete;
  NeighbourCache& operator=(const NeighbourCache&) = delete;
  ~NeighbourCache();

  /// The entry of `ip`, with the state that the kernel's entry would have (NUD_*). Returns nothing if there is no
  /// entry.
  std::optional<NeighbourMessage> find(const base::SocketAddress& ip) const;
  /// Asks for a neighbour that has no entry or has failed, and confirms a stale neighbour. Returns false if too many
  /// neighbours are asked for at this time, or if there is no memory.
  [[nodiscard]] bool ask(const base::SocketAddress& ip, uint64_t now_ns);

  struct Question {
    base::SocketAddress ip;
    std::optional<frames::MacAddress> mac;  ///< nothing: the question goes to all hosts
  };
  /// Returns a question to send now; each call returns another question. Returns nothing if there is no question now.
  /// There may still be more work at this time (next_question_ns()), because the work of a call is bounded.
  std::optional<Question> next_question(uint64_t now_ns);
  /// The time at which next_question() has work; 0: now; UINT64_MAX: never.
  uint64_t next_question_ns() const;

  /// A neighbour's message about itself.
  struct News {
    std::optional<frames::MacAddress> mac;
    bool is_answer = false;    ///< it answers a question of this host
    bool is_override = false;  ///< it replaces another MAC address that is known
  };
  /// Follows RFC 4861 7.2.5. Does nothing if `ip` has no entry.
  void on_news(const base::SocketAddress& ip, const News& news, uint64_t now_ns);

  /// Returns a neighbour whose entry has changed. Several changes may be returned once. Nothing: there are no more
  /// changes.
  std::optional<base::SocketAddress> take_change();

  size_t size() const { return entries_.size(); }
  /// For tests.
  void check_invariants() const;

 private:
  ///   kAsking ──> kReachable <──> kStale <──> kProbing ──> kFailed ──> kAsking
  ///      └──────────────────────────────────────────────────^
  enum class State : uint8_t {
    kAsking,     ///< all hosts are asked for it, because no MAC address is known
    kReachable,  ///< it has answered less than kReachableNs ago
    kStale,      ///< it has not answered for kReachableNs
    kProbing,    ///< it is asked whether it still has the MAC address
    kFailed,     ///< it does not answer
  };
  struct ByWait {
    static auto& of(Entry& entry) { return entry.by_wait; }
    static auto& of(const Entry& entry) { return entry.by_wait; }
  };
  struct ByChange {
    static auto& of(Entry& entry) { return entry.by_change; }
    static auto& of(const Entry& entry) { return entry.by_change; }
  };
  /// The entries of one list wait equally long, so that the first one is due first.
  using Waiting = base::LinkedList<Entry, ByWait>;

  struct Entry {
    base::SocketAddress ip;
    State state = State::kAsking;
    frames::MacAddress mac;  ///< except in kAsking and kFailed
    uint32_t asked = 0;      ///< questions since kAsking or kProbing began
    uint64_t due_ns = 0;
    Waiting* list = nullptr;
    bool is_changed = false;  ///< the entry is in changes_
    base::ListLinks<Entry> by_wait;
    base::ListLinks<Entry> by_change;
  };

  Entry* entry_of(const base::SocketAddress& ip) const;
  Entry* add(const base::SocketAddress& ip);
  void remove(Entry* entry);
  static bool is_asked(State state) { return state == State::kAsking || state == State::kProbing; }
  void set_state(Entry* entry, State state, uint64_t now_ns);
  static Entry* first_due(const Waiting& list, uint64_t now_ns);
  static void wait(Entry* entry, Waiting* list, uint64_t due_ns);
  void note_change(Entry* entry);

  base::Pool<Entry> pool_;
  std::unordered_map<IpKey, Entry*, IpHash> entries_;
  Waiting due_;        ///< to be asked for now
  Waiting asked_;      ///< kAskAgainNs
  Waiting reachable_;  ///< kReachableNs
  Waiting idle_;       ///< stale and failed entries: kIdleNs
  size_t asked_count_ = 0;
  base::LinkedList<Entry, ByChange> changes_;
};

}  // namespace tern::neighbours
