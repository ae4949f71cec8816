// An endpoint over one transport: the event loop. One iteration is: receive, mail, what is due, transmit.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include <tern/rpc.h>

#include "base/alarm.h"
#include "base/check.h"
#include "cc/bypass.h"
#include "rpc/endpoint_core.h"

namespace tern::rpc {

template <class Impl>
class RpcCore final : public EndpointCore {
 public:
  static_assert(transport::TransportImpl<Impl>);

  /// Takes over `arena` and `received`, which may be one.
  RpcCore(nexus::NexusCore& nexus, memory::Arena& arena, memory::Arena& received, const RpcOptions& options,
          std::string_view name, std::unique_ptr<Impl> transport)
      : EndpointCore(nexus, arena, received, options, name, Impl::kRtoNsMin, Impl::kCongestionControl),
        transport_(std::move(transport)) {}
  /// Not from within its own loop: what runs there is on the endpoint's back.
  ~RpcCore() override {
    CHECK(is_in_loop_, ==, false);
    shut_down();
  }

  /// What can fail of the construction.
  Status start() {
    if (options_.credit_limit > session::kCreditsMax) return {Code::kMisuse, "RpcOptions::credit_limit is 0 to 128"};
    path_buffer_ = arena_.alloc(transport_->payload_bytes_max());
    if (path_buffer_ == nullptr) return {Code::kNoMemory, "no memory for one packet of message memory"};
    std::memset(path_buffer_->data(), 0, path_buffer_->length_bytes);
    now_ns_ = transport_->now();
    set_budgets();
    mailbox_->set_wake([transport = transport_.get()] { transport->wake(); });
    return nexus_.add_endpoint(port_);
  }

  Status run(Duration duration);
  Result<size_t> run_once() {
    if (Status status = enter(); !status.ok()) [[unlikely]]
      return status;
    const size_t packets = iterate();
    if (alarm_.is_open()) [[unlikely]]
      arm();
    return packets;
  }
  Result<int> descriptor() {
    if (Status status = enter(); !status.ok()) return status;
    if (!alarm_.is_open()) {
      if (Status status = alarm_.open(transport_->descriptor()); !status.ok()) return status;
      mailbox_->may_sleep.store(true, std::memory_order_seq_cst);
      arm();
    }
    return alarm_.descriptor();
  }
  /// Whoever asks may be about to wait: until the next iteration, what changes the answer wakes the transport.
  Duration next_due() {
    mailbox_->may_sleep.store(true, std::memory_order_seq_cst);
    is_armed_ = true;
    // What a real transport has kept back leaves in an iteration, for which nothing else may give a reason. A virtual
    // one has its own events.
    const bool has_kept_back = !kIsVirtual && transport_ != nullptr && sent_ticket_ > transport_->released();
    if (polled_ns_ != 0 && transport_ != nullptr) rested_ns_ = transport_->now();
    const bool is_now = has_kept_back || has_work() || mailbox_->has_mail();
    const uint64_t due_ns = is_now ? now_ns_ : next_due_ns();
    return due_ns > INT64_MAX ? Duration::max() : Duration(due_ns);
  }
  /// An iteration in pieces, for a driver of virtual time: begin_turn(), then receive() as long as time has passed in
  /// it and packets may have come meanwhile, then end_turn(). Fails as run_once() does.
  Status begin_turn() {
    if (Status status = enter(); !status.ok()) [[unlikely]]
      return status;
    begin_iteration();
    turn_packets_ = 0;
    is_in_turn_ = true;
    is_in_loop_ = false;
    return {};
  }
  bool is_in_turn() const { return is_in_turn_; }
  void receive() {
    is_in_loop_ = true;
    turn_packets_ += transport_->receive(Visitor{*this});
    is_in_loop_ = false;
  }
  void end_turn() {
    is_in_loop_ = true;
    is_in_turn_ = false;
    (void)end_iteration(turn_packets_);
  }
  Status close(Duration drain);
  bool is_closed() const { return transport_ == nullptr; }
  /// In a forked child: message memory is not there, and what the parent's threads were changing is as they left it. So
  /// descriptors are closed, and the rest is given up.
  static void abandon(std::unique_ptr<RpcCore> core) {
    core->transport_.reset();
    (void)core.release();
  }
  bool is_forked() const { return port_.is_forked(); }
  Impl& transport() { return *transport_; }  ///< until it is closed

