// A world of one client session, one server session and a network that is a bag of packets. Test code, one thread.
//
// The driver does what the rpc room does around the two state machines, and checks the promises of docs/protocol.md
// after every step: a handler runs at most once, a call finishes once, bytes arrive as they were sent, credits are
// obeyed, and nothing starts that the client was told is over.
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

namespace tern::model {

/// A message buffer of malloc's, so that AddressSanitizer guards its exact size.
struct BufferDeleter {
  void operator()(detail::Buffer* buffer) const { std::free(buffer); }
};
using OwnedBuffer = std::unique_ptr<detail::Buffer, BufferDeleter>;

inline OwnedBuffer make_buffer(uint32_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, alignof(detail::Buffer), sizeof(detail::Buffer) + bytes) != 0) std::abort();
  auto* buffer = new (memory) detail::Buffer{};
  buffer->length_bytes = bytes;
  buffer->capacity_bytes = bytes;
  return OwnedBuffer(buffer);
}

inline uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

struct CallPlan {
  uint32_t request_bytes = 0;
  uint32_t response_bytes = 0;
  bool answers_later = false;  ///< the handler returns unanswered; World::answer() answers
  bool fails = false;          ///< it answers with Request::fail
  uint64_t time_left_ns = 0;   ///< until its deadline, from its begin; 0: none
};

struct WorldOptions {
  uint8_t window = 1;
  uint32_t payload_bytes_max = 4;  ///< the wire's minimum concerns transports; a session takes any
  uint8_t start_credits = 1;
  std::vector<uint8_t> credit_limits{1};  ///< the server grants them in turn
  uint32_t bulk_packets = 32;
  uint32_t response_packets = 64;
  uint32_t downlink_packets = 0;             ///< that the client shares among responses; 0: it knows of none
  uint64_t delivery_ns = 0;                  ///< how far a delivery moves the clock
  uint32_t first_request_count = 0x3fffffe;  ///< request numbers wrap within the run
  uint32_t marks_one_in = 0;                 ///< of the client's packets, about; 0: none meets a congestion mark
  std::vector<CallPlan> calls;
};

class World {
 public:
  struct Packet {
    bool to_server;
    wire::Header header;
    std::vector<std::byte> payload;
    uint64_t hash;
    bool operator==(const Packet& other) const { return hash == other.hash; }
  };
  struct Call {
    CallPlan plan;
    uint32_t request_number = 0;
    bool has_begun = false;
    bool is_running = false;  ///< its handler has been called and has not answered
    uint32_t runs = 0;
    uint32_t finishes = 0;
    bool slot_is_released = false;
    Code code = Code::kOk;  ///< of its finish
    OwnedBuffer request, response;
  };

  explicit World(const WorldOptions& options) : options_(options) {
    pools_.response_packets_free = static_cast<int32_t>(options.response_packets);
    pools_.response_share = session::ResponseShare({options.downlink_packets, 1});
    session::ClientTerms client_terms;
    client_terms.local_key = 7;
    client_terms.window = options.window;
    client_terms.bulk_packets = options.bulk_packets;
    client_ = std::make_unique<session::ClientSession>(client_terms, pools_);
    session::ServerTerms server_terms;
    server_terms.local_key = 9;
    server_terms.remote_key = 7;
    server_terms.payload_bytes_max = options.payload_bytes_max;
    server_terms.window = options.window;
    server_terms.first_request_count = options.first_request_count;
    server_ = std::make_unique<session::ServerSession>(server_terms, server_pools_);
    for (const CallPlan& plan : options.calls) calls_.emplace_back().plan = plan;
    open();
    pump_client();
  }
  ~World() {
    for (uint32_t i = 0; i < options_.window; i++) {
      if (server_->slot(i) != nullptr) end_server_slot(server_->slot(i));
    }
    client_.reset();
    if (pools_.response_packets_free != static_cast<int32_t>(options_.response_packets)) std::abort();
    if (pools_.response_share.responses() != 0) std::abort();
  }

  // -- What may happen --

