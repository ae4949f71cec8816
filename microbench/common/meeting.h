// A barrier for all processes of a cluster's job. Each process asks rank 0, which answers when all have asked. The
// answers travel over the measured transport, through endpoint 0 of each process.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launch.h"
#include "run.h"

namespace programs {

/// The main thread holds meetings. All other work happens in the thread of endpoint 0.
class Meeting {
 public:
  static constexpr uint16_t kRequestType = 4000;  ///< no program uses this type

  /// `flags` must be the same text in all processes that may meet, at most kFlagsBytesMax long.
  Meeting(Run& run, const Launch& launch, double start_seconds_max, std::string flags)
      : run_(run),
        launch_(launch),
        start_seconds_max_(start_seconds_max),
        flags_(std::move(flags)),
        guests_(launch.ranks()),
        texts_(launch.ranks()) {
    flags_.resize(std::min(flags_.size(), kFlagsBytesMax));
  }

  /// Must be called once for endpoint 0, before its loop runs. `on_event` gets the events of the endpoint's client
  /// sessions, except those of the meeting's own session.
  tern::Status add_to(
      tern::Endpoint& endpoint, std::function<void(const tern::SessionEvent&)> on_event = [](const auto&) {}) {
    endpoint_ = &endpoint;
    const tern::Status listens = endpoint.on_session_event([this, on_event](const tern::SessionEvent& event) {
      if (!event.is_client) {
        on_guest_event(event);
      } else if (!session_ || !(event.session == *session_)) {
        on_event(event);
      }
    });
    if (!listens.ok() || launch_.rank != 0) return listens;
    const auto arrive = [this](tern::Request request) { on_arrival(std::move(request)); };
    return endpoint.on_request(kRequestType, arrive, {.max_request_bytes = kArrivalBytesMax});
  }

  /// Returns true when all processes have called it as often as this one. Returns false if it failed or was
  /// interrupted. Must be called by the main thread while the loop of endpoint 0 runs. The first meeting waits for
  /// processes that have not started yet. Later meetings wait at most `seconds_max`; after that time the job has
  /// failed.
  [[nodiscard]] bool hold(double seconds_max) { return hold(seconds_max, false, {}); }
  /// Holds the last meeting, to which each process brings a text of at most 64 KiB. Afterwards no process uses another
  /// one, so each may end.
  [[nodiscard]] bool hold_last(double seconds_max, std::string text) {
    if (!hold(seconds_max, true, std::move(text))) return false;
    if (launch_.rank != 0) return true;
    // The answers to the others are on their way. A process that has received its answer ends its session.
    const auto have_left = [this] { return left_.load(std::memory_order_acquire) + 1 == launch_.ranks(); };
    return run_.wait_for(kFarewellSeconds, have_left);
  }
  /// The texts of all processes, by rank. Rank 0 only, main thread, after hold_last().
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  static constexpr size_t kFlagsBytesMax = 4096;
  static constexpr double kFarewellSeconds = 2;
  static constexpr tern::Duration kTryAgain = std::chrono::milliseconds(100);
  /// The message of a process to rank 0. The flags follow, and then the text.
  struct Arrival {
    uint64_t rank;
    uint64_t ranks;
    uint64_t flags_bytes;
  };
  static constexpr size_t kTextBytesMax = 64 << 10;
  static constexpr size_t kArrivalBytesMax = sizeof(Arrival) + kFlagsBytesMax + kTextBytesMax;
  enum Refusal : uint16_t { kOtherFlags = 1, kOtherRanks, kSameRank };  ///< app_code
  /// The state of another process at rank 0.
  struct Guest {
    std::optional<tern::Request> waiting;
    std::optional<tern::Session> session;
  };

