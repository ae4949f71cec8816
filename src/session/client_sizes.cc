// Client session: packets that are larger than those with which the session has opened (clauses 5.1.1 and 7.7.9).
#include <algorithm>
#include <bit>

#include "session/client_session.h"

namespace tern::session {

namespace {

using Phase = ClientSlot::Phase;

/// A packet takes at most one of so many parts of what the receiver allows, so that several are in flight.
constexpr uint32_t kPacketsInLimit = 4;
/// Rounds of losses without progress (ClientSlot::rounds less 1) after which larger packets count as not passing.
constexpr uint8_t kVainRounds = 3;
/// After so many misses in a row requests name no size in this minute, and one in each later minute: the server does
/// not know of this, or the path does not carry such packets.
constexpr uint8_t kMissesMax = 8;

}  // namespace

AwaitedCost ClientSession::cost_of(uint32_t payload_bytes) const {
  const uint32_t packet_bytes = payload_bytes + static_cast<uint32_t>(wire::kHeaderBytes);
  return {.packets = static_cast<uint8_t>((payload_bytes + payload_max_ - 1) / payload_max_),
          .credits = static_cast<uint8_t>(wire::credits_of(packet_bytes, pools().credit_unit))};
}

/// Notes that so many packets of a response were asked for.
void ClientSession::wait_for(const AwaitedCost& cost, uint32_t response_packets) {
  pools().response_credits_free -= static_cast<int32_t>(response_packets * cost.credits);
  watch().awaited_packets += response_packets * cost.packets;
}

void ClientSession::end_wait_for(const AwaitedCost& cost, uint32_t response_packets) {
  pools().response_credits_free += static_cast<int32_t>(response_packets * cost.credits);
  watch().awaited_packets -= response_packets * cost.packets;
}

/// Cuts a request into packets. All of them will be sent, even if some were sent before.
void ClientSession::cut_request(Transfer& transfer, uint32_t bytes, uint8_t code) const {
  transfer = Transfer();
  transfer.payload_code = code;
  transfer.payload_bytes = code == 0 ? payload_max_ : wire::payload_of_code(code);
  transfer.packets = wire::packets_of(bytes, transfer.payload_bytes);
  transfer.bytes = bytes;
}

/// Cuts a response into packets. Only packet 0 counts as received, even if others have come before.
void ClientSession::cut_response(Transfer& transfer, uint32_t bytes, uint8_t code) const {
  cut_request(transfer, bytes - payload_max_, code);
  transfer.packets++;
  transfer.next = 1;
  transfer.window.insert(0);
  transfer.cost = cost_of(transfer.payload_bytes);
}

/// The largest size that passes, of packets of at most `packet_bytes` with their headers.
uint8_t ClientSession::code_within(uint64_t packet_bytes) const {
  return sizes_.found_within(packet_bytes - std::min<uint64_t>(packet_bytes, wire::kHeaderBytes), payload_max_);
}

/// The size of a request that begins now: the largest that passes, at most a quarter of the credit limit.
uint8_t ClientSession::request_code() const {
  return code_within((uint64_t{credit_limit()} / kPacketsInLimit) << credit_unit_);
}

/// The largest packet of a response that begins now, with its header: at most a quarter of the free space in this
/// endpoint's receive queue, and at most the controller's window.
uint64_t ClientSession::response_packet_bytes_max() const {
  const auto free = static_cast<uint64_t>(std::max(pools().response_credits_free, 0));
  const uint64_t queue = (free / kPacketsInLimit) << pools().credit_unit;
  const uint64_t window = uint64_t{allowance().window_packets} * payload_max_;
  return std::min(queue, window);
}

/// The size of a response that begins now: the largest that passes.
uint8_t ClientSession::response_code() const { return code_within(response_packet_bytes_max()); }

// ---- Responses that come whole (clause 5.3.3) ----

/// The longest request of one packet and one credit.
uint32_t ClientSession::short_bytes_max() const {
  if (full_credits_ == 1) return payload_max_;
  return std::min(payload_max_, (1u << credit_unit_) - static_cast<uint32_t>(wire::kHeaderBytes));
}

/// True if the response to a request of this type is probably long, and fits one packet.
bool ClientSession::may_name_size(uint16_t type, const detail::Buffer& response) const {
  return (long_types_ & bit_of_type(type)) != 0 && response.capacity_bytes > payload_max_;
}

/// The size that a request, whose packet leaves now, names for packet 0 of its response; 0: none. A request that was
/// sent before names none, because large packets may not pass.
uint8_t ClientSession::code_to_name(const ClientSlot& slot) const {
  const Transfer* transfer = slot.transfer;
  const bool is_in_one = transfer == nullptr || transfer->packets == 1;
  if (!is_in_one || slot.was_sent() || !may_name_size(slot.type, *slot.response)) return 0;
  const uint8_t code = transfer != nullptr ? transfer->payload_code : usual_code_;
  const uint32_t bytes = wire::payload_of_code(code);
  const bool has_share = watch().awaited_packets + cost_of(bytes).packets <= pools().response_share.packets();
  return has_share && bytes + wire::kHeaderBytes <= response_packet_bytes_max() ? code : 0;
}

/// Lets a packet 0 of this size come, and reserves space in the endpoint's receive queue for it. The space is free
/// again when the server has acknowledged the request without an answer, because its handler may take long.
void ClientSession::reserve_space(ClientSlot* slot, uint8_t code) {
  slot->whole_code = code;
  wait_for(whole_cost(*slot), 1);
  pools().response_share.begin();
}

/// Frees what reserve_space() has reserved, if that has not been done. Must be called before a slot leaves kSending.
void ClientSession::free_space(const ClientSlot& slot) {
  if (slot.whole_code == 0 || slot.phase != Phase::kSending) return;
  end_wait_for(whole_cost(slot), 1);
  pools().response_share.end();
}

/// Called when a response is complete. The next response to a request of that type is probably alike.
void ClientSession::learn_response(const ClientSlot& slot, uint32_t bytes, uint64_t now_ns) {
  const uint8_t type = bit_of_type(slot.type);
  if (bytes <= payload_max_) {
    if (slot.whole_code != 0) set_long_types(long_types_ & ~type);
    return;
  }
  if (bytes > wire::payload_of_code(sizes_.found)) return set_long_types(long_types_ & ~type);
  // Sizes vary, so the usual one grows at once, and shrinks slowly, and only where it is twice what is needed.
  const uint32_t usual_bytes = wire::payload_of_code(usual_code_);
  if (bytes > usual_bytes) usual_code_ = wire::code_for_payload(bytes);
  if (bytes < usual_bytes / 2) {
    usual_code_ = std::max(wire::code_for_payload(bytes), static_cast<uint8_t>(usual_code_ - usual_code_ / 8));
  }
  const bool may_try = misses_ < kMissesMax || missed_at_ != SizeSearch::minute_of(now_ns);
  if (may_try) set_long_types(long_types_ | type);
}

void ClientSession::set_long_types(uint32_t types) {
  long_types_ = static_cast<uint8_t>(types);
  // begin() knows the requests that may name a size; try_begin() does not.
  short_bytes_end_ = types != 0 ? 0 : short_bytes_max() + 1;
}

/// Called when a packet 0 comes that could have the whole response, and does not. Several at once may be of one cause.
void ClientSession::note_miss(uint64_t now_ns) {
  if (now_ns < watch().next_miss_ns) return;
  watch().next_miss_ns = now_ns + rto_ns();
  missed_at_ = SizeSearch::minute_of(now_ns);
  if (misses_ < kMissesMax) misses_++;
  if (misses_ == kMissesMax) set_long_types(0);
}

// ---- Which size ----

void ClientSession::look_at_size(uint64_t now_ns, ClientTick& result) {
  SizeSearch& search = watch().size_search;
  if (search.look(sizes_, payload_max_, now_ns, rto_ns())) detours_ |= kLargeProbeDue;
  if (!search.is_wanted()) return clear_large_probe();
  result.at_latest(search.next_ns());
}

/// True if a call that uses larger packets makes no progress. The reason may be that these do not pass any more.
bool ClientSession::is_size_in_vain() const {
  if (sizes_.found == 0) return false;
  for (uint64_t mask = busy_mask(); mask != 0; mask &= mask - 1) {
    const ClientSlot* slot = slots_[std::countr_zero(mask)];
    if (slot->transfer != nullptr && slot->transfer->payload_code != 0 && slot->rounds > kVainRounds) return true;
  }
  return false;
}

/// Goes back to the session's own size, and begins each message that uses larger packets again.
void ClientSession::give_up_size(uint64_t now_ns) {
  watch().size_search.fall(sizes_, payload_max_, now_ns);
  misses_ = 0;
  usual_code_ = 0;
  set_long_types(0);
  clear_large_probe();
  for (uint64_t mask = busy_mask(); mask != 0; mask &= mask - 1) {
    const auto index = static_cast<uint32_t>(std::countr_zero(mask));
    ClientSlot* slot = slots_[index];
    Transfer* transfer = slot->transfer;
    if (transfer == nullptr || transfer->payload_code == 0) continue;
    forget_packets(index);
    if (slot->phase == Phase::kSending) {
      cut_request(*transfer, transfer->bytes, 0);
    } else {
      const uint32_t restarts = transfer->restarts;
      cut_response(*transfer, slot->response_bytes, 0);
      transfer->restarts = restarts;
    }
    slot->rounds = std::min<uint8_t>(slot->rounds, 1);  // 0, if no packet of the call was sent yet
    send_mask_ |= bit(index);
  }
  set_stalled(false);
}

}  // namespace tern::session
