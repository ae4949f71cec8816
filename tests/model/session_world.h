// A world of one client session, one server session and a network that is a bag of packets. Test code, one thread.
//
// The driver takes the place of the rpc layer around the two state machines. It checks the promises of docs/protocol.md
// after every step: a handler runs at most once, a call finishes once, bytes arrive as they were sent, credits are
// obeyed, and no handler starts after the client was told that it never would.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "session/client_session.h"
#include "session/server_session.h"
#include "unit/session/session_parts.h"

namespace tern::model {

using session::BufferDeleter;
using session::OwnedBuffer;

inline uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

struct CallPlan {
  uint32_t request_bytes = 0;
  uint32_t response_bytes = 0;
  bool answers_later = false;  ///< the handler returns without an answer; World::answer() answers later
  bool fails = false;          ///< the handler answers with Request::fail
  bool is_refused = false;     ///< the server has no memory or no handler for the request
  uint64_t time_left_ns = 0;   ///< from the call's begin to its deadline; 0: no deadline
};

struct WorldOptions {
  uint8_t window = 1;
  uint32_t payload_bytes_max = 4;    ///< may be below the wire's minimum, which binds only transports
  uint8_t credit_unit = 0;           ///< as in the handshake; below the smallest there, so that packets stay small
  uint32_t route_payload_bytes = 0;  ///< the client searches for larger packets up to this; 0: it does not
  uint8_t start_credits = 1;
  std::vector<uint8_t> credit_limits{1};  ///< the server grants them in turn
  uint32_t bulk_packets = 32;
  uint32_t response_packets = 64;
  uint32_t downlink_packets = 0;             ///< capacity that the client shares among responses; 0: unknown
  uint64_t delivery_ns = 0;                  ///< how far a delivery moves the clock
  uint32_t first_request_count = 0x3fffffe;  ///< request numbers wrap within the run
  uint32_t marks_one_in = 0;                 ///< about one in so many packets of the client is ECN-marked; 0: none
  uint32_t first_number = 0xfffffe;          ///< both sides' first packet number: numbers wrap within the run
  bool opens_in_the_world = false;           ///< path probes are part of the world and may be lost
  /// The client reaches the server through a NAT. The server's packets arrive only if they go to the client's present
  /// address, which remap() changes. One short path probe is kept for the new address.
  bool has_nat = false;
  bool answers_at_once =
      false;  ///< the answer leaves at the handler's return where ServerSession::try_answer() permits that
  bool holds_returns = false;  ///< credit returns may wait for answers, until return_held()
  std::vector<CallPlan> calls;
};

class World {
 public:
  struct Packet {
    bool to_server;
    wire::Header header;
    std::vector<std::byte> payload;
    uint64_t hash;
    uint32_t address;  ///< the client's outer address at the NAT, as source or destination; 0: its own address
    bool operator==(const Packet& other) const { return hash == other.hash; }
  };
  struct Call {
    CallPlan plan;
    uint32_t request_number = 0;
    bool has_begun = false;
    bool is_running = false;  ///< the handler was called and has not answered
    uint32_t runs = 0;
    uint32_t finishes = 0;
    bool slot_is_released = false;
    Code code = Code::kOk;  ///< the call's final status
    OwnedBuffer request, response;
  };

  explicit World(const WorldOptions& options) : options_(options) {
    pools_.response_credits_free = static_cast<int32_t>(options.response_packets);
    if (options.route_payload_bytes != 0) pools_.credit_unit = options.credit_unit;
    pools_.response_share = session::ResponseShare({options.downlink_packets, 1});
    server_pools_.large_payload_bytes = options.route_payload_bytes;
    session::ClientTerms client_terms;
    client_terms.local_key = kClientKey;
    client_terms.first_number = options.first_number;
    client_terms.window = options.window;
    client_terms.bulk_bytes = options.bulk_packets * options.payload_bytes_max;
    client_ = std::make_unique<session::ClientSession>(client_terms, pools_);
    for (const CallPlan& plan : options.calls) calls_.emplace_back().plan = plan;
    shake_hands(options.first_number);
    pump_client();
    if (options.opens_in_the_world) return;
    while (client_->state() != session::ClientSession::State::kOpen) {
      if (in_flight_.empty()) {
        tick();
      } else {
        deliver(0, false, Delivery::kWhole);
      }
    }
  }
  ~World() {
    end_server();
    client_.reset();
    if (pools_.response_credits_free != static_cast<int32_t>(options_.response_packets)) std::abort();
    if (pools_.response_share.responses() != 0) std::abort();
  }

