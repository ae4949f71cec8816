// The client end of a session as a pure state machine: packets, timeouts and the time go in; what to send and what to
// finish comes out. No I/O, no callbacks, no clock. docs/protocol.md, chapters 3 to 6.
//
//   client_session.cc    the life of the session, its calls, its credits
//   client_fast_path.h   the common case: a call of one packet leaves and is answered in order
//   client_send.cc       which packet leaves next: requests, RFRs, probes, cancels, reports
//   client_receive.cc    received packets: responses, credit returns, acknowledged cancels
//   client_rest.cc       the memory of a session that has calls, and its end when the session rests
//   client_timers.cc     what the passing of time brings: losses, probes, reports, deadlines, silence
//   client_path.cc       path probes, pairing, the check of the path
//   client_sizes.cc      packets that are larger than those with which the session has opened
//
// Its parts are values of their own: sent_packets.h, loss_detection.h, probe_timer.h, silence_timer.h, path_check.h,
// path_proof.h, size_search.h, reports.h, rtt_estimator.h. A session at rest has no client_busy.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <variant>

#include <tern/detail/buffer.h>
#include <tern/detail/export.h>
#include <tern/status.h>

#include "cc/any_controller.h"
#include "session/client_busy.h"
#include "session/client_results.h"
#include "session/client_slot.h"
#include "session/client_terms.h"
#include "session/drop.h"
#include "session/path_proof.h"
#include "session/reports.h"
#include "session/rtt_estimator.h"
#include "session/sent_packets.h"
#include "session/windows.h"
#include "transport/payload.h"
#include "wire/credits.h"
#include "wire/header.h"

namespace tern::session {

class TERN_API ClientSession {
 public:
  enum class State : uint8_t { kConnecting, kProbing, kOpen };
  using PathVerdict = session::PathVerdict;

  /// `pools` outlives the session. If has_memory() is false afterwards, the session must not be used.
  ClientSession(const ClientTerms& terms, ClientPools& pools);
  ~ClientSession();
  ClientSession(const ClientSession&) = delete;
  ClientSession& operator=(const ClientSession&) = delete;

  /// False: there was no memory for a part of the session.
  bool has_memory() const { return wanted_window_ != 0; }
  State state() const { return state_; }
  uint32_t local_key() const { return local_key_; }
  uint32_t remote_key() const { return remote_key_; }
  uint32_t payload_bytes_max() const { return payload_max_; }
  /// The largest payload of the packets of long messages: payload_bytes_max(), or what has been found to pass.
  uint32_t large_payload_bytes() const { return std::max(payload_max_, wire::payload_of_code(sizes_.found)); }
  const RttEstimator& rtt() const { return rtt_; }
  /// Time of the server's newest packet; 0: no packet has come yet.
  uint64_t last_answer_ns() const { return std::max(last_progress_ns_, last_heard_ns_); }
  /// Number of slots: what the terms asked for, and after on_accepted() what the server granted.
  uint32_t window() const { return wanted_window_; }
  /// The lesser of the server's limit and the congestion controller's, in credits.
  uint32_t credit_limit() const { return sent_.credit_limit(); }
  /// The rate that the congestion controller allows now. cc::kUnlimited: no limit.
  uint64_t rate_bytes_per_sec() const;
  /// True if the congestion controller allows all that the credits allow.
  bool is_uncongested() const { return calm_below_ns_ != 0; }
  uint32_t packets_in_flight() const;
  /// Credits that the packets in flight hold.
  uint32_t credits_in_flight() const { return sent_.in_flight(); }
  /// Credits that a full packet costs.
  uint32_t full_packet_credits() const { return full_credits_; }
  /// Packets in flight that the congestion controller allows.
  uint32_t congestion_window() const { return allowance().window_packets; }
  /// Packets sent since the handshake. The packet numbers count them, so that packets need no counter.
  uint64_t packets_sent() const { return sent_.next_number() - (kNumberBase + first_number_); }
  /// Packets that the server has sent since the handshake, up to the newest that has arrived.
  uint64_t packets_received() const;
  /// Payload bytes of messages longer than payload_bytes_max(). Shorter ones are not counted, because the common case
  /// would become slower.
  uint64_t long_bytes_sent() const { return long_bytes_sent_; }
  uint64_t long_bytes_received() const { return long_bytes_received_; }

