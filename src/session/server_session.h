// The server end of a session as a pure state machine: it has no timers, answers packets, and runs each request at most
// once. A packet, the time and what the endpoint offers go in, a verdict comes out; a packet that does not prove itself
// (clause 3.9) changes nothing. No I/O, no callbacks to the application, no clock. docs/protocol.md, chapters 3 to 6.
//
// The life of a slot, whose request number only grows:
//
//   kIdle --first packet of a long request--> kReceiving --last--> kRunning --respond()--> kResponded
//     |  \------------- short request --------------------------------^ |                     |
//     ^                              |                                  \-----fail()-----> kFailed
//     |                              \-----------------------------------------------------^  |
//     +---- cancel (from anywhere), finished-request report, or the next request on the slot --+
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <tern/detail/buffer.h>
#include <tern/detail/export.h>

#include "base/check.h"
#include "base/pool.h"
#include "session/drop.h"
#include "session/range_queue.h"
#include "session/windows.h"
#include "transport/transport.h"
#include "wire/header.h"

namespace tern::session {

/// What a request of one packet looks like.
inline constexpr uint16_t kPlainRequest = wire::shape_of(wire::Kind::kRequest, wire::kFirst);

/// A request of several packets while it arrives.
struct Assembly {
  IndexWindow window;
  uint32_t packets = 0;
  uint64_t deadline_ns = UINT64_MAX;  ///< as packet 0 said, once it is here
  detail::Buffer* buffer = nullptr;   ///< of the whole message
};

struct ServerSlot {
  /// The first three may take a new request.
  enum class Phase : uint8_t { kIdle, kResponded, kFailed, kReceiving, kRunning };

  uint32_t request_number = 0;
  Phase phase = Phase::kIdle;  ///< written by ServerSession::move() only
  uint16_t type = 0;
  uint32_t request_bytes = 0;
  uint32_t response_bytes = 0;                 ///< kFailed: the word of the failure (clause 5.6)
  uint32_t echo = 0;                           ///< number of the packet that the next packet 0 of the response answers
  uint32_t deadline_code = wire::kNoDeadline;  ///< time left at received_ns
  uint64_t received_ns = 0;                    ///< when that packet came
  detail::Buffer* response = nullptr;          ///< the slot's; kept for the next response where it fits
  uint64_t response_ticket = 0;                ///< of the last packet that refers to it
  Assembly* assembly = nullptr;                ///< kReceiving only
  void* call = nullptr;                        ///< the caller's record
};

/// What an endpoint offers to a session that takes a packet.
class ServerOffers {
 public:
  /// Memory for the bytes of a request, or why it is refused.
  struct Room {
    detail::Buffer* buffer = nullptr;
    wire::FailureCode refusal = {};  ///< with `buffer` null
  };
  /// For `request`, whose bytes cannot stay where they are. `is_long`: it arrives in several packets, and its memory
  /// counts as arriving until take_back_room() or ServerVerdict::was_assembled.
  virtual Room room_for(const wire::Header& request, bool is_long) = 0;
  /// The request will not run. `buffer` came from room_for().
  virtual void take_back_room(detail::Buffer* buffer, uint32_t request_bytes, bool is_long) = 0;
  /// The client has the response, or does not want it any more; packets up to `ticket` may still refer to it.
  virtual void take_back_response(detail::Buffer* response, uint64_t ticket) = 0;
  /// Nobody waits for the answer of this running request any more.
  virtual void abandon(void* call) = 0;
  /// False: the application holds too many requests already that their client has given up. The slot keeps this one
  /// until it is answered.
  virtual bool may_abandon(void*) { return true; }

