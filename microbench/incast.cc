// incast: --degree flows of large requests to one victim, one request at a time in each flow, in a simulated cluster
// (paper section 6.5, Table 5). With --background, every other host also exchanges medium-sized RPCs with random peers.
// With --scenario=join one more flow starts during the incast; with --scenario=leave all flows but one stop.
// One thread, virtual time. Over another --transport it runs between programs (common/incast_hosts.h), with --launcher
// between many processes (common/incast_ranks.h).
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/cluster.h"
#include "common/flow_meter.h"
#include "common/incast_hosts.h"
#include "common/incast_ranks.h"
#include "common/ranks.h"

DEFINE_uint64(degree, 100, "flows towards the victim, between programs 8 by default; 0 (sim): the background alone");
DEFINE_string(scenario, "steady",
              "sim: steady; join: one more flow starts; leave: all but one stop. Both after --seconds");
DEFINE_bool(background, false,
            "sim and --launcher: all hosts but the victim exchange --background_size RPCs with random peers");
DEFINE_uint64(hosts, 0, "sim: hosts of the cluster, at most 200; 0: as many as needed, but at least 101");
DEFINE_uint64(size, 8 << 20, "bytes of a request of a flow");
DEFINE_uint64(background_size, 64 << 10,
              "sim and --launcher: bytes of a request and of its response in the background");
DEFINE_uint64(
    credits, 0,
    "maximum number of packets of a flow in flight, 1 to 2048; 0: the victim's endpoint decides. A request has "
    "at most 512 KiB in flight, 547 packets of 1024-byte frames, whatever the credits");

namespace {

using programs::Cluster;
using programs::FlowMeter;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using tern::Duration;
using tern::microbench::Percentiles;

constexpr uint32_t kVictim = 0;
constexpr uint32_t kHostsMax = 200;  ///< hosts of the paper's cluster, Topology::cx4()
constexpr uint32_t kHostsMin = 101;
constexpr uint16_t kVictimEndpoint = 0;
constexpr uint16_t kTalkerEndpoint = 1;
constexpr uint16_t kFirstSenderEndpoint = 2;
enum RequestType : uint16_t { kPut = 1, kExchange };

constexpr Duration kWarmUp = milliseconds(10);
/// Flows begin within this time, at random, because hosts that all begin at one moment stay in step forever.
constexpr Duration kStartSpread = microseconds(20);
constexpr Duration kFairnessWindow = milliseconds(10);
/// After a flow has come or gone: how long it is observed, and the length of the windows in which a rate counts as
/// reached.
constexpr Duration kAftermath = milliseconds(20);
constexpr Duration kRateWindow = microseconds(200);
constexpr double kReached = 0.9;

/// A flow: one session with the victim, and one request at a time. The next request follows at once.
class Sender {
 public:
  Sender(Cluster& cluster, tern::Endpoint& endpoint) : cluster_(cluster), endpoint_(endpoint) {}

  tern::Status open(const std::string& victim) {
    auto session = endpoint_.create_session(victim, {.window = 1});
    if (!session.ok()) return session.status();
    session_ = *session;
    request_ = endpoint_.alloc_msgbuf(FLAGS_size);
    response_ = endpoint_.alloc_msgbuf(sizeof(uint64_t));
    if (!request_ || !response_)
      return {tern::Code::kNoMemory, "there is no memory for messages; try a smaller --size"};
    map_pages(request_.bytes());
    return {};
  }
  bool is_open() const { return endpoint_.is_open(session_); }
  tern::Status start() {
    return endpoint_.post([this] { send(); });
  }
  /// Stops the flow, and cancels the request in flight.
  tern::Status stop() {
    return endpoint_.post([this] {
      has_stopped_ = true;
      (void)endpoint_.cancel(call_);  // if the answer has just arrived, the call ends with it
    });
  }

