// An endpoint's record of its peers across their sessions: the sessions that end with a Nexus, and the share of each
// host in the endpoint's budgets (docs/protocol.md, 5.7). Owner thread only. Does no I/O; time is an argument.
//
// A host is an IPv4 address or an IPv6 /64, because a machine with one address in a /64 can use all of them. A run is
// one run of a Nexus; several processes of a host are several runs. Budgets are shared fairly between hosts first, and
// then between the runs of a host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/linked_list.h"
#include "base/pool.h"
#include "nexus/control.h"

namespace tern::rpc {

struct Client;
struct Server;
struct Run;

/// Part of a budget: one message of a server session.
struct Claim {
  Server* server;
  Run* run;
  uint32_t slot;  ///< index of the slot
  size_t bytes;
  uint64_t news_ns;  ///< time of the last progress that was noted
  base::ListLinks<Claim> links = {};

  struct InRun {
    static base::ListLinks<Claim>& of(Claim& claim) { return claim.links; }
    static const base::ListLinks<Claim>& of(const Claim& claim) { return claim.links; }
  };
};

/// The part of a budget that one host, or one run, uses.
template <class Owner>
struct Account {
  size_t bytes = 0;
  base::HeapLinks<Owner> links = {};  ///< place in the heap of owners with bytes
};

/// The part of a budget that a run uses, with its claims.
struct RunAccount : Account<RunAccount> {
  base::LinkedList<Claim, Claim::InRun> claims;  ///< ordered by the time of the last progress, oldest first
};

template <class T>
struct BySize {
  static base::HeapLinks<T>& of(T& account) { return account.links; }
  static size_t size(const T& account) { return account.bytes; }
};

struct HostAccount : Account<HostAccount> {
  base::MaxHeap<RunAccount, BySize<RunAccount>> runs;  ///< the host's runs with bytes
};

/// The two budgets of an endpoint.
enum class Budget : uint8_t {
  kArriving,   ///< long requests while they arrive: RpcOptions::receive_budget_bytes
  kResponses,  ///< memory of responses in the slots of sessions: RpcOptions::response_budget_bytes
};
inline constexpr size_t kBudgets = 2;

/// The sessions and budgets of one address.
struct Host {
  uint64_t key;
  Host* next_in_bucket = nullptr;
  uint32_t runs = 0;
  uint32_t server_sessions = 0;
  uint32_t abandoned = 0;  ///< requests that the application still has, and that no client waits for
  HostAccount accounts[kBudgets];
};

/// The sessions and budgets of one run of a Nexus.
struct Run {
  /// Client and Server have the same name for their links.
  struct InRun {
    static auto& of(auto& session) { return session.in_run; }
  };
  uint64_t key;                     ///< nexus::PeerNexus::boot_id
  nexus::AddressText address = {};  ///< "HOST:PORT" at which the run was first met
  Run* next_in_bucket = nullptr;
  Host* host = nullptr;
  uint32_t uses = 0;  ///< number of sessions and other users that keep this record
  uint32_t server_sessions = 0;
  uint32_t abandoned = 0;  ///< the run's part of Host::abandoned; each of these requests keeps the run
  base::LinkedList<Client, InRun> clients;
  base::LinkedList<Server, InRun> servers;
  uint64_t life_asked_ns = 0;  ///< time of the last question whether the run lives
  uint64_t life_packets = 0;   ///< packets that its server sessions had received at that time
  RunAccount accounts[kBudgets];
};

/// A hash table of objects with a `key` and a `next_in_bucket`, which it does not own. Never throws: without memory it
/// does not grow, and becomes slower.
template <class T>
class Buckets {
 public:
  /// `salt`: strangers may choose keys, and must not be able to choose buckets.
  explicit Buckets(uint64_t salt) : salt_(salt) {}
  T* find(uint64_t key) const {
    T* item = *bucket_of(key);
    while (item != nullptr && item->key != key) item = item->next_in_bucket;
    return item;
  }
  void add(T* item) {
    if (++size_ > count_) grow();
    T** bucket = bucket_of(item->key);
    item->next_in_bucket = *bucket;
    *bucket = item;
  }
  void remove(T* item) {
    T** at = bucket_of(item->key);
    while (*at != item) at = &(*at)->next_in_bucket;
    *at = item->next_in_bucket;
    size_--;
  }
  size_t size() const { return size_; }
  template <class F>
  void for_each(F&& f) const {
    for (size_t i = 0; i < count_; i++) {
      for (T* item = buckets()[i]; item != nullptr; item = item->next_in_bucket) f(item);
    }
  }

