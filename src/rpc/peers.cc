#include "rpc/peers.h"

#include <algorithm>
#include <functional>

#include "base/address.h"
#include "base/check.h"

namespace tern::rpc {

uint64_t Peers::host_key(std::string_view address) {
  std::string_view host = base::host_of(address);
  host = host.substr(0, host.find('%'));  // the scope is not a part of the host
  const auto numeric = base::SocketAddress::parse_ip(host);
  // No host has an IPv6 address that begins with 255 (multicast).
  if (!numeric) return std::hash<std::string_view>{}(host) | uint64_t{255} << 56;
  uint64_t key = 0;  // an IPv4 address has at most 32 bits, which no IPv6 prefix has
  const std::span<const std::byte> ip = numeric->ip();
  for (size_t i = 0; i < std::min<size_t>(ip.size(), 8); i++) key = key << 8 | std::to_integer<uint64_t>(ip[i]);
  return key;
}

Run* Peers::join(std::string_view address, uint64_t boot_id) {
  Run* run = runs_.find(boot_id);
  if (run == nullptr) {
    const uint64_t key = host_key(address);
    Host* host = hosts_.find(key);
    const bool is_new = host == nullptr;
    if (is_new) host = host_pool_.take(Host{.key = key, .accounts = {}});
    run = host != nullptr
              ? run_pool_.take(Run{.key = boot_id, .address = address, .clients = {}, .servers = {}, .accounts = {}})
              : nullptr;
    if (run == nullptr) {
      if (is_new && host != nullptr) host_pool_.give(host);
      return nullptr;
    }
    if (is_new) hosts_.add(host);
    run->host = host;
    host->runs++;
    runs_.add(run);
  }
  join(run);
  return run;
}

void Peers::leave(Run* run) {
  if (--run->uses != 0) return;
  Host* host = run->host;
  runs_.remove(run);
  run_pool_.give(run);
  if (--host->runs != 0) return;
  hosts_.remove(host);
  host_pool_.give(host);
}

/// Changes a run's account. The heaps hold the owners with bytes, ordered by bytes.
void Peers::change(Budget budget, Run* run, size_t added, size_t removed) {
  Total& total = totals_[index_of(budget)];
  HostAccount& host = run->host->accounts[index_of(budget)];
  RunAccount& account = run->accounts[index_of(budget)];
  if (account.bytes != 0) host.runs.remove(&account);
  if (host.bytes != 0) total.hosts.remove(&host);
  account.bytes += added - removed;
  host.bytes += added - removed;
  total.bytes += added - removed;
  if (account.bytes != 0) host.runs.add(&account);
  if (host.bytes != 0) total.hosts.add(&host);
}

Claim* Peers::claim(Budget budget, Run* run, Server* server, uint32_t slot, size_t bytes, uint64_t now_ns) {
  Claim* claim = claim_pool_.take(Claim{.server = server, .run = run, .slot = slot, .bytes = bytes, .news_ns = now_ns});
  if (claim == nullptr) return nullptr;
  totals_[index_of(budget)].claims++;
  run->accounts[index_of(budget)].claims.add_last(claim);
  change(budget, run, bytes, 0);
  return claim;
}

void Peers::release(Budget budget, Claim* claim) {
  totals_[index_of(budget)].claims--;
  claim->run->accounts[index_of(budget)].claims.remove(claim);
  change(budget, claim->run, 0, claim->bytes);
  claim_pool_.give(claim);
}

Claim* Peers::first_to_go(Budget budget) const {
  const HostAccount* host = totals_[index_of(budget)].hosts.top();
  return host != nullptr ? host->runs.top()->claims.first() : nullptr;
}

Claim* Peers::first_to_go_for(Budget budget, const Run* run, size_t bytes, uint64_t now_ns) const {
  const HostAccount* host = totals_[index_of(budget)].hosts.top();
  if (host == nullptr) return nullptr;
  const HostAccount& own_host = run->host->accounts[index_of(budget)];
  const RunAccount& own = run->accounts[index_of(budget)];
  if (host->bytes > own_host.bytes + bytes) return host->runs.top()->claims.first();
  if (const RunAccount* sibling = own_host.runs.top(); sibling != nullptr && sibling->bytes > own.bytes + bytes) {
    return sibling->claims.first();
  }
  for (Claim* claim : {own.claims.first(), host->runs.top()->claims.first()}) {
    if (claim != nullptr && now_ns - claim->news_ns >= kStalledNs) return claim;
  }
  return nullptr;
}

void Peers::check_invariants() const {
  size_t bytes[kBudgets] = {}, claims[kBudgets] = {};
  size_t host_bytes[kBudgets] = {};
  uint32_t runs = 0;
  runs_.for_each([&](const Run* run) {
    runs++;
    CHECK(run->uses, >, 0u);
    CHECK(hosts_.find(run->host->key) == run->host);
    for (size_t i = 0; i < kBudgets; i++) {
      size_t run_bytes = 0;
      const auto& list = run->accounts[i].claims;
      for (const Claim* claim = list.first(); claim != nullptr; claim = list.after(claim)) {
        CHECK(claim->run == run);
        run_bytes += claim->bytes;
        claims[i]++;
      }
      CHECK(run->accounts[i].bytes, ==, run_bytes);
      bytes[i] += run_bytes;
    }
  });
  hosts_.for_each([&](const Host* host) {
    CHECK(host->runs, >, 0u);
    runs -= host->runs;
    for (size_t i = 0; i < kBudgets; i++) {
      host_bytes[i] += host->accounts[i].bytes;
      if (host->accounts[i].bytes == 0) continue;
      CHECK(totals_[i].hosts.top()->bytes, >=, host->accounts[i].bytes);
    }
  });
  CHECK(runs, ==, 0u);
  for (size_t i = 0; i < kBudgets; i++) {
    CHECK(totals_[i].bytes, ==, bytes[i]);
    CHECK(totals_[i].bytes, ==, host_bytes[i]);
    CHECK(totals_[i].claims, ==, claims[i]);
    CHECK((totals_[i].hosts.top() != nullptr), ==, bytes[i] != 0);
  }
}

}  // namespace tern::rpc