 private:
  /// Packets of one session in one iteration, so that the others get their turn.
  static constexpr uint32_t kPacketsPerTurn = 128;
  /// Of receive(), before a handler that takes long: more than what all sessions of a busy server have in flight.
  static constexpr uint32_t kDrainCalls = 16;
  static constexpr bool kIsVirtual = requires { Impl::kIsVirtual; };
  static constexpr bool kTellsRoom = requires { requires Impl::kTellsRoom; };
  /// An idle iteration costs a poll; the clock is read in every n-th of them only, if that costs anything.
  static constexpr uint32_t kIdleClockReads = kIsVirtual ? 1 : 8;

  struct PlainSender {
    Impl& transport;
    transport::PeerId peer;
    bool send(const wire::Header& header, const std::byte* data, size_t len, detail::Buffer* buffer) {
      return transport.send(peer, header, data, len, buffer);
    }
  };

  /// For packets as they come, or burst by burst (transport::BurstVisitor).
  struct Visitor {
    RpcCore& core;
    [[gnu::always_inline]] void operator()(const wire::Header& header, const transport::Payload& payload) const {
      core.freshen_clock();
      core.stamp_packet();
      core.on_packet(header, payload, nullptr);
    }
    /// What handlers of the burst before have taken must not count as time in which this one's packets were here.
    void begin_burst() const {
      if constexpr (Impl::kTimesHandlers) core.is_clock_fresh_ = false;
      core.freshen_clock();
    }
    [[gnu::always_inline]] void in_burst(const wire::Header& header, const transport::Payload& payload,
                                         std::byte* room) const {
      core.stamp_packet();
      core.on_packet(header, payload, room);
    }
  };

  Status enter() {
    if (!is_owner()) [[unlikely]] {
      if (is_bound_ || port_.is_orphaned())
        return not_owner("only the thread that first ran the event loop may run it");
      bind_owner();
    }
    if (is_in_loop_) [[unlikely]] {
      return {Code::kMisuse, "the event loop runs already: handlers and continuations must not run it again"};
    }
    if (is_closed_) [[unlikely]]
      return {Code::kSessionReset, "the endpoint is closed"};
    if constexpr (kIsVirtual) {
      if (is_in_turn_) end_turn();  // its owner does not wait for the driver
    }
    is_bound_ = true;
    is_armed_ = false;
    return {};
  }
  size_t iterate() {
    begin_iteration();
    return end_iteration(transport_->receive(Visitor{*this}));
  }
  void begin_iteration();
  size_t end_iteration(size_t packets);
  /// As has_work(), but for what waits until the transport has room again and says so.
  bool must_iterate() const {
    if (!kTellsRoom) return has_work();
    return !clients_to_send_.wait_for_room() || !servers_to_send_.wait_for_room() || has_due();
  }
  void freshen_clock() {
    if (is_clock_fresh_) return;
    now_ns_ = transport_->now();
    is_clock_fresh_ = true;
    if (now_ns_ >= credits_.epoch_end_ns()) [[unlikely]]
      start_credit_epoch();
  }
  /// For benchmarks of what batched timestamps are worth: a clock read for this packet.
  void stamp_packet() {
    if constexpr (!cc::kBypasses.batched_timestamps) now_ns_ = transport_->now();
  }
  void serve_waiting();
  void transmit();
  /// Sends to one peer, several times: what the transport has for that, or its send().
  auto sender_to(transport::PeerId peer) {
    if constexpr (requires { typename Impl::Sender; }) {
      return typename Impl::Sender(*transport_, peer);
    } else {
      return PlainSender{*transport_, peer};
    }
  }
  [[gnu::always_inline]] SendTurn transmit_client(Client* client);
  [[gnu::always_inline]] SendTurn transmit_server(Server* server);
  // What the common case, which these two are, leaves over.
  [[gnu::noinline]] SendTurn transmit_rest(Client* client);
  [[gnu::noinline]] SendTurn transmit_rest(Server* server);
  void send_path_probes();
  void sleep(uint64_t until_ns);
  void arm();
  void shut_down();