  bool hold(double seconds_max, bool is_last, std::string text) {
    const uint64_t number = held_++;
    const double seconds = number == 0 ? start_seconds_max_ : seconds_max;
    const std::chrono::nanoseconds length(static_cast<int64_t>(seconds * 1e9));
    const Clock::time_point deadline = Clock::now() + length;
    own_text_ = std::move(text);
    own_text_.resize(std::min(own_text_.size(), kTextBytesMax));
    const tern::Status status = endpoint_->post([this, number, is_last] { come(number, is_last); });
    if (!status.ok()) run_.fail("meeting the other processes", status);
    while (run_.wait_for(1, [&] { return is_over(number); })) {
      if (is_over(number)) return true;
      const Clock::time_point now = Clock::now();
      // Rank 0 knows which process is missing. So while rank 0 runs, it reports the error first.
      if (now >= deadline) fail_late(now < deadline + length);
    }
    return false;
  }

  bool is_over(uint64_t number) const { return over_.load(std::memory_order_acquire) > number; }
  std::string name_of(size_t rank) const {
    return "rank " + std::to_string(rank) + " at " + launch_.places[rank].text();
  }

  void come(uint64_t number, bool is_last) {
    number_ = number;
    is_last_ = is_last;
    if (launch_.rank != 0) return ask();
    is_here_ = true;
    texts_[0] = own_text_;
    end_if_complete();
  }

  // --- Other ranks ---

  void ask() {
    const std::string host = "tern://" + launch_.places[0].text() + "/0";
    tern::Status status;
    if (!session_ || has_session_ended_) {
      auto session = endpoint_->create_session(host);
      status = session.status();
      if (session.ok()) session_ = *session;
      has_session_ended_ = !session.ok();
    }
    const Arrival arrival = {launch_.rank, launch_.ranks(), flags_.size()};
    const std::string words = flags_ + own_text_;
    tern::MsgBuf request = endpoint_->alloc_msgbuf(sizeof(arrival) + words.size());
    if (!request) status = {tern::Code::kNoMemory, "there is no memory for a message"};
    if (status.ok()) {
      std::memcpy(request.bytes().data(), &arrival, sizeof(arrival));
      std::memcpy(request.bytes().data() + sizeof(arrival), words.data(), words.size());
      status = endpoint_
                   ->enqueue_request(*session_, kRequestType, std::move(request), endpoint_->alloc_msgbuf(0),
                                     [this](tern::Completion& done) { on_answer(done); })
                   .status();
    }
    if (!status.ok()) on_failure(status);
  }
  void on_answer(const tern::Completion& done) {
    if (done.status.ok()) return over_.store(number_ + 1, std::memory_order_release);
    const char* why = nullptr;
    if (done.app_code == kOtherFlags) why = "it was started with other flags; give all processes the same";
    if (done.app_code == kOtherRanks) why = "it expects another number of processes; give all processes the same hosts";
    if (done.app_code == kSameRank) why = "another process has this one's rank; give each its own rank";
    if (why == nullptr) return on_failure(done.status);  // also if rank 0 has a Nexus, but no endpoint yet
    run_.fail(name_of(0) + " refuses this process", {tern::Code::kRefused, why});
  }
  /// Rank 0 may start later than this process. After the last meeting, it may end before its answer has arrived.
  void on_failure(tern::Status status) {
    if (is_last_) return over_.store(number_ + 1, std::memory_order_release);
    if (number_ != 0) return run_.fail(name_of(0) + " has gone", status);
    reason_ = status;
    if (session_) (void)endpoint_->destroy_session(*session_);  // the session may have ended already
    has_session_ended_ = true;
    const auto later = endpoint_->after(kTryAgain, [this] { ask(); });
    if (!later) run_.fail("a timer", later.status());
  }

  // --- Rank 0 ---

