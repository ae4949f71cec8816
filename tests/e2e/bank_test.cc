// The programs bank and bank_sim as their users run them. Their exit code says whether no money was made or lost and
// all transfers were settled in the end.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "e2e/any_rpc.h"
#include "e2e/program.h"

namespace {

using e2e::Outcome;
using e2e::run;
using testing::HasSubstr;

}  // namespace

class BankOver : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Over, BankOver, testing::ValuesIn(e2e::transports_of_one_host()),
                         [](const auto& with) { return std::string(with.param); });

TEST_P(BankOver, settles_while_its_branches_are_killed) {
  const Outcome outcome = run("bank --seconds=1 --kill_seconds=0.1 --json --transport=" + std::string(GetParam()));
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("\"settled\":"));
  EXPECT_THAT(outcome.output, testing::Not(HasSubstr("\"settled\":0"))) << "nothing was transferred";
  EXPECT_THAT(outcome.output, testing::Not(HasSubstr("\"kills\":0"))) << "no process was killed";
}

TEST(Bank, settles_although_packets_are_lost) {
  const Outcome outcome = run("bank --seconds=1 --branches=3 --kill_seconds=0 --drop=0.05 --dup=0.05 --transport=udp");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
}

TEST(Bank, role_flag_is_refused_with_the_reason) {
  const Outcome outcome = run("bank --role=server");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("bank starts its processes itself"));
}

TEST(Bank, kill_interval_out_of_range_is_refused_with_the_range) {
  for (const char* const value : {"-1", "1e10", "inf", "nan"}) {
    const Outcome outcome = run("bank --seconds=0.1 --kill_seconds=" + std::string(value));
    EXPECT_EQ(outcome.code, 1) << value;
    EXPECT_THAT(outcome.output, HasSubstr("--kill_seconds must be between 0 and 1000000")) << value;
  }
}

TEST(BankSim, settles_on_simulated_hosts_whatever_the_seed) {
  const Outcome outcome = run("bank_sim --branches=20 --seeds=5");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("seed 5: "));
}

TEST(BankSim, equal_seeds_give_equal_runs) {
  const Outcome first = run("bank_sim --branches=10 --seed=3 --verbose");
  const Outcome again = run("bank_sim --branches=10 --seed=3 --verbose");
  const Outcome other = run("bank_sim --branches=10 --seed=4 --verbose");
  EXPECT_EQ(first.code, 0) << first.output;
  EXPECT_THAT(first.output, HasSubstr("is killed"));
  EXPECT_EQ(first.output, again.output);
  EXPECT_NE(first.output, other.output);
}

TEST(BankSim, largest_seed_is_run_and_followed_by_0) {
  const Outcome outcome = run("bank_sim --branches=2 --seconds=0.01 --seed=18446744073709551615 --seeds=2");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("seed 18446744073709551615: "));
  EXPECT_THAT(outcome.output, HasSubstr("seed 0: "));
}

TEST(BankSim, value_out_of_range_is_refused_with_the_range) {
  Outcome outcome = run("bank_sim --branches=1");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("--branches must be between 2 and 200"));
  outcome = run("bank_sim --seeds=0");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("--seeds at least 1"));
}
