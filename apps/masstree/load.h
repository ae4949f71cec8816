// A client thread of the index server: a window of operations, and a check of every answer. Owned by its endpoint's
// thread, which calls what does not say otherwise. Does not know its transport, nor whether it is simulated.
//   kIdle -> kTakingOver -> kIdle -> (kPlain | kScansInWorkers | ... -> kIdle)... -> kReadingBack -> kIdle
// An operation rests when it ends in kIdle, or has nothing more to do in its phase. When all rest, the phase has ended.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tern/endpoint.h>
#include <tern/environment.h>

#include "../common/latencies.h"
#include "keys.h"
#include "model.h"
#include "protocol.h"

namespace ordered {

enum class Phase : uint8_t {
  kIdle,
  kTakingOver,       ///< reads each key that it writes: what the index has
  kPlain,            ///< GETs and PUTs
  kScansInWorkers,   ///< and SCANs
  kScansInLoops,     ///< and SCANs, which the server's event loops run
  kNothingInWorker,  ///< requests without work, one at a time
  kNothingInLoop,
  kReadingBack,  ///< reads each key that it writes, when no PUT is under way
};
constexpr size_t kPhases = 8;

/// A server that runs answers in a millisecond; busy machines take longer.
constexpr auto kConnectTimeout = std::chrono::seconds(4);

struct LoadOptions {
  std::string server;  ///< URI of its endpoint
  size_t writers = 1;  ///< loads that share the model; position p is written by the (p % writers)-th
  size_t window = 16;  ///< operations under way
  double put_share = 0;
  double insert_share = 0;  ///< of the PUTs
  double scan_share = 0;    ///< of what is no PUT
  uint32_t scan_keys = 128;
  uint64_t seed = 1;
};

/// What was done in one phase, without what began or ended outside of it.
struct PhaseReport {
  programs::Latencies gets, puts, scans, nothings;
  double seconds = 0;
  uint64_t refused_overloaded = 0;  ///< SCANs; they are sent again
  uint64_t refused_full = 0;        ///< inserts

  /// Of another thread, at the same time.
  void add(const PhaseReport& other) {
    gets.add(other.gets);
    puts.add(other.puts);
    scans.add(other.scans);
    nothings.add(other.nothings);
    seconds = std::max(seconds, other.seconds);
    refused_overloaded += other.refused_overloaded;
    refused_full += other.refused_full;
  }
};

class Load {
 public:
  /// All arguments outlive the endpoint, and this outlives it too.
  Load(Model& model, tern::Environment& environment, LoadOptions options, size_t writer)
      : model_(model),
        environment_(environment),
        options_(std::move(options)),
        writer_(writer),
        random_(options_.seed * 1000 + writer),
        next_insert_(writer),
        ops_(options_.window),
        reports_(kPhases) {}
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  tern::Status begin(tern::Endpoint& endpoint) {
    endpoint_ = &endpoint;
    const tern::SessionOptions session_options = {.window = static_cast<uint8_t>(std::min<size_t>(ops_.size(), 64)),
                                                  .connect_timeout = kConnectTimeout};
    auto session = endpoint.create_session(options_.server, session_options);
    if (!session.ok()) return session.status();
    session_ = *session;
    for (Op& op : ops_) {
      op.request = endpoint.alloc_msgbuf(kRequestBytesMax);
      op.response = endpoint.alloc_msgbuf(kAnswerBytesMax);
      if (!op.request || !op.response) return {tern::Code::kNoMemory, "there is no memory for the messages"};
    }
    return {};
  }

