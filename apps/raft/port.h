// libraft's I/O interface (struct raft_io) over tern: messages between replicas as RPCs, storage, time and randomness.
// The endpoint's thread owns it. It does not depend on the replicated state.
//
// How libraft's messages become RPCs. libraft sends requests and results as messages of one kind; here a result is the
// response of its request's RPC. Only one append at a time is under way to each replica, because the RPCs of one
// session may overtake each other, and libraft does not support that. Entries that arrive meanwhile go into the next
// append. The port refuses a request for which there is no place (RAFT_NOCONNECTION), and libraft sends it again. Each
// call has a deadline. The port reopens a failed session with the next message.
//
// libraft is not reentrant. Its callbacks run in settle(), which follows each call of libraft.
//
// Time. libraft counts in the unit of raft_io::time(), and calls it a millisecond. Here it is a microsecond.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tern/endpoint.h>
#include <tern/environment.h>

#include "lease.h"
#include "libraft.h"
#include "message.h"
#include "storage.h"

namespace replicated {

/// The work of a replica's thread for a command: PortOptions::on_step.
enum class Step : uint8_t {
  kExecute,  ///< a client's request, at the leader
  kReceive,  ///< a message of another replica, and the response to it
  kAnswer,   ///< the response to a message, and its effects
  kSettle,   ///< work that no other thread or replica waits for, after answers and messages are sent
  kEcho,     ///< an RPC that is not replicated: the other steps are compared with it
};

struct PortOptions {
  uint64_t cluster = 0;
  uint64_t id = 0;
  std::string address;  ///< URI at which other replicas reach this replica
  tern::Duration election_timeout = std::chrono::seconds(1);
  tern::Duration heartbeat = std::chrono::milliseconds(100);
  tern::Duration snapshot_timeout = std::chrono::seconds(30);  ///< limit for a snapshot to arrive and be stored
  double clock_drift_max = 0.01;                               ///< see Lease
  /// Maximum total size of the entries of an append, unless one entry alone is longer. At most kAppendBytesMax.
  size_t append_bytes_max = kAppendBytesMax;
  /// Called before and after each step, to measure it or, in the simulator, to charge for it. May be null.
  std::function<void(Step, bool begins)> on_step;
  /// Called once for each reason why another replica refuses us although we continue. May be null.
  std::function<void(const std::string&)> complain;
};

/// The counters of a port. Owner's thread only.
struct PortCounters {
  uint64_t malformed = 0;  ///< messages that were dropped because they could not be parsed
  uint64_t refused = 0;    ///< messages of other clusters, replicas or lives
  uint64_t appends_sent = 0;
  uint64_t appends_received = 0;
  uint64_t snapshots_sent = 0;
  uint64_t snapshots_received = 0;
  uint64_t votes_withheld = 0;  ///< requests for votes that arrived too early after the start
  uint64_t rollbacks = 0;       ///< configurations that were rolled back because they were never committed
  uint64_t forgotten = 0;       ///< senders outside of the configuration that were removed to make room for others
};

class Port {
 public:
  /// All arguments must outlive the port. The port calls `settled` after each of its calls of libraft. `settled` must
  /// call settle(), and do the work that the new state requires. `is_late`: no other thread or replica waits for this
  /// thread now.
  Port(tern::Endpoint& endpoint, tern::Environment& environment, Storage& storage, PortOptions options,
       std::function<void(bool is_late)> settled);
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  raft_io* io() { return &io_; }
  /// Loads the stored state. Must be called once, before raft_init(). Returns an empty string, or the error message.
  [[nodiscard]] std::string open();
  /// True if the storage is empty: this replica has never been in a cluster.
  bool is_pristine() const { return is_pristine_; }
  tern::Status add_handlers();
  /// Restores the state that libraft does not restore itself. Must be called after raft_start().
  void on_started(raft* instance);

  /// Runs libraft's callbacks that others wait for, or all of them if `now` is set. The other callbacks run soon: a
  /// leader stores its own entries after it has sent them to its followers, and memory of sent messages is freed. If
  /// the storage's sync() takes time, the sync is also delayed; one sync then covers everything that arrives until
  /// then.
  void settle(bool now = false);
  /// After this call no function of another thread uses the endpoint. Must be called before the endpoint's destructor.
  void detach();

  /// Asks the other replicas, until each has answered, whether they know another life of our id, then calls `done`.
  /// Must be called only by a pristine replica that begins a new cluster (replica.h).
  void meet(const std::vector<std::pair<uint64_t, std::string>>& others, std::function<void()> done);

