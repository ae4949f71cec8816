// kv's load generator: client threads, each with an endpoint, a window of operations, and a Checker for all values that
// it reads.
//   kConnecting -> kLoading:   the client asks the server for its partitions
//   kLoading -> kRunning:      it has read and written each key that it owns; it waits until all threads have
//   kRunning -> kReadingBack:  the main thread sets this stage, and the client notices it when an operation ends; it
//                              reads each of its keys once more, and ends
// An operation ends when it is answered, or when the store is full. Every other outcome is counted, and the operation
// is issued again after a pause. A PUT may be repeated after any outcome: see protocol.h.
#pragma once

#include <tern/endpoint.h>
#include <tern/rpc.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "load.h"
#include "workload.h"

namespace kv {

class Client {
 public:
  /// `writer` is the index of this thread among the writers; it determines the keys that the thread owns.
  Client(const LoadOptions& options, LoadControl& control, uint64_t writer)
      : options_(options),
        control_(control),
        writer_(writer),
        random_(mix(options.seed) + writer),
        chooser_(options.keys, options.skew),
        checker_(options.keys),
        ops_(options.window) {}

  /// Starts in the client's thread, before the loop of `endpoint`. The client has ended when that loop ends.
  void begin(tern::Endpoint& endpoint) {
    endpoint_ = &endpoint;
    const size_t value_bytes = options_.sizes.max();
    for (Op& op : ops_) {
      op.request = endpoint.alloc_msgbuf(std::max(kPutHeadBytes + value_bytes, options_.multi_get_keys * 8));
      op.response = endpoint.alloc_msgbuf(
          std::max(kGetHeadBytes + value_bytes, options_.multi_get_keys * (kRecordHeadBytes + value_bytes)));
      if (!op.request || !op.response) return fail("there is no memory for the messages; try a smaller --window");
    }
    if (!open(0)) return;
    ops_[0].type = kAbout;
    if (!ops_[0].request.resize(0)) return fail("a request buffer is too small");
    issue(0);
  }
  const ClientReport& report() const { return report_; }
  bool is_done() const { return stage_ == Stage::kReadingBack && busy_ == 0; }

 private:
  struct Key {
    uint64_t name;
    uint64_t floor;  ///< lower bound of the versions that a read may return, taken when the operation began
  };
  struct Op {
    RequestType type = kAbout;
    uint32_t partition = 0;
    uint32_t attempts = 0;
    bool is_measured = false;
    std::vector<Key> keys;
    uint64_t version = 0;  ///< the version that a kPut writes
    tern::Session session;
    Clock::time_point issued;
    tern::MsgBuf request, response;  ///< empty while an attempt is in flight
  };
  struct Link {
    tern::Session session;
    bool is_down = false;
    Clock::time_point down_since;
  };

  // ---- The choice of the next operation ----

  /// Ends the measurement if its time is over.
  void notice_end() {
    if (stage_ != Stage::kRunning || control_.stage != Stage::kReadingBack) return;
    stage_ = Stage::kReadingBack;
    cursor_ = writer_;
    report_.seconds = std::chrono::duration<double>(Clock::now() - running_since_).count();
  }

  void next(size_t index) {
    notice_end();
    Op& op = ops_[index];
    op.attempts = 0;
    op.is_measured = stage_ == Stage::kRunning;
    op.keys.clear();
    if (stage_ != Stage::kRunning) {
      if (cursor_ >= options_.keys) return rest();
      add_key(op, kGet, cursor_);
      cursor_ += options_.writers;
      return send_keys(index);
    }
    const uint64_t key = chooser_.draw(random_);
    if (unit(random_) >= options_.get_share) {
      const uint64_t own = key - key % options_.writers + writer_;
      add_key(op, kPut, own < options_.keys ? own : own - options_.writers);
      return send_put(index);
    }
    const bool is_multi = unit(random_) < options_.multi_get_share;
    add_key(op, is_multi ? kMultiGet : kGet, key);
    while (is_multi && op.keys.size() < options_.multi_get_keys) {
      const uint64_t other = chooser_.draw(random_);
      if (partition_of(other, partitions()) == op.partition) add_key(op, kMultiGet, other);
    }
    send_keys(index);
  }