  /// When no operation is under way.
  void begin_phase(Phase phase) {
    phase_ = phase;
    phase_begun_ = environment_.now();
    cursor_ = writer_;
    busy_ = phase == Phase::kNothingInWorker || phase == Phase::kNothingInLoop ? 1 : ops_.size();
    for (size_t i = 0, all = busy_; i < all; i++) next(i);
  }
  /// No operation begins any more. Does nothing if the phase has ended by itself.
  void end_phase() {
    if (phase_ == Phase::kIdle) return;
    reports_[index_of(phase_)].seconds += std::chrono::duration<double>(environment_.now() - phase_begun_).count();
    phase_ = Phase::kIdle;
  }
  /// Phases after which no operation is under way any more. Any thread.
  uint64_t ended() const { return ended_; }
  bool has_failed() const { return has_failed_; }  ///< any thread
  /// Between phases, or failed: what is wrong. Empty: nothing. Any thread.
  const std::string& problem() const { return problem_; }
  /// Between phases. Any thread.
  const PhaseReport& report(Phase phase) const { return reports_[index_of(phase)]; }
  uint64_t checked() const { return checked_; }      ///< answers, likewise
  uint64_t read_back() const { return read_back_; }  ///< keys, likewise

 private:
  struct Op {
    RequestType type = kGet;
    Phase phase = Phase::kIdle;  ///< in which it was issued
    size_t position = 0;
    uint32_t floor = 0;    ///< kGet: of its key, when it began
    uint32_t version = 0;  ///< kPut
    Model::ScanBegin scan;
    tern::Duration begun{};
    tern::MsgBuf request, response;  ///< here while nothing is in flight
  };
  static constexpr size_t index_of(Phase phase) { return static_cast<size_t>(phase); }

  // ---- Which operation is next ----

  void next(size_t i) {
    Op& op = ops_[i];
    op.phase = phase_;
    switch (phase_) {
      case Phase::kIdle:
        return rest();
      case Phase::kTakingOver:
      case Phase::kReadingBack:
        if (cursor_ >= model_.size()) return rest();
        get(op, std::exchange(cursor_, cursor_ + options_.writers));
        break;
      case Phase::kNothingInWorker:
      case Phase::kNothingInLoop:
        op.type = phase_ == Phase::kNothingInWorker ? kNothing : kNothingHere;
        write(op, 0);
        break;
      case Phase::kPlain:
      case Phase::kScansInWorkers:
      case Phase::kScansInLoops:
        draw(op);
    }
    issue(i);
  }
  void draw(Op& op) {
    if (random_.is_one_of(options_.put_share)) {
      if (const auto position = position_to_write()) return put(op, *position);
    }
    size_t position = random_.below(model_.size());
    while (!model_.is_there(position)) position = position + 1 < model_.size() ? position + 1 : 0;
    if (phase_ == Phase::kPlain || !random_.is_one_of(options_.scan_share)) return get(op, position);
    op.type = phase_ == Phase::kScansInWorkers ? kScan : kScanHere;
    op.position = position;
    model_.begin_scan(op.scan, position, options_.scan_keys);
    write(op, kScanBytes).write(model_.key(position)).write(options_.scan_keys);
  }
  /// A key of its own of which no PUT is under way. Nothing: a few tries found none.
  std::optional<size_t> position_to_write() {
    if (random_.is_one_of(options_.insert_share)) {
      while (next_insert_ < model_.size() && (model_.is_there(next_insert_) || model_.is_pending(next_insert_))) {
        next_insert_ += options_.writers;
      }
      if (next_insert_ < model_.size()) return std::exchange(next_insert_, next_insert_ + options_.writers);
    }
    for (int tries = 0; tries < 8; tries++) {
      const size_t position =
          random_.below((model_.size() - writer_ - 1) / options_.writers + 1) * options_.writers + writer_;
      if (model_.is_there(position) && !model_.is_pending(position)) return position;
    }
    return std::nullopt;
  }
  void get(Op& op, size_t position) {
    op.type = kGet;
    op.position = position;
    op.floor = model_.floor(position);
    write(op, sizeof(uint64_t)).write(model_.key(position));
  }
  void put(Op& op, size_t position) {
    op.type = kPut;
    op.position = position;
    op.version = model_.issue(position);
    write(op, kPutBytes).write(model_.key(position)).write(value_of(model_.key(position), op.version));
  }
  static programs::Writer write(Op& op, size_t bytes) {
    (void)op.request.resize(bytes);  // no more than it was made for
    return programs::Writer(op.request.bytes());
  }
  void rest() {
    if (--busy_ > 0) return;
    end_phase();
    ended_++;
  }

