// shortcuts_driver: like instructions_driver, over shm or udp, but with a library that lacks one of its shortcuts
// (those of the paper's Table 3, and ours). The other results are compared with --without=none, which has the same
// layer and all shortcuts. With more --sessions than --window, only look_ahead and rest_at_once are comparable with it.
#include <tern/transport/shm.h>
#include <tern/transport/udp.h>

#include <string_view>
#include <type_traits>

#include "common/both_ends.h"
#include "shortcuts/with_shortcuts.h"

DEFINE_string(without, "none",
              "none, or one of: batched_timestamps, controller_bypass, pacer_bypass, preallocated_responses, "
              "zero_copy_requests, answer_at_once (shm only), common_case; with up_to_ before it also all before it in "
              "this list; or look_ahead (shm only), rest_at_once, receive_in_place (udp only)");

namespace {

using tern::cc::Shortcuts;

// Below, up_to_...: the first fields, in their order.
static_assert(Shortcuts{false, false, false, false, false, false, false} == Shortcuts{.batched_timestamps = false,
                                                                                      .controller_bypass = false,
                                                                                      .pacer_bypass = false,
                                                                                      .preallocated_responses = false,
                                                                                      .zero_copy_requests = false,
                                                                                      .answer_at_once = false,
                                                                                      .common_case = false});

template <class T, Shortcuts kShortcuts, bool kWalks = false>
int run() {
  return microbench::BothEnds<microbench::WithShortcuts<T, kShortcuts>, microbench::Workload{.walks = kWalks}>().run(
      "shortcuts_driver", {{"without", FLAGS_without}});
}

/// For shortcuts that are for many sessions: if there are more than calls in flight, all sessions have their turn.
template <class T, Shortcuts kShortcuts>
int run_many() {
  return FLAGS_sessions > FLAGS_window ? run<T, kShortcuts, true>() : run<T, kShortcuts>();
}

template <class T>
int run_without(std::string_view name) {
  if (name == "none") return run_many<T, Shortcuts{}>();
  if (name == "batched_timestamps") return run<T, Shortcuts{.batched_timestamps = false}>();
  if (name == "controller_bypass") return run<T, Shortcuts{.controller_bypass = false}>();
  if (name == "pacer_bypass") return run<T, Shortcuts{.pacer_bypass = false}>();
  if (name == "preallocated_responses") return run<T, Shortcuts{.preallocated_responses = false}>();
  if (name == "zero_copy_requests") return run<T, Shortcuts{.zero_copy_requests = false}>();
  if (name == "common_case") return run<T, Shortcuts{.common_case = false}>();
  if (name == "rest_at_once") return run_many<T, Shortcuts{.rest_at_once = false}>();
  if constexpr (std::is_same_v<T, tern::Shm>) {
    if (name == "answer_at_once") return run<T, Shortcuts{.answer_at_once = false}>();
    if (name == "up_to_answer_at_once") return run<T, Shortcuts{false, false, false, false, false, false}>();
    if (name == "look_ahead") return run_many<T, Shortcuts{.look_ahead = false}>();
  } else {
    if (name == "receive_in_place") return run<T, Shortcuts{.receive_in_place = false}>();
  }
  if (name == "up_to_controller_bypass") return run<T, Shortcuts{false, false}>();
  if (name == "up_to_pacer_bypass") return run<T, Shortcuts{false, false, false}>();
  if (name == "up_to_preallocated_responses") return run<T, Shortcuts{false, false, false, false}>();
  if (name == "up_to_zero_copy_requests") return run<T, Shortcuts{false, false, false, false, false}>();
  if (name == "up_to_common_case") return run<T, Shortcuts{false, false, false, false, false, false, false}>();
  programs::fail("--without names no shortcut of this transport: see --help");
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (!programs::parse_flags(argc, argv, "RPCs without one of the library's shortcuts; see scripts/paper --only=9"))
    return 1;
  if (!microbench::check_driver_flags(8u << 20) || !microbench::check_no_faults()) return 1;
  programs::catch_interrupts();
  if (FLAGS_transport == "shm") return run_without<tern::Shm>(FLAGS_without);
  if (FLAGS_transport == "udp") return run_without<tern::Udp>(FLAGS_without);
  programs::fail("--transport is shm or udp here");
  return 1;
}