 protected:
  ~ServerOffers() = default;
};

/// What a received packet means to the caller.
struct ServerVerdict {
  ServerSlot* started = nullptr;      ///< its request is whole now (kRunning): run the handler, or fail() it
  detail::Buffer* message = nullptr;  ///< holds that request, the caller's from now on; null: the payload does
  bool was_assembled = false;         ///< `message` does not count as arriving any more
  bool is_part = false;               ///< of a request of several packets, and was missing
  bool is_about_a_call = false;       ///< the client has a request outstanding (clause 4.5.5)
  bool has_opened = false;            ///< the client's first proof of its path
  bool wants_pair = false;            ///< pair_reply() is wanted at the address from which the packet came
  bool has_paired = false;            ///< where the last pair_reply() went, there the client is
  Drop drop = Drop::kNone;
};

/// A packet to be sent, in the general case.
struct ServerPacket {
  wire::Header header;
  const std::byte* payload;
  uint32_t payload_bytes;
  detail::Buffer* buffer;
  ServerSlot* slot;  ///< null: concerns the session
  uint32_t slot_index;
  bool is_range;  ///< a packet that an RFR asked for
  std::byte scratch[8 * NumberWindow::kWords];
};

struct ServerTerms {
  uint32_t local_key = 0;
  uint32_t remote_key = 0;
  uint32_t payload_bytes_max = 0;
  uint8_t window = 8;
  uint32_t first_request_count = 0;  ///< random, 26 bits
  uint32_t first_client_number = 1;  ///< as the client has said; 24 bits
  uint32_t first_number = 1;         ///< random, 24 bits
  uint32_t path_token = 0;           ///< random, 31 bits; the handshake says it
  uint32_t session_token = 0;        ///< random, 31 bits; the first path replies say it
};

/// What the server sessions of one endpoint share.
struct ServerPools {
  base::Pool<ServerSlot> slots;
  base::Pool<Assembly, 8> assemblies;
};

class TERN_API ServerSession {
 public:
  ServerSession(const ServerTerms& terms, ServerPools& pools);
  /// Only after end_all().
  ~ServerSession();
  ServerSession(const ServerSession&) = delete;
  ServerSession& operator=(const ServerSession&) = delete;

  uint32_t local_key() const { return local_key_; }
  uint32_t remote_key() const { return remote_key_; }
  uint32_t payload_bytes_max() const { return payload_bytes_max_; }
  uint32_t window() const { return window_; }
  /// The client has shown that it receives where it says (clause 7.7). Before that there are no slots.
  bool is_open() const { return is_open_; }
  ServerSlot* slot(uint32_t index) const { return is_open_ ? slots_[index] : nullptr; }
  static uint32_t index_of(const ServerSlot& slot) { return slot.request_number & (wire::kSlotsMax - 1); }
  /// A packet with this number has been accepted, or is too old to tell.
  bool has_received(const wire::Header& header) const { return received_.admit(header.number()) == 0; }
  /// The slot has a request that has not been answered.
  static bool is_busy(const ServerSlot& slot) { return slot.phase > ServerSlot::Phase::kFailed; }

  // -- Packets in --

  /// Any packet of a client.
  ServerVerdict on_packet(const wire::Header& header, const transport::Payload& payload, uint64_t now_ns,
                          ServerOffers& offers);
  /// The common case of it: the client's next packet is a new request, whole, without a deadline. Notes it, begins it
  /// (kRunning) and returns its slot; if it is not answered at once, defer() it. Null: another case; nothing has
  /// changed.
  ServerSlot* try_begin(const wire::Header& header, uint32_t payload_bytes, uint64_t now_ns);
  /// After ServerVerdict::wants_pair, at once: its answer will be sent to where the packet came from, behind what
  /// transmit() has. `token`: 31 random bits, new ones for each address, which nobody learns but who receives there.
  /// That of another address is worth nothing from now on.
  void owe_pair_reply(uint32_t token);
  bool owes_pair_reply() const { return (due_ & kPairReply) != 0; }
  /// The header of that answer.
  wire::Header pair_reply(uint8_t credit_limit);
  /// The request that try_begin() began will be answered later.
  void defer(ServerSlot* slot) { response_mask_ &= ~(uint64_t{1} << index_of(*slot)); }
  /// A packet has come: asks for the cache lines that are found last.
  [[gnu::always_inline]] void prefetch() const {
    __builtin_prefetch(first_slots_);
    __builtin_prefetch(&first_slot_, 1);
  }
  /// One will come: asks for all that it touches of a session that has one call at a time.
  [[gnu::always_inline]] void prefetch_all() const {
    __builtin_prefetch(this, 1);
    __builtin_prefetch(&received_, 1);
    prefetch();
  }
  /// The peer gets a credit return in this iteration, unless what follows answers it.
  void owe_credit_return(uint64_t now_ns) {
    cr_since_ns_ = now_ns;
    cr_echo_ = received_.largest();
    due_ |= kCreditReturn;
  }
  /// The session ends: gives back all that its slots have.
  void end_all(ServerOffers& offers);
  /// Gives memory back for others' sake: the request that arrives on the slot fails, and may be sent again.
  void give_up_arriving(ServerSlot* slot, ServerOffers& offers);
  /// Likewise: who asks for more of the response hears that it is lost.
  void give_up_response(ServerSlot* slot, ServerOffers& offers);

