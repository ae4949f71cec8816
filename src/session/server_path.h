// The server's side of the proof of a path (clause 7.7): the tokens, the replies that are due, and how many header-only
// replies may still be sent to addresses that have not answered. A pure state machine without I/O and clock.
#pragma once

#include <cstdint>

#include <tern/detail/export.h>

#include "session/drop.h"
#include "wire/header.h"

namespace tern::session {

class TERN_API ServerPath {
 public:
  /// The handshake sends `path_token`. Only path replies send `session_token` and `first_request_number`.
  ServerPath(uint32_t path_token, uint32_t session_token, uint32_t first_request_number)
      : path_token_(path_token), session_token_(session_token), first_request_number_(first_request_number) {}

  uint32_t session_token() const { return session_token_; }
  uint32_t first_request_number() const { return first_request_number_; }
  /// The token of the last pair reply. Must not be used before the first owe_pair_reply().
  uint32_t pair_token() const { return pair_token_; }
  bool has_pair_token() const { return has_pair_token_; }

  /// True if the full probe shows that the client has received a short reply (clauses 7.7.1 and 7.7.4).
  bool is_proven(const wire::Header& full_probe) const;
  /// True if the header-only probe asks whether an open session still has its path (clause 7.7.8).
  bool is_check(const wire::Header& short_probe) const;
  /// Returns the reason not to answer a header-only probe (clauses 7.7.3 and 7.7.6). kNone: the probe is answered,
  /// which takes one of the replies that are left.
  Drop admit_short(const wire::Header& probe, bool is_open, uint64_t now_ns);
  /// Notes that a short probe with packet number `number` was admitted.
  void on_short(const wire::Header& probe, uint64_t number);
  /// True if the reply to a proven full probe of `payload_bytes` replaces the reply that is due.
  bool replaces_due_reply(const wire::Header& full_probe, uint32_t payload_bytes) const {
    const bool is_paired = (full_probe.flags() & wire::kPaired) != 0;
    return is_paired || (!is_reply_paired_ && payload_bytes >= reply_payload_bytes_);
  }
  /// Notes that a proven full probe was accepted. Its reply has `payload_bytes`.
  void on_full(const wire::Header& probe, uint64_t number, uint32_t payload_bytes);
  /// Sets the token of the reply to the last paired short probe.
  void set_pair_token(uint32_t token);

  /// Returns the path reply that is due, except for paired short ones.
  wire::Header reply(uint8_t flags, uint32_t remote_key, uint64_t number, uint8_t credit_limit) const;
  uint32_t reply_payload_bytes() const { return reply_payload_bytes_; }
  /// Returns the reply to the last paired short probe.
  wire::Header pair_reply(uint32_t remote_key, uint64_t number, uint8_t credit_limit) const;

 private:
  /// Most header-only replies, in all, to addresses that have not shown that they receive them (clause 7.7.3), and the
  /// time after which an open session may send as many again (clause 7.7.6).
  static constexpr uint8_t kShortRepliesMax = 3;
  static constexpr uint64_t kShortRepliesNs = 5'000'000'000;

  uint64_t short_replies_since_ns_ = 0;  ///< time at which the first probe of the present kShortRepliesMax was admitted
  uint32_t path_token_;
  uint32_t session_token_;
  uint32_t first_request_number_;
  uint32_t echo_ = 0;  ///< number of the probe that reply() answers
  uint32_t reply_payload_bytes_ = 0;
  uint32_t pair_token_ = 0;  ///< valid with has_pair_token_
  uint32_t pair_echo_ = 0;   ///< number of the probe that pair_reply() answers
  uint8_t short_replies_left_ = kShortRepliesMax;
  uint8_t pair_replies_ = 0;  ///< short replies with pair_token_, while no probe has brought it back
  bool has_pair_token_ = false;
  bool is_reply_paired_ = false;  ///< reply() has the flag of a paired reply
};

}  // namespace tern::session
