// The server end of a session as a pure state machine: it has no timers, answers packets, and runs each request at most
// once. No I/O, no callbacks, no clock. docs/protocol.md, chapters 3 to 6.
//
// The life of a slot, whose request number only grows:
//
//   kIdle --first packet of a long request--> kReceiving --last--> kRunning --respond()/fail()--> kResponded
//     |  \------------- short request --------------------------------^                               |
//     ^                                                                                               |
//     +---- cancel (from anywhere), finished-request report, or the next request on the slot ---------+
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tern/detail/buffer.h>
#include <tern/detail/export.h>

#include "base/pool.h"
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
  enum class Phase : uint8_t { kIdle, kResponded, kReceiving, kRunning };  ///< the first two may take a new request

  uint32_t request_number = 0;
  Phase phase = Phase::kIdle;
  bool is_failure = false;  ///< the response is a kFailure with `response_bytes` as its word
  uint16_t type = 0;
  uint32_t request_bytes = 0;
  uint32_t response_bytes = 0;
  uint32_t echo = 0;                           ///< number of the packet that the next packet 0 of the response answers
  uint32_t deadline_code = wire::kNoDeadline;  ///< time left at received_ns
  uint64_t received_ns = 0;                    ///< when that packet came
  detail::Buffer* response = nullptr;          ///< the slot's; kept for the next response where it fits
  uint64_t response_ticket = 0;                ///< of the last packet that refers to it
  Assembly* assembly = nullptr;                ///< kReceiving only
  void* call = nullptr;                        ///< the caller's record; nobody else's business
};

/// What a request packet is to its slot.
enum class RequestVerdict : uint8_t {
  kMalformed,  ///< contradicts itself or the session's terms: drop
  kStale,      ///< of a request that has ended: drop, but acknowledge
  kAgain,      ///< of the request that the slot has already: acknowledge, or answer again
  kShort,      ///< a new request, whole: begin() and run it
  kLongFirst,  ///< the first packet to arrive of a new long request: begin_long() with memory for it, or begin() and
               ///< fail it
  kLongMore,   ///< a part that is missing: place()
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
  uint32_t first_request_count = 0;
};

/// What the server sessions of one endpoint share.
struct ServerPools {
  base::Pool<ServerSlot> slots;
  base::Pool<Assembly, 8> assemblies;
};

class TERN_API ServerSession {
 public:
  ServerSession(const ServerTerms& terms, ServerPools& pools);
  /// Buffers must have been taken back (end_slot() for each slot).
  ~ServerSession();
  ServerSession(const ServerSession&) = delete;
  ServerSession& operator=(const ServerSession&) = delete;

  uint32_t local_key() const { return local_key_; }
  uint32_t remote_key() const { return remote_key_; }
  uint32_t payload_bytes_max() const { return payload_bytes_max_; }
  uint32_t window() const { return window_; }
  ServerSlot* slot(uint32_t index) const { return slots_[index]; }
  static uint32_t index_of(const ServerSlot& slot) { return slot.request_number & (wire::kSlotsMax - 1); }

  // -- Packets in --

  /// The full packet number, or 0: a duplicate, to be dropped (clause 3.4). Changes nothing: note() does, once the
  /// packet's payload is safe.
  uint64_t admit(const wire::Header& header) const { return received_.admit(header.number()); }
  void note(uint64_t number) { received_.insert(number); }
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
  /// A packet that will be answered has met a congestion mark: the client's next packet says so.
  void note_mark() { due_ |= kMarked; }
  /// The peer gets a credit return in this iteration, unless what follows answers it.
  void owe_credit_return(uint64_t now_ns) {
    cr_since_ns_ = now_ns;
    due_ |= kCreditReturn;
  }

