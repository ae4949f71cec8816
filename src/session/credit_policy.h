// Limits of the packets in flight to this endpoint: those of requests, by client (docs/protocol.md, 4.5), and those of
// responses, by server (5.4). The capacity of the receive queue and of the downlink is divided by the active sessions.
// Session layer: pure values, integers, time is an argument.
//
// Little's law gives the downlink's capacity. If the packets in flight are together what the downlink carries in
// kDownlinkNs, no round trip takes longer than kDownlinkNs. The link is busy if the bare round trip is shorter.
//
// Active sessions are counted in epochs of 2 * kDownlinkNs. Epochs of kDownlinkNs could keep limits too high for ever,
// because a client with many packets in the queue delays the packets of other clients beyond the epoch, and too few
// sessions are counted. In twice the time at least twice as many sessions are counted as the limits allow for.
// Therefore the sum of the limits halves with each epoch.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "wire/credits.h"

namespace tern::session {

/// All clients together may have as many packets in flight as the downlink carries in this time. A round trip without
/// load takes 5 to 20 us in a datacenter. The time must be a little longer, because otherwise one client would not fill
/// the link; the rest is a small queue.
inline constexpr uint64_t kDownlinkNs = 25'000;
/// A slow link needs a few packets in flight to be busy.
inline constexpr uint32_t kDownlinkPacketsMin = 8;

/// The link by which packets arrive.
struct Downlink {
  uint32_t bytes = 0;         ///< bytes that the link carries in kDownlinkNs; 0: unknown
  uint32_t packet_bytes = 1;  ///< bytes of a full packet on the link

  static Downlink of(uint64_t bytes_per_sec, uint32_t packet_bytes) {
    if (bytes_per_sec == 0) return {};
    const uint64_t bytes = bytes_per_sec / 1000 * kDownlinkNs / 1'000'000;
    return {static_cast<uint32_t>(std::clamp<uint64_t>(bytes, kDownlinkPacketsMin * packet_bytes, 1u << 30)),
            packet_bytes};
  }
  uint32_t packets() const { return bytes / packet_bytes; }
};

/// Counts the active sessions of an epoch, which are the sessions of which a packet has arrived.
class Heard {
 public:
  /// Number of the present epoch, from 1 on. 0 is the initial note of a session.
  uint64_t epoch() const { return epoch_; }
  /// Counts a session. `last` is the session's note of the epoch in which it was counted last. True: it has not been
  /// counted before in this epoch. A note of 32 bits may also be that of an epoch 2^32 earlier: the session is then not
  /// counted in this one.
  template <class Note>
  bool hear(Note& last) {
    const auto epoch = static_cast<Note>(epoch_);
    if (last == epoch) return false;
    last = epoch;
    now_++;
    return true;
  }
  /// The larger of the counts of this epoch so far and of the last epoch; at least 1.
  uint32_t count() const { return std::max({before_, now_, 1u}); }
  bool has_grown() const { return now_ > before_; }
  /// Starts an epoch. `was_silent`: a whole epoch has passed since the end of the last one.
  void start_epoch(bool was_silent) {
    before_ = was_silent ? 0 : now_;
    now_ = 0;
    epoch_++;
  }

 private:
  uint64_t epoch_ = 1;
  uint32_t now_ = 0;
  uint32_t before_ = 0;
};

/// The credit limit that the server sessions of one endpoint grant. The receive queue is divided by the sessions that
/// were active in 10 ms. The downlink is divided by the sessions of the present and the last epoch. While long requests
/// (of several packets) arrive, the other sessions together have no larger share than the bytes that they send, because
/// most of them send one packet at a time.
class CreditPolicy {
 public:
  struct Terms {
    uint32_t queue_packets = 0;           ///< full packets that the receive queue holds
    uint8_t unit = wire::kCreditUnitMax;  ///< unit of the credits: log2 of a credit's bytes (wire/credits.h)
    uint32_t packet_credits = 1;          ///< credits that a full packet costs
    Downlink downlink = {};
    uint32_t fixed_limit = 0;  ///< full packets that the limit allows. 0: the limit is calculated
  };
  /// The packets and bytes that have arrived at the endpoint since its beginning.
  struct Arrivals {
    uint64_t packets = 0;
    uint64_t bytes = 0;  ///< bytes on the downlink
  };
  static constexpr uint64_t kQueueEpochNs = 10'000'000;
  static constexpr uint64_t kDownlinkEpochNs = 2 * kDownlinkNs;