  // ---- One attempt ----

  void issue(size_t i) {
    Op& op = ops_[i];
    op.begun = environment_.now();
    auto call = endpoint_->enqueue_request(session_, op.type, std::move(op.request), std::move(op.response),
                                           [this, i](tern::Completion& done) { on_done(i, done); });
    if (!call.ok()) on_failure(i, call.status(), 0);
  }
  void on_done(size_t i, tern::Completion& done) {
    Op& op = ops_[i];
    op.request = std::move(done.request);
    op.response = std::move(done.response);
    if (!done.status.ok()) return on_failure(i, done.status, done.app_code);
    if (op.phase == phase_) latencies_of(op).add(environment_.now() - op.begun);
    std::string problem = check(op, std::as_const(op.response).bytes());
    if (!problem.empty()) return fail(std::move(problem));
    checked_++;
    next(i);
  }
  void on_failure(size_t i, tern::Status status, uint16_t app_code) {
    using tern::Code;
    Op& op = ops_[i];
    if (status.code() == Code::kCancelled) return;  // the endpoint goes away
    if (status.code() == Code::kQueueFull || status.code() == Code::kNoMemory ||
        (status.code() == Code::kRefused && app_code == kNoMemory)) {
      reports_[index_of(op.phase)].refused_overloaded++;
      const auto timer = endpoint_->after(std::chrono::microseconds(100), [this, i] { issue(i); });
      return timer.ok() ? void() : fail("no timer: " + std::string(timer.status().message()));
    }
    if (op.type == kPut && status.code() == Code::kRefused && app_code == kIsFull && !model_.is_there(op.position)) {
      reports_[index_of(op.phase)].refused_full++;
      model_.refused(op.position);
      return next(i);
    }
    fail(app_code == kMalformed ? "the server takes a request for malformed"
                                : "a request has failed: " + std::string(status.message()));
  }

  /// What is wrong with the answer. Empty: nothing.
  std::string check(Op& op, programs::Bytes answer) {
    switch (op.type) {
      case kGet: {
        const auto value = programs::parse_integer<uint64_t>(answer);
        if (!value && !answer.empty()) return not_ours();
        if (op.phase == Phase::kTakingOver) return model_.take_over(op.position, value);
        if (op.phase == Phase::kReadingBack) read_back_++;
        return model_.read(op.position, op.floor, value);
      }
      case kPut:
        if (!answer.empty()) return not_ours();
        model_.acknowledged(op.position, op.version);
        return {};
      case kScan:
      case kScanHere: {
        const auto scanned = parse_scan_answer(answer);
        return scanned ? model_.check_scan(op.scan, *scanned) : not_ours();
      }
      default:
        return answer.empty() ? "" : not_ours();
    }
  }
  static std::string not_ours() { return "what answers is not this version of the index server"; }
  programs::Latencies& latencies_of(const Op& op) {
    PhaseReport& report = reports_[index_of(op.phase)];
    if (op.type == kGet) return report.gets;
    if (op.type == kPut) return report.puts;
    return op.type == kScan || op.type == kScanHere ? report.scans : report.nothings;
  }
  void fail(std::string problem) {
    if (has_failed_) return;
    problem_ = std::move(problem);
    has_failed_ = true;
  }

  Model& model_;
  tern::Environment& environment_;
  const LoadOptions options_;
  const size_t writer_;
  Random random_;
  size_t next_insert_;  ///< from here on it looks for keys to insert
  size_t cursor_ = 0;   ///< kTakingOver, kReadingBack: the next position
  tern::Endpoint* endpoint_ = nullptr;
  tern::Session session_;
  Phase phase_ = Phase::kIdle;
  tern::Duration phase_begun_{};
  std::vector<Op> ops_;
  size_t busy_ = 0;                   ///< operations that do not rest
  std::vector<PhaseReport> reports_;  ///< by phase
  uint64_t checked_ = 0, read_back_ = 0;
  std::string problem_;
  std::atomic<uint64_t> ended_{0};
  std::atomic<bool> has_failed_{false};
};

}  // namespace ordered
