// The server end of a session as a pure state machine: it has no timers, answers packets, and runs each request at most
// once. A packet, the time and the endpoint's offers go in; a verdict comes out. A packet that does not prove itself
// (clause 3.9) changes nothing. No I/O, no callbacks to the application, no clock. docs/protocol.md, chapters 3 to 6.
//
//   server_session.cc    a session's life, and what on_packet() does with each kind of packet
//   server_requests.cc   request packets
//   server_control.cc    RFRs, probes, cancels and reports
//   server_send.cc       packets to the client
//   server_hold.cc       credit returns that wait for answers
//   server_path.*        path probes and replies
//   server_slot.h        slots
#pragma once

#include <cstddef>
#include <cstdint>

#include <tern/detail/buffer.h>
#include <tern/detail/export.h>

#include "base/check.h"
#include "base/lowest_bit.h"
#include "session/drop.h"
#include "session/range_queue.h"
#include "session/server_path.h"
#include "session/server_results.h"
#include "session/server_slot.h"
#include "session/windows.h"
#include "transport/payload.h"
#include "wire/header.h"
#include "wire/payload_code.h"

namespace tern::session {

/// The shape of a request of one packet.
inline constexpr uint16_t kPlainRequest = wire::shape_of(wire::Kind::kRequest, wire::kFirst);

/// True for a request that ServerSession::try_begin() may get: the whole request is in this packet 0.
inline bool is_whole_request(const wire::Header& header, uint32_t payload_bytes) {
  return header.shape() == kPlainRequest && header.message_bytes() == payload_bytes;
}

struct ServerTerms {
  uint32_t local_key = 0;
  uint32_t remote_key = 0;
  uint32_t payload_bytes_max = 0;
  uint8_t credit_unit = 0;           ///< wire/credits.h; the session itself does not use it
  uint8_t window = 8;                ///< slots, 1 to wire::kSlotsMax
  uint32_t first_request_count = 0;  ///< random, 26 bits
  uint32_t first_client_number = 1;  ///< from the client; 24 bits
  uint32_t first_number = 1;         ///< random, 24 bits
  uint32_t path_token = 0;           ///< random, 31 bits; sent in the handshake
  uint32_t session_token = 0;        ///< random, 31 bits; sent in the first path replies
};

class TERN_API ServerSession {
 public:
  explicit ServerSession(const ServerTerms& terms);
  /// Must be called after give_back().
  ~ServerSession();
  ServerSession(const ServerSession&) = delete;
  ServerSession& operator=(const ServerSession&) = delete;

  uint32_t local_key() const { return local_key_; }
  uint32_t payload_bytes_max() const { return payload_bytes_max_; }
  uint32_t window() const { return window_; }
  /// True if the client has shown that it receives at its address (clause 7.7). Before that there are no slots.
  bool is_open() const { return is_open_; }
  /// Null: the slot has had no request, or the client has all its responses. `index` must be below window().
  ServerSlot* slot(uint32_t index) const { return is_open_ ? slot_at(index) : nullptr; }
  static uint32_t index_of(const ServerSlot& slot) { return slot_index_of(slot.request_number); }
  /// Number of a slot's present or last request. A slot that has had none also has such a number.
  uint32_t number_of(uint32_t index) const;
  /// True if a packet with this number was accepted, or is too old to tell. For tests.
  bool has_received(const wire::Header& header) const { return received_.admit(header.number()) == 0; }
  /// True if the slot has a request that has not been answered.
  static bool is_busy(const ServerSlot& slot) { return slot.phase > ServerSlot::Phase::kFailed; }

  // -- Packets in --