 private:
  /// Maps the pages of a message that has never been written, which contain zeros, all at once, because that takes less
  /// time than a fault for each. Without success (before Linux 5.14) each page is mapped when it is read.
  static void map_pages(std::span<std::byte> message) {
    constexpr uintptr_t kPageBytes = 4096;
    constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, which old headers do not have
    const auto begin = reinterpret_cast<uintptr_t>(message.data()) / kPageBytes * kPageBytes;
    const auto end = reinterpret_cast<uintptr_t>(message.data()) + message.size();
    (void)madvise(reinterpret_cast<void*>(begin), end - begin, kPopulateRead);
  }
  /// Sends the next message. The rest of its buffer contains zeros, as the system has allocated it.
  void send() {
    programs::number_message(request_.bytes(), ++number_);
    auto call = endpoint_.enqueue_request(session_, kPut, std::move(request_), std::move(response_),
                                          [this](tern::Completion& done) { on_done(done); });
    if (!call.ok()) return cluster_.fail("a request to the victim was refused", call.status());
    call_ = *call;
  }
  void on_done(tern::Completion& done) {
    request_ = std::move(done.request);
    response_ = std::move(done.response);
    if (has_stopped_) return;
    if (!done.status.ok()) return cluster_.fail("a request to the victim", done.status);
    send();
  }

  Cluster& cluster_;
  tern::Endpoint& endpoint_;
  tern::Session session_;
  tern::CallId call_;
  tern::MsgBuf request_, response_;
  uint64_t number_ = 0;
  bool has_stopped_ = false;
};

/// The background traffic of one host: RPCs with random other hosts, one at a time.
class Talker {
 public:
  Talker(Cluster& cluster, tern::Endpoint& endpoint)
      : cluster_(cluster), endpoint_(endpoint), random_(cluster.simulation().random()) {}

  tern::Status open(const std::vector<std::string>& peers) {
    for (const std::string& peer : peers) {
      auto session = endpoint_.create_session(peer, {.window = 1});
      if (!session.ok()) return session.status();
      sessions_.push_back(*session);
    }
    request_ = endpoint_.alloc_msgbuf(FLAGS_background_size);
    response_ = endpoint_.alloc_msgbuf(FLAGS_background_size);
    if (!request_ || !response_) return {tern::Code::kNoMemory, "there is no memory for messages"};
    return {};
  }
  bool is_open() {
    while (open_ < sessions_.size() && endpoint_.is_open(sessions_[open_])) ++open_;
    return open_ == sessions_.size();
  }
  tern::Status start() {
    return endpoint_.post([this] { send(); });
  }
  /// Latencies of calls that end from now on are recorded.
  void set_recording(Percentiles* latencies_ns) { latencies_ns_ = latencies_ns; }

 private:
  void send() {
    const tern::Session session = sessions_[random_() % sessions_.size()];
    programs::number_request(request_, ++number_);
    began_ = endpoint_.now();
    auto call = endpoint_.enqueue_request(session, kExchange, std::move(request_), std::move(response_),
                                          [this](tern::Completion& done) { on_done(done); });
    if (!call.ok()) cluster_.fail("a request of the background was refused", call.status());
  }
  void on_done(tern::Completion& done) {
    const tern::Status status = programs::check_echo(done, FLAGS_background_size, number_);
    if (!status.ok()) return cluster_.fail("a request of the background", status);
    request_ = std::move(done.request);
    response_ = std::move(done.response);
    if (latencies_ns_ != nullptr) latencies_ns_->add(static_cast<uint64_t>((endpoint_.now() - began_).count()));
    send();
  }

