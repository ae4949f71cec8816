// loss: large requests, one at a time, between the paper's pair of hosts, while the network loses packets with
// probability --drop in both directions (paper section 6.4, Table 4). For comparison, a run without loss comes first.
// One thread, virtual time.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/cluster.h"

DEFINE_uint64(size, 8 << 20, "bytes of a request");

namespace {

using programs::Cluster;
using tern::Duration;
using tern::microbench::Percentiles;

constexpr uint32_t kServer = 0;
constexpr uint32_t kClient = 1;
constexpr uint16_t kPut = 1;
constexpr Duration kWarmUp = std::chrono::milliseconds(10);
/// Maximum length of the run without loss, which includes several requests. It may be short because all of its requests
/// take the same time.
Duration lossless_max(const tern::sim::Topology& topology) {
  const auto bits_per_sec = static_cast<double>(topology.links().front().options.bits_per_sec);
  const double request_seconds = static_cast<double>(FLAGS_size) * 8 / bits_per_sec;
  return std::max<Duration>(std::chrono::milliseconds(100), Duration(static_cast<int64_t>(4e9 * request_seconds)));
}

/// Sends one request at a time. The next request follows at once.
class Sender {
 public:
  Sender(Cluster& cluster, tern::Endpoint& endpoint) : cluster_(cluster), endpoint_(endpoint) {}

  tern::Status open(const std::string& server) {
    auto session = endpoint_.create_session(server);
    if (!session.ok()) return session.status();
    session_ = *session;
    request_ = endpoint_.alloc_msgbuf(FLAGS_size);
    response_ = endpoint_.alloc_msgbuf(kAnswerBytes);
    if (!request_ || !response_)
      return {tern::Code::kNoMemory, "there is no memory for messages; try a smaller --size"};
    return {};
  }
  bool is_open() const { return endpoint_.is_open(session_); }
  tern::Status start() {
    return endpoint_.post([this] { send(); });
  }

  /// Calls that end from now on count.
  void begin() {
    is_recording_ = true;
    ended_ = 0;
    calls_ns_.clear();
  }
  /// The bandwidth from the end of the first call to the end of the last one, so that no call counts in part.
  double bandwidth_gbps() const {
    if (ended_ < 2) return 0;
    return static_cast<double>((ended_ - 1) * FLAGS_size) * 8 / static_cast<double>((last_end_ - first_end_).count());
  }
  const Percentiles& calls_ns() const { return calls_ns_; }
  uint64_t ended() const { return ended_; }

 private:
  static constexpr size_t kAnswerBytes = 32;  ///< as in the paper

  void send() {
    ++number_;
    std::memcpy(request_.bytes().data(), &number_, sizeof(number_));
    std::memcpy(request_.bytes().data() + FLAGS_size - sizeof(number_), &number_, sizeof(number_));
    began_ = endpoint_.now();
    auto call = endpoint_.enqueue_request(session_, kPut, std::move(request_), std::move(response_),
                                          [this](tern::Completion& done) { on_done(done); });
    if (!call.ok()) cluster_.fail("a request was refused", call.status());
  }
  void on_done(tern::Completion& done) {
    if (!done.status.ok()) return cluster_.fail("a request", done.status);
    uint64_t answer = 0;
    if (done.response.bytes().size() == kAnswerBytes)
      std::memcpy(&answer, done.response.bytes().data(), sizeof(answer));
    if (answer != number_) {
      return cluster_.fail("a request", {tern::Code::kNoResponse, "the server has answered another one"});
    }
    if (is_recording_) {
      last_end_ = endpoint_.now();
      if (ended_++ == 0) first_end_ = last_end_;
      calls_ns_.add(static_cast<uint64_t>((last_end_ - began_).count()));
    }
    request_ = std::move(done.request);
    response_ = std::move(done.response);
    send();
  }

  Cluster& cluster_;
  tern::Endpoint& endpoint_;
  tern::Session session_;
  tern::MsgBuf request_, response_;
  uint64_t number_ = 0;
  Duration began_{0};
  bool is_recording_ = false;
  uint64_t ended_ = 0;
  Duration first_end_{0}, last_end_{0};
  Percentiles calls_ns_;
};

/// Answers with the number in a complete message, and with 0 for an incomplete one.
void take(tern::Request request) {
  const std::span<const std::byte> message = request.bytes();
  uint64_t first = 0, last = 0;
  if (message.size() == FLAGS_size) {
    std::memcpy(&first, message.data(), sizeof(first));
    std::memcpy(&last, message.data() + message.size() - sizeof(last), sizeof(last));
  }
  auto out = request.response(32);
  if (!out.ok()) return;  // dropped: the client gets kNoResponse
  const uint64_t answer = first == last ? first : 0;
  std::memset(out->data(), 0, out->size());
  std::memcpy(out->data(), &answer, sizeof(answer));
  request.respond();
}

/// Sets the loss on the server's cable only, which each packet crosses once.
tern::Status set_loss(Cluster& cluster, double drop) {
  const tern::sim::Node server{tern::sim::Node::Kind::kHost, kServer};
  for (const tern::sim::Topology::Link& link : cluster.topology().links()) {
    if (link.a != server && link.b != server) continue;
    for (const auto& [from, to] : {std::pair(link.a, link.b), std::pair(link.b, link.a)}) {
      if (auto status = cluster.simulation().set_faults(from, to, {.drop = drop}); !status.ok()) return status;
    }
  }
  return {};
}

/// One client and one server over a network with a fixed probability of loss.
class Loss {
 public:
  Loss(Cluster& cluster, double drop, Duration length) : cluster_(cluster), drop_(drop), length_(length) {}

