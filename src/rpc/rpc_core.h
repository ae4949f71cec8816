// An endpoint over one transport: the event loop. One iteration receives packets, reads mail, runs due timers, and
// transmits. Packets go between the transport and the sessions by static calls. Owner thread only.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include <tern/rpc.h>

#include "base/alarm.h"
#include "base/check.h"
#include "base/poller.h"
#include "rpc/cpu_share.h"
#include "rpc/endpoint_core.h"
#include "rpc/fast_path.h"
#include "rpc/spin_limit.h"
#include "rpc/transport_adapter.h"

namespace tern::rpc {

template <class Impl>
class RpcCore final {
 public:
  static_assert(transport::TransportImpl<Impl>);
  static constexpr const transport::Traits& kTraits = Impl::kTraits;

  /// Takes over `arena` and `received`, which may be one arena. start() must follow.
  RpcCore(nexus::NexusCore& nexus, memory::Arena& arena, memory::Arena& received, const RpcOptions& options,
          std::string_view name, std::unique_ptr<Impl> transport)
      : transport_(std::move(transport)),
        adapter_(*transport_),
        core_(adapter_, nexus, arena, received, options, name, kTraits.rto_ns_min, kTraits.congestion_control),
        spin_(options, kTraits.is_virtual) {}
  RpcCore(const RpcCore&) = delete;
  RpcCore& operator=(const RpcCore&) = delete;
  /// Must not run inside a callback of this endpoint's loop.
  ~RpcCore() {
    CHECK(!context().is_in_loop);
    shut_down();
  }

  /// For EndpointCore::try_packet().
  bool try_answer(const Incoming* incoming);
  EndpointCore& endpoint() { return core_; }
  Impl& transport() { return *transport_; }  ///< valid until the endpoint is closed

  /// The part of the construction that can fail.
  Status start() { return core_.start(); }
  Status run(Duration duration);
  Result<size_t> run_once() {
    if (Status status = enter(); !status.ok()) [[unlikely]]
      return status;
    [[maybe_unused]] const auto own_loop = begin_own_loop();
    const size_t packets = iterate();
    if (alarm_.is_open()) [[unlikely]]
      arm();
    if (has_failed()) [[unlikely]]
      return core_.failure();
    return packets;
  }
  Result<int> descriptor() {
    if (Status status = enter(); !status.ok()) return status;
    if (!alarm_.is_open()) {
      if (Status status = alarm_.open(transport_->descriptor()); !status.ok()) return status;
      context().mailbox->may_sleep.store(true, std::memory_order_seq_cst);
    }
    arm();
    return alarm_.descriptor();
  }
  /// Returns the time at which the next iteration must run. The caller may wait for it: until then, any change of this
  /// time wakes the transport.
  Duration next_due() {
    // An iteration must run while a real transport keeps packets back, because only an iteration sends them. A virtual
    // transport sends them by its own events.
    const bool has_kept_back = !kTraits.is_virtual && !is_closed() && sent_ticket_ > transport_->released();
    note_rest();
    if (!kTraits.is_virtual) core_.note_waiting_program();
    return core_.announce_wait(has_kept_back);
  }
  Status close(Duration drain);
  bool is_closed() const { return transport_ == nullptr; }

  // -- For a driver of virtual time: an iteration in pieces --

  /// Begins an iteration. The driver then calls receive(), again as long as time has passed in it and packets may have
  /// come meanwhile, and then end_turn(). Fails as run_once() does.
  Status begin_turn() {
    if (Status status = enter(); !status.ok()) [[unlikely]]
      return status;
    begin_iteration();
    turn_packets_ = 0;
    is_in_turn_ = true;
    context().is_in_loop = false;
    return {};
  }
  bool is_in_turn() const { return is_in_turn_; }
  void receive() {
    context().is_in_loop = true;
    turn_packets_ += receive_packets();
    context().is_in_loop = false;
  }
  void end_turn() {
    context().is_in_loop = true;
    is_in_turn_ = false;
    (void)end_iteration(turn_packets_);
  }
  void stay_in_callback(bool is_inside) { core_.stay_in_callback(is_inside); }
  [[gnu::always_inline]] void prefetch(const wire::Header& header) const { core_.prefetch(header); }