  CreditPolicy() = default;
  CreditPolicy(const Terms& terms, uint64_t now_ns)
      : terms_(terms),
        epoch_ns_(terms.downlink.bytes != 0 ? kDownlinkEpochNs : kQueueEpochNs),
        began_ns_(now_ns),
        epoch_end_ns_(now_ns + epoch_ns_),
        queue_end_ns_(now_ns + kQueueEpochNs),
        mean_bytes_(terms.downlink.packet_bytes) {
    update();
  }

  /// The limit as packets carry it (wire::encode_credits).
  uint8_t limit() const { return limit_; }
  uint8_t unit() const { return terms_.unit; }
  uint32_t packet_credits() const { return terms_.packet_credits; }
  /// The limit of a session that begins, or begins again after a rest. It is a share of half of the receive queue,
  /// because all of `sessions` may begin at once.
  uint8_t start_limit(size_t sessions) const {
    if (terms_.fixed_limit != 0) return limit_;
    if (terms_.downlink.bytes == 0) return std::min(limit_, static_cast<uint8_t>(wire::kExactCreditsMax));
    const size_t share = terms_.queue_packets / 2 / std::max<size_t>(sessions, 1);
    return wire::encode_credits(static_cast<uint32_t>(std::clamp<size_t>(share, 1, kStartMax)) * terms_.packet_credits);
  }

  /// Number of the epoch that hear() notes; low half.
  uint32_t epoch() const { return static_cast<uint32_t>(all_.epoch()); }
  uint64_t epoch_end_ns() const { return epoch_end_ns_; }
  /// Starts an epoch. Must be called at epoch_end_ns() or later. True: a whole epoch has passed since that time.
  bool start_epoch(uint64_t now_ns, const Arrivals& arrivals) {
    const bool was_silent = now_ns - epoch_end_ns_ >= epoch_ns_;
    const uint64_t packets = arrivals.packets - arrivals_.packets;
    const uint64_t bytes = arrivals.bytes - arrivals_.bytes;
    const uint64_t long_bytes = std::min(bytes, uint64_t{long_packets_} * terms_.downlink.packet_bytes);
    const uint64_t in_pipe = (bytes - long_bytes) * kDownlinkNs / (now_ns - began_ns_);
    other_bytes_ = static_cast<uint32_t>(std::min<uint64_t>(in_pipe, terms_.downlink.bytes));
    mean_bytes_ = terms_.downlink.packet_bytes;
    if (packets != 0 && !was_silent) {
      mean_bytes_ = static_cast<uint32_t>(std::clamp<uint64_t>(bytes / packets, 1, mean_bytes_));
    }
    arrivals_ = arrivals;
    long_packets_ = 0;
    all_.start_epoch(was_silent);
    long_.start_epoch(was_silent);
    if (now_ns >= queue_end_ns_) {
      queue_heard_before_ = queue_heard_;
      queue_heard_ = 0;
      queue_began_ = epoch();
      queue_end_ns_ = now_ns + kQueueEpochNs;
    }
    began_ns_ = now_ns;
    epoch_end_ns_ = now_ns + epoch_ns_;
    update();
    return was_silent;
  }
  /// Counts a session whose request is answered. The caller may leave this out if `last` is epoch() already. `last`:
  /// the epoch in which the session was last counted, 0 at first. Not inlined, because otherwise the caller would save
  /// registers for it at every answer.
  [[gnu::noinline]] void hear(uint32_t& last) {
    // The ages of the note and of the 10 ms are compared, because the numbers wrap.
    if (epoch() - last > epoch() - queue_began_) queue_heard_++;
    if (all_.hear(last) && all_.has_grown()) update();
  }
  /// Counts a session that has just opened, for one epoch, if the downlink's rate is known. `last`: as in hear().
  void hear_opening(uint32_t& last) {
    if (terms_.downlink.bytes != 0 && all_.hear(last) && all_.has_grown()) update();
  }
  /// Counts a packet of a long request. `last`: the session's note for long requests.
  void hear_long(uint32_t& last) {
    long_packets_++;
    if (long_.hear(last) && long_.has_grown()) update();
  }
  /// `count`: long requests of which some packets are missing.
  void set_long_requests(size_t count) {
    if (count == long_requests_) return;
    long_requests_ = static_cast<uint32_t>(count);
    update();
  }