  Cluster& cluster_;
  tern::Endpoint& endpoint_;
  std::mt19937_64 random_;
  std::vector<tern::Session> sessions_;
  size_t open_ = 0;  ///< all sessions before this index are open
  tern::MsgBuf request_, response_;
  uint64_t number_ = 0;
  Duration began_{0};
  Percentiles* latencies_ns_ = nullptr;
};

void take(tern::Request request) { (void)programs::take_message(std::move(request), FLAGS_size); }

/// The number of flows at the end. The flow of --scenario=join has the highest index.
uint32_t senders_wanted() { return static_cast<uint32_t>(FLAGS_degree) + (FLAGS_scenario == "join" ? 1 : 0); }
uint32_t hosts_wanted() {
  if (FLAGS_hosts != 0) return static_cast<uint32_t>(FLAGS_hosts);
  return std::clamp(senders_wanted() + 1, kHostsMin, kHostsMax);
}
/// Clients are spread over the cluster. If there are more clients than hosts, some hosts have one client more than
/// others.
uint32_t host_of_sender(uint32_t sender, uint32_t hosts) {
  const uint32_t clients = hosts - 1;
  const uint32_t in_turn = std::min(senders_wanted(), clients);
  return 1 + static_cast<uint32_t>(uint64_t{sender % in_turn} * clients / in_turn);
}

class Incast {
 public:
  explicit Incast(Cluster& cluster)
      : cluster_(cluster), hosts_(cluster.simulation().hosts()), meter_(kVictim, kPut, hosts_) {}

  tern::Status prepare() {
    if (tern::Status status = add_victim(); !status.ok()) return status;
    std::vector<uint16_t> next_endpoint(hosts_, kFirstSenderEndpoint);
    for (uint32_t i = 0; i < senders_wanted(); ++i) {
      const uint32_t host = host_of_sender(i, hosts_);
      auto endpoint = cluster_.add_endpoint(host, options_of(next_endpoint[host]++));
      if (!endpoint.ok()) return endpoint.status();
      senders_.push_back(std::make_unique<Sender>(cluster_, **endpoint));
      clients_per_host_max_ = std::max<uint32_t>(clients_per_host_max_, next_endpoint[host] - kFirstSenderEndpoint);
      if (auto status = senders_.back()->open(cluster_.uri(kVictim, kVictimEndpoint)); !status.ok()) return status;
    }
    return FLAGS_background ? add_background() : tern::Status();
  }

  /// Returns false if it failed or was interrupted.
  [[nodiscard]] bool run() {
    size_t open_senders = 0, open_talkers = 0;
    const auto are_open = [&] {
      while (open_senders < senders_.size() && senders_[open_senders]->is_open()) ++open_senders;
      while (open_talkers < talkers_.size() && talkers_[open_talkers]->is_open()) ++open_talkers;
      return open_senders == senders_.size() && open_talkers == talkers_.size();
    };
    if (!cluster_.run_until(are_open, std::chrono::seconds(10), "opening the sessions")) return false;

    cluster_.simulation().set_tap([this](const tern::sim::TappedPacket& packet) {
      meter_.on_packet(cluster_.simulation().now() - began_, packet);
    });
    began_ = cluster_.simulation().now();
    for (const auto& talker : talkers_) start_soon(*talker);
    for (size_t i = 0; i < FLAGS_degree; ++i) start_soon(*senders_[i]);
    cluster_.set_phase("warming up");
    if (!cluster_.run_for(kWarmUp)) return false;

    cluster_.set_phase("measuring");
    set_recording(true);
    const Duration length = std::max<int64_t>(programs::virtual_seconds() / FlowMeter::kSlot, 1) * FlowMeter::kSlot;
    measured_to_ = kWarmUp + length;
    if (!cluster_.run_for(length)) return false;
    set_recording(false);

    if (FLAGS_scenario == "steady") return true;
    cluster_.set_phase(FLAGS_scenario.c_str());
    if (FLAGS_scenario == "join") {
      note(senders_.back()->start());
    } else {
      for (size_t i = 1; i < senders_.size(); ++i) note(senders_[i]->stop());
    }
    return cluster_.run_for(kAftermath);
  }

  void add_params(nlohmann::ordered_json& params) const {
    params["degree"] = FLAGS_degree;
    params["scenario"] = FLAGS_scenario;
    params["background"] = FLAGS_background;
    params["clients_per_host_max"] = clients_per_host_max_;
    params["credits"] = FLAGS_credits;
    params["size"] = FLAGS_size;
    if (FLAGS_background) params["background_size"] = FLAGS_background_size;
  }

