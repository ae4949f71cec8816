// The utilities of eRPC that programs use.
#include <gtest/gtest.h>

#include <random>

#include <tern/compat/erpc/util/autorun_helpers.h>
#include <tern/compat/erpc/util/latency.h>
#include <tern/compat/erpc/util/math_utils.h>
#include <tern/compat/erpc/util/numautils.h>
#include <tern/compat/erpc/util/rand.h>
#include <tern/compat/erpc/util/timer.h>

namespace erpc {
namespace {

TEST(ErpcLatency, values_are_rounded_down_to_their_bins) {
  // The width of the bins below each bound.
  for (const auto& [end, width] : {std::pair<size_t, size_t>{128, 1}, {384, 2}, {896, 4}, {1920, 8}, {3968, 16}}) {
    for (size_t value = end - 100; value < end; value++) {
      Latency latency;
      latency.update(value);
      EXPECT_EQ(latency.perc(0.5), value / width * width) << value;
      EXPECT_EQ(latency.latency_min(), latency.latency_max());
    }
  }
  Latency latency;
  latency.update(3968);
  latency.update(SIZE_MAX);
  EXPECT_EQ(latency.latency_min(), 3968u);
  EXPECT_EQ(latency.count(), 2u);
}

TEST(ErpcLatency, percentiles_are_those_of_the_values) {
  std::mt19937 random(1);
  std::vector<size_t> values(1000);
  Latency latency, half;
  for (size_t i = 0; i < values.size(); i++) {
    values[i] = random() % 128;  // bins of width 1
    (i % 2 == 0 ? latency : half).update(values[i]);
  }
  latency += half;
  std::sort(values.begin(), values.end());
  for (double share : {0.0, 0.05, 0.5, 0.99, 0.999}) {
    EXPECT_EQ(latency.perc(share), values[static_cast<size_t>(share * 1000)]) << share;
  }
  EXPECT_EQ(latency.count(), 1000u);
  EXPECT_EQ(latency.latency_min(), values.front());
  EXPECT_EQ(latency.latency_max(), values.back());
  size_t sum = 0;
  for (size_t value : values) sum += value;
  EXPECT_EQ(latency.sum(), sum);
  EXPECT_DOUBLE_EQ(latency.avg(), static_cast<double>(sum) / 1000);
  latency.reset();
  EXPECT_EQ(latency.count(), 0u);
  EXPECT_EQ(latency.latency_max(), 0u);
}

TEST(ErpcTimer, cycles_and_seconds_agree) {
  const double freq_ghz = measure_rdtsc_freq();
  EXPECT_GT(freq_ghz, 0.1);
  EXPECT_DOUBLE_EQ(to_usec(us_to_cycles(1000, 2.0), 2.0), 1000);
  EXPECT_DOUBLE_EQ(to_msec(ms_to_cycles(3, 2.0), 2.0), 3);
  EXPECT_DOUBLE_EQ(to_nsec(ns_to_cycles(50, 2.0), 2.0), 50);
  EXPECT_DOUBLE_EQ(to_sec(2'000'000'000, 2.0), 1);
  const ChronoTimer timer;
  const size_t start = rdtsc();
  nano_sleep(1'000'000, freq_ghz);
  EXPECT_GT(rdtsc(), start);
  EXPECT_GT(timer.get_ns(), 0u);
  TscTimer mean;
  EXPECT_EQ(mean.avg_cycles(), 0u);
  mean.start();
  mean.stop();
  EXPECT_EQ(mean.num_calls_, 1u);
}

TEST(ErpcAutorun, lines_of_processes) {
  EXPECT_EQ(split("a b c", ' '), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_TRUE(is_valid_process_line("host 31850 0"));
  for (const char* wrong : {"", " host 31850 0", "host 31850", "host 31850 0 "})
    EXPECT_FALSE(is_valid_process_line(wrong));
  EXPECT_TRUE(is_valid_uri("host:31850"));
  EXPECT_FALSE(is_valid_uri("host"));
  EXPECT_EQ(extract_hostname_from_uri("host:31850"), "host");
  EXPECT_EQ(extract_udp_port_from_uri("host:31850"), 31850);
  const std::string file = ::testing::TempDir() + "erpc_processes_" + std::to_string(getpid());
  std::ofstream(file) << "first 31850 0\nsecond 31851 1\n";
  setenv("ERPC_PROCESS_FILE", file.c_str(), 1);
  EXPECT_EQ(get_uri_for_process(0), "first:31850");
  EXPECT_EQ(get_uri_for_process(1), "second:31851");
  EXPECT_EQ(get_hostname_for_process(1), "second");
  EXPECT_EQ(get_udp_port_for_process(1), "31851");
  EXPECT_THROW(get_uri_for_process(2), std::runtime_error);
  setenv("ERPC_PROCESS_FILE", "/nonexistent", 1);
  EXPECT_THROW(get_uri_for_process(0), std::runtime_error);
  unsetenv("ERPC_PROCESS_FILE");
  std::remove(file.c_str());
}

TEST(ErpcNuma, a_thread_is_bound_to_a_cpu_that_the_process_has) {
  const auto cpus = get_lcores_for_numa_node(0);
  ASSERT_FALSE(cpus.empty());
  EXPECT_EQ(num_lcores_per_numa_node(), cpus.size());
  std::atomic<bool> go{false};
  std::thread thread([&] {
    while (!go) std::this_thread::yield();
    EXPECT_EQ(static_cast<size_t>(sched_getcpu()), cpus.back());
  });
  bind_to_core(thread, 0, cpus.size() - 1);
  go = true;
  thread.join();
  std::thread other([] {});
  EXPECT_THROW(bind_to_core(other, 0, 100'000), std::runtime_error);
  other.join();
  EXPECT_TRUE(get_lcores_for_numa_node(1000).empty());
}

TEST(ErpcMath, rounding_and_deviation) {
  EXPECT_TRUE(is_power_of_two(64));
  EXPECT_FALSE(is_power_of_two(0) || is_power_of_two(6));
  EXPECT_EQ((round_up<8, size_t>(9)), 16u);
  EXPECT_DOUBLE_EQ(stddev({2, 4, 4, 4, 5, 5, 7, 9}), 2);
  EXPECT_EQ(stddev({}), 0);
  EXPECT_NE(FastRand().next_u32(), FastRand().next_u32());
}

TEST(ErpcAsserts, throw_or_exit_as_erpcs_do) {
  EXPECT_NO_THROW(rt_assert(true, "never"));
  EXPECT_THROW(rt_assert(false), std::runtime_error);
  EXPECT_THROW(rt_assert(false, "text"), std::runtime_error);
  EXPECT_THROW(rt_assert(false, std::string("text"), "more"), std::runtime_error);
  EXPECT_EXIT(exit_assert(false, "text"), ::testing::ExitedWithCode(255), "text. Exiting.");
}

}  // namespace
}  // namespace erpc
