// The server ends of an endpoint's sessions: accepting them, their packets, the shares of peers, their ends.
// Owner thread only. server_sessions.cc has sessions and packets, server_shares.cc the shares of peers, held_returns.cc
// credit returns that wait.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <tern/detail/export.h>

#include "base/linked_list.h"
#include "base/pool.h"
#include "base/ring_queue.h"
#include "rpc/completions.h"
#include "rpc/endpoint_context.h"
#include "rpc/handlers.h"
#include "rpc/peers.h"
#include "rpc/send_list.h"
#include "rpc/server.h"
#include "session/credit_policy.h"
#include "session/server_session.h"
#include "session/session_table.h"

namespace tern::rpc {

class TERN_API ServerSessions {
 public:
  ServerSessions(EndpointContext& context, Peers& peers, Completions& completions, Handlers& handlers)
      : context_(context),
        peers_(peers),
        completions_(completions),
        handlers_(handlers),
        hold_ns_(std::min(kHoldNsMax, context.rto_ns_min / 4)) {}

  // -- Sessions --

  Server* find(uint32_t key) const { return table_.find(key); }
  void prefetch_place(uint32_t key) const { table_.prefetch(key); }
  /// Calls `f(server)` for each live session.
  template <class F>
  void for_each(F&& f) const {
    table_.for_each(std::forward<F>(f));
  }
  /// The public information about a session. An ended or unknown session is kEnded.
  SessionInfo info(Session session) const;
  /// The public information about a live session.
  static SessionInfo info(const Server* server);
  /// Calls `f(name, server)` for live sessions, as SessionTable::visit() does.
  template <class F>
  uint64_t visit(uint64_t from, uint64_t places, F&& f) const {
    return table_.visit(from, places, std::forward<F>(f));
  }
  /// Number of live sessions.
  size_t size() const { return table_.size(); }
  /// Sets the credit policy, for the transport's real sizes. Called once, before the first session.
  void set_budgets(const session::CreditPolicy& credits, uint32_t large_payload_bytes) {
    credits_ = credits;
    pools_.large_payload_bytes = large_payload_bytes;
  }
  /// Handles a client's request for a session (clause 7.7).
  void on_connect_request(const nexus::ControlEvent& event);
  /// The client has closed the session.
  void on_disconnected(uint32_t key);
  /// Ends all sessions of a Nexus that is gone.
  void end_run(Run* run, Status status);
  void end_all(Status status);
  /// Frees the sessions that have ended and are in no list.
  void free_dead();
  bool has_dead() const { return !dead_.empty(); }
  /// Frees all sessions, after the transport was destroyed.
  void finish_all();
  /// True if the application has a request, or a response is in flight. `closing_since_ns`: the time from which
  /// requests are refused.
  bool is_busy(uint64_t closing_since_ns) const;

  // -- Packets --

  /// Handles any packet of a client: requests, RFRs, probes, cancels, reports, path probes.
  void on_packet(const wire::Header& header, const transport::Payload& payload);

  // -- Answers --

  /// Sends the answer that the handler has written to the slot's response buffer.
  void send_answer(Incoming* incoming) {
    session::ServerSlot* slot = incoming->slot;
    slot->response_bytes = incoming->space->length_bytes;
    incoming->server->session.respond(slot);
    list_to_send(incoming->server);
  }
  /// Counts an answer that was sent at once, without the send list, for the credits.
  void hear_answered(Server* server) {
    if (server->session.heard_epoch != credits_.epoch()) [[unlikely]]
      hear(server);
  }
  /// Makes `buffer`, which has the answer, the slot's response buffer.
  void set_response(Server* server, session::ServerSlot* slot, detail::Buffer* buffer);
  /// Takes the slot's response buffer, and subtracts it from the budget.
  detail::Buffer* take_response(session::ServerSlot* slot) {
    if (is_counted(slot->response)) forget_claim(Budget::kResponses, slot->response);
    return std::exchange(slot->response, nullptr);
  }
  /// Gives up a shared response that the client has, before the slot's next answer. False: there is none.
  bool release_shared_response(session::ServerSlot* slot) {
    if (slot->response == nullptr || slot->response->in_use != detail::Buffer::kShared) return false;
    completions_.release_after(slot->response_ticket, take_response(slot));
    return true;
  }
  /// Adds the slot's new response to the budget. If the budget is used up, frees other responses, or this one.
  [[gnu::noinline]] void count_response(Server* server, session::ServerSlot* slot);