  Result<transport::PeerId> connect_peer(const nexus::AddressBytes& address, std::string_view host) override {
    return transport_->connect(std::span(address.bytes).first(address.size), host);
  }
  static constexpr bool kCanPair = requires(Impl & impl) { impl.connect_back(transport::PeerId()); };
  static constexpr Status kNoPairs{Code::kUnavailable, "this transport needs no address and port pairs"};
  bool can_pair() const override { return kCanPair; }
  Result<transport::PeerId> connect_paired(const nexus::AddressBytes& address, std::string_view host) override {
    if constexpr (kCanPair) return transport_->connect_paired(std::span(address.bytes).first(address.size), host);
    return kNoPairs;
  }
  Result<transport::PeerId> connect_back(transport::PeerId like) override {
    if constexpr (kCanPair) return transport_->connect_back(like);
    return kNoPairs;
  }
  transport::PathError take_path_error(transport::PeerId peer) override {
    if constexpr (kCanPair) return transport_->take_path_error(peer);
    return transport::PathError::kNone;
  }
  uint16_t port_of(transport::PeerId peer) const override {
    if constexpr (kCanPair) return transport_->port_of(peer);
    return 0;
  }
  transport::PeerState peer_state(transport::PeerId peer) override { return transport_->peer_state(peer); }
  void disconnect_peer(transport::PeerId peer) override { transport_->disconnect(peer); }
  nexus::AddressBytes local_address() const override {
    nexus::AddressBytes address;
    const auto bytes = transport_->address();
    std::copy(bytes.begin(), bytes.end(), address.bytes.begin());
    address.size = static_cast<uint8_t>(bytes.size());
    return address;
  }
  uint32_t payload_bytes_max() const override { return transport_->payload_bytes_max(); }
  uint32_t payload_bytes_max(transport::PeerId peer) const override { return transport_->payload_bytes_max(peer); }
  uint32_t receive_queue_packets() const override { return transport_->receive_queue_packets(); }
  uint64_t downlink_bytes_per_sec() const override {
    if constexpr (requires { transport_->downlink_bytes_per_sec(); }) return transport_->downlink_bytes_per_sec();
    return 0;
  }
  uint64_t downlink_bytes() const override {
    if constexpr (requires { transport_->downlink_bytes(); }) return transport_->downlink_bytes();
    return 0;
  }
  uint64_t link_bytes_per_sec() const override { return transport_->link_bytes_per_sec(); }
  transport::DelayTarget delay_target() const override { return transport_->delay_target(); }
  uint64_t clock_ns() override { return transport_->now(); }
  void wake_transport() override { transport_->wake(); }

