#include "rpc/endpoint_log.h"

namespace tern::rpc {

namespace {

constexpr uint64_t kWatchNs = 1'000'000'000;

constexpr Status kDeviceEvents(Code::kUnavailable,
                               "the transport's device or interface reported events, such as a link that went down or "
                               "came back: look at the kernel's log");
constexpr Status kDeviceResets(Code::kUnavailable,
                               "a queue of the transport's device failed and was reset; its packets are sent again: "
                               "look at the kernel's log");
constexpr Status kSendErrors(Code::kUnavailable,
                             "the system refused packets: look for a firewall, a missing route or a removed device");

}  // namespace

void EndpointLog::tell(LogEvent& event) const {
  event.endpoint = port_.id;
  event.transport = port_.transport.view();
  const void* const owner = owner_.exchange(&kTelling, std::memory_order_relaxed);
  nexus_.log(event);
  // The destruction of the Nexus may have removed the endpoint's owner meanwhile.
  const void* telling = &kTelling;
  owner_.compare_exchange_strong(telling, owner, std::memory_order_relaxed);
}

void EndpointLog::endpoint(LogKind kind, const Status& status) const {
  if (!is_on_) return;
  LogEvent event;
  event.kind = kind;
  event.status = status;
  tell(event);
}

void EndpointLog::session(LogKind kind, Session session, bool is_client, std::string_view peer, const Status& status,
                          const Details& details) const {
  if (!is_on_) return;
  LogEvent event;
  event.kind = kind;
  event.session = session;
  event.is_client = is_client;
  event.peer = peer;
  event.status = status;
  event.pause = details.pause;
  event.packet_bytes = details.packet_bytes;
  tell(event);
}

void EndpointLog::client_turned_away(LogKind kind, Session session, std::string_view peer, const Status& status) {
  if (!is_on_) return;
  const auto now_ns = static_cast<uint64_t>(nexus_.environment().now().count());
  if (!limit_.may_tell(now_ns)) return;
  LogEvent event;
  event.kind = kind;
  event.session = session;
  event.peer = peer;
  event.status = status;
  event.left_out = limit_.take_left_out();
  tell(event);
}

void EndpointLog::watch(const TransportCounters& counters, uint64_t now_ns) {
  if (!is_on_ || now_ns - watched_ns_ < kWatchNs) return;
  const std::array<uint64_t, kFaults> faults = {counters.device_events, counters.device_resets, counters.send_errors};
  if (faults == faults_told_) return;
  watched_ns_ = now_ns;
  constexpr std::array<Status, kFaults> kTexts = {kDeviceEvents, kDeviceResets, kSendErrors};
  for (size_t i = 0; i < kFaults; i++) {
    if (faults[i] == faults_told_[i]) continue;
    LogEvent event;
    event.kind = LogKind::kTransportFault;
    event.status = kTexts[i];
    event.count = faults[i] - faults_told_[i];
    faults_told_[i] = faults[i];
    tell(event);
  }
}

}  // namespace tern::rpc