  /// A step lasts as long as this object. During a step time() does not advance.
  class StepScope {
   public:
    StepScope(Port& port, Step step) : port_(port), step_(step), has_moment_(step != Step::kEcho && !port.moment_) {
      if (port_.options_.on_step) port_.options_.on_step(step_, true);
      if (has_moment_) port_.begin_moment(step_);
    }
    ~StepScope() {
      if (has_moment_) port_.moment_.reset();
      if (port_.options_.on_step) port_.options_.on_step(step_, false);
    }
    StepScope(const StepScope&) = delete;
    StepScope& operator=(const StepScope&) = delete;

   private:
    Port& port_;
    const Step step_;
    const bool has_moment_;
  };

  Lease& lease() { return lease_; }
  /// The host's clock at this moment.
  tern::Duration now() { return environment_.now(); }
  /// libraft's clock. It never goes back. During a step it is the time of the step's beginning; for a leader's step, it
  /// is the time of the loop's turn. A step sends its messages later than this time, and a follower's step has received
  /// its message earlier than this time. So promises by this clock are safe (Lease).
  tern::Duration time() {
    if (!moment_) latest_ = std::max(latest_, now());
    return moment_ ? *moment_ : latest_;
  }
  /// Why this replica cannot continue: the storage's message, or that of a replica that has refused it. Empty: it can
  /// continue.
  const std::string& problem() const { return problem_; }
  const PortCounters& counters() const { return counters_; }

 private:
  struct Sent {
    raft_io_send* request = nullptr;
    raft_io_send_cb callback = nullptr;
    int status = 0;
  };
  struct Peer {
    std::string address;
    tern::Session session;
    bool has_session = false;
    Sent append_sent;    ///< libraft's callback for the append; null: no append is under way
    Sent snapshot_sent;  ///< libraft's callback for the snapshot; null: no snapshot is under way
    tern::CallId append_call, snapshot_call;
    tern::Duration append_expires{}, snapshot_expires{};  ///< when the append and the snapshot are cancelled
    uint32_t votes = 0;                                   ///< requests for votes that are under way
    bool is_met = true;                                   ///< false: meet() waits for it
    bool has_complained = false;                          ///< on_failure()
    tern::Duration retry_at{};                            ///< no session is opened before this time
    uint64_t life = 0;                                    ///< life of the replica with this id; 0: unknown
    uint64_t sent_until = 0;    ///< the append under way lacks the entries from this index on; 0: it is complete
    uint64_t append_until = 0;  ///< last index of this replica's last append
    std::optional<raft_append_entries> put_off;  ///< put_off_append()
    std::optional<tern::Request> append;         ///< its append, while this replica stores it
    std::optional<tern::Request> snapshot;       ///< its snapshot, while this replica stores it
  };
  struct Put {  ///< the snapshot that is being stored
    raft_io_snapshot_put* request = nullptr;
    raft_io_snapshot_put_cb callback = nullptr;
    uint64_t index = 0;
    unsigned trailing = 0;           ///< 0: the snapshot replaces the whole log
    raft_buffer* buffers = nullptr;  ///< libraft's, from raft_malloc()
    std::shared_ptr<const Snapshot> snapshot;
    std::optional<std::string> problem;  ///< the outcome; set when the storage has finished
  };
  struct Gate;  ///< access to the endpoint for another thread

  // ---- libraft's calls ----
  static Port& of(raft_io* io) { return *static_cast<Port*>(io->impl); }
  int load(raft_term* term, raft_id* vote, raft_snapshot** snapshot, raft_index* first, raft_entry** entries,
           size_t* count);
  int bootstrap(const raft_configuration* configuration);
  int send(raft_io_send* request, const raft_message* message, raft_io_send_cb callback);
  int append(raft_io_append* request, const raft_entry* entries, unsigned count, raft_io_append_cb callback);
  int put_snapshot(unsigned trailing, raft_io_snapshot_put* request, const raft_snapshot* snapshot,
                   raft_io_snapshot_put_cb callback);
  int get_snapshot(raft_io_snapshot_get* request, raft_io_snapshot_get_cb callback);
  int check(std::string problem);  ///< RAFT_IOERR if `problem` is not empty
  /// As Endpoint::after(). Without memory for a timer this replica cannot continue.
  template <class F>
  void run_later(tern::Duration delay, F function) {
    const tern::Code code = endpoint_.after(delay, std::move(function)).status().code();
    if (code == tern::Code::kNoMemory) (void)check("there is no memory for a timer; start the replica again");
  }
  void close();

