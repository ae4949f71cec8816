#include <tern/counters.h>

#include <algorithm>
#include <cctype>
#include <cinttypes>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "views.h"

namespace top {

namespace {

/// The samples of each metric. The format requires a metric's samples together; the metrics are in the order of their
/// first samples.
class Metrics {
 public:
  /// Leaves out a second sample with the same labels: of a damaged page, or of one that a killed process of another
  /// container has left.
  void add_sample(const std::string& name, const char* type, const std::string& help, const std::string& labels,
                  const std::string& value) {
    const auto [found, is_new] = index_.try_emplace(name, metrics_.size());
    if (is_new) metrics_.push_back({name, type, help, {}, {}});
    Metric& metric = metrics_[found->second];
    if (!metric.labels.insert(labels).second) return;
    metric.samples += name + '{' + labels + "} " + value + '\n';
  }
  std::string text() const {
    std::string out;
    for (const Metric& metric : metrics_) {
      out += "# HELP " + metric.name + ' ' + metric.help + "\n# TYPE " + metric.name + ' ' + metric.type + '\n';
      out += metric.samples;
    }
    return out;
  }

 private:
  struct Metric {
    std::string name, type, help;
    std::set<std::string> labels;
    std::string samples;
  };
  std::vector<Metric> metrics_;
  std::map<std::string, size_t> index_;
};

std::string label(const char* name, const std::string& value) {
  std::string out = std::string(name) + "=\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

/// "tern_transport_system_calls_total". A page may contain any name.
std::string metric_of(const std::string& counter, bool is_gauge) {
  std::string name = "tern_";
  for (const char c : counter) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return is_gauge ? name : name + "_total";
}

/// The descriptions of this release's counters, by name.
std::map<std::string, std::string> helps() {
  std::map<std::string, std::string> texts;
  tern::for_each_counter({}, [&](const char* part, const char* name, const char* what, uint64_t) {
    texts[std::string(part) + '.' + name] = what;
  });
  return texts;
}

std::string seconds(tern::Duration duration) {
  std::string text;
  add(text, "%.9f", std::chrono::duration<double>(duration).count());
  return text;
}

void add_session(Metrics& metrics, const std::string& endpoint_labels, const tern::PageSession& session) {
  const tern::SessionInfo& info = session.info;
  std::string name;
  add(name, "%016" PRIx64, session.name);
  const std::string labels = endpoint_labels + ',' + label("session", name) + ',' + label("peer", session.peer) + ',' +
                             label("side", info.is_client ? "client" : "server");
  const auto counter = [&](const char* what, uint64_t value, const char* help) {
    metrics.add_sample(std::string("tern_session_") + what + "_total", "counter", help, labels, std::to_string(value));
  };
  counter("packets_sent", info.packets_sent, "packets of the session that were sent");
  counter("packets_received", info.packets_received, "packets that the session's peer has sent");
  counter("long_bytes_sent", info.long_bytes_sent, "payload sent in messages of more than one packet");
  counter("long_bytes_received", info.long_bytes_received, "payload received in messages of more than one packet");
  if (!info.is_client) return;
  counter("retransmissions", info.retransmissions, "packets of the session that were sent again");
  const auto gauge = [&](const char* what, const std::string& value, const char* help) {
    metrics.add_sample(std::string("tern_session_") + what, "gauge", help, labels, value);
  };
  gauge("credits", std::to_string(info.credits), "credits that packets in flight may hold");
  gauge("packets_in_flight", std::to_string(info.packets_in_flight), "packets that hold a credit");
  if (info.round_trip.count() == 0) return;  // unknown
  gauge("round_trip_seconds", seconds(info.round_trip), "smoothed round trip of packets");
  gauge("round_trip_min_seconds", seconds(info.round_trip_min), "smallest round trip of the last seconds");
}

}  // namespace

std::string as_prometheus(const Reading& reading, size_t sessions) {
  Metrics metrics;
  const std::map<std::string, std::string> help_of = helps();
  // A process that lives for certain comes before others with the same labels.
  std::vector<std::reference_wrapper<const tern::Page>> pages(reading.pages.begin(), reading.pages.end());
  std::stable_partition(pages.begin(), pages.end(),
                        [](const tern::Page& page) { return page.life == tern::PageLife::kAlive; });
  for (const tern::Page& page : pages) {
    const std::string process =
        label("pid", std::to_string(page.pid)) + ',' + label("program", page.program) + ',' + label("uri", page.uri);
    const bool is_up = !page.is_closed && page.life != tern::PageLife::kDead;
    metrics.add_sample("tern_up", "gauge", "1: the process lives; 0: it has ended and left its page", process,
                       is_up ? "1" : "0");
    if (!is_up) continue;  // its counters will never change again
    for (const tern::PageEndpoint& endpoint : page.endpoints) {
      if (endpoint.is_closed) continue;
      const std::string labels =
          process + ',' + label("endpoint", std::to_string(endpoint.id)) + ',' + label("transport", endpoint.transport);
      for (size_t i = 0; i < page.counter_names.size() && i < endpoint.counters.size(); i++) {
        const std::string& name = page.counter_names[i];
        const bool is_gauge = name.ends_with("_max") || name.ends_with("_missing");
        const auto known = help_of.find(name);
        metrics.add_sample(metric_of(name, is_gauge), is_gauge ? "gauge" : "counter",
                           known != help_of.end() ? known->second : name, labels, std::to_string(endpoint.counters[i]));
      }
      metrics.add_sample("tern_client_sessions", "gauge", "sessions that the endpoint has created", labels,
                         std::to_string(endpoint.client_sessions));
      metrics.add_sample("tern_server_sessions", "gauge", "sessions of clients", labels,
                         std::to_string(endpoint.server_sessions));
      for (size_t i = 0; i < endpoint.sessions.size() && i < sessions; i++) {
        add_session(metrics, labels, endpoint.sessions[i]);
      }
    }
  }
  return metrics.text();
}

}  // namespace top