  // -- Opening (clause 7.7) --

  /// Takes the server's terms. The path is probed next.
  void on_accepted(const AcceptedTerms& terms, uint64_t now_ns);
  /// True if the data address may get another path probe. It gets at most three headers until it has answered one
  /// (clause 7.7.3).
  bool may_probe_path() const { return proof_.may_probe(); }
  /// Header of the next path probe, and the size of its payload, which may be any. kProbing and may_probe_path() only.
  struct PathProbe {
    wire::Header header;
    uint32_t payload_bytes;
  };
  PathProbe path_probe(uint64_t now_ns);
  /// Header-only path probes that the data address may still get.
  uint8_t short_probes_left() const { return proof_.short_probes_left(); }
  /// True if the data address has answered a short probe. Probes of full length may follow.
  bool is_path_answered() const { return proof_.is_answered(); }
  /// Makes later short path probes ask for answers to their source address (clause 7.7.4). Only in kProbing.
  void pair();
  /// True if one address and port pair serves both directions.
  bool is_paired() const { return proof_.is_paired(); }
  /// Returns a probe of an open paired session. It asks the server to follow this client, whose address may have
  /// changed.
  PathProbe pair_probe(uint64_t now_ns);
  /// Begins the handshake anew, with another first number and the caller's window. Only before the session is open.
  void start_over(uint32_t first_number, uint8_t window);
  PathVerdict on_path_reply(const wire::Header& header, uint32_t payload_bytes, uint64_t now_ns);

  // -- Calls --

  bool has_free_slot() const { return free_mask_ != 0; }
  uint64_t busy_mask() const { return window_mask() & ~free_mask_; }
  /// True if the session has no call and nothing to send.
  bool is_at_rest() const { return state_ == State::kOpen && free_mask_ == window_mask() && !is_report_due(); }
  /// Gets the memory for calls, as begin() does. False: the session is not open, or there is no memory.
  bool wake();
  /// Begins the call that was written into the first slot of `busy`: buffers, type, sequence and continuation. Only if
  /// sleeps(), and for a request of at most wire::kPayloadBytesMin bytes.
  void begin_first(ClientBusy* busy);
  /// True if the session is open and at rest, without memory for calls.
  bool sleeps() const { return state_ == State::kOpen && busy_ == nullptr; }
  /// Gives back the memory for calls, if the session has no call, has nothing to send, and waits for no answer. Slots
  /// of the session are not valid any more then. Returns sleeps().
  bool try_rest();
  bool is_awake() const { return busy_ != nullptr; }  ///< has memory for calls
  /// Falls back to the handshake's credit limit if the last answer is old: the server has shared out the present limit
  /// anew since (clause 4.5.1).
  void forget_old_credits(uint64_t now_ns) {
    if (has_no_answer_for(terms_.credits_last_ns, now_ns)) fall_back_to_start_credits();
  }
  /// Called when a call begins after a pause. The controller starts anew if the last answer is old.
  void forget_old_congestion(uint64_t now_ns) {
    if (!is_uncongested() && has_no_answer_for(terms_.congestion_lasts_ns, now_ns)) start_anew();
  }
  /// Prefetches the cache lines that a call or a received packet touches if the session has only one call.
  [[gnu::always_inline]] void prefetch() const {
    const auto* line = reinterpret_cast<const char*>(this);
    for (size_t i = 0; i < kFirstCallLines; i++) __builtin_prefetch(line + 64 * i, 1);
  }
  ClientSlot* slot(uint32_t index) const { return slots_[index]; }
  static uint32_t index_of(const ClientSlot& slot) { return slot.request_number & (wire::kSlotsMax - 1); }
  /// Takes the lowest free slot for a call, which has no deadline; the caller fills in continuation and sequence. Only
  /// when has_free_slot(). Null: no memory.
  ClientSlot* begin(detail::Buffer* request, detail::Buffer* response, uint16_t type);
  /// begin() in the common case. Null, and nothing has changed, if there is no free slot, if the lowest one has no
  /// memory, if the request costs more than one credit, or if any response may come whole (clause 5.3.3).
  ClientSlot* try_begin(detail::Buffer* request, detail::Buffer* response, uint16_t type);
  /// Only before the call's first packet. UINT64_MAX: none.
  void set_deadline(ClientSlot* slot, uint64_t deadline_ns);
  /// Frees the slot for the next call. The slot's call must be over, and the caller must have taken its buffers.
  void release_slot(ClientSlot* slot);
  /// Makes a free slot take no call until unblock_slot(), because there is no memory to end one more call of the slot.
  void block_slot(ClientSlot* slot);
  void unblock_slot(ClientSlot* slot) { release_slot(slot); }
  size_t blocked_slots() const;  ///< for tests
  /// Ends a call before its answer. The caller must have taken its buffers and its continuation. The slot stays taken
  /// until the server has answered or acknowledged the cancel. If no packet of the call was sent, the slot is free at
  /// once.
  void end_early(ClientSlot* slot, uint64_t now_ns);

