// The client end of a session as a pure state machine: packets, timeouts and the time go in; what to send and what to
// finish comes out. No I/O, no callbacks, no clock. docs/protocol.md, chapters 3 to 6.
//
// The life of a slot:
//
//   kFree --begin--> kSending --last packet acknowledged--> kWaiting --packet 0 of a longer response--> kReceiving
//     ^                  |                                     |                                           |
//     +------------------+------------ response complete ------+-------------------------------------------+
//     |                  +------------ end_early() ------------+-----> kEnded (asks the server to forget it)
//     +------------------------------- answered or cancel acknowledged --+
//
// kBlocked is kFree, but takes no call: block_slot().
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <tern/detail/buffer.h>
#include <tern/detail/export.h>
#include <tern/detail/inline_function.h>
#include <tern/status.h>

#include "base/pool.h"
#include "cc/any_controller.h"
#include "cc/bypass.h"
#include "cc/pacer.h"
#include "session/credit_policy.h"
#include "session/drop.h"
#include "session/rtt_estimator.h"
#include "session/windows.h"
#include "transport/transport.h"
#include "wire/header.h"

namespace tern {
struct Completion;
}

namespace tern::session {

using Continuation = detail::InlineFunction<Completion&>;

/// What a response of one packet looks like.
inline constexpr uint16_t kPlainResponse = wire::shape_of(wire::Kind::kResponse, wire::kFirst);

/// A message of more than one packet, on its way out or in.
struct Transfer {
  IndexWindow window;  ///< out: acknowledged; in: received
  IndexSet lost;       ///< to be sent (out) or asked for (in) again
  uint32_t packets = 0;
  uint32_t next = 0;      ///< the lowest index never sent or asked for
  uint32_t restarts = 0;  ///< in: packets 0 that contradicted the one before (clause 5.3.1)
};

/// One call in flight. `request` and `response` are the slot's until the caller takes them.
struct ClientSlot {
  enum class Phase : uint8_t { kFree, kSending, kWaiting, kReceiving, kEnded, kBlocked };

  uint32_t request_number = 0;
  // One word, which the common case writes at once:
  uint16_t packets_in_flight = 0;  ///< entries of the sent ring that name this slot
  Phase phase = Phase::kFree;
  /// 0: nothing was sent; else 1 and the rounds of losses since the last progress (clause 4.3.3), at most 255.
  /// kWaiting: 1 and the probes that gaps have brought (clause 4.4.3).
  uint8_t rounds = 0;
  uint16_t type = 0;
  uint32_t call_sequence = 0;   ///< for cancel()
  uint32_t response_bytes = 0;  ///< kReceiving
  /// kFree: its request number if it was free at the last look; all bits inverted if the server knows that its last
  /// response has arrived (clause 5.5).
  uint32_t rested_number = 0;
  detail::Buffer* request = nullptr;
  uint64_t ticket = 0;  ///< of the last packet that refers to `request`
  detail::Buffer* response = nullptr;
  uint64_t deadline_ns = UINT64_MAX;
  Transfer* transfer = nullptr;  ///< kSending or kReceiving of more than one packet
  // The next cache line.
  Continuation continuation;
  // Beyond the common case.
  /// kWaiting, kEnded: the base of the intervals below. kSending and kReceiving with losses in `rounds`: when the first
  /// of them was found, on the session's watched clock.
  uint64_t waiting_since_ns = 0;
  /// kWaiting: next probe; kEnded: next cancel. kSending and kReceiving with losses in `rounds`: when the last of them
  /// was found.
  uint64_t ask_at_ns = UINT64_MAX;

