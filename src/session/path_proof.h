// The proof that packets pass between a client and its server's data address, and the tokens that go with it
// (clause 7.7).
// Session layer: pure values; time is an argument.
#pragma once

#include <cstdint>

#include "wire/header.h"

namespace tern::session {

enum class PathVerdict : uint8_t {
  kDropped,
  kAnswered,   ///< the data address answers: full probes may follow
  kOpened,     ///< the session is open
  kFound,      ///< the server has answered a short paired probe; an open session sends a pair_probe() next
  kFollowed,   ///< the server sends to the address that our packets come from
  kConfirmed,  ///< packets of full length still pass on the open session's path
};

/// The client first sends header-only probes with the path token. Once the address has answered one, it sends probes of
/// full length with the token of that answer. On a paired session, whose packets of both directions use one address and
/// port pair, the answer to a short probe has a pair token, and the answer to the full probe has the session token.
class PathProof {
 public:
  /// Most header-only path probes to an address that has not answered one (clause 7.7.3).
  static constexpr uint8_t kShortProbesMax = 3;
  /// After this many full paired probes without an answer, our address may have changed. Or they were lost, so a short
  /// probe asks for a token, and full ones go on with the present one.
  static constexpr uint8_t kFullPairProbesMax = 4;

  struct Probe {
    uint8_t flags = 0;
    bool is_full = false;  ///< with the largest payload; otherwise a header only
    uint32_t token = 0;
  };
  struct Reply {
    bool is_paired = false;
    bool is_short = false;  ///< a header only; otherwise with the largest payload
    uint32_t token = 0;
  };

  /// Takes the token that the server, which has accepted the session, expects in short probes.
  void accept(uint32_t path_token) { path_token_ = path_token; }
  /// Makes all later probes paired ones.
  void pair() { is_paired_ = true; }

  bool is_paired() const { return is_paired_; }
  /// True if the data address has answered a short probe.
  bool is_answered() const { return is_answered_; }
  uint8_t short_probes_left() const { return short_probes_left_; }
  bool may_probe() const { return is_answered_ || short_probes_left_ != 0; }
  /// The token that proves packets of the open session.
  uint32_t session_token() const { return session_token_; }

  /// Returns the next probe of a session that is not open. Only when may_probe().
  Probe next() {
    if (!is_answered_) short_probes_left_--;
    if (!is_paired_) return {0, is_answered_, is_answered_ ? session_token_ : path_token_};
    if (!has_pair_token_ || full_pair_probes_++ == kFullPairProbesMax) return next_short_paired();
    return full_paired();
  }
  /// Returns the next probe of the open paired session. A short probe asks for a pair token, and one full probe has it.
  Probe next_paired() {
    if (!has_pair_token_) return next_short_paired();
    has_pair_token_ = false;
    is_full_awaited_ = true;
    return full_paired();
  }

  /// Takes a reply to a probe of a session that is not open. kOpened: the path is proven.
  PathVerdict on_reply(const Reply& reply) {
    if (reply.is_paired && !is_paired_) return PathVerdict::kDropped;
    if (!reply.is_short) return on_full_reply(reply);
    if (is_answered_ && !reply.is_paired) return PathVerdict::kDropped;
    if (reply.is_paired && !take_pair_token(reply.token)) return PathVerdict::kDropped;
    if (is_answered_) return PathVerdict::kFound;
    if (!reply.is_paired) session_token_ = reply.token;
    is_paired_ = reply.is_paired;  // a late answer to an earlier, unpaired probe also counts
    is_answered_ = true;
    return PathVerdict::kAnswered;
  }
  /// Takes a paired reply to a probe of the open session. Only its echo proves it, because a wrong token does no more
  /// harm than a lost one.
  PathVerdict on_pair_reply(const Reply& reply) {
    if (!is_paired_) return PathVerdict::kDropped;
    if (reply.is_short) return take_pair_token(reply.token) ? PathVerdict::kFound : PathVerdict::kDropped;
    if (!is_full_awaited_) return PathVerdict::kDropped;
    is_full_awaited_ = false;
    // The present session token may be damaged, so that the server has not answered packets that need it.
    session_token_ = reply.token;
    return PathVerdict::kFollowed;
  }

 private:
  Probe next_short_paired() {
    is_pair_asked_ = true;
    full_pair_probes_ = 0;
    return {wire::kPaired, false, path_token_};
  }
  Probe full_paired() const { return {wire::kPaired, true, pair_token_}; }
  PathVerdict on_full_reply(const Reply& reply) {
    if (!is_answered_ || reply.is_paired != is_paired_) return PathVerdict::kDropped;
    if (reply.is_paired) session_token_ = reply.token;
    has_pair_token_ = false;
    return PathVerdict::kOpened;
  }
  /// Each short probe brings one full probe at most, however many replies a hostile server sends.
  bool take_pair_token(uint32_t token) {
    if (!is_pair_asked_) return false;
    is_pair_asked_ = false;
    pair_token_ = token;
    has_pair_token_ = true;
    return true;
  }

  uint32_t path_token_ = 0;
  uint32_t session_token_ = 0;  ///< valid when is_answered_
  uint32_t pair_token_ = 0;     ///< valid when has_pair_token_: from a short reply, for the full probe that follows
  uint8_t short_probes_left_ : 4 = kShortProbesMax;
  uint8_t full_pair_probes_ : 4 = 0;  ///< full paired probes since the last short one
  bool is_answered_ : 1 = false;
  bool is_paired_ : 1 = false;
  bool has_pair_token_ : 1 = false;
  bool is_pair_asked_ : 1 = false;    ///< a short paired probe has not been answered
  bool is_full_awaited_ : 1 = false;  ///< a full paired probe of the open session has not been answered
};
static_assert(sizeof(PathProof) == 16, "a part of each session");

/// The times at which a silent paired session asks the server to follow it, because its address may have changed
/// (clause 7.7.5). It asks after a sixteenth, a quarter and half of the liveness timeout, because a server answers an
/// unknown address three times, and then once in each timeout.
class FollowTimer {
 public:
  void stop() { next_ns_ = 0; }
  /// Time of the next question. Only after a look.
  uint64_t next_ns() const { return next_ns_; }
  /// One look. `answered_ns`: time of the server's newest packet. True: the session must ask now.
  bool look(uint64_t now_ns, uint64_t answered_ns, bool is_answer_owed, uint64_t liveness_ns) {
    const uint64_t unit_ns = liveness_ns / 16;
    if (next_ns_ == 0 || answered_ns_ != answered_ns || !is_answer_owed) {
      answered_ns_ = answered_ns;
      next_ns_ = now_ns + unit_ns;
      gap_ns_ = 3 * unit_ns;
      return false;
    }
    if (now_ns < next_ns_) return false;
    next_ns_ = now_ns + gap_ns_;
    gap_ns_ = gap_ns_ == 3 * unit_ns ? 4 * unit_ns : liveness_ns;
    return true;
  }

 private:
  uint64_t answered_ns_ = 0;  ///< time of the server's newest packet when the silence began
  uint64_t next_ns_ = 0;      ///< time of the next question; 0: stopped
  uint64_t gap_ns_ = 0;       ///< time from the next question to the one after it
};

}  // namespace tern::session
