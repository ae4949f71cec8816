// tern_log_*(), and the sink that calls a function of C.
#include "c/log.h"

#include <array>
#include <string_view>

#include "c/convert.h"

namespace tern::c {
namespace {

// The first, a middle and the last value of each enumeration, to show that both have the same order.
static_assert(static_cast<int>(LogKind::kNexusCreated) == TERN_LOG_NEXUS_CREATED);
static_assert(static_cast<int>(LogKind::kPeerRestarted) == TERN_LOG_PEER_RESTARTED);
static_assert(static_cast<int>(LogKind::kEndpointClosed) == TERN_LOG_ENDPOINT_CLOSED);
static_assert(static_cast<int>(LogKind::kSessionLost) == TERN_LOG_SESSION_LOST);
static_assert(static_cast<int>(LogKind::kSessionReconnecting) == TERN_LOG_SESSION_RECONNECTING);
static_assert(static_cast<int>(LogKind::kPathMoved) == TERN_LOG_PATH_MOVED);
static_assert(static_cast<int>(LogKind::kTransportFailed) == TERN_LOG_TRANSPORT_FAILED);
static_assert(static_cast<int>(LogKind::kTraceMissing) == TERN_LOG_TRACE_MISSING);
static_assert(static_cast<int>(LogSeverity::kInfo) == TERN_LOG_INFO);
static_assert(static_cast<int>(LogSeverity::kWarning) == TERN_LOG_WARNING);
static_assert(static_cast<int>(LogSeverity::kError) == TERN_LOG_ERROR);

/// A text of an event with a zero byte at its end. The longest is "[IPv6 address%scope]:PORT".
class Text {
 public:
  explicit Text(std::string_view text) { text.copy(bytes_.data(), bytes_.size() - 1); }
  const char* data() const { return bytes_.data(); }

 private:
  std::array<char, 80> bytes_{};
};

void tell(tern_log_listener function, void* context, const LogEvent& event) {
  const Text nexus(event.nexus);
  const Text transport(event.transport);
  const Text peer(event.peer);
  tern_log_event told = {};
  told.kind = static_cast<int32_t>(event.kind);
  told.severity = static_cast<int32_t>(event.severity);
  told.time_ns = event.time.count();
  told.nexus = nexus.data();
  told.endpoint = event.endpoint ? *event.endpoint : -1;
  told.is_client = event.is_client ? 1 : 0;
  told.transport = transport.data();
  told.session = {event.session.name};
  told.peer = peer.data();
  told.status = to_c(event.status);
  told.pause_ns = event.pause.count();
  told.packet_bytes = event.packet_bytes;
  told.count = event.count;
  told.left_out = event.left_out;
  function(context, &told);
}

}  // namespace

std::shared_ptr<LogSink> make_log_sink(tern_log_listener function, void* context) {
  return log_to([function, context](const LogEvent& event) { tell(function, context, event); });
}

}  // namespace tern::c

const char* tern_log_kind_name(int32_t kind) noexcept { return tern::c::words_of<tern::LogKind>(kind); }

const char* tern_log_severity_name(int32_t severity) noexcept { return tern::c::words_of<tern::LogSeverity>(severity); }
