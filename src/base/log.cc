// The texts of log events.

#include <tern/log.h>

#include <cstdio>

namespace tern {

std::string_view to_string(LogKind kind) {
  switch (kind) {
    case LogKind::kNexusCreated:
      return "nexus_created";
    case LogKind::kNexusClosed:
      return "nexus_closed";
    case LogKind::kPageMissing:
      return "page_missing";
    case LogKind::kTraceMissing:
      return "trace_missing";
    case LogKind::kPeerDead:
      return "peer_dead";
    case LogKind::kPeerRestarted:
      return "peer_restarted";
    case LogKind::kEndpointCreated:
      return "endpoint_created";
    case LogKind::kEndpointClosed:
      return "endpoint_closed";
    case LogKind::kSessionOpened:
      return "session_opened";
    case LogKind::kSessionRefused:
      return "session_refused";
    case LogKind::kSessionFailed:
      return "session_failed";
    case LogKind::kSessionLost:
      return "session_lost";
    case LogKind::kSessionClosed:
      return "session_closed";
    case LogKind::kSessionReconnecting:
      return "session_reconnecting";
    case LogKind::kPathTooSmall:
      return "path_too_small";
    case LogKind::kPathPaired:
      return "path_paired";
    case LogKind::kPathMoved:
      return "path_moved";
    case LogKind::kTransportFault:
      return "transport_fault";
    case LogKind::kTransportFailed:
      return "transport_failed";
  }
  return "unknown";
}

std::string_view to_string(LogSeverity severity) {
  switch (severity) {
    case LogSeverity::kInfo:
      return "info";
    case LogSeverity::kWarning:
      return "warning";
    case LogSeverity::kError:
      return "error";
  }
  return "unknown";
}

LogSeverity severity_of(LogKind kind) {
  switch (kind) {
    case LogKind::kNexusCreated:
    case LogKind::kNexusClosed:
    case LogKind::kEndpointCreated:
    case LogKind::kEndpointClosed:
    case LogKind::kSessionOpened:
    case LogKind::kSessionClosed:
    case LogKind::kPathPaired:
    case LogKind::kPathMoved:
      return LogSeverity::kInfo;
    case LogKind::kTransportFailed:
      return LogSeverity::kError;
    default:
      return LogSeverity::kWarning;
  }
}

std::string to_string(const LogEvent& event) {
  std::string text(to_string(event.severity));
  text += ": ";
  if (event.endpoint) {
    text += "endpoint " + std::to_string(*event.endpoint) + " (";
    text.append(event.transport).append(") of ");
  }
  text.append(event.nexus).append(": ");
  if (event.session != Session{}) {
    char name[32];
    std::snprintf(name, sizeof name, "%llx", static_cast<unsigned long long>(event.session.name));
    text.append(event.is_client ? "session " : "client's session ").append(name).append(": ");
  }
  text += to_string(event.kind);
  if (!event.peer.empty()) text.append(", peer ").append(event.peer);
  if (event.packet_bytes != 0) text += ", packets of " + std::to_string(event.packet_bytes) + " bytes";
  if (event.count != 0) text += ", count " + std::to_string(event.count);
  if (event.kind == LogKind::kSessionReconnecting) {
    text += ", next attempt in " + std::to_string(event.pause / std::chrono::milliseconds(1)) + " ms";
  }
  if (!event.status.ok()) text.append(": ").append(event.status.message());
  if (event.left_out != 0) text += " (" + std::to_string(event.left_out) + " more were left out)";
  return text;
}

}  // namespace tern
