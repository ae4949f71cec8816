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

}  // namespace

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
  transfer.share = static_cast<uint8_t>((transfer.payload_bytes + payload_max_ - 1) / payload_max_);
  transfer.credits = static_cast<uint8_t>(
      wire::credits_of(transfer.payload_bytes + static_cast<uint32_t>(wire::kHeaderBytes), pools_.credit_unit));
}

/// The largest size that passes, of packets of at most `packet_bytes` with their headers.
uint8_t ClientSession::code_within(uint64_t packet_bytes) const {
  return sizes_.found_within(packet_bytes - std::min<uint64_t>(packet_bytes, wire::kHeaderBytes), payload_max_);
}

/// The size of a request that begins now: the largest that passes, at most a quarter of the credit limit.
uint8_t ClientSession::request_code() const {
  return code_within((uint64_t{credit_limit()} / kPacketsInLimit) << credit_unit_);
}

/// The size of a response that begins now: the largest that passes, at most a quarter of the free space in this
/// endpoint's receive queue, and at most the controller's window.
uint8_t ClientSession::response_code() const {
  const auto free = static_cast<uint64_t>(std::max(pools_.response_credits_free, 0));
  const uint64_t queue = (free / kPacketsInLimit) << pools_.credit_unit;
  const uint64_t window = uint64_t{allowance().window_packets} * payload_max_;
  return code_within(std::min(queue, window));
}

void ClientSession::look_at_size(uint64_t now_ns, ClientTick& result) {
  SizeSearch& search = busy_->size_search;
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
  busy_->size_search.fall(sizes_, payload_max_, now_ns);
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
    slot->rounds = 1;
    send_mask_ |= bit(index);
  }
  set_stalled(false);
}

}  // namespace tern::session
