// Client session: its life, its calls and its credits.
#include "session/client_session.h"

#include <algorithm>
#include <new>

#include "base/check.h"

namespace tern::session {

using Phase = ClientSlot::Phase;

ClientSession::ClientSession(const ClientTerms& terms, ClientPools& pools)
    : local_key_(terms.local_key), terms_(pools.terms.find_or_add(terms)) {
  bool has_memory = terms_ == terms;
  if (!std::holds_alternative<cc::None>(terms.controller)) {
    control_ = pools.controls.take(terms.controller, terms.seed);
    has_memory = has_memory && control_ != nullptr;
  }
  if (has_memory) wanted_window_ = terms.window;
  start_numbers(terms.first_number);
  apply_allowance();
}

ClientSession::~ClientSession() {
  hold_report(false);
  if (control_ != nullptr) pools().controls.give(control_);
  // Response packets that were asked for and never came are no longer awaited.
  for (uint64_t n = sent_.oldest(); sent_.contains(n); n++) {
    if (sent_[n].is_rfr()) end_wait_for(slots_[sent_[n].slot_index()]->transfer->cost, sent_[n].missing);
  }
  for (uint32_t i = 0; i < window_; i++) {
    if (slots_[i] == nullptr) continue;
    if (slots_[i]->transfer != nullptr) drop_transfer(slots_[i]);
    free_space(*slots_[i]);
    if (slots_[i] != &busy_->first_slot) pools().slots.give(slots_[i]);
  }
  if (busy_ != nullptr) pools().busy.give(busy_);
  if (window_ <= kFirstSlots) return;
  delete[] slots_;
  delete[] more_numbers_;
}

void ClientSession::start_numbers(uint32_t first_number) {
  first_number_ = first_number;
  sent_.start(kNumberBase + first_number);
  reports_.start(sent_.next_number());
}

void ClientSession::start_over(uint32_t first_number, uint8_t window) {
  CHECK(state_ != State::kOpen);
  wanted_window_ = window;
  start_numbers(first_number);
  state_ = State::kConnecting;
  proof_ = {};
  first_probe_ns_ = 0;
}

void ClientSession::on_accepted(const AcceptedTerms& terms, uint64_t now_ns) {
  remote_key_ = terms.remote_key;
  payload_max_ = terms.payload_bytes_max;
  credit_unit_ = terms.credit_unit;
  full_credits_ = static_cast<uint16_t>(credits_of(payload_max_));
  // Only peers that count bytes know of larger packets.
  sizes_ = KnownSizes::of(payload_max_, credit_unit_ == wire::kPacketCredits ? 0 : terms.route_payload_bytes);
  set_long_types(0);  // and the limit of short requests
  wanted_window_ = std::min(terms.window, wanted_window_);
  start_credits_ = std::max<uint8_t>(terms.credits, 1);
  set_server_credits(start_credits_);
  first_server_number_ = terms.first_server_number;
  server_number_ = kNumberBase + terms.first_server_number - 1;
  proof_.accept(terms.path_token);
  last_progress_ns_ = now_ns;
  state_ = State::kProbing;
}

// ---- Calls ----

ClientSlot* ClientSession::begin(detail::Buffer* request, detail::Buffer* response, uint16_t type) {
  if (!wake()) return nullptr;
  const auto index = static_cast<uint32_t>(std::countr_zero(free_mask_));
  ClientSlot* slot = slots_[index] != nullptr ? slots_[index] : make_slot(index);
  if (slot == nullptr) return nullptr;
  if (request->length_bytes > payload_max_ && !begin_long(slot, request->length_bytes)) return nullptr;
  const bool is_plain = request->length_bytes <= short_bytes_max() && !may_name_size(type, *response);
  take_slot(slot, request, response, type, is_plain ? fresh_mask_ : send_mask_);
  return slot;
}

bool ClientSession::begin_long(ClientSlot* slot, uint32_t request_bytes) {
  slot->transfer = pools().transfers.take();
  if (slot->transfer == nullptr) return false;
  uint8_t code = request_code();
  // A request of one packet may name the size that its response probably has.
  if (long_types_ != 0 && request_bytes <= wire::payload_of_code(code)) {
    code = std::max(usual_code_, wire::code_for_payload(request_bytes));
  }
  cut_request(*slot->transfer, request_bytes, code);
  watch().size_search.want(sizes_);
  return true;
}

bool ClientSession::is_of_many_packets(const ClientSlot& slot) {
  return slot.phase == Phase::kSending && slot.transfer != nullptr && slot.transfer->packets >= kProbedPackets;
}

bool ClientSession::is_oldest_of_many() const {
  const SentPacket& oldest = sent_[sent_.oldest()];
  return oldest.kind == SentPacket::Kind::kPart && is_of_many_packets(*slots_[oldest.slot_index()]);
}

uint64_t ClientSession::packets_received() const {
  return state_ == State::kConnecting ? 0 : server_number_ - (kNumberBase + first_server_number_ - 1);
}

uint32_t ClientSession::packets_in_flight() const {
  uint32_t packets = 0;
  for (uint32_t i = 0; i < window_; i++) packets += slots_[i] != nullptr ? slots_[i]->packets_in_flight : 0;
  return packets;
}

uint64_t ClientSession::rate_bytes_per_sec() const {
  if (control_ == nullptr) return cc::kUnlimited;
  return std::visit([](const auto& controller) { return controller.allowance().bytes_per_sec; }, control_->controller);
}

/// True if the server owes an answer to a packet in flight, or to a request that it has.
bool ClientSession::is_outstanding() const {
  if (sent_.in_flight() != 0) return true;
  for (uint64_t mask = busy_mask(); mask != 0; mask &= mask - 1) {
    const Phase phase = slots_[std::countr_zero(mask)]->phase;
    if (phase == Phase::kWaiting || phase == Phase::kEnded) return true;
  }
  return false;
}

void ClientSession::drop_transfer(ClientSlot* slot) {
  if (slot->phase == Phase::kReceiving) pools().response_share.end();
  pools().transfers.give(slot->transfer);
  slot->transfer = nullptr;
}

/// Forgets the slot's unanswered packets, because their answers have come or are no longer needed. Their credits are
/// free again. At worst the server's queue holds these packets in addition to those that the credits allow.
void ClientSession::forget_packets(uint32_t slot_index) {
  for (uint64_t n = sent_.oldest(); sent_.contains(n); n++) {
    SentPacket& entry = sent_[n];
    if (!entry.holds_credit() || entry.slot_index() != slot_index) continue;
    if (entry.is_rfr()) end_wait_for(slots_[slot_index]->transfer->cost, entry.missing);
    sent_.remove(entry);
    slots_[slot_index]->packets_in_flight--;
  }
  sent_.advance_oldest();
}

void ClientSession::block_slot(ClientSlot* slot) {
  slot->phase = Phase::kBlocked;
  slot->deadline_ns = UINT64_MAX;
  free_mask_ &= ~bit(index_of(*slot));
}

size_t ClientSession::blocked_slots() const {
  size_t count = 0;
  for (uint64_t mask = busy_mask(); mask != 0; mask &= mask - 1) {
    if (slots_[std::countr_zero(mask)]->phase == Phase::kBlocked) count++;
  }
  return count;
}

void ClientSession::end_early(ClientSlot* slot, uint64_t now_ns) {
  const uint32_t index = index_of(*slot);
  slot->request = nullptr;
  slot->response = nullptr;
  if (!slot->was_sent()) {
    release_slot(slot);
    slot->request_number -= wire::kSlotsMax;  // the server expects request numbers without a gap (clause 3.6)
    if (!slot->is_reported()) slot->set_unreported();
    return;
  }
  forget_packets(index);
  if (slot->transfer != nullptr) drop_transfer(slot);
  free_space(*slot);
  slot->phase = Phase::kEnded;
  slot->deadline_ns = UINT64_MAX;
  slot->waiting_since_ns = now_ns;
  slot->ask_at_ns = now_ns + rto_ns();
  fresh_mask_ &= ~bit(index);
  send_mask_ &= ~bit(index);
  control_mask_ |= bit(index);
}

/// Copies the controller's allowance to the fields that the fast path reads.
void ClientSession::apply_allowance() {
  const cc::Allowance allowance = control_ != nullptr
                                      ? std::visit([](const auto& c) { return c.allowance(); }, control_->controller)
                                      : cc::Allowance();
  // The controller counts packets of full length.
  const uint64_t window = uint64_t{allowance.window_packets} * full_credits_;
  const bool is_calm = window >= server_limit() && allowance.bytes_per_sec == cc::kUnlimited;
  const bool is_controlled = control_ != nullptr && !std::holds_alternative<cc::FixedRate>(control_->controller);
  sent_.set_credit_limit(is_stalled_ ? 1 : static_cast<uint32_t>(std::min<uint64_t>(server_limit(), window)));
  cc::Allowance pace = allowance;
  if (!terms_.may_pace_below_packet && is_controlled && rtt_.has_sample()) {
    const uint64_t packet_bytes = payload_max_ + wire::kHeaderBytes;
    pace.bytes_per_sec = std::max(pace.bytes_per_sec, packet_bytes * 1'000'000'000 / rtt_.latest_ns());
  }
  if (!terms_.shortcuts.pacer_bypass && is_controlled) {
    pace.bytes_per_sec = std::min(pace.bytes_per_sec, terms_.link_bytes_per_sec);
  }
  uint64_t calm_below_ns = is_calm ? UINT64_MAX : 0;
  if (control_ != nullptr) {
    control_->allowance = pace;
    if (is_calm) calm_below_ns = std::visit([](const auto& c) { return c.calm_below_ns(); }, control_->controller);
  }
  if (!terms_.shortcuts.controller_bypass && is_controlled) calm_below_ns = 0;
  calm_below_ns_ = static_cast<uint32_t>(std::min<uint64_t>(calm_below_ns, UINT32_MAX));
  is_paced_ = pace.bytes_per_sec != cc::kUnlimited;
  detours_ = static_cast<uint8_t>(is_paced_ ? detours_ | kPaced : detours_ & ~kPaced);
}

void ClientSession::set_stalled(bool is_stalled) {
  is_stalled_ = is_stalled;
  apply_allowance();
}

void ClientSession::start_anew() {
  pools().controller_counters.restarts++;
  tell_controller([](auto& controller) { controller.on_rest(); });
}

void ClientSession::set_server_credits(uint8_t code) {
  server_credits_ = code;
  apply_allowance();
}

void ClientSession::check_invariants() const {
  uint32_t in_flight = 0;
  uint32_t awaited = 0;
  uint32_t per_slot[wire::kSlotsMax] = {};
  CHECK(sent_.oldest(), <=, sent_.next_number());
  CHECK(sent_.next_number() - sent_.oldest(), <=, sent_.size());
  for (uint64_t n = sent_.oldest(); sent_.contains(n); n++) {
    const SentPacket& entry = sent_[n];
    if (!entry.holds_credit()) continue;
    in_flight += entry.credits();
    CHECK(entry.slot_index(), <, window_);
    per_slot[entry.slot_index()]++;
    if (entry.is_rfr()) {
      CHECK(entry.missing, <=, entry.count);
      awaited += entry.missing * slots_[entry.slot_index()]->transfer->cost.packets;
    }
    if (entry.kind == SentPacket::Kind::kShort || entry.kind == SentPacket::Kind::kWide) {
      CHECK(entry.index, ==, slots_[entry.slot_index()]->request_number);
      CHECK(slots_[entry.slot_index()]->phase == Phase::kSending);
      CHECK(slots_[entry.slot_index()]->transfer == nullptr);
    }
  }
  CHECK(in_flight, ==, sent_.in_flight());
  if (state_ == State::kOpen) CHECK(short_bytes_end_ == 0, ==, long_types_ != 0);
  if (busy_ == nullptr) CHECK(sent_.is_empty());
  if (busy_ == nullptr) CHECK(busy_mask(), ==, 0u);
  CHECK(credit_limit(), <=, server_limit());
  if (state_ == State::kOpen) CHECK(credit_limit(), >=, 1u);  // with 0 it would never receive a higher limit
  CHECK(is_paced_, ==, (detours_ & kPaced) != 0);
  CHECK((send_mask_ | fresh_mask_) & free_mask_, ==, 0u);
  CHECK(send_mask_ & fresh_mask_, ==, 0u);
  CHECK(control_mask_ & free_mask_, ==, 0u);
  CHECK(free_mask_ & ~window_mask(), ==, 0u);
  for (uint32_t i = 0; i < window_; i++) {
    const ClientSlot* slot = slots_[i];
    CHECK(slot != nullptr, ==, busy_ != nullptr && (busy_->made_mask & bit(i)) != 0);
    const bool is_free = (free_mask_ & bit(i)) != 0;
    if (slot == nullptr) {
      CHECK(is_free);
      continue;
    }
    CHECK(busy_ != nullptr);
    CHECK(slot->packets_in_flight, ==, per_slot[i]);
    CHECK(slot->phase == Phase::kFree, ==, is_free);
    CHECK(index_of(*slot), ==, i);
    if (slot->phase == Phase::kSending) awaited += whole_cost(*slot).packets;
    if (is_free) CHECK(slot->whole_code, ==, 0u);
    if (slot->transfer != nullptr) {
      CHECK(slot->transfer->window.base(), <=, slot->transfer->packets);
      CHECK(slot->transfer->next, <=, slot->transfer->packets);
    }
  }
  CHECK(awaited, ==, is_watched() ? watch().awaited_packets : 0);
}

}  // namespace tern::session
