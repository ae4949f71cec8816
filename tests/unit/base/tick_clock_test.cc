// The clock that reads the CPU's counter, with a counter and a kernel's clock that the test drives.
#include "base/tick_clock.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>

namespace tern::base {
namespace {

constexpr uint64_t kMs = 1'000'000;

/// A machine: its kernel's clock, its counter, and how long it takes to read each.
struct Machine {
  double ns = 5e9;
  double ticks = 7e12;
  double ticks_per_ns = 2.8;
  double reading_ns = 20;
  double interruption_ns = 0;  ///< between the next two readings
  uint64_t kernel_reads = 0;
  bool is_steady = true;

  void pass(double time_ns) {
    ns += time_ns;
    ticks += time_ns * ticks_per_ns;
  }
  void read() {
    pass(reading_ns + interruption_ns);
    interruption_ns = 0;
  }
};

struct Source {
  Machine* machine;
  bool are_steady() const { return machine->is_steady; }
  uint64_t ticks() const {
    machine->read();
    return static_cast<uint64_t>(machine->ticks);
  }
  uint64_t ns() const {
    machine->read();
    machine->kernel_reads++;
    return static_cast<uint64_t>(machine->ns);
  }
};

class Ticking : public ::testing::Test {
 protected:
  /// Reads the clock, which must not go back. Returns how far it is ahead of the kernel's.
  double look() {
    const uint64_t now_ns = clock_.now_ns();
    EXPECT_GE(now_ns, last_ns_) << "the clock went back";
    last_ns_ = now_ns;
    return static_cast<double>(now_ns) - machine_.ns;
  }
  /// Reads the clock for this long, once in `step_ns`. Returns the largest error.
  double run(uint64_t ns, double step_ns = 300) {
    double worst = 0;
    for (const double end = machine_.ns + static_cast<double>(ns); machine_.ns < end; machine_.pass(step_ns)) {
      worst = std::max(worst, std::abs(look()));
    }
    return worst;
  }

  Machine machine_;
  TickClock<Source> clock_{Source{&machine_}};
  uint64_t last_ns_ = 0;
};

TEST_F(Ticking, follows_the_kernels_clock_and_hardly_reads_it) {
  EXPECT_LT(run(100 * kMs), 200);
  run(5 * kMs);
  const uint64_t before = machine_.kernel_reads;
  EXPECT_LT(run(30 * kMs), 200);
  EXPECT_LE(machine_.kernel_reads - before, 22u);
}

TEST_F(Ticking, follows_a_kernel_that_corrects_its_rate) {
  for (const double rate : {2.8, 2.8014, 2.8, 2.7986}) {
    machine_.ticks_per_ns = rate;
    EXPECT_LT(run(50 * kMs), 1000) << rate;
  }
}

TEST_F(Ticking, does_not_learn_from_interrupted_readings) {
  std::mt19937 random(1);
  double worst = 0;
  for (const double end = machine_.ns + 2e9; machine_.ns < end; machine_.pass(1000)) {
    if (random() % 10 == 0) machine_.interruption_ns = static_cast<double>(random() % 4'000'000);
    look();
    worst = std::max(worst, std::abs(look()));
  }
  EXPECT_LT(worst, 2300);
}

TEST_F(Ticking, is_right_at_once_after_a_pause) {
  run(20 * kMs);
  for (const double pause_ns : {2e6, 3e7, 1e9, 1e14}) {
    machine_.pass(pause_ns);
    EXPECT_LT(std::abs(look()), 200) << pause_ns;
    EXPECT_LT(run(20 * kMs), 200) << pause_ns;
  }
}

TEST_F(Ticking, is_right_soon_after_a_suspension_in_which_only_the_counter_runs) {
  run(20 * kMs);
  machine_.ticks += 1e13;
  EXPECT_LT(run(10 * kMs), 1.6 * kMs) << "it may have been ahead by a window, and slows down";
  EXPECT_LT(run(20 * kMs), 200);
}

TEST_F(Ticking, never_goes_back_when_the_counter_does) {
  run(20 * kMs);
  for (const double back_ns : {1e3, 1e5, 4e5, 1e6}) {  // mostly within a window
    machine_.ticks -= back_ns * machine_.ticks_per_ns;
    EXPECT_LT(run(10 * kMs), 1.6 * kMs);
    EXPECT_LT(run(20 * kMs), 200);
  }
  machine_.ticks = 1e6;
  EXPECT_LT(run(10 * kMs), 1.6 * kMs) << "it may have been ahead by a window, and slows down";
  EXPECT_LT(run(20 * kMs), 200);
}

TEST_F(Ticking, finds_another_rate_after_two_windows) {
  run(20 * kMs);
  for (const double rate : {1.4, 3.6, 0.9, 2.8}) {
    machine_.ticks_per_ns = rate;
    run(30 * kMs);
    EXPECT_LT(run(20 * kMs), 200) << rate;
  }
}

TEST_F(Ticking, leaves_a_counter_alone_that_takes_long_to_read) {
  machine_.reading_ns = 1600;
  run(20 * kMs);
  const double before = machine_.ticks;
  look();
  EXPECT_LT(machine_.ticks - before, 2 * 1600 * machine_.ticks_per_ns) << "the counter was read, too";
  EXPECT_LT(std::abs(look()), 1);
}

TEST_F(Ticking, ignores_a_counter_that_stands_still) {
  machine_.ticks_per_ns = 0;
  EXPECT_LT(run(20 * kMs), 100);
}

TEST(UnsteadyTicks, are_not_read) {
  Machine machine;
  machine.is_steady = false;
  TickClock<Source> clock(Source{&machine});
  for (uint64_t reads = 1; reads <= 10; reads++) {
    const uint64_t now_ns = clock.now_ns();
    EXPECT_EQ(now_ns, static_cast<uint64_t>(machine.ns));
    EXPECT_EQ(machine.kernel_reads, reads);
    machine.pass(5e6);
  }
}

TEST(TheCpusTicks, agree_with_the_kernel) {
  TickClock<> clock;
  for (uint64_t end = monotonic_ns() + 30 * kMs; monotonic_ns() < end;) {
    const uint64_t before = monotonic_ns();
    const uint64_t now_ns = clock.now_ns();
    const uint64_t after = monotonic_ns();
    ASSERT_GE(now_ns + 2500, before);
    ASSERT_LE(now_ns, after + 2500);
  }
}

}  // namespace
}  // namespace tern::base
