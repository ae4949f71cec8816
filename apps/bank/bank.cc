// bank: branches that send money to each other over a real transport. Each branch is a process that is killed now and
// then.
// bank_sim (../bank_sim.cc) runs the same branches on a hundred simulated hosts.
// Read the files in this order: ledger.h (the state that must survive), branch.h (sends and receives), this file.
// The first process has no thread and no endpoint: it starts the branches' processes, kills them, and audits.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../common/flags.h"
#include "../common/report.h"
#include "../common/sides.h"
#include "branch.h"

DEFINE_uint64(branches, 4, "branches, each in a process of its own");
DEFINE_double(kill_seconds, 0.2, "a branch is killed and started again at this interval; 0: never");

namespace {

using std::chrono::milliseconds;

std::vector<bank::Entry> read_journal(const std::string& path) {
  std::vector<bank::Entry> entries;
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  bank::Entry entry;
  while (file != nullptr && std::fread(&entry, sizeof(entry), 1, file.get()) == 1) entries.push_back(entry);
  return entries;
}

/// Addresses of this machine and this run only: 127.0.0.0/8 is local to the machine, and the process id differs between
/// runs.
std::vector<std::string> branch_uris() {
  const auto run = static_cast<uint32_t>(getpid());
  std::vector<std::string> uris;
  for (uint64_t i = 0; i < FLAGS_branches; i++) {
    uris.push_back("tern://127." + std::to_string(run >> 16 & 255) + "." + std::to_string(run >> 8 & 255) + "." +
                   std::to_string(run & 255) + ":" + std::to_string(31850 + i));
  }
  return uris;
}

/// The whole life of a branch's process.
template <tern::Transport T>
int be_branch(uint32_t self, const std::vector<std::string>& uris, const std::string& journal) {
  const std::vector<bank::Entry> past = read_journal(journal);
  const int file = open(journal.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  // A killed process leaves whole entries, except perhaps the last one. A partial entry counts as not written.
  if (file < 0 || ftruncate(file, static_cast<off_t>(past.size() * sizeof(bank::Entry))) != 0) {
    return programs::fail("cannot open the journal %s: %s", journal.c_str(), std::strerror(errno));
  }
  bank::Ledger ledger(static_cast<uint32_t>(uris.size()), past, [&](const bank::Entry& entry) {
    if (write(file, &entry, sizeof(entry)) == sizeof(entry)) return;
    _exit(programs::fail("cannot write to the journal %s: %s", journal.c_str(), std::strerror(errno)));
  });
  bank::Office<T> office;
  tern::RpcOptions options = programs::rpc_options(0);
  options.huge_pages = false;  // because a machine has many small endpoints
  if (auto status =
          office.open(programs::nexus_options(), programs::transport_options<T>(), options, ledger, uris, self);
      !status.ok()) {
    return programs::fail_with("branch " + std::to_string(self), status);
  }
  while (!programs::interrupted) {
    if (auto status = office.rpc->run_event_loop(milliseconds(10)); !status.ok()) {
      return programs::fail_with("branch " + std::to_string(self), status);
    }
  }
  office.branch->close();  // it still answers repeated transfers, until it is killed
  (void)office.rpc->run_event_loop();
  return 0;
}

/// The branches' processes and their journals. The journals' directory is removed with this object.
class Bank {
 public:
  Bank() : uris_(branch_uris()), processes_(uris_.size(), -1) {}
  ~Bank() {
    for (uint32_t i = 0; i < processes_.size(); i++) stop(i, SIGKILL);
    if (has_directory_) std::filesystem::remove_all(directory_.data());
  }
  Bank(const Bank&) = delete;
  Bank& operator=(const Bank&) = delete;

  bool make_directory() { return has_directory_ = mkdtemp(directory_.data()) != nullptr; }
  bool start(uint32_t branch) {
    const pid_t parent = getpid();
    processes_[branch] = fork();
    if (processes_[branch] == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      _exit(getppid() == parent
                ? programs::with_transport([&]<class T>() { return be_branch<T>(branch, uris_, journal(branch)); })
                : 1);
    }
    return processes_[branch] > 0;
  }
  /// Sends `signal`. After SIGKILL it waits until the process has ended. After SIGTERM the branch begins no more
  /// transfers.
  void stop(uint32_t branch, int signal) {
    if (processes_[branch] <= 0) return;
    kill(processes_[branch], signal);
    if (signal != SIGKILL) return;
    waitpid(processes_[branch], nullptr, 0);
    processes_[branch] = -1;
  }
  /// False: a process has ended by itself, and has printed the reason.
  bool are_running() {
    for (pid_t& process : processes_) {
      if (waitpid(process, nullptr, WNOHANG) == 0) continue;
      process = -1;
      return false;
    }
    return true;
  }
  bank::Audit audit() const {
    std::vector<bank::Ledger> ledgers;
    std::vector<bank::Ledger*> pointers;
    for (uint32_t i = 0; i < uris_.size(); i++) {
      ledgers.emplace_back(static_cast<uint32_t>(uris_.size()), read_journal(journal(i)), nullptr);
    }
    for (bank::Ledger& ledger : ledgers) pointers.push_back(&ledger);
    return bank::audit(pointers);
  }

 private:
  std::string journal(uint32_t branch) const { return std::string(directory_.data()) + "/" + std::to_string(branch); }

  const std::vector<std::string> uris_;
  std::vector<pid_t> processes_;
  std::array<char, 22> directory_ = std::to_array("/dev/shm/bank.XXXXXX\0");
  bool has_directory_ = false;
};

int run() {
  programs::catch_interrupts();
  Bank bank;
  if (!bank.make_directory()) return programs::fail("cannot create a directory in /dev/shm: %s", std::strerror(errno));
  const auto branches = static_cast<uint32_t>(FLAGS_branches);
  for (uint32_t i = 0; i < branches; i++) {
    if (!bank.start(i)) return programs::fail("cannot start a process: %s", std::strerror(errno));
  }
  std::mt19937_64 random(FLAGS_seed);
  uint64_t kills = 0;
  using Clock = std::chrono::steady_clock;
  const auto in = [](double seconds) {
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  };
  const auto end = in(FLAGS_seconds);
  auto next_kill = in(FLAGS_kill_seconds);
  while (Clock::now() < end) {
    std::this_thread::sleep_for(milliseconds(1));
    if (programs::interrupted) return programs::kInterruptedExit;
    if (!bank.are_running()) return 1;
    if (FLAGS_kill_seconds <= 0 || Clock::now() < next_kill) continue;
    next_kill = in(FLAGS_kill_seconds);
    const auto victim = static_cast<uint32_t>(random() % branches);
    bank.stop(victim, SIGKILL);
    kills++;
    if (!bank.start(victim)) return programs::fail("cannot start a process: %s", std::strerror(errno));
  }

  for (uint32_t i = 0; i < branches; i++) bank.stop(i, SIGTERM);
  const auto patience = in(20);
  while (!bank.audit().is_over() && bank.are_running() && Clock::now() < patience) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  for (uint32_t i = 0; i < branches; i++) bank.stop(i, SIGKILL);
  const bank::Audit audit = bank.audit();
  if (!audit.problem.empty()) return programs::fail("%s", audit.problem.c_str());
  if (!audit.is_over()) return programs::fail("%d transfers were not settled in 20 s", int(audit.on_its_way));
  programs::Report report;
  report.bench = "bank";
  report.params = programs::common_params();
  report.params.update({{"branches", branches}, {"kill_seconds", FLAGS_kill_seconds}, {"seconds", FLAGS_seconds}});
  report.metrics.update({{"settled", audit.settled}, {"kills", kills}});
  return programs::print(report);
}

}  // namespace

int main(int argc, char** argv) {
  gflags::SetCommandLineOptionWithMode("wait", "adaptive", gflags::SET_FLAGS_DEFAULT);
  if (!programs::parse_flags(
          argc, argv,
          "Branches of a bank send money to each other, and are killed and started again meanwhile. In the end all "
          "transfers\nmust be settled and no money be made or lost. Example: bank --transport=udp --seconds=10 "
          "--drop=0.01"))
    return 1;
  if (FLAGS_branches < 2 || FLAGS_branches > 64) return programs::fail("--branches must be between 2 and 64");
  if (!(FLAGS_kill_seconds >= 0 && FLAGS_kill_seconds <= 1e6)) {
    return programs::fail("--kill_seconds must be between 0 and 1000000");
  }
  if (!programs::check_page_of_processes()) return 1;
  if (FLAGS_role != "both" || FLAGS_processes || !FLAGS_server.empty() || !FLAGS_listen.empty() ||
      !FLAGS_server_transport_options.empty()) {
    return programs::fail(
        "bank starts its processes itself: it does not accept --role, --processes, --server, --listen and "
        "--server_transport_options");
  }
  return run();
}
