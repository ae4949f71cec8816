// Programs written for eRPC compile against tern with this header in place of eRPC's <rpc.h>: the public names of eRPC,
// over one tern::Rpc. docs/erpc-migration.md has the differences, and for each name what tern itself offers.
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
#include "util/latency.h"
#include "util/math_utils.h"
#include "util/rand.h"
#include "util/timer.h"

namespace erpc {

/// Members belong to the thread that made the object, unless they say "any thread", which means that thread and the
/// Nexus's background threads.
template <class TTr>
class Rpc {
 public:
  /// `sm_handler` may be null. The environment variable TERN_ERPC_OPTIONS has the transport's options, as in
  /// "datagram_bytes=8900"; `phy_port` has no effect. Throws std::runtime_error.
  Rpc(Nexus* nexus, void* context, uint8_t rpc_id, sm_handler_t sm_handler, uint8_t phy_port = 0)
      : nexus_(*nexus), context_(context), sm_handler_(sm_handler), id_(rpc_id), etid_(nexus->thread_id(false)) {
    _unused(phy_port);
    nexus_.has_rpcs_ = true;
    typename TTr::Type::Options transport;
    if (const char* options = std::getenv("TERN_ERPC_OPTIONS")) {
      const std::string problem = tern::set_options(transport, options);
      rt_assert(problem.empty(), "TERN_ERPC_OPTIONS: " + problem);
    }
    tern::RpcOptions options;
    options.endpoint_id = rpc_id;
    options.queue_limit = UINT32_MAX;  // enqueue_request() always succeeds
    auto made = tern::Rpc<typename TTr::Type>::create(*nexus_.nexus_, std::move(transport), options);
    check(made.status());
    rpc_ = std::move(*made);
    for (size_t type = 0; type < nexus_.functions_.size(); type++) add_handler(type);
    check(rpc_->on_session_event([this](const tern::SessionEvent& event) { on_event(event); }));
  }
  /// Continuations that wait do not run. All message buffers of this Rpc are freed.
  ~Rpc() {
    is_ending_ = true;
    delete rpc_.get();  // waits for background handlers, which use this object and rpc_ until then
    (void)rpc_.release();
    kept_.clear();  // a Request may outlive its endpoint
    for (tern::detail::Buffer* buffer : allocated_) tern::detail::release_buffer(buffer);
  }
  Rpc(const Rpc&) = delete;
  Rpc& operator=(const Rpc&) = delete;

  // ---- Message buffers ----

