// The time for which the server of a busy client session has been silent (clause 6.4).
// Session layer: pure values; time is an argument.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tern::session {

/// Measures how long the server has sent nothing while it owed an answer. One look adds at most an eighth of the
/// liveness timeout, because a client that looks late may itself have been stopped.
class SilenceTimer {
 public:
  /// The session ends after this many silent liveness timeouts if the server's management has not said that the
  /// endpoint could answer. One timeout is not enough, because the endpoint may get no CPU. The end of the server's
  /// process is noticed sooner, by the Nexuses.
  static constexpr uint64_t kTimeoutsUnasked = 4;

  explicit SilenceTimer(uint64_t liveness_ns = 0) : liveness_ns_(liveness_ns) {}

  /// True if the session was busy at the last look.
  bool is_running() const { return is_running_; }
  /// Begins to measure, because the session becomes busy.
  void start(uint64_t now_ns) {
    is_running_ = true;
    restart();
    counted_until_ns_ = watched_until_ns_ = now_ns;
  }
  void stop() { is_running_ = false; }
  /// One look. `answered_ns`: time of the server's newest packet. All packets that arrived before `read_until_ns` have
  /// been read. There is no silence while the server owes no answer.
  void look(uint64_t now_ns, uint64_t read_until_ns, uint64_t answered_ns, bool is_answer_owed) {
    watched_ns_ += std::min(now_ns - watched_until_ns_, step_ns_max());
    watched_until_ns_ = now_ns;
    const uint64_t until_ns = std::min(now_ns, read_until_ns);
    if (answered_ns != answered_ns_ || !is_answer_owed) {
      answered_ns_ = answered_ns;
      restart();
      counted_until_ns_ = now_ns;
    } else if (until_ns > counted_until_ns_) {
      silence_ns_ += std::min(until_ns - counted_until_ns_, step_ns_max());
      counted_until_ns_ = until_ns;
    }
  }
  /// The server's management says that its endpoint is inside an application callback, and thus not dead.
  void on_peer_in_callback() { restart(); }
  /// The server's management says that its endpoint could answer.
  void on_peer_idle() { is_peer_idle_ = has_asked_; }

  /// The watched clock: the sum of all busy time. It serves for intervals during which the session must have had looks.
  uint64_t watched_ns() const { return watched_ns_; }
  /// True if the silence is longer than half of the liveness timeout.
  bool is_long() const { return silence_ns_ >= liveness_ns_ / 2; }
  /// True if the silence ends the session.
  bool is_over() const { return silence_ns_ >= (is_peer_idle_ ? 1 : kTimeoutsUnasked) * liveness_ns_; }
  /// True once in each long silence: the caller must ask the server's management.
  bool take_question() {
    if (!is_long() || has_asked_) return false;
    has_asked_ = true;
    is_peer_idle_ = false;
    return true;
  }
  /// The time in which the next look is due.
  uint64_t step_ns_max() const { return liveness_ns_ / 8; }

 private:
  void restart() {
    silence_ns_ = 0;
    has_asked_ = false;
  }

  uint64_t liveness_ns_;
  uint64_t silence_ns_ = 0;
  uint64_t counted_until_ns_ = 0;  ///< the time that silence_ns_ includes
  uint64_t watched_ns_ = 0;
  uint64_t watched_until_ns_ = 0;
  uint64_t answered_ns_ = 0;  ///< time of the server's newest packet at the last look
  bool is_running_ = false;
  bool has_asked_ = false;
  bool is_peer_idle_ = false;  ///< the management's answer to the question
};

}  // namespace tern::session