  bool was_sent() const { return rounds != 0; }
  bool has_fruitless_rounds() const { return rounds > 1; }
};
static_assert(sizeof(ClientSlot) == 144);

/// The slot, which is not free, has its call's buffers and continuation.
inline bool has_call(const ClientSlot& slot) {
  return slot.phase != ClientSlot::Phase::kEnded && slot.phase != ClientSlot::Phase::kBlocked;
}

/// A packet to be sent, in the general case. `payload` lies in `buffer`, or is `scratch` when `buffer` is null.
struct ClientPacket {
  wire::Header header;
  const std::byte* payload;
  uint32_t payload_bytes;
  uint32_t slot_index;
  detail::Buffer* buffer;
  ClientSlot* slot;  ///< null: concerns the session
  uint32_t index;    ///< of the request packet; first index of an RFR
  uint32_t count;    ///< of an RFR's range
  bool is_retransmission;
  bool is_control;  ///< a probe, a cancel or a path probe
  std::byte scratch[wire::kSlotsMax * 4];
};

/// What a received packet means to the caller.
struct ClientVerdict {
  ClientSlot* finished = nullptr;  ///< take its buffers and continuation, then release_slot()
  Drop drop = Drop::kNone;
  uint16_t app_code = 0;
  Status status;  ///< of the finished call
};

/// What tick() found.
struct ClientTick {
  uint64_t next_ns = UINT64_MAX;  ///< call again then, at the latest
  uint64_t expired_mask = 0;      ///< slots whose deadline has passed: end_early() each
  uint64_t fruitless_mask = 0;    ///< slots whose response does not come though its packets could: end_early() each
  bool ask_liveness = false;
  /// Silent for the liveness timeout, and could have answered; or silent for four of them; or `is_path_narrow`.
  bool has_failed = false;
  bool is_path_narrow = false;  ///< packets of full length do not pass any more, short ones do (clause 6.4.2)
  bool has_timed_out = false;
  bool wants_pair_probe = false;  ///< the session is paired and silent: send a pair_probe()
  bool is_idle = false;           ///< nothing is left to do until the next call
};

struct ClientTerms {
  uint32_t local_key = 0;
  uint32_t first_number = 1;  ///< random, 24 bits
  uint8_t window = 8;
  uint64_t rto_ns_min = 1'000'000;
  uint64_t liveness_ns = 500'000'000;
  uint64_t report_delay_ns = 100'000'000;
  uint64_t credits_last_ns = UINT64_MAX;  ///< without an answer; then the limit is that of the handshake again
  uint32_t bulk_packets = 32;             ///< of one message in flight, whatever the credits
  cc::AnyController controller;
  uint64_t congestion_lasts_ns = UINT64_MAX;  ///< without an answer; then the controller starts anew
  uint64_t link_bytes_per_sec = cc::kUnlimited;
  bool may_pace_below_packet = true;  ///< a controller may let out less than a packet a round trip
  uint32_t seed = 1;                  ///< of the pacer
};

/// What the server has said in the handshake.
struct AcceptedTerms {
  uint32_t remote_key = 0;
  uint32_t payload_bytes_max = 0;
  uint8_t window = 8;  ///< at most what the client's terms asked for
  uint8_t credits = 1;
  uint32_t first_server_number = 1;
  uint32_t path_token = 0;
};

/// What the client sessions of one endpoint share.
struct ClientPools {
  base::Pool<ClientSlot> slots;
  base::Pool<Transfer, 8> transfers;
  int32_t response_packets_free = 64;  ///< how many more response packets the endpoint may ask for (clause 5.4)
  ResponseShare response_share;        ///< how many of them one session may await (likewise)
};

class TERN_API ClientSession {
 public:
  enum class State : uint8_t { kConnecting, kProbing, kOpen };

  /// `pools` outlives the session.
  ClientSession(const ClientTerms& terms, ClientPools& pools);
  ~ClientSession();
  ClientSession(const ClientSession&) = delete;
  ClientSession& operator=(const ClientSession&) = delete;

  State state() const { return state_; }
  uint32_t local_key() const { return terms_.local_key; }
  uint32_t remote_key() const { return remote_key_; }
  uint32_t payload_bytes_max() const { return payload_max_; }
  const RttEstimator& rtt() const { return rtt_; }
  /// Slots that the terms asked for, and, once accepted, that the server granted.
  uint64_t last_answer_ns() const { return std::max(last_progress_ns_, last_heard_ns_); }  ///< 0: there was none yet
  uint32_t window() const { return terms_.window; }
  /// The server's limit, or the congestion controller's, if that is less.
  uint32_t credit_limit() const { return credit_limit_; }
  /// The congestion controller asks for nothing less than what credits allow.
  bool is_uncongested() const { return calm_below_ns_ != 0; }
  uint32_t packets_in_flight() const { return in_flight_; }

  // -- Opening (clause 7.7) --

