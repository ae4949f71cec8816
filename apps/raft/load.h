// A load for a cluster, and a check of all values that it reads. Each client puts and gets its own keys, and each value
// contains the number of its PUT. The endpoint's thread owns it. It does not depend on the transport.
//   kLoading -> kRunning -> kReadingBack -> kDone; each client changes its stage independently
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tern/endpoint.h>
#include <tern/environment.h>

#include "../common/latencies.h"
#include "client.h"

namespace replicated {

struct LoadOptions {
  ClientOptions client;
  size_t clients = 1;
  uint64_t keys = 1'000'000;
  size_t key_bytes = 16;        ///< at least 16
  size_t value_bytes = 64;      ///< at least 16
  double get_share = 0;         ///< share of operations
  bool loads_all_keys = false;  ///< puts all keys before kRunning
  tern::Duration length = std::chrono::seconds(2);
  uint64_t operations = 0;        ///< total; 0: no limit, the load ends after `length`
  bool has_echoes = false;        ///< the first client sends an RPC without replication after each of its operations
  uint64_t read_back_max = 1000;  ///< maximum number of keys that each client reads again at the end, among those that
                                  ///< it has put
};

struct LoadReport {
  programs::Latencies puts, gets, echoes;  ///< of kRunning
  double seconds = 0;                      ///< length of kRunning
  uint64_t acknowledged = 0;               ///< total of PUTs
  uint64_t unknown = 0;                    ///< operations of which it is unknown whether they were executed
  uint64_t read_back = 0;                  ///< values that were read back at the end
  uint64_t redirects = 0, attempts = 0;
};

class Load {
 public:
  /// All arguments must outlive the endpoint, and so must this object.
  Load(tern::Endpoint& endpoint, tern::Environment& environment, LoadOptions options);
  ~Load();
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  void begin();
  bool is_done() const { return done_ == workers_.size() || !problem_.empty(); }
  /// After this call no more operations begin, except those that read back.
  void stop() { is_stopped_ = true; }
  bool is_running() const { return running_ > 0; }
  uint64_t acknowledged() const { return report_.acknowledged; }
  /// The URI of the leader, as far as the first client knows.
  const std::string& leader() const;
  /// The error message: an acknowledged PUT was lost, or no operation is possible. Empty: no error.
  const std::string& problem() const { return problem_; }
  LoadReport report() const;

 private:
  struct Worker;
  void next(Worker& worker);
  void run(Worker& worker);
  void put(Worker& worker, uint64_t key);
  void get(Worker& worker, uint64_t key);
  void echo(Worker& worker);
  void check(Worker& worker, uint64_t key, const Reply& reply);
  void fail(std::string problem);
  uint64_t random(uint64_t below) { return environment_.random() % below; }
  uint64_t own_keys(const Worker& worker) const;

  tern::Endpoint& endpoint_;
  tern::Environment& environment_;
  const LoadOptions options_;
  std::vector<std::unique_ptr<Worker>> workers_;
  size_t done_ = 0, running_ = 0;
  bool is_stopped_ = false;
  uint64_t operations_ = 0;
  tern::Duration run_begun_{}, run_ended_{};
  LoadReport report_;
  std::string problem_;
};

}  // namespace replicated