  std::unique_ptr<Impl> transport_;
  uint64_t sent_ticket_ = 0;  ///< of the last packet that the transport has taken
  bool is_clock_fresh_ = false;
  base::Alarm alarm_;        ///< open from the first descriptor() on
  bool is_in_turn_ = false;  ///< between begin_turn() and end_turn()
  size_t turn_packets_ = 0;  ///< received in it
};

template <class Impl>
[[gnu::always_inline]] inline void RpcCore<Impl>::begin_iteration() {
  is_in_loop_ = true;
  is_clock_fresh_ = false;
  // Odd while inside: the peers' question whether this endpoint hangs in a callback is answered by it.
  port_.iteration.store(port_.iteration.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  released_ = transport_->released();
}

/// All but receiving. `packets`: so many have been received.
template <class Impl>
[[gnu::always_inline]] inline size_t RpcCore<Impl>::end_iteration(size_t packets) {
  counters_.packets_received += packets;
  if (packets == 0 && ++idle_iterations_ % kIdleClockReads == 0) freshen_clock();
  if (mailbox_->has_mail()) [[unlikely]] {
    freshen_clock();
    read_mail();
  }
  if (has_due()) [[unlikely]] {
    freshen_clock();
    run_due(packets == 0);
    if (has_waiting_requests()) [[unlikely]]
      serve_waiting();
  }
  if (!clients_to_send_.empty() || !servers_to_send_.empty() || !path_probes_.empty()) {
    // What handlers have taken is told as hold time, or it would pass for the network's.
    if (Impl::kTimesHandlers && packets != 0) is_clock_fresh_ = false;
    freshen_clock();
    transmit();
  } else if (sent_ticket_ > released_) [[unlikely]] {
    transport_->flush();  // what it has kept back may leave now
  }
  if (has_dead()) [[unlikely]]
    free_dead();
  port_.iteration.store(port_.iteration.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  is_in_loop_ = false;
  return packets;
}

/// Before a handler that takes long: whatever has come is looked at, cancels above all, and what is to leave leaves.
template <class Impl>
void RpcCore<Impl>::serve_waiting() {
  for (uint32_t i = 0; i < kDrainCalls; i++) {
    is_clock_fresh_ = false;
    const size_t packets = transport_->receive(Visitor{*this});
    counters_.packets_received += packets;
    if (packets == 0) break;
  }
  is_clock_fresh_ = false;
  freshen_clock();
  note_poll(now_ns_);
  if (!clients_to_send_.empty() || !servers_to_send_.empty() || !path_probes_.empty()) transmit();
  run_waiting_request();
  is_clock_fresh_ = false;
}

template <class Impl>
void RpcCore<Impl>::transmit() {
  if (!path_probes_.empty()) [[unlikely]]
    send_path_probes();
  servers_to_send_.take_turns([this](Server * server) __attribute__((always_inline)) {
    const SendTurn turn = server->is_dead ? SendTurn::kDone : transmit_server(server);
    if (turn == SendTurn::kDone) [[likely]]
      server->is_listed_to_send = false;
    return turn;
  });
  if (!clients_to_send_.empty()) {
    clients_to_send_.take_turns([this](Client * client) __attribute__((always_inline)) {
      const SendTurn turn = client->is_dead ? SendTurn::kDone : transmit_client(client);
      if (turn == SendTurn::kDone) [[likely]]
        client->is_listed_to_send = false;
      return turn;
    });
    // What was sent now may want a look when its answer is late.
    at_latest(now_ns_ + rto_ns_min_);
  }
  sent_ticket_ = transport_->ticket();
  transport_->flush();
}

template <class Impl>
inline SendTurn RpcCore<Impl>::transmit_client(Client* client) {
  stamp_packet();
  {
    auto sender = sender_to(client->peer);
    counters_.packets_sent += client->session.transmit_short(
        now_ns_,
        [&](const wire::Header& header, const std::byte* payload, uint32_t bytes, detail::Buffer* buffer)
            __attribute__((always_inline)) { return sender.send(header, payload, bytes, buffer); },
        [this]() __attribute__((always_inline)) { return transport_->ticket(); });
  }
  if (!client->session.wants_to_send()) [[likely]]
    return SendTurn::kDone;
  return transmit_rest(client);
}

template <class Impl>
SendTurn RpcCore<Impl>::transmit_rest(Client* client) {
  auto& session = client->session;
  using Turn = session::ClientSession::Turn;
  const auto send = [this, client](const wire::Header& header, const std::byte* payload, uint32_t bytes,
                                   detail::Buffer* buffer) {
    if (payload == nullptr && bytes != 0) {
      payload = path_buffer_->data();
      buffer = path_buffer_;
    }
    return transport_->send(client->peer, header, payload, bytes, buffer);
  };
  Turn turn;
  uint32_t packets = 0;
  do {
    turn = session.transmit(
        now_ns_, send, [this] { return transport_->ticket(); }, packets);
    counters_.retransmissions += turn == Turn::kSentAgain;
    counters_.probes += turn == Turn::kAsked;
  } while (turn >= Turn::kSent && packets < kPacketsPerTurn);
  counters_.packets_sent += packets;
  if (session.packets_in_flight() != 0) start_ticking(client);
  // What is left waits for an acknowledgement or for room to receive; either puts the session on the list again.
  if (turn == Turn::kNothing) return SendTurn::kDone;
  if (turn == Turn::kRefused) {
    counters_.transport_full++;
    if (!transport_is_dead(client->peer)) return SendTurn::kRefused;
    on_peer_lost(client);
    return SendTurn::kDone;
  }
  // Without memory to depart later it is asked again and again.
  return turn == Turn::kLater && depart_later(client) ? SendTurn::kDone : SendTurn::kMore;
}

template <class Impl>
inline SendTurn RpcCore<Impl>::transmit_server(Server* server) {
  {
    auto sender = sender_to(server->peer);
    counters_.packets_sent += server->session.transmit_first(
        now_ns_, credits_.limit(),
        [&](const wire::Header& header, const std::byte* payload, uint32_t bytes, detail::Buffer* buffer)
            __attribute__((always_inline)) { return sender.send(header, payload, bytes, buffer); },
        [this]() __attribute__((always_inline)) { return transport_->ticket(); });
  }
  if (!server->session.wants_to_send()) [[likely]]
    return SendTurn::kDone;
  return transmit_rest(server);
}

template <class Impl>
SendTurn RpcCore<Impl>::transmit_rest(Server* server) {
  auto& session = server->session;
  using Turn = session::ServerSession::Turn;
  const auto send = [this, server](const wire::Header& header, const std::byte* payload, uint32_t bytes,
                                   detail::Buffer* buffer) {
    if (payload == nullptr && bytes != 0) {
      payload = path_buffer_->data();
      buffer = path_buffer_;
    }
    return transport_->send(server->peer, header, payload, bytes, buffer);
  };
  Turn turn;
  uint32_t packets = 0;
  do {
    turn = session.transmit(
        now_ns_, credits_.limit(), send, [this] { return transport_->ticket(); }, packets);
  } while (turn == Turn::kSent && packets < kPacketsPerTurn);
  if (session.owes_pair_reply()) {  // a loss, if it is refused
    const wire::Header reply = session.pair_reply(credits_.limit());
    packets += transport_->send(server->pair_peer, reply, nullptr, 0, nullptr) ? 1 : 0;
  }
  counters_.packets_sent += packets;
  if (turn == Turn::kNothing) return SendTurn::kDone;
  if (turn == Turn::kSent) return session.wants_to_send() ? SendTurn::kMore : SendTurn::kDone;
  counters_.transport_full++;
  return transport_is_dead(server->peer) ? SendTurn::kDone : SendTurn::kRefused;
}

template <class Impl>
void RpcCore<Impl>::send_path_probes() {
  for (Client* client : path_probes_) {
    client->is_in_path_probes = false;
    auto& session = client->session;
    const bool is_pair_probe = std::exchange(client->is_pair_probe_due, false);
    const bool is_probing = session.state() == session::ClientSession::State::kProbing && session.may_probe_path();
    if (client->is_dead || !(is_probing || is_pair_probe)) continue;
    const auto probe = is_probing ? session.path_probe(now_ns_) : session.pair_probe();
    if (transport_->send(client->peer, probe.header, path_buffer_->data(), probe.payload_bytes, path_buffer_)) {
      counters_.packets_sent++;
    }
  }
  path_probes_.clear();
}

template <class Impl>
Status RpcCore<Impl>::run(Duration duration) {
  if (Status status = enter(); !status.ok()) return status;
  const uint64_t start_ns = transport_->now();
  const uint64_t until_ns = duration == Duration::max()
                                ? UINT64_MAX
                                : start_ns + static_cast<uint64_t>(std::max<int64_t>(duration.count(), 0));
  const auto spin_ns = static_cast<uint64_t>(std::max<int64_t>(options_.spin.count(), 0));
  uint64_t worked_ns = start_ns;
  while (!stop_.load(std::memory_order_relaxed)) {
    const size_t packets = iterate();
    if (packets != 0) worked_ns = now_ns_;
    if (!is_clock_fresh_) continue;
    if (now_ns_ >= until_ns) break;
    if (options_.wait == Wait::kPoll || packets != 0) continue;
    if (options_.wait == Wait::kBlock || now_ns_ - worked_ns >= spin_ns) sleep(until_ns);
  }
  stop_.store(false, std::memory_order_relaxed);
  return {};
}

/// Blocks until there is something to do, `until_ns` at the latest.
template <class Impl>
void RpcCore<Impl>::sleep(uint64_t until_ns) {
  if (must_iterate()) return;
  mailbox_->may_sleep.store(true, std::memory_order_seq_cst);
  if (transport_->prepare_wait() && !mailbox_->has_mail() && !stop_.load(std::memory_order_seq_cst)) {
    transport_->wait(std::min(until_ns, next_due_ns()));
  }
  transport_->end_wait();
  idle_iterations_ = kIdleClockReads - 1;  // the next iteration reads the clock, for its time may have come
  if (!alarm_.is_open()) mailbox_->may_sleep.store(false, std::memory_order_relaxed);
}

/// Leaves the descriptor such that it becomes readable when there is something to do.
template <class Impl>
void RpcCore<Impl>::arm() {
  if (polled_ns_ != 0) rested_ns_ = transport_->now();
  transport_->end_wait();
  const bool may_wait = !must_iterate() && !mailbox_->has_mail() && transport_->prepare_wait() && !mailbox_->has_mail();
  alarm_.set(may_wait ? next_due_ns() : 0);
  is_armed_ = true;
}

template <class Impl>
Status RpcCore<Impl>::close(Duration drain) {
  if (Status status = enter(); !status.ok()) return status;
  start_closing();
  const uint64_t until_ns = transport_->now() + static_cast<uint64_t>(std::max<int64_t>(drain.count(), 0));
  while (has_unfinished_work() && transport_->now() < until_ns) iterate();
  shut_down();
  return {};
}

/// Ends what is left. The transport lets go of all message memory when it dies; then the last continuations run.
template <class Impl>
void RpcCore<Impl>::shut_down() {
  if (transport_ == nullptr) return;
  is_in_loop_ = true;
  is_armed_ = false;  // nobody waits for it any more
  close_all();
  nexus_.remove_endpoint(port_);
  clients_to_send_.clear();
  servers_to_send_.clear();
  path_probes_.clear();
  mailbox_->set_wake(nullptr);
  wait_for_wakers();
  transport_.reset();
  released_ = UINT64_MAX;
  finish_all();
  if (path_buffer_ != nullptr) detail::release_buffer(std::exchange(path_buffer_, nullptr));
  is_in_loop_ = false;
}

}  // namespace tern::rpc
