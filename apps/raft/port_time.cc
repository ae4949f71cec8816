// The port's clock, its ticks, and its election timeouts.
#include <algorithm>
#include <chrono>

#include "port.h"

namespace replicated {

/// A leader's step makes no promises. The known time of the turn may be earlier than the step's messages. A follower's
/// promises count from a time at which the message had already arrived.
void Port::begin_moment(Step step) {
  const bool is_leader = step == Step::kExecute || (step == Step::kAnswer && raft_ && raft_state(raft_) == RAFT_LEADER);
  latest_ = std::max(latest_, is_leader ? endpoint_.now() : now());
  moment_ = latest_;
}

/// Each voter draws from a part of the range that no other voter has in this term, so that two voters seldom stand for
/// election at the same time. The parts change with the term, so no replica is always the last one. A candidate draws
/// from the first quarter of the range. If the candidate with the longer log was refused because another replica still
/// believed in the leader, it soon asks again. When all voters drew from the whole range, one of about 10 000 elections
/// after a crash took more than four timeouts.
int Port::random_timeout(int least, int most) {
  const auto draw = [this](int below) {
    return static_cast<int>(environment_.random() % static_cast<uint64_t>(std::max(below, 1)));
  };
  if (raft_ != nullptr && raft_->state == RAFT_CANDIDATE) most = least + (most - least) / 4;
  int voters = 0, place = 0;
  for (unsigned i = 0; raft_ != nullptr && i < raft_->configuration.n; i++) {
    const raft_server& server = raft_->configuration.servers[i];
    if (server.role != RAFT_VOTER) continue;
    voters++;
    if (server.id < options_.id) place++;
  }
  if (voters == 0) return least + draw(most - least);
  const int part = (most - least) / voters;
  const int at = static_cast<int>((static_cast<uint64_t>(place) + raft_->current_term) % static_cast<uint64_t>(voters));
  return least + at * part + draw(part / 2);  // the unused half separates the parts, because elections begin at ticks
}

void Port::tick() {
  if (is_closed_ || !problem_.empty()) return;
  // If replicas ticked at the same moments, they would stand for election at the same moment, again after each split
  // vote.
  const auto most = static_cast<uint64_t>(options_.heartbeat.count() / 4);
  const auto pause = static_cast<int64_t>(most - environment_.random() % (most / 4 + 1));
  run_later(tern::Duration(pause), [this] { tick(); });
  if (raft_ == nullptr) return;
  cancel_late();
  // A replica whose log is being replaced cannot take part in elections: it waits until the snapshot is stored.
  if (!is_installing()) on_tick_(&io_);
  settle(true);
  settled_(false);
}

}  // namespace replicated
