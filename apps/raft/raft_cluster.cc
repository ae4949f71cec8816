// raft_cluster: runs a cluster of replicas on this machine, each in a process, with a load that is measured and
// checked. If requested, it kills the leader during the load, several times. The first process runs the load, starts
// the other processes, and kills them. All code runs in the main thread.
#include <gflags/gflags.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "../common/any_rpc.h"
#include "../common/flags.h"
#include "../common/report.h"
#include "../common/sides.h"
#include "administrator.h"
#include "load.h"
#include "setup.h"

DEFINE_uint64(size, 3, "replicas, three to seven");
DEFINE_uint64(kills, 0, "how often the leader is killed (kill -9), each time after --kill_after acknowledged PUTs");
DEFINE_uint64(kill_after, 200, "PUTs between two kills");
DEFINE_string(storage, "",
              "directory for the replicas' own directories; a killed replica comes back with its state; default: "
              "memory; a replica "
              "that was killed comes back under a new id, and its old id is removed");
DEFINE_uint64(id, 0, "id of a replica's process; the first process sets it");
DEFINE_string(join, "", "likewise");

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// The processes of the replicas, by id. They end with this object, and with this process, even if this process is
/// killed.
class Processes {
 public:
  Processes(int argc, char** argv) : words_(argv, argv + argc) {}
  ~Processes() {
    for (auto& [id, process] : processes_) process.kill();
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  /// Returns when the replica listens. Returns false if it does not; an error message has then been printed.
  bool start(uint64_t id, const std::string& members, const std::string& join) {
    std::vector<std::string> words = words_;
    words.push_back("--role=server");
    words.push_back("--id=" + std::to_string(id));
    words.push_back("--replicas=" + members);
    words.push_back("--join=" + join);
    return processes_[id].start(std::move(words));
  }
  void kill(uint64_t id) {
    processes_[id].kill();
    processes_.erase(id);
  }
  /// Returns false if a process has ended by itself; it has printed the reason.
  bool are_running() {
    return std::all_of(processes_.begin(), processes_.end(), [](auto& entry) { return entry.second.is_running(); });
  }

 private:
  const std::vector<std::string> words_;
  std::map<uint64_t, programs::ServerProcess> processes_;
};

/// The first process.
class Cluster {
 public:
  Cluster(int argc, char** argv) : processes_(argc, argv) {}

  int run() {
    for (uint64_t id = 1; id <= FLAGS_size; id++) members_.emplace_back(id, "tern://" + address(id));
    const std::string members = text();
    for (uint64_t id = 1; id <= FLAGS_size; id++) {
      if (!processes_.start(id, members, {})) return 1;
    }
    auto nexus = tern::Nexus::create("tern://127.0.0.1:0", programs::nexus_options());
    if (!nexus.ok()) return programs::fail_with("no Nexus", nexus.status());
    nexus_ = std::move(*nexus);
    auto rpc = programs::create_rpc(*nexus_, programs::rpc_options(0));
    if (!rpc.ok()) return programs::fail_with("no endpoint", rpc.status());
    rpc_ = std::move(*rpc);
    replicated::LoadOptions options = replicated::load_options(replicated::client_options(members_));
    if (FLAGS_kills > 0) options.length = std::chrono::hours(1);  // until the last kill
    load_ = std::make_unique<replicated::Load>(rpc_->endpoint(), tern::real_environment(), options);
    load_->begin();
    if (!turn_until([this] { return load_->is_running(); })) return end();
    if (!tell(true)) return end();
    for (uint64_t kill = 0; kill < FLAGS_kills; kill++) {
      if (!kill_leader()) return end();
    }
    if (FLAGS_kills > 0) load_->stop();
    if (!turn_until([this] { return load_->is_done(); }) || !tell(false)) return end();
    return end();
  }

