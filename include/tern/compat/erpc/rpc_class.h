// Programs written for eRPC: the class Rpc, with the common case of a request. See docs/erpc-migration.md.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <tern/rpc.h>
#include <tern/transport_options.h>

#include "msg_buffer.h"
#include "nexus.h"
#include "sm_types.h"
#include "transport.h"
#include "util/autorun_helpers.h"
#include "util/timer.h"

namespace erpc {

/// Members belong to the thread that made the object, unless they say "any thread", which means that thread and the
/// Nexus's background threads.
template <class TTr>
class Rpc {
 public:
  static constexpr size_t kMaxMsgSize = size_t{1} << 30;

  /// `sm_handler` may be null. The environment variable TERN_ERPC_OPTIONS has the transport's options, as in
  /// "datagram_bytes=8900"; `phy_port` has no effect. Throws std::runtime_error.
  Rpc(Nexus* nexus, void* context, uint8_t rpc_id, sm_handler_t sm_handler, uint8_t phy_port = 0);
  /// Pending continuations do not run. All message buffers of this Rpc are freed.
  ~Rpc();
  Rpc(const Rpc&) = delete;
  Rpc& operator=(const Rpc&) = delete;

  // ---- Message buffers ----

  /// Any thread. `buf_` is null if there is no memory. Throws std::runtime_error above get_max_msg_size().
  MsgBuffer alloc_msg_buffer(size_t max_data_size) {
    rt_assert(max_data_size <= get_max_msg_size(), "A message may have at most 1 GiB");
    tern::detail::Buffer* buffer = rpc_->alloc_msgbuf(max_data_size).take();
    if (unlikely(buffer == nullptr)) return {};
    const std::lock_guard lock(mutex_);
    allocated_.insert(buffer);
    return {buffer, max_data_size};
  }
  /// Any thread. Throws std::runtime_error if there is no memory.
  MsgBuffer alloc_msg_buffer_or_die(size_t max_data_size) {
    MsgBuffer buffer = alloc_msg_buffer(max_data_size);
    rt_assert(buffer.buf_ != nullptr, "No memory for a message buffer");
    return buffer;
  }
  /// Any thread.
  void free_msg_buffer(MsgBuffer msg_buffer) {
    if (msg_buffer.buffer_ == nullptr) return;
    forget(msg_buffer.buffer_);
    tern::detail::release_buffer(msg_buffer.buffer_);
  }
  /// Any thread. `new_data_size` is at most the size at allocation.
  static void resize_msg_buffer(MsgBuffer* msg_buffer, size_t new_data_size) {
    assert(new_data_size <= msg_buffer->buffer_->capacity_bytes);
    msg_buffer->data_size_ = new_data_size;
  }
  static constexpr size_t get_max_msg_size() { return kMaxMsgSize; }
  static constexpr size_t get_max_data_per_pkt() { return TTr::kMaxDataPerPkt; }
  /// The bytes of all buffers that the program has.
  size_t get_stat_user_alloc_tot() {
    const std::lock_guard lock(mutex_);
    size_t total = 0;
    for (const tern::detail::Buffer* buffer : allocated_) total += buffer->capacity_bytes;
    return total;
  }

  // ---- Sessions ----

  /// A session with Rpc `rem_rpc_id` of the Nexus at "HOST:PORT". Returns its number, or a negative errno: -EINVAL (no
  /// such URI, or this Rpc itself), -ENOMEM, -EPERM (another thread), -EHOSTUNREACH (the name is unknown). The
  /// session-management handler is called when it is connected. If the server does not answer, the request is repeated
  /// without end.
  int create_session(const std::string& remote_uri, uint8_t rem_rpc_id);
  /// 0, or a negative errno: -EINVAL (no such session), -EPERM (another thread, or it is not connected), -EBUSY
  /// (requests wait), -EALREADY (it is being destroyed).
  int destroy_session(int session_num);
  bool is_connected(int session_num) const { return slot_of(session_num).state == State::kConnected; }
  /// The number of sessions that are connecting or connected, as a client or as a server.
  size_t num_active_sessions() const;
  static constexpr size_t get_max_num_sessions() { return TTr::kNumRxRingEntries / kSessionCredits; }
  /// The host name given to create_session().
  std::string get_remote_hostname(int session_num) const { return slot_of(session_num).hostname; }
  /// The number of retransmitted packets since the session began, or since reset_num_re_tx().
  size_t get_num_re_tx(int session_num) const {
    const SessionSlot& slot = slot_of(session_num);
    const uint64_t all = rpc_->session_info(slot.session).retransmissions;
    return all - std::min(all, slot.forgotten_re_tx);
  }
  void reset_num_re_tx(int session_num) {
    SessionSlot& slot = slot_of(session_num);
    slot.forgotten_re_tx = rpc_->session_info(slot.session).retransmissions;
  }
  /// The present values. The session owns the object.
  Timely* get_timely(int session_num) {
    SessionSlot& slot = slot_of(session_num);
    slot.timely.set(rpc_->session_info(slot.session), rpc_->link_bytes_per_sec());
    return &slot.timely;
  }
  /// Always null: tern's timing wheel is not public.
  TimingWheel* get_wheel() const { return nullptr; }