  void add_metrics(nlohmann::ordered_json& metrics) const {
    if (FLAGS_degree > 0) {
      metrics["total_gbps"] = gbps(meter_.bytes(kWarmUp, measured_to_), measured_to_ - kWarmUp);
      if (meter_.rtt_ns().count() > 0) {
        metrics["p50_rtt_us"] = meter_.rtt_ns().at(0.5) / 1e3;
        metrics["p99_rtt_us"] = meter_.rtt_ns().at(0.99) / 1e3;
        metrics["p999_rtt_us"] = meter_.rtt_ns().at(0.999) / 1e3;
      }
      metrics["rtt_samples"] = meter_.rtt_ns().count();
      add_fairness(metrics);
      if (FLAGS_scenario == "join") add_join(metrics);
      if (FLAGS_scenario == "leave") add_leave(metrics);
    }
    if (FLAGS_background) {
      if (background_ns_.count() > 0) {
        metrics["background_p50_us"] = background_ns_.at(0.5) / 1e3;
        metrics["background_p99_us"] = background_ns_.at(0.99) / 1e3;
      }
      metrics["background_rpcs"] = background_ns_.count();
    }
  }

 private:
  static tern::RpcOptions options_of(uint16_t endpoint_id) {
    tern::RpcOptions options = programs::rpc_options(endpoint_id);
    options.huge_pages = false;  // there are hundreds of endpoints, and each needs little memory
    return options;
  }
  template <class Client>
  void start_soon(Client& client) {
    const auto spread_ns = static_cast<uint64_t>(kStartSpread.count());
    cluster_.simulation().after(Duration(static_cast<int64_t>(cluster_.simulation().random() % spread_ns)),
                                [this, &client] { note(client.start()); });
  }
  void note(tern::Status status) {
    if (!status.ok()) cluster_.fail("a flow could not be started or stopped", status);
  }
  void set_recording(bool on) {
    meter_.set_recording(on);
    for (const auto& talker : talkers_) talker->set_recording(on ? &background_ns_ : nullptr);
  }

  tern::Status add_victim() {
    tern::RpcOptions options = options_of(kVictimEndpoint);
    options.receive_budget_bytes = 2 * senders_wanted() * FLAGS_size + options.receive_budget_bytes;
    options.credit_limit = static_cast<uint32_t>(FLAGS_credits);
    auto victim = cluster_.add_endpoint(kVictim, options);
    if (!victim.ok()) return victim.status();
    return (*victim)->on_request(kPut, take, {.max_request_bytes = FLAGS_size});
  }
  tern::Status add_background() {
    std::vector<std::string> uris;
    for (uint32_t host = 1; host < hosts_; ++host) {
      auto endpoint = cluster_.add_endpoint(host, options_of(kTalkerEndpoint));
      if (!endpoint.ok()) return endpoint.status();
      if (auto status = (*endpoint)->on_request(kExchange, programs::echo); !status.ok()) return status;
      talkers_.push_back(std::make_unique<Talker>(cluster_, **endpoint));
      uris.push_back(cluster_.uri(host, kTalkerEndpoint));
    }
    for (size_t i = 0; i < talkers_.size(); ++i) {
      std::vector<std::string> peers = uris;
      peers.erase(peers.begin() + static_cast<ptrdiff_t>(i));
      if (tern::Status status = talkers_[i]->open(peers); !status.ok()) return status;
    }
    return {};
  }

  static double gbps(uint64_t bytes, Duration time) {
    return static_cast<double>(bytes) * 8 / static_cast<double>(time.count());
  }

  /// Adds the fairness of the worst and of the median window. The flow of --scenario=join begins after all windows.
  void add_fairness(nlohmann::ordered_json& metrics) const {
    std::vector<double> windows;
    Duration from = kWarmUp;
    do {
      const Duration to = std::min(from + kFairnessWindow, measured_to_);
      windows.push_back(meter_.fairness(FLAGS_degree, from, to));
      from = to;
    } while (from + kFairnessWindow <= measured_to_);
    std::sort(windows.begin(), windows.end());
    metrics["jain_fairness"] = windows.front();
    metrics["jain_fairness_p50"] = windows[windows.size() / 2];
  }

