#include "session/server_path.h"

#include <algorithm>
#include <utility>

namespace tern::session {

namespace {

bool is_paired(const wire::Header& probe) { return (probe.flags() & wire::kPaired) != 0; }

}  // namespace

bool ServerPath::is_proven(const wire::Header& full_probe) const {
  const bool has_token = is_paired(full_probe) ? has_pair_token_ && full_probe.token() == pair_token_
                                               : full_probe.token() == session_token_;
  return has_token && full_probe.request_number() == first_request_number_;
}

bool ServerPath::is_check(const wire::Header& short_probe) const {
  return !is_paired(short_probe) && short_probe.token() == session_token_ &&
         short_probe.request_number() == first_request_number_;
}

Drop ServerPath::admit_short(const wire::Header& probe, bool is_open, uint64_t now_ns) {
  if (probe.token() != path_token_) return Drop::kUnproven;
  if (is_open && now_ns - std::min(now_ns, short_replies_since_ns_) >= kShortRepliesNs) {
    short_replies_left_ = kShortRepliesMax;
    pair_replies_ = 0;
  }
  // In an open session only a paired client has a reason to ask, because its address may have changed.
  if ((is_open && !is_paired(probe)) || short_replies_left_ == 0) return Drop::kStale;
  if (short_replies_left_-- == kShortRepliesMax) short_replies_since_ns_ = now_ns;
  return Drop::kNone;
}

void ServerPath::on_short(const wire::Header& probe, uint64_t number) {
  if (is_paired(probe)) {
    pair_echo_ = static_cast<uint32_t>(number);
    return;
  }
  echo_ = static_cast<uint32_t>(number);
  reply_payload_bytes_ = 0;
  is_reply_paired_ = false;
}

void ServerPath::on_full(const wire::Header& probe, uint64_t number, uint32_t payload_bytes) {
  is_reply_paired_ = is_paired(probe);
  // The short replies reached the client, which has returned their token, so they were not sent to a stranger.
  if (is_reply_paired_) short_replies_left_ += std::exchange(pair_replies_, uint8_t{0});
  echo_ = static_cast<uint32_t>(number);
  reply_payload_bytes_ = payload_bytes;
}

void ServerPath::set_pair_token(uint32_t token) {
  if (!has_pair_token_ || token != pair_token_) pair_replies_ = 0;
  pair_replies_++;
  pair_token_ = token;
  has_pair_token_ = true;
}

wire::Header ServerPath::reply(uint8_t flags, uint32_t remote_key, uint64_t number, uint8_t credit_limit) const {
  if (is_reply_paired_) flags |= wire::kPaired;
  return wire::server_header(wire::Kind::kPathReply, flags, remote_key, static_cast<uint32_t>(number),
                             first_request_number_, echo_, wire::encode_hold(0), credit_limit, session_token_);
}

wire::Header ServerPath::pair_reply(uint32_t remote_key, uint64_t number, uint8_t credit_limit) const {
  return wire::server_header(wire::Kind::kPathReply, wire::kPaired, remote_key, static_cast<uint32_t>(number),
                             first_request_number_, pair_echo_, wire::encode_hold(0), credit_limit, pair_token_);
}

}  // namespace tern::session
