// EAL in this process: it starts once, and does not affect the program's threads and output.
#include <gtest/gtest.h>
#include <rte_eal.h>
#include <rte_lcore.h>
#include <sched.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>

#include "transport/dpdk/eal.h"

namespace tern::transport {
namespace {

struct Child {
  std::string output;  ///< of stdout and stderr
  int result = -1;
};

/// Runs `body` in a child process in which EAL has not started.
Child run(const std::function<int()>& body) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return {};
  fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], 1);
    dup2(ends[1], 2);
    close(ends[0]);
    close(ends[1]);
    const int result = body();
    fflush(nullptr);
    _exit(result);
  }
  close(ends[1]);
  Child child;
  std::array<char, 4096> piece;
  for (ssize_t bytes = 0; (bytes = read(ends[0], piece.data(), piece.size())) > 0;) {
    child.output.append(piece.data(), static_cast<size_t>(bytes));
  }
  close(ends[0]);
  waitpid(pid, &child.result, 0);
  return child;
}

std::string start(const std::string& arguments) {
  EalChoice choice;
  choice.arguments = arguments;
  return std::string(start_eal(choice).message());
}

TEST(Eal, refused_arguments__are_told_with_its_reason__and_print_nothing) {
  const Child child = run([] {
    std::atomic<bool> is_done{false};
    std::thread other([&] {
      while (!is_done) {
        fprintf(stdout, "+");
        fprintf(stderr, "-");
        fflush(stdout);
      }
    });
    const std::string unknown = start("--bogus");
    const std::string core = start("-l 9999");
    const std::string device = start("--no-huge --vdev=net_nothing0");
    const std::string good = start("--no-huge --no-shconf -m 64");
    is_done = true;
    other.join();
    printf("\n%s\n%s\n%s\n%s\n", unknown.c_str(), core.c_str(), device.c_str(), good.c_str());
    return 0;
  });
  EXPECT_EQ(child.result, 0);
  const size_t begin = child.output.find('\n');
  ASSERT_NE(begin, std::string::npos) << child.output;
  EXPECT_EQ(child.output.substr(0, begin).find_first_not_of("+-"), std::string::npos) << child.output;
  EXPECT_NE(child.output.find('+'), std::string::npos);
  EXPECT_EQ(
      child.output.substr(begin + 1),
      "dpdk: EAL refuses the arguments \"--bogus\" of Dpdk::Options::eal (tern: unrecognized option '--bogus'): "
      "correct them, or leave them empty\n"
      "dpdk: EAL refuses the arguments \"-l 9999\" of Dpdk::Options::eal (EAL: lcore 9999 >= RTE_MAX_LCORE (128)): "
      "correct them, or leave them empty\n"
      "dpdk: EAL refuses the arguments \"--no-huge --vdev=net_nothing0\" of Dpdk::Options::eal (EAL: failed to "
      "parse device \"net_nothing0\"): correct them, or leave them empty\n"
      "ok\n");
}

TEST(Eal, too_little_memory__is_reported__and_no_second_start_is_tried) {
  const Child child = run([] {
    printf("%s\n", start("--no-huge --no-shconf -m 100000000").c_str());
    printf("%s\n", start("").c_str());
    return 0;
  });
  EXPECT_EQ(child.result, 0);
  EXPECT_NE(child.output.find("of Dpdk::Options::eal (EAL: "), std::string::npos) << child.output;
  EXPECT_NE(child.output.find("cannot be started again: restart the program\n"), std::string::npos) << child.output;
}

TEST(Eal, starts_once__in_whatever_thread__and_changes_none) {
  const Child child = run([] {
    cpu_set_t before, after;
    sched_getaffinity(0, sizeof(before), &before);
    std::string first, second;
    std::thread one([&] { first = start("--no-huge --no-shconf -m 64"); });
    std::thread two([&] { second = start("--no-huge --no-shconf -m 64"); });
    one.join();
    two.join();
    sched_getaffinity(0, sizeof(after), &after);
    if (first != "ok" || second != "ok" || start("") != "ok") return 1;
    if (!CPU_EQUAL(&before, &after) || rte_lcore_id() != LCORE_ID_ANY) return 2;
    std::thread registered([] {
      register_eal_thread();
      register_eal_thread();
      if (rte_lcore_id() == LCORE_ID_ANY) _exit(3);
    });
    registered.join();
    if (!is_eal_running()) return 4;
    const std::string other = start("--no-huge");
    if (other !=
        "dpdk: EAL runs with the arguments \"--no-huge --no-shconf -m 64\", and a process has one EAL: give all "
        "endpoints "
        "the same Dpdk::Options::eal, or none") {
      printf("%s\n", other.c_str());
      return 5;
    }
    const pid_t grandchild = fork();
    if (grandchild == 0) _exit(start("").find("forked") == std::string::npos || is_eal_running() ? 1 : 0);
    int result = -1;
    waitpid(grandchild, &result, 0);
    return result == 0 ? 0 : 6;
  });
  EXPECT_EQ(child.result, 0) << child.output;
  EXPECT_EQ(child.output, "");
}

/// libxdp prints in EAL's thread when a device is closed.
TEST(Eal, output_of_drivers__goes_to_the_log__from_either_thread) {
  const auto body = [](int log_options) {
    return run([log_options] {
      if (start("--no-huge --no-shconf -m 64") != "ok") return 1;
      openlog("drivers", log_options, LOG_USER);  // EAL has called openlog(), too
      {
        const SilentOutput silence;
        fprintf(stderr, "here\n");
        run_in_eal_thread([] {
          fprintf(stderr, "there\n");
          printf("and there\n");
        });
      }
      run_in_eal_thread([] { fprintf(stderr, "a program's\n"); });
      return 0;
    });
  };
  const Child silent = body(0);
  EXPECT_EQ(silent.result, 0);
  EXPECT_EQ(silent.output, "a program's\n");
  const std::string logged = body(LOG_PERROR).output;  // syslog also prints with this option
  for (const char* const line : {"drivers: here\n", "drivers: there\n", "drivers: and there\n"}) {
    EXPECT_NE(logged.find(line), std::string::npos) << logged;
  }
}

TEST(Eal, started_by_the_program__is_used_as_it_is) {
  const Child child = run([] {
    std::array<std::string, 5> words = {"program", "--no-huge", "--no-shconf", "--no-telemetry", "--log-level=1"};
    std::array<char*, 6> pointers{};
    for (size_t i = 0; i < words.size(); ++i) pointers[i] = words[i].data();
    if (rte_eal_init(static_cast<int>(words.size()), pointers.data()) < 0) return 1;
    if (start("") != "ok" || !is_eal_running()) return 2;
    return start("--no-huge").find("the program has started EAL itself") != std::string::npos ? 0 : 3;
  });
  EXPECT_EQ(child.result, 0) << child.output;
}

}  // namespace
}  // namespace tern::transport