  /// The server has said yes; the path is probed next.
  void on_accepted(const AcceptedTerms& terms, uint64_t now_ns);
  /// Whether the data address may get another path probe: three headers until it has answered one (clause 7.7.3).
  bool may_probe_path() const { return is_path_answered_ || short_probes_left_ != 0; }
  /// Header of the next path probe, and the size of its payload, which may be any. kProbing and may_probe_path() only.
  struct PathProbe {
    wire::Header header;
    uint32_t payload_bytes;
  };
  PathProbe path_probe(uint64_t now_ns);
  /// Header-only path probes that its address may still get.
  uint8_t short_probes_left() const { return short_probes_left_; }
  /// The data address has answered; probes of full length may follow, and are what is not answered yet.
  bool is_path_answered() const { return is_path_answered_; }
  /// From now on short path probes ask for answers to where they come from (clause 7.7.4). kProbing only.
  void pair() {
    is_paired_ = true;
    first_probe_ns_ = 0;
  }
  /// One address and port pair serves both directions.
  bool is_paired() const { return is_paired_; }
  /// Of an open session that is paired: asks the server to follow, should our address be another one by now.
  PathProbe pair_probe();
  /// Before the session is open: the handshake begins anew, with another first number.
  void start_over(uint32_t first_number);
  enum class PathVerdict : uint8_t {
    kDropped,
    kAnswered,   ///< the data address answers: full probes may follow
    kOpened,     ///< the session is open
    kFound,      ///< the server has answered a short paired probe anew: of an open session, pair_probe() is due
    kFollowed,   ///< the server sends to where our packets come from
    kConfirmed,  ///< of the open session: packets of full length still pass
  };
  PathVerdict on_path_reply(const wire::Header& header, uint32_t payload_bytes, uint64_t now_ns);

  // -- Calls --

  bool has_free_slot() const { return free_mask_ != 0; }
  uint64_t busy_mask() const { return window_mask_ & ~free_mask_; }
  /// No call, and nothing to send.
  bool is_at_rest() const { return state_ == State::kOpen && free_mask_ == window_mask_ && !is_report_due(); }
  /// A limit that was granted long ago is for others by now (clause 4.5.1).
  void forget_old_credits(uint64_t now_ns) {
    if (now_ns - std::min(now_ns, last_answer_ns()) >= terms_.credits_last_ns) fall_back_to_start_credits();
  }
  /// A call begins after a pause: the congestion of long ago is another one's by now.
  void forget_old_congestion(uint64_t now_ns) {
    if (!is_uncongested() && now_ns - std::min(now_ns, last_answer_ns()) >= terms_.congestion_lasts_ns) start_anew();
  }
  /// A call begins, or a packet has come: asks for the cache lines that it will touch if the call is the only one.
  [[gnu::always_inline]] void prefetch() const {
    const auto* line = reinterpret_cast<const char*>(this);
    for (size_t i = 0; i < kFirstCallLines; i++) __builtin_prefetch(line + 64 * i, 1);
  }
  ClientSlot* slot(uint32_t index) const { return slots_[index]; }
  static uint32_t index_of(const ClientSlot& slot) { return slot.request_number & (wire::kSlotsMax - 1); }
  /// Takes the lowest free slot for a call; the caller fills in continuation, deadline and sequence. Only with
  /// has_free_slot(), kOpen only. Null: no memory.
  ClientSlot* begin(detail::Buffer* request, detail::Buffer* response, uint16_t type);
  /// The same in the common case: null also when there is no free slot, when the lowest one has never been used, or for
  /// a request of several packets. Nothing has changed then.
  ClientSlot* try_begin(detail::Buffer* request, detail::Buffer* response, uint16_t type);
  /// Its call is over and its buffers are taken: free for the next one.
  void release_slot(ClientSlot* slot);
  /// The free slot takes no call until it is unblocked: there is no memory to end one more of it.
  void block_slot(ClientSlot* slot);
  void unblock_slot(ClientSlot* slot) { release_slot(slot); }
  /// For tests.
  size_t blocked_slots() const;
  /// The call ends before its answer: buffers and continuation have been taken. The slot stays until the server has
  /// answered or acknowledged the cancel; one of which nothing was sent is free at once.
  void end_early(ClientSlot* slot, uint64_t now_ns);

  // -- Packets out (clauses 3.1, 4.1) --

  /// Whether prepare() may find something.
  bool wants_to_send() const {
    if ((fresh_mask_ | send_mask_ | control_mask_ | detours_) == 0) [[likely]]
      return false;
    return state_ == State::kOpen && (has_unpaced() || ((fresh_mask_ | send_mask_) != 0 && has_credit()));
  }
  enum class Turn : uint8_t {
    kNothing,  ///< there is no packet to send now
    kRefused,  ///< `send` returned false: nothing has changed
    kLater,    ///< not before departure_ns()
    kSent,
    kSentAgain,  ///< what was lost
    kAsked,      ///< a probe, a cancel or a path probe
  };
  /// Offers the next packet, if there is one, to `send`, and counts it as sent if it is taken:
  ///     bool send(const wire::Header&, const std::byte* payload, uint32_t payload_bytes, detail::Buffer* buffer)
  /// `buffer` is null for payloads that are not a message's; for a full path probe `payload` is null, too: any content
  /// of that size. `ticket()` is asked afterwards: it brings memory back.
  /// Several may go in one turn; their number is added to `packets`. Below kSent: there is no more for now.
  template <class Send, class Ticket>
  Turn transmit(uint64_t now_ns, Send&& send, Ticket&& ticket, uint32_t& packets);
  /// The common case of it: new calls of one packet each, as many as may leave now and are taken. Their number;
  /// whatever else there is to send, or why it was not taken, transmit() knows.
  template <class Send, class Ticket>
  uint32_t transmit_short(uint64_t now_ns, Send&& send, Ticket&& ticket);
  /// When the next packet may leave, if the session is paced.
  uint64_t departure_ns() const { return pacer_.departure_ns(); }
  /// A probe, a cancel, a report or a path probe is to be sent: they wait for no pace.
  bool has_unpaced() const { return control_mask_ != 0 || (detours_ & ~kPaced) != 0; }
  /// When tick() has a loss to look for; UINT64_MAX: none is suspected.
  uint64_t loss_check_at_ns() const { return rack_at_ns_ == 0 ? UINT64_MAX : rack_at_ns_; }

