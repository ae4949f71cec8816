#include "setup.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>

#include "directory.h"
#include "disk_storage.h"
#include "no_storage.h"

DEFINE_string(cluster, "raft", "name of the cluster; replicas and clients of another one are refused");
DEFINE_string(replicas, "", "the replicas of the cluster, as in 1=10.0.0.1:31850,2=10.0.0.2:31850,3=10.0.0.3:31850");
DEFINE_double(patience_seconds, 10, "client: time without an answer after which a command fails");
DEFINE_bool(lease_reads, false, "client: the leader answers reads alone while it has a lease");
DEFINE_double(
    election_ms, 1000,
    "replica: the shortest time without a leader after which a new one is elected; all replicas must have the same");
DEFINE_double(heartbeat_ms, 0, "replica: interval of the leader's heartbeats; 0: a tenth of --election_ms");
DEFINE_double(drift_max, 0.01, "replica: share of time by which a clock may be wrong, for leases; 0 to 0.5");
DEFINE_uint64(snapshot_entries, 100'000, "replica: entries of the log after which a snapshot is taken");
DEFINE_uint64(trailing_entries, 10'000,
              "replica: entries that stay in the log after a snapshot, for replicas that are behind");
DEFINE_uint64(batch_max, 64, "replica: commands that the leader writes to its log at a time");
DEFINE_string(fsync, "data",
              "replica with a --storage: never (a killed process loses nothing, a machine without power does), data "
              "(fdatasync), write (O_DSYNC)");
DEFINE_double(snapshot_seconds, 60, "replica: time after which a snapshot that has not arrived is sent again");
DEFINE_uint64(clients, 1, "load: clients, each with one operation at a time");
DEFINE_uint64(keys, 1'000'000, "load: keys, each put by one client only");
DEFINE_uint64(key_bytes, 16, "load: length of a key");
DEFINE_uint64(value_bytes, 64, "load: length of a value");
DEFINE_double(get_share, 0, "load: share of operations that read; the others are PUTs");
DEFINE_bool(load_all, false, "load: puts every key once before the measurement");
DEFINE_uint64(operations, 0, "load: number of operations after which it ends; 0: it ends after --seconds");
DEFINE_bool(echoes, false, "load: the first client sends an RPC without replication after each PUT, to compare");
DEFINE_uint64(read_back, 1000, "load: keys that each client reads again in the end");

namespace replicated {

namespace {

tern::Duration seconds(double count) { return tern::Duration(static_cast<int64_t>(count * 1e9)); }

bool is_kept(bool rule, const char* sentence) {
  if (!rule) programs::fail("%s", sentence);
  return rule;
}
bool is_between(uint64_t value, uint64_t least, uint64_t most) { return value >= least && value <= most; }

}  // namespace

std::optional<Members> parse_members(std::string_view text) {
  Members members;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const size_t equals = item.find('=');
    uint64_t id = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + std::min(equals, item.size()), id);
    const bool is_member = equals != item.npos && error == std::errc() && end == item.data() + equals && id > 0 &&
                           item.size() > equals + 1 && item.find(':') != item.npos;
    if (!is_member) {
      programs::fail("'%s' is not a replica: name each as in 1=10.0.0.1:31850, with an id above 0",
                     std::string(item).c_str());
      return std::nullopt;
    }
    std::string uri = "tern://" + std::string(item.substr(equals + 1));
    for (const auto& [other, address] : members) {
      if (other != id && address != uri) continue;
      programs::fail("'%s' appears twice in the list of replicas: each must have its own id and address",
                     std::string(item).c_str());
      return std::nullopt;
    }
    members.emplace_back(id, std::move(uri));
  }
  return members;
}

