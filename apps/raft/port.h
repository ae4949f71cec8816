// libraft's I/O interface (struct raft_io) over tern: messages between replicas as RPCs, storage, time and randomness.
// Owned by the endpoint's thread. Does not know what is replicated.
//
// How libraft's messages become RPCs. It sends requests and results as messages of one kind; here a result is the
// response of its request's RPC. One append is under way to each replica at a time: the RPCs of one session may
// overtake each other, for which libraft is not made, and what gathers meanwhile goes in the next one. A request for
// which there is no place is refused (RAFT_NOCONNECTION), and libraft sends it again. Each call has a deadline, and a
// session that has failed is opened again with the next message.
//
// libraft must not be entered from within itself. Its callbacks run in settle(), which follows each call of it.
//
// Time. libraft counts in whatever unit raft_io::time() has, and calls it a millisecond. Here it is a microsecond.
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

/// What the thread of a replica does for a command: PortOptions::on_step.
enum class Step : uint8_t {
  kExecute,  ///< a client's request, at the leader
  kReceive,  ///< a message of another replica, with its answer
  kAnswer,   ///< the answer to one, with what comes of it
  kSettle,   ///< what nobody waits for, when answers and messages are on their way
  kEcho,     ///< an RPC that is not replicated: what the others are compared with
};

struct PortOptions {
  uint64_t cluster = 0;
  uint64_t id = 0;
  std::string address;  ///< URI at which other replicas reach this one
  tern::Duration election_timeout = std::chrono::seconds(1);
  tern::Duration heartbeat = std::chrono::milliseconds(100);
  tern::Duration snapshot_timeout = std::chrono::seconds(30);  ///< for a snapshot to arrive and be stored
  double clock_drift_max = 0.01;                               ///< Lease
  /// Entries of an append go up to here together, or one that is longer. At most kAppendBytesMax.
  size_t append_bytes_max = kAppendBytesMax;
  /// Called before and after each step, to measure it or, in the simulator, to charge for it. Null: nobody is.
  std::function<void(Step, bool begins)> on_step;
  /// Is told, once each, why another replica refuses us although we go on. Null: nobody is.
  std::function<void(const std::string&)> complain;
};

/// What a port has counted. Owner's thread only.
struct PortCounters {
  uint64_t malformed = 0;  ///< messages that were dropped: they could not be parsed
  uint64_t refused = 0;    ///< messages of other clusters, replicas or lives
  uint64_t appends_sent = 0;
  uint64_t appends_received = 0;
  uint64_t snapshots_sent = 0;
  uint64_t snapshots_received = 0;
  uint64_t votes_withheld = 0;  ///< requests for votes that came too early after the start
  uint64_t rollbacks = 0;       ///< of configurations that were never committed
  uint64_t forgotten = 0;       ///< senders of no configuration that made room for others
};

class Port {
 public:
  /// All arguments outlive the port. `settled` is called whenever libraft has been called by this port: it calls
  /// settle(), and whatever the new state asks for. `is_late`: nobody waits for this thread now.
  Port(tern::Endpoint& endpoint, tern::Environment& environment, Storage& storage, PortOptions options,
       std::function<void(bool is_late)> settled);
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  raft_io* io() { return &io_; }
  /// Loads what is stored. Once, before raft_init(). A sentence if it cannot.
  [[nodiscard]] std::string open();
  /// Nothing is stored: this replica has never been in a cluster.
  bool is_pristine() const { return is_pristine_; }
  tern::Status add_handlers();
  /// After raft_start(): what libraft does not restore itself.
  void on_started(raft* instance);

  /// Runs libraft's callbacks for which others wait, or all of them (`now`). The others run soon: a leader's own
  /// entries are stored when they are on their way to its followers, and what was sent is given back. A storage whose
  /// sync() takes time is synced later, too, once for all that comes until then.
  void settle(bool now = false);
  /// From now on no function of another thread reaches the endpoint, which may go. Before the endpoint's destructor.
  void detach();

  /// Asks the other replicas, until each has answered, whether they know another life of our id, then calls `done`.
  /// Only for a replica that is pristine and begins a new cluster (replica.h).
  void meet(const std::vector<std::pair<uint64_t, std::string>>& others, std::function<void()> done);