  /// Adds the time until the new flow has its share of a window, and the fraction of its share that it has in the first
  /// 2 ms and afterwards.
  void add_join(nlohmann::ordered_json& metrics) const {
    const size_t flow = FLAGS_degree;
    const Duration end = measured_to_ + kAftermath;
    if (meter_.flows() <= flow) return;  // the flow has sent no packet
    const auto share = [&](Duration from, Duration to) {
      const uint64_t all = meter_.bytes(from, to);
      return all == 0 ? 0
                      : static_cast<double>(meter_.bytes(flow, from, to) * meter_.flows()) / static_cast<double>(all);
    };
    const auto time = FlowMeter::time_until(measured_to_, end, kRateWindow,
                                            [&](Duration from, Duration to) { return share(from, to) >= kReached; });
    if (time) metrics["join_ms"] = Cluster::seconds_of(*time) * 1e3;
    metrics["join_share_first_2ms"] = share(measured_to_, measured_to_ + milliseconds(2));
    metrics["join_share_after_2ms"] = share(measured_to_ + milliseconds(2), end);
    add_curve(metrics, flow);
  }
  /// Adds the time until the remaining flow has the whole line.
  void add_leave(nlohmann::ordered_json& metrics) const {
    const Duration end = measured_to_ + kAftermath;
    const size_t flow = meter_.busiest(measured_to_ + kAftermath / 2, end);
    const double line = line_gbps();
    const auto time = FlowMeter::time_until(measured_to_, end, kRateWindow, [&](Duration from, Duration to) {
      return gbps(meter_.bytes(flow, from, to), to - from) >= kReached * line;
    });
    if (time) metrics["leave_ms"] = Cluster::seconds_of(*time) * 1e3;
    metrics["leave_gbps_after_1ms"] =
        gbps(meter_.bytes(flow, measured_to_ + milliseconds(1), end), kAftermath - milliseconds(1));
    metrics["line_gbps"] = line;
    add_curve(metrics, flow);
  }
  /// With --json: adds the flow's rate over the time since the change, for plots.
  void add_curve(nlohmann::ordered_json& metrics, size_t flow) const {
    if (!FLAGS_json) return;
    for (Duration at{-milliseconds(1)}; at < kAftermath; at += kRateWindow) {
      const Duration from = measured_to_ + at;
      metrics["rate_by_ms"].push_back(
          {Cluster::seconds_of(at) * 1e3, gbps(meter_.bytes(flow, from, from + kRateWindow), kRateWindow)});
    }
  }
  /// The maximum rate of request payload on the victim's link.
  double line_gbps() const {
    const auto is_victims = [](const tern::sim::Topology::Link& link) {
      const tern::sim::Node victim{tern::sim::Node::Kind::kHost, kVictim};
      return link.a == victim || link.b == victim;
    };
    const auto& links = cluster_.topology().links();
    const auto link = std::find_if(links.begin(), links.end(), is_victims);
    return programs::payload_gbps(static_cast<double>(link->options.bits_per_sec) / 1e9, FLAGS_frame_bytes);
  }

