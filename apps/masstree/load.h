// A client thread of the index server: a window of operations, and a check of every answer. Its endpoint's thread owns
// it, and calls all members whose comment does not say otherwise. It does not depend on the transport, nor on whether
// the network is simulated.
//   kIdle -> kTakingOver -> kIdle -> (kPlain | kScansInWorkers | ... -> kIdle)... -> kReadingBack -> kIdle
// An operation rests if it ends in kIdle, or has no more work in its phase. The phase has ended when all operations
// rest.
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
  kTakingOver,       ///< reads each key that this load writes, to learn the index's content
  kPlain,            ///< GETs and PUTs
  kScansInWorkers,   ///< GETs, PUTs and SCANs
  kScansInLoops,     ///< GETs, PUTs and SCANs; the server's event loops run the SCANs
  kNothingInWorker,  ///< requests without work, one at a time, which run in workers
  kNothingInLoop,
  kReadingBack,  ///< reads each key that this load writes, while no PUT is under way
};
constexpr size_t kPhases = 8;

/// A running server answers in a millisecond, but a busy machine may take longer.
constexpr auto kConnectTimeout = std::chrono::seconds(4);

struct LoadOptions {
  std::string server;  ///< URI of its endpoint
  size_t writers = 1;  ///< loads that share the model; the (p % writers)-th load writes position p
  size_t window = 16;  ///< operations under way
  double put_share = 0;
  double insert_share = 0;  ///< share of the PUTs
  double scan_share = 0;    ///< share of the operations that are not PUTs
  uint32_t scan_keys = 128;
  uint64_t seed = 1;
};

/// The results of one phase, without operations that began or ended outside of it.
struct PhaseReport {
  programs::Latencies gets, puts, scans, nothings;
  double seconds = 0;
  uint64_t refused_overloaded = 0;  ///< refused SCANs; they are sent again
  uint64_t refused_full = 0;        ///< refused inserts

  /// Adds the results of another thread in the same phase.
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
  /// All arguments must outlive the endpoint, and so must this object.
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

  /// Must be called when no operation is under way.
  void begin_phase(Phase phase) {
    phase_ = phase;
    phase_begun_ = environment_.now();
    cursor_ = writer_;
    busy_ = phase == Phase::kNothingInWorker || phase == Phase::kNothingInLoop ? 1 : ops_.size();
    for (size_t i = 0, all = busy_; i < all; i++) next(i);
  }
  /// No operation begins after this call. It does nothing if the phase has ended by itself.
  void end_phase() {
    if (phase_ == Phase::kIdle) return;
    reports_[index_of(phase_)].seconds += std::chrono::duration<double>(environment_.now() - phase_begun_).count();
    phase_ = Phase::kIdle;
  }
  /// Number of phases that have ended, without an operation under way. Any thread.
  uint64_t ended() const { return ended_; }
  bool has_failed() const { return has_failed_; }  ///< any thread
  /// The error message; empty: no error. Must be called between phases, or after a failure. Any thread.
  const std::string& problem() const { return problem_; }
  /// Must be called between phases. Any thread.
  const PhaseReport& report(Phase phase) const { return reports_[index_of(phase)]; }
  uint64_t checked() const { return checked_; }      ///< number of checked answers; between phases, any thread
  uint64_t read_back() const { return read_back_; }  ///< number of keys read back; between phases, any thread

 private:
  struct Op {
    RequestType type = kGet;
    Phase phase = Phase::kIdle;  ///< the phase in which it was issued
    size_t position = 0;
    uint32_t floor = 0;    ///< kGet: the floor of its key when the operation began
    uint32_t version = 0;  ///< kPut
    Model::ScanBegin scan;
    tern::Duration begun{};
    tern::MsgBuf request, response;  ///< empty while the request is in flight
  };
  static constexpr size_t index_of(Phase phase) { return static_cast<size_t>(phase); }

  // ---- The choice of the next operation ----

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
  /// One of this load's keys that has no PUT under way. nullopt if a few tries found no such key.
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
    (void)op.request.resize(bytes);  // never larger than the buffer's capacity
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
    if (status.code() == Code::kCancelled) return;  // the endpoint closes
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
    fail(app_code == kMalformed ? "the server considers a request malformed"
                                : "a request has failed: " + std::string(status.message()));
  }

  /// Returns the error in the answer; empty: the answer is right.
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
  static std::string not_ours() { return "the server is not an index server of this version"; }
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
  size_t next_insert_;  ///< the position at which the search for keys to insert starts
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