  // ---- Requests and responses ----

  /// Any thread. The continuation runs in the event loop. The response has size 0 if the session has ended or ends
  /// before the response has come, or if the response is longer than `resp_msgbuf`. Throws std::runtime_error for
  /// buffers of another Rpc, and for a session that is not connected yet.
  void enqueue_request(int session_num, uint8_t req_type, MsgBuffer* req_msgbuf, MsgBuffer* resp_msgbuf,
                       erpc_cont_func_t cont_func, void* tag) {
    const auto number = static_cast<size_t>(session_num);
    if (unlikely(in_background() || number >= session_count_)) {
      return start_elsewhere({session_num, req_type, req_msgbuf, resp_msgbuf, cont_func, tag});
    }
    start(sessions_[number].get(), req_type, req_msgbuf, resp_msgbuf, cont_func, tag);
  }
  /// Any thread. For a foreground handler's request, a background thread may call it only after the handler has
  /// returned. `resp_msgbuf` is the handle's pre_resp_msgbuf_ or dyn_resp_msgbuf_. The library then owns the handle and
  /// the response's memory.
  void enqueue_response(ReqHandle* req_handle, MsgBuffer* resp_msgbuf) {
    tern::detail::RequestFront* const front = req_handle->front_;
    if (unlikely(front == nullptr || resp_msgbuf != &req_handle->pre_resp_msgbuf_)) {
      return respond(req_handle, resp_msgbuf);
    }
    resp_msgbuf->buffer_->length_bytes = static_cast<uint32_t>(resp_msgbuf->data_size_);
    front->progress = tern::detail::RequestFront::Progress::kAnswered;
    req_handle->front_ = nullptr;
  }
  /// Sets the size of pre_resp_msgbuf_, in bytes. The default is get_max_data_per_pkt().
  void set_pre_resp_msgbuf_size(size_t bytes) { pre_resp_msgbuf_size_ = bytes; }

  // ---- The event loop ----

  void run_event_loop(size_t timeout_ms) {
    check(rpc_->run_event_loop(std::chrono::milliseconds(timeout_ms)));
    count_retransmissions();
  }
  void run_event_loop_once() {
    check(rpc_->run_event_loop_once().status());
    count_retransmissions();
  }

  // ---- About this Rpc ----

  /// The link's rate in bytes per second, as the transport knows or assumes it.
  size_t get_bandwidth() const { return rpc_->link_bytes_per_sec(); }
  void set_context(void* context) {
    rt_assert(context_ == nullptr, "Cannot reset non-null Rpc context");
    context_ = context;
    for (const auto& slot : sessions_) slot->context = context;
  }
  uint8_t get_rpc_id() const { return id_; }
  /// Any thread.
  bool in_background() const { return own_background() == this; }
  /// Any thread. The number of the calling thread; background threads have the lowest numbers.
  size_t get_etid() const { return in_background() ? nexus_.thread_id(true) : etid_; }
  double get_freq_ghz() const { return nexus_.freq_ghz_; }
  double sec_since_creation() const { return created_.get_sec(); }
  /// -1, as in an eRPC that was built without datapath statistics.
  double get_avg_rx_batch() const { return -1.0; }
  /// -1, as in an eRPC that was built without datapath statistics.
  double get_avg_tx_batch() const { return -1.0; }
  void reset_dpath_stats() {}
  /// Throws std::runtime_error: tern has a transport that injects faults, tern::Faulty.
  [[noreturn]] void fault_inject_set_pkt_drop_prob_st(double) {
    throw std::runtime_error("Faults are injected by tern::Faulty<T>: see docs/erpc-migration.md");
  }