  /// Takes a packet of the client.
  ServerVerdict on_packet(const wire::Header& header, const transport::Payload& payload, uint64_t now_ns,
                          ServerOffers& offers);
  /// The full packet of the same request that will probably follow `part`, if the request misses it.
  transport::ExpectedPacket expected_after(const wire::Header& part) const;
  /// The common case of on_packet(): the client's next packet is a new request. is_whole_request() must be true. Notes
  /// the packet, begins the request (kRunning) and returns its slot. The caller answers at once, or calls defer().
  /// Null: not the common case, and nothing has changed. `readable`: as for ClientSession::try_finish().
  template <size_t readable = 0>
  ServerSlot* try_begin(const wire::Header& header, uint32_t payload_bytes, uint64_t now_ns);
  /// Notes that the request that try_begin() began will be answered later.
  void defer(ServerSlot* slot) { response_mask_ &= ~bit_of(slot); }
  /// Prefetches the cache lines that a received packet needs last.
  [[gnu::always_inline]] void prefetch() const { __builtin_prefetch(&first_slot_, 1); }
  /// Prefetches all cache lines that a packet touches in a session with one call at a time.
  [[gnu::always_inline]] void prefetch_all() const {
    __builtin_prefetch(this, 1);
    __builtin_prefetch(&payload_bytes_max_, 1);
    prefetch();
  }
  /// Buffer of the last response of slot 0, which its next response will overwrite. Null: there is none.
  const detail::Buffer* first_response() const { return first_slot_.response; }

  // -- Answers --

  /// Answers the running request with slot->response, whose response_bytes are set.
  void respond(ServerSlot* slot) {
    move(slot, ServerSlot::Phase::kResponded);
    response_mask_ |= bit_of(slot);
  }
  /// Answers the running or arriving request with a failure.
  void fail(ServerSlot* slot, wire::FailureCode code, uint16_t app_code) {
    move(slot, ServerSlot::Phase::kFailed);
    slot->response_bytes = static_cast<uint32_t>(code) << 16 | app_code;
    response_mask_ |= bit_of(slot);
  }
  /// Number of the newest packet that has arrived; low half.
  uint32_t newest() const { return static_cast<uint32_t>(received_.largest()); }
  /// Makes a credit return due in this iteration, for a packet that arrives now. `number`: at least its low half.
  void owe_credit_return(uint64_t number, uint64_t now_ns) {
    if (holds_return()) [[unlikely]]
      return_held();
    // The credit return of a late packet tells the hold time of the newest one, if it is due already.
    const auto low = static_cast<uint32_t>(number);
    if (low == newest() || (due_ & kCreditReturn) == 0) [[likely]] {
      cr_since_ns_ = now_ns;
      cr_number_ = low;
    }
    due_ |= kCreditReturn;
  }
  /// Lets the credit return wait for the slot's request, a packet of one credit that has just arrived and will be
  /// answered later. Its answer then takes the place of the credit return (clause 4.2.6), or the caller ends the wait
  /// with return_held(). False: it must not wait. `credit_limit`: the least that the client may know.
  bool try_hold(const ServerSlot* slot, uint8_t credit_limit);
  bool holds_return() const { return (due_ & kHeld) != 0; }
  /// Number of the oldest packet whose credit return waits; low half. Only if holds_return().
  uint32_t oldest_held() const { return cr_number_; }
  /// Makes the credit return due that waits. Only if holds_return().
  void return_held();
  /// Must be called at once after ServerVerdict::wants_pair. pair_reply() then answers that packet, and the caller
  /// sends the reply to the packet's source address, after transmit() has returned kNothing. `token`: 31 random bits,
  /// new ones for each address. The token of the address before is not valid any more (clause 7.7.4).
  void owe_pair_reply(uint32_t token);
  bool owes_pair_reply() const { return (due_ & kPairReply) != 0; }
  /// Returns the header-only reply that is owed, and counts it as sent.
  wire::Header pair_reply(uint8_t credit_limit);
  /// The token of the last owe_pair_reply(). Only after ServerVerdict::wants_pair.
  uint32_t pair_token() const { return extras_->pair_token; }
  bool has_pair_token() const { return path_.has_pair_token(); }

  // -- Endings --