  Cluster& cluster_;
  const uint32_t hosts_;
  std::vector<std::unique_ptr<Sender>> senders_;
  std::vector<std::unique_ptr<Talker>> talkers_;
  uint32_t clients_per_host_max_ = 0;
  Duration began_{0};        ///< start of the flows
  Duration measured_to_{0};  ///< time since began_
  FlowMeter meter_;
  Percentiles background_ns_;
};

std::optional<programs::Launch> launch;  ///< set with --launcher

/// The defaults are smaller between programs, because a server and its clients need memory for the messages of all
/// flows, and time is real.
void set_defaults_between_programs() {
  if (!programs::is_given("degree")) FLAGS_degree = 8;
  if (!programs::is_given("seconds")) FLAGS_seconds = 2;
}
/// Checks flags that only simulations have. On error it prints a sentence and returns false.
bool check_simulated_flags() {
  if (programs::is_ranked()) return programs::check_simulated_flags({"scenario", "hosts"});
  return programs::check_simulated_flags({"scenario", "background", "background_size", "hosts"});
}
/// Returns an error message of one sentence, or null.
const char* check_ranked_flags() {
  if (FLAGS_flows == 0) FLAGS_flows = 1;
  const uint64_t clients = launch->ranks() - 1;
  if (FLAGS_flows > 1000 / clients) return "--flows makes more than 1000 flows of all clients together";
  if (FLAGS_background && clients < 2) return "--background needs two clients, which is three processes";
  FLAGS_degree = FLAGS_flows * clients;
  return nullptr;
}

/// Checks this program's own flags. On error it prints a sentence and returns false.
bool check_flags() {
  if (!check_simulated_flags() || !programs::check_ranked_flags(launch, {"degree"})) return false;
  const bool is_simulated = programs::is_simulated();
  if (!is_simulated) set_defaults_between_programs();
  const char* problem = launch ? check_ranked_flags() : nullptr;
  if (problem != nullptr) {
    // problem is already set
  } else if (!is_simulated && FLAGS_degree == 0) {
    problem = "--degree=0 works only with --transport=sim, where there is a background";
  } else if (!is_simulated && !launch && FLAGS_flows != 0 && FLAGS_role != "client") {
    problem = "--flows works only with --role=client: the server takes the --degree flows of all clients";
  } else if (!is_simulated && FLAGS_flows > FLAGS_degree) {
    problem = "--flows must be at most --degree, the flows of all clients";
  } else if (is_simulated && programs::is_given("flows")) {
    problem = "--flows has no effect in a simulation, where --degree says how many there are";
  } else if (FLAGS_degree > 1000) {
    problem = "--degree must be at most 1000";
  } else if (FLAGS_scenario != "steady" && FLAGS_scenario != "join" && FLAGS_scenario != "leave") {
    problem = "--scenario is unknown; choose from: steady, join, leave";
  } else if (FLAGS_degree < 2 && FLAGS_scenario != "steady") {
    problem = "--scenario=join and leave need a --degree of 2 or more";
  } else if (FLAGS_degree == 0 && !FLAGS_background) {
    problem = "--degree=0 without --background leaves nothing to measure";
  } else if (FLAGS_hosts != 0 && (FLAGS_hosts < (FLAGS_background ? 3 : 2) || FLAGS_hosts > kHostsMax)) {
    problem = "--hosts must be between 2 (with --background 3) and 200";
  } else if (FLAGS_size < sizeof(uint64_t) || FLAGS_size > (1u << 30)) {
    problem = "--size must be between 8 and 1073741824";
  } else if (FLAGS_background_size > (8u << 20)) {
    problem = "--background_size must be at most 8388608";
  } else if (FLAGS_credits > tern::RpcOptions::kCreditLimitMax) {
    problem = "--credits must be at most 2048";
  } else if (is_simulated && FLAGS_drop != 0) {
    problem = "--drop is for microbench/loss; here queues decide what is lost";
  }
  if (problem != nullptr) programs::fail("%s", problem);
  return problem == nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  programs::set_simulated_defaults("0.1");
  return programs::run_main(
      argc, argv,
      "An incast in a simulated cluster. Example: incast --degree=50 --json\n"
      "total_gbps is request payload; round trips are per packet, from the client's interface and back to it;\n"
      "latencies cover --seconds of virtual time after a warm-up of 10 ms, drops and retransmissions everything.\n"
      "Between programs: incast --transport=udp --role=server --server=HOST:PORT --degree=8, and clients with\n"
      "--role=client and --flows=N, which wait for each other. total_gbps is what arrives from all of them,\n"
      "client_gbps what one sends; latencies are of whole calls. Both sides need the same --degree and --size.\n"
      "With --launcher the first of many processes is the victim, all others are clients; docs/cluster.md",
      check_flags,
      [](int words, char** line, const std::vector<int>& cpus) {
        if (launch) return programs::run_ranked_incast(*launch, cpus);
        return programs::run_incast_between_programs(words, line, cpus);
      },
      [] {
        programs::catch_interrupts();
        return programs::print_experiment<Incast>("incast", tern::sim::Topology::cx4(hosts_wanted()));
      });
}
