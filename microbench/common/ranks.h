// A benchmark that runs as many processes of a cluster, which a launcher starts: its flags, and the part of one
// process. This file defines flags: include it only in a program's one source file. Main thread.
#pragma once

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "launch.h"
#include "meeting.h"
#include "run.h"

DEFINE_string(launcher, "none",
              "run as one of many processes, started by slurm (srun), openmpi (mpirun), kubernetes (an Indexed Job) or "
              "hosts (by hand, with --rank); docs/cluster.md");
DEFINE_string(hosts_file, "",
              "with --launcher: the hosts in the order of the ranks, a line each: HOST[:PORT] [slots=N]");
DEFINE_uint64(rank, 0, "--launcher=hosts: which process of the hosts file this one is, from 0 on");
DEFINE_uint64(ranks, 0,
              "--launcher=kubernetes: the Job's completions; hosts: use this number of processes from the file");
DEFINE_string(service, "", "--launcher=kubernetes: the headless Service of the Job's pods");
DEFINE_uint64(port, 31850,
              "with --launcher: UDP port of the first process of each host; the next one has the next port");
DEFINE_double(start_seconds, 60, "with --launcher: how long a process waits until all others are there");

namespace programs {

/// True if a launcher has started this process as one of many.
inline bool is_ranked() { return FLAGS_launcher != "none"; }

namespace ranks_detail {

/// Returns an error message of one sentence, or an empty string.
inline std::string check_flags(std::initializer_list<const char*> not_ranked) {
  if (!is_ranked()) {
    for (const char* name : {"hosts_file", "rank", "ranks", "service", "port", "start_seconds"}) {
      if (is_given(name)) return "--" + std::string(name) + " works only with --launcher";
    }
    return {};
  }
  if (is_simulated()) return "--launcher does not work in a simulation, which has one thread";
  for (const char* name : {"role", "processes", "server", "server_transport_options", "ready_fd"}) {
    if (is_given(name))
      return "--" + std::string(name) + " does not work with --launcher, where all processes are alike";
  }
  for (const char* name : not_ranked) {
    if (is_given(name)) return "--" + std::string(name) + " does not work with --launcher";
  }
  if (FLAGS_port < 1 || FLAGS_port > UINT16_MAX) return "--port must be between 1 and 65535";
  if (FLAGS_rank >= launch_detail::kRanksMax || FLAGS_ranks > launch_detail::kRanksMax) {
    return "--ranks must be at most 65536, and --rank less";
  }
  if (!(FLAGS_start_seconds > 0 && FLAGS_start_seconds <= 3600))
    return "--start_seconds must be above 0 and at most 3600";
  return {};
}

/// The content of --hosts_file. nullopt if it cannot be read.
inline std::optional<std::string> read_hosts_file() {
  constexpr size_t kBytesMax = 16 << 20;
  std::ifstream file(FLAGS_hosts_file);
  std::string text;
  text.resize(kBytesMax);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  const bool is_whole = file.eof();
  text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  if (!is_whole) return std::nullopt;
  return text;
}

/// Fills `launch` and returns an empty string, or returns an error message of one sentence.
inline std::string find(Launch& launch) {
  LaunchRequest request;
  request.launcher = FLAGS_launcher;
  request.service = FLAGS_service;
  request.port = static_cast<uint16_t>(FLAGS_port);
  if (is_given("rank")) request.rank = static_cast<uint32_t>(FLAGS_rank);
  if (FLAGS_ranks != 0) request.ranks = static_cast<uint32_t>(FLAGS_ranks);
  if (!FLAGS_hosts_file.empty()) {
    request.hosts_file = read_hosts_file();
    if (!request.hosts_file) return "--hosts_file=" + FLAGS_hosts_file + " cannot be read, or has more than 16 MiB";
  }
  const auto environment = [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  };
  return find_launch(request, environment, launch);
}

/// The numeric address of a host. If there is none, returns an empty string and sets `error` to the error of
/// getaddrinfo(3).
inline std::string address_of(const std::string& host, int& error) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> first(found, &freeaddrinfo);
  char text[NI_MAXHOST];
  error = getnameinfo(first->ai_addr, first->ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text : "";
}

/// Replaces names by addresses. The name of a pod exists only after the pod has started, so this function retries for
/// --start_seconds. Returns false if it was interrupted, or after it has printed an error message.
inline bool resolve(std::vector<Place>& places) {
  const auto give_up = Clock::now() + std::chrono::nanoseconds(static_cast<int64_t>(FLAGS_start_seconds * 1e9));
  for (Place& place : places) {
    int error = 0;
    std::string address = address_of(place.host, error);
    while (address.empty()) {
      if (interrupted) return false;
      if (Clock::now() >= give_up) {
        fail("%s has no address: %s; write addresses into a --hosts_file", place.host.c_str(), gai_strerror(error));
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      address = address_of(place.host, error);
    }
    place.host = address;
  }
  return true;
}

/// A URI for all addresses of this host, including IPv6 if a process has an IPv6 address.
inline std::string listen_uri(const Launch& launch) {
  if (!FLAGS_listen.empty()) return "tern://" + FLAGS_listen;
  const bool has_ipv6 = std::any_of(launch.places.begin(), launch.places.end(),
                                    [](const Place& place) { return place.host.find(':') != std::string::npos; });
  return std::string(has_ipv6 ? "tern://[::]:" : "tern://0.0.0.0:") + std::to_string(launch.places[launch.rank].port);
}

}  // namespace ranks_detail

/// Must be called after parse_flags(). `not_ranked` has flags of this program that exclude --launcher. Leaves `launch`
/// empty if this process is not one of many. On error it prints a sentence and returns false.
inline bool check_ranked_flags(std::optional<Launch>& launch, std::initializer_list<const char*> not_ranked = {}) {
  std::string problem = ranks_detail::check_flags(not_ranked);
  if (problem.empty() && is_ranked()) problem = ranks_detail::find(launch.emplace());
  if (!problem.empty()) fail("%s", problem.c_str());
  return problem.empty() && (!is_ranked() || check_page_of_processes());
}

/// The job as one process sees it. Main thread.
struct Ranked {
  Run& run;
  tern::Nexus& nexus;
  const Launch& launch;
  Meeting& meeting;
  std::vector<int> cpus;              ///< CPUs for its threads, in turn
  nlohmann::ordered_json own_params;  ///< the identity of this process in the job