  /// The other side receives a packet in flight; `keep`: a copy stays in flight; `is_torn`: it came by reference and
  /// its lease was lost; `is_held`: what it causes to be sent waits for the next event of that side.
  void deliver(size_t index, bool keep, bool is_torn, bool is_held) {
    now_ns_ += options_.delivery_ns;
    const Packet packet = in_flight_[index];
    if (!keep) in_flight_.erase(in_flight_.begin() + static_cast<ptrdiff_t>(index));
    std::vector<std::byte> bytes = packet.payload;
    wire::Header header = packet.header;
    if (is_torn) std::fill(bytes.begin(), bytes.end(), std::byte{0xee});
    const std::atomic<uint32_t> lease{2};
    bytes.reserve(1);  // data() is no null
    transport::Payload payload{bytes.data(), static_cast<uint32_t>(bytes.size()), nullptr, 0};
    if (is_torn) {
      payload.lease = &lease;
      payload.lease_value = 1;
      header.set_length_and_flags(0, header.flags() | wire::kByReference);
    }
    uint64_t& history = packet.to_server ? server_history_ : client_history_;
    history = mix(mix(mix(history, packet.hash), now_ns_), is_torn * 2u + is_held);
    if (packet.to_server) {
      payload.is_marked = options_.marks_one_in != 0 && packet.hash % options_.marks_one_in == 0;
      server_receives(header, payload);
      if (!is_held) pump_server();
    } else {
      client_receives(header, payload);
      if (!is_held) pump_client();
    }
    check();
  }
  static bool can_be_torn(const Packet& packet) {
    return !packet.payload.empty() &&
           (packet.header.kind() == wire::Kind::kRequest || packet.header.kind() == wire::Kind::kResponse);
  }
  void drop(size_t index) { in_flight_.erase(in_flight_.begin() + static_cast<ptrdiff_t>(index)); }
  /// Time passes until the client asked to be looked at.
  void tick() {
    now_ns_ = next_tick_ns_ == UINT64_MAX ? now_ns_ + 1'000'000 : std::max(now_ns_ + 1, next_tick_ns_);
    client_history_ = mix(mix(client_history_, 0x71c4), now_ns_);
    server_history_ = mix(mix(server_history_, 0x71c4), now_ns_);
    pump_client();
    pump_server();
    check();
  }
  bool can_answer(size_t call) const { return calls_[call].is_running; }
  void answer(size_t call) {
    server_history_ = mix(mix(server_history_, 0xa05), call * 1000003 + now_ns_);
    answer_call(calls_[call]);
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

  /// No more faults: FIFO delivery, handlers answer, time passes when nothing is in flight. False: not everything was
  /// over within `steps_max`.
  bool heal(uint32_t steps_max) {
    for (uint32_t step = 0; step < steps_max && error_.empty(); step++) {
      size_t running = 0;
      while (running < calls_.size() && !can_answer(running)) running++;
      if (!in_flight_.empty()) {
        deliver(0, false, false, false);
      } else if (running < calls_.size()) {
        answer(running);
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

  // -- What can be seen --

  const std::vector<Packet>& in_flight() const { return in_flight_; }
  const std::vector<Call>& calls() const { return calls_; }
  /// Empty, or which promise was broken.
  const std::string& error() const { return error_; }
  uint64_t now_ns() const { return now_ns_; }
  uint64_t packets_sent() const { return packets_sent_; }
  const session::ClientSession& client() const { return *client_; }
  /// Equal for worlds that cannot be told apart from here on: both machines are functions of what they were told.
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
  void open() {
    client_->on_accepted(9, options_.payload_bytes_max, options_.window, options_.start_credits, now_ns_);
    const wire::Header probe = client_->path_probe(now_ns_);
    server_->note(server_->admit(probe));
    server_->on_path_probe(probe, options_.payload_bytes_max, probe.number());
    wire::Header reply;
    const auto keep = [&](const wire::Header& header, const std::byte*, uint32_t, detail::Buffer*) {
      reply = header;
      return true;
    };
    uint32_t packets = 0;
    server_->transmit(
        now_ns_, options_.start_credits, keep, [&] { return ++ticket_; }, packets);
    if (!client_->on_path_reply(reply, options_.payload_bytes_max, now_ns_)) std::abort();
  }
  void send(bool to_server, const wire::Header& header, const std::byte* payload, uint32_t bytes) {
    Packet packet{to_server, header, {payload, payload + bytes}, to_server};
    for (uint64_t word : {header.w0, header.w1, header.w2}) packet.hash = mix(packet.hash, word);
    for (std::byte byte : packet.payload) packet.hash = mix(packet.hash, static_cast<uint64_t>(byte));
    in_flight_.push_back(std::move(packet));
    packets_sent_++;
  }
  void check() {
    client_->check_invariants();
    server_->check_invariants();
  }

  // -- The client's side --

  /// The last that had the number: one that ends before its first packet leaves it to another.
  Call* call_of(uint32_t request_number) {
    for (size_t i = calls_.size(); i-- > 0;) {
      if (calls_[i].has_begun && calls_[i].request_number == request_number) return &calls_[i];
    }
    return nullptr;
  }
  bool begin_calls() {
    bool has_begun = false;
    while (next_call_ < calls_.size() && client_->has_free_slot()) {
      Call& call = calls_[next_call_++];
      call.request = make_buffer(call.plan.request_bytes);
      call.response = make_buffer(call.plan.response_bytes);
      ClientSlot* slot = client_->try_begin(call.request.get(), call.response.get(), 5);
      if (slot == nullptr) slot = client_->begin(call.request.get(), call.response.get(), 5);
      if (slot == nullptr) std::abort();
      slot->deadline_ns = call.plan.time_left_ns == 0 ? UINT64_MAX : now_ns_ + call.plan.time_left_ns;
      call.request_number = slot->request_number;
      call.has_begun = true;
      for (uint32_t i = 0; i < call.plan.request_bytes; i++) {
        call.request->data()[i] = content(call.request_number, false, i);
      }
      has_begun = true;
    }
    return has_begun;
  }
  /// Everything that an iteration of the client's loop does after its packets.
  void pump_client() {
    for (uint32_t round = 0;; round++) {
      bool has_moved = begin_calls();
      uint32_t data_packets = 0;
      const auto send_it = [&](const wire::Header& header, const std::byte* data, uint32_t bytes, detail::Buffer*) {
        const wire::Kind kind = header.kind();
        const bool needs_credit = kind == wire::Kind::kRequest || kind == wire::Kind::kRfr;
        // One turn may send several; it counts them at its end.
        if (needs_credit && client_->packets_in_flight() + data_packets++ >= client_->credit_limit()) {
          fail("a packet without a credit");
        }
        // A session may always have 4 on their way (clause 5.4).
        if (kind == wire::Kind::kRfr &&
            static_cast<int32_t>(header.message_bytes()) > std::max(pools_.response_packets_free, 4)) {
          fail("an RFR beyond the queue");
        }
        if (kind == wire::Kind::kRfr && header.message_bytes() > pools_.response_share.packets()) {
          fail("an RFR beyond the downlink");
        }
        send(true, header, data, bytes);
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
      next_tick_ns_ = tick.next_ns;
      is_idle_ = tick.is_idle;
      if (tick.ask_liveness) client_->on_peer_in_callback();  // a hundred drops in a row are no death
      if (tick.has_failed) fail("the client believes that the server is dead");
      for (uint64_t mask = tick.expired_mask; mask != 0; mask &= mask - 1) {
        const ClientSlot* slot = client_->slot(static_cast<uint32_t>(std::countr_zero(mask)));
        end_call_early(*call_of(slot->request_number), Code::kDeadline);
        has_moved = true;
      }
      if (!has_moved && !client_->wants_to_send()) return;
      if (!has_moved && round > 0) return;  // it wants to, but may not now
      if (round > 100) return fail("the client sends without end at one moment");
    }
  }
  void end_call_early(Call& call, Code code) {
    ClientSlot* slot = client_->slot(call.request_number & (wire::kSlotsMax - 1));
    client_->end_early(slot, now_ns_);
    finish(call, code);
    note_release(slot, call);
  }
  void note_release(const ClientSlot* slot, Call& call) {
    if (slot->phase == ClientSlot::Phase::kFree) call.slot_is_released = true;
  }
  void finish(Call& call, Code code) {
    call.finishes++;
    call.code = code;
    if (call.finishes > 1) fail("a call finished twice");
    if (code == Code::kOk && call.plan.fails) fail("a refused call was answered");
    if (code == Code::kOk && call.runs != 1) fail("a call was answered that no handler saw");
    if (code == Code::kOk && call.response->length_bytes != call.plan.response_bytes)
      fail("a response of a wrong size");
    if (code == Code::kOk && !has_content(*call.response, call.request_number, true)) fail("wrong response bytes");
    call.request.reset();
    call.response.reset();
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
      default:
        fail("the server sent what only clients send");
    }
    if (verdict.drop == session::Drop::kMalformed) fail("the client takes the server's packet for malformed");
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
    if (header.kind() == wire::Kind::kRequest && !payload.is_marked) {
      if (ServerSlot* slot = server_->try_begin(header, payload.bytes, now_ns_)) {
        slot->deadline_code = wire::kNoDeadline;
        OwnedBuffer copy = make_buffer(payload.bytes);
        std::memcpy(copy->data(), payload.data, payload.bytes);
        free_response(slot);
        run_handler(slot, std::move(copy));
        if (slot->phase == ServerSlot::Phase::kRunning) server_->defer(slot);
        return;
      }
    }
    const uint64_t number = server_->admit(header);
    if (number == 0) return;
    if (payload.is_marked && header.kind() != wire::Kind::kReport) {
      server_->note_mark();
      owes_echo_ = true;
    }
    if (header.kind() == wire::Kind::kRequest) return server_receives_request(header, payload, number);
    server_->note(number);
    switch (header.kind()) {
      case wire::Kind::kRfr:
        server_->on_rfr(header, number, now_ns_);
        break;
      case wire::Kind::kProbe:
        if (ServerSlot * lost; !server_->on_probe(header, number, now_ns_, &lost)) {
          // Late: the call has ended meanwhile. That nobody else is told so shows in what becomes of the calls.
          const bool is_late = lost != nullptr && lost->phase == ServerSlot::Phase::kIdle &&
                               lost->request_number == header.request_number();
          if (!is_late) return fail("a request was acknowledged that is not whole");
          server_->begin(lost, header, number, now_ns_);
          server_->fail(lost, wire::FailureCode::kLost, 0);
        }
        break;
      case wire::Kind::kCancel:
        if (ServerSlot* slot = server_->on_cancel(header, number, now_ns_)) end_server_slot(slot);
        break;
      case wire::Kind::kReport:
        if (!server_->on_report(payload, [](ServerSlot* slot) { free_response(slot); })) fail("a malformed report");
        break;
      default:
        fail("the client sent what only servers send");
    }
  }
  void server_receives_request(const wire::Header& header, const transport::Payload& payload, uint64_t number) {
    using session::RequestVerdict;
    ServerSlot* slot = nullptr;
    const auto request_verdict = server_->classify(header, payload.bytes, &slot);
    const bool is_new = request_verdict == RequestVerdict::kShort || request_verdict == RequestVerdict::kLongFirst;
    if (is_new && session::ServerSession::is_busy(*slot)) fail("a slot was taken again before its request had ended");
    switch (request_verdict) {
      case RequestVerdict::kMalformed:
        return fail("the server takes the client's packet for malformed");
      case RequestVerdict::kStale:
        server_->note(number);
        return server_->owe_credit_return(now_ns_);
      case RequestVerdict::kAgain:
        server_->note(number);
        return server_->answer_again(slot, number, now_ns_);
      case RequestVerdict::kShort: {
        OwnedBuffer copy = make_buffer(payload.bytes);
        if (!payload.copy_to(copy->data())) return;
        free_response(slot);
        server_->begin(slot, header, number, now_ns_);
        server_->note(number);
        return run_handler(slot, std::move(copy));
      }
      case RequestVerdict::kLongFirst: {
        OwnedBuffer buffer = make_buffer(header.message_bytes());
        free_response(slot);
        if (!server_->begin_long(slot, header, number, now_ns_, buffer.get())) std::abort();
        buffer.release();
        break;
      }
      case RequestVerdict::kLongMore:
        break;
    }
    const auto placed = server_->place(slot, header, payload, number, now_ns_);
    if (placed == session::ServerSession::Placed::kLeaseLost) return;
    server_->note(number);
    if (placed == session::ServerSession::Placed::kMore) return server_->owe_credit_return(now_ns_);
    run_handler(slot, OwnedBuffer(server_->take_assembled(slot)));
  }
  void run_handler(ServerSlot* slot, OwnedBuffer request) {
    Call* call = call_of(slot->request_number);
    if (call == nullptr) return fail("a handler ran for a request that nobody made");
    if (++call->runs > 1) return fail("a handler ran twice for one request");
    if (call->slot_is_released) return fail("a handler started after the client had been told that it never would");
    if (request->length_bytes != call->plan.request_bytes) fail("a request of a wrong size");
    if (!has_content(*request, slot->request_number, false)) fail("a handler saw a torn request");
    const bool has_deadline = slot->deadline_code != wire::kNoDeadline;
    if (has_deadline != (call->plan.time_left_ns != 0)) fail("the deadline was lost or made up");
    call->is_running = true;
    slot->call = call;
    if (call->plan.answers_later) {
      server_->owe_credit_return(now_ns_);
    } else {
      answer_call(*call);
    }
  }
  void answer_call(Call& call) {
    ServerSlot* slot = server_->slot(call.request_number & (wire::kSlotsMax - 1));
    if (slot->call != &call) return fail("a handler answers for a slot that has moved on");
    call.is_running = false;
    if (call.plan.fails) return server_->fail(slot, wire::FailureCode::kApplication, 77);
    slot->response = make_buffer(call.plan.response_bytes).release();
    slot->response_bytes = call.plan.response_bytes;
    for (uint32_t i = 0; i < slot->response_bytes; i++) {
      slot->response->data()[i] = content(call.request_number, true, i);
    }
    server_->respond(slot);
  }
  static void free_response(ServerSlot* slot) {
    BufferDeleter()(slot->response);
    slot->response = nullptr;
  }
  void end_server_slot(ServerSlot* slot) {
    if (slot->call != nullptr) static_cast<Call*>(slot->call)->is_running = false;
    detail::Buffer* assembled = nullptr;
    server_->end_slot(slot, &assembled);
    BufferDeleter()(assembled);
    free_response(slot);
  }
  void pump_server() {
    bool has_echoed = false, has_answered = false;  // in this turn
    const auto send_it = [&](const wire::Header& header, const std::byte* data, uint32_t bytes, detail::Buffer*) {
      const bool is_echo = (header.flags() & wire::kEcnEcho) != 0;
      if (is_echo && !owes_echo_) fail("a mark that no packet met is echoed");
      has_echoed |= is_echo;
      has_answered |= header.kind() != wire::Kind::kCancelled;
      send(false, header, data, bytes);
      return true;
    };
    while (server_->wants_to_send()) {
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
  session::ClientPools pools_;
  session::ServerPools server_pools_;
  std::unique_ptr<session::ClientSession> client_;
  std::unique_ptr<session::ServerSession> server_;
  std::vector<Packet> in_flight_;
  std::vector<Call> calls_;
  size_t next_call_ = 0;
  uint64_t now_ns_ = 1'000'000'000;
  uint64_t next_tick_ns_ = UINT64_MAX;
  uint64_t ticket_ = 0;
  bool owes_echo_ = false;  ///< the server has had a mark and not said so
  uint64_t answers_ = 0;
  uint64_t packets_sent_ = 0;
  uint64_t client_history_ = 1;
  uint64_t server_history_ = 2;
  bool is_idle_ = false;
  std::string error_;
};

}  // namespace tern::model