  // -- Actions --

  enum class Delivery : uint8_t {
    kWhole,
    kTorn,     ///< the packet came by reference and its lease was lost
    kHeld,     ///< the packets sent in response wait for the next event of that side
    kRefused,  ///< the transport refuses the packets sent in response
  };
  /// The other side receives a packet in flight. `keep`: a copy stays in flight.
  void deliver(size_t index, bool keep, Delivery how) {
    now_ns_ += options_.delivery_ns;
    const Packet packet = in_flight_[index];
    if (!keep) in_flight_.erase(in_flight_.begin() + static_cast<ptrdiff_t>(index));
    std::vector<std::byte> bytes = packet.payload;
    wire::Header header = packet.header;
    const bool is_torn = how == Delivery::kTorn;
    if (is_torn) std::fill(bytes.begin(), bytes.end(), std::byte{0xee});
    const std::atomic<uint32_t> lease{2};
    bytes.reserve(1);  // so that data() is not null
    transport::Payload payload{bytes.data(), static_cast<uint32_t>(bytes.size()), nullptr, 0};
    if (is_torn) {
      payload.lease = &lease;
      payload.lease_value = 1;
      header.set_length_and_flags(0, header.flags() | wire::kByReference);
    }
    uint64_t& history = packet.to_server ? server_history_ : client_history_;
    history = mix(mix(mix(history, packet.hash), now_ns_), static_cast<uint64_t>(how));
    refuses_sends_ = how == Delivery::kRefused;
    if (options_.has_nat && !packet.to_server && packet.address != address_) {
      // The NAT knows no such flow.
    } else if (packet.to_server) {
      packet_address_ = packet.address;
      payload.is_marked = options_.marks_one_in != 0 && packet.hash % options_.marks_one_in == 0;
      server_receives(header, payload);
      if (how != Delivery::kHeld) pump_server();
    } else {
      client_receives(header, payload);
      if (how != Delivery::kHeld) pump_client();
    }
    refuses_sends_ = false;
    check();
  }
  static bool can_be_torn(const Packet& packet) {
    return !packet.payload.empty() &&
           (packet.header.kind() == wire::Kind::kRequest || packet.header.kind() == wire::Kind::kResponse);
  }
  void drop(size_t index) { in_flight_.erase(in_flight_.begin() + static_cast<ptrdiff_t>(index)); }
  /// Time passes until the client's next timer.
  void tick() { pass(next_tick_ns_ == UINT64_MAX ? now_ns_ + 1'000'000 : std::max(now_ns_ + 1, next_tick_ns_)); }
  /// Both sides pause for longer than a timeout.
  void pause() { pass(now_ns_ + kPauseNs); }
  /// The NAT forgets the flow and gives the client's next packet another address.
  bool can_remap() const { return options_.has_nat; }
  void remap() {
    address_++;
    client_history_ = mix(client_history_, 0x4e41);
  }
  bool can_answer(size_t call) const { return calls_[call].is_running; }
  void answer(size_t call) {
    server_history_ = mix(mix(server_history_, 0xa05), call * 1000003 + now_ns_);
    answer_call(calls_[call]);
    pump_server();
    check();
  }
  bool can_return() const { return server_->holds_return(); }
  void return_held() {
    server_history_ = mix(mix(server_history_, 0x4e1d), now_ns_);
    server_->return_held();
    pump_server();
    check();
  }
  bool can_cancel(size_t call) const { return calls_[call].has_begun && calls_[call].finishes == 0; }
  void cancel(size_t call) {
    client_history_ = mix(mix(client_history_, 0xca9ce1), call * 1000003 + now_ns_);
    end_call_early(calls_[call], Code::kCancelled);
    pump_client();
    check();
  }