  /// Ends the session: gives back all buffers and requests of its slots.
  void end_all(ServerOffers& offers);
  /// Gives back the session's memory, after end_all(). Only the destructor may follow.
  void give_back(ServerPools& pools);
  /// Fails the request that arrives on the slot (kReceiving), to free its memory. The client may send the request
  /// again.
  void give_up_arriving(ServerSlot* slot, ServerOffers& offers);
  /// Frees the slot's response (kResponded). A client that asks for more of the response gets the answer that it is
  /// lost.
  void give_up_response(ServerSlot* slot, ServerOffers& offers);
  /// A response is kept for this long after the last question for it (clause 5.5.2): four times the longest interval
  /// between two questions of a client.
  static constexpr uint64_t kKeepNs = 20'000'000'000;
  /// Frees the responses for which the client has not asked for kKeepNs. Time before `since_ns`, in which the endpoint
  /// did not look for packets, does not count. True: the session still keeps responses, or a handler will make one.
  bool forget_old(uint64_t now_ns, uint64_t since_ns, ServerOffers& offers);
  /// True if the slot's response, or a part of it, is to be sent.
  bool is_to_leave(const ServerSlot& slot) const {
    return (response_mask_ >> index_of(slot) & 1) != 0 || (due_ & kRanges) != 0;
  }

  // -- Packets out --

  bool wants_to_send() const { return (response_mask_ | (due_ & ~(kHeld | kMarked))) != 0; }
  enum class Turn : uint8_t {
    kNothing,  ///< there is no packet to send
    kRefused,  ///< `send` returned false: the packet is still to be sent
    kSent,     ///< call again: there may be more
  };
  /// Offers the next packet, if there is one, to `send`, and counts it as sent if `send` returns true:
  ///     bool send(const wire::Header&, const std::byte* payload, uint32_t payload_bytes, detail::Buffer* buffer)
  /// A full path reply has a null `payload`, which stands for any content of that size. `ticket()` is called after the
  /// send. One turn may send several packets; their number is added to `packets`.
  template <class Send, class Ticket>
  Turn transmit(uint64_t now_ns, uint8_t credit_limit, Send&& send, Ticket&& ticket, uint32_t& packets);
  /// The common case of transmit(): sends the first packets of responses until `send` refuses one. Returns their
  /// number. transmit() then sends the other packets.
  template <class Send, class Ticket>
  uint32_t transmit_first(uint64_t now_ns, uint8_t credit_limit, Send&& send, Ticket&& ticket);

  /// Answers the request that try_begin() has begun at this very time, and sends the answer, if it is one packet and no
  /// other packet must be sent before it. `send` is as in transmit(), but keeps no payload. False: the packet was not
  /// sent, and the slot is still in kRunning. `bytes` must be at most `sendable`.
  template <size_t sendable = SIZE_MAX, class Send>
  bool try_answer(ServerSlot* slot, uint32_t bytes, uint8_t credit_limit, Send&& send);

  void check_invariants() const;

  // -- Statistics --

  /// Packets sent since the handshake. The packet numbers count them, so that packets need no counter.
  uint64_t packets_sent() const { return next_number_ - (kNumberBase + first_number_); }
  /// Packets that the client has sent since the handshake, up to the newest that has arrived.
  uint64_t packets_received() const { return received_.count(); }
  /// Payload bytes of messages longer than the session's own packets. Shorter ones are not counted, because the common
  /// case would become slower.
  uint64_t long_bytes_sent() const { return extras_ != nullptr ? extras_->long_bytes_sent : 0; }
  uint64_t long_bytes_received() const { return extras_ != nullptr ? extras_->long_bytes_received : 0; }

  // The session's notes for the endpoint's CreditPolicy.
  uint32_t heard_epoch = 0;  ///< last epoch in which the client got an answer; low half
  /// Last epoch in which a packet of a long request came; low half. Only after ServerVerdict::is_part.
  uint32_t& heard_long_epoch() { return extras_->heard_long_epoch; }
  /// The endpoint's note of the peer that has got the last pair token. Only after ServerVerdict::wants_pair.
  uint32_t& pair_peer() { return extras_->pair_peer; }

