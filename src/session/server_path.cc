#include "session/server_path.h"

namespace tern::session {

namespace {

bool is_paired(const wire::Header& probe) { return (probe.flags() & wire::kPaired) != 0; }

uint32_t ms_of(uint64_t ns) { return static_cast<uint32_t>(ns / 1'000'000); }

}  // namespace

bool ServerPath::is_proven(const wire::Header& full_probe, uint32_t pair_token) const {
  const bool has_token = is_paired(full_probe) ? has_pair_token_ && full_probe.token() == pair_token
                                               : full_probe.token() == session_token_;
  return has_token && full_probe.request_number() == first_request_number();
}

bool ServerPath::is_check(const wire::Header& short_probe) const {
  return !is_paired(short_probe) && short_probe.token() == session_token_ &&
         short_probe.request_number() == first_request_number();
}

Drop ServerPath::refusal_of_short(const wire::Header& probe, bool is_open, uint64_t now_ns) {
  if (probe.token() != path_token_) return Drop::kUnproven;
  // Not >=, because the two times have lost up to 1 ms.
  if (is_open && ms_of(now_ns) - short_replies_since_ms_ > kShortRepliesMs) {
    short_replies_left_ = kShortRepliesMax;
    pair_replies_ = 0;
  }
  // In an open session only a paired client has a reason to ask, because its address may have changed.
  return (is_open && !is_paired(probe)) || short_replies_left_ == 0 ? Drop::kStale : Drop::kNone;
}

void ServerPath::on_short(const wire::Header& probe, uint64_t now_ns) {
  if (short_replies_left_-- == kShortRepliesMax) short_replies_since_ms_ = ms_of(now_ns);
  if (!is_paired(probe)) is_reply_paired_ = false;
}

void ServerPath::on_full(const wire::Header& probe) {
  is_reply_paired_ = is_paired(probe);
  // The short replies reached the client, which has returned their token, so they were not sent to a stranger.
  if (is_reply_paired_) {
    short_replies_left_ += pair_replies_;
    pair_replies_ = 0;
  }
}

void ServerPath::on_pair_reply(bool is_same_token) {
  if (!has_pair_token_ || !is_same_token) pair_replies_ = 0;
  pair_replies_++;
  has_pair_token_ = true;
}

wire::Header ServerPath::reply(uint8_t flags, uint32_t remote_key, uint64_t number, uint32_t echo,
                               uint8_t credit_limit) const {
  if (is_reply_paired_) flags |= wire::kPaired;
  return wire::server_header(wire::Kind::kPathReply, flags, remote_key, static_cast<uint32_t>(number),
                             first_request_number(), echo, wire::encode_hold(0), credit_limit, session_token_);
}

wire::Header ServerPath::pair_reply(uint32_t remote_key, uint64_t number, uint32_t echo, uint32_t pair_token,
                                    uint8_t credit_limit) const {
  return wire::server_header(wire::Kind::kPathReply, wire::kPaired, remote_key, static_cast<uint32_t>(number),
                             first_request_number(), echo, wire::encode_hold(0), credit_limit, pair_token);
}

}  // namespace tern::session