  /// Runs without faults: packets arrive in order, handlers answer, and time passes when nothing is in flight. False:
  /// some calls had not ended after `steps_max` steps.
  bool heal(uint32_t steps_max) {
    for (uint32_t step = 0; step < steps_max && error_.empty(); step++) {
      size_t running = 0;
      while (running < calls_.size() && !can_answer(running)) running++;
      if (!in_flight_.empty()) {
        deliver(0, false, Delivery::kWhole);
      } else if (running < calls_.size()) {
        answer(running);
      } else if (can_return()) {
        return_held();
      } else if (is_over()) {
        return true;
      } else {
        tick();
      }
    }
    return is_over();
  }
  bool is_over() const {
    return in_flight_.empty() && is_idle_ &&
           std::all_of(calls_.begin(), calls_.end(), [](const Call& call) { return call.finishes == 1; });
  }

  // -- State --

  const std::vector<Packet>& in_flight() const { return in_flight_; }
  const std::vector<Call>& calls() const { return calls_; }
  /// The broken promise, or an empty text.
  const std::string& error() const { return error_; }
  uint64_t now_ns() const { return now_ns_; }
  uint64_t packets_sent() const { return packets_sent_; }
  /// Packets of messages that were larger than those with which the session has opened.
  uint64_t large_requests() const { return large_requests_; }
  uint64_t large_responses() const { return large_responses_; }
  /// Responses of more than the session's own size in one packet.
  uint64_t whole_responses() const { return whole_responses_; }
  const session::ClientSession& client() const { return *client_; }
  /// Equal for worlds that behave the same from here on, because both machines are functions of their inputs.
  uint64_t fingerprint() const {
    uint64_t bag = 0;
    for (const Packet& packet : in_flight_) bag += mix(0x5eed, packet.hash);
    return mix(mix(mix(client_history_, server_history_), bag), now_ns_);
  }

 private:
  using ClientSlot = session::ClientSlot;
  using ServerSlot = session::ServerSlot;

  void fail(const std::string& what) {
    if (error_.empty()) error_ = what;
  }
  static std::byte content(uint32_t request_number, bool is_response, uint32_t i) {
    return static_cast<std::byte>((request_number >> 6) * 31 + request_number * 5 + (is_response ? 101 : 3) + i * 7);
  }
  static bool has_content(const detail::Buffer& buffer, uint32_t request_number, bool is_response) {
    for (uint32_t i = 0; i < buffer.length_bytes; i++) {
      if (buffer.data()[i] != content(request_number, is_response, i)) return false;
    }
    return true;
  }
  static constexpr uint32_t kClientKey = 7;
  static constexpr uint64_t kPauseNs = 40'000'000;

  /// The server's endpoint, as its session uses it.
  class Offers final : public session::ServerOffers {
   public:
    explicit Offers(World& world) : ServerOffers(world.server_pools_), world_(world) {}
    RequestBuffer buffer_for(const wire::Header& request, bool) override {
      const Call* call = world_.call_of(request.request_number());
      if (call == nullptr) {
        world_.fail("the server asks for memory for a request that no client made");
      } else if (call->plan.is_refused) {
        return {nullptr, wire::FailureCode::kTooLarge};
      }
      return {session::make_buffer(request.message_bytes()).release(), {}};
    }
    void take_back_buffer(detail::Buffer* buffer, uint32_t, bool) override { BufferDeleter()(buffer); }
    void take_back_response(detail::Buffer* response, uint64_t) override { BufferDeleter()(response); }
    void abandon(void* call) override { static_cast<Call*>(call)->is_running = false; }

   private:
    World& world_;
  };