  // -- Packets out (clauses 3.1, 4.1) --

  /// True if prepare() may return a packet.
  bool wants_to_send() const {
    if ((fresh_mask_ | send_mask_ | control_mask_ | detours_) == 0) [[likely]]
      return false;
    return state_ == State::kOpen && (has_unpaced() || ((fresh_mask_ | send_mask_) != 0 && sent_.has_credit()));
  }
  /// True if the session has a message packet or an RFR to send, but no credit for it. For traces.
  bool waits_for_credit() const {
    return state_ == State::kOpen && (fresh_mask_ | send_mask_) != 0 && !sent_.has_credit();
  }
  enum class Turn : uint8_t {
    kNothing,  ///< there is no packet to send now
    kRefused,  ///< `send` returned false: nothing has changed
    kLater,    ///< the next packet may not leave before departure_ns()
    kSent,
    kSentAgain,  ///< a retransmission
    kAsked,      ///< a probe, a cancel or a path probe
  };
  /// Offers the next packet, if there is one, to `send`, and counts it as sent if it is taken:
  ///     bool send(const wire::Header&, const std::byte* payload, uint32_t payload_bytes, detail::Buffer* buffer)
  /// `buffer` is null for payloads that are not in a message's buffer. For a full path probe `payload` is also null,
  /// and stands for any content of that size. `ticket()` is called after the send; its value becomes
  /// ClientSlot::ticket. One turn may send several packets; their number is added to `packets`. A result below kSent
  /// means that there is no packet left to send now.
  template <class Send, class Ticket>
  Turn transmit(uint64_t now_ns, Send&& send, Ticket&& ticket, uint32_t& packets);
  /// transmit() in the common case: sends new calls of one packet each, as many as may leave now and as `send` takes.
  /// Returns their number. transmit() then sends the rest, or tells why a packet was not taken.
  template <bool is_timed, class Send, class Ticket>
  uint32_t transmit_short(uint64_t now_ns, Send&& send, Ticket&& ticket);
  bool has_timed() const { return (detours_ & kTimed) != 0; }  ///< is_timed: a new call may have a deadline
  /// Time at which the next packet may leave. Only for a paced session.
  uint64_t departure_ns() const { return control_->pacer.departure_ns(); }
  /// True if a probe, a cancel, a report or a path probe is to be sent. The pacer does not delay these packets.
  bool has_unpaced() const { return control_mask_ != 0 || (detours_ & (kReportDue | kPathProbeDue)) != 0; }
  /// Latest time of a tick() after packets were sent: a long request may need an early probe. UINT64_MAX: no need.
  uint64_t early_look_ns(uint64_t now_ns) const { return is_oldest_of_many() ? now_ns + early_wait_ns() : UINT64_MAX; }
  /// Time at which tick() judges overtaken packets; UINT64_MAX: no loss is suspected.
  uint64_t loss_check_at_ns() const { return is_watched() ? watch().loss_timer.at_ns() : UINT64_MAX; }

