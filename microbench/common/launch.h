// Finds the rank of this process in a cluster's job, and the addresses of all processes: from the environment that
// Slurm, Open MPI or Kubernetes gives a process, or from a hosts file. Standard library only. It uses no flags, files
// or network: the caller passes the texts. Any thread.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace programs {

/// A process of the job: the address at which its Nexus listens.
struct Place {
  std::string host;  ///< a name or a numeric address, without brackets
  uint16_t port = 0;
  uint32_t index_on_host = 0;  ///< index among the processes of this host, in the order of their ranks

  /// "HOST:PORT", with an IPv6 host in brackets.
  std::string text() const {
    const bool is_ipv6 = host.find(':') != std::string::npos;
    return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
  }
  friend bool operator==(const Place&, const Place&) = default;
};

/// All processes of the job.
struct Launch {
  uint32_t rank = 0;          ///< rank of this process
  std::vector<Place> places;  ///< by rank

  size_t ranks() const { return places.size(); }
};

/// The user's settings for the job.
struct LaunchRequest {
  std::string launcher;                   ///< slurm, openmpi, kubernetes or hosts
  std::optional<std::string> hosts_file;  ///< content of the file
  std::optional<uint32_t> rank;           ///< used by hosts only
  std::optional<uint32_t> ranks;          ///< kubernetes: required; hosts: use this number of processes from the file
  std::string service;                    ///< kubernetes: the headless service
  uint16_t port = 0;                      ///< port of the first process of each host; the next process has the next
                                          ///< port
};

/// The value of an environment variable, or nothing.
using Environment = std::function<std::optional<std::string>(const char* name)>;

namespace launch_detail {

constexpr uint32_t kRanksMax = 65536;

/// Parses a decimal number of at most `max`. Other text is an error.
inline std::optional<uint32_t> number_of(std::string_view text, uint32_t max = kRanksMax) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty() || value > max) return std::nullopt;
  return value;
}

/// True if a name or an address has allowed characters only.
inline bool is_host(std::string_view host) {
  return !host.empty() && host.size() <= 255 && host.front() != '-' &&
         std::all_of(host.begin(), host.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  std::string_view(".-_:%").find(c) != std::string_view::npos;
         });
}

/// The beginning of a text from outside, on one line, for a message.
inline std::string shown(std::string_view text) {
  std::string line(text.substr(0, 80));
  std::replace_if(
      line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 127; }, '?');
  return "'" + line + (text.size() > 80 ? "...'" : "'");
}

/// Returns the end of the first item of the list `text`, which is not empty: a comma outside of brackets, or the end of
/// the text.
inline size_t end_of_item(std::string_view text) {
  int depth = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '[') ++depth;
    if (text[at] == ']') --depth;
    if (text[at] == ',' && depth == 0) return at;
  }
  return text.size();
}

/// Calls `take(item)` for each item of a comma-separated list. Returns false if an item is empty, or take() returned
/// false.
template <class Take>
bool for_each_item(std::string_view list, const Take& take) {
  while (true) {
    const size_t end = end_of_item(list);
    if (end == 0 || !take(list.substr(0, end))) return false;
    if (end == list.size()) return true;
    list.remove_prefix(end + 1);
  }
}

/// Appends the hosts of one item of Slurm's list: "login", "node[01-03,7]", "rack[0-1]n[0-3]-ib". Returns false if the
/// item is malformed, or if there are more than kRanksMax hosts.
inline bool expand_item(const std::string& done, std::string_view rest, std::vector<std::string>& hosts) {
  const size_t open = rest.find('[');
  const std::string before = done + std::string(rest.substr(0, open));
  if (open == std::string_view::npos) {
    if (hosts.size() == kRanksMax || !is_host(before)) return false;
    hosts.push_back(before);
    return true;
  }
  const size_t close = rest.find(']', open);
  if (close == std::string_view::npos) return false;
  const std::string_view after = rest.substr(close + 1);
  return for_each_item(rest.substr(open + 1, close - open - 1), [&](std::string_view range) {
    const size_t dash = range.find('-');
    const std::string_view first_text = range.substr(0, dash);
    const auto first = number_of(first_text, UINT32_MAX - 1);
    const auto last = dash == std::string_view::npos ? first : number_of(range.substr(dash + 1), UINT32_MAX - 1);
    if (!first || !last || *last < *first) return false;
    for (uint32_t number = *first; number <= *last; ++number) {
      std::string digits = std::to_string(number);
      if (digits.size() < first_text.size()) digits.insert(0, first_text.size() - digits.size(), '0');
      if (!expand_item(before + digits, after, hosts)) return false;
    }
    return true;
  });
}