  /// So long a response is kept without a question for it (clause 5.5.2): four times what lies between two questions of
  /// a client, at the most.
  static constexpr uint64_t kKeepNs = 20'000'000'000;
  /// Responses for which nobody has asked for kKeepNs go. Not before `since_ns` did anybody look for packets. True:
  /// some are kept still.
  bool forget_old(uint64_t now_ns, uint64_t since_ns, ServerOffers& offers);
  /// The response will leave, or some of it.
  bool is_to_leave(const ServerSlot& slot) const {
    return (response_mask_ >> index_of(slot) & 1) != 0 || (due_ & kRanges) != 0;
  }

  // -- Answers --

  /// The running request is answered: with slot->response (response_bytes set), or with a failure word.
  void respond(ServerSlot* slot) {
    move(slot, ServerSlot::Phase::kResponded);
    response_mask_ |= uint64_t{1} << index_of(*slot);
  }
  void fail(ServerSlot* slot, wire::FailureCode code, uint16_t app_code) {
    move(slot, ServerSlot::Phase::kFailed);
    slot->response_bytes = static_cast<uint32_t>(code) << 16 | app_code;
    response_mask_ |= uint64_t{1} << index_of(*slot);
  }

  // -- Packets out --

  bool wants_to_send() const { return (response_mask_ | due_) != 0; }
  enum class Turn : uint8_t {
    kNothing,  ///< there is no packet to send
    kRefused,  ///< `send` returned false: nothing has changed
    kSent,
  };
  /// Offers the next packet, if there is one, to `send`, and counts it as sent if it is taken:
  ///     bool send(const wire::Header&, const std::byte* payload, uint32_t payload_bytes, detail::Buffer* buffer)
  /// For a full path reply `payload` is null: any content of that size. `ticket()` is asked afterwards.
  /// Several may go in one turn; their number is added to `packets`. Not kSent: there is no more for now.
  template <class Send, class Ticket>
  Turn transmit(uint64_t now_ns, uint8_t credit_limit, Send&& send, Ticket&& ticket, uint32_t& packets);
  /// The common case of it: first packets of responses, as many as are taken. Their number; whatever else there is to
  /// send, or why it was not taken, transmit() knows.
  template <class Send, class Ticket>
  uint32_t transmit_first(uint64_t now_ns, uint8_t credit_limit, Send&& send, Ticket&& ticket);

  void check_invariants() const;

  // What the endpoint keeps beside the protocol's state, for its CreditPolicy.
  uint64_t heard_epoch = 0;  ///< the last one in which the client had an answer
  /// The last one in which a packet of a long request came.
  uint64_t& heard_long_epoch() { return heard_long_epoch_; }

 private:
  static constexpr size_t kFirstSlots = 8;  ///< the default window

