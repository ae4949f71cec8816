#include "session/reports.h"

#include <algorithm>

namespace tern::session {

namespace {

using Phase = ClientSlot::Phase;

bool is_unreported(const ClientSlot* slot) { return slot != nullptr && slot->is_unreported(); }

void store_u32(std::byte* to, uint32_t value) {
  for (int i = 0; i < 4; i++) to[i] = static_cast<std::byte>(value >> (8 * i));
}

}  // namespace

bool Reports::is_due_at_rest(uint64_t now_ns, uint64_t quiet_ns, uint64_t delay_ns) {
  if (now_ns >= look_at_ns_ && tries_ == 0 && quiet_ns < delay_ns) look_at_ns_ = now_ns + delay_ns - quiet_ns;
  return now_ns >= look_at_ns_;
}

bool Reports::look(Slots slots, bool is_at_rest, uint64_t now_ns, uint64_t delay_ns, uint64_t next_number) {
  const bool gives_up = tries_ == kTriesMax;
  bool is_due = false;
  for (ClientSlot* slot : slots) {
    if (!is_unreported(slot)) continue;
    const bool has_rested = is_at_rest || slot->has_rested();
    slot->rested_number = slot->request_number;
    if (has_rested && gives_up) slot->set_reported();
    is_due |= has_rested && !gives_up;
  }
  is_outstanding_ = false;
  if (gives_up) tries_ = 0;
  // The server knows all responses, or has not acknowledged the reports.
  if (is_at_rest && !is_due) reported_number_ = static_cast<uint32_t>(next_number);
  look_at_ns_ = is_due || is_at_rest ? UINT64_MAX : now_ns + delay_ns;
  return is_due;
}

uint32_t Reports::fill(Slots slots, bool is_at_rest, std::byte* payload) {
  uint32_t bytes = 0;
  for (ClientSlot* slot : slots) {
    if (!is_unreported(slot) || (!is_at_rest && !slot->has_rested())) continue;
    slot->rested_number = slot->request_number;
    store_u32(payload + bytes, slot->request_number);
    bytes += 4;
  }
  return bytes;
}

void Reports::on_sent(uint64_t number, bool is_at_rest, uint64_t now_ns, uint64_t rto_ns, uint64_t delay_ns,
                      uint64_t liveness_ns) {
  // The responses to packets in flight must be reported later.
  number_ = static_cast<uint32_t>(number);
  reported_number_ = is_at_rest ? number_ + 1 : number_;
  is_outstanding_ = true;
  const uint64_t first_wait_ns = std::max({rto_ns, delay_ns / kDelayParts, liveness_ns >> (kTriesMax - 1)});
  look_at_ns_ = now_ns + (first_wait_ns << std::min<uint8_t>(tries_, kTriesMax));
  tries_++;
}

void Reports::on_acknowledged(Slots slots, uint64_t look_at_ns) {
  for (ClientSlot* slot : slots) {
    if (slot != nullptr && slot->phase == Phase::kFree && slot->has_rested()) slot->set_reported();
  }
  is_outstanding_ = false;
  tries_ = 0;
  look_at_ns_ = look_at_ns;
}

}  // namespace tern::session