  /// The common case: the client's next packet is a new request, whole, without a deadline. Notes it, begins it
  /// (kRunning) and returns its slot; if it is not answered at once, defer() it. Null: another case; nothing has
  /// changed.
  ServerSlot* try_begin(const wire::Header& header, uint32_t payload_bytes, uint64_t now_ns);
  /// The request that try_begin() began will be answered later.
  void defer(ServerSlot* slot) { response_mask_ &= ~(uint64_t{1} << index_of(*slot)); }
  /// Classifies; changes nothing but that slots come to be. `*slot` is null for kMalformed.
  RequestVerdict classify(const wire::Header& header, uint32_t payload_bytes, ServerSlot** slot);
  /// A new request takes the slot: kRunning. What the slot still has of the last one (its response buffer) stays, for
  /// the caller to reuse or to release.
  void begin(ServerSlot* slot, const wire::Header& header, uint64_t number, uint64_t now_ns) {
    slot->request_number = header.request_number();
    slot->phase = ServerSlot::Phase::kRunning;
    slot->is_failure = false;
    slot->type = static_cast<uint16_t>(header.request_type());
    slot->request_bytes = header.message_bytes();
    slot->deadline_code = (header.flags() & wire::kFirst) != 0 ? header.deadline_code() : wire::kNoDeadline;
    slot->echo = static_cast<uint32_t>(number);
    slot->received_ns = now_ns;
    const uint64_t bit = uint64_t{1} << index_of(*slot);
    response_mask_ &= ~bit;
    forget_cancel(bit);  // the client has had its answer, and would take this for the new request's
  }
  /// `buffer` holds header.message_bytes() and is the slot's now: kReceiving. False: no memory, nothing changed.
  bool begin_long(ServerSlot* slot, const wire::Header& header, uint64_t number, uint64_t now_ns,
                  detail::Buffer* buffer);
  enum class Placed : uint8_t { kLeaseLost, kMore, kComplete };
  /// Copies a part to its place and, if that worked, marks it. kComplete: kRunning; take_assembled() and run it.
  Placed place(ServerSlot* slot, const wire::Header& header, const transport::Payload& payload, uint64_t number,
               uint64_t now_ns);
  /// The whole request; the caller's from now on.
  detail::Buffer* take_assembled(ServerSlot* slot);
  /// A retransmitted or probing packet of the slot's request: the response leaves (again), or a credit return.
  void answer_again(ServerSlot* slot, uint64_t number, uint64_t now_ns);
  /// A probe: the response leaves again if there is one, else a credit return.
  /// False: the client has an answer to wait for that will never come. Either it knows that the server has acknowledged
  /// the request, but that is not, or not wholly, here: then the request takes `*slot` (end_slot(), begin()) and fails,
  /// so that the slot's numbers go on without a gap. Or the request cannot be the slot's next: an answer saying that it
  /// is lost is on its way, and `*slot` is null.
  bool on_probe(const wire::Header& header, uint64_t number, uint64_t now_ns, ServerSlot** slot);
  /// The slot still has a request that its client has given up, for it has begun the next one. Honest clients wait for
  /// an answer or an acknowledged cancel; damaged packets can make it seem so.
  static bool is_busy(const ServerSlot& slot) { return slot.phase > ServerSlot::Phase::kResponded; }
  /// Ranges of a response; false: there is no such response (stale) or they contradict it.
  bool on_rfr(const wire::Header& header, uint64_t number, uint64_t now_ns);
  /// The request has ended at the client: it will not run any more, and is acknowledged as cancelled. The caller then
  /// ends what the slot has: call, assembly, response (end_slot()). Null: there is nothing to end; the client gets an
  /// answer all the same.
  ServerSlot* on_cancel(const wire::Header& header, uint64_t number, uint64_t now_ns);
  /// Calls `finished(slot)` for each slot whose response the client has; the caller releases it. False: malformed.
  template <class F>
  bool on_report(const transport::Payload& payload, F&& finished);
  /// False: not of full length.
  bool on_path_probe(const wire::Header& header, uint32_t payload_bytes, uint64_t number);

  // -- Answers --

  /// The running request is answered: with slot->response (response_bytes set), or with a failure word.
  void respond(ServerSlot* slot) {
    slot->phase = ServerSlot::Phase::kResponded;
    response_mask_ |= uint64_t{1} << index_of(*slot);
  }
  void fail(ServerSlot* slot, wire::FailureCode code, uint16_t app_code) {
    slot->is_failure = true;
    slot->response_bytes = static_cast<uint32_t>(code) << 16 | app_code;
    respond(slot);
  }
  /// Takes the slot's memory away; the caller releases it: the assembly's buffer is returned through `assembled`.
  /// The response buffer stays in slot->response.
  void end_slot(ServerSlot* slot, detail::Buffer** assembled);

  // -- Packets out --

  bool wants_to_send() const { return (response_mask_ | due_) != 0; }
  enum class Turn : uint8_t {
    kNothing,  ///< there is no packet to send
    kRefused,  ///< `send` returned false: nothing has changed
    kSent,
  };
  /// Offers the next packet, if there is one, to `send`, and counts it as sent if it is taken:
  ///     bool send(const wire::Header&, const std::byte* payload, uint32_t payload_bytes, detail::Buffer* buffer)
  /// For a path reply `payload` is null: any content of that size. `ticket()` is asked afterwards.
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

  /// Response packets [first, first + count) that an RFR asked for.
  struct Range {
    uint32_t request_number;
    uint32_t first;
    uint32_t count;
    uint32_t echo;
    uint64_t received_ns;
  };