  // -- Packets in (clauses 4, 5) --

  /// on_response() in the common case, in which nothing was lost, overtaken or fragmented: copies the response to its
  /// place and returns the finished slot. The slot is free already, so the caller must take its buffers and its
  /// continuation before the next begin(). Null: not the common case, and nothing has changed.
  /// `readable`: Traits::readable_bytes. `is_batched`: Shortcuts::batched_timestamps.
  template <size_t readable = 0, bool is_batched = true>
  ClientSlot* try_finish(const wire::Header& header, const transport::Payload& payload, uint64_t now_ns);
  /// The same after a credit return for the request (kWaiting), but the caller must call release_slot().
  ClientSlot* try_finish_waiting(const wire::Header& header, const transport::Payload& payload, uint64_t now_ns);
  /// Handles a received packet. A packet that does not prove itself (clause 3.9) changes nothing.
  ClientVerdict on_response(const wire::Header& header, const transport::Payload& payload, uint64_t now_ns);
  /// As ServerSession::expected_after(), for responses.
  transport::ExpectedPacket expected_after(const wire::Header& part) const;
  ClientVerdict on_credit_return(const wire::Header& header, const transport::Payload& payload, uint64_t now_ns);
  ClientVerdict on_cancelled(const wire::Header& header, uint64_t now_ns);

  // -- Time (clauses 4.4, 6) --

  /// Runs loss detection, probes, deadlines and silence. Must be called when the returned time has come, and once after
  /// a packet was sent. All packets that arrived for the endpoint before `read_until_ns` have been read; a later packet
  /// may be an answer.
  ClientTick tick(uint64_t now_ns, uint64_t read_until_ns = UINT64_MAX);
  /// The server's management says that its endpoint is inside an application callback, and thus not dead.
  void on_peer_in_callback();
  /// The server's management says that its endpoint could answer.
  void on_peer_idle();

  /// CHECKs credits, masks and counts against each other. For tests.
  void check_invariants() const;

 private:
  static constexpr size_t kFirstSlots = ClientBusy::kFirstSlots;
  /// A request of at least this many packets may cause additional probes, whose cost is then small (clause 4.4.6).
  static constexpr uint32_t kProbedPackets = 16;
  /// Cache lines of the fields that every call touches, and of those that wake() and try_rest() need.
  static constexpr size_t kFirstCallLines = 3 + 1;

  // Bits of detours_:
  static constexpr uint8_t kReportDue = 1;
  static constexpr uint8_t kPaced = 2;
  static constexpr uint8_t kFullProbeDue = 4;    ///< a path probe (clause 6.4.2)
  static constexpr uint8_t kShortProbeDue = 8;   ///< a path probe (clause 6.4.2)
  static constexpr uint8_t kLargeProbeDue = 16;  ///< a path probe (clause 7.7.9)
  static constexpr uint8_t kPathProbeDue = kFullProbeDue | kShortProbeDue | kLargeProbeDue;
  static constexpr uint8_t kTimed = 32;  ///< a call in fresh_mask_ may have a deadline