  // Members that only eRPC has. Their use does not compile.
  template <class Nothing = void>
  void get_huge_alloc() const {
    static_assert(!std::is_void_v<Nothing>, "tern has no HugeAlloc: see docs/erpc-migration.md");
  }
  template <class Nothing = void>
  void fault_inject_fail_resolve_rinfo_st() {
    static_assert(!std::is_void_v<Nothing>, "faults are injected by tern::Faulty<T>: see docs/erpc-migration.md");
  }

  // ---- What programs read and write ----

  union {
    bool retry_connect_on_invalid_rpc_id_ =
        false;                             ///< repeat the connect request if the server has no Rpc with this id yet
    bool retry_connect_on_invalid_rpc_id;  ///< the name in older programs
  };
  union {
    PacketLoss pkt_loss_stats_;  ///< of all sessions
    PacketLoss pkt_loss_stats;   ///< the name in older programs
  };
  size_t pre_resp_msgbuf_size_ = TTr::kMaxDataPerPkt;  ///< set_pre_resp_msgbuf_size()

 private:
  enum class State : uint8_t { kConnecting, kConnected, kDisconnecting, kEnded };
  struct SessionSlot;
  /// A request's continuation. It is moved member by member, and its members have this order, because g++ then does not
  /// combine two of them in a vector register.
  struct Ended {
    Ended(SessionSlot* its_slot, MsgBuffer* its_response, erpc_cont_func_t its_continuation, void* its_tag)
        : slot(its_slot),
          continuation(its_continuation),
          response(its_response),
          tag(reinterpret_cast<uintptr_t>(its_tag)) {}
    Ended(Ended&& other) noexcept
        : slot(other.slot), continuation(other.continuation), response(other.response), tag(other.tag) {}
    void operator()(tern::Completion& done) const { finish(*this, done); }
    void run() const { continuation(slot->context, reinterpret_cast<void*>(tag)); }
    SessionSlot* slot;
    erpc_cont_func_t continuation;
    MsgBuffer* response;
    uintptr_t tag;
  };
  struct SessionSlot {
    void* context = nullptr;  ///< the Rpc's context
    Rpc* rpc = nullptr;
    tern::Session open;   ///< `session` if it is connected; otherwise a name without a session
    int64_t pending = 0;  ///< requests whose continuations have not run; negative: ~Rpc has begun
    tern::Session session;
    State state = State::kConnecting;
    int number = 0;
    uint64_t forgotten_re_tx = 0;
    std::string uri, hostname;
    Timely timely;
    std::vector<Ended> failed;  ///< requests that failed by the session's end, which the program does not know yet
  };
  static constexpr int64_t kEnding = INT64_MIN / 2;
  /// A request of a background thread.
  struct Later {
    int session_num;
    uint8_t type;
    MsgBuffer* request;
    MsgBuffer* response;
    erpc_cont_func_t continuation;
    void* tag;
  };
  /// A handler in the event loop, and one in a background thread.
  struct Foreground {
    void operator()(tern::detail::RequestFront* front) const { rpc->handle(front, function); }
    Rpc* rpc;
    erpc_req_func_t function;
  };
  struct Background {
    void operator()(tern::Request request) const { rpc->handle_in_background(std::move(request), function); }
    Rpc* rpc;
    erpc_req_func_t function;
  };
  static constexpr auto kRetryGap = std::chrono::milliseconds(100);

  static void check(const tern::Status& status) {
    if (unlikely(!status.ok())) throw std::runtime_error(std::string(status.message()));
  }
  static int errno_of(tern::Code code);
  static SmErrType error_of(tern::Code code);
  /// The Rpc whose handler this background thread runs; null: not a background thread, or no handler runs.
  static const void*& own_background() {
    static thread_local const void* rpc = nullptr;
    return rpc;
  }
  SessionSlot& slot_of(int number) const {
    assert(static_cast<size_t>(number) < sessions_.size());
    return *sessions_[static_cast<size_t>(number)];
  }
  void count_retransmissions() {
    const uint64_t all = rpc_->counters().retransmissions;
    if (unlikely(all != retransmissions_)) pkt_loss_stats_.num_re_tx_ += all - std::exchange(retransmissions_, all);
  }

  // ---- Memory (rpc_impl.h) ----

  void forget(tern::detail::Buffer* buffer);
  void forget(ReqHandle* req_handle);

