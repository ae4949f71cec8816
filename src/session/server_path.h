// The server's side of the proof of a path (clause 7.7): the tokens, and how many header-only replies may still be sent
// to addresses that have not answered. A pure state machine without I/O and clock.
#pragma once

#include <cstdint>

#include <tern/detail/export.h>

#include "session/drop.h"
#include "wire/header.h"

namespace tern::session {

class TERN_API ServerPath {
 public:
  /// The handshake sends `path_token`. Only path replies send `session_token` and the first request number.
  ServerPath(uint32_t path_token, uint32_t session_token, uint32_t first_request_count)
      : path_token_(path_token), session_token_(session_token), first_request_count_(first_request_count) {}

  uint32_t session_token() const { return session_token_; }
  uint32_t first_request_number() const { return uint32_t{first_request_count_} << wire::kSlotBits; }
  /// True if a pair reply has been sent. The session keeps its token, because few sessions have one.
  bool has_pair_token() const { return has_pair_token_; }

  /// True if the full probe shows that the client has received a short reply (clauses 7.7.1 and 7.7.4). `pair_token`:
  /// only if has_pair_token().
  bool is_proven(const wire::Header& full_probe, uint32_t pair_token) const;
  /// True if the header-only probe asks whether an open session still has its path (clause 7.7.8).
  bool is_check(const wire::Header& short_probe) const;
  /// Returns the reason not to answer a header-only probe (clauses 7.7.3, 7.7.6). kNone: on_short() may follow. A probe
  /// with the path's token first begins a new allowance of short replies if the last one has begun 5 s before.
  Drop refusal_of_short(const wire::Header& probe, bool is_open, uint64_t now_ns);
  /// Notes that a short probe is answered, which takes one of the replies that are left.
  void on_short(const wire::Header& probe, uint64_t now_ns);
  /// True if the reply to a proven full probe of `payload_bytes` replaces the reply of `due_payload_bytes` that is due.
  bool replaces_due_reply(const wire::Header& full_probe, uint32_t payload_bytes, uint32_t due_payload_bytes) const {
    const bool is_paired = (full_probe.flags() & wire::kPaired) != 0;
    return is_paired || (!is_reply_paired_ && payload_bytes >= due_payload_bytes);
  }
  /// Notes that a proven full probe is answered.
  void on_full(const wire::Header& probe);
  /// Counts a pair reply. `is_same_token`: its token is that of the last pair reply.
  void on_pair_reply(bool is_same_token);

  /// Returns the path reply to the probe with packet number `echo`, except for paired short probes.
  wire::Header reply(uint8_t flags, uint32_t remote_key, uint64_t number, uint32_t echo, uint8_t credit_limit) const;
  /// Returns the reply to the paired short probe with packet number `echo`.
  wire::Header pair_reply(uint32_t remote_key, uint64_t number, uint32_t echo, uint32_t pair_token,
                          uint8_t credit_limit) const;

 private:
  /// Most header-only replies, in all, to addresses that have not shown that they receive them (clause 7.7.3), and the
  /// time after which an open session may send as many again (clause 7.7.6).
  static constexpr uint32_t kShortRepliesMax = 3;
  static constexpr uint32_t kShortRepliesMs = 5000;

  /// Time of the first short reply of the present kShortRepliesMax, in whole ms. It wraps after 50 days. A client that
  /// asks again after just that time waits for at most kShortRepliesMs more.
  uint32_t short_replies_since_ms_ = 0;
  uint32_t path_token_;
  uint32_t session_token_;
  // One word. The short replies that are left and those with the last pair token are together kShortRepliesMax at most.
  uint32_t first_request_count_ : 32 - wire::kSlotBits;
  uint32_t short_replies_left_ : 2 = kShortRepliesMax;
  uint32_t pair_replies_ : 2 = 0;  ///< short replies with the last pair token, while no probe has brought it back
  bool has_pair_token_ : 1 = false;
  bool is_reply_paired_ : 1 = false;  ///< reply() has the flag of a paired reply
};

}  // namespace tern::session