  // -- Packets in (clauses 4, 5) --

  /// The common case, in which nothing was lost, overtaken or fragmented: copies the response to its place and returns
  /// the finished slot. It is free already: take its buffers and its continuation before the next begin(). Null:
  /// another case; nothing has changed.
  ClientSlot* try_finish(const wire::Header& header, const transport::Payload& payload, uint64_t now_ns);
  /// Every case.
  /// A packet that does not prove itself (clause 3.9) changes nothing.
  ClientVerdict on_response(const wire::Header& header, const transport::Payload& payload, uint64_t now_ns);
  ClientVerdict on_credit_return(const wire::Header& header, const transport::Payload& payload, uint64_t now_ns);
  ClientVerdict on_cancelled(const wire::Header& header, uint64_t now_ns);

  // -- Time (clauses 4.4, 6) --

  /// Loss detection, probes, deadlines, silence. Call when the returned time has come, and once after commit(). All
  /// that arrived for the endpoint before `read_until_ns` has been read: what came later may be an answer.
  ClientTick tick(uint64_t now_ns, uint64_t read_until_ns = UINT64_MAX);
  /// The server's management says that its endpoint is inside an application callback: not dead.
  void on_peer_in_callback() {
    silence_ns_ = 0;
    has_asked_ = false;
  }
  /// The server's management says that its endpoint could answer.
  void on_peer_idle() { is_peer_idle_ = has_asked_; }

  /// CHECKs credits, masks and counts against each other. For tests.
  void check_invariants() const;

 private:
  /// A packet that is not answered yet. The ring holds every number from oldest_ to next_number_ - 1.
  struct Sent {
    enum class Kind : uint8_t {
      kNone,   ///< answered, or takes no credit
      kShort,  ///< a request of one packet
      kPart,   ///< a packet of a longer request
      kRfr,
      kRfrArrived,    ///< the server has said that it has it: its time is that of the word
      kRfrOvertaken,  ///< the last of the range is here, so what is missing was overtaken
    };
    uint64_t time_ns = 0;
    uint32_t index = 0;   ///< of the packet in its message; kShort: the request number
    uint8_t count = 0;    ///< RFR: packets asked for
    uint8_t missing = 0;  ///< RFR: of these, not yet here
    uint8_t slot = 0;
    Kind kind = Kind::kNone;

    bool is_request() const { return kind == Kind::kShort || kind == Kind::kPart; }
    bool is_rfr() const { return kind >= Kind::kRfr; }
  };

  static constexpr size_t kFirstSlots = 8;  ///< the default window
  static constexpr size_t kFirstRing = 4;
  /// The session's own part, the pointers, the ring, and what a call needs of the first slot.
  static constexpr size_t kFirstCallLines = 3 + 1 + 1 + 2;

  /// So many full paired probes without an answer, and our address may be another one by now.
  static constexpr uint8_t kFullPairProbesMax = 4;
  /// Header-only path probes to an address that has not answered one (clause 7.7.3).
  static constexpr uint8_t kShortProbesMax = 3;
  /// An echo proves a packet if it names one of so many that were sent last (clause 3.9): as many as the ring can hold.
  static constexpr uint64_t kEchoSpan = 4096;

  // Bits of detours_:
  static constexpr uint8_t kReportDue = 1;
  static constexpr uint8_t kPaced = 2;
  static constexpr uint8_t kFullProbeDue = 4;   ///< of the path (clause 6.4.2)
  static constexpr uint8_t kShortProbeDue = 8;  ///< likewise
  bool is_report_due() const { return (detours_ & kReportDue) != 0; }

