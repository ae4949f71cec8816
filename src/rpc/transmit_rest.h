// RpcCore: sending of packets beyond the common case. rpc_core.h includes this file.
#pragma once

namespace tern::rpc {

template <class Impl>
template <class End>
bool RpcCore<Impl>::send_any(const End* end, const wire::Header& header, const std::byte* payload, uint32_t bytes,
                             detail::Buffer* buffer) {
  if (payload == nullptr && bytes != 0) {
    buffer = core_.path_buffer();
    payload = buffer->data();
  }
  if (!transport_->send(end->peer, header, payload, bytes, buffer)) return false;
  if (context().tracer != nullptr) [[unlikely]]
    context().tracer->sent(end, header, bytes);
  return true;
}

template <class Impl>
SendTurn RpcCore<Impl>::transmit_timed(Client* client) {
  transmit_short<true>(client);
  return client->session.wants_to_send() ? transmit_rest(client) : SendTurn::kDone;
}

template <class Impl>
SendTurn RpcCore<Impl>::transmit_rest(Client* client) {
  auto& session = client->session;
  using Turn = session::ClientSession::Turn;
  const auto send = [this, client](const wire::Header& header, const std::byte* payload, uint32_t bytes,
                                   detail::Buffer* buffer) { return send_any(client, header, payload, bytes, buffer); };
  Turn turn;
  uint32_t packets = 0;
  do {
    turn = session.transmit(
        context().now_ns, send, [this] { return transport_->ticket(); }, packets);
    if (context().tracer != nullptr) [[unlikely]]
      context().tracer->turned(client, turn, context().now_ns);
    context().counters.retransmissions += turn == Turn::kSentAgain;
    client->retransmissions += turn == Turn::kSentAgain;
    context().counters.probes += turn == Turn::kAsked;
  } while (turn >= Turn::kSent && packets < kPacketsPerTurn);
  context().counters.packets_sent += packets;
  if (session.credits_in_flight() != 0) {
    core_.client_sessions().start_ticking(client);
    context().agenda.at_latest(session.early_look_ns(context().now_ns));
  }
  // The rest waits for an acknowledgement or for space to receive; either puts the session on the list again.
  if (turn == Turn::kNothing) return SendTurn::kDone;
  if (turn == Turn::kRefused) {
    context().counters.transport_full++;
    if (!adapter_.is_dead(client->peer)) return SendTurn::kRefused;
    core_.client_sessions().on_peer_lost(client);
    return SendTurn::kDone;
  }
  // Without memory for a later departure the session is tried again in each turn.
  return turn == Turn::kLater && core_.client_sessions().depart_later(client) ? SendTurn::kDone : SendTurn::kMore;
}

template <class Impl>
SendTurn RpcCore<Impl>::transmit_rest(Server* server) {
  auto& session = server->session;
  using Turn = session::ServerSession::Turn;
  const auto send = [this, server](const wire::Header& header, const std::byte* payload, uint32_t bytes,
                                   detail::Buffer* buffer) { return send_any(server, header, payload, bytes, buffer); };
  Turn turn;
  uint32_t packets = 0;
  do {
    turn = session.transmit(
        context().now_ns, core_.server_sessions().credit_limit(), send, [this] { return transport_->ticket(); },
        packets);
  } while (turn == Turn::kSent && packets < kPacketsPerTurn);
  if (session.owes_pair_reply()) {  // a refused packet counts as lost
    const wire::Header reply = session.pair_reply(core_.server_sessions().credit_limit());
    packets += transport_->send(server->session.pair_peer(), reply, nullptr, 0, nullptr) ? 1 : 0;
  }
  context().counters.packets_sent += packets;
  if (turn == Turn::kNothing) return SendTurn::kDone;
  if (turn == Turn::kSent) return session.wants_to_send() ? SendTurn::kMore : SendTurn::kDone;
  context().counters.transport_full++;
  return adapter_.is_dead(server->peer) ? SendTurn::kDone : SendTurn::kRefused;
}

template <class Impl>
void RpcCore<Impl>::send_path_probes() {
  core_.client_sessions().send_path_probes([this](Client* client, const wire::Header& header, uint32_t bytes) {
    context().counters.packets_sent += send_any(client, header, nullptr, bytes, nullptr);
  });
}

}  // namespace tern::rpc