/// The hosts of Slurm's list, as in "node[01-03,7],login". nullopt if it is not such a list.
inline std::optional<std::vector<std::string>> expand_slurm_hosts(std::string_view list) {
  std::vector<std::string> hosts;
  const auto expand = [&](std::string_view item) { return expand_item("", item, hosts); };
  if (!for_each_item(list, expand)) return std::nullopt;
  return hosts;
}

/// The number of tasks of each node in Slurm's list, as in "2(x3),1". nullopt if it is not such a list.
inline std::optional<std::vector<uint32_t>> expand_slurm_tasks(std::string_view list) {
  std::vector<uint32_t> tasks;
  const auto expand = [&](std::string_view item) {
    const size_t open = item.find("(x");
    const auto count = number_of(item.substr(0, open));
    const bool is_closed = open == std::string_view::npos || item.ends_with(')');
    const auto times = open == std::string_view::npos || !is_closed
                           ? std::optional<uint32_t>(1)
                           : number_of(item.substr(open + 2, item.size() - open - 3));
    if (!is_closed || !count || !times || tasks.size() + *times > kRanksMax) return false;
    tasks.insert(tasks.end(), *times, *count);
    return true;
  };
  if (!for_each_item(list, expand)) return std::nullopt;
  return tasks;
}

/// Appends processes of one host. `base_port` is the port of the host's first process. add() returns false if there are
/// too many processes, or if the port numbers are used up.
class PlaceList {
 public:
  bool add(const std::string& host, uint16_t base_port, uint32_t processes) {
    for (uint32_t i = 0; i < processes; ++i) {
      const uint32_t index = of_host_[host]++;
      const uint32_t port = base_port + index;
      if (places.size() == kRanksMax || port > UINT16_MAX) return false;
      places.push_back({host, static_cast<uint16_t>(port), index});
    }
    return true;
  }
  std::vector<Place> places;

 private:
  std::map<std::string, uint32_t> of_host_;
};

/// Reads a line of a hosts file, "HOST[:PORT] [slots=N] [more words]". Returns false if the line has another form.
inline bool read_hosts_line(std::string_view line, uint16_t default_port, PlaceList& list) {
  constexpr std::string_view kBlanks = " \t\r";
  std::string_view address = line.substr(0, line.find_first_of(kBlanks));
  uint32_t slots = 1;
  for (std::string_view rest = line.substr(address.size()); !rest.empty();) {
    rest.remove_prefix(std::min(rest.find_first_not_of(kBlanks), rest.size()));
    const std::string_view word = rest.substr(0, rest.find_first_of(kBlanks));
    rest.remove_prefix(word.size());
    if (!word.starts_with("slots=")) continue;  // for example max_slots= of Open MPI
    const auto value = number_of(word.substr(6));
    if (!value || *value == 0) return false;
    slots = *value;
  }
  uint32_t port = default_port;
  std::string_view host = address;
  const size_t colon = address.rfind(':');
  if (address.starts_with('[')) {
    const size_t close = address.find(']');
    if (close == std::string_view::npos) return false;
    host = address.substr(1, close - 1);
    address.remove_prefix(close + 1);
    if (!address.empty() && address.front() != ':') return false;
    if (!address.empty()) port = number_of(address.substr(1), UINT16_MAX).value_or(0);
  } else if (colon != std::string_view::npos && colon == address.find(':')) {  // otherwise it is a bare IPv6 address
    host = address.substr(0, colon);
    port = number_of(address.substr(colon + 1), UINT16_MAX).value_or(0);
  }
  return is_host(host) && port != 0 && list.add(std::string(host), static_cast<uint16_t>(port), slots);
}

/// Reads the processes of a hosts file. Returns an empty string, or an error message of one sentence.
inline std::string read_hosts(std::string_view text, uint16_t port, std::vector<Place>& places) {
  PlaceList list;
  for (size_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    line = line.substr(0, line.find('#'));
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos) continue;
    line.remove_prefix(begin);
    if (!read_hosts_line(line, port, list)) {
      return "line " + std::to_string(number) + " of the hosts file, " + shown(line) +
             ", is not HOST, HOST:PORT or either with slots=N, with at most 65536 processes and ports up to 65535";
    }
  }
  places = std::move(list.places);
  return places.empty() ? "the hosts file names no host; write one per line, as in: node1 slots=2" : "";
}