  // -- Credit returns that wait for answers (clause 4.2.6) --

  /// Owes a credit return for the slot's request, which has just arrived and will be answered later. `may_wait`: the
  /// credit return may wait for the answer.
  void owe_credit_return(Server* server, const session::ServerSlot* slot, bool may_wait);
  /// Ends the waits that have been long enough.
  void run_held();
  /// Ends all waits. Called when the loop may not run for a while. True: a credit return is due.
  bool return_all_held();

  // -- Sending --

  /// Lists a session that has an answer to a call, and counts it for the credits.
  void list_to_send(Server* server) {
    if (!server->is_listed_to_send) add_to_send(server);
  }
  bool has_to_send() const { return !to_send_.empty(); }
  bool are_all_refused() const { return to_send_.are_all_refused(); }
  /// `send(server)` returns a SendTurn.
  template <class F>
  [[gnu::always_inline]] void take_turns(F&& send) {
    to_send_.take_turns([&send](Server * server) __attribute__((always_inline)) {
      const SendTurn turn = server->is_dead ? SendTurn::kDone : send(server);
      if (turn == SendTurn::kDone) [[likely]]
        server->is_listed_to_send = false;
      return turn;
    });
  }
  void forget_to_send() { to_send_.clear(); }

  // -- Credits (clause 4.5) --

  uint8_t credit_limit() const { return credits_.limit(); }
  uint32_t credit_epoch() const { return credits_.epoch(); }
  uint64_t credit_epoch_end_ns() const { return credits_.epoch_end_ns(); }
  /// Returns the result of CreditPolicy::start_epoch(): true if a whole epoch was silent.
  bool start_credit_epoch();

  // -- Timers --

  /// Ends the sessions whose path was not proved in time (clause 7.7).
  void end_pathless();
  /// Frees the responses that no client asks for any more (clause 5.5.2).
  void run_sweep();

  // -- Requests that their client has given up and that the application still has --

  void count_abandoned(Incoming* incoming, Server* server);
  void on_abandoned_answered(Incoming* incoming);

  // -- For tests --

  void check_invariants() const;
  size_t count() const { return table_.size() + dead_.size(); }
  size_t requests_open() const;
  template <class F>
  void for_each_buffer(F&& f) const;

 private:
  /// The services of the endpoint to a session that takes a packet.
  class Offers final : public session::ServerOffers {
   public:
    Offers(ServerSessions& sessions, Server* server)
        : ServerOffers(sessions.pools_), sessions_(sessions), server_(server) {}
    RequestBuffer buffer_for(const wire::Header& request, bool is_long) override;
    void take_back_buffer(detail::Buffer* buffer, uint32_t request_bytes, bool is_long) override;
    void take_back_response(detail::Buffer* response, uint64_t ticket) override;
    void abandon(void* call) override;
    bool may_abandon(void* call) override;

   private:
    ServerSessions& sessions_;
    Server* server_;
  };

  /// The credit return for a session's oldest packet waits for hold_ns_. In a loop without slow iterations, none waits
  /// for more than twice that time. The transport's shortest timeout (clause 4.4.1) is at least four times as long.
  static constexpr uint64_t kHoldNsMax = 30'000;
  static constexpr size_t kHeldMax = 1024;  ///< most sessions whose credit returns wait
  /// A session whose credit return waits.
  struct Held {
    uint32_t key = 0;
    uint32_t newest = 0;  ///< ServerSession::newest() when this was queued
    uint64_t until_ns = 0;
  };

