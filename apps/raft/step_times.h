// How long a replica's steps take on this machine: those of a leader and of a follower that have a CPU of their own, in
// a cluster over shm. For raft_sim, which charges them in virtual time.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "port.h"

namespace replicated {

/// The steps of Step, but that an answer may commit something, and that an echo is what the others are compared with.
enum Charge : size_t { kExecuteCharge, kReceiveCharge, kCommitCharge, kAnswerCharge, kSettleCharge, kEchoCharge };
constexpr size_t kCharges = 6;
using StepTimes = std::array<std::chrono::nanoseconds, kCharges>;

/// Which of them a step was that has ended.
inline Charge charge_of(Step step, bool has_applied) {
  constexpr Charge kOfStep[] = {kExecuteCharge, kReceiveCharge, kAnswerCharge, kSettleCharge, kEchoCharge};
  return step == Step::kAnswer && has_applied ? kCommitCharge : kOfStep[static_cast<size_t>(step)];
}

/// Medians of so many PUTs, less that of an echo's handler, which the simulator charges for itself (HostCost): of each
/// step the least of five, because other programs and a hypervisor that moves the CPUs apart (a cache line then takes
/// five times as long from one to the other, which no NIC's packet does) only add to it. Nothing: the sentence has been
/// printed. Takes some seconds, two CPUs, and starts a thread for that time.
std::optional<StepTimes> measure_steps(size_t replicas, uint64_t operations);

}  // namespace replicated