  void fall_back_to_start_credits() { set_server_credits(std::min(server_credits_, start_credits_)); }
  bool is_outstanding() const;  ///< the server has something to answer
  /// The measured timeout. Whoever is silent is asked some times before the session fails.
  uint64_t rto_ns() const { return std::min(rtt_.rto_ns(terms_.rto_ns_min), terms_.liveness_ns / 4); }
  bool has_credit() const { return in_flight_ < credit_limit_; }
  Sent& sent(uint64_t number) { return ring_[number & ring_mask_]; }
  const Sent& sent(uint64_t number) const { return ring_[number & ring_mask_]; }
  static uint64_t bit(uint32_t slot_index) { return uint64_t{1} << slot_index; }
  uint32_t packets_of(uint64_t bytes) const {
    return bytes <= payload_max_ ? 1 : static_cast<uint32_t>((bytes + payload_max_ - 1) / payload_max_);
  }

  void set_first_number(uint32_t first_number);
  uint32_t number_of_path_probe();
  PathVerdict on_pair_reply(const wire::Header& header, uint32_t payload_bytes, uint64_t now_ns);
  bool take_pair_token(const wire::Header& header);
  bool is_to_probe_pair(uint64_t now_ns);
  ClientSlot* make_slot(uint32_t index);
  bool begin_long(ClientSlot* slot, uint32_t request_bytes);
  void take_slot(ClientSlot* slot, detail::Buffer* request, detail::Buffer* response, uint16_t type, uint64_t& to_send);
  bool prepare(uint64_t now_ns, ClientPacket& packet);
  void prepare_control(ClientPacket& packet);
  void prepare_path_probe(ClientPacket& packet);
  void give_back_room(uint32_t packets) {
    pools_.response_packets_free += static_cast<int32_t>(packets);
    awaited_packets_ -= packets;
  }
  void prepare_report(ClientPacket& packet);
  void look_at_free_slots(uint64_t now_ns);
  void on_report_acknowledged(uint64_t now_ns);
  bool prepare_transfer(uint64_t now_ns, uint32_t slot_index, ClientPacket& packet);
  template <class Send, class Ticket>
  Turn transmit_other(uint64_t now_ns, Send& send, Ticket& ticket, uint32_t& packets);
  static uint32_t deadline_code_of(uint64_t deadline_ns, uint64_t now_ns);
  void fill_request(uint64_t now_ns, ClientSlot* slot, uint32_t slot_index, uint32_t index, ClientPacket& packet) const;
  void commit(uint64_t now_ns, const ClientPacket& packet, uint64_t ticket);
  void grow_ring();
  void drop_ring();
  void pace(uint64_t now_ns, const ClientPacket& packet);
  void apply_allowance();
  void start_anew();
  void set_server_credits(uint32_t credits);

  /// The packet echoes one that was sent lately, and its own number is one that the server may have reached.
  bool is_proven_by_echo(const wire::Header& header) const;
  /// False: its number says that it is late or a duplicate, so that it says nothing of the present (clause 3.4.1).
  bool note_server_packet(const wire::Header& header, uint64_t now_ns);
  /// The server has done what a packet of the slot has asked for.
  void note_progress(ClientSlot* slot, uint64_t now_ns) {
    slot->rounds = 1;
    last_progress_ns_ = now_ns;
  }
  void on_gap(uint64_t now_ns);
  void on_echo(const wire::Header& header, uint32_t slot_index, uint64_t now_ns);
  void acknowledge(uint64_t number, uint64_t now_ns, const wire::Header* sample_header);
  void on_delivered(ClientSlot* slot, uint64_t now_ns);
  void advance_oldest() {
    while (oldest_ < next_number_ && sent(oldest_).kind == Sent::Kind::kNone) oldest_++;
  }
  /// A packet was answered: older ones may be lost. They are judged when all that has come with it has been looked at.
  void suspect_losses(uint64_t now_ns) {
    if (oldest_ > largest_answered_ || in_flight_ == 0) return;
    const uint64_t at_ns = now_ns + RttEstimator::kReorderNsMin;
    if (rack_at_ns_ != 0 && rack_at_ns_ <= at_ns) return;
    rack_at_ns_ = at_ns;
    judged_number_ = largest_answered_;
  }
  void detect_losses(uint64_t now_ns);
  uint64_t lost_at_ns(uint64_t number) const;
  void begin_round(ClientSlot* slot, uint64_t now_ns);
  void lose(uint64_t number, uint64_t now_ns);
  /// Between two rounds of losses of one slot without progress (clause 4.3.3).
  uint64_t round_gap_ns(const ClientSlot& slot) const;
  /// How long an answer may take: the measured timeout, or more if the server has lately held its answers for longer.
  uint64_t patience_ns() const { return std::clamp(2 * response_ns_, rto_ns(), terms_.liveness_ns / 4); }
  uint64_t number_of_rfr(uint32_t slot_index, uint64_t echo, uint32_t index) const;
  void set_stalled(bool is_stalled);
  bool is_without_progress(const ClientSlot& slot, uint64_t now_ns) const;
  void check_path(uint64_t now_ns, bool is_wanted, ClientTick& result);
  void end_path_check() {
    is_checking_path_ = false;
    detours_ &= static_cast<uint8_t>(~(kFullProbeDue | kShortProbeDue));
  }
  PathVerdict on_open_path_reply(const wire::Header& header, uint32_t payload_bytes, uint64_t now_ns);
  void forget_packets(uint32_t slot_index);
  void drop_transfer(ClientSlot* slot);
  [[gnu::noinline]] void take_rtt_sample(uint8_t hold_code, bool is_marked, uint64_t sent_ns, uint64_t now_ns);
  [[gnu::noinline]] void tell_sample(uint64_t now_ns, uint64_t rtt_ns, bool is_marked);
  template <class Tell>
  void tell_controller(Tell&& tell) {
    std::visit(tell, terms_.controller);
    apply_allowance();
  }
  ClientVerdict on_response_slow(ClientSlot* slot, const wire::Header& header, const transport::Payload& payload,
                                 uint64_t now_ns);
  ClientVerdict on_response_part(ClientSlot* slot, const wire::Header& header, const transport::Payload& payload,
                                 uint64_t now_ns);