  void pass(uint64_t until_ns) {
    now_ns_ = until_ns;
    client_history_ = mix(mix(client_history_, 0x71c4), now_ns_);
    server_history_ = mix(mix(server_history_, 0x71c4), now_ns_);
    wants_path_probe_ = true;
    pump_client();
    pump_server();
    check();
  }
  void end_server() {
    server_->end_all(offers_);
    server_->give_back(server_pools_);
  }
  /// The handshake of the Nexuses: at the beginning, and again when the data address has not answered.
  void shake_hands(uint32_t first_client_number) {
    handshakes_++;
    server_history_ = mix(server_history_, 0x5a4e);
    if (server_ != nullptr) end_server();
    session::ServerTerms terms;
    terms.local_key = server_key();
    terms.remote_key = kClientKey;
    terms.payload_bytes_max = options_.payload_bytes_max;
    terms.window = options_.window;
    terms.first_request_count = options_.first_request_count;
    terms.first_client_number = first_client_number;
    terms.first_number = first_number_of(handshakes_);
    terms.path_token = 100 + handshakes_;
    terms.session_token = 200 + handshakes_;
    server_ = std::make_unique<session::ServerSession>(terms);
    server_sends_to_ = pair_address_ = 0;
    client_->on_accepted({terms.local_key, terms.payload_bytes_max, terms.window, options_.start_credits,
                          terms.first_number, terms.path_token, options_.credit_unit, options_.route_payload_bytes},
                         now_ns_);
    wants_path_probe_ = true;
  }
  /// Keys are random in reality, so those of two handshakes are far apart here.
  uint32_t first_number_of(uint32_t handshake) const {
    return (options_.first_number + (handshake - 1) * 0x300000) & wire::kNumberMask;
  }
  uint32_t server_key() const { return 8 + handshakes_; }
  /// The client endpoint's work for a session that is not open.
  void probe_path() {
    if (client_->state() != session::ClientSession::State::kProbing || !wants_path_probe_) return;
    wants_path_probe_ = false;
    const bool is_first_way = options_.has_nat && !client_->is_paired() && !client_->is_path_answered();
    if (is_first_way && client_->short_probes_left() == 1) client_->pair();
    if (!client_->may_probe_path()) {
      const uint32_t first_number = first_number_of(handshakes_ + 1);
      client_->start_over(first_number, options_.window);
      shake_hands(first_number);
    }
    const auto probe = client_->path_probe(now_ns_);
    const std::vector<std::byte> payload(probe.payload_bytes);
    if (!refuses_sends_) send(true, probe.header, payload.data(), probe.payload_bytes);
    next_tick_ns_ = now_ns_ + 1'000'000;
  }
  /// The client endpoint's work for an open session whose address may change.
  void probe_pair() {
    const auto probe = client_->pair_probe(now_ns_);
    const std::vector<std::byte> payload(probe.payload_bytes);
    if (!refuses_sends_) send(true, probe.header, payload.data(), probe.payload_bytes);
  }
  /// The server endpoint's work for such a session.
  void answer_pair_probe() {
    if (std::exchange(pair_address_, packet_address_) != packet_address_) pair_token_++;
    server_->owe_pair_reply(300 + pair_token_);
  }
  void send(bool to_server, const wire::Header& header, const std::byte* payload, uint32_t bytes) {
    Packet packet{to_server, header, {payload, payload + bytes}, to_server, to_server ? address_ : server_sends_to_};
    for (uint64_t word : {header.w0, header.w1, header.w2}) packet.hash = mix(packet.hash, word);
    for (std::byte byte : packet.payload) packet.hash = mix(packet.hash, static_cast<uint64_t>(byte));
    if (options_.has_nat) packet.hash = mix(packet.hash, packet.address);
    if (!to_server) newest_server_number_ = header.number();
    const bool is_message = header.kind() == wire::Kind::kRequest || header.kind() == wire::Kind::kResponse;
    if (is_message && bytes > options_.payload_bytes_max) {
      (to_server ? large_requests_ : large_responses_)++;
      whole_responses_ += !to_server && (header.flags() & wire::kFirst) != 0;
    }
    in_flight_.push_back(std::move(packet));
    packets_sent_++;
  }
  void check() {
    client_->check_invariants();
    server_->check_invariants();
  }

  // -- The client's side --

