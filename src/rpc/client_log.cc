// ClientSessions: events in the log of the Nexus (NexusOptions::log).

#include <string_view>

#include "rpc/client_sessions.h"

namespace tern::rpc {

using session::ClientSession;

void ClientSessions::log_opened(const Client* client) const {
  const Session session{client->public_name()};
  const std::string_view peer = client->run->address;
  if (client->session.is_paired()) context_.log.session(LogKind::kPathPaired, session, true, peer);
  context_.log.session(LogKind::kSessionOpened, session, true, peer);
}

/// Returns the address of the peer's Nexus, or the first address of its host if no address has answered yet.
nexus::AddressText ClientSessions::address_of(const Client* client) {
  if (client->run != nullptr) return client->run->address;
  const bool has_address = client->opening() != nullptr && !client->opening()->nexus_addresses.empty();
  return has_address ? client->opening()->nexus_addresses.front() : nexus::AddressText();
}

void ClientSessions::log_end(const Client* client, std::string_view peer) const {
  LogKind kind = LogKind::kSessionFailed;
  EndpointLog::Details details;
  if (client->is_replaced) {
    kind = LogKind::kSessionReconnecting;
    details.pause = Duration(static_cast<int64_t>(backing_off_.back()->reconnect()->begin_ns - context_.now_ns));
  } else if (client->end_status.code() == Code::kCancelled) {
    kind = LogKind::kSessionClosed;
  } else if (client->session.state() == ClientSession::State::kOpen) {
    kind = LogKind::kSessionLost;
  } else if (client->is_refused) {
    kind = LogKind::kSessionRefused;
  }
  context_.log.session(kind, Session{client->public_name()}, true, peer, client->end_status, details);
}

void ClientSessions::log_narrow_path(const Client* client, const Status& why) const {
  const auto bytes = static_cast<uint32_t>(client->session.payload_bytes_max() + wire::kHeaderBytes);
  context_.log.session(LogKind::kPathTooSmall, Session{client->public_name()}, true, address_of(client), why,
                       {.packet_bytes = bytes});
}

}  // namespace tern::rpc