 private:
  static constexpr size_t kStartMax = 8;
  static constexpr uint32_t kPacketsMax = 128;

  void update() {
    const uint32_t full = terms_.packet_credits;
    uint32_t share = terms_.queue_packets * full / std::max(queue_heard_before_, 1u);
    // A session may exceed its limit by all but one credit of its last packet. At most half of a share is kept for
    // that, because most sessions send short packets.
    share -= std::min(full - 1, share / 2);
    // A limit that changed with each session that begins or ends would take all sessions off the common path.
    if (share > wire::kExactCreditsMax) share = std::bit_floor(share);
    if (const Downlink& downlink = terms_.downlink; downlink.bytes != 0) {
      if (long_requests_ == 0) {
        const uint32_t mean = std::min(wire::credits_of(mean_bytes_, terms_.unit), full);
        share = std::min(share, downlink.bytes / mean_bytes_ / all_.count() * mean);
      } else {
        // long_requests_ leaves out ended requests at once; long_.count() leaves out stalled ones after an epoch.
        const uint32_t rest = (downlink.bytes - other_bytes_) / downlink.packet_bytes;
        const uint32_t equal = downlink.packets() / all_.count();
        share = std::min(share, full * std::max(equal, rest / std::min(long_.count(), long_requests_)));
      }
    }
    // More packets in flight fill long paths, but also the buffers of switches, so they are allowed only on request.
    share = std::min(share, kPacketsMax * full);
    if (terms_.fixed_limit != 0) share = terms_.fixed_limit * full;
    limit_ = wire::encode_credits(std::max(share, 1u));
  }

  Terms terms_;
  uint64_t epoch_ns_ = kQueueEpochNs;
  uint64_t began_ns_ = 0;
  uint64_t epoch_end_ns_ = 0;
  uint64_t queue_end_ns_ = 0;
  uint32_t queue_began_ = 1;         ///< the first epoch of the present 10 ms; low half
  uint32_t queue_heard_ = 0;         ///< sessions counted in the present 10 ms
  uint32_t queue_heard_before_ = 0;  ///< sessions counted in the last 10 ms
  Heard all_;                        ///< all sessions
  Heard long_;                       ///< sessions that send long requests
  uint32_t long_requests_ = 0;
  uint32_t long_packets_ = 0;  ///< packets of long requests in this epoch
  Arrivals arrivals_;          ///< arrivals up to the start of this epoch
  uint32_t other_bytes_ = 0;   ///< bytes in flight in the last epoch that were not of long requests, about
  uint32_t mean_bytes_ = 1;    ///< mean length of a packet in the last epoch
  uint8_t limit_ = 1;
};

/// The response packets that each client session of an endpoint may have in flight: the downlink's capacity, divided by
/// the sessions that receive responses of several packets.
class ResponseShare {
 public:
  ResponseShare() = default;
  explicit ResponseShare(const Downlink& downlink) : downlink_(downlink) {}
  /// Called when a response of several packets begins to arrive, or one that may come as a larger one is asked for.
  void begin() { responses_++; }
  void end() { responses_--; }
  uint32_t responses() const { return responses_; }
  /// Counts a session that has received a part of such a response. `last_epoch`: the session's note.
  void hear(uint64_t& last_epoch) { heard_.hear(last_epoch); }
  void start_epoch(bool was_silent) { heard_.start_epoch(was_silent); }
  uint32_t packets() const {
    if (downlink_.bytes == 0) return UINT32_MAX;
    return std::max(downlink_.packets() / std::clamp(responses_, 1u, heard_.count()), 1u);
  }

 private:
  Downlink downlink_;
  uint32_t responses_ = 0;
  Heard heard_;
};

}  // namespace tern::session