  void add_key(Op& op, RequestType type, uint64_t key) {
    op.type = type;
    op.partition = partition_of(key, partitions());
    op.keys.push_back({key, checker_.floor(key)});
  }
  void send_keys(size_t index) {
    Op& op = ops_[index];
    if (!op.request.resize(op.keys.size() * sizeof(uint64_t))) return fail("a request buffer is too small");
    Writer writer(op.request.bytes());
    for (const Key& key : op.keys) writer.write(key.name);
    issue(index);
  }
  void send_put(size_t index) {
    Op& op = ops_[index];
    const uint64_t key = op.keys[0].name;
    op.version = checker_.issue(key);
    if (!op.request.resize(kPutHeadBytes + options_.sizes.draw(random_))) return fail("a request buffer is too small");
    Writer(op.request.bytes()).write(key).write(op.version);
    fill_value(op.request.bytes().subspan(kPutHeadBytes), key, op.version);
    issue(index);
  }

  /// Ends an operation for this stage.
  void rest() {
    if (--busy_ > 0) return;
    if (stage_ == Stage::kReadingBack) return endpoint_->stop();
    ++control_.loaded;
    wait_for_running();
  }
  void wait_for_running() {
    if (control_.stage == Stage::kLoading) return after(std::chrono::milliseconds(1), [this] { wait_for_running(); });
    stage_ = Stage::kRunning;
    running_since_ = Clock::now();
    begin_all();
  }
  void begin_all() {
    busy_ = ops_.size();
    for (size_t index = 0; index < ops_.size(); ++index) next(index);
  }

  // ---- One attempt ----

  void issue(size_t index) {
    Op& op = ops_[index];
    op.session = links_[op.partition].session;
    op.issued = Clock::now();
    // The run must be able to end even if a deadline cannot be met. Therefore only the measured stage has deadlines.
    const bool has_deadline = op.is_measured && control_.stage == Stage::kRunning;
    const tern::CallOptions call_options = {.deadline = has_deadline ? options_.deadline : tern::Duration::max()};
    auto call = endpoint_->enqueue_request(
        op.session, op.type, std::move(op.request), std::move(op.response),
        [this, index](tern::Completion& done) { on_done(index, done); }, call_options);
    if (!call.ok()) on_failure(index, call.status(), 0);
  }

  void on_done(size_t index, tern::Completion& done) {
    Op& op = ops_[index];
    op.request = std::move(done.request);
    op.response = std::move(done.response);
    if (done.status.ok()) {
      Link& link = links_[op.partition];
      if (std::exchange(link.is_down, false)) ++report_.reconnects;
      on_answer(index, std::as_const(op.response).bytes());
    } else {
      on_failure(index, done.status, done.app_code);
    }
  }

  void on_answer(size_t index, Bytes answer) {
    Op& op = ops_[index];
    notice_end();
    if (stage_ == Stage::kRunning) {
      const auto took = std::chrono::nanoseconds(Clock::now() - op.issued).count();
      report_.by_type[op.type].add(static_cast<uint32_t>(std::min<int64_t>(took, UINT32_MAX)));
    }
    std::string problem = op.type == kAbout ? on_about(answer)
                          : op.type == kPut ? check_put(op, answer)
                                            : check_get(op, answer);
    if (!problem.empty()) return fail(std::move(problem));
    if (op.type == kAbout) return begin_all();
    if (op.type == kGet && stage_ == Stage::kLoading) {
      op.type = kPut;
      op.attempts = 0;
      return send_put(index);
    }
    next(index);
  }

  // Each of these functions returns an error message; empty: the answer is right.

  std::string on_about(Bytes answer) {
    const auto count = parse_integer<uint32_t>(answer);
    if (!count || *count == 0 || *count > UINT16_MAX) return not_kv();
    for (uint32_t partition = 1; partition < *count; ++partition) {
      if (!open(partition)) break;  // open() has reported the error
    }
    stage_ = Stage::kLoading;
    cursor_ = writer_;
    return {};
  }
  std::string check_put(const Op& op, Bytes answer) {
    const auto stored = parse_integer<uint64_t>(answer);
    return stored ? checker_.acknowledged(op.keys[0].name, op.version, *stored) : not_kv();
  }
  std::string check_get(const Op& op, Bytes answer) {
    Reader reader(answer);
    for (const Key& key : op.keys) {
      const auto record = op.type == kGet ? parse_record(answer) : read_record(reader);
      if (!record) return not_kv();
      std::string problem = checker_.read(key.name, key.floor, *record);
      if (!problem.empty()) return problem;
      if (record->version != 0) ++report_.values_checked;
      if (stage_ == Stage::kLoading) checker_.take_over(key.name, record->version);
      if (stage_ == Stage::kReadingBack && !op.is_measured) {
        ++(record->version != 0 ? report_.keys_read_back : report_.keys_not_stored);
      }
    }
    if (op.type == kMultiGet && !reader.rest().empty()) return not_kv();
    return {};
  }
  std::string not_kv() const { return "the program at " + options_.server + " is not a kv server of this version"; }