  ClientPools& pools() const { return *terms_.pools; }
  static uint64_t bit(uint32_t slot_index) { return uint64_t{1} << slot_index; }
  /// All slots; 0 before the session is open.
  uint64_t window_mask() const { return window_ == 0 ? 0 : UINT64_MAX >> (wire::kSlotsMax - window_); }
  /// The 24 bits of the next packet's number.
  uint32_t next_number() const { return static_cast<uint32_t>(sent_.next_number()); }
  Reports::Slots used_slots() const { return {slots_, window_}; }
  /// True if the last answer is at least `time_ns` old. Mostly last_progress_ns_ shows it, which is in the first cache
  /// lines.
  bool has_no_answer_for(uint64_t time_ns, uint64_t now_ns) const {
    return now_ns - std::min(now_ns, last_progress_ns_) >= time_ns &&
           now_ns - std::min(now_ns, last_answer_ns()) >= time_ns;
  }
  bool is_report_due() const { return (detours_ & kReportDue) != 0; }
  /// False: what watch() would return is as new, or the session has no memory for calls.
  bool is_watched() const { return busy_ != nullptr && busy_->is_watched; }
  /// Only when is_awake().
  ClientWatch& watch() const { return busy_->is_watched ? busy_->watch : begin_watch(); }
  bool is_outstanding() const;
  /// The measured timeout, short enough that a silent server is asked some times before the session fails.
  uint64_t rto_ns() const { return std::min(rtt_.rto_ns(terms_.rto_ns_min), terms_.liveness_ns / 4); }
  ProbeTimer::Timeouts timeouts() const { return {rto_ns(), std::min(terms_.liveness_ns, 4 * ProbeTimer::kAskNsMax)}; }
  /// rto_ns() without the transport's floor, for what costs no more than a header if it is too early.
  uint64_t measured_rto_ns() const { return std::min(rtt_.rto_ns(RttEstimator::kReorderNsMin), rto_ns()); }
  uint64_t early_wait_ns() const { return watch().probe_timer.early_ns(timeouts(), measured_rto_ns()); }
  /// True if the slot sends a request that is long enough for additional probes (clause 4.4.6).
  static bool is_of_many_packets(const ClientSlot& slot);
  /// True if the oldest unanswered packet is of such a request.
  bool is_oldest_of_many() const;

  // -- client_session.cc --
  void start_numbers(uint32_t first_number);
  bool begin_long(ClientSlot* slot, uint32_t request_bytes);
  void take_slot(ClientSlot* slot, detail::Buffer* request, detail::Buffer* response, uint16_t type, uint64_t& to_send);
  void forget_packets(uint32_t slot_index);
  void drop_transfer(ClientSlot* slot);
  void wait_for(const AwaitedCost& cost, uint32_t response_packets);
  void end_wait_for(const AwaitedCost& cost, uint32_t response_packets);
  uint32_t credits_of(uint32_t payload_bytes) const {
    return wire::credits_of(payload_bytes + static_cast<uint32_t>(wire::kHeaderBytes), credit_unit_);
  }
  /// The server's limit in packets of full length, which controllers count.
  uint32_t packets_limit() const { return (server_limit() + full_credits_ - 1) / full_credits_; }
  /// The limit that the server has sent last, in credits.
  uint32_t server_limit() const { return wire::decode_credits(server_credits_, credit_unit_); }
  void fall_back_to_start_credits() { set_server_credits(std::min(server_credits_, start_credits_)); }
  void set_server_credits(uint8_t code);
  void set_stalled(bool is_stalled);
  void start_anew();
  void apply_allowance();
  template <class Tell>
  void tell_controller(Tell&& tell) {
    if (control_ == nullptr) return;
    std::visit(tell, control_->controller);
    apply_allowance();
  }
  cc::Allowance allowance() const { return control_ != nullptr ? control_->allowance : cc::Allowance(); }

  // -- client_rest.cc --
  uint32_t* numbers() { return window_ <= kFirstSlots ? first_numbers_ : more_numbers_; }
  static ClientSlot** no_slots();
  ClientSlot* make_slot(uint32_t index);
  bool make_unreported_slots();
  uint32_t count_unreported();
  void init_slot(ClientSlot* slot, uint32_t index);
  void wake_with(ClientBusy* busy);
  ClientWatch& begin_watch() const;
  bool open_slots();
  bool can_rest() const;
  void fall_asleep();