 private:
  T** buckets() const { return owned_ != nullptr ? owned_.get() : &first_; }
  T** bucket_of(uint64_t key) const {
    key = (key ^ salt_) * 0x9e3779b97f4a7c15u;
    key = (key ^ key >> 32) * 0xd6e8feb86659fd93u;
    return &buckets()[(key ^ key >> 32) & (count_ - 1)];
  }
  void grow() {
    const size_t before = count_;
    std::unique_ptr<T*[]> larger(new (std::nothrow) T*[2 * before]());
    if (larger == nullptr) return;
    std::unique_ptr<T*[]> smaller = std::exchange(owned_, std::move(larger));
    T* const only = std::exchange(first_, nullptr);
    count_ = 2 * before;
    for (size_t i = 0; i < before; i++) {
      T* item = smaller != nullptr ? smaller[i] : only;
      while (item != nullptr) {
        T* next = item->next_in_bucket;
        T** bucket = bucket_of(item->key);
        item->next_in_bucket = *bucket;
        *bucket = item;
        item = next;
      }
    }
  }

  const uint64_t salt_;
  mutable T* first_ = nullptr;   ///< the only bucket, if owned_ is null
  std::unique_ptr<T*[]> owned_;  ///< null: one bucket
  size_t count_ = 1;             ///< number of buckets, a power of two
  size_t size_ = 0;
};

class Peers {
 public:
  /// After this time without progress a request may be failed in favour of others of its own run. An honest client
  /// sends a lost packet again in less time.
  static constexpr uint64_t kStalledNs = 1'000'000'000;

  explicit Peers(uint64_t salt) : hosts_(salt), runs_(salt) {}

  /// The key of the host in a numeric "HOST:PORT": the IPv4 address, or the first 64 bits of the IPv6 address. For
  /// other text it is a hash.
  static uint64_t host_key(std::string_view address);

  /// Returns the record of a run. It stays until leave() has been called as often as join(). Null: no memory.
  Run* join(std::string_view address, uint64_t boot_id);
  void join(Run* run) { run->uses++; }
  void leave(Run* run);
  Run* find_run(uint64_t boot_id) const { return runs_.find(boot_id); }
  const Host* find_host(std::string_view address) const { return hosts_.find(host_key(address)); }
  template <class F>
  void for_each_run(F&& f) const {
    runs_.for_each(f);
  }

  size_t bytes(Budget budget) const { return totals_[index_of(budget)].bytes; }
  size_t claims(Budget budget) const { return totals_[index_of(budget)].claims; }
  /// Makes a claim for a message of `run`, as the run's newest. Null: no memory.
  Claim* claim(Budget budget, Run* run, Server* server, uint32_t slot, size_t bytes, uint64_t now_ns);
  void release(Budget budget, Claim* claim);
  /// Notes that the claim's request or response has made progress.
  static void note_news(Budget budget, Claim* claim, uint64_t now_ns) {
    claim->news_ns = now_ns;
    claim->run->accounts[index_of(budget)].claims.move_last(claim);
  }
  /// Returns the claim that gives way first. It is of the host with the most bytes, of that host's run with the most
  /// bytes, and of that run the claim without progress for the longest time. Null: there are no claims.
  Claim* first_to_go(Budget budget) const;
  /// Returns the claim that gives way to a claim of `bytes` for `run`. Null: no claim has to.
  Claim* first_to_go_for(Budget budget, const Run* run, size_t bytes, uint64_t now_ns) const;

  /// CHECKs the totals against their parts.
  void check_invariants() const;

 private:
  struct Total {
    size_t bytes = 0;
    size_t claims = 0;
    base::MaxHeap<HostAccount, BySize<HostAccount>> hosts;  ///< the hosts with bytes
  };
  static constexpr size_t index_of(Budget budget) { return static_cast<size_t>(budget); }
  void change(Budget budget, Run* run, size_t added, size_t removed);

  base::Pool<Host> host_pool_;
  base::Pool<Run> run_pool_;
  base::Pool<Claim> claim_pool_;
  Buckets<Host> hosts_;
  Buckets<Run> runs_;
  Total totals_[kBudgets];
};

}  // namespace tern::rpc
