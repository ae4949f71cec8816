// RpcCore: how the loop runs, waits and ends. rpc_core.h includes this file.
#pragma once

#include <sched.h>

#include "base/clock.h"

namespace tern::rpc {

template <class Impl>
Status RpcCore<Impl>::run(Duration duration) {
  if (Status status = enter(); !status.ok()) return status;
  [[maybe_unused]] const auto own_loop = begin_own_loop();
  run_until_stopped(duration);
  core_.forget_stop();
  context().poll_ns = UINT64_MAX;
  if (core_.server_sessions().return_all_held()) {  // the program may be away for some time
    is_clock_fresh_ = false;
    freshen_clock();
    transmit();
  }
  transport_->before_pause();
  if (alarm_.is_open()) arm();
  return has_failed() ? core_.failure() : Status();
}

template <class Impl>
void RpcCore<Impl>::run_until_stopped(Duration duration) {
  const uint64_t start_ns = transport_->now();
  const uint64_t until_ns = duration == Duration::max() ? UINT64_MAX : start_ns + to_ns(duration);
  uint64_t worked_ns = start_ns;
  bool has_slept = false;  // the loop has slept since `worked_ns`
  uint32_t bursts = 0;
  base::Poller poller;
  if (!kTraits.is_virtual) poller.enter(start_ns);
  share_.has_rested(start_ns);
  context().poll_ns = spin_.sure_ns();
  do {
    const size_t packets = iterate();
    if (packets >= kBusyPackets && ++bursts % kBurstsPerPause != 0) {
      transport_->before_burst();
    } else {
      transport_->before_pause();
    }
    if (packets != 0) {
      if (has_slept) spin_.on_woken(context().now_ns - worked_ns, context().now_ns);
      has_slept = false;
      share_.on_packets(context().now_ns, context().now_ns - worked_ns);
      worked_ns = context().now_ns;
    }
    if (!is_clock_fresh_) continue;
    if (!kTraits.is_virtual) poller.note(context().now_ns);
    if (has_failed()) [[unlikely]]
      break;
    if (context().now_ns >= until_ns) break;
    if (packets != 0) continue;
    if (context().now_ns - worked_ns < spin_.ns()) {
      if constexpr (!kTraits.is_virtual) {
        worked_ns += lend_cpu(poller, context().now_ns - worked_ns);  // this is no polling
        share_cpu(poller, worked_ns);
      }
      continue;
    }
    poller.leave(context().now_ns);
    sleep(until_ns);
    if (!kTraits.is_virtual) poller.enter(transport_->now());
    has_slept = true;
  } while (!core_.is_stopped_lately());
  poller.leave(context().now_ns);
}

/// Called when polling has been in vain for `vain_ns`. Lends the CPU if another thread of this process probably needs
/// it. Returns the time until this thread had it again, as far as it does not count as polling.
template <class Impl>
uint64_t RpcCore<Impl>::lend_cpu(base::Poller& poller, uint64_t vain_ns) {
  const bool has_company = vain_ns >= kKeepCpuNs && poller.has_company(context().now_ns);
  if ((!has_company && !context().has_new_session_lately()) || !prepare_to_leave_cpu()) return 0;
  // The iteration's time may be old: this thread may have lost its CPU since.
  if (has_company) poller.begin_lending(transport_->now());
  sched_yield();
  const uint64_t now_ns = transport_->now();
  share_.has_rested(now_ns);
  return has_company ? poller.end_lending(now_ns) : 0;
}

/// Called when polling has been in vain since `vain_since_ns`. Gives the CPU to threads that have a part of it anyway,
/// unless other endpoints poll on it, to which lend_cpu() lends it, or this endpoint will soon sleep.
template <class Impl>
void RpcCore<Impl>::share_cpu(base::Poller& poller, uint64_t vain_since_ns) {
  if (!spin_.is_endless() || !share_.should_give_up(context().now_ns, vain_since_ns, base::thread_cpu_ns)) return;
  if (poller.count_here() > 1 || !prepare_to_leave_cpu()) return;
  sched_yield();
  share_.has_rested(transport_->now());
}

/// Ends all waits of credit returns. False: the loop must run again before it gives up the CPU.
template <class Impl>
bool RpcCore<Impl>::prepare_to_leave_cpu() {
  core_.server_sessions().return_all_held();
  if (must_iterate()) return false;
  transport_->before_pause();
  return true;
}

/// Blocks until there is something to do, `until_ns` at the latest.
template <class Impl>
void RpcCore<Impl>::sleep(uint64_t until_ns) {
  if (!prepare_to_leave_cpu()) return;
  core_.note_rest();
  context().mailbox->may_sleep.store(true, std::memory_order_seq_cst);
  if (transport_->prepare_wait() && !context().mailbox->has_mail() && !core_.is_stopped()) {
    transport_->wait(std::min(until_ns, context().agenda.next_ns()));
  }
  transport_->end_wait();
  core_.round_idle_iterations(kIdleClockReads);  // the next iteration reads the clock, because a timer may be due
  if (!alarm_.is_open()) context().mailbox->may_sleep.store(false, std::memory_order_relaxed);
}

/// Prepares the descriptor, so that it becomes readable when there is work.
template <class Impl>
void RpcCore<Impl>::arm() {
  note_rest();
  core_.note_waiting_program();
  transport_->end_wait();
  const bool may_wait =
      !must_iterate() && !context().mailbox->has_mail() && transport_->prepare_wait() && !context().mailbox->has_mail();
  alarm_.set(may_wait ? context().agenda.next_ns() : 0);
  context().agenda.arm();
}

template <class Impl>
Status RpcCore<Impl>::close(Duration drain) {
  if (Status status = enter(); !status.ok()) return status;
  [[maybe_unused]] const auto own_loop = begin_own_loop();
  core_.start_closing();
  const uint64_t until_ns = transport_->now() + to_ns(drain);
  while (core_.has_unfinished_work() && transport_->now() < until_ns) iterate();
  shut_down();
  return {};
}

/// Ends the remaining sessions and calls. The transport's destructor releases all message memory; the last
/// continuations then run.
template <class Impl>
void RpcCore<Impl>::shut_down() {
  if (is_closed()) return;
  transport_->before_pause();
  core_.close_all();
  transport_.reset();
  core_.finish_all();
}

}  // namespace tern::rpc