  /// Returns the last call with that number. A call that ends before its first packet leaves its number to the next
  /// call.
  Call* call_of(uint32_t request_number) {
    for (size_t i = calls_.size(); i-- > 0;) {
      if (calls_[i].has_begun && calls_[i].request_number == request_number) return &calls_[i];
    }
    return nullptr;
  }
  bool begin_calls() {
    bool has_begun = false;
    if (client_->state() != session::ClientSession::State::kOpen) return false;
    while (next_call_ < calls_.size() && client_->has_free_slot()) {
      Call& call = calls_[next_call_++];
      call.request = session::make_buffer(call.plan.request_bytes);
      call.response = session::make_buffer(call.plan.response_bytes);
      ClientSlot* slot = client_->try_begin(call.request.get(), call.response.get(), 5);
      if (slot == nullptr) slot = client_->begin(call.request.get(), call.response.get(), 5);
      if (slot == nullptr) std::abort();
      client_->set_deadline(slot, call.plan.time_left_ns == 0 ? UINT64_MAX : now_ns_ + call.plan.time_left_ns);
      call.request_number = slot->request_number;
      call.has_begun = true;
      for (uint32_t i = 0; i < call.plan.request_bytes; i++) {
        call.request->data()[i] = content(call.request_number, false, i);
      }
      has_begun = true;
    }
    return has_begun;
  }
  /// The work of an iteration of the client's loop after its received packets.
  void pump_client() {
    probe_path();
    if (client_->state() != session::ClientSession::State::kOpen) return;
    for (uint32_t round = 0;; round++) {
      bool has_moved = begin_calls();
      uint32_t data_packets = 0, counted = 0;
      const auto send_it = [&](const wire::Header& header, const std::byte* data, uint32_t bytes, detail::Buffer*) {
        if (refuses_sends_) return false;
        const wire::Kind kind = header.kind();
        const bool needs_credit = kind == wire::Kind::kRequest || kind == wire::Kind::kRfr;
        // One turn may send several packets, and count them at its end.
        if (std::exchange(counted, client_->credits_in_flight()) != client_->credits_in_flight()) data_packets = 0;
        if (needs_credit && client_->credits_in_flight() + data_packets++ >= client_->credit_limit()) {
          fail("a packet without a credit");
        }
        if (kind == wire::Kind::kRfr) check_rfr(header);
        if (kind == wire::Kind::kRequest) check_request(header);
        const std::vector<std::byte> any(bytes);
        send(true, header, data != nullptr ? data : any.data(), bytes);
        has_moved = true;
        return true;
      };
      session::ClientSession::Turn turn;
      uint32_t packets = 0;
      do {
        data_packets = 0;
        turn = client_->transmit(
            now_ns_, send_it, [&] { return ++ticket_; }, packets);
      } while (turn >= session::ClientSession::Turn::kSent);
      const session::ClientTick tick = client_->tick(now_ns_);
      if ((client_history_ & 1) != 0) client_->try_rest();
      next_tick_ns_ = tick.next_ns;
      is_idle_ = tick.is_idle;
      if (tick.wants_pair_probe) probe_pair();
      if (tick.ask_liveness) client_->on_peer_in_callback();  // a hundred lost packets in a row are no proof of death
      if (tick.has_failed) fail("the client believes that the server is dead");
      for (uint64_t mask = tick.expired_mask; mask != 0; mask &= mask - 1) {
        const ClientSlot* slot = client_->slot(static_cast<uint32_t>(std::countr_zero(mask)));
        end_call_early(*call_of(slot->request_number), Code::kDeadline);
        has_moved = true;
      }
      if (refuses_sends_) {
        next_tick_ns_ = now_ns_ + 1'000;  // the client tries again
        return;
      }
      if (!has_moved && !client_->wants_to_send()) return;
      if (!has_moved && round > 0) return;  // the client has work but must wait
      if (round > 100) return fail("the client never stops sending at one moment");
    }
  }
  void check_rfr(const wire::Header& rfr) {
    const uint32_t safe_bytes = options_.payload_bytes_max;
    const uint32_t bytes = std::max(safe_bytes, wire::payload_of_code(rfr.payload_code()));
    const uint32_t count = rfr.message_bytes();
    const auto credits = static_cast<int32_t>(count * wire::credits_of(bytes + 24, pools_.credit_unit));
    // A session may always ask for 4 packets of its own size. The last packet may exceed a limit (clause 5.4).
    const uint32_t before_last = (count - 1) * bytes;
    const int32_t credits_before_last = credits - credits / static_cast<int32_t>(count);
    if (count > 1 && before_last >= 4 * safe_bytes && credits_before_last >= pools_.response_credits_free) {
      fail("an RFR beyond the queue");
    }
    if (count > 1 && before_last >= pools_.response_share.packets() * uint64_t{safe_bytes}) {
      fail("an RFR beyond the downlink");
    }
  }
  /// A response that may come whole has space in the client's queue, like four of its kind, and in the downlink
  /// (5.3.3).
  void check_request(const wire::Header& request) {
    if ((request.flags() & wire::kTakesWhole) == 0) return;
    const uint32_t bytes = wire::payload_of_code(request.payload_code());
    if (bytes <= options_.payload_bytes_max) fail("a request names a size that is not larger");
    const auto credits = static_cast<int32_t>(wire::credits_of(bytes + 24, pools_.credit_unit));
    if (4 * credits > pools_.response_credits_free) fail("a whole response beyond the queue");
    if (bytes > pools_.response_share.packets() * uint64_t{options_.payload_bytes_max}) {
      fail("a whole response beyond the downlink");
    }
  }
  void end_call_early(Call& call, Code code) {
    ClientSlot* slot = client_->slot(call.request_number & (wire::kSlotsMax - 1));
    client_->end_early(slot, now_ns_);
    finish(call, code);
    note_release(slot, call);
  }
  void note_release(const ClientSlot* slot, Call& call) {
    const bool is_free = slot == nullptr || slot->phase == ClientSlot::Phase::kFree;  // null: the client rests
    if (is_free) call.slot_is_released = true;
  }
  void finish(Call& call, Code code) {
    call.finishes++;
    call.code = code;
    if (call.finishes > 1) fail("a call finished twice");
    if (code == Code::kOk && (call.plan.fails || call.plan.is_refused)) fail("a refused call was answered");
    if (code == Code::kOk && call.runs != 1) fail("a call was answered that no handler saw");
    if (code == Code::kOk && call.response->length_bytes != call.plan.response_bytes)
      fail("a response of a wrong size");
    if (code == Code::kOk && !has_content(*call.response, call.request_number, true)) fail("wrong response bytes");
    call.request.reset();
    call.response.reset();
  }
  /// True: the packet is of an earlier handshake's session, or was overtaken by more packets than a client remembers.
  bool is_late(const wire::Header& header) const {
    const uint32_t behind = (newest_server_number_ - header.number()) & wire::kNumberMask;
    return handshakes_ > 1 || behind >= session::NumberWindow::kSpan;
  }
  void client_receives(const wire::Header& header, const transport::Payload& payload) {
    session::ClientVerdict verdict;
    if (header.kind() == wire::Kind::kResponse) {
      if (ClientSlot* slot = client_->try_finish(header, payload, now_ns_)) {
        Call& call = *call_of(slot->request_number);
        return finish(call, Code::kOk);
      }
    }
    switch (header.kind()) {
      case wire::Kind::kResponse:
        verdict = client_->on_response(header, payload, now_ns_);
        break;
      case wire::Kind::kCr:
        verdict = client_->on_credit_return(header, payload, now_ns_);
        break;
      case wire::Kind::kCancelled:
        verdict = client_->on_cancelled(header, now_ns_);
        break;
      case wire::Kind::kPathReply: {
        const auto path_verdict = client_->on_path_reply(header, payload.bytes, now_ns_);
        wants_path_probe_ = path_verdict == session::ClientSession::PathVerdict::kAnswered;
        if (path_verdict == session::ClientSession::PathVerdict::kFound) probe_pair();
        break;
      }
      default:
        fail("the server sent what only clients send");
    }
    if (verdict.drop == session::Drop::kUnproven && !is_late(header))
      fail("the client does not recognise a packet of the server");
    if (verdict.drop == session::Drop::kMalformed) fail("the client calls a packet of the server malformed");
    if (verdict.finished != nullptr) {
      Call& call = *call_of(verdict.finished->request_number);
      client_->release_slot(verdict.finished);
      finish(call, verdict.status.code());
    }
    for (Call& call : calls_) {
      if (!call.has_begun || call.finishes == 0 || call.slot_is_released) continue;
      note_release(client_->slot(call.request_number & (wire::kSlotsMax - 1)), call);
    }
  }

