// The duration of a replica's steps on this machine: those of a leader and of a follower that each have a CPU, in a
// cluster over shm. raft_sim charges these times in virtual time.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "port.h"

namespace replicated {

/// The steps of Step, with a separate charge for an answer that commits something. The other charges are compared with
/// the echo's.
enum Charge : size_t { kExecuteCharge, kReceiveCharge, kCommitCharge, kAnswerCharge, kSettleCharge, kEchoCharge };
constexpr size_t kCharges = 6;
using StepTimes = std::array<std::chrono::nanoseconds, kCharges>;

/// The charge of a step that has ended.
inline Charge charge_of(Step step, bool has_applied) {
  constexpr Charge kOfStep[] = {kExecuteCharge, kReceiveCharge, kAnswerCharge, kSettleCharge, kEchoCharge};
  return step == Step::kAnswer && has_applied ? kCommitCharge : kOfStep[static_cast<size_t>(step)];
}

/// Medians of the times of `operations` PUTs, less the time of an echo's handler, which the simulator charges itself
/// (HostCost). For each step the result is the least of five medians, because disturbances only add time: other
/// programs, or a hypervisor that moves the CPUs apart (a cache line then takes five times as long between them, which
/// does not happen to a NIC's packet). On error it prints a sentence and returns nullopt. Takes some seconds and two
/// CPUs, and starts a thread for that time.
std::optional<StepTimes> measure_steps(size_t replicas, uint64_t operations);

}  // namespace replicated
