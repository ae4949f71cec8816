#include "neighbours/address_claim.h"

namespace tern::neighbours {

AddressClaim::Message AddressClaim::next_message(uint64_t now_ns) {
  if (now_ns < due_ns_) return Message::kNone;
  if (state_ == State::kProbing && sent_ < kProbes) {
    sent_++;
    due_ns_ = now_ns + probe_interval_ns_;
    return Message::kProbe;
  }
  if (state_ == State::kProbing) {
    state_ = State::kClaimed;
    sent_ = 0;
  }
  sent_++;
  due_ns_ = sent_ < kAnnouncements ? now_ns + kAnnounceIntervalNs : UINT64_MAX;
  return Message::kAnnouncement;
}

void AddressClaim::on_conflict(const frames::MacAddress& other, uint64_t now_ns) {
  if (state_ == State::kLost) return;
  const bool is_again = is_defended_ && now_ns - defended_ns_ < kDefendIntervalNs;
  if (state_ == State::kProbing || is_again) return lose(other);
  is_defended_ = true;
  defended_ns_ = now_ns;
  sent_ = kAnnouncements - 1;
  due_ns_ = now_ns;
}

void AddressClaim::on_probe(const frames::MacAddress& other) {
  if (state_ == State::kProbing) lose(other);
}

void AddressClaim::on_link_up(uint64_t now_ns) {
  if (state_ == State::kLost) return;
  state_ = State::kProbing;
  sent_ = 0;
  due_ns_ = now_ns;
}

void AddressClaim::lose(const frames::MacAddress& other) {
  state_ = State::kLost;
  other_mac_ = other;
  due_ns_ = UINT64_MAX;
}

}  // namespace tern::neighbours
