// A load for a cluster, and a check of all that it reads: clients that put and get keys of their own, each with the
// number of its last PUT in the value. Owned by its endpoint's thread. Does not know its transport.
//   kLoading -> kRunning -> kReadingBack -> kDone; each client goes its own way
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
  size_t key_bytes = 16;        ///< 16 at least
  size_t value_bytes = 64;      ///< 16 at least
  double get_share = 0;         ///< of operations
  bool loads_all_keys = false;  ///< before it runs
  tern::Duration length = std::chrono::seconds(2);
  uint64_t operations = 0;        ///< in all; 0: as many as there is time for
  bool has_echoes = false;        ///< the first client sends an RPC without replication after each of its operations
  uint64_t read_back_max = 1000;  ///< keys that each client reads once more in the end, of those that it has put
};

struct LoadReport {
  programs::Latencies puts, gets, echoes;  ///< of kRunning
  double seconds = 0;                      ///< of kRunning
  uint64_t acknowledged = 0;               ///< PUTs, in all
  uint64_t unknown = 0;                    ///< operations of which it is not known whether they were executed
  uint64_t read_back = 0;                  ///< values that were read in the end
  uint64_t redirects = 0, attempts = 0;
};

class Load {
 public:
  /// All arguments outlive the endpoint, and this outlives it too.
  Load(tern::Endpoint& endpoint, tern::Environment& environment, LoadOptions options);
  ~Load();
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  void begin();
  bool is_done() const { return done_ == workers_.size() || !problem_.empty(); }
  /// No more operations begin but those that read back.
  void stop() { is_stopped_ = true; }
  bool is_running() const { return running_ > 0; }
  uint64_t acknowledged() const { return report_.acknowledged; }
  /// The URI of the leader, as far as the first client knows.
  const std::string& leader() const;
  /// What is wrong: something acknowledged was lost, or nothing can be done. Empty: nothing.
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
