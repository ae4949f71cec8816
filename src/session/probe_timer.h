// The times at which a client probes for its oldest unanswered packet (clause 4.4.1).
// Session layer: pure values; time is an argument.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tern::session {

/// The wait before a probe, which doubles from probe to probe until there is progress.
class ProbeTimer {
 public:
  /// Longest interval between two probes for a call, for any liveness timeout, because a server frees a response for
  /// which no client asks (clause 5.5.2).
  static constexpr uint64_t kAskNsMax = 5'000'000'000;
  /// The timeouts of the session at the time of the call.
  struct Timeouts {
    uint64_t rto_ns = 0;       ///< the measured timeout (RttEstimator)
    uint64_t liveness_ns = 0;  ///< doubling stops at a quarter of it
  };

  ProbeTimer() = default;
  /// Goes on after a rest: `response_ns` is that of the timer before the rest, and the other values are those of the
  /// next looks without news.
  ProbeTimer(uint64_t response_ns, uint64_t progress_ns, uint64_t sample_ns)
      : response_ns_(response_ns), progress_ns_(progress_ns), sample_ns_(sample_ns) {}
  uint64_t response_ns() const { return response_ns_; }

  /// One look at `progress_ns`, the time of the newest progress. Ends the back-off and returns true if there was
  /// progress since the last look, or if nothing is left to be sent or answered.
  bool look_at_progress(uint64_t progress_ns, bool is_idle) {
    if (progress_ns == progress_ns_ && !is_idle) return false;
    progress_ns_ = progress_ns;
    has_probed_early_ = false;
    end_back_off();
    return true;
  }
  /// One look at the newest RTT sample, which came at `sample_ns` and took `elapsed_ns`, the server's hold time
  /// included.
  void look_at_sample(uint64_t sample_ns, uint64_t elapsed_ns) {
    if (sample_ns == sample_ns_) return;
    sample_ns_ = sample_ns;
    response_ns_ = std::max(elapsed_ns, response_ns_ - response_ns_ / 16);
  }
  void end_back_off() { doublings_ = 0; }
  bool has_backed_off() const { return doublings_ != 0; }

  /// Longest expected time to an answer: the measured timeout, or more if the server has lately held its answers
  /// longer.
  uint64_t patience_ns(const Timeouts& timeouts) const {
    return std::max(timeouts.rto_ns, std::min(2 * response_ns_, timeouts.liveness_ns / 4));
  }
  /// Wait before an early probe, which comes at most once between two times of progress. `measured_ns`: the timeout
  /// without the transport's floor.
  uint64_t early_ns(const Timeouts& timeouts, uint64_t measured_ns) const {
    return std::min(std::max(measured_ns, 2 * response_ns_), wait_ns(timeouts));
  }
  bool has_probed_early() const { return has_probed_early_; }
  /// Notes that an early probe is sent. The timeout begins anew.
  void on_early_probe(uint64_t now_ns) {
    has_probed_early_ = true;
    probed_ns_ = now_ns;
  }
  /// Time of the probe for a packet that has waited since `since_ns`.
  uint64_t due_ns(uint64_t since_ns, const Timeouts& timeouts) const {
    return std::max(since_ns, probed_ns_) + wait_ns(timeouts);
  }
  /// Notes that the probe is sent. Returns the time of the next look.
  uint64_t on_probe(uint64_t now_ns, const Timeouts& timeouts) {
    probed_ns_ = now_ns;
    if ((timeouts.rto_ns << (doublings_ + 1)) < timeouts.liveness_ns / 4) doublings_++;
    return now_ns + wait_ns(timeouts);
  }

 private:
  uint64_t wait_ns(const Timeouts& timeouts) const {
    // The timeout may have grown since the doublings.
    const uint64_t doubled_ns = std::min(timeouts.rto_ns << doublings_, timeouts.liveness_ns / 4);
    return std::max(doubled_ns, patience_ns(timeouts));
  }

  uint64_t probed_ns_ = 0;
  uint64_t response_ns_ = 0;  ///< recent maximum of the time to an answer, hold time included; decays
  uint64_t progress_ns_ = 0;  ///< `progress_ns` at the last look
  uint64_t sample_ns_ = 0;    ///< `sample_ns` at the last look
  uint8_t doublings_ = 0;
  bool has_probed_early_ = false;
};

}  // namespace tern::session