  // -- The server's side --

  void server_receives(const wire::Header& header, const transport::Payload& payload) {
    if (header.session_key() != server_key()) return;  // a packet of an earlier handshake's session
    if (session::is_whole_request(header, payload.bytes) && !payload.is_marked && payload.lease == nullptr) {
      if (ServerSlot* slot = server_->try_begin(header, payload.bytes, now_ns_)) {
        slot->deadline_code = header.deadline_code();
        run_handler(slot, copy_of(payload), options_.answers_at_once);
        if (slot->phase == ServerSlot::Phase::kRunning) server_->defer(slot);
        return;
      }
    }
    const uint32_t index = header.request_number() & (wire::kSlotsMax - 1);
    const ServerSlot* slot = index < options_.window ? server_->slot(index) : nullptr;
    const bool is_idle = slot == nullptr || slot->phase == ServerSlot::Phase::kIdle;
    const bool was_at_rest = is_idle && server_->number_of(index) == header.request_number();
    if (header.kind() == wire::Kind::kRequest && slot != nullptr && session::ServerSession::is_busy(*slot) &&
        header.request_number() == slot->request_number + wire::kSlotsMax) {
      fail("a slot is taken again before its request has ended");
    }
    const bool was_received = server_->has_received(header);
    const session::ServerVerdict verdict = server_->on_packet(header, payload, now_ns_, offers_);
    const bool is_accepted = !was_received && server_->has_received(header);
    const bool is_answered = header.kind() != wire::Kind::kReport && header.kind() != wire::Kind::kPathProbe;
    if (is_accepted && payload.is_marked && is_answered) owes_echo_ = true;
    switch (verdict.drop) {
      case session::Drop::kMalformed:
        // A late probe for a call that has ended meanwhile. The outcome of the other calls shows that none of them was
        // told so.
        if (header.kind() != wire::Kind::kProbe || !was_at_rest)
          fail("the server calls a packet of the client malformed");
        break;
      case session::Drop::kUnproven:
        // A late packet, or one with a token that belongs to another address meanwhile.
        if (header.kind() != wire::Kind::kRfr && (header.flags() & wire::kPaired) == 0)
          fail("the server does not recognise a packet of the client");
        break;
      case session::Drop::kNoMemory:
        fail("the server has no memory");
        break;
      default:
        break;
    }
    if (verdict.wants_pair) answer_pair_probe();
    if (verdict.has_paired) server_sends_to_ = pair_address_;
    if (verdict.started != nullptr) {
      run_handler(verdict.started, verdict.message != nullptr ? OwnedBuffer(verdict.message) : copy_of(payload));
    }
  }
  static OwnedBuffer copy_of(const transport::Payload& payload) {
    OwnedBuffer copy = session::make_buffer(payload.bytes);
    std::memcpy(copy->data(), payload.data, payload.bytes);
    return copy;
  }
  void run_handler(ServerSlot* slot, OwnedBuffer request, bool answers_at_once = false) {
    Call* call = call_of(slot->request_number);
    if (call == nullptr) return fail("a handler ran for a request that no client made");
    free_response(slot);
    if (call->plan.is_refused) return server_->fail(slot, wire::FailureCode::kUnknownType, 0);
    if (++call->runs > 1) return fail("a handler ran twice for one request");
    if (call->slot_is_released) return fail("a handler started after the client had been told that it never would");
    if (request->length_bytes != call->plan.request_bytes) fail("a request of a wrong size");
    if (!has_content(*request, slot->request_number, false)) fail("a handler saw a torn request");
    const bool has_deadline = slot->deadline_code != wire::kNoDeadline;
    if (has_deadline != (call->plan.time_left_ns != 0)) fail("the deadline was lost or made up");
    call->is_running = true;
    slot->call = call;
    if (call->plan.answers_later) {
      const bool holds = options_.holds_returns && server_->try_hold(slot, options_.credit_limits[0]);
      if (!holds) server_->owe_credit_return(server_->newest(), now_ns_);
    } else {
      answer_call(*call, answers_at_once);
    }
  }
  void answer_call(Call& call, bool at_once = false) {
    ServerSlot* slot = server_->slot(call.request_number & (wire::kSlotsMax - 1));
    if (slot->call != &call) return fail("a handler answers for a slot that has moved on");
    call.is_running = false;
    if (call.plan.fails) return server_->fail(slot, wire::FailureCode::kApplication, 77);
    slot->response = session::make_buffer(call.plan.response_bytes).release();
    slot->response_bytes = call.plan.response_bytes;
    for (uint32_t i = 0; i < slot->response_bytes; i++) {
      slot->response->data()[i] = content(call.request_number, true, i);
    }
    if (!at_once || !answer_at_once(slot)) server_->respond(slot);
  }
  bool answer_at_once(ServerSlot* slot) {
    const uint8_t limit = options_.credit_limits[answers_ % options_.credit_limits.size()];
    const auto send_it = [&](const wire::Header& header, const std::byte* data, uint32_t bytes, detail::Buffer*) {
      if (refuses_sends_) return false;
      if (owes_echo_) fail("a mark is not echoed by the next packet");
      send(false, header, data, bytes);
      return true;
    };
    if (!server_->try_answer(slot, slot->response_bytes, limit, send_it)) return false;
    answers_++;
    return true;
  }
  static void free_response(ServerSlot* slot) {
    BufferDeleter()(slot->response);
    slot->response = nullptr;
  }
  void pump_server() {
    bool has_echoed = false, has_answered = false;  // during this turn
    const auto send_it = [&](const wire::Header& header, const std::byte* data, uint32_t bytes, detail::Buffer*) {
      if (refuses_sends_) return false;
      const bool is_echo = (header.flags() & wire::kEcnEcho) != 0;
      if (is_echo && !owes_echo_) fail("an echo of a mark that no packet had");
      has_echoed |= is_echo;
      has_answered |= header.kind() != wire::Kind::kCancelled;
      const std::vector<std::byte> any(bytes);
      send(false, header, data != nullptr ? data : any.data(), bytes);
      return true;
    };
    while (server_->wants_to_send()) {
      if (server_->owes_pair_reply()) {
        const wire::Header reply = server_->pair_reply(options_.credit_limits[0]);
        const uint32_t usual = std::exchange(server_sends_to_, pair_address_);
        if (!refuses_sends_) send(false, reply, nullptr, 0);
        server_sends_to_ = usual;
        continue;
      }
      const uint8_t limit = options_.credit_limits[answers_++ % options_.credit_limits.size()];
      uint32_t packets = 0;
      const auto turn = server_->transmit(
          now_ns_, limit, send_it, [&] { return ++ticket_; }, packets);
      if (owes_echo_ && has_answered && !has_echoed) fail("a mark is not echoed by the next packet");
      if (std::exchange(has_echoed, false)) owes_echo_ = false;
      has_answered = false;
      if (turn != session::ServerSession::Turn::kSent) break;
    }
  }