  /// Any thread. `buf_` is null if there is no memory. Throws std::runtime_error above get_max_msg_size().
  MsgBuffer alloc_msg_buffer(size_t max_data_size) {
    rt_assert(max_data_size <= get_max_msg_size(), "A message has at most 1 GiB");
    tern::detail::Buffer* buffer = rpc_->alloc_msgbuf(max_data_size).take();
    if (unlikely(buffer == nullptr)) return {};
    const std::lock_guard lock(mutex_);
    allocated_.insert(buffer);
    return {buffer->data(), max_data_size, buffer};
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
  /// Any thread. `new_data_size` is at most what the buffer was allocated for.
  static void resize_msg_buffer(MsgBuffer* msg_buffer, size_t new_data_size) {
    assert(new_data_size <= msg_buffer->max_data_size_);
    msg_buffer->data_size_ = new_data_size;
  }
  static constexpr size_t get_max_msg_size() { return size_t{1} << 30; }
  static constexpr size_t get_max_data_per_pkt() { return TTr::kMaxDataPerPkt; }
  /// In bytes, of all buffers that the program has.
  size_t get_stat_user_alloc_tot() {
    const std::lock_guard lock(mutex_);
    size_t total = 0;
    for (const tern::detail::Buffer* buffer : allocated_) total += buffer->capacity_bytes;
    return total;
  }

  // ---- Sessions ----

  /// A session with Rpc `rem_rpc_id` of the Nexus at "HOST:PORT". Returns its number, or a negative errno: -EINVAL (no
  /// such URI, or this Rpc itself), -ENOMEM, -EPERM (another thread), -EHOSTUNREACH (the name is unknown). The
  /// session-management handler hears when it is connected. A server that does not answer is asked again and again.
  int create_session(const std::string& remote_uri, uint8_t rem_rpc_id) {
    if (remote_uri == nexus_.local_uri_ && rem_rpc_id == id_) return -EINVAL;
    auto slot = std::make_unique<SessionSlot>();
    slot->rpc = this;
    slot->number = static_cast<int>(sessions_.size());
    slot->hostname = extract_hostname_from_uri(remote_uri);
    slot->uri = "tern://" + remote_uri + "/" + std::to_string(rem_rpc_id);
    if (const tern::Status status = connect(*slot); !status.ok()) return -errno_of(status.code());
    sessions_.push_back(std::move(slot));
    return sessions_.back()->number;
  }
  /// 0, or a negative errno: -EINVAL (no such session), -EPERM (another thread, or it is not connected), -EBUSY
  /// (requests wait), -EALREADY (it is being destroyed).
  int destroy_session(int session_num) {
    if (in_background()) return -EPERM;
    if (session_num < 0 || static_cast<size_t>(session_num) >= sessions_.size()) return -EINVAL;
    SessionSlot& slot = slot_of(session_num);
    if (slot.state == State::kDisconnecting) return -EALREADY;
    if (slot.state != State::kConnected) return -EPERM;
    if (slot.pending != 0 || !slot.failed.empty()) return -EBUSY;
    if (!rpc_->destroy_session(slot.session).ok()) return -EPERM;
    slot.state = State::kDisconnecting;
    return 0;
  }
  bool is_connected(int session_num) const { return slot_of(session_num).state == State::kConnected; }
  /// Those that are being connected or are connected, as a client or as a server.
  size_t num_active_sessions() const {
    const auto active = std::count_if(sessions_.begin(), sessions_.end(),
                                      [](const auto& slot) { return slot->state != State::kEnded; });
    return static_cast<size_t>(active) + served_;
  }
  static constexpr size_t get_max_num_sessions() { return TTr::kNumRxRingEntries / kSessionCredits; }
  /// As create_session() was told.
  std::string get_remote_hostname(int session_num) const { return slot_of(session_num).hostname; }
  /// Packets sent again since the session began, or since reset_num_re_tx().
  size_t get_num_re_tx(int session_num) const {
    const SessionSlot& slot = slot_of(session_num);
    const uint64_t all = rpc_->session_info(slot.session).retransmissions;
    return all - std::min(all, slot.forgotten_re_tx);
  }
  void reset_num_re_tx(int session_num) {
    SessionSlot& slot = slot_of(session_num);
    slot.forgotten_re_tx = rpc_->session_info(slot.session).retransmissions;
  }
  /// The values of now. The object is the session's.
  Timely* get_timely(int session_num) {
    SessionSlot& slot = slot_of(session_num);
    slot.timely.set(rpc_->session_info(slot.session), rpc_->link_bytes_per_sec());
    return &slot.timely;
  }
  /// Null: tern's is not to be seen.
  TimingWheel* get_wheel() const { return nullptr; }

  // ---- Requests and responses ----

  /// Any thread. The continuation runs in the event loop. It has a response of size 0 if the session has ended, or ends
  /// before the response has come, and if the response is longer than `resp_msgbuf`. Throws std::runtime_error for
  /// buffers that are not this Rpc's.
  void enqueue_request(int session_num, uint8_t req_type, MsgBuffer* req_msgbuf, MsgBuffer* resp_msgbuf,
                       erpc_cont_func_t cont_func, void* tag) {
    const Failable failable = {resp_msgbuf, cont_func, tag};
    if (unlikely(in_background())) return enqueue_later({session_num, req_type, req_msgbuf, failable});
    start(slot_of(session_num), req_type, req_msgbuf, failable);
  }
  /// Any thread; of a foreground handler's request a background thread only after the handler has returned.
  /// `resp_msgbuf` is the handle's pre_resp_msgbuf_ or dyn_resp_msgbuf_. The handle and the response's memory are the
  /// library's afterwards.
  void enqueue_response(ReqHandle* handle, MsgBuffer* resp_msgbuf) {
    tern::Request* request = std::exchange(handle->request_, nullptr);
    if (likely(resp_msgbuf == &handle->pre_resp_msgbuf_)) {
      resp_msgbuf->buffer_->length_bytes = static_cast<uint32_t>(resp_msgbuf->data_size_);
      request->respond();
    } else {
      rt_assert(resp_msgbuf->buffer_ != nullptr, "enqueue_response() takes pre_resp_msgbuf_ or dyn_resp_msgbuf_");
      forget(resp_msgbuf->buffer_);
      tern::MsgBuf message(resp_msgbuf->buffer_);
      (void)message.resize(resp_msgbuf->data_size_);
      *resp_msgbuf = MsgBuffer();
      request->respond(std::move(message));
    }
    if (unlikely(handle->kept_.has_value())) forget(handle);
  }
  /// Of pre_resp_msgbuf_, in bytes. At first get_max_data_per_pkt().
  void set_pre_resp_msgbuf_size(size_t bytes) { pre_resp_bytes_ = bytes; }

  // ---- The event loop ----

  void run_event_loop(size_t timeout_ms) { check(rpc_->run_event_loop(std::chrono::milliseconds(timeout_ms))); }
  void run_event_loop_once() { check(rpc_->run_event_loop_once().status()); }

  // ---- About this Rpc ----

  /// Of the link, in bytes per second, as the transport knows or assumes it.
  size_t get_bandwidth() const { return rpc_->link_bytes_per_sec(); }
  void set_context(void* context) {
    rt_assert(context_ == nullptr, "Cannot reset non-null Rpc context");
    context_ = context;
  }
  uint8_t get_rpc_id() const { return id_; }
  /// Any thread.
  bool in_background() const { return own_background() == this; }
  /// Any thread: a number of the calling thread. Background threads have the lowest ones.
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

  // What only eRPC has: to use it does not compile.
  template <class Nothing = void>
  void get_huge_alloc() const {
    static_assert(!std::is_void_v<Nothing>, "tern has no HugeAlloc: see docs/erpc-migration.md");
  }
  template <class Nothing = void>
  void fault_inject_fail_resolve_rinfo_st() {
    static_assert(!std::is_void_v<Nothing>, "faults are injected by tern::Faulty<T>: see docs/erpc-migration.md");
  }

  /// A server that has no Rpc of the wanted id, yet, is asked again.
  bool retry_connect_on_invalid_rpc_id_ = false;

 private:
  enum class State : uint8_t { kConnecting, kConnected, kDisconnecting, kEnded };
  /// What ends with a continuation.
  struct Failable {
    MsgBuffer* response;
    erpc_cont_func_t continuation;
    void* tag;
  };
  struct SessionSlot {
    Rpc* rpc = nullptr;
    tern::Session session;
    State state = State::kConnecting;
    int number = 0;
    size_t pending = 0;  ///< requests without a continuation's run
    uint64_t forgotten_re_tx = 0;
    std::string uri, hostname;
    Timely timely;
    std::vector<Failable> failed;  ///< by the session's end, of which the program has not heard yet
  };
  struct Later {
    int session_num;
    uint8_t req_type;
    MsgBuffer* req_msgbuf;
    Failable failable;
  };
  static constexpr auto kRetryGap = std::chrono::milliseconds(100);
  /// eRPC takes so long to notice that a server has gone, and programs that end at about the same time count on it.
  static constexpr auto kGrace = std::chrono::milliseconds(500);

  static void check(const tern::Status& status) {
    if (unlikely(!status.ok())) throw std::runtime_error(std::string(status.message()));
  }
  static int errno_of(tern::Code code) {
    switch (code) {
      case tern::Code::kNoMemory:
        return ENOMEM;
      case tern::Code::kWrongThread:
        return EPERM;
      case tern::Code::kUnavailable:
        return EHOSTUNREACH;
      default:
        return EINVAL;
    }
  }
  /// The Rpc whose handler this background thread runs; null: it is no background thread, or runs none.
  static const void*& own_background() {
    static thread_local const void* rpc = nullptr;
    return rpc;
  }
  SessionSlot& slot_of(int number) const {
    assert(static_cast<size_t>(number) < sessions_.size());
    return *sessions_[static_cast<size_t>(number)];
  }

  // ---- Memory ----

  void forget(tern::detail::Buffer* buffer) {
    const std::lock_guard lock(mutex_);
    allocated_.erase(buffer);
  }
  void forget(ReqHandle* handle) {
    const std::lock_guard lock(mutex_);
    kept_.erase(handle);
  }

  // ---- Sessions ----

  tern::Status connect(SessionSlot& slot) {
    tern::SessionOptions options;
    options.window = kSessionReqWindow;
    auto session = rpc_->create_session(slot.uri, options);
    if (!session.ok()) return session.status();
    slot.session = *session;
    slots_[session->name] = &slot;
    return {};
  }
  void on_event(const tern::SessionEvent& event) {
    if (is_ending_) return;
    if (!event.is_client) {
      served_ += event.state == tern::SessionState::kOpen ? 1 : -1;
      return;
    }
    const auto known = slots_.find(event.session.name);
    SessionSlot& slot = *known->second;
    if (event.state == tern::SessionState::kOpen) {
      slot.state = State::kConnected;
      return tell(slot, SmEventType::kConnected, SmErrType::kNoError);
    }
    slots_.erase(known);
    const State before = std::exchange(slot.state, State::kEnded);
    if (before == State::kDisconnecting) return tell(slot, SmEventType::kDisconnected, SmErrType::kNoError);
    if (before == State::kConnected) return check(rpc_->after(kGrace, [&slot] { slot.rpc->lose(slot); }));
    const bool is_wrong_id = event.status.code() == tern::Code::kRefused;
    if (event.status.code() == tern::Code::kPeerUnreachable || (is_wrong_id && retry_connect_on_invalid_rpc_id_)) {
      slot.state = State::kConnecting;
      return check(rpc_->after(kRetryGap, [&slot] { slot.rpc->connect_again(slot); }));
    }
    tell(slot, SmEventType::kConnectFailed, error_of(event.status.code()));
  }
  void lose(SessionSlot& slot) {
    fail_all(slot);
    tell(slot, SmEventType::kDisconnected, SmErrType::kSrvDisconnected);
  }
  void connect_again(SessionSlot& slot) {
    const tern::Status status = connect(slot);
    if (status.ok()) return;
    slot.state = State::kEnded;
    tell(slot, SmEventType::kConnectFailed, error_of(status.code()));
  }
  void tell(const SessionSlot& slot, SmEventType event, SmErrType error) {
    if (sm_handler_ != nullptr) sm_handler_(slot.number, event, error, context_);
  }
  static SmErrType error_of(tern::Code code) {
    switch (code) {
      case tern::Code::kNoMemory:
        return SmErrType::kOutOfMemory;
      case tern::Code::kQueueFull:
        return SmErrType::kRingExhausted;
      case tern::Code::kRefused:
        return SmErrType::kInvalidRemoteRpcId;
      case tern::Code::kUnavailable:
        return SmErrType::kRoutingResolutionFailure;
      default:
        return SmErrType::kSrvDisconnected;
    }
  }

  // ---- Requests of this Rpc ----

  void start(SessionSlot& slot, uint8_t type, MsgBuffer* request, const Failable& failable) {
    if (unlikely(slot.state != State::kConnected)) return refuse(slot, failable);
    if (likely(request->buffer_ != nullptr))
      request->buffer_->length_bytes = static_cast<uint32_t>(request->data_size_);
    tern::MsgBuf message(request->buffer_), room(failable.response->buffer_);
    slot.pending++;
    const auto call =
        rpc_->enqueue_request(slot.session, type, std::move(message), std::move(room),
                              [&slot, failable](tern::Completion& done) { slot.rpc->finish(slot, failable, done); });
    if (likely(call.ok())) return;
    (void)message.take();
    (void)room.take();
    slot.pending--;
    if (call.status().code() != tern::Code::kSessionReset) check(call.status());
    refuse(slot, failable);
  }
  void finish(SessionSlot& slot, const Failable& request, tern::Completion& done) {
    // Both buffers stay the program's, which may have ended together with its MsgBuffers.
    const tern::detail::Buffer* const filled = done.response.take();
    (void)done.request.take();
    if (unlikely(is_ending_)) return;
    slot.pending--;
    if (unlikely(!done.status.ok())) {
      const tern::Code code = done.status.code();
      const bool is_of_session = code == tern::Code::kSessionReset || code == tern::Code::kPeerUnreachable;
      return is_of_session ? slot.failed.push_back(request) : fail(request);
    }
    request.response->data_size_ = filled->length_bytes;
    request.continuation(context_, request.tag);
  }
  void fail(const Failable& request) {
    request.response->data_size_ = 0;
    request.continuation(context_, request.tag);
  }
  /// The session is not connected: its requests end as those that it had.
  void refuse(SessionSlot& slot, const Failable& request) {
    rt_assert(slot.state != State::kConnecting, "A request needs a session that is connected");
    if (slot.failed.empty()) check(rpc_->after(kGrace, [&slot] { slot.rpc->fail_all(slot); }));
    slot.failed.push_back(request);
  }
  void fail_all(SessionSlot& slot) {
    for (const Failable& request : std::exchange(slot.failed, {})) fail(request);
  }
  void enqueue_later(const Later& later) {
    auto owned = std::make_unique<Later>(later);
    const tern::Status posted = rpc_->post([this, owned = std::move(owned)] {
      start(slot_of(owned->session_num), owned->req_type, owned->req_msgbuf, owned->failable);
    });
    if (posted.code() != tern::Code::kSessionReset) check(posted);  // else ~Rpc has begun: the continuation never runs
  }

  // ---- Requests to this Rpc ----

  void add_handler(size_t type) {
    const Nexus::Function known = nexus_.functions_[type];
    if (known.function == nullptr) return;
    tern::HandlerOptions options;
    options.max_request_bytes = get_max_msg_size();
    const erpc_req_func_t function = known.function;
    if (!known.is_background) {
      return check(rpc_->on_request(
          static_cast<uint16_t>(type),
          [this, function](tern::Request request) {
            if (spare_ == nullptr) spare_.reset(new ReqHandle(id_));
            if (unlikely(!begin(*spare_, request))) return;
            function(spare_.get(), context_);
            if (spare_->request_ != nullptr) keep(std::move(spare_), request);
          },
          options));
    }
    options.worker = true;
    check(rpc_->on_request(
        static_cast<uint16_t>(type),
        [this, function](tern::Request request) {
          own_background() = this;
          std::unique_ptr<ReqHandle> handle(new ReqHandle(id_));
          // Another thread may answer before the function returns, so the handle is complete before the call.
          if (begin(*handle, request)) function(keep(std::move(handle), request), context_);
          own_background() = nullptr;
        },
        options));
  }
  /// Gives the handle memory for the response. False: there is none, and the client gets no response.
  bool begin(ReqHandle& handle, tern::Request& request) {
    auto room = request.response(pre_resp_bytes_);
    if (unlikely(!room.ok())) return false;
    auto* const buffer = reinterpret_cast<tern::detail::Buffer*>(room->data() - sizeof(tern::detail::Buffer));
    handle.pre_resp_msgbuf_ = MsgBuffer(room->data(), pre_resp_bytes_, buffer);
    handle.request_ = &request;
    return true;
  }
  /// The request is the handle's, which the program has until it answers.
  ReqHandle* keep(std::unique_ptr<ReqHandle> handle, tern::Request& request) {
    handle->kept_.emplace(std::move(request));
    handle->request_ = &*handle->kept_;
    const std::lock_guard lock(mutex_);
    ReqHandle* const name = handle.get();
    kept_.emplace(name, std::move(handle));
    return name;
  }

  Nexus& nexus_;
  void* context_;
  const sm_handler_t sm_handler_;
  const uint8_t id_;
  const size_t etid_;
  const ChronoTimer created_;
  size_t pre_resp_bytes_ = TTr::kMaxDataPerPkt;
  bool is_ending_ = false;
  std::unique_ptr<ReqHandle> spare_;  ///< for the next request
  std::vector<std::unique_ptr<SessionSlot>> sessions_;
  std::unordered_map<uint64_t, SessionSlot*> slots_;  ///< by the names of sessions
  size_t served_ = 0;                                 ///< sessions of clients
  std::mutex mutex_;
  std::unordered_set<tern::detail::Buffer*> allocated_;              ///< under the mutex
  std::unordered_map<ReqHandle*, std::unique_ptr<ReqHandle>> kept_;  ///< under the mutex
  std::unique_ptr<tern::Rpc<typename TTr::Type>> rpc_;               ///< goes first
};

}  // namespace erpc