  // Touched by every call: 176 B, which with the 16 B that the endpoint keeps before them are three cache lines.
  uint64_t fresh_mask_ = 0;    ///< slots with a request of one packet that has not been sent yet
  uint64_t send_mask_ = 0;     ///< slots with any other message packet or an RFR to send
  uint64_t control_mask_ = 0;  ///< slots with a probe or a cancel to send
  uint64_t free_mask_ = 0;     ///< none before the session is open
  ClientSlot** slots_ = nullptr;
  Sent* ring_ = first_ring_;
  uint64_t ring_mask_ = kFirstRing - 1;
  uint64_t ring_size_ = kFirstRing;
  uint64_t next_number_;       ///< of our next packet
  uint64_t oldest_;            ///< no packet before it is unanswered
  uint32_t in_flight_ = 0;     ///< packets that hold a credit
  uint32_t credit_limit_ = 1;  ///< the server's and the controller's
  uint32_t remote_key_ = 0;
  uint32_t payload_max_ = 0;
  State state_ = State::kConnecting;
  uint8_t detours_ = 0;  ///< not 0: the next packet may not be the first one of a call
  bool is_paced_ = false;
  uint8_t window_ = 0;  ///< 0 until kOpen
  bool has_asked_ = false;
  bool was_busy_ = false;  ///< at the last tick
  uint8_t backoff_ = 0;
  uint8_t server_credits_ = 1;     ///< the server's newest word
  uint64_t server_number_ = 0;     ///< the largest that has arrived; one before the first, at first
  uint64_t last_progress_ns_ = 0;  ///< what a packet in flight had asked for has come, or the session was accepted
  uint64_t last_sample_ns_ = 0;
  uint64_t largest_answered_;
  uint64_t calm_below_ns_ = UINT64_MAX;  ///< round trips below it are no news for the controller
  RttEstimator rtt_;

  // What a session that has few calls at a time needs, in one piece with it.
  ClientSlot* first_slots_[kFirstSlots] = {};
  Sent first_ring_[kFirstRing];
  ClientSlot first_slot_;  ///< the one that is taken first, and by most sessions only