uint64_t cluster_number(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

bool check_replica_flags() {
  return is_kept(FLAGS_election_ms >= 1 && FLAGS_election_ms <= 600'000,
                 "--election_ms must be between 1 and 600000") &&
         is_kept(FLAGS_heartbeat_ms >= 0 && FLAGS_heartbeat_ms <= FLAGS_election_ms / 2,
                 "--heartbeat_ms must be at most half of --election_ms") &&
         is_kept(FLAGS_drift_max >= 0 && FLAGS_drift_max <= 0.5, "--drift_max must be between 0 and 0.5") &&
         is_kept(is_between(FLAGS_snapshot_entries, 1, 1u << 30) && is_between(FLAGS_trailing_entries, 1, 1u << 30),
                 "--snapshot_entries and --trailing_entries must be between 1 and 1073741824") &&
         is_kept(FLAGS_fsync == "never" || FLAGS_fsync == "data" || FLAGS_fsync == "write",
                 "--fsync must be never, data or write") &&
         is_kept(is_between(FLAGS_batch_max, 1, 1024), "--batch_max must be between 1 and 1024") &&
         is_kept(FLAGS_snapshot_seconds >= 0.1 && FLAGS_snapshot_seconds <= 2000,
                 "--snapshot_seconds must be between 0.1 and 2000");
}

ReplicaOptions replica_options(uint64_t id, const std::string& address) {
  ReplicaOptions options;
  options.port.cluster = cluster_number(FLAGS_cluster);
  options.port.id = id;
  options.port.address = address;
  // Whole microseconds, because replicas compare this time in microseconds.
  options.port.election_timeout = std::chrono::microseconds(std::llround(FLAGS_election_ms * 1e3));
  options.port.heartbeat = seconds((FLAGS_heartbeat_ms > 0 ? FLAGS_heartbeat_ms : FLAGS_election_ms / 10) / 1e3);
  options.port.snapshot_timeout = seconds(FLAGS_snapshot_seconds);
  options.port.clock_drift_max = FLAGS_drift_max;
  options.port.complain = [](const std::string& sentence) { programs::fail("%s", sentence.c_str()); };
  options.snapshot_entries = static_cast<unsigned>(FLAGS_snapshot_entries);
  options.trailing_entries = static_cast<unsigned>(FLAGS_trailing_entries);
  options.batch_max = static_cast<unsigned>(FLAGS_batch_max);
  options.is_measured = true;
  return options;
}

ClientOptions client_options(const Members& members) {
  ClientOptions options;
  options.cluster = cluster_number(FLAGS_cluster);
  for (const auto& [id, uri] : members) options.replicas.push_back(uri);
  options.patience = seconds(FLAGS_patience_seconds);
  options.has_lease_reads = FLAGS_lease_reads;
  return options;
}

namespace {

/// Claims a directory for `owner`, and stores that name in it. Returns an empty string, or the error message.
std::string claim(Directory& directory, const std::string& owner) {
  constexpr const char* kName = "replica";
  const auto failed = [&](int error) {
    return "cannot use " + directory.path(kName) + ": " + std::strerror(error) +
           "; make room, or check the permissions";
  };
  std::vector<std::string> names;
  if (const int error = directory.list(names); error != 0) return failed(error);
  if (std::find(names.begin(), names.end(), kName) != names.end()) {
    std::string found;
    if (const int error = directory.read(kName, found); error != 0) return failed(error);
    if (found == owner) return {};
    return directory.path(kName) + " says that this is the directory of " + found + ", not of " + owner +
           ": give each replica its own directory";
  }
  const std::string new_name = std::string(kName) + ".new";
  std::erase(names, new_name);  // of a claim that did not get to its end
  if (!names.empty())
    return directory.path(kName) + " is missing, and the directory is not empty: give another directory";
  std::unique_ptr<File> file;
  int error = directory.create(new_name, file);
  if (error == 0) error = file->append(owner);
  if (error == 0) error = file->sync();
  if (error == 0) error = directory.rename(new_name, kName);
  if (error == 0) error = directory.sync();
  return error == 0 ? std::string() : failed(error);
}

}  // namespace

std::unique_ptr<Storage> open_storage(const std::string& directory, uint64_t id) {
  if (directory.empty()) return std::make_unique<NoStorage>();
  const Sync sync = FLAGS_fsync == "never" ? Sync::kNever : FLAGS_fsync == "write" ? Sync::kWrite : Sync::kData;
  std::string problem;
  auto opened = open_directory(directory, sync, problem);
  if (opened != nullptr) problem = claim(*opened, "replica " + std::to_string(id) + " of " + FLAGS_cluster);
  if (problem.empty()) return std::make_unique<DiskStorage>(std::move(opened), DiskOptions());
  programs::fail("%s", problem.c_str());
  return nullptr;
}

bool check_load_flags() {
  return is_kept(is_between(FLAGS_clients, 1, 1024), "--clients must be between 1 and 1024") &&
         is_kept(is_between(FLAGS_keys, FLAGS_clients, 1u << 28),
                 "--keys must be between 1 for each client and 268435456") &&
         is_kept(is_between(FLAGS_key_bytes, 16, kKeyBytesMax), "--key_bytes must be between 16 and 1024") &&
         is_kept(is_between(FLAGS_value_bytes, 16, kValueBytesMax), "--value_bytes must be between 16 and 1048576") &&
         is_kept(FLAGS_get_share >= 0 && FLAGS_get_share <= 1, "--get_share must be between 0 and 1") &&
         is_kept(FLAGS_patience_seconds > 0 && FLAGS_patience_seconds <= 1e6,
                 "--patience_seconds must be above 0 and at most 1000000");
}

LoadOptions load_options(const ClientOptions& client) {
  LoadOptions options;
  options.client = client;
  options.clients = FLAGS_clients;
  options.keys = FLAGS_keys;
  options.key_bytes = FLAGS_key_bytes;
  options.value_bytes = FLAGS_value_bytes;
  options.get_share = FLAGS_get_share;
  options.loads_all_keys = FLAGS_load_all;
  options.length = seconds(FLAGS_seconds);
  options.operations = FLAGS_operations;
  options.has_echoes = FLAGS_echoes;
  options.read_back_max = FLAGS_read_back;
  return options;
}

void add_parameters(nlohmann::ordered_json& params) {
  params.update({{"clients", FLAGS_clients},
                 {"keys", FLAGS_keys},
                 {"key_bytes", FLAGS_key_bytes},
                 {"value_bytes", FLAGS_value_bytes},
                 {"get_share", FLAGS_get_share},
                 {"lease_reads", FLAGS_lease_reads},
                 {"batch_max", FLAGS_batch_max},
                 {"election_ms", FLAGS_election_ms}});
}

void add_metrics(const LoadReport& load, nlohmann::ordered_json& metrics) {
  const auto add = [&](const char* name, const programs::Latencies& latencies) {
    if (latencies.count() == 0) return;
    metrics[name + std::string("_krps")] = static_cast<double>(latencies.count()) / load.seconds / 1e3;
    metrics[name + std::string("_p50_us")] = static_cast<double>(latencies.quantile_ns(0.5)) / 1e3;
    metrics[name + std::string("_p99_us")] = static_cast<double>(latencies.quantile_ns(0.99)) / 1e3;
  };
  add("put", load.puts);
  add("get", load.gets);
  if (load.echoes.count() > 0) {
    metrics["echo_p50_us"] = static_cast<double>(load.echoes.quantile_ns(0.5)) / 1e3;
    metrics["echo_p99_us"] = static_cast<double>(load.echoes.quantile_ns(0.99)) / 1e3;
    metrics["put_per_echo_p50"] =
        static_cast<double>(load.puts.quantile_ns(0.5)) / static_cast<double>(load.echoes.quantile_ns(0.5));
  }
  metrics["acknowledged"] = load.acknowledged;
  metrics["unknown"] = load.unknown;
  metrics["read_back"] = load.read_back;
  metrics["redirects"] = load.redirects;
}

}  // namespace replicated