  // Bits of due_: what is to be sent beside responses and acknowledged cancels.
  static constexpr uint32_t kCreditReturn = 1;
  static constexpr uint32_t kPathReply = 2;
  static constexpr uint32_t kLostAnswer = 4;  ///< to be said of lost_request_number_
  static constexpr uint32_t kRanges = 8;      ///< ranges_ is not empty
  static constexpr uint32_t kCancels = 16;    ///< cancelled_mask_ is not 0
  static constexpr uint32_t kMarked = 32;     ///< not a packet, but a flag of the next one
  static constexpr uint32_t kPairReply = 64;  ///< sent by its own function

  /// Header-only path replies to addresses that have not shown that they receive them (clause 7.7.3), all together; of
  /// an open session in so much time.
  static constexpr uint8_t kShortRepliesMax = 3;
  static constexpr uint64_t kShortRepliesNs = 5'000'000'000;

  /// The one place where a slot's phase changes.
  void move(ServerSlot* slot, ServerSlot::Phase to) {
    if constexpr (base::kChecksInvariants) check_transition(slot->phase, to);
    slot->phase = to;
  }
  static void check_transition(ServerSlot::Phase from, ServerSlot::Phase to);

  // Packets in, by kind. `number`: full, and not received before.
  ServerVerdict on_request(const wire::Header& header, const transport::Payload& payload, uint64_t number,
                           uint64_t now_ns, ServerOffers& offers);
  ServerVerdict on_new_request(const wire::Header& header, const transport::Payload& payload, uint64_t number,
                               uint64_t now_ns, ServerOffers& offers);
  ServerVerdict on_new_long_request(const wire::Header& header, const transport::Payload& payload, uint64_t number,
                                    uint64_t now_ns, ServerOffers& offers);
  ServerVerdict on_known_request(ServerSlot* slot, const wire::Header& header, const transport::Payload& payload,
                                 uint64_t number, uint64_t now_ns);
  ServerVerdict on_rfr(const wire::Header& header, const transport::Payload& payload, uint64_t number, uint64_t now_ns);
  ServerVerdict on_probe(const wire::Header& header, uint64_t number, uint64_t now_ns, ServerOffers& offers);
  ServerVerdict on_cancel(const wire::Header& header, uint64_t number, uint64_t now_ns, ServerOffers& offers);
  ServerVerdict on_report(const transport::Payload& payload, uint64_t now_ns, ServerOffers& offers);
  ServerVerdict on_path_probe(const wire::Header& header, uint32_t payload_bytes, uint64_t number, uint64_t now_ns);
  ServerVerdict on_short_path_probe(const wire::Header& header, uint64_t number, uint64_t now_ns);

  bool is_short(const wire::Header& header) const { return header.message_bytes() <= payload_bytes_max_; }
  bool is_well_formed(const wire::Header& request, uint32_t payload_bytes) const;
  /// The number that the slot has, or has had; also if it has not been made.
  uint32_t number_of(uint32_t index) const {
    return slots_[index] != nullptr ? slots_[index]->request_number
                                    : (first_request_count_ << wire::kSlotBits | index) - wire::kSlotsMax;
  }
  /// The packet has proved itself, and its payload is safe.
  void accept(uint64_t number, bool is_marked) {
    received_.insert(number);
    if (is_marked) due_ |= kMarked;
  }
  ServerSlot* find_or_make_slot(uint32_t index) { return slots_[index] != nullptr ? slots_[index] : make_slot(index); }
  ServerSlot* make_slot(uint32_t index);
  bool make_slots();
  ServerSlot* begin(const wire::Header& header, uint64_t number, uint64_t now_ns, ServerSlot::Phase phase,
                    ServerOffers& offers);
  ServerVerdict place(ServerSlot* slot, const wire::Header& header, const transport::Payload& payload, uint64_t number,
                      uint64_t now_ns);
  void answer_again(ServerSlot* slot, uint64_t number, uint64_t now_ns);
  void end_slot(ServerSlot* slot, ServerOffers& offers);
  static bool may_end(const ServerSlot* slot, ServerOffers& offers) {
    return slot == nullptr || slot->call == nullptr || offers.may_abandon(slot->call);
  }
  void give_back_assembly(ServerSlot* slot, ServerOffers& offers);
  void give_back_response(ServerSlot* slot, ServerOffers& offers);

