// Programs written for eRPC: the members of Rpc outside of the common case of a request. See docs/erpc-migration.md.
#pragma once

#include "rpc_class.h"

namespace erpc {

template <class TTr>
Rpc<TTr>::Rpc(Nexus* nexus, void* context, uint8_t rpc_id, sm_handler_t sm_handler, uint8_t phy_port)
    : pkt_loss_stats_(),
      nexus_(*nexus),
      context_(context),
      sm_handler_(sm_handler),
      id_(rpc_id),
      etid_(nexus->thread_id(false)),
      spare_(new_handle()) {
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
  // eRPC has no such limits, and its programs cannot know why a response is empty.
  options.receive_budget_bytes = SIZE_MAX;
  options.response_budget_bytes = SIZE_MAX;
  auto made = tern::Rpc<typename TTr::Type>::create(*nexus_.nexus_, std::move(transport), options);
  check(made.status());
  rpc_ = std::move(*made);
  for (size_t type = 0; type < nexus_.functions_.size(); type++) add_handler(type);
  check(rpc_->on_session_event([this](const tern::SessionEvent& event) { on_event(event); }));
}

template <class TTr>
Rpc<TTr>::~Rpc() {
  is_ending_ = true;
  for (const auto& slot : sessions_) slot->pending = kEnding;
  delete rpc_.get();  // waits for background handlers, which use this object and rpc_ until then
  (void)rpc_.release();
  kept_.clear();  // a Request may outlive its endpoint
  for (tern::detail::Buffer* buffer : allocated_) tern::detail::release_buffer(buffer);
}

template <class TTr>
int Rpc<TTr>::errno_of(tern::Code code) {
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

template <class TTr>
SmErrType Rpc<TTr>::error_of(tern::Code code) {
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

// ---- Memory ----

template <class TTr>
void Rpc<TTr>::forget(tern::detail::Buffer* buffer) {
  const std::lock_guard lock(mutex_);
  allocated_.erase(buffer);
}

template <class TTr>
void Rpc<TTr>::forget(ReqHandle* req_handle) {
  const std::lock_guard lock(mutex_);
  kept_.erase(req_handle);
}

// ---- Sessions ----

template <class TTr>
int Rpc<TTr>::create_session(const std::string& remote_uri, uint8_t rem_rpc_id) {
  if (remote_uri == nexus_.local_uri_ && rem_rpc_id == id_) return -EINVAL;
  auto slot = std::make_unique<SessionSlot>();
  slot->context = context_;
  slot->rpc = this;
  slot->number = static_cast<int>(sessions_.size());
  slot->hostname = extract_hostname_from_uri(remote_uri);
  slot->uri = "tern://" + remote_uri + "/" + std::to_string(rem_rpc_id);
  if (const tern::Status status = connect(*slot); !status.ok()) return -errno_of(status.code());
  sessions_.push_back(std::move(slot));
  session_count_ = sessions_.size();
  return sessions_.back()->number;
}

template <class TTr>
int Rpc<TTr>::destroy_session(int session_num) {
  if (in_background()) return -EPERM;
  if (session_num < 0 || static_cast<size_t>(session_num) >= sessions_.size()) return -EINVAL;
  SessionSlot& slot = slot_of(session_num);
  if (slot.state == State::kDisconnecting) return -EALREADY;
  if (slot.state != State::kConnected) return -EPERM;
  if (slot.pending != 0 || !slot.failed.empty()) return -EBUSY;
  if (!rpc_->destroy_session(slot.session).ok()) return -EPERM;
  slot.state = State::kDisconnecting;
  slot.open = {};
  return 0;
}

template <class TTr>
size_t Rpc<TTr>::num_active_sessions() const {
  const auto active =
      std::count_if(sessions_.begin(), sessions_.end(), [](const auto& slot) { return slot->state != State::kEnded; });
  return static_cast<size_t>(active) + served_;
}

template <class TTr>
tern::Status Rpc<TTr>::connect(SessionSlot& slot) {
  tern::SessionOptions options;
  options.window = kSessionReqWindow;
  auto session = rpc_->create_session(slot.uri, options);
  if (!session.ok()) return session.status();
  slot.session = *session;
  slots_[session->name] = &slot;
  return {};
}

template <class TTr>
void Rpc<TTr>::connect_again(SessionSlot& slot) {
  const tern::Status status = connect(slot);
  if (status.ok()) return;
  slot.state = State::kEnded;
  tell(slot, SmEventType::kConnectFailed, error_of(status.code()));
}

template <class TTr>
void Rpc<TTr>::on_event(const tern::SessionEvent& event) {
  if (is_ending_) return;
  if (!event.is_client) {
    served_ += event.state == tern::SessionState::kOpen ? 1 : -1;
    return;
  }
  const auto known = slots_.find(event.session.name);
  SessionSlot& slot = *known->second;
  if (event.state == tern::SessionState::kOpen) {
    slot.state = State::kConnected;
    slot.open = slot.session;
    return tell(slot, SmEventType::kConnected, SmErrType::kNoError);
  }
  slots_.erase(known);
  slot.open = {};
  const State before = std::exchange(slot.state, State::kEnded);
  if (before == State::kDisconnecting) return tell(slot, SmEventType::kDisconnected, SmErrType::kNoError);
  if (before == State::kConnected)
    return check(rpc_->after(failure_delay_, [&slot] { slot.rpc->lose(slot); }).status());
  const bool is_wrong_id = event.status.code() == tern::Code::kRefused;
  if (event.status.code() == tern::Code::kPeerUnreachable || (is_wrong_id && retry_connect_on_invalid_rpc_id_)) {
    slot.state = State::kConnecting;
    return check(rpc_->after(kRetryGap, [&slot] { slot.rpc->connect_again(slot); }).status());
  }
  tell(slot, SmEventType::kConnectFailed, error_of(event.status.code()));
}

template <class TTr>
void Rpc<TTr>::lose(SessionSlot& slot) {
  fail_all(slot);
  tell(slot, SmEventType::kDisconnected, SmErrType::kSrvDisconnected);
}

// ---- Requests of this Rpc ----

/// Posts a background thread's request to the event loop. Throws in any other thread.
template <class TTr>
[[gnu::noinline]] void Rpc<TTr>::start_elsewhere(const Later& later) {
  static constexpr const char* kNoSession = "There is no session of this number";
  rt_assert(in_background(), kNoSession);
  const tern::Status posted = rpc_->post([this, owned = std::make_unique<Later>(later)] {
    const auto number = static_cast<size_t>(owned->session_num);
    rt_assert(number < session_count_, kNoSession);
    start(sessions_[number].get(), owned->type, owned->request, owned->response, owned->continuation, owned->tag);
  });
  if (posted.code() != tern::Code::kSessionReset) check(posted);  // else ~Rpc has begun: the continuation never runs
}

/// Ends a valid request to an ended session, like the requests that the session had at its end.
template <class TTr>
[[gnu::noinline]] void Rpc<TTr>::refuse(SessionSlot* slot, MsgBuffer* response, erpc_cont_func_t continuation,
                                        void* tag) {
  slot->pending--;
  const tern::Status status = slot->rpc->rpc_->refusal();
  if (status.code() != tern::Code::kSessionReset) check(status);
  rt_assert(slot->state != State::kConnecting, "A request needs a session that is connected");
  if (slot->failed.empty())
    check(slot->rpc->rpc_->after(slot->rpc->failure_delay_, [slot] { slot->rpc->fail_all(*slot); }).status());
  slot->failed.emplace_back(slot, response, continuation, tag);
}

/// If the session has ended, the program is informed later.
template <class TTr>
[[gnu::noinline]] void Rpc<TTr>::fail(SessionSlot* slot, MsgBuffer* response, erpc_cont_func_t continuation,
                                      uintptr_t tag, const tern::Completion& done) {
  Ended ended(slot, response, continuation, reinterpret_cast<void*>(tag));
  const tern::Code code = done.status.code();
  if (code == tern::Code::kSessionReset || code == tern::Code::kPeerUnreachable) {
    return slot->failed.push_back(std::move(ended));
  }
  response->data_size_ = 0;
  ended.run();
}

template <class TTr>
void Rpc<TTr>::fail_all(SessionSlot& slot) {
  for (const Ended& request : std::exchange(slot.failed, {})) {
    request.response->data_size_ = 0;
    request.run();
  }
}

// ---- Requests to this Rpc ----

template <class TTr>
void Rpc<TTr>::add_handler(size_t type) {
  const Nexus::Function known = nexus_.functions_[type];
  if (known.function == nullptr) return;
  tern::HandlerOptions options;
  options.max_request_bytes = get_max_msg_size();
  options.worker = known.is_background;
  const auto number = static_cast<uint16_t>(type);
  check(known.is_background ? rpc_->on_request(number, Background{this, known.function}, options)
                            : rpc_->on_request(number, Foreground{this, known.function}, options));
}

/// Handles a request whose preallocated response is not the slot's buffer.
template <class TTr>
[[gnu::noinline]] void Rpc<TTr>::handle_elsewhere(tern::detail::RequestFront* front, erpc_req_func_t function) {
  tern::Request request(front);
  if (!begin(*spare_, request)) return;
  function(spare_.get(), context_);
  if (spare_->request_ != nullptr) (void)keep(std::exchange(spare_, new_handle()), std::move(request));
}

template <class TTr>
[[gnu::noinline]] void Rpc<TTr>::handle_in_background(tern::Request request, erpc_req_func_t function) {
  own_background() = this;
  // Another thread may answer before the function returns, so the handle is complete before the call.
  auto req_handle = new_handle();
  if (begin(*req_handle, request)) function(keep(std::move(req_handle), std::move(request)), context_);
  own_background() = nullptr;
}

/// Called when the handler has returned without a response.
template <class TTr>
[[gnu::noinline]] void Rpc<TTr>::keep_unanswered(ReqHandle* req_handle) {
  auto* const rpc = static_cast<Rpc*>(req_handle->rpc_);
  tern::Request request(req_handle->front_);
  (void)request.response(req_handle->pre_resp_msgbuf_.buffer_->capacity_bytes);  // that memory becomes the Request's
  (void)rpc->keep(std::exchange(rpc->spare_, rpc->new_handle()), std::move(request));
}

/// Gives the handle memory for the response. False: there is none, and the client gets no response.
template <class TTr>
bool Rpc<TTr>::begin(ReqHandle& req_handle, tern::Request& request) {
  auto room = request.response(pre_resp_msgbuf_size_);
  if (unlikely(!room.ok())) return false;
  auto* const buffer = reinterpret_cast<tern::detail::Buffer*>(room->data() - sizeof(tern::detail::Buffer));
  req_handle.pre_resp_msgbuf_ = MsgBuffer(buffer, pre_resp_msgbuf_size_);
  req_handle.req_msgbuf_.show(request.bytes());
  req_handle.front_ = nullptr;
  req_handle.request_ = &request;
  return true;
}

/// The handle owns the request; the program owns the handle until it answers.
template <class TTr>
ReqHandle* Rpc<TTr>::keep(std::unique_ptr<ReqHandle> req_handle, tern::Request request) {
  req_handle->kept_.emplace(std::move(request));
  req_handle->front_ = nullptr;
  req_handle->request_ = &*req_handle->kept_;
  req_handle->req_msgbuf_.show(req_handle->kept_->stable_bytes());
  const std::lock_guard lock(mutex_);
  ReqHandle* const name = req_handle.get();
  kept_.emplace(name, std::move(req_handle));
  return name;
}

/// enqueue_response() outside of the common case.
template <class TTr>
[[gnu::noinline]] void Rpc<TTr>::respond(ReqHandle* req_handle, MsgBuffer* response) {
  auto* const rpc = static_cast<Rpc*>(req_handle->rpc_);
  std::optional<tern::Request> of_handler;
  if (req_handle->front_ != nullptr) of_handler.emplace(std::exchange(req_handle->front_, nullptr));
  tern::Request* const request = of_handler.has_value() ? &*of_handler : std::exchange(req_handle->request_, nullptr);
  if (response == &req_handle->pre_resp_msgbuf_) {
    response->buffer_->length_bytes = static_cast<uint32_t>(response->data_size_);
    request->respond();
  } else {
    rt_assert(response->buffer_ != nullptr, "enqueue_response() takes pre_resp_msgbuf_ or dyn_resp_msgbuf_");
    rpc->forget(response->buffer_);
    tern::MsgBuf message(response->buffer_);
    (void)message.resize(response->data_size_);
    *response = MsgBuffer();
    request->respond(std::move(message));
  }
  if (req_handle->kept_.has_value()) rpc->forget(req_handle);
}

}  // namespace erpc