  void on_arrival(tern::Request request) {
    Arrival arrival = {};
    const auto bytes = request.bytes();
    if (bytes.size() < sizeof(arrival)) return request.fail(kOtherFlags);
    std::memcpy(&arrival, bytes.data(), sizeof(arrival));
    const std::string_view words(reinterpret_cast<const char*>(bytes.data()) + sizeof(arrival),
                                 bytes.size() - sizeof(arrival));
    const bool has_same_flags = arrival.flags_bytes == flags_.size() && words.substr(0, flags_.size()) == flags_;
    if (arrival.ranks != launch_.ranks() || arrival.rank >= launch_.ranks()) return request.fail(kOtherRanks);
    if (!has_same_flags) return request.fail(kOtherFlags);
    if (arrival.rank == 0) return request.fail(kSameRank);
    Guest& guest = guests_[arrival.rank];
    if (guest.session && !(*guest.session == request.session())) return request.fail(kSameRank);
    guest.session = request.session();
    texts_[arrival.rank] = words.substr(flags_.size());
    guest.waiting.emplace(std::move(request));
    end_if_complete();
  }
  void end_if_complete() {
    if (!is_here_) return;
    for (size_t rank = 1; rank < guests_.size(); ++rank) {
      if (!guests_[rank].waiting) return;
    }
    is_here_ = false;
    for (Guest& guest : guests_) {
      if (guest.waiting) std::exchange(guest.waiting, std::nullopt)->respond();
    }
    over_.store(number_ + 1, std::memory_order_release);
  }
  void on_guest_event(const tern::SessionEvent& event) {
    if (event.state != tern::SessionState::kEnded) return;
    for (size_t rank = 1; rank < guests_.size(); ++rank) {
      Guest& guest = guests_[rank];
      if (!guest.session || !(*guest.session == event.session)) continue;
      guest = {};
      left_.fetch_add(1, std::memory_order_release);
      const bool may_leave = is_last_ && !is_here_;
      if (!may_leave) run_.fail(name_of(rank) + " has gone", event.status);
    }
  }

  /// Main thread. Only rank 0, in its own thread, knows which process has not come. `trusts_rank_0`: rank 0 will report
  /// it.
  void fail_late(bool trusts_rank_0) {
    if (launch_.rank == 0) {
      (void)endpoint_->post([this] {
        for (size_t rank = 1; is_here_ && rank < guests_.size(); ++rank) {
          if (!guests_[rank].waiting) return run_.fail(name_of(rank) + " has not arrived", kTooLate);
        }
      });
    } else {
      (void)endpoint_->post([this, trusts_rank_0] {
        if (is_over(number_)) return;
        if (trusts_rank_0 && session_ && endpoint_->is_open(*session_)) return;
        const bool has_reason = number_ == 0 && !reason_.ok();
        run_.fail(has_reason ? name_of(0) + " cannot be reached" : name_of(0) + " or another process has not arrived",
                  has_reason ? reason_ : kTooLate);
      });
    }
  }
  static constexpr tern::Status kTooLate{tern::Code::kPeerUnreachable,
                                         "it did not start within --start_seconds, or has stopped; look at its output, "
                                         "and check that UDP passes between the hosts"};

  Run& run_;
  const Launch& launch_;
  const double start_seconds_max_;
  std::string flags_;
  tern::Endpoint* endpoint_ = nullptr;
  uint64_t held_ = 0;                     ///< main thread
  std::string own_text_;                  ///< written by the main thread before it posts
  uint64_t number_ = 0;                   ///< number of the meeting that this process has reached
  std::optional<tern::Session> session_;  ///< with rank 0
  bool has_session_ended_ = false;
  tern::Status reason_;             ///< why rank 0 could not be reached
  bool is_last_ = false;            ///< this meeting is the last one
  bool is_here_ = false;            ///< rank 0: it has reached the meeting itself
  std::vector<Guest> guests_;       ///< rank 0: by rank
  std::vector<std::string> texts_;  ///< rank 0: texts of the last meeting, by rank
  std::atomic<uint64_t> over_{0};   ///< number of meetings that have ended
  std::atomic<uint64_t> left_{0};   ///< rank 0: number of processes that have ended their session
};

}  // namespace programs