/// Reads a number from the environment into `value`. Returns an empty string, or an error message of one sentence.
inline std::string read_variable(const Environment& environment, const char* name, const char* remedy,
                                 uint32_t& value) {
  const auto text = environment(name);
  if (!text) return std::string(name) + " is not set; " + remedy;
  const auto number = number_of(*text);
  if (!number) return std::string(name) + " is " + shown(*text) + " and not a number up to 65536; " + remedy;
  value = *number;
  return {};
}

/// Checks that the launcher and the list of hosts agree about the index of this process on its host. Returns an empty
/// string if they agree, or if the launcher does not set the variable.
inline std::string check_index_on_host(const Launch& launch, const Environment& environment, const char* name,
                                       const char* remedy) {
  if (!environment(name)) return {};
  uint32_t index = 0;
  if (std::string problem = read_variable(environment, name, remedy, index); !problem.empty()) return problem;
  const uint32_t expected = launch.places[launch.rank].index_on_host;
  if (index == expected) return {};
  return std::string(name) + "=" + std::to_string(index) + ", but in the list of hosts, rank " +
         std::to_string(launch.rank) + " is process " + std::to_string(expected) + " of its host: " + remedy;
}

inline std::string find_slurm_places(const Environment& environment, uint16_t port, uint32_t ranks,
                                     std::vector<Place>& places) {
  const auto nodes = environment("SLURM_STEP_NODELIST");
  const auto tasks = environment("SLURM_STEP_TASKS_PER_NODE");
  if (!nodes || !tasks) return "SLURM_STEP_NODELIST or SLURM_STEP_TASKS_PER_NODE is not set; start it with srun";
  const auto hosts = expand_slurm_hosts(*nodes);
  if (!hosts) return "SLURM_STEP_NODELIST is " + shown(*nodes) + ", which is not a list of hosts; give a --hosts_file";
  const auto counts = expand_slurm_tasks(*tasks);
  if (!counts || counts->size() != hosts->size()) {
    return "SLURM_STEP_TASKS_PER_NODE is " + shown(*tasks) + ", which does not say how many processes each of " +
           std::to_string(hosts->size()) + " nodes has; give a --hosts_file";
  }
  PlaceList list;
  for (size_t i = 0; i < hosts->size(); ++i) {
    if (list.add((*hosts)[i], port, (*counts)[i])) continue;
    return "there are too many processes on " + shown((*hosts)[i]) +
           ": a port is at most 65535, and a job has at most 65536 processes";
  }
  places = std::move(list.places);
  if (places.size() == ranks) return {};
  return "SLURM_STEP_TASKS_PER_NODE makes " + std::to_string(places.size()) +
         " processes, but SLURM_STEP_NUM_TASKS is " + std::to_string(ranks) + "; give a --hosts_file";
}

/// A pod of an Indexed Job has the host name JOB-INDEX, and the full name JOB-INDEX.SERVICE.
inline std::string find_kubernetes_places(const Environment& environment, const LaunchRequest& request, uint32_t rank,
                                          std::vector<Place>& places) {
  if (!request.ranks) return "--launcher=kubernetes needs --ranks, the number of completions of the Job";
  if (!is_host(request.service)) return "--launcher=kubernetes needs --service, the name of the headless Service";
  const std::string name = environment("HOSTNAME").value_or("");
  const std::string suffix = "-" + std::to_string(rank);
  if (name.size() <= suffix.size() || !name.ends_with(suffix) || !is_host(name)) {
    return "HOSTNAME is " + shown(name) + " and does not end in " + suffix +
           ", as the name of a pod of an Indexed Job does; use completionMode: Indexed, without hostNetwork";
  }
  const std::string job = name.substr(0, name.size() - suffix.size());
  PlaceList list;
  for (uint32_t i = 0; i < *request.ranks; ++i) {
    (void)list.add(job + "-" + std::to_string(i) + "." + request.service, request.port, 1);
  }
  places = std::move(list.places);
  return {};
}

