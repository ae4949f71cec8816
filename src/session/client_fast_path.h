// The common case of a client session, inline: a call of one packet begins, leaves, and is answered in order.
// Also the functions that send all other packets, because `send` is their template parameter.
// Session layer. client_session.h includes this file.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/copy.h"
#include "base/lowest_bit.h"

namespace tern::session {

/// The time left until `deadline_ns` (UINT64_MAX: there is none), as it travels in packet 0.
inline uint32_t deadline_code_of(uint64_t deadline_ns, uint64_t now_ns) {
  if (deadline_ns == UINT64_MAX) return wire::kNoDeadline;
  return deadline_ns <= now_ns ? 0 : wire::encode_time_left(deadline_ns - now_ns);
}

/// The shape of a response of one packet.
inline constexpr uint16_t kPlainResponse = wire::shape_of(wire::Kind::kResponse, wire::kFirst);

inline ClientSlot* ClientSession::try_begin(detail::Buffer* request, detail::Buffer* response, uint16_t type) {
  const uint64_t free = free_mask_;
  if (free == 0) [[unlikely]]
    return nullptr;
  ClientSlot* slot = slots_[base::lowest_bit(free)];
  if (slot == nullptr || request->length_bytes >= short_bytes_end_) [[unlikely]]
    return nullptr;
  take_slot(slot, request, response, type, fresh_mask_);
  return slot;
}

inline void ClientSession::take_slot(ClientSlot* slot, detail::Buffer* request, detail::Buffer* response, uint16_t type,
                                     uint64_t& to_send) {
  slot->request_number += wire::kSlotsMax;
  slot->packets_in_flight = 0;
  slot->phase = ClientSlot::Phase::kSending;
  slot->rounds = 0;
  slot->type = type;
  slot->request = request;
  slot->response = response;
  slot->deadline_ns = UINT64_MAX;
  free_mask_ ^= slot->bit;
  to_send |= slot->bit;
}

inline void ClientSession::set_deadline(ClientSlot* slot, uint64_t deadline_ns) {
  slot->deadline_ns = deadline_ns;
  if (deadline_ns != UINT64_MAX && (fresh_mask_ & slot->bit) != 0) detours_ |= kTimed;
}

inline void ClientSession::release_slot(ClientSlot* slot) {
  const uint32_t index = index_of(*slot);
  if (slot->packets_in_flight != 0) [[unlikely]]
    forget_packets(index);
  if (slot->transfer != nullptr) [[unlikely]]
    drop_transfer(slot);
  if (slot->whole_code != 0) [[unlikely]] {
    free_space(*slot);
    slot->whole_code = 0;
  }
  slot->phase = ClientSlot::Phase::kFree;
  fresh_mask_ &= ~bit(index);
  send_mask_ &= ~bit(index);
  control_mask_ &= ~bit(index);
  free_mask_ |= bit(index);
}

template <bool is_timed, class Send, class Ticket>
[[gnu::always_inline]] inline uint32_t ClientSession::transmit_short(uint64_t now_ns, Send&& send, Ticket&& ticket) {
  const uint8_t detours = is_timed ? detours_ & static_cast<uint8_t>(~kTimed) : detours_;
  if (((control_mask_ | detours) != 0) | (fresh_mask_ == 0)) [[unlikely]]
    return 0;
  // Only the general case makes the ring larger.
  uint64_t mask = fresh_mask_;
  const SentPackets::Burst burst = sent_.burst();
  ClientSlot* const* const slots = slots_;
  const uint32_t remote_key = remote_key_;
  const auto first = static_cast<uint32_t>(sent_.next_number());
  const auto end = static_cast<uint32_t>(sent_.burst_end());
  uint32_t number = first;
  uint64_t deadline_ns = UINT64_MAX;  // often all calls have the same
  uint32_t deadline_code = wire::kNoDeadline;
  for (; mask != 0 && number != end; mask &= mask - 1) {
    ClientSlot* slot = slots[base::lowest_bit(mask)];
    detail::Buffer* request = slot->request;
    if (is_timed && slot->deadline_ns != deadline_ns) {
      deadline_ns = slot->deadline_ns;
      deadline_code = deadline_code_of(deadline_ns, now_ns);
    }
    if (!send(wire::client_header(wire::Kind::kRequest, wire::kFirst, remote_key, number, slot->request_number,
                                  deadline_code, slot->type, request->length_bytes),
              request->data(), request->length_bytes, request)) [[unlikely]] {
      break;
    }
    SentPacket& entry = burst[number];
    entry.time_ns = now_ns;
    entry.index = slot->request_number;
    entry.kind = SentPacket::Kind::kShort;
    slot->packets_in_flight = 1;
    slot->phase = ClientSlot::Phase::kSending;
    slot->rounds = 1;
    slot->ticket = ticket();
    number++;
  }
  fresh_mask_ = mask;
  if (is_timed && mask == 0) detours_ = detours;
  sent_.on_burst(number - first);
  return number - first;
}

template <class Send, class Ticket>
ClientSession::Turn ClientSession::transmit(uint64_t now_ns, Send&& send, Ticket&& ticket, uint32_t& packets) {
  const uint32_t count =
      has_timed() ? transmit_short<true>(now_ns, send, ticket) : transmit_short<false>(now_ns, send, ticket);
  packets += count;
  if (count != 0) return Turn::kSent;
  return wants_to_send() ? transmit_other(now_ns, send, ticket, packets) : Turn::kNothing;
}

/// Sends one packet of any other kind.
template <class Send, class Ticket>
ClientSession::Turn ClientSession::transmit_other(uint64_t now_ns, Send& send, Ticket& ticket, uint32_t& packets) {
  if (is_paced_ && departure_ns() > now_ns && !has_unpaced()) {
    control_->pacer.wait();
    return Turn::kLater;
  }
  ClientPacket packet;
  if (!prepare(now_ns, packet)) return Turn::kNothing;
  if (!send(packet.header, packet.payload, packet.payload_bytes, packet.buffer)) return Turn::kRefused;
  commit(now_ns, packet, ticket());
  packets++;
  if (packet.is_control) return Turn::kAsked;
  if (packet.is_retransmission) return Turn::kSentAgain;
  if (packet.slot != nullptr) packets += transmit_parts(now_ns, packet.slot, send, ticket);
  return Turn::kSent;
}

inline bool ClientSession::may_send_part(const ClientSlot& slot) const {
  const uint64_t bytes_in_flight = uint64_t{slot.packets_in_flight} * slot.transfer->payload_bytes;
  return bytes_in_flight < terms_.bulk_bytes;
}

/// Sends packets of the slot's long request behind one that transmit_other() has sent, while that would send these
/// next: nothing is lost, and there is nothing else to send. The last packet of the request, which may be shorter, is
/// left to transmit_other(). Returns the number of packets.
template <class Send, class Ticket>
uint32_t ClientSession::transmit_parts(uint64_t now_ns, ClientSlot* slot, Send& send, Ticket& ticket) {
  constexpr uint32_t kPacketsMax = 64;
  Transfer* const transfer = slot->transfer;
  const bool is_alone = fresh_mask_ == 0 && (control_mask_ | (detours_ & ~kTimed)) == 0 && send_mask_ == slot->bit;
  if (!is_alone || transfer == nullptr || slot->phase != ClientSlot::Phase::kSending || !transfer->lost.empty())
    return 0;
  const uint32_t payload_bytes = transfer->payload_bytes;
  const uint32_t credits = credits_of(payload_bytes);
  const uint32_t limit = server_limit();
  const uint32_t first = transfer->next;
  const uint32_t end = std::min({transfer->packets - 1, transfer->window.end(), first + kPacketsMax});
  const std::byte* payload = slot->request->data() + request_offset(*transfer, first);
  uint32_t index = first;
  for (; index < end && may_send_part(*slot) && sent_.has_credit() && !sent_.is_full(); index++) {
    const uint8_t flags = sent_.in_flight() + credits >= limit ? wire::kWantsCredits : 0;
    wire::Header header = wire::client_header(wire::Kind::kRequest, flags, remote_key_, next_number(),
                                              slot->request_number, index, slot->type, transfer->bytes);
    header.add_payload_code(transfer->payload_code);
    if (!send(header, payload, payload_bytes, slot->request)) break;
    sent_.add({.time_ns = now_ns,
               .index = index,
               .count = static_cast<uint8_t>(credits),
               .slot = static_cast<uint8_t>(index_of(*slot)),
               .kind = SentPacket::Kind::kPart});
    slot->packets_in_flight++;
    slot->ticket = ticket();
    payload += payload_bytes;
  }
  transfer->next = index;
  long_bytes_sent_ += uint64_t{index - first} * payload_bytes;
  return index - first;
}

template <size_t readable, bool is_batched>
[[gnu::always_inline]] inline ClientSlot* ClientSession::try_finish(const wire::Header& header,
                                                                    const transport::Payload& payload,
                                                                    uint64_t now_ns) {
  // Both directions are in order: the server's next packet answers our oldest one, which is the call's only packet and
  // is not yet acknowledged. Therefore its slot exists and is kSending.
  const uint64_t oldest = sent_.oldest();
  SentPacket& entry = sent_[oldest];
  if ((((header.w2 ^ oldest) | ((header.w1 - 1) ^ server_number_)) & wire::kNumberMask) != 0) [[unlikely]]
    return nullptr;
  if (entry.kind != SentPacket::Kind::kShort || entry.index != header.request_number()) [[unlikely]]
    return nullptr;
  const uint32_t bytes = payload.bytes;
  if (header.shape() != kPlainResponse || header.w2 >> 32 != bytes || payload.lease != nullptr || control_mask_ != 0)
      [[unlikely]] {
    return nullptr;
  }
  ClientSlot* slot = slots_[header.request_number() & (wire::kSlotsMax - 1)];
  detail::Buffer* response = slot->response;
  static_assert(readable <= detail::Buffer::kCapacityBytesMin);
  const bool fits = bytes <= readable || bytes <= response->capacity_bytes;
  if (!fits || header.credit_limit() != server_credits_) [[unlikely]]
    return nullptr;
  sent_.remove_oldest(entry);
  server_number_++;
  free_mask_ |= slot->bit;
  slot->packets_in_flight = 0;
  slot->phase = ClientSlot::Phase::kFree;
  slot->rounds = 0;
  if (!is_batched || now_ns != last_progress_ns_) [[unlikely]] {
    last_progress_ns_ = now_ns;
    take_rtt_sample(header.hold_code(), false, entry.time_ns, now_ns);
  }
  response->length_bytes = bytes;
  base::copy_padded<readable>(response->data(), payload.data, bytes);
  return slot;
}

}  // namespace tern::session
