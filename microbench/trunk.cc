// trunk: --pairs clients at one switch send large requests over the one cable to a second switch. Each client has its
// own server at the second switch, and sends one request at a time. The first switch buffers --buffer_bytes. The
// servers' credits do not limit the cable; only the congestion controllers do. One thread, virtual time.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/cluster.h"
#include "common/flow_meter.h"
#include "common/numbered_message.h"

DEFINE_uint64(pairs, 8, "number of clients, and of servers");
DEFINE_uint64(buffer_bytes, 50'000, "buffer of the clients' switch");
DEFINE_uint64(delay_ns, 500, "delay of each cable");
DEFINE_double(gbps, 25, "rate of each cable");
DEFINE_uint64(size, 8 << 20, "bytes of a request, at least 8");

namespace {

using programs::Cluster;
using programs::FlowMeter;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using tern::Duration;
using tern::microbench::Percentiles;

constexpr uint16_t kPut = 1;
constexpr Duration kWarmUp = milliseconds(5);
/// Flows begin within this time, at random, because hosts that all begin at one moment stay in step forever.
constexpr Duration kStartSpread = microseconds(20);

/// A flow: one session, and one request at a time. The next request follows at once.
class Sender {
 public:
  Sender(Cluster& cluster, tern::Endpoint& endpoint) : cluster_(cluster), endpoint_(endpoint) {}

  tern::Status open(const std::string& server) {
    const auto listener = [this](const tern::SessionEvent& event) {
      if (!event.status.ok()) cluster_.fail("a session has ended", event.status);
    };
    if (tern::Status status = endpoint_.on_session_event(listener); !status.ok()) return status;
    auto session = endpoint_.create_session(server, {.window = 1});
    if (!session.ok()) return session.status();
    session_ = *session;
    response_ = endpoint_.alloc_msgbuf(sizeof(number_));
    return response_ ? set_size(FLAGS_size) : no_memory();
  }
  bool is_open() const { return endpoint_.is_open(session_); }
  bool is_idle() const { return is_idle_; }
  /// Sends one request of `bytes` bytes.
  tern::Status put_once(size_t bytes) {
    if (tern::Status status = set_size(bytes); !status.ok()) return status;
    is_idle_ = false;
    return endpoint_.post([this] { send(); });
  }
  /// Sends requests of --size from now on.
  tern::Status start() {
    if (tern::Status status = set_size(FLAGS_size); !status.ok()) return status;
    is_idle_ = false;
    has_started_ = true;
    return endpoint_.post([this] { send(); });
  }

 private:
  static tern::Status no_memory() {
    return {tern::Code::kNoMemory, "there is no memory for messages; try a smaller --size"};
  }
  tern::Status set_size(size_t bytes) {
    request_ = endpoint_.alloc_msgbuf(bytes);
    return request_ ? tern::Status() : no_memory();
  }
  void send() {
    programs::number_message(request_.bytes(), ++number_);
    auto call = endpoint_.enqueue_request(session_, kPut, std::move(request_), std::move(response_),
                                          [this](tern::Completion& done) { on_done(done); });
    if (!call.ok()) cluster_.fail("a request was refused", call.status());
  }
  void on_done(tern::Completion& done) {
    is_idle_ = !has_started_;
    if (!done.status.ok()) return cluster_.fail("a request", done.status);
    request_ = std::move(done.request);
    response_ = std::move(done.response);
    if (has_started_) send();
  }

  Cluster& cluster_;
  tern::Endpoint& endpoint_;
  tern::Session session_;
  tern::MsgBuf request_, response_;
  uint64_t number_ = 0;
  bool is_idle_ = true;
  bool has_started_ = false;
};

uint32_t pairs() { return static_cast<uint32_t>(FLAGS_pairs); }

/// An upper bound of the time in which one packet is answered: 20 round trips over the three cables of a path, each of
/// which carries a full frame of every pair.
Duration patience() {
  const double frames_ns = static_cast<double>(FLAGS_pairs * FLAGS_frame_bytes * 8) / FLAGS_gbps;
  const auto round_trip_ns = static_cast<int64_t>(2 * 3 * (frames_ns + static_cast<double>(FLAGS_delay_ns)));
  return milliseconds(100) + 20 * Duration(round_trip_ns);
}

/// Hosts from 0 on are clients, hosts from --pairs on are servers.
tern::sim::Topology topology() {
  const tern::sim::LinkOptions cable{static_cast<uint64_t>(FLAGS_gbps * 1e9),
                                     Duration(static_cast<int64_t>(FLAGS_delay_ns))};
  tern::sim::Topology made;
  const tern::sim::Node left = made.add_switch({.buffer_bytes = FLAGS_buffer_bytes});
  const tern::sim::Node right = made.add_switch();
  made.connect(left, right, cable);
  for (const tern::sim::Node end : {left, right}) {
    for (uint32_t i = 0; i < pairs(); ++i) made.connect(made.add_host(), end, cable);
  }
  return made;
}

class Trunk {
 public:
  explicit Trunk(Cluster& cluster) : cluster_(cluster), meters_(new_meters()) {}

  tern::Status prepare() {
    for (uint32_t i = 0; i < pairs(); ++i) {
      tern::RpcOptions options = options_of();
      options.receive_budget_bytes += 2 * FLAGS_size;
      auto server = cluster_.add_endpoint(pairs() + i, options);
      if (!server.ok()) return server.status();
      const size_t first_bytes = programs::payload_bytes(FLAGS_frame_bytes);  // of put_once()
      const auto take = [first_bytes](tern::Request request) {
        const size_t bytes = request.bytes().size() == first_bytes ? first_bytes : FLAGS_size;
        (void)programs::take_message(std::move(request), bytes);
      };
      const size_t bytes_max = std::max<size_t>(FLAGS_size, first_bytes);
      if (auto status = (*server)->on_request(kPut, take, {.max_request_bytes = bytes_max}); !status.ok()) {
        return status;
      }
      auto client = cluster_.add_endpoint(i, options_of());
      if (!client.ok()) return client.status();
      senders_.push_back(std::make_unique<Sender>(cluster_, **client));
      if (auto status = senders_.back()->open(cluster_.uri(pairs() + i, 0)); !status.ok()) return status;
    }
    return {};
  }

  /// Returns false if it failed or was interrupted.
  [[nodiscard]] bool run() {
    const auto all = [this](bool (Sender::*holds)() const) {
      return std::all_of(senders_.begin(), senders_.end(), [&](const auto& sender) { return (*sender.*holds)(); });
    };
    const auto are_open = [&] { return all(&Sender::is_open); };
    if (!cluster_.run_until(are_open, 100 * patience(), "opening the sessions")) return false;

    cluster_.simulation().set_tap([this](const tern::sim::TappedPacket& packet) {
      if (!packet.has_arrived && packet.from_host < pairs()) ++client_frames_;
      const Duration now = cluster_.simulation().now() - began_;
      for (FlowMeter& meter : meters_) meter.on_packet(now, packet);
    });
    // Sends one full packet alone, to measure the base round trip.
    began_ = cluster_.simulation().now();
    meters_[0].set_recording(true);
    note(senders_[0]->put_once(programs::payload_bytes(FLAGS_frame_bytes)));
    if (!cluster_.run_until([this] { return senders_[0]->is_idle(); }, patience(), "the first request")) {
      return false;
    }
    meters_[0].set_recording(false);
    base_rtt_ns_ = meters_[0].rtt_ns().at(0);

    meters_ = new_meters();
    began_ = cluster_.simulation().now();
    for (const auto& sender : senders_) {
      const auto spread_ns = static_cast<uint64_t>(kStartSpread.count());
      cluster_.simulation().after(Duration(static_cast<int64_t>(cluster_.simulation().random() % spread_ns)),
                                  [this, &sender] { note(sender->start()); });
    }
    cluster_.set_phase("warming up");
    if (!cluster_.run_for(kWarmUp)) return false;

    cluster_.set_phase("measuring");
    for (FlowMeter& meter : meters_) meter.set_recording(true);
    const uint64_t dropped_before = cluster_.simulation().counters().dropped_buffer_full;
    const uint64_t frames_before = client_frames_;
    const Duration length = std::max<int64_t>(programs::virtual_seconds() / FlowMeter::kSlot, 1) * FlowMeter::kSlot;
    measured_to_ = kWarmUp + length;
    if (!cluster_.run_for(length)) return false;
    dropped_ = cluster_.simulation().counters().dropped_buffer_full - dropped_before;
    client_frames_ -= frames_before;
    return true;
  }

  void add_params(nlohmann::ordered_json& params) const {
    params["pairs"] = FLAGS_pairs;
    params["buffer_bytes"] = FLAGS_buffer_bytes;
    params["delay_ns"] = FLAGS_delay_ns;
    params["gbps"] = FLAGS_gbps;
    params["size"] = FLAGS_size;
  }

  void add_metrics(nlohmann::ordered_json& metrics) const {
    Percentiles rtt_ns;
    std::vector<double> bytes;
    uint64_t all_bytes = 0;
    for (const FlowMeter& meter : meters_) {
      rtt_ns.merge(meter.rtt_ns());
      all_bytes += meter.bytes(kWarmUp, measured_to_);
      bytes.push_back(static_cast<double>(meter.bytes(kWarmUp, measured_to_)));
    }
    const double total_gbps =
        static_cast<double>(all_bytes) * 8 / static_cast<double>((measured_to_ - kWarmUp).count());
    metrics["base_rtt_us"] = base_rtt_ns_ / 1e3;
    metrics["total_gbps"] = total_gbps;
    metrics["share_of_line"] = total_gbps / programs::payload_gbps(FLAGS_gbps, FLAGS_frame_bytes);
    if (client_frames_ > 0) metrics["loss"] = static_cast<double>(dropped_) / static_cast<double>(client_frames_);
    metrics["jain_fairness"] = programs::jain_fairness(bytes);
    if (const auto share = smallest_share(milliseconds(20))) metrics["smallest_share_20ms"] = *share;
    if (rtt_ns.count() > 0) {
      metrics["p50_rtt_us"] = rtt_ns.at(0.5) / 1e3;
      metrics["p99_rtt_us"] = rtt_ns.at(0.99) / 1e3;
    }
  }

 private:
  /// One meter for each server.
  std::vector<FlowMeter> new_meters() const {
    std::vector<FlowMeter> meters;
    for (uint32_t i = 0; i < pairs(); ++i) meters.emplace_back(pairs() + i, kPut, cluster_.simulation().hosts());
    return meters;
  }
  static tern::RpcOptions options_of() {
    tern::RpcOptions options = programs::rpc_options(0);
    options.huge_pages = false;
    return options;
  }
  /// The smallest rate of any flow in any window of this length, as a share of the rate that equal flows would have.
  /// The windows begin at intervals of a quarter of their length. nullopt: no window is in the measurement.
  std::optional<double> smallest_share(Duration window) const {
    std::optional<double> smallest;
    for (Duration from = kWarmUp; from + window <= measured_to_; from += window / 4) {
      uint64_t all = 0, least = UINT64_MAX;
      for (const FlowMeter& meter : meters_) {
        const uint64_t bytes = meter.bytes(from, from + window);
        all += bytes;
        least = std::min(least, bytes);
      }
      if (all == 0) continue;
      const double share = static_cast<double>(least) * static_cast<double>(pairs()) / static_cast<double>(all);
      smallest = std::min(smallest.value_or(share), share);
    }
    return smallest;
  }
  void note(tern::Status status) {
    if (!status.ok()) cluster_.fail("a flow could not be started", status);
  }

  Cluster& cluster_;
  std::vector<std::unique_ptr<Sender>> senders_;
  std::vector<FlowMeter> meters_;  ///< by server
  double base_rtt_ns_ = 0;
  Duration began_{0};           ///< start of the flows
  Duration measured_to_{0};     ///< time since began_
  uint64_t client_frames_ = 0;  ///< finally the frames of the measurement
  /// Frames that switches dropped during the measurement. All are of clients: frames of servers wait for the cable, in
  /// the default buffer of the second switch, and not at the first one, whose outputs are as fast as the cable.
  uint64_t dropped_ = 0;
};

/// Checks this program's own flags. On error it prints a sentence and returns false.
bool check_flags() {
  const char* problem = nullptr;
  if (FLAGS_pairs < 1 || FLAGS_pairs > 500) {
    problem = "--pairs must be between 1 and 500";
  } else if (FLAGS_buffer_bytes > UINT32_MAX) {
    problem = "--buffer_bytes must be at most 4294967295";
  } else if (FLAGS_delay_ns > 1'000'000'000) {
    problem = "--delay_ns must be at most 1000000000";
  } else if (!(FLAGS_gbps >= 0.001 && FLAGS_gbps <= 1600)) {
    problem = "--gbps must be between 0.001 and 1600";
  } else if (FLAGS_size < sizeof(uint64_t) || FLAGS_size > (1u << 30)) {
    problem = "--size must be between 8 and 1073741824";
  } else if (FLAGS_drop != 0) {
    problem = "--drop is for microbench/loss; here queues decide what is lost";
  }
  if (problem != nullptr) programs::fail("%s", problem);
  return problem == nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  programs::set_simulated_defaults("0.05");
  const bool is_usable =
      programs::parse_flags(
          argc, argv,
          "Flows that share one cable between two switches, of which the first has little buffer. Example: trunk "
          "--buffer_bytes=30000 --json\n"
          "total_gbps is payload without duplicates, share_of_line its share of the maximum that the "
          "cable carries in frames of\n--frame_bytes; loss is the share of frames that the switches dropped among "
          "those that clients sent. All cover --seconds of virtual time\nafter the first 5 ms; "
          "drops and retransmissions everything",
          programs::Scope::kSimulated) &&
      programs::check_simulated_flags() && check_flags();
  if (!is_usable) return 1;
  programs::catch_interrupts();
  return programs::print_experiment<Trunk>("trunk", topology());
}