/// Checks that the request has no flags of another launcher.
inline std::string check_request(const LaunchRequest& request) {
  const std::string& launcher = request.launcher;
  if (launcher != "hosts" && request.rank)
    return "--rank works only with --launcher=hosts; other launchers set the rank themselves";
  if (launcher != "kubernetes" && !request.service.empty()) return "--service works only with --launcher=kubernetes";
  if ((launcher == "slurm" || launcher == "openmpi") && request.ranks) {
    return "--ranks works only with --launcher=kubernetes and hosts; " + launcher + " sets the number itself";
  }
  return {};
}

/// Finds the rank of this process, and the number of processes: 0 if the launcher does not set it.
inline std::string find_rank(const LaunchRequest& request, const Environment& environment, uint32_t& rank,
                             uint32_t& ranks) {
  if (request.launcher == "hosts") {
    if (!request.rank) return "--launcher=hosts needs --rank, the number of this process in the hosts file, from 0 on";
    rank = *request.rank;
    ranks = request.ranks.value_or(0);
    return {};
  }
  if (request.launcher == "kubernetes") {
    ranks = request.ranks.value_or(0);
    return read_variable(environment, "JOB_COMPLETION_INDEX", "run it in a pod of a Job with completionMode: Indexed",
                         rank);
  }
  const bool is_slurm = request.launcher == "slurm";
  const char* remedy = is_slurm ? "start it with srun" : "start it with mpirun of Open MPI";
  std::string problem = read_variable(environment, is_slurm ? "SLURM_PROCID" : "OMPI_COMM_WORLD_RANK", remedy, rank);
  if (!problem.empty()) return problem;
  return read_variable(environment, is_slurm ? "SLURM_STEP_NUM_TASKS" : "OMPI_COMM_WORLD_SIZE", remedy, ranks);
}

/// Finds two processes with one address, which a hosts file may contain.
inline std::string check_addresses(const std::vector<Place>& places) {
  std::set<std::string> seen;
  for (const Place& place : places) {
    if (!seen.insert(place.text()).second) {
      return "the hosts file has " + place.text() + " twice; give each process of a host its own port";
    }
  }
  return {};
}

}  // namespace launch_detail

/// Finds this process and the others. Returns an empty string, and fills `launch`; or an error message of one sentence
/// that names the rule and the remedy.
inline std::string find_launch(const LaunchRequest& request, const Environment& environment, Launch& launch) {
  namespace detail = launch_detail;
  const std::string& launcher = request.launcher;
  if (launcher != "slurm" && launcher != "openmpi" && launcher != "kubernetes" && launcher != "hosts") {
    return "--launcher is unknown; choose from: none, slurm, openmpi, kubernetes, hosts";
  }
  uint32_t ranks = 0;
  std::string problem = detail::check_request(request);
  if (problem.empty()) problem = detail::find_rank(request, environment, launch.rank, ranks);
  if (!problem.empty()) return problem;

  if (request.hosts_file) {
    problem = detail::read_hosts(*request.hosts_file, request.port, launch.places);
  } else if (launcher == "slurm") {
    problem = detail::find_slurm_places(environment, request.port, ranks, launch.places);
  } else if (launcher == "kubernetes") {
    problem = detail::find_kubernetes_places(environment, request, launch.rank, launch.places);
  } else {
    problem = "--launcher=" + launcher + " needs --hosts_file, with the hosts in the order of the ranks";
  }
  if (!problem.empty()) return problem;
  if (launch.places.size() < ranks) {
    return "the hosts file has room for " + std::to_string(launch.places.size()) + " processes of " +
           std::to_string(ranks) + "; write more hosts, or slots=N behind them";
  }
  if (ranks != 0) launch.places.resize(ranks);
  if (launch.ranks() < 2)
    return "a job must have at least 2 processes, and this one has " + std::to_string(launch.ranks());
  if (launch.rank >= launch.ranks()) {
    return "rank " + std::to_string(launch.rank) + " is not one of the " + std::to_string(launch.ranks()) +
           " processes, which are numbered from 0";
  }
  if (launcher == "slurm") {
    problem = detail::check_index_on_host(launch, environment, "SLURM_LOCALID", "use srun --distribution=block");
  } else if (launcher == "openmpi") {
    problem =
        detail::check_index_on_host(launch, environment, "OMPI_COMM_WORLD_LOCAL_RANK",
                                    "give mpirun the same hosts file, with slots=N, and no other --map-by than slot");
  }
  return problem.empty() ? detail::check_addresses(launch.places) : problem;
}

}  // namespace programs