  /// A step, as long as this object lives. time() stands still.
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
  /// By the host's clock, at this moment.
  tern::Duration now() { return environment_.now(); }
  /// libraft's clock, which never goes back: in a step, the time of its beginning or, for what a leader does, of the
  /// loop's turn. What a step sends leaves later, and a message that a follower receives had come before: promises by
  /// this time are kept (Lease).
  tern::Duration time() {
    if (!moment_) latest_ = std::max(latest_, now());
    return moment_ ? *moment_ : latest_;
  }
  /// Why this replica cannot go on: the storage's sentence, or that of a replica that has refused it. Empty: it can.
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
    Sent append_sent;    ///< libraft's callback for it; null: none is under way
    Sent snapshot_sent;  ///< likewise
    tern::CallId append_call, snapshot_call;
    tern::Duration append_expires{}, snapshot_expires{};  ///< then they are cancelled
    uint32_t votes = 0;                                   ///< likewise: requests for votes
    bool is_met = true;                                   ///< false: meet() waits for it
    bool has_complained = false;                          ///< on_failure()
    tern::Duration retry_at{};                            ///< no session is opened before
    uint64_t life = 0;                                    ///< of the one that has this id; 0: not known
    uint64_t sent_until = 0;    ///< the append under way is cut short before this index; 0: it is whole
    uint64_t append_until = 0;  ///< the last index of its last append
    std::optional<raft_append_entries> put_off;  ///< put_off_append()
    std::optional<tern::Request> append;         ///< of its, while it is being stored here
    std::optional<tern::Request> snapshot;       ///< likewise
  };
  struct Put {  ///< the snapshot that is being stored
    raft_io_snapshot_put* request = nullptr;
    raft_io_snapshot_put_cb callback = nullptr;
    uint64_t index = 0;
    unsigned trailing = 0;           ///< 0: it takes the place of the whole log
    raft_buffer* buffers = nullptr;  ///< libraft's, of raft_malloc()
    std::shared_ptr<const Snapshot> snapshot;
    std::optional<std::string> problem;  ///< it has ended
  };
  struct Gate;  ///< through which another thread reaches the endpoint

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
  int check(std::string problem);  ///< RAFT_IOERR if there is one
  void close();

  // ---- calls to others ----
  Peer& peer(uint64_t id, std::string_view address);
  bool is_voter(uint64_t id) const;
  /// In libraft's configuration. Null: it is not there, or libraft does not run yet.
  raft_server* server(uint64_t id) const;
  /// From `least` to below `most`, for an election's timer.
  int random_timeout(int least, int most);
  bool open_session(Peer& peer);
  int call(uint64_t id, Peer& peer, const raft_message& message, std::string_view configuration, const Sent& sent);
  void on_called(uint64_t id, uint16_t kind, uint64_t term, tern::Duration sent, tern::Completion& done);
  void on_answer(uint64_t id, uint16_t kind, uint64_t term, tern::Duration sent, Bytes answer);
  void on_failure(uint64_t id, Peer& peer, const tern::Completion& done);
  void say_hello(uint64_t id);
  void on_hello(uint64_t id, tern::Completion& done);
  Head head_to(uint64_t id) const;

  // ---- calls of others ----
  void receive(tern::Request request);
  void receive_hello(tern::Request request);
  /// The one that sends with this id, whoever it is. Null: there is no room for one more.
  Peer* sender(uint64_t id);
  bool is_forgettable(uint64_t id, const Peer& peer) const;
  /// We are a voter to this sender, and know nothing: an earlier life of ours has taken part. We stop.
  bool has_lost_memory(const Head& head);
  /// Why this sender is refused, if it is.
  std::optional<Refusal> check_head(const Head& head);
  /// False: libraft must not see it.
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
  std::optional<tern::Duration> moment_;  ///< time() in a step
  tern::Duration latest_{};               ///< that time() has returned
  bool is_pristine_ = true;
  bool is_closed_ = false;
  Saved saved_;  ///< between open() and load()
  std::shared_ptr<const Snapshot> snapshot_;
  tern::Duration votes_from_{};  ///< no vote is granted before
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
  std::vector<Sent> sent_;          ///< callbacks that are due, as those below
  std::vector<Appended> appended_;  ///< after the next sync
  std::vector<Got> got_;
  std::vector<Sent> running_sent_;  ///< callbacks that run; kept for their memory
  std::vector<Appended> running_appended_;
  Put put_;
  bool is_settling_ = false;
  bool has_cut_append_ = false;  ///< a Peer has sent_until
  bool has_put_off_ = false;     ///< a Peer has put_off
  uint64_t batch_until_ = 0;     ///< the last index of the latest append with entries
  uint32_t batch_voters_ = 0;    ///< who got appends up to there at once
  bool is_settled_later_ = false;
  std::optional<raft_append_entries> late_commit_;  ///< what the latest append has committed besides: put_off_commit()
  uint64_t late_commit_from_ = 0;                   ///< its sender
  std::shared_ptr<Gate> gate_;

  /// The request that is being delivered, which a result answers.
  struct {
    uint64_t from = 0;
    bool is_snapshot = false;
    tern::Request* request = nullptr;
  } delivering_;
  bool is_ending_snapshot_ = false;  ///< finish_put() runs: a result answers the snapshot's request

  Lease lease_;
  PortCounters counters_;
  std::string problem_;
};

}  // namespace replicated