  bool prepare(uint64_t now_ns, uint8_t credit_limit, ServerPacket& packet);
  void prepare_range(uint64_t now_ns, uint8_t credit_limit, ServerPacket& packet);
  void commit(const ServerPacket& packet, uint64_t ticket);
  void forget_cancel(uint64_t bit) {
    cancelled_mask_ &= ~bit;
    if (cancelled_mask_ == 0) due_ &= ~kCancels;
  }
  void forget_ranges(uint32_t index) {
    ranges_.forget_slot(index);
    if (ranges_.empty()) due_ &= ~kRanges;
  }
  uint8_t echo_flag() const { return (due_ & kMarked) != 0 ? wire::kEcnEcho : 0; }
  void owe_lost_answer(const wire::Header& header, uint64_t number) {
    due_ |= kLostAnswer;
    lost_request_number_ = header.request_number();
    lost_echo_ = static_cast<uint32_t>(number);
  }
  template <class Send, class Ticket>
  uint32_t send_responses(uint8_t flags, uint64_t now_ns, uint8_t credit_limit, Send& send, Ticket& ticket);
  template <class Send, class Ticket>
  Turn transmit_other(uint64_t now_ns, uint8_t credit_limit, Send& send, Ticket& ticket, uint32_t& packets);
  wire::Header header_of(wire::Kind kind, uint8_t flags, uint64_t number, uint32_t request_number, uint32_t echo,
                         uint64_t hold_ns, uint8_t credit_limit, uint32_t size_or_index) const {
    return wire::server_header(kind, flags, remote_key_, static_cast<uint32_t>(number), request_number, echo,
                               wire::encode_hold(hold_ns), credit_limit, size_or_index);
  }

  // Touched by every request: with heard_epoch and the 16 B that the endpoint keeps before it one cache line ...
  uint64_t response_mask_ = 0;   ///< slots whose packet 0 is to be sent
  uint64_t cancelled_mask_ = 0;  ///< slots whose cancel is to be acknowledged
  uint64_t next_number_;
  ServerSlot** slots_ = nullptr;  ///< the window, filled up with nulls to a power of two, so that ...
  uint32_t slot_mask_ = 0;        ///< ... this leads into it
  uint32_t due_ = 0;
  uint32_t remote_key_;
  uint32_t payload_bytes_max_;
  NumberWindow received_;  ///< ... and the beginning of this

  uint64_t cr_since_ns_ = 0;  ///< when the last packet came that a credit return is owed for
  uint64_t cr_echo_ = 0;      ///< the largest number that had arrived then
  ServerPools& pools_;
  uint32_t local_key_;
  uint32_t first_request_count_;
  uint32_t lost_request_number_ = 0;
  uint32_t lost_echo_ = 0;
  uint32_t path_echo_ = 0;
  uint32_t path_reply_bytes_ = 0;  ///< payload of the reply that is due
  uint32_t path_token_;
  uint32_t session_token_;
  uint32_t pair_token_ = 0;  ///< of the last pair_reply(); has_pair_token_
  uint32_t pair_echo_ = 0;   ///< number of the probe that it answers
  uint8_t short_replies_left_ = kShortRepliesMax;
  uint8_t pair_replies_ = 0;  ///< those with pair_token_, which has not come back
  bool has_pair_token_ = false;
  bool is_path_reply_paired_ = false;  ///< the one that is due
  bool is_open_ = false;
  uint8_t window_;
  uint64_t heard_long_epoch_ = 0;
  uint64_t short_replies_since_ns_ = 0;