  // Touched by ticks and long messages.
  uint64_t window_mask_ = 0;          ///< all slots; none before the session is open
  uint8_t transfer_cursor_ = 0;       ///< long messages take turns
  uint8_t start_credits_ = 1;         ///< of the handshake
  uint32_t first_request_count_ = 0;  ///< the server's word
  uint32_t awaited_packets_ = 0;      ///< response packets asked for and not here
  uint64_t heard_epoch_ = 0;          ///< for pools_.response_share
  uint64_t rack_at_ns_ = 0;           ///< when packets up to judged_number_ are judged; 0: none is suspected
  uint64_t judged_number_ = 0;        ///< of those suspected
  uint64_t largest_part_ = 0;         ///< the largest number of an RFR of which a packet has come
  uint64_t last_heard_ns_ = 0;        ///< a packet of the server that was no progress
  uint64_t rto_base_ns_ = 0;
  uint64_t response_ns_ = 0;       ///< what answers have lately taken, hold time included: a maximum that decays
  uint64_t gap_ask_again_ns_ = 0;  ///< not before does a gap make all waiting calls ask
  uint64_t silence_ns_ = 0;
  uint64_t silent_until_ns_ = 0;  ///< what silence_ns_ counts
  uint64_t last_tick_ns_ = 0;
  uint64_t watched_ns_ = 0;      ///< a clock of the busy times that ticks have seen
  uint64_t path_good_ns_ = 0;    ///< on it: when packets of full length passed last
  uint64_t check_began_ns_ = 0;  ///< is_checking_path_
  uint64_t check_sent_ns_ = 0;   ///< likewise: when the last probe was due
  uint64_t check_again_ns_ = 0;  ///< likewise: when the next probe is due
  uint64_t first_check_number_ = 0;
  bool is_checking_path_ = false;  ///< clause 6.4.2
  bool is_stalled_ = false;        ///< without progress of any slot: one packet at a time (clause 4.3.3)
  uint8_t narrow_rounds_ = 0;      ///< path probes without an answer while others were answered
  // Of a paired session:
  uint64_t pair_answer_ns_ = 0;     ///< last_answer_ns_ when the silence began
  uint64_t pair_probe_at_ns_ = 0;   ///< 0: the session was at rest
  uint64_t pair_probe_gap_ns_ = 0;  ///< to the one after that
  uint64_t first_probe_ns_ = 0;     ///< of the path, of those of its length; 0: none yet
  uint64_t first_number_;
  uint32_t path_token_ = 0;
  uint32_t session_token_ = 0;  ///< is_path_answered_
  uint32_t pair_token_ = 0;     ///< has_pair_token_
  uint8_t short_probes_left_ = kShortProbesMax;
  bool is_path_answered_ = false;
  bool is_peer_idle_ = false;  ///< the answer to ask_liveness
  bool is_paired_ = false;
  bool has_pair_token_ = false;         ///< of a short reply, for the full probe that follows
  bool is_pair_asked_ = false;          ///< a short paired probe has not been answered
  uint8_t full_pair_probes_ = 0;        ///< since the last short one, before the session is open
  uint64_t reported_number_ = 0;        ///< next_number_ after the last report: more have been sent since if it differs
  uint64_t report_at_ns_ = UINT64_MAX;  ///< the next look at what is to be reported
  uint64_t report_number_ = 0;          ///< packet number of a report that is not acknowledged; 0: there is none
  uint8_t report_tries_ = 0;            ///< since the last one was acknowledged, or given up
  uint64_t answer_seen_ns_ = 0;
  uint64_t progress_seen_ns_ = 0;
  uint64_t sample_seen_ns_ = 0;
  cc::Pacer pacer_;
  cc::Allowance pace_;  ///< of the pacer: not its window
  ClientPools& pools_;
  ClientTerms terms_;
};

// ---- The common case, inline ----

inline ClientSlot* ClientSession::try_begin(detail::Buffer* request, detail::Buffer* response, uint16_t type) {
  const uint64_t free = free_mask_;
  if (free == 0) [[unlikely]]
    return nullptr;
  ClientSlot* slot = slots_[std::countr_zero(free)];
  if (slot == nullptr || request->length_bytes > payload_max_) [[unlikely]]
    return nullptr;
  take_slot(slot, request, response, type, fresh_mask_);
  return slot;
}

inline void ClientSession::take_slot(ClientSlot* slot, detail::Buffer* request, detail::Buffer* response, uint16_t type,
                                     uint64_t& to_send) {
  slot->request_number += wire::kSlotsMax;
  slot->phase = ClientSlot::Phase::kSending;
  slot->rounds = 0;
  slot->type = type;
  slot->request = request;
  slot->response = response;
  const uint64_t lowest = free_mask_ & -free_mask_;
  free_mask_ ^= lowest;
  to_send |= lowest;
}

inline void ClientSession::release_slot(ClientSlot* slot) {
  const uint32_t index = index_of(*slot);
  if (slot->packets_in_flight != 0) [[unlikely]]
    forget_packets(index);
  if (slot->transfer != nullptr) [[unlikely]]
    drop_transfer(slot);
  slot->phase = ClientSlot::Phase::kFree;
  fresh_mask_ &= ~bit(index);
  send_mask_ &= ~bit(index);
  control_mask_ &= ~bit(index);
  free_mask_ |= bit(index);
}

template <class Send, class Ticket>
[[gnu::always_inline]] inline uint32_t ClientSession::transmit_short(uint64_t now_ns, Send&& send, Ticket&& ticket) {
  if (((control_mask_ | detours_) != 0) | (fresh_mask_ == 0)) [[unlikely]]
    return 0;
  // As many as there are credits for, and places in the ring: it grows elsewhere.
  uint64_t mask = fresh_mask_;
  Sent* const ring = ring_;
  const uint64_t ring_mask = ring_mask_;
  ClientSlot* const* const slots = slots_;
  const uint32_t remote_key = remote_key_;
  const uint64_t first = next_number_;
  const uint64_t last =
      std::min(first + (credit_limit_ > in_flight_ ? credit_limit_ - in_flight_ : 0), oldest_ + ring_size_);
  uint64_t number = first;
  for (; mask != 0 && number != last; mask &= mask - 1) {
    ClientSlot* slot = slots[std::countr_zero(mask)];
    if (slot->deadline_ns != UINT64_MAX) [[unlikely]]
      break;
    detail::Buffer* request = slot->request;
    if (!send(wire::client_header(wire::Kind::kRequest, wire::kFirst, remote_key, static_cast<uint32_t>(number),
                                  slot->request_number, wire::kNoDeadline, slot->type, request->length_bytes),
              request->data(), request->length_bytes, request)) [[unlikely]] {
      break;
    }
    Sent& entry = ring[number & ring_mask];
    entry.time_ns = now_ns;
    entry.index = slot->request_number;
    entry.slot = static_cast<uint8_t>(index_of(*slot));
    entry.kind = Sent::Kind::kShort;
    slot->packets_in_flight = 1;
    slot->phase = ClientSlot::Phase::kSending;
    slot->rounds = 1;
    slot->ticket = ticket();
    number++;
  }
  const auto count = static_cast<uint32_t>(number - first);
  fresh_mask_ = mask;
  next_number_ = number;
  in_flight_ += count;
  return count;
}

template <class Send, class Ticket>
ClientSession::Turn ClientSession::transmit(uint64_t now_ns, Send&& send, Ticket&& ticket, uint32_t& packets) {
  const uint32_t count = transmit_short(now_ns, send, ticket);
  packets += count;
  if (count != 0) return Turn::kSent;
  return wants_to_send() ? transmit_other(now_ns, send, ticket, packets) : Turn::kNothing;
}

/// One packet of any other kind.
template <class Send, class Ticket>
ClientSession::Turn ClientSession::transmit_other(uint64_t now_ns, Send& send, Ticket& ticket, uint32_t& packets) {
  if (is_paced_ && pacer_.departure_ns() > now_ns && !has_unpaced()) {
    pacer_.wait();
    return Turn::kLater;
  }
  ClientPacket packet;
  if (!prepare(now_ns, packet)) return Turn::kNothing;
  if (!send(packet.header, packet.payload, packet.payload_bytes, packet.buffer)) return Turn::kRefused;
  commit(now_ns, packet, ticket());
  packets++;
  if (packet.is_control) return Turn::kAsked;
  return packet.is_retransmission ? Turn::kSentAgain : Turn::kSent;
}

[[gnu::always_inline]] inline ClientSlot* ClientSession::try_finish(const wire::Header& header,
                                                                    const transport::Payload& payload,
                                                                    uint64_t now_ns) {
  // In order in both directions: the server's next packet answers our oldest one, which is the call's only one, and not
  // yet acknowledged: its slot is kSending, and its number is that of a slot that exists.
  const uint64_t oldest = oldest_;
  Sent& entry = ring_[oldest & ring_mask_];
  if ((((header.w2 ^ oldest) | ((header.w1 - 1) ^ server_number_)) & wire::kNumberMask) != 0) [[unlikely]]
    return nullptr;
  if (entry.kind != Sent::Kind::kShort || entry.index != header.request_number()) [[unlikely]]
    return nullptr;
  const uint32_t bytes = payload.bytes;
  if (header.shape() != kPlainResponse || header.size_or_index() != bytes || payload.lease != nullptr ||
      control_mask_ != 0) [[unlikely]] {
    return nullptr;
  }
  ClientSlot* slot = slots_[header.request_number() & (wire::kSlotsMax - 1)];
  detail::Buffer* response = slot->response;
  if (bytes > response->capacity_bytes || header.credit_limit() != server_credits_) [[unlikely]]
    return nullptr;
  entry.kind = Sent::Kind::kNone;
  oldest_ = oldest + 1;
  server_number_++;
  in_flight_--;
  free_mask_ |= bit(header.request_number() & (wire::kSlotsMax - 1));
  slot->packets_in_flight = 0;
  slot->phase = ClientSlot::Phase::kFree;
  slot->rounds = 0;
  if (!cc::kBypasses.batched_timestamps || now_ns != last_progress_ns_) [[unlikely]] {
    last_progress_ns_ = now_ns;
    take_rtt_sample(header.hold_code(), false, entry.time_ns, now_ns);
  }
  response->length_bytes = bytes;
  base::copy_bytes(response->data(), payload.data, bytes);
  return slot;
}

}  // namespace tern::session
