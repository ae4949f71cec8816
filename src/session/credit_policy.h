// How many packets each client may have on their way to this endpoint, and each server that answers it: as many as the
// receive queue and the downlink take, divided by those who take part (docs/protocol.md, 4.5 and 5.4).
// Session room: pure values, integers, time is an argument.
//
// Little's law makes the downlink's part simple: where all packets on their way are together what the downlink carries
// in kDownlinkNs, no round trip takes longer than that, and the link is busy if the bare round trip is shorter. Who
// takes part is counted in epochs of twice that time. Were they as long as kDownlinkNs, too high limits could last: who
// has many packets in the queue, one behind the other, keeps the others from being heard, and fewer seem to take part.
// In twice the time at least twice as many are heard as the limits allow for, so that the sum halves each time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tern::session {

/// Largest limit that a packet can carry (clause 4.5).
inline constexpr uint32_t kCreditsMax = 128;

/// What of the downlink's time the packets on their way take: a bare round trip and a small standing queue. Longer than
/// a bare round trip in a datacenter (5 to 20 us), or a single client would not fill the link.
inline constexpr uint64_t kDownlinkNs = 25'000;
/// Slow links need some packets to be busy at all.
inline constexpr uint32_t kDownlinkPacketsMin = 8;

/// The link by which packets arrive.
struct Downlink {
  uint32_t bytes = 0;         ///< that it carries in kDownlinkNs; 0: nothing is known of it
  uint32_t packet_bytes = 1;  ///< what a full packet takes of it

  static Downlink of(uint64_t bytes_per_sec, uint32_t packet_bytes) {
    if (bytes_per_sec == 0) return {};
    const uint64_t bytes = bytes_per_sec / 1000 * kDownlinkNs / 1'000'000;
    return {static_cast<uint32_t>(std::clamp<uint64_t>(bytes, kDownlinkPacketsMin * packet_bytes, 1u << 30)),
            packet_bytes};
  }
  uint32_t packets() const { return bytes / packet_bytes; }
};

/// The sessions that were heard, each once an epoch.
class Heard {
 public:
  /// From 1 on: 0 is what a session that was never heard has noted.
  uint64_t epoch() const { return epoch_; }
  /// `last`: the session's note of the last epoch in which it was heard. True: not in this one before.
  bool hear(uint64_t& last) {
    if (last == epoch_) return false;
    last = epoch_;
    now_++;
    return true;
  }
  /// In this epoch so far, or in the last one, if these were more; at least 1.
  uint32_t count() const { return std::max({before_, now_, 1u}); }
  bool has_grown() const { return now_ > before_; }
  /// `was_silent`: there was time for a whole epoch since the last one.
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

/// The limit that the server sessions of one endpoint grant. The receive queue is divided by all that were heard in
/// 10 ms, the downlink by those that were heard lately. But while long requests (of several packets) arrive, the rest
/// counts for no more than the bytes that come from it, for mostly it wants one packet at a time.
class CreditPolicy {
 public:
  struct Terms {
    uint32_t queue_packets = 0;  ///< of the receive queue
    Downlink downlink = {};
    uint32_t fixed_limit = 0;  ///< 1 to kCreditsMax: always this. 0: what follows from the others
  };
  /// What has arrived at the endpoint, of whatever kind, since its beginning.
  struct Arrivals {
    uint64_t packets = 0;
    uint64_t bytes = 0;  ///< of the downlink
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

  uint8_t limit() const { return limit_; }
  /// Of a session that begins, or begins anew after a rest: all of `sessions` may do so at once.
  uint8_t start_limit(size_t sessions) const {
    if (terms_.fixed_limit != 0 || terms_.downlink.bytes == 0) return limit_;
    const size_t share = terms_.queue_packets / 2 / std::max<size_t>(sessions, 1);
    return static_cast<uint8_t>(std::clamp<size_t>(share, 1, kStartMax));
  }

  /// For hear().
  uint64_t epoch() const { return all_.epoch(); }
  uint64_t epoch_end_ns() const { return epoch_end_ns_; }
  /// At epoch_end_ns() or later. True: there was time for another epoch since that time.
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
      queue_began_ = all_.epoch();
      queue_end_ns_ = now_ns + kQueueEpochNs;
    }
    began_ns_ = now_ns;
    epoch_end_ns_ = now_ns + epoch_ns_;
    update();
    return was_silent;
  }
  /// A client gets an answer; the first one of this epoch() is enough. `last`: its session's note, 0 at first. A
  /// function of its own, for inline it would make every answer save its registers.
  [[gnu::noinline]] void hear(uint64_t& last) {
    if (last < queue_began_) queue_heard_++;
    if (all_.hear(last) && all_.has_grown()) update();
  }
  /// A client has opened a session, and will have calls: counted where the downlink is shared, for one short epoch.
  /// `last`: as of hear().
  void hear_opening(uint64_t& last) {
    if (terms_.downlink.bytes != 0 && all_.hear(last) && all_.has_grown()) update();
  }
  /// A packet of a long request has come. `last`: another note.
  void hear_long(uint64_t& last) {
    long_packets_++;
    if (long_.hear(last) && long_.has_grown()) update();
  }
  /// So many long requests are being received now.
  void set_long_requests(size_t count) {
    if (count == long_requests_) return;
    long_requests_ = static_cast<uint32_t>(count);
    update();
  }

 private:
  static constexpr size_t kStartMax = 8;

  void update() {
    uint32_t share = terms_.queue_packets / std::max(queue_heard_before_, 1u);
    if (const Downlink& downlink = terms_.downlink; downlink.bytes != 0) {
      if (long_requests_ == 0) {
        share = std::min(share, downlink.bytes / mean_bytes_ / all_.count());
      } else {
        // Those that have ended are known at once, those that have stalled after an epoch.
        const uint32_t rest = (downlink.bytes - other_bytes_) / downlink.packet_bytes;
        const uint32_t equal = downlink.packets() / all_.count();
        share = std::min(share, std::max(equal, rest / std::min(long_.count(), long_requests_)));
      }
    }
    if (terms_.fixed_limit != 0) share = terms_.fixed_limit;
    limit_ = static_cast<uint8_t>(std::clamp(share, 1u, kCreditsMax));
  }

  Terms terms_;
  uint64_t epoch_ns_ = kQueueEpochNs;
  uint64_t began_ns_ = 0;
  uint64_t epoch_end_ns_ = 0;
  uint64_t queue_end_ns_ = 0;
  uint64_t queue_began_ = 1;         ///< the first epoch of these 10 ms
  uint32_t queue_heard_ = 0;         ///< sessions, in these 10 ms
  uint32_t queue_heard_before_ = 0;  ///< in the last
  Heard all_;                        ///< whatever they send
  Heard long_;                       ///< those of which packets of long requests came
  uint32_t long_requests_ = 0;
  uint32_t long_packets_ = 0;  ///< of long requests, in this epoch
  Arrivals arrivals_;          ///< before this epoch
  uint32_t other_bytes_ = 0;   ///< of the others on their way in the last epoch, about
  uint32_t mean_bytes_ = 1;    ///< of a packet in the last epoch
  uint8_t limit_ = 1;
};

/// How many response packets each session of an endpoint may await of its server: the downlink's, divided likewise.
class ResponseShare {
 public:
  ResponseShare() = default;
  explicit ResponseShare(const Downlink& downlink) : downlink_(downlink) {}
  /// A response of several packets begins to arrive.
  void begin() { responses_++; }
  void end() { responses_--; }
  uint32_t responses() const { return responses_; }
  /// A part of one has come for the session with this note.
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
