// instructions_driver: --rpcs small RPCs with both endpoints in one thread (common/both_ends.h), over any transport.
#include "common/both_ends.h"

int main(int argc, char** argv) {
  if (!programs::parse_flags(argc, argv, "RPCs for callgrind to count; see scripts/instructions_per_rpc")) return 1;
  if (!microbench::check_driver_flags(8u << 20)) return 1;
  programs::catch_interrupts();
  return programs::with_transport([]<class T>() { return microbench::BothEnds<T>().run("instructions_driver"); });
}