  // ---- calls to other replicas ----
  Peer& peer(uint64_t id, std::string_view address);
  bool is_voter(uint64_t id) const;
  /// The entry in libraft's configuration. Null if there is no entry, or if libraft does not run yet.
  raft_server* server(uint64_t id) const;
  /// A random number from `least` to below `most`, for an election's timer.
  int random_timeout(int least, int most);
  bool open_session(Peer& peer);
  int call(uint64_t id, Peer& peer, const raft_message& message, std::string_view configuration, const Sent& sent);
  void on_called(uint64_t id, uint16_t kind, uint64_t term, tern::Duration sent, tern::Completion& done);
  void on_answer(uint64_t id, uint16_t kind, uint64_t term, tern::Duration sent, Bytes answer);
  void on_failure(uint64_t id, Peer& peer, const tern::Completion& done);
  void say_hello(uint64_t id);
  void on_hello(uint64_t id, tern::Completion& done);
  Head head_to(uint64_t id) const;

  // ---- calls of other replicas ----
  void receive(tern::Request request);
  void receive_hello(tern::Request request);
  /// The peer that sends with this id, known or new. Null if there is no room for another peer.
  Peer* sender(uint64_t id);
  bool is_forgettable(uint64_t id, const Peer& peer) const;
  /// The sender has us as a voter, but we have no state: an earlier life of ours has taken part. This replica then
  /// stops.
  bool has_lost_memory(const Head& head);
  /// The reason to refuse this sender; nullopt if it is accepted.
  std::optional<Refusal> check_head(const Head& head);
  /// False if libraft must not see the message.
  bool is_deliverable(const raft_message& message);
  void deliver_as_voter(raft_message& message);
  bool prepare_append(const raft_append_entries& append);
  void roll_back_configuration();
  void answer(raft_message message);

  void begin_moment(Step step);
  void cancel_late();
  void tick();
  void settle_later();
  void late_turn();
  bool must_give_back() const;
  void skip_compacted(raft_append_entries& append) const;
  void put_off_commit(uint64_t from, raft_append_entries& append);
  void commit_late();
  bool put_off_append(uint64_t id, Peer& peer, const raft_append_entries& append, const Sent& sent);
  void send_put_off();
  void finish_put();
  void call_back(const Put& put, int status);
  void fix_progress();
  bool is_installing() const { return put_.request != nullptr && put_.trailing == 0; }
  uint64_t term_at(uint64_t index) const;
  uint64_t last_index() const;

  tern::Endpoint& endpoint_;
  tern::Environment& environment_;
  Storage& storage_;
  const PortOptions options_;
  const uint32_t election_us_;
  const std::function<void(bool)> settled_;
  raft_io io_ = {};
  raft* raft_ = nullptr;
  raft_io_tick_cb on_tick_ = nullptr;
  raft_io_recv_cb on_message_ = nullptr;
  uint64_t life_ = 0;
  std::optional<tern::Duration> moment_;  ///< time() during a step
  tern::Duration latest_{};               ///< the latest result of time()
  bool is_pristine_ = true;
  bool is_closed_ = false;
  Saved saved_;  ///< the stored state, between open() and load()
  std::shared_ptr<const Snapshot> snapshot_;
  tern::Duration votes_from_{};  ///< no vote is granted before this time
  std::map<uint64_t, Peer> peers_;
  std::function<void()> met_;

  struct Appended {
    raft_io_append* request;
    raft_io_append_cb callback;
  };
  struct Got {
    raft_io_snapshot_get* request;
    raft_io_snapshot_get_cb callback;
  };
  std::vector<Sent> sent_;          ///< callbacks that must run, like those in appended_ and got_
  std::vector<Appended> appended_;  ///< they run after the next sync
  std::vector<Got> got_;
  std::vector<Sent> running_sent_;  ///< callbacks that are running; kept to reuse their memory
  std::vector<Appended> running_appended_;
  Put put_;
  bool is_settling_ = false;
  bool has_cut_append_ = false;  ///< a Peer has a sent_until
  bool has_put_off_ = false;     ///< a Peer has a put_off
  uint64_t batch_until_ = 0;     ///< last index of the latest append with entries
  uint32_t batch_voters_ = 0;    ///< number of voters whose append up to batch_until_ was sent at once
  bool is_settled_later_ = false;
  std::optional<raft_append_entries> late_commit_;  ///< the commit of the latest append, postponed: put_off_commit()
  uint64_t late_commit_from_ = 0;                   ///< the sender of late_commit_
  std::shared_ptr<Gate> gate_;

  /// The request that is being delivered. A result of libraft answers it.
  struct {
    uint64_t from = 0;
    bool is_snapshot = false;
    tern::Request* request = nullptr;
  } delivering_;
  bool is_ending_snapshot_ = false;  ///< finish_put() is running: a result answers the snapshot's request

  Lease lease_;
  PortCounters counters_;
  std::string problem_;
};

}  // namespace replicated