  // -- client_send.cc --
  template <class Send, class Ticket>
  Turn transmit_other(uint64_t now_ns, Send& send, Ticket& ticket, uint32_t& packets);
  template <class Send, class Ticket>
  uint32_t transmit_parts(uint64_t now_ns, ClientSlot* slot, Send& send, Ticket& ticket);
  bool prepare(uint64_t now_ns, ClientPacket& packet);
  void prepare_control(ClientPacket& packet);
  void prepare_report(ClientPacket& packet);
  void prepare_path_probe(ClientPacket& packet);
  void prepare_request(uint64_t now_ns, uint32_t slot_index, uint32_t index, ClientPacket& packet) const;
  bool prepare_transfer(uint64_t now_ns, uint32_t slot_index, ClientPacket& packet);
  bool may_send_part(const ClientSlot& slot) const;
  bool prepare_part(uint64_t now_ns, uint32_t slot_index, uint32_t index, ClientPacket& packet) const;
  bool prepare_rfr(uint32_t slot_index, uint32_t index, ClientPacket& packet) const;
  uint32_t rfr_packets_max(const Transfer& transfer) const;
  void commit(uint64_t now_ns, const ClientPacket& packet, uint64_t ticket);
  void commit_request(uint64_t now_ns, const ClientPacket& packet, uint64_t ticket);
  void commit_rfr(uint64_t now_ns, const ClientPacket& packet);
  uint8_t next_path_probe() const;
  void commit_path_probe(uint64_t now_ns);
  void commit_report(uint64_t now_ns);
  void end_turn(const ClientPacket& packet);
  void reserve_number(uint64_t now_ns);
  void pace(uint64_t now_ns, const ClientPacket& packet);

  // -- client_receive.cc --
  bool is_proven_by_echo(const wire::Header& header) const;
  bool note_server_packet(const wire::Header& header, uint64_t now_ns);
  void note_progress(ClientSlot* slot, uint64_t now_ns) {
    slot->rounds = 1;
    last_progress_ns_ = now_ns;
  }
  void note_answer(ClientSlot* slot, const wire::Header& header, uint64_t now_ns);
  void on_gap(uint64_t now_ns);
  void on_echo(const wire::Header& header, uint32_t slot_index, uint64_t now_ns);
  ClientVerdict on_response_slow(ClientSlot* slot, const wire::Header& header, const transport::Payload& payload,
                                 uint64_t now_ns);
  ClientVerdict on_response_start(ClientSlot* slot, const wire::Header& header, const transport::Payload& payload,
                                  uint64_t now_ns);
  ClientVerdict begin_receiving(ClientSlot* slot, uint32_t bytes, uint64_t now_ns);
  ClientVerdict on_response_part(ClientSlot* slot, const wire::Header& header, const transport::Payload& payload,
                                 uint64_t now_ns);
  void on_rfr_answered(ClientSlot* slot, const wire::Header& header, bool is_new, uint64_t now_ns);
  uint64_t number_of_rfr(uint32_t slot_index, uint64_t echo, uint32_t index) const;
  uint64_t acknowledge_packets(const wire::Header& header, const ArrivedBitmap& arrived, bool is_news, uint64_t now_ns);
  void acknowledge_request(uint64_t number, uint64_t now_ns, const wire::Header* sample_header);
  void acknowledge_rfr(SentPacket& rfr, uint64_t now_ns);
  void on_delivered(ClientSlot* slot, uint64_t now_ns);
  [[gnu::noinline]] void take_rtt_sample(uint8_t hold_code, bool is_marked, uint64_t sent_ns, uint64_t now_ns);
  [[gnu::noinline]] void tell_sample(uint64_t now_ns, uint64_t rtt_ns, bool is_marked);