  // -- After a fork() --

  /// Call it in a forked child. The child has no message memory, and the parent's threads may have left state
  /// half-changed. So this closes descriptors and abandons everything else.
  static void abandon(std::unique_ptr<RpcCore> core) {
    core->transport_.reset();
    core->alarm_ = {};
    EndpointContext& context = core->context();
    if (&context.received != &context.arena) context.received.orphan();
    context.arena.orphan();
    (void)core.release();
  }
  bool is_forked() const { return core_.is_forked(); }

 private:
  /// After this many packets of one session in one iteration the other sessions get their turn.
  static constexpr uint32_t kPacketsPerTurn = 128;
  /// Most calls of receive() before a handler that takes long. They can receive more packets than all sessions of a
  /// busy server have in flight.
  static constexpr uint32_t kDrainCalls = 16;
  /// Only every n-th idle iteration reads the clock, because an idle iteration should cost no more than a poll. Reading
  /// virtual time costs nothing.
  static constexpr uint32_t kIdleClockReads = kTraits.is_virtual ? 1 : 8;
  /// A busy loop, which receives at least so many packets in an iteration, lets one flush() in kBurstsPerPause wake
  /// peers for certain.
  static constexpr size_t kBusyPackets = 8;
  static constexpr uint32_t kBurstsPerPause = 4;
  /// Polling in vain keeps the CPU for this long, in which answers come that are under way on other CPUs.
  static constexpr uint64_t kKeepCpuNs = 3'000;
  /// True: an answer leaves as soon as its handler has returned, because its request's hold time is 0 on the clock of
  /// the iteration. False: answers leave together, after another reading of the clock if reads_clock_per_burst.
  static constexpr bool kAnswersAtOnce =
      !kTraits.reads_clock_per_burst && kTraits.releases_at_once && kTraits.shortcuts.answer_at_once;

  /// Visitor of received packets, one by one or burst by burst (transport::BurstVisitor).
  struct Visitor {
    RpcCore& core;
    [[gnu::always_inline]] void operator()(const wire::Header& header, const transport::Payload& payload) const {
      core.freshen_clock();
      transport::visit_packet(*this, header, payload);
    }
    /// The time of the previous burst's handlers must not count as hold time of this burst's packets.
    void begin_burst() const {
      if constexpr (kTraits.reads_clock_per_burst) core.is_clock_fresh_ = false;
      core.freshen_clock();
    }
    transport::ExpectedPacket expected_packet() const {
      if constexpr (!kTraits.shortcuts.receive_in_place) return {};
      return core.core_.expected_packet();
    }
    [[gnu::always_inline]] void in_burst(const wire::Header& header, const transport::Payload& payload,
                                         std::byte* copy_to) const {
      // The values are copied only here, because a variable whose address is taken lives in memory, and the variables
      // of the common case must stay in registers.
      transport::Payload own{payload.data, payload.bytes, payload.lease, payload.lease_value, payload.is_marked};
      core.on_any_packet(header.w0, header.w1, header.w2, own, copy_to);
    }
    [[gnu::always_inline]] bool try_in_burst(const wire::Header& header, const transport::Payload& payload,
                                             std::byte* copy_to) const {
      core.stamp_packet();
      if constexpr (!kTraits.shortcuts.common_case) return false;
      return core.core_.try_packet(header, payload, copy_to, core);
    }
  };

  /// Visitor of an endpoint with many sessions (transport::AheadVisitor).
  struct AheadVisitor : Visitor {
    void look_ahead(std::span<const uint64_t> first_words) const { this->core.core_.look_ahead(first_words); }
  };

  /// Visitor of an endpoint with a trace, which takes the general path for every packet.
  struct TracedVisitor : Visitor {
    void operator()(const wire::Header& header, const transport::Payload& payload) const {
      this->core.freshen_clock();
      transport::visit_packet(*this, header, payload);
    }
    bool try_in_burst(const wire::Header&, const transport::Payload&, std::byte*) const { return false; }
  };