 private:
  /// Addresses of this machine and this run only: 127.0.0.0/8 is local to the machine, and the process id differs
  /// between runs.
  static std::string address(uint64_t id) {
    const auto run = static_cast<uint32_t>(getpid());
    return "127." + std::to_string(run >> 16 & 255) + "." + std::to_string(run >> 8 & 255) + "." +
           std::to_string(run & 255) + ":" + std::to_string(31849 + id);
  }
  std::string text() const {
    std::string list;
    for (const auto& [id, uri] : members_) {
      list += (list.empty() ? "" : ",") + std::to_string(id) + "=" + uri.substr(std::strlen("tern://"));
    }
    return list;
  }

  /// Returns false if an error makes `done` impossible, or after a minute.
  bool turn_until(const std::function<bool()>& done) {
    const auto patience = Clock::now() + std::chrono::seconds(60) + milliseconds(int64_t(FLAGS_seconds * 1e3));
    while (!done()) {
      if (programs::interrupted || !load_->problem().empty()) return false;
      if (const auto status = rpc_->run_event_loop(milliseconds(1)); !status.ok()) {
        return fail("the event loop has ended: " + std::string(status.message()));
      }
      if (!processes_.are_running()) return fail("a replica has ended by itself");
      if (Clock::now() > patience) return fail("nothing has happened for a minute");
    }
    return true;
  }
  bool fail(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  bool kill_leader() {
    const uint64_t before = load_->acknowledged();
    const auto find_leader = [this] {
      return std::find_if(members_.begin(), members_.end(),
                          [this](const auto& member) { return member.second == load_->leader(); });
    };
    if (!turn_until(
            [&] { return load_->acknowledged() >= before + FLAGS_kill_after && find_leader() != members_.end(); })) {
      return false;
    }
    const auto leader = find_leader();
    const uint64_t victim = leader->first;
    const uint64_t at_death = load_->acknowledged();
    processes_.kill(victim);
    const auto died = Clock::now();
    if (!FLAGS_storage.empty() && !processes_.start(victim, text(), {})) return false;
    if (!turn_until([&] { return load_->acknowledged() > at_death; })) return false;
    failover_.add(Clock::now() - died);
    return !FLAGS_storage.empty() || replace(victim);
  }

  /// Replaces a killed replica without a disk by a new one.
  bool replace(uint64_t victim) {
    std::string why;
    if (!change(replicated::Action::kRemove, victim, {}, why)) return false;
    if (!why.empty()) return fail(why);
    std::erase_if(members_, [&](const auto& member) { return member.first == victim; });
    for (int tries = 0; tries < 5; tries++) {
      const uint64_t id = ++last_id_ + FLAGS_size;
      if (!processes_.start(id, {}, address(id))) return false;
      if (!change(replicated::Action::kAdd, id, "tern://" + address(id), why)) return false;
      if (why.empty()) {
        members_.emplace_back(id, "tern://" + address(id));
        return true;
      }
      // A leader that fails during the addition has used up the id (Replica::add()).
      if (why.find("have been used") == why.npos) break;
      processes_.kill(id);
    }
    return fail(why);
  }
  /// Returns false if there was no answer. Otherwise `why` is the reason of a failure; empty: the change is committed.
  bool change(replicated::Action action, uint64_t id, const std::string& uri, std::string& why) {
    auto options = replicated::client_options(members_);
    options.patience = std::chrono::seconds(30);
    administrators_.push_back(
        std::make_unique<replicated::Administrator>(rpc_->endpoint(), tern::real_environment(), std::move(options)));
    bool has_ended = false;
    administrators_.back()->change(action, id, uri, [&](std::string problem) {
      has_ended = true;
      why = std::move(problem);
    });
    return turn_until([&] { return has_ended; });
  }

  /// Begins the measurement at the replicas, or asks the leader for its result.
  bool tell(bool begins) {
    administrators_.push_back(std::make_unique<replicated::Administrator>(rpc_->endpoint(), tern::real_environment(),
                                                                          replicated::client_options(members_)));
    size_t answers = 0;
    for (const auto& member : members_) {
      administrators_.back()->about(
          member.second,
          [&](const std::string& json, const std::string&) {
            answers++;
            const auto about = nlohmann::ordered_json::parse(json, nullptr, false);
            if (begins || about.is_discarded() || about["state"] != "leader") return;
            about_leader_ = about;
          },
          begins);
    }
    return turn_until([&] { return answers == members_.size(); });
  }

  int end() {
    if (!load_->problem().empty()) return programs::fail("%s", load_->problem().c_str());
    if (!problem_.empty()) return programs::fail("%s", problem_.c_str());
    if (programs::interrupted) return programs::kInterruptedExit;
    if (!load_->is_done()) return 1;  // an error message has been printed
    programs::Report report;
    report.bench = "raft";
    report.params = programs::common_params();
    report.params.update({{"replicas", FLAGS_size}, {"storage", FLAGS_storage.empty() ? "memory" : "disk"}});
    replicated::add_parameters(report.params);
    replicated::add_metrics(load_->report(), report.metrics);
    if (about_leader_.contains("served_p50_ns")) {
      report.metrics["leader_p50_us"] = about_leader_["served_p50_ns"].get<double>() / 1e3;
      report.metrics["leader_p99_us"] = about_leader_["served_p99_ns"].get<double>() / 1e3;
    }
    if (FLAGS_kills > 0) {
      report.metrics["kills"] = failover_.count();
      report.metrics["failover_p50_ms"] = static_cast<double>(failover_.quantile_ns(0.5)) / 1e6;
      report.metrics["failover_max_ms"] = static_cast<double>(failover_.quantile_ns(1)) / 1e6;
    }
    return programs::print(report);
  }

  Processes processes_;
  replicated::Members members_;
  std::unique_ptr<tern::Nexus> nexus_;
  std::vector<std::unique_ptr<replicated::Administrator>> administrators_;  ///< these outlive the endpoint, like load_
  std::unique_ptr<replicated::Load> load_;
  std::unique_ptr<programs::AnyRpc> rpc_;
  uint64_t last_id_ = 0;
  programs::Latencies failover_;
  nlohmann::ordered_json about_leader_;
  std::string problem_;
};

/// The program of a replica's process.
int be_replica(const replicated::Members& members) {
  std::string uri = "tern://" + FLAGS_join;
  for (const auto& [id, address] : members) {
    if (id == FLAGS_id && FLAGS_join.empty()) uri = address;
  }
  replicated::ReplicaOptions options = replicated::replica_options(FLAGS_id, uri);
  options.replicas = members;
  const std::string directory = FLAGS_storage.empty() ? "" : FLAGS_storage + "/" + std::to_string(FLAGS_id);
  return programs::with_transport(
      [&]<class T>() { return replicated::serve<T>(options, directory, [&] { programs::announce_server(uri); }); });
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<char*> words(argv, argv + argc);  // the words of the command line, for the other processes
  gflags::SetCommandLineOptionWithMode("wait", "adaptive", gflags::SET_FLAGS_DEFAULT);
  if (!programs::parse_flags(
          argc, argv,
          "Runs a cluster of replicas on this machine, and a load on it; at the end all that was acknowledged must be "
          "there.\nExample: raft_cluster --transport=udp --kills=20 --clients=8 --storage=/var/tmp/raft"))
    return 1;
  if (!replicated::check_replica_flags() || !replicated::check_load_flags()) return 1;
  const auto members = replicated::parse_members(FLAGS_replicas);
  if (!members) return 1;
  programs::catch_interrupts();
  if (FLAGS_id != 0) return be_replica(*members);
  if (!members->empty() || FLAGS_role != "both" || FLAGS_processes) {
    return programs::fail(
        "raft_cluster starts its processes itself: it does not accept --replicas, --role and --processes");
  }
  if (!programs::check_page_of_processes()) return 1;
  if (FLAGS_size < 3 || FLAGS_size > replicated::kReplicasMax) return programs::fail("--size must be between 3 and 7");
  if (!FLAGS_storage.empty()) {
    std::error_code error;
    std::filesystem::create_directories(FLAGS_storage, error);
    if (error || !std::filesystem::is_empty(FLAGS_storage, error)) {
      return programs::fail("--storage=%s is not an empty directory", FLAGS_storage.c_str());
    }
  }
  return Cluster(static_cast<int>(words.size()), words.data()).run();
}