  // -- client_timers.cc --
  void hold_report(bool holds);
  void suspect_losses(uint64_t now_ns);
  uint64_t wait_for_turn_ns() const;
  void recover_losses(uint64_t now_ns);
  LossRounds loss_rounds(const ClientSlot& slot) const;
  uint64_t round_gap_ns(const ClientSlot& slot) const;
  void begin_round(ClientSlot* slot, uint64_t now_ns);
  void lose(uint64_t number, uint64_t now_ns);
  bool look_at_reports(uint64_t now_ns);
  ClientTick tick_at_rest(uint64_t now_ns);
  void begin_busy_time(uint64_t now_ns);
  void look_at_progress();
  void look_at_silence(uint64_t now_ns, ClientTick& result);
  void look_at_oldest_packet(uint64_t now_ns, ClientTick& result);
  bool look_at_calls(uint64_t now_ns, ClientTick& result);
  void look_at_waiting_call(uint32_t index, uint64_t now_ns, ClientTick& result);
  bool is_without_progress(const ClientSlot& slot, uint64_t now_ns) const;

  // -- client_sizes.cc --
  void cut_request(Transfer& transfer, uint32_t bytes, uint8_t code) const;
  void cut_response(Transfer& transfer, uint32_t bytes, uint8_t code) const;
  AwaitedCost cost_of(uint32_t payload_bytes) const;
  uint8_t code_within(uint64_t packet_bytes) const;
  uint8_t request_code() const;
  uint64_t response_packet_bytes_max() const;
  uint8_t response_code() const;
  uint32_t short_bytes_max() const;
  bool may_name_size(uint16_t type, const detail::Buffer& response) const;
  uint8_t code_to_name(const ClientSlot& slot) const;
  void reserve_space(ClientSlot* slot, uint8_t code);
  AwaitedCost whole_cost(const ClientSlot& slot) const { return cost_of(wire::payload_of_code(slot.whole_code)); }
  void free_space(const ClientSlot& slot);
  void learn_response(const ClientSlot& slot, uint32_t bytes, uint64_t now_ns);
  void set_long_types(uint32_t types);
  void note_miss(uint64_t now_ns);
  static uint8_t bit_of_type(uint16_t type) { return static_cast<uint8_t>(1u << type % 8); }
  /// Offset in the message. Packet 0 of a response of several has the session's own payload (clause 5.1.1).
  uint32_t request_offset(const Transfer& transfer, uint32_t index) const { return index * transfer.payload_bytes; }
  uint64_t response_offset(const Transfer& transfer, uint32_t index) const {
    return index == 0 ? 0 : payload_max_ + uint64_t{index - 1} * transfer.payload_bytes;
  }
  void look_at_size(uint64_t now_ns, ClientTick& result);
  bool is_searching() const { return is_watched() && watch().size_search.is_wanted(); }
  void clear_large_probe() { detours_ &= static_cast<uint8_t>(~kLargeProbeDue); }
  bool is_size_in_vain() const;
  void give_up_size(uint64_t now_ns);

  // -- client_path.cc --
  PathProbe make_path_probe(const PathProof::Probe& probe, uint64_t now_ns);
  PathVerdict on_open_path_reply(const wire::Header& header, uint32_t payload_bytes, uint64_t now_ns);
  void check_path(uint64_t now_ns, bool is_wanted, ClientTick& result);
  void clear_path_probes() { detours_ &= static_cast<uint8_t>(~(kFullProbeDue | kShortProbeDue)); }
  void end_path_check();