 private:
  // Bits of due_: packets to send besides responses.
  static constexpr uint8_t kCreditReturn = 1;
  static constexpr uint8_t kPathReply = 2;
  static constexpr uint8_t kLostAnswer = 4;  ///< answer that lost_request_number_ is lost; never with kPathReply
  static constexpr uint8_t kRanges = 8;      ///< extras_->ranges is not empty
  static constexpr uint8_t kCancels = 16;    ///< set exactly if response_mask_ has idle slots
  static constexpr uint8_t kMarked = 32;     ///< not a packet, but a flag of the next one that can echo it
  static constexpr uint8_t kPairReply = 64;  ///< transmit() does not send it
  static constexpr uint8_t kHeld = 128;      ///< not due: a credit return waits for answers; never with kCreditReturn

  static uint32_t slot_index_of(uint32_t request_number) { return request_number & (wire::kSlotsMax - 1); }
  static uint64_t bit_of(const ServerSlot* slot) { return uint64_t{1} << index_of(*slot); }
  static ServerVerdict dropped(Drop why) { return {.drop = why}; }

  /// The only function that changes a slot's phase, but for try_answer(), which may take its change back.
  void move(ServerSlot* slot, ServerSlot::Phase to) {
    if constexpr (base::kChecksInvariants) check_transition(slot->phase, to);
    slot->phase = to;
  }
  static void check_transition(ServerSlot::Phase from, ServerSlot::Phase to);

  // Slots.
  /// Null: the slot has no memory. `index` must be below window().
  ServerSlot* slot_at(uint32_t index) const { return index <= slot_mask_ ? slots_[index] : nullptr; }
  ServerSlot* find_or_make_slot(uint32_t index, ServerPools& pools) {
    return slot_at(index) != nullptr ? slot_at(index) : make_slot(index, pools);
  }
  ServerSlot* make_slot(uint32_t index, ServerPools& pools);
  uint32_t number_before_first(uint32_t index) const;
  bool grow_slots(uint32_t index, ServerPools& pools);
  void give_back_array(ServerPools& pools);
  void rest_slot(ServerSlot* slot, ServerOffers& offers);
  /// Only if slot_mask_ > 1: the numbers of all slots without memory but the first two. They follow the pointers.
  uint32_t* rested_numbers() const { return reinterpret_cast<uint32_t*>(slots_ + slot_mask_ + 1); }
  void end_slot(ServerSlot* slot, ServerOffers& offers);
  static bool may_end(const ServerSlot* slot, ServerOffers& offers) {
    return slot == nullptr || slot->call == nullptr || offers.may_abandon(slot->call);
  }
  void give_back_assembly(ServerSlot* slot, ServerOffers& offers);
  void give_back_response(ServerSlot* slot, ServerOffers& offers);

  // Packets in, by kind. `number`: all 64 bits of the packet's number, which was not received before.
  /// Must be true before accept(), so before the packet has any effect. False: no memory; the packet counts as lost.
  [[nodiscard]] bool can_accept(uint64_t number, ServerPools& pools, bool needs_extras = false) {
    if (needs_extras && extras_ == nullptr) extras_ = pools.extras.take();
    return (!needs_extras || extras_ != nullptr) && received_.reserve(number, pools.number_bits);
  }
  /// Accepts a packet that has proved itself, and whose payload is safe.
  void accept(uint64_t number, bool is_marked, ServerPools& pools) {
    received_.insert(number, pools.number_bits);
    if (is_marked) due_ |= kMarked;
  }
  ServerVerdict on_path_probe(const wire::Header& header, uint32_t payload_bytes, uint64_t number, uint64_t now_ns,
                              ServerPools& pools);
  ServerVerdict on_short_path_probe(const wire::Header& header, uint64_t number, uint64_t now_ns, ServerPools& pools);
  ServerVerdict on_request(const wire::Header& header, const transport::Payload& payload, uint64_t number,
                           uint64_t now_ns, ServerOffers& offers);
  ServerVerdict on_new_request(const wire::Header& header, const transport::Payload& payload, uint64_t number,
                               uint64_t now_ns, ServerOffers& offers);
  ServerVerdict on_new_long_request(const wire::Header& header, const transport::Payload& payload, uint64_t number,
                                    uint64_t now_ns, ServerOffers& offers);
  ServerVerdict on_known_request(ServerSlot* slot, const wire::Header& header, const transport::Payload& payload,
                                 uint64_t number, uint64_t now_ns, ServerPools& pools);
  ServerVerdict on_rfr(const wire::Header& header, const transport::Payload& payload, uint64_t number, uint64_t now_ns,
                       ServerPools& pools);
  ServerVerdict on_probe(const wire::Header& header, uint64_t number, uint64_t now_ns, ServerOffers& offers);
  ServerVerdict on_cancel(const wire::Header& header, uint64_t number, uint64_t now_ns, ServerOffers& offers);
  ServerVerdict on_report(const transport::Payload& payload, uint64_t number, uint64_t now_ns, ServerOffers& offers);