  [[gnu::noinline]] void on_any_packet(uint64_t w0, uint64_t w1, uint64_t w2, transport::Payload& payload,
                                       std::byte* copy_to) {
    wire::Header header{w0, w1, w2};
    if constexpr (kTraits.shortcuts.common_case && kTraits.shortcuts.zero_copy_requests &&
                  kTraits.shortcuts.preallocated_responses) {
      if (core_.try_uncommon(header, payload, copy_to, *this)) return;
    }
    core_.on_packet(header, payload, copy_to);
  }
  Status enter() {
    if (!core_.may_enter()) [[unlikely]] {
      if (Status status = core_.check_entry(); !status.ok()) return status;
    }
    if constexpr (kTraits.is_virtual) {
      if (is_in_turn_) {  // the program runs the loop, and does not wait for the driver
        const auto own_loop = begin_own_loop();
        end_turn();
      }
    }
    core_.enter();
    return {};
  }
  /// Tells a virtual transport that the program itself runs the loop, until the result is destroyed.
  [[gnu::always_inline]] auto begin_own_loop() {
    if constexpr (kTraits.is_virtual) {
      return typename Impl::OwnLoop(*transport_);
    } else {
      return 0;
    }
  }
  size_t iterate() {
    begin_iteration();
    return end_iteration(receive_packets());
  }
  [[gnu::always_inline]] size_t receive_packets() {
    if (context().receiving != Receiving::kPlain) [[unlikely]]
      return context().receiving == Receiving::kTraced ? receive_traced() : receive_ahead();
    return transport_->receive(Visitor{*this});
  }
  [[gnu::noinline]] size_t receive_traced() { return transport_->receive(TracedVisitor{{*this}}); }
  [[gnu::noinline]] size_t receive_ahead() {
    if constexpr (!kTraits.shortcuts.look_ahead) return transport_->receive(Visitor{*this});
    core_.client_sessions().start_noting();
    size_t packets;
    if constexpr (kTraits.looks_ahead) {
      packets = transport_->receive(AheadVisitor{{*this}});
    } else {
      packets = transport_->receive(Visitor{*this});
    }
    core_.client_sessions().stop_noting();
    return packets;
  }
  EndpointContext& context() { return core_.context(); }
  void begin_iteration() {
    is_clock_fresh_ = false;
    core_.begin_iteration(transport_->released());
  }
  size_t end_iteration(size_t packets);
  /// As EndpointCore::has_work(), but ignores packets that wait until the transport reports space in its queue.
  bool must_iterate() const { return kTraits.reports_space ? core_.has_work_but_for_refused() : core_.has_work(); }
  void freshen_clock() {
    if (is_clock_fresh_) return;
    context().now_ns = transport_->now();
    is_clock_fresh_ = true;
    if (context().now_ns >= core_.server_sessions().credit_epoch_end_ns()) [[unlikely]]
      core_.start_credit_epoch();
  }
  /// True if the transport has failed for good, and the sessions have ended for that reason.
  bool has_failed() const { return kTraits.can_fail && !core_.failure().ok(); }
  void note_failure();
  /// Reads the clock for this packet. Only benchmarks of batched timestamps do so.
  void stamp_packet() {
    if constexpr (!kTraits.shortcuts.batched_timestamps) context().now_ns = transport_->now();
  }
  void serve_waiting();
  template <class Sender>
  bool answer(const Incoming* incoming);
  [[gnu::noinline]] bool answer_plainly(const Incoming* incoming);
  [[gnu::noinline]] void hear_answered(Server* server) { core_.server_sessions().hear_answered(server); }
  void transmit();
  /// Sends a packet of the general case to the other end of a Client or Server. A path probe or reply of full length
  /// has no payload of its own.
  template <class End>
  bool send_any(const End* end, const wire::Header& header, const std::byte* payload, uint32_t bytes,
                detail::Buffer* buffer);
  [[gnu::always_inline]] SendTurn transmit_client(Client* client);
  template <bool is_timed>
  void transmit_short(Client* client);
  [[gnu::noinline]] SendTurn transmit_timed(Client* client);
  [[gnu::always_inline]] SendTurn transmit_server(Server* server);
  // The sends that these two fast paths do not handle.
  [[gnu::noinline]] SendTurn transmit_rest(Client* client);
  [[gnu::noinline]] SendTurn transmit_rest(Server* server);
  void send_path_probes();
  void run_until_stopped(Duration duration);
  uint64_t lend_cpu(base::Poller& poller, uint64_t vain_ns);
  void share_cpu(base::Poller& poller, uint64_t vain_since_ns);
  bool prepare_to_leave_cpu();
  void sleep(uint64_t until_ns);
  void arm();
  /// Called before the loop returns to a program that may wait.
  void note_rest() {
    core_.note_rest();
    if (core_.handlers().has_polled() && !is_closed()) core_.handlers().note_rest(transport_->now());
  }
  void shut_down();