  WorldOptions options_;
  uint32_t address_ = 1;         ///< the client's outer address at the NAT
  uint32_t packet_address_ = 0;  ///< source of the packet that the server is receiving
  uint32_t server_sends_to_ = 0, pair_address_ = 0, pair_token_ = 0;
  session::ClientPools pools_;
  session::ServerPools server_pools_;
  Offers offers_{*this};
  std::unique_ptr<session::ClientSession> client_;
  std::unique_ptr<session::ServerSession> server_;
  std::vector<Packet> in_flight_;
  std::vector<Call> calls_;
  size_t next_call_ = 0;
  uint64_t now_ns_ = 1'000'000'000;
  uint64_t next_tick_ns_ = UINT64_MAX;
  uint64_t ticket_ = 0;
  uint32_t handshakes_ = 0;
  uint32_t newest_server_number_ = 0;
  bool wants_path_probe_ = false;
  bool refuses_sends_ = false;  ///< the transport refuses packets during this event
  bool owes_echo_ = false;      ///< the server has received a mark and not echoed it
  uint64_t answers_ = 0;
  uint64_t packets_sent_ = 0;
  uint64_t large_requests_ = 0, large_responses_ = 0, whole_responses_ = 0;
  uint64_t client_history_ = 1;
  uint64_t server_history_ = 2;
  bool is_idle_ = false;
  std::string error_;
};

}  // namespace tern::model