  bool is_short(const wire::Header& request) const { return request.message_bytes() <= payload_bytes_max_; }
  bool is_well_formed(const wire::Header& request, uint32_t payload_bytes, const ServerPools& pools) const;
  ServerSlot* begin(const wire::Header& header, uint64_t number, uint64_t now_ns, ServerSlot::Phase phase,
                    ServerOffers& offers);
  ServerVerdict place(ServerSlot* slot, const wire::Header& header, const transport::Payload& payload, uint64_t number,
                      uint64_t now_ns, ServerPools& pools);
  bool has_packets_of(uint8_t code, const ServerPools& pools) const;
  /// Payload of a full packet of a message with this code. Only if has_packets_of().
  uint32_t payload_of(uint8_t code) const { return code == 0 ? payload_bytes_max_ : wire::payload_of_code(code); }
  uint32_t response_packets(const ServerSlot& slot, uint32_t payload_bytes) const;
  struct Part {
    uint32_t offset;
    uint32_t bytes;
  };
  Part part_of(const ServerSlot& slot, const Range& range) const;
  bool is_short_response(const ServerSlot& slot) const {
    return slot.phase == ServerSlot::Phase::kResponded && slot.response_bytes <= payload_bytes_max_;
  }
  void answer_again(ServerSlot* slot, uint8_t whole_code, uint64_t number, uint64_t now_ns);
  void owe_lost_answer(const wire::Header& header, uint64_t number, uint64_t now_ns);
  void owe_path_reply(uint64_t number, uint32_t payload_bytes);

  // Packets out.
  template <class Send, class Ticket>
  uint32_t send_responses(uint64_t mask, uint8_t flags, uint64_t now_ns, uint8_t credit_limit, Send& send,
                          Ticket& ticket);
  /// The responses of one packet that may leave before any other packet.
  uint64_t first_responses() const {
    if (response_mask_ == 0 || (due_ & (kCancels | kCreditReturn)) != 0) return 0;
    if (holds_return()) [[unlikely]]
      return responses_before_return();
    return is_short_response(*slots_[base::lowest_bit(response_mask_)]) ? response_mask_ : 0;
  }
  uint64_t responses_before_return() const;
  bool next_may_precede_return() const;
  void end_hold_of(uint64_t responses);
  template <class Send, class Ticket>
  Turn transmit_other(uint64_t now_ns, uint8_t credit_limit, Send& send, Ticket& ticket, uint32_t& packets);
  bool prepare(uint64_t now_ns, uint8_t credit_limit, ServerPacket& packet) const;
  void prepare_cancelled(uint8_t credit_limit, ServerPacket& packet) const;
  void prepare_credit_return(uint64_t now_ns, uint8_t credit_limit, ServerPacket& packet) const;
  void prepare_first(uint64_t now_ns, uint8_t credit_limit, ServerPacket& packet) const;
  void prepare_range(uint64_t now_ns, uint8_t credit_limit, ServerPacket& packet) const;
  void commit(const ServerPacket& packet, uint64_t ticket);
  void commit_range(ServerSlot* slot, uint64_t ticket);
  uint64_t cancelled() const;
  void forget_answer(const ServerSlot* slot);
  void forget_ranges(uint32_t index) {
    if ((due_ & kRanges) == 0) return;
    extras_->ranges.forget_slot(index);
    if (extras_->ranges.empty()) due_ &= ~kRanges;
  }
  uint8_t echo_flag() const { return (due_ & kMarked) != 0 ? wire::kEcnEcho : 0; }
  wire::Header next_header(wire::Kind kind, uint8_t flags, uint32_t request_number, uint32_t echo, uint64_t hold_ns,
                           uint8_t credit_limit, uint32_t size_or_index) const {
    return wire::server_header(kind, flags, remote_key_, static_cast<uint32_t>(next_number_), request_number, echo,
                               wire::encode_hold(hold_ns), credit_limit, size_or_index);
  }