  /// How long the other processes may take for work that this process has finished.
  double patience_seconds() const { return FLAGS_start_seconds + FLAGS_seconds; }
  tern::Duration patience() const { return std::chrono::nanoseconds(static_cast<int64_t>(patience_seconds() * 1e9)); }
  [[nodiscard]] bool meet() const { return meeting.hold(patience_seconds()); }
  /// Like programs::measure(). It accepts that a process gets no answer during --seconds, because other processes may
  /// use all capacity.
  template <class GetTotals>
  std::optional<Totals> measure(const GetTotals& totals) const {
    return programs::measure(run, totals, true);
  }
  /// Waits for work that takes no longer than the others' patience. Returns false if it failed or was interrupted.
  template <class Done>
  [[nodiscard]] bool wait_until(const Done& done, const char* what) const {
    if (!run.wait_for(patience_seconds(), done)) return false;
    if (!done()) run.fail(what, {tern::Code::kPeerUnreachable, "it takes too long; raise --start_seconds"});
    return done();
  }
  /// The last step of a process: gives its report to rank 0, and joins the threads. Must be called while the objects
  /// that its threads use still exist, and when nothing is on its way between processes. `report` is nullopt if this
  /// process failed or was interrupted. Returns false if this process or the job failed.
  [[nodiscard]] bool finish(std::optional<Report> report) const {
    if (report) report->params.update(own_params);
    const bool is_complete = report && meeting.hold_last(patience_seconds(), json_of(*report));
    run.end();
    return is_complete;
  }
};

/// The rest of main() for one process. Returns the exit code. Rank 0 prints the reports of all processes, because
/// launchers mix the lines of several processes.
///   run_rank(ranked): adds side threads, takes part, and returns ranked.finish().
/// `threads` is the number of threads of each process. Processes of one host use different CPUs if there are enough.
/// `flags` has the settings that must be equal in all processes.
template <class RunRank>
int play_rank(Launch launch, const std::vector<int>& cpus, size_t threads, const std::string& flags,
              const RunRank& run_rank) {
  catch_interrupts();
  const nlohmann::ordered_json own_params = {{"launcher", FLAGS_launcher},
                                             {"ranks", launch.ranks()},
                                             {"rank", launch.rank},
                                             {"host", launch.places[launch.rank].text()}};
  if (!ranks_detail::resolve(launch.places)) return interrupted ? kInterruptedExit : 1;
  const std::string listen = ranks_detail::listen_uri(launch);
  tern::NexusOptions options = nexus_options();
  options.liveness_timeout = std::chrono::seconds(5);  // a long timeout is right because a dead process spoils no
                                                       // result here
  auto nexus = tern::Nexus::create(listen, options);   // outlives the run, whose side threads own the endpoints
  if (!nexus.ok()) return fail_with("no Nexus at " + listen, nexus.status());

  Run run;
  Meeting meeting(run, launch, FLAGS_start_seconds, std::string(gflags::ProgramInvocationShortName()) + flags);
  std::vector<int> own_cpus = cpus;
  const size_t first = launch.places[launch.rank].index_on_host * threads % cpus.size();
  std::rotate(own_cpus.begin(), own_cpus.begin() + static_cast<ptrdiff_t>(first), own_cpus.end());
  if (!run_rank(Ranked{run, **nexus, launch, meeting, own_cpus, own_params})) return run.explain_failure();
  if (launch.rank != 0) return 0;
  for (const std::string& text : meeting.texts()) {
    const std::optional<Report> report = report_of(text);
    if (!report) return fail("a process has no report: it is another version of this program");
    if (const int failure = print(*report); failure != 0) return failure;
  }
  return 0;
}

}  // namespace programs