  // Every call touches these fields. They are 176 B, which fill three cache lines with the 16 B that the endpoint keeps
  // before them.
  /// Slots with a request of one packet and one credit that has not been sent yet, and will not name a size.
  uint64_t fresh_mask_ = 0;
  uint64_t send_mask_ = 0;           ///< slots with any other message packet or an RFR to send
  uint64_t control_mask_ = 0;        ///< slots with a probe or a cancel to send
  uint64_t free_mask_ = 0;           ///< free slots; 0 before the session is open
  ClientSlot** slots_ = no_slots();  ///< null: the slot has no memory, because it was not used since the last rest
  SentPackets sent_;
  uint32_t remote_key_ = 0;
  /// A request of so many bytes or more has several packets, costs more than one credit, or may name a size
  /// (clause 5.3.3).
  uint32_t short_bytes_end_ = 0;
  State state_ = State::kConnecting;
  uint8_t detours_ = 0;     ///< bits of reasons why transmit_short<false>() may not send
  uint8_t window_ = 0;      ///< 0 until kOpen
  uint8_t usual_code_ = 0;  ///< payload code in which the last long responses fitted (clause 5.3.3)
  uint8_t long_types_ = 0;  ///< bit_of_type() of the requests whose last response was long, but fitted a packet
  uint8_t missed_at_ = 0;   ///< minute of the last miss (SizeSearch::minute_of())
  uint8_t misses_ : 4 = 0;  ///< responses in a row that could have come whole, and did not
  bool is_paced_ : 1 = false;
  bool is_stalled_ : 1 = false;    ///< no slot makes progress: one packet at a time (clause 4.3.3)
  bool holds_report_ : 1 = false;  ///< a report is due or not acknowledged, and counts in ClientPools::reports_free
  bool was_busy_ : 1 = false;      ///< the session had calls at the last tick
  uint8_t server_credits_ = 1;     ///< credit limit of the server's newest packet, encoded (wire/credits.h)
  uint64_t server_number_ = 0;  ///< largest packet number that has arrived; initially the server's first number less 1
  /// Time of the newest answer to a packet in flight, or of the session's acceptance.
  uint64_t last_progress_ns_ = 0;
  uint64_t last_sample_ns_ = 0;
  RttEstimator rtt_;
  uint32_t calm_below_ns_ = UINT32_MAX;  ///< the controller ignores RttEstimator::latest_ns() below this
  uint32_t response_ns_ = 0;             ///< at rest: ProbeTimer::response_ns()
  uint32_t local_key_;
  uint32_t payload_max_ = 0;  ///< payload of the session's own full packets

  // The next cache line begins here.
  ClientBusy* busy_ = nullptr;  ///< null: the session is at rest, or not open
  const ClientShared& terms_;
  union {
    uint64_t first_probe_ns_ = 0;  ///< before kOpen: time of the first path probe of the present length; 0: none
    /// The request number of the last request of each slot without memory; before its first one, the number before it.
    /// The slot's index in it is replaced by flags (client_rest.cc).
    uint32_t first_numbers_[kFirstSlots];
    uint32_t* more_numbers_;  ///< for a window of more than kFirstSlots
  };
  uint64_t last_heard_ns_ = 0;        ///< time of the server's newest packet outside of the common case
  ClientControl* control_ = nullptr;  ///< null: no controller limits the session
  // The next cache line begins here.
  uint64_t long_bytes_sent_ = 0;
  uint64_t long_bytes_received_ = 0;
  [[no_unique_address]] PathProof proof_;  // full_credits_ is in its padding
  uint16_t full_credits_ = 1;              ///< credits that a full packet costs
  [[no_unique_address]] Reports reports_;  // the next four fields are in its padding
  uint8_t credit_unit_ = 0;                ///< wire/credits.h
  uint8_t wanted_window_ = 0;              ///< slots: the caller's terms, then the server's if they are fewer
  KnownSizes sizes_;                       ///< of packets larger than payload_max_
  uint8_t start_credits_ = 1;              ///< credit limit of the handshake, encoded (wire/credits.h)
  uint32_t first_request_count_ = 0;  ///< first request number without the slot's bits, from the server (clause 3.5)
  uint32_t first_number_;             ///< of the newest handshake, 24 bits
  uint32_t first_server_number_ = 1;  ///< of the newest handshake, 24 bits
};

}  // namespace tern::session

#include "session/client_fast_path.h"  // IWYU pragma: export