  uint32_t slot_mask_ = 0;  ///< number of the pointers of slots_, minus 1
  uint8_t due_ = 0;
  bool is_open_ = false;
  uint8_t window_;
  uint32_t remote_key_;
  /// Slots whose packet 0 must be sent. The bit of an idle slot stands for the acknowledgement of its cancel.
  uint64_t response_mask_ = 0;
  uint64_t next_number_;
  /// The slots, in an array of a power of two; rested_numbers() follow more than two. Null: the slot has no memory.
  ServerSlot** slots_ = &only_slot_;
  ServerSlot* only_slot_ = nullptr;
  // Every request touches the fields up to the first member of `received_`. With the 8 B that the endpoint keeps before
  // the session they fill a cache line. The next line has payload_bytes_max_ (rpc/server.h).
  [[no_unique_address]] NumberWindow received_;  // cr_number_ is in its padding
  /// kCreditReturn: number of the packet that arrived at cr_since_ns_. kHeld: oldest_held(). Low half.
  uint32_t cr_number_ = 0;
  uint64_t cr_since_ns_ = 0;
  ServerExtras* extras_ = nullptr;  ///< null: no packet has needed them yet
  ServerPath path_;
  uint32_t answer_echo_ = 0;  ///< kLostAnswer, kPathReply: number of the packet that is answered
  union {
    uint32_t lost_request_number_ = 0;  ///< kLostAnswer
    uint32_t reply_payload_bytes_;      ///< kPathReply
  };
  uint32_t payload_bytes_max_;
  uint32_t local_key_;

  // Memory for a session with one call at a time, in one block with the session.
  ServerSlot first_slot_;  ///< slot 0; fills the third cache line