  // ---- Sessions (rpc_impl.h) ----

  tern::Status connect(SessionSlot& slot);
  void connect_again(SessionSlot& slot);
  void on_event(const tern::SessionEvent& event);
  void lose(SessionSlot& slot);
  void tell(const SessionSlot& slot, SmEventType event, SmErrType error) {
    if (sm_handler_ != nullptr) sm_handler_(slot.number, event, error, context_);
  }

  // ---- Requests of this Rpc ----

  [[gnu::always_inline]] void start(SessionSlot* slot, uint8_t type, MsgBuffer* request, MsgBuffer* response,
                                    erpc_cont_func_t continuation, void* tag) {
    slot->pending++;
    const bool is_accepted = rpc_->enqueue_plain_request(slot->open, type, request->buffer_, response->buffer_,
                                                         static_cast<uint32_t>(request->data_size_),
                                                         Ended(slot, response, continuation, tag));
    if (unlikely(!is_accepted)) refuse(slot, response, continuation, tag);
  }
  [[gnu::always_inline]] static void finish(const Ended& ended, tern::Completion& done) {
    // The program keeps both buffers, and may have destroyed its MsgBuffers.
    const tern::detail::Buffer* const filled = done.response.take();
    (void)done.request.take();
    if (unlikely(--ended.slot->pending < 0)) return;
    if (unlikely(!done.status.ok())) {
      return fail(ended.slot, ended.response, ended.continuation, ended.tag, done);
    }
    ended.response->data_size_ = filled->length_bytes;
    ended.run();
  }
  void start_elsewhere(const Later& later);
  static void refuse(SessionSlot* slot, MsgBuffer* response, erpc_cont_func_t continuation, void* tag);
  static void fail(SessionSlot* slot, MsgBuffer* response, erpc_cont_func_t continuation, uintptr_t tag,
                   const tern::Completion& done);
  void fail_all(SessionSlot& slot);

  // ---- Requests to this Rpc ----

  void add_handler(size_t type);
  [[gnu::always_inline]] void handle(tern::detail::RequestFront* front, erpc_req_func_t function) {
    ReqHandle* const own = spare_.get();
    tern::detail::Buffer* const space = front->space;
    if (unlikely(space == nullptr || space->writable_end <= pre_resp_msgbuf_size_)) {
      return handle_elsewhere(front, function);
    }
    space->revoke_lease();
    own->pre_resp_msgbuf_ = MsgBuffer(space, pre_resp_msgbuf_size_);
    own->req_msgbuf_.show(front->data, front->bytes);
    own->front_ = front;
    function(own, context_);
    if (unlikely(own->front_ != nullptr)) keep_unanswered(own);
  }
  void handle_elsewhere(tern::detail::RequestFront* front, erpc_req_func_t function);
  void handle_in_background(tern::Request request, erpc_req_func_t function);
  static void keep_unanswered(ReqHandle* req_handle);
  bool begin(ReqHandle& req_handle, tern::Request& request);
  ReqHandle* keep(std::unique_ptr<ReqHandle> req_handle, tern::Request request);
  std::unique_ptr<ReqHandle> new_handle() { return std::unique_ptr<ReqHandle>(new ReqHandle(this, id_)); }
  static void respond(ReqHandle* req_handle, MsgBuffer* response);

  Nexus& nexus_;
  void* context_;
  const sm_handler_t sm_handler_;
  const uint8_t id_;
  const size_t etid_;
  const ChronoTimer created_;
  const std::chrono::milliseconds failure_delay_ = Nexus::failure_delay();
  bool is_ending_ = false;
  std::unique_ptr<ReqHandle> spare_;  ///< for the next request
  std::vector<std::unique_ptr<SessionSlot>> sessions_;
  size_t session_count_ = 0;                          ///< of sessions_
  std::unordered_map<uint64_t, SessionSlot*> slots_;  ///< by the names of sessions
  size_t served_ = 0;                                 ///< sessions of clients
  uint64_t retransmissions_ = 0;                      ///< the number that pkt_loss_stats_ has counted
  std::mutex mutex_;
  std::unordered_set<tern::detail::Buffer*> allocated_;              ///< under the mutex
  std::unordered_map<ReqHandle*, std::unique_ptr<ReqHandle>> kept_;  ///< under the mutex
  std::unique_ptr<tern::Rpc<typename TTr::Type>> rpc_;               ///< destroyed first
};

}  // namespace erpc
