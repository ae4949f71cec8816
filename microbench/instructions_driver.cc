// instructions_driver: --rpcs small RPCs with both endpoints in one thread (common/both_ends.h), over any transport.
#include "common/both_ends.h"

#include "transport_list.h"

DEFINE_uint64(deadline_ms, 0, "deadline of each call; 0: none");
DEFINE_bool(keep, false, "handlers keep their requests, which are answered after the server's iteration");

constexpr unsigned long long kDeadlineMsMax = 1'000'000'000;

int main(int argc, char** argv) {
  if (!programs::parse_flags(argc, argv, "RPCs for callgrind to count; see scripts/instructions_per_rpc")) return 1;
  if (!microbench::check_driver_flags(8u << 20) || !microbench::check_no_faults()) return 1;
  if (FLAGS_deadline_ms > kDeadlineMsMax) {
    programs::fail("--deadline_ms must be at most %llu", kDeadlineMsMax);
    return 1;
  }
  if (FLAGS_keep && FLAGS_deadline_ms != 0) {
    programs::fail("--keep goes without --deadline_ms");
    return 1;
  }
  programs::catch_interrupts();
  return *tern::transports::with_transport(tern::transports::Real(), FLAGS_transport, []<class T>() {
    using microbench::BothEnds, microbench::Workload;
    if (FLAGS_keep) return BothEnds<T, Workload{.keeps = true}>().run("instructions_driver", {{"keep", true}});
    if (FLAGS_deadline_ms == 0) return BothEnds<T>().run("instructions_driver");
    BothEnds<T, Workload{.has_deadlines = true}> with_deadlines{std::chrono::milliseconds(FLAGS_deadline_ms)};
    return with_deadlines.run("instructions_driver", {{"deadline_ms", FLAGS_deadline_ms}});
  });
}