  bool is_current(const Range& range) const;
  bool prepare(uint64_t now_ns, uint8_t credit_limit, ServerPacket& packet);
  void commit(const ServerPacket& packet, uint64_t ticket);
  ServerSlot* make_slot(uint32_t index);
  void forget_cancel(uint64_t bit) {
    cancelled_mask_ &= ~bit;
    if (cancelled_mask_ == 0) due_ &= ~kCancels;
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
  uint64_t next_number_ = 1;
  ServerSlot** slots_ = nullptr;  ///< the window, filled up with nulls to a power of two, so that ...
  uint32_t slot_mask_ = 0;        ///< ... this leads into it
  uint32_t due_ = 0;
  uint32_t remote_key_;
  uint32_t payload_bytes_max_;
  NumberWindow received_;  ///< ... and the beginning of this

  uint64_t cr_since_ns_ = 0;  ///< when the newest packet that it acknowledges came
  ServerPools& pools_;
  uint32_t local_key_;
  uint32_t first_request_count_;
  uint32_t lost_request_number_ = 0;
  uint32_t lost_echo_ = 0;
  uint32_t path_echo_ = 0;
  uint8_t window_;
  uint64_t heard_long_epoch_ = 0;

  // What a session that has one call at a time needs, in one piece with it.
  ServerSlot* first_slots_[kFirstSlots] = {};
  ServerSlot first_slot_;
  std::vector<Range> ranges_;
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
      payload_bytes > payload_bytes_max_ || is_busy(*slot) || (due_ & kCancels) != 0) [[unlikely]] {
    return nullptr;
  }
  received_.insert_next();
  slot->request_number = header.request_number();
  slot->phase = ServerSlot::Phase::kRunning;
  slot->is_failure = false;
  slot->echo = static_cast<uint32_t>(number);
  slot->received_ns = now_ns;
  return slot;
}

inline RequestVerdict ServerSession::classify(const wire::Header& header, uint32_t payload_bytes,
                                              ServerSlot** slot_out) {
  const uint32_t slot_index = header.request_number() & (wire::kSlotsMax - 1);
  const uint64_t message_bytes = header.message_bytes();
  const bool is_first = (header.flags() & wire::kFirst) != 0;
  *slot_out = nullptr;
  if (slot_index >= window_) [[unlikely]]
    return RequestVerdict::kMalformed;
  ServerSlot* slot = slots_[slot_index];
  if (slot == nullptr) [[unlikely]] {
    slot = make_slot(slot_index);
    if (slot == nullptr) return RequestVerdict::kMalformed;
  }
  const bool is_short = is_first && payload_bytes == message_bytes && message_bytes <= payload_bytes_max_;
  if (!is_short) [[unlikely]] {
    const uint64_t offset = uint64_t{header.index()} * payload_bytes_max_;
    if (message_bytes > wire::kMessageBytesMax || message_bytes <= payload_bytes_max_ || offset >= message_bytes ||
        is_first != (header.index() == 0) ||
        payload_bytes != (message_bytes - offset < payload_bytes_max_ ? message_bytes - offset : payload_bytes_max_)) {
      return RequestVerdict::kMalformed;
    }
  }
  const auto age = static_cast<int32_t>(header.request_number() - slot->request_number);
  if (age > 0 && age != int32_t{wire::kSlotsMax}) [[unlikely]]
    return RequestVerdict::kMalformed;
  *slot_out = slot;
  if (age > 0) [[likely]]
    return is_short ? RequestVerdict::kShort : RequestVerdict::kLongFirst;
  if (age < 0) return RequestVerdict::kStale;
  if (slot->phase == ServerSlot::Phase::kReceiving && !is_short && message_bytes == slot->request_bytes &&
      header.request_type() == slot->type && slot->assembly->window.is_within(header.index()) &&
      !slot->assembly->window.contains(header.index())) {
    return RequestVerdict::kLongMore;
  }
  return RequestVerdict::kAgain;
}

template <class Send, class Ticket>
[[gnu::always_inline]] inline uint32_t ServerSession::transmit_first(uint64_t now_ns, uint8_t credit_limit, Send&& send,
                                                                     Ticket&& ticket) {
  if ((due_ & (kCancels | kMarked)) != 0) [[unlikely]]
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
    if (slot->is_failure) [[unlikely]]
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
  const bool has_response = response_mask_ != 0 && !slots_[std::countr_zero(response_mask_)]->is_failure;
  if (has_response && (due_ & kCancels) == 0) {
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

template <class F>
bool ServerSession::on_report(const transport::Payload& payload, F&& finished) {
  if (payload.bytes % 4 != 0 || payload.bytes > 4 * wire::kSlotsMax || payload.lease != nullptr) return false;
  for (uint32_t i = 0; i < payload.bytes; i += 4) {
    uint32_t number = 0;
    for (uint32_t j = 0; j < 4; j++) number |= static_cast<uint32_t>(payload.data[i + j]) << (8 * j);
    const uint32_t index = number & (wire::kSlotsMax - 1);
    ServerSlot* slot = index < window_ ? slots_[index] : nullptr;
    if (slot == nullptr || slot->request_number != number || slot->phase != ServerSlot::Phase::kResponded) continue;
    slot->phase = ServerSlot::Phase::kIdle;
    response_mask_ &= ~(uint64_t{1} << index);
    finished(slot);
  }
  return true;
}

}  // namespace tern::session