  // What a session that has one call at a time needs, in one piece with it.
  ServerSlot* first_slots_[kFirstSlots] = {};
  ServerSlot first_slot_;
  RangeQueue ranges_;
};

// ---- The common case, inline ----

[[gnu::always_inline]] inline ServerSlot* ServerSession::try_begin(const wire::Header& header, uint32_t payload_bytes,
                                                                   uint64_t now_ns) {
  const uint64_t number = received_.largest() + 1;
  ServerSlot* slot = slots_[header.request_number() & slot_mask_];
  if (((header.w1 ^ number) & wire::kNumberMask) != 0 || slot == nullptr) [[unlikely]]
    return nullptr;
  // The slot's next request number: so it is that slot which is meant.
  if (header.request_number() - slot->request_number != wire::kSlotsMax || header.shape() != kPlainRequest ||
      header.deadline_code() != wire::kNoDeadline || header.message_bytes() != payload_bytes ||
      payload_bytes > payload_bytes_max_ || is_busy(*slot) || (due_ & (kCancels | kRanges)) != 0) [[unlikely]] {
    return nullptr;
  }
  received_.insert_next();
  slot->request_number = header.request_number();
  move(slot, ServerSlot::Phase::kRunning);
  slot->echo = static_cast<uint32_t>(number);
  slot->received_ns = now_ns;
  return slot;
}

template <class Send, class Ticket>
[[gnu::always_inline]] inline uint32_t ServerSession::transmit_first(uint64_t now_ns, uint8_t credit_limit, Send&& send,
                                                                     Ticket&& ticket) {
  if ((due_ & (kCancels | kMarked | kCreditReturn)) != 0) [[unlikely]]
    return 0;
  return send_responses(wire::kFirst, now_ns, credit_limit, send, ticket);
}

template <class Send, class Ticket>
[[gnu::always_inline]] inline uint32_t ServerSession::send_responses(uint8_t flags, uint64_t now_ns,
                                                                     uint8_t credit_limit, Send& send, Ticket& ticket) {
  uint64_t mask = response_mask_;
  ServerSlot* const* const slots = slots_;
  const uint32_t payload_bytes_max = payload_bytes_max_;
  const uint32_t remote_key = remote_key_;
  const uint64_t first = next_number_;
  uint64_t number = first;
  for (; mask != 0; mask &= mask - 1) {
    ServerSlot* slot = slots[std::countr_zero(mask)];
    if (slot->phase != ServerSlot::Phase::kResponded) [[unlikely]]
      break;
    const uint8_t hold_code = wire::encode_hold(now_ns - slot->received_ns);
    const uint32_t bytes = slot->response_bytes;
    if (!send(wire::server_header(wire::Kind::kResponse, flags, remote_key, static_cast<uint32_t>(number),
                                  slot->request_number, slot->echo, hold_code, credit_limit, bytes),
              slot->response->data(), bytes < payload_bytes_max ? bytes : payload_bytes_max, slot->response))
        [[unlikely]] {
      break;
    }
    slot->response_ticket = ticket();
    number++;
  }
  response_mask_ = mask;
  next_number_ = number;
  return static_cast<uint32_t>(number - first);
}

template <class Send, class Ticket>
ServerSession::Turn ServerSession::transmit(uint64_t now_ns, uint8_t credit_limit, Send&& send, Ticket&& ticket,
                                            uint32_t& packets) {
  const bool has_response =
      response_mask_ != 0 && slots_[std::countr_zero(response_mask_)]->phase == ServerSlot::Phase::kResponded;
  if (has_response && (due_ & (kCancels | kCreditReturn)) == 0) {
    const uint8_t flags = wire::kFirst | echo_flag();
    const uint32_t count = send_responses(flags, now_ns, credit_limit, send, ticket);
    if (count == 0) return Turn::kRefused;
    due_ &= ~kMarked;
    packets += count;
    return Turn::kSent;
  }
  return wants_to_send() ? transmit_other(now_ns, credit_limit, send, ticket, packets) : Turn::kNothing;
}

/// One packet of any other kind.
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