  std::unique_ptr<Impl> transport_;  ///< null: closed
  TransportAdapter<Impl> adapter_;
  EndpointCore core_;
  SpinLimit spin_;
  CpuShare share_;
  uint64_t sent_ticket_ = 0;  ///< ticket of the last packet that the transport has taken
  bool is_clock_fresh_ = false;
  base::Alarm alarm_;        ///< open from the first descriptor() on
  bool is_in_turn_ = false;  ///< between begin_turn() and end_turn()
  size_t turn_packets_ = 0;  ///< packets received in this turn
};

// ---- The loop ----

/// Runs all steps of an iteration but receiving. `packets`: number of packets received.
template <class Impl>
[[gnu::always_inline]] inline size_t RpcCore<Impl>::end_iteration(size_t packets) {
  context().counters.packets_received += packets;
  if (packets == 0 && core_.count_idle_iteration() % kIdleClockReads == 0) {
    freshen_clock();
    if constexpr (kTraits.can_fail) note_failure();
  }
  if (context().mailbox->has_mail()) [[unlikely]] {
    transport_->before_pause();
    core_.handlers().flush_work();
    freshen_clock();
    core_.read_mail();
  }
  if (core_.has_due()) [[unlikely]] {
    transport_->before_pause();
    freshen_clock();
    core_.run_due(packets == 0);
    if (core_.handlers().has_waiting()) [[unlikely]]
      serve_waiting();
  }
  if (core_.has_packets_to_send()) {
    // The hold time must include the time of handlers, because the client would otherwise count it as network time.
    if (kTraits.reads_clock_per_burst && packets != 0) is_clock_fresh_ = false;
    freshen_clock();
    transmit();
  } else if (kAnswersAtOnce || sent_ticket_ > context().released) {
    transport_->flush();  // sends answers, or packets that it has kept back
  }
  if (core_.has_dead()) [[unlikely]]
    core_.free_dead();
  core_.end_iteration();
  return packets;
}

template <class Impl>
void RpcCore<Impl>::note_failure() {
  const Status why = transport_->failure();
  if (why.ok() || has_failed()) return;
  context().released = transport_->released();
  core_.fail(why);
}

/// Runs before a slow handler: receives all packets, especially cancels, and sends all queued ones.
template <class Impl>
void RpcCore<Impl>::serve_waiting() {
  for (uint32_t i = 0; i < kDrainCalls; i++) {
    is_clock_fresh_ = false;
    const size_t packets = receive_packets();
    context().counters.packets_received += packets;
    core_.handlers().flush_work();
    if (packets == 0) break;
    // A credit return tells of 256 packets at most, so a session's packets must not wait for the last round.
    if (core_.has_packets_to_send()) {
      is_clock_fresh_ = false;
      freshen_clock();
      transmit();
    }
  }
  is_clock_fresh_ = false;
  freshen_clock();
  core_.handlers().note_poll(context().now_ns);
  core_.server_sessions().return_all_held();
  if (core_.has_packets_to_send()) transmit();
  if (kAnswersAtOnce) transport_->flush();
  transport_->before_pause();
  core_.handlers().run_waiting();
  is_clock_fresh_ = false;
}

// ---- Sending ----

template <class Impl>
[[gnu::always_inline]] inline bool RpcCore<Impl>::try_answer(const Incoming* incoming) {
  if constexpr (kAnswersAtOnce) {
    return answer<typename Impl::Sender>(incoming) || answer_plainly(incoming);
  } else {
    return false;
  }
}

/// Sends an answer that the transport's Sender does not take.
template <class Impl>
bool RpcCore<Impl>::answer_plainly(const Incoming* incoming) {
  return answer<transport::PlainSender<Impl>>(incoming);
}

template <class Impl>
template <class Sender>
[[gnu::always_inline]] inline bool RpcCore<Impl>::answer(const Incoming* incoming) {
  Server* server = incoming->server;
  {
    Sender sender(*transport_, server->peer);
    const uint32_t bytes = incoming->space->length_bytes;
    if (!sender.takes(bytes)) [[unlikely]]
      return false;  // checked before the header is made, which takes registers
    const bool is_sent = server->session.template try_answer<Sender::kBytesMax>(
        incoming->slot, bytes, core_.server_sessions().credit_limit(),
        [&](const wire::Header& header, const std::byte* payload, uint32_t length, detail::Buffer* buffer)
            __attribute__((always_inline)) { return sender.send(header, payload, length, buffer); });
    if (!is_sent) [[unlikely]]
      return false;
  }
  context().counters.packets_sent++;
  if (server->session.heard_epoch != core_.server_sessions().credit_epoch()) [[unlikely]]
    hear_answered(server);
  return true;
}

template <class Impl>
void RpcCore<Impl>::transmit() {
  if (core_.client_sessions().has_path_probes()) [[unlikely]]
    send_path_probes();
  core_.server_sessions().take_turns([this](Server * server)
                                         __attribute__((always_inline)) { return transmit_server(server); });
  if (core_.client_sessions().has_to_send()) {
    core_.client_sessions().take_turns([this](Client * client)
                                           __attribute__((always_inline)) { return transmit_client(client); });
    // The packets sent now need a check if their answers are late.
    context().agenda.at_latest(context().now_ns + context().rto_ns_min);
  }
  sent_ticket_ = transport_->ticket();
  transport_->flush();
}

template <class Impl>
inline SendTurn RpcCore<Impl>::transmit_client(Client* client) {
  if (context().tracer != nullptr) [[unlikely]]
    return transmit_rest(client);
  stamp_packet();
  transmit_short<false>(client);
  if (!client->session.wants_to_send()) [[likely]]
    return SendTurn::kDone;
  return client->session.has_timed() ? transmit_timed(client) : transmit_rest(client);
}

/// Sends new calls of one packet. `is_timed`: they may have deadlines.
template <class Impl>
template <bool is_timed>
[[gnu::always_inline]] inline void RpcCore<Impl>::transmit_short(Client* client) {
  typename Impl::Sender sender(*transport_, client->peer);
  context().counters.packets_sent += client->session.template transmit_short<is_timed>(
      context().now_ns,
      [&](const wire::Header& header, const std::byte* payload, uint32_t bytes, detail::Buffer* buffer)
          __attribute__((always_inline)) { return sender.send(header, payload, bytes, buffer); },
      [this]() __attribute__((always_inline)) { return transport_->ticket(); });
}

template <class Impl>
inline SendTurn RpcCore<Impl>::transmit_server(Server* server) {
  if (context().tracer != nullptr) [[unlikely]]
    return transmit_rest(server);
  {
    typename Impl::Sender sender(*transport_, server->peer);
    context().counters.packets_sent += server->session.transmit_first(
        context().now_ns, core_.server_sessions().credit_limit(),
        [&](const wire::Header& header, const std::byte* payload, uint32_t bytes, detail::Buffer* buffer)
            __attribute__((always_inline)) { return sender.send(header, payload, bytes, buffer); },
        [this]() __attribute__((always_inline)) { return transport_->ticket(); });
  }
  if (!server->session.wants_to_send()) [[likely]]
    return SendTurn::kDone;
  return transmit_rest(server);
}

}  // namespace tern::rpc

#include "rpc/run_loop.h"       // IWYU pragma: export
#include "rpc/transmit_rest.h"  // IWYU pragma: export
