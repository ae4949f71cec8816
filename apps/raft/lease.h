// The lease by which a leader may answer reads alone (Raft thesis, 6.4.1): a majority has promised not to elect another
// leader for a while. The replica's thread owns it. It has no clock: the caller passes the times.
//
// The promise. libraft's voters grant no vote while they follow a leader, and they follow it for at least an election
// timeout T after its last message (thesis, 4.2.3; src/recv_request_vote.c and src/tick.c of libraft). Port ensures
// what libraft does not: a replica that comes back grants no vote for T, because it does not remember its promises; and
// leadership is never transferred, because a transfer is an election within T.
//
// The arithmetic. A voter that has answered a message that was sent at time s has promised until at least s + T, by its
// own clock. Its clock may be fast, and ours may be slow. If clocks are wrong by at most a share d, then T by the
// fastest clock takes T / (1 + d) of true time, which the slowest clock shows as T (1 - d) / (1 + d). The lease of a
// majority ends that long after the send time of the last message that its slowest member has answered.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include <tern/duration.h>

#include "libraft.h"
#include "message.h"

namespace replicated {

class Lease {
 public:
  /// `drift_max` is the share of true time by which a clock may be wrong, from 0 to less than 1.
  Lease(tern::Duration election_timeout, double drift_max)
      : length_(
            static_cast<int64_t>(static_cast<double>(election_timeout.count()) * (1 - drift_max) / (1 + drift_max))) {}

  /// Begins a new term, in which no voter has promised anything.
  void clear() { promised_.clear(); }
  /// `voter` has answered a message of this term that was sent at `sent`.
  void promise(uint64_t voter, tern::Duration sent) {
    const auto [place, is_new] = promised_.try_emplace(voter, sent);
    if (!is_new) place->second = std::max(place->second, sent);
  }
  /// The end of the lease of the leader `self`; Duration::min() if it has no lease.
  tern::Duration end(const raft_configuration& configuration, uint64_t self) const {
    std::array<tern::Duration, 2 * kReplicasMax> sent;
    size_t voters = 0, promises = 0;
    bool is_voter = false;
    for (unsigned i = 0; i < configuration.n; i++) {
      const raft_server& server = configuration.servers[i];
      if (server.role != RAFT_VOTER) continue;
      voters++;
      if (server.id == self) is_voter = true;
      const auto promised = promised_.find(server.id);
      if (server.id != self && promised != promised_.end()) sent[promises++] = promised->second;
    }
    const size_t needed = voters / 2 + (is_voter ? 0 : 1);  // promises needed from other voters
    if (needed == 0) return tern::Duration::max();
    if (promises < needed) return tern::Duration::min();
    std::nth_element(sent.begin(), sent.begin() + needed - 1, sent.begin() + promises, std::greater<>());
    return sent[needed - 1] + length_;
  }

 private:
  const tern::Duration length_;
  std::unordered_map<uint64_t, tern::Duration> promised_;  ///< by voter: the send time of the last message that it has
                                                           ///< answered
};

}  // namespace replicated