  const uint32_t first_number_;  ///< first number of this side's packets, 24 bits
  uint32_t second_number_;       ///< number_of(1) while that slot has no memory
};

// ---- The common case, inline ----

template <size_t readable>
[[gnu::always_inline]] inline ServerSlot* ServerSession::try_begin(const wire::Header& header, uint32_t payload_bytes,
                                                                   uint64_t now_ns) {
  static_assert(readable <= wire::kPayloadBytesMin);
  const bool fits = payload_bytes <= readable || payload_bytes <= payload_bytes_max_;
  const uint64_t number = received_.largest() + 1;
  ServerSlot* slot = slots_[header.request_number() & slot_mask_];
  if (((header.w1 ^ number) & wire::kNumberMask) != 0 || slot == nullptr) [[unlikely]]
    return nullptr;
  // The request number is the slot's next one, which shows that the packet is for this slot.
  if (header.request_number() - slot->request_number != wire::kSlotsMax || !fits || is_busy(*slot) ||
      (due_ & (kCancels | kRanges)) != 0) [[unlikely]] {
    return nullptr;
  }
  received_.insert_next();
  slot->request_number = header.request_number();
  move(slot, ServerSlot::Phase::kRunning);
  slot->whole_code = 0;
  slot->echo = static_cast<uint32_t>(number);
  slot->received_ns = now_ns;
  return slot;
}

template <class Send, class Ticket>
[[gnu::always_inline]] inline uint32_t ServerSession::transmit_first(uint64_t now_ns, uint8_t credit_limit, Send&& send,
                                                                     Ticket&& ticket) {
  uint64_t responses = response_mask_;
  if ((due_ & (kCancels | kMarked | kCreditReturn | kHeld)) != 0) [[unlikely]] {
    if ((due_ & (kCancels | kMarked | kCreditReturn)) != 0) return 0;
    responses = responses_before_return();
  }
  return send_responses(responses, wire::kFirst, now_ns, credit_limit, send, ticket);
}

template <size_t sendable, class Send>
[[gnu::always_inline]] inline bool ServerSession::try_answer(ServerSlot* slot, uint32_t bytes, uint8_t credit_limit,
                                                             Send&& send) {
  const bool fits = sendable <= wire::kPayloadBytesMin || bytes <= payload_bytes_max_;
  if ((response_mask_ | due_) != 0 || !fits) [[unlikely]]
    return false;
  const uint64_t number = next_number_;
  const wire::Header header =
      wire::server_header(wire::Kind::kResponse, wire::kFirst, remote_key_, static_cast<uint32_t>(number),
                          slot->request_number, slot->echo, wire::encode_hold(0), credit_limit, bytes);
  detail::Buffer* response = slot->response;
  // Changed before the send: after it, the number and the slot would have to be loaded again.
  next_number_ = number + 1;
  move(slot, ServerSlot::Phase::kResponded);
  slot->response_bytes = bytes;
  if (send(header, response->data(), bytes, response)) [[likely]]
    return true;
  next_number_ = number;
  slot->phase = ServerSlot::Phase::kRunning;  // a step back, which move() does not know
  return false;
}

template <class Send, class Ticket>
[[gnu::always_inline]] inline uint32_t ServerSession::send_responses(uint64_t mask, uint8_t flags, uint64_t now_ns,
                                                                     uint8_t credit_limit, Send& send, Ticket& ticket) {
  const uint64_t responses = mask;
  const uint64_t others = response_mask_ & ~mask;
  ServerSlot* const* const slots = slots_;
  const uint32_t payload_bytes_max = payload_bytes_max_;
  const uint32_t remote_key = remote_key_;
  const auto first = static_cast<uint32_t>(next_number_);
  uint32_t number = first;
  for (; mask != 0; mask &= mask - 1) {
    ServerSlot* slot = slots[base::lowest_bit(mask)];
    const uint32_t bytes = slot->response_bytes;
    if (slot->phase != ServerSlot::Phase::kResponded || bytes > payload_bytes_max) [[unlikely]]
      break;
    const uint8_t hold_code = wire::encode_hold(now_ns - slot->received_ns);
    if (!send(wire::server_header(wire::Kind::kResponse, flags, remote_key, number, slot->request_number, slot->echo,
                                  hold_code, credit_limit, bytes),
              slot->response->data(), bytes, slot->response)) [[unlikely]] {
      break;
    }
    slot->response_ticket = ticket();
    number++;
  }
  response_mask_ = mask | others;
  next_number_ += number - first;
  if (holds_return()) [[unlikely]]
    end_hold_of(responses & ~mask);
  return number - first;
}

template <class Send, class Ticket>
ServerSession::Turn ServerSession::transmit(uint64_t now_ns, uint8_t credit_limit, Send&& send, Ticket&& ticket,
                                            uint32_t& packets) {
  const uint64_t responses = first_responses();
  if (responses != 0) {
    const uint8_t flags = wire::kFirst | echo_flag();
    const uint32_t count = send_responses(responses, flags, now_ns, credit_limit, send, ticket);
    if (count == 0) return Turn::kRefused;
    due_ &= ~kMarked;
    packets += count;
    return Turn::kSent;
  }
  if (!wants_to_send()) return Turn::kNothing;
  if (holds_return() && !next_may_precede_return()) return_held();
  return transmit_other(now_ns, credit_limit, send, ticket, packets);
}

/// Sends one packet of any other kind.
template <class Send, class Ticket>
ServerSession::Turn ServerSession::transmit_other(uint64_t now_ns, uint8_t credit_limit, Send& send, Ticket& ticket,
                                                  uint32_t& packets) {
  ServerPacket packet;
  if (!prepare(now_ns, credit_limit, packet)) return Turn::kNothing;
  if (!send(packet.header, packet.payload, packet.payload_bytes, packet.buffer)) return Turn::kRefused;
  next_number_++;
  packets++;
  commit(packet, ticket());
  return Turn::kSent;
}

}  // namespace tern::session