  tern::Status prepare() {
    tern::RpcOptions options = programs::rpc_options(0);
    options.receive_budget_bytes += 2 * FLAGS_size;
    auto server = cluster_.add_endpoint(kServer, options);
    if (!server.ok()) return server.status();
    if (auto status = (*server)->on_request(kPut, take, {.max_request_bytes = FLAGS_size}); !status.ok()) return status;
    auto client = cluster_.add_endpoint(kClient, programs::rpc_options(0));
    if (!client.ok()) return client.status();
    sender_.emplace(cluster_, **client);
    return sender_->open(cluster_.uri(kServer, 0));
  }

  /// Returns false if it failed or was interrupted.
  [[nodiscard]] bool run() {
    if (!cluster_.run_until([&] { return sender_->is_open(); }, std::chrono::seconds(10), "opening the session")) {
      return false;
    }
    tern::Status status = set_loss(cluster_, drop_);
    if (status.ok()) status = sender_->start();
    if (!status.ok()) cluster_.fail("the requests could not be started", status);
    cluster_.set_phase(drop_ > 0 ? "with loss" : "without loss");
    if (!cluster_.run_for(kWarmUp)) return false;
    sender_->begin();
    if (!cluster_.run_for(length_)) return false;
    if (sender_->ended() < 2) {
      cluster_.fail("fewer than two requests ended during --seconds",
                    {tern::Code::kUnavailable, "there is nothing to report"});
    }
    return cluster_.is_well();
  }

  void add_params(nlohmann::ordered_json& params) const { params.update({{"drop", drop_}, {"size", FLAGS_size}}); }

  void add_metrics(nlohmann::ordered_json& metrics) const {
    metrics[kBandwidth] = sender_->bandwidth_gbps();
    metrics["requests"] = sender_->ended();
    metrics["p50_us"] = sender_->calls_ns().at(0.5) / 1e3;
    metrics["p99_us"] = sender_->calls_ns().at(0.99) / 1e3;
  }

  static constexpr const char* kBandwidth = "bandwidth_gbps";

 private:
  Cluster& cluster_;
  const double drop_;
  const Duration length_;
  std::optional<Sender> sender_;
};

/// Checks this program's own flags. On error it prints a sentence and returns false.
bool check_flags() {
  const char* problem = nullptr;
  if (FLAGS_size < 2 * sizeof(uint64_t) || FLAGS_size > (1u << 30)) {
    problem = "--size must be between 16 and 1073741824";
  }
  if (problem != nullptr) programs::fail("%s", problem);
  return problem == nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  programs::set_simulated_defaults("1");
  const bool is_usable =
      programs::parse_flags(argc, argv,
                            "Large requests over a network that loses packets. Example: loss --drop=1e-3 --json\n"
                            "bandwidth_gbps is request payload; share is that of the same without loss",
                            programs::Scope::kSimulated) &&
      programs::check_simulated_flags() && check_flags();
  if (!is_usable) return 1;
  programs::catch_interrupts();

  int exit_code = 1;
  const tern::sim::Topology topology = tern::sim::Topology::cx5_pair();
  const Duration length = programs::virtual_seconds();
  const bool has_loss = FLAGS_drop > 0;
  auto report = programs::run_experiment<Loss>("loss", topology, exit_code, 0.0,
                                               has_loss ? std::min(length, lossless_max(topology)) : length);
  if (!report) return exit_code;
  if (has_loss) {
    const auto lossless_gbps = report->metrics[Loss::kBandwidth].get<double>();
    report = programs::run_experiment<Loss>("loss", topology, exit_code, FLAGS_drop, length);
    if (!report) return exit_code;
    report->metrics["lossless_gbps"] = lossless_gbps;
    report->metrics["share"] = report->metrics[Loss::kBandwidth].get<double>() / lossless_gbps;
  }
  return programs::print(*report);
}