  wire::Refusal refusal_of_wish(const nexus::SessionTerms& wish) const;
  wire::Refusal refusal_of_connect(Code code, const nexus::AddressBytes& address) const;
  Server* make(const session::ServerTerms& terms);
  void free(Server* server);
  void answer(const nexus::ControlEvent& event, Server* server, const session::ServerTerms& terms);
  void end(Server* server, Status status, bool tell_peer);
  void log_end(const Server* server, const Status& status, std::string_view peer);
  void answer_pair_probe(Server* server);
  void follow(Server* server);
  void list_to_send_quietly(Server* server);
  [[gnu::noinline]] void add_to_send(Server* server);
  [[gnu::noinline]] void hear(Server* server);
  void look_at_pace(uint64_t iteration);
  bool may_hold(const Server* server);
  uint8_t least_limit(const Server* server) const;
  void queue_held(Server* server);
  // server_shares.cc
  void forget_claim(Budget budget, detail::Buffer* buffer);
  bool make_way_for_arriving(const Server* server, size_t bytes);
  bool give_up_one_response();
  void note_news(Server* server, const wire::Header& header, bool is_part);
  wire::Refusal refusal_of_peer(const nexus::PeerNexus& peer);
  bool make_way_for_session(const Run* run, const Host* host);
  void give_up_pathless(Server* server);
  void begin_without_path(Server* server);
  void on_path_proved(Server* server);
  void begin_sweep();
  bool may_abandon(const Incoming* incoming, const Server* server) const;
  void check_claims() const;
  void check_paths() const;

  EndpointContext& context_;
  Peers& peers_;
  Completions& completions_;
  Handlers& handlers_;
  const uint64_t hold_ns_;

  session::ServerPools pools_;
  base::Pool<Server> pool_;
  session::SessionTable<Server> table_{kServerName};
  // Making a session reserves its places in these lists, so that no later step needs memory for them.
  SendList<Server> to_send_;
  std::vector<Server*> dead_;
  base::RingQueue<Held> held_;  ///< the one that waits longest first; some may wait no more
  // For look_at_pace(): the last iteration in which a request was kept.
  uint64_t kept_ns_ = 0;
  uint64_t kept_iteration_ = 0;
  bool is_pace_right_ = false;  ///< credit returns may wait now
  session::CreditPolicy credits_;
  base::LinkedList<Server, Server::InPathList> pathless_;  ///< sessions without a proof of their path, the oldest first
  /// All other sessions. A sweep checks the first one, and moves it to the end.
  base::LinkedList<Server, Server::InPathList> proved_;
  // A sweep checks the responses of all sessions. Sweeps follow each other until one finds no response.
  uint64_t sweep_at_ns_ = UINT64_MAX;  ///< time of the next check; UINT64_MAX: no check is planned
  uint64_t sweep_since_ns_ = 0;        ///< clients' earlier questions for responses may be unread
  size_t sweep_left_ = 0;              ///< sessions that this sweep has not checked yet
  bool sweep_keeps_some_ = false;      ///< a session of this sweep has a response that will become too old
};

// ---- Templates ----

template <class F>
void ServerSessions::for_each_buffer(F&& f) const {
  table_.for_each([&](const Server* server) {
    for (uint32_t i = 0; i < server->session.window(); i++) {
      const session::ServerSlot* slot = server->session.slot(i);
      if (slot == nullptr) continue;
      f(slot->response);
      if (slot->assembly != nullptr) f(slot->assembly->buffer);
      if (const auto* incoming = static_cast<const Incoming*>(slot->call); incoming != nullptr) {
        f(incoming->response);
        f(incoming->copy);
      }
    }
  });
}

}  // namespace tern::rpc