  // ---- Attempts that fail ----

  void on_failure(size_t index, tern::Status status, uint16_t app_code) {
    using tern::Code;
    Op& op = ops_[index];
    const bool is_refused = status.code() == Code::kRefused;
    // An endpoint that does not exist yet refuses with code 0, which is not kv's. The client treats its session as
    // gone.
    const bool is_session_gone = status.code() == Code::kPeerUnreachable || status.code() == Code::kSessionReset ||
                                 (is_refused && app_code == 0);
    if (status.code() == Code::kCancelled) return;  // the endpoint closes
    if (stage_ == Stage::kConnecting && app_code != kOverloaded) {
      return fail("no kv server at " + options_.server + ": " + std::string(status.message()));
    }
    if (is_refused && app_code == kStoreFull) {
      ++report_.refused_full;
      return after(pause(op.attempts), [this, index] { next(index); });
    }
    if ((is_refused && app_code == kOverloaded) || status.code() == Code::kNoMemory) {
      ++report_.refused_overloaded;
    } else if (status.code() == Code::kDeadline) {
      ++report_.expired;
    } else if (is_session_gone || status.code() == Code::kNoResponse) {
      ++report_.lost;
      if (is_session_gone && !reopen(op)) return;
    } else {
      const char* reason = app_code == kMalformed     ? "it considers the request malformed"
                           : app_code == kStoreFailed ? "it cannot use its store"
                                                      : nullptr;
      return fail("the server at " + options_.server +
                  " does not answer as it should: " + (reason != nullptr ? reason : std::string(status.message())));
    }
    after(pause(op.attempts++), [this, index] { issue(index); });
  }

  bool open(uint32_t partition) {
    // After a loss the client tries again soon, so its timeout is short. The first attempt is the only one, and a busy
    // machine is slow, so its timeout is long.
    const auto timeout = std::chrono::milliseconds(stage_ == Stage::kConnecting ? 5000 : 500);
    const tern::SessionOptions session_options = {.window = static_cast<uint8_t>(std::min<size_t>(options_.window, 64)),
                                                  .connect_timeout = timeout};
    auto session = endpoint_->create_session(options_.server + "/" + std::to_string(partition), session_options);
    if (!session.ok()) {
      fail("no session with " + options_.server + ": " + std::string(session.status().message()));
      return false;
    }
    links_.resize(std::max<size_t>(links_.size(), partition + 1));
    links_[partition].session = *session;
    return true;
  }
  /// Replaces the session of a failed attempt, if this is the first attempt of that session to report the loss. Returns
  /// false after --reconnect_seconds without a server.
  bool reopen(const Op& op) {
    Link& link = links_[op.partition];
    if (!std::exchange(link.is_down, true)) link.down_since = Clock::now();
    if (Clock::now() - link.down_since > options_.reconnect) {
      fail("the server at " + options_.server + " has gone and did not come back within --reconnect_seconds");
      return false;
    }
    if (op.session != link.session) return true;
    const tern::Status ignored = endpoint_->destroy_session(op.session);  // in most cases the session has already ended
    (void)ignored;
    return open(op.partition);
  }

  /// 0.1 ms, doubled for each attempt up to 13 ms. Half of it is random, so that clients do not retry at the same
  /// moment.
  tern::Duration pause(uint32_t attempts) {
    const auto most = std::chrono::microseconds(100) * (1u << std::min(attempts, 7u));
    return std::chrono::duration_cast<tern::Duration>(most * (0.5 + unit(random_) / 2));
  }
  template <class F>
  void after(tern::Duration delay, F then) {
    const auto timer = endpoint_->after(delay, std::move(then));
    if (!timer) fail("no timer: " + std::string(timer.status().message()));
  }
  void fail(std::string sentence) {
    control_.fail(std::move(sentence));
    endpoint_->stop();
  }
  uint32_t partitions() const { return static_cast<uint32_t>(links_.size()); }

  const LoadOptions& options_;
  LoadControl& control_;
  const uint64_t writer_;
  Random random_;
  KeyChooser chooser_;
  Checker checker_;
  tern::Endpoint* endpoint_ = nullptr;
  Stage stage_ = Stage::kConnecting;
  std::vector<Op> ops_;
  std::vector<Link> links_;  ///< by partition
  uint64_t cursor_ = 0;      ///< kLoading, kReadingBack: the next key
  size_t busy_ = 0;          ///< operations that have not ended in this stage
  Clock::time_point running_since_;
  ClientReport report_;
};

}  // namespace kv
