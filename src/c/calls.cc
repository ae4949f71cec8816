// tern_session_*(), tern_msgbuf_*() and tern_call_*().
#include <tern/endpoint.h>
#include <tern/msgbuf.h>
#include <tern/session.h>
#include <tern/tern.h>

#include <cstring>
#include <utility>

#include "c/buffers.h"
#include "c/convert.h"
#include "c/handles.h"
#include "memory/arena.h"

namespace tern::c {
namespace {

static_assert(static_cast<int>(SessionState::kConnecting) == TERN_SESSION_CONNECTING);
static_assert(static_cast<int>(SessionState::kOpen) == TERN_SESSION_OPEN);
static_assert(static_cast<int>(SessionState::kEnded) == TERN_SESSION_ENDED);
static_assert(static_cast<int>(CongestionControl::kDefault) == TERN_CC_DEFAULT);
static_assert(static_cast<int>(CongestionControl::kNone) == TERN_CC_NONE);
static_assert(static_cast<int>(CongestionControl::kTimely) == TERN_CC_TIMELY);
static_assert(static_cast<int>(CongestionControl::kPatchedTimely) == TERN_CC_PATCHED_TIMELY);
static_assert(static_cast<int>(CongestionControl::kSwift) == TERN_CC_SWIFT);
static_assert(static_cast<int>(CongestionControl::kDctcp) == TERN_CC_DCTCP);

Result<SessionOptions> session_options(const tern_session_options* given) {
  tern_session_options wanted;
  if (Status status = read_options(given, 32, wanted); !status.ok()) return status;
  if (wanted.reserved != 0) return kReserved;
  if (wanted.connect_timeout_ns < 0 || wanted.reconnect_pause_ns < 0 || wanted.reconnect_pause_max_ns < 0) {
    return kNegative;
  }
  if (wanted.window > 64) return Status(Code::kMisuse, "options->window must be 1 to 64, or 0 for the default");
  if (Status status = check_congestion_control(wanted.congestion_control); !status.ok()) return status;
  SessionOptions options;
  options.window = static_cast<uint8_t>(or_default(wanted.window, static_cast<uint32_t>(options.window)));
  options.connect_timeout = or_default(wanted.connect_timeout_ns, options.connect_timeout);
  options.rate_bytes_per_sec = wanted.rate_bytes_per_sec;
  options.congestion_control = static_cast<CongestionControl>(wanted.congestion_control);
  options.reconnect = wanted.reconnect != 0;
  options.reconnect_pause = or_default(wanted.reconnect_pause_ns, options.reconnect_pause);
  options.reconnect_pause_max = or_default(wanted.reconnect_pause_max_ns, options.reconnect_pause_max);
  return options;
}

}  // namespace
}  // namespace tern::c

using namespace tern::c;  // NOLINT(google-build-using-namespace): what follows are names of C

tern_status tern_session_open(tern_endpoint* endpoint, const char* uri, const tern_session_options* options,
                              tern_session* session) noexcept {
  if (session == nullptr) return misuse("session is NULL: pass the address of a variable for the new one");
  *session = {tern::Session().name};
  if (tern::Status status = check(endpoint); !status.ok()) return to_c(status);
  if (uri == nullptr) return misuse("uri is NULL: pass \"tern://HOST:PORT/E\"");
  const auto wanted = session_options(options);
  if (!wanted.ok()) return to_c(wanted.status());
  const auto result = endpoint->endpoint->create_session(uri, *wanted);
  if (result.ok()) *session = {(*result).name};
  return to_c(result.status());
}

tern_status tern_session_close(tern_endpoint* endpoint, tern_session session) noexcept {
  if (tern::Status status = check(endpoint); !status.ok()) return to_c(status);
  return to_c(endpoint->endpoint->destroy_session({session.name}));
}

tern_status tern_session_inspect(const tern_endpoint* endpoint, tern_session session,
                                 tern_session_info* info) noexcept {
  if (info == nullptr) return misuse("info is NULL: pass the address of a struct for the state");
  if (info->size < 120) return misuse("info->size is not the size of the struct: set it to sizeof(tern_session_info)");
  if (tern::Status status = check(endpoint); !status.ok()) return to_c(status);
  const tern::SessionInfo found = endpoint->endpoint->session_info({session.name});
  tern_session_info filled = {};
  filled.size = info->size;
  filled.state = static_cast<int32_t>(found.state);
  filled.is_client = found.is_client ? 1 : 0;
  filled.retransmissions = found.retransmissions;
  filled.round_trip_ns = found.round_trip.count();
  filled.rate_bytes_per_sec = found.rate_bytes_per_sec;
  found.peer.copy(filled.peer, sizeof(filled.peer) - 1);
  std::memcpy(info, &filled, std::min(filled.size, sizeof(filled)));  // fields of a later version stay unset
  return to_c({});
}

tern_status tern_endpoint_on_session_event(tern_endpoint* endpoint, tern_session_listener listener,
                                           void* context) noexcept {
  if (tern::Status status = check(endpoint); !status.ok()) return to_c(status);
  if (listener == nullptr) return misuse("listener is NULL: pass a function");
  return to_c(endpoint->endpoint->on_session_event([listener, context](const tern::SessionEvent& event) {
    const tern_session_event heard = {
        {event.session.name}, event.is_client ? 1 : 0, static_cast<int32_t>(event.state), to_c(event.status)};
    listener(context, &heard);
  }));
}

tern_status tern_msgbuf_alloc(tern_endpoint* endpoint, size_t len_bytes, tern_msgbuf** buffer) noexcept {
  if (buffer == nullptr) return misuse("buffer is NULL: pass the address of a variable for the new one");
  *buffer = nullptr;
  if (tern::Status status = check(endpoint); !status.ok()) return to_c(status);
  if (len_bytes > tern::memory::Arena::kMessageBytesMax) return {TERN_TOO_LARGE, "a message may have at most 1 GiB"};
  tern::MsgBuf msgbuf = endpoint->endpoint->alloc_msgbuf(len_bytes);
  if (!msgbuf) return {TERN_NO_MEMORY, "no memory for a message buffer: free some, or raise memory_limit_bytes"};
  *buffer = give(msgbuf);
  return to_c({});
}

tern_status tern_msgbuf_free(tern_msgbuf* buffer) noexcept {
  if (buffer == nullptr) return to_c({});
  if (!is_programs(buffer)) return misuse(kNoBuffer);
  (void)take(buffer);
  return to_c({});
}

void* tern_msgbuf_data(tern_msgbuf* buffer) noexcept {
  return is_programs(buffer) ? buffer_of(buffer)->data() : nullptr;
}

size_t tern_msgbuf_length(const tern_msgbuf* buffer) noexcept {
  return is_programs(buffer) ? buffer_of(buffer)->length_bytes : 0;
}

size_t tern_msgbuf_capacity(const tern_msgbuf* buffer) noexcept {
  return is_programs(buffer) ? buffer_of(buffer)->capacity_bytes : 0;
}

tern_status tern_msgbuf_resize(tern_msgbuf* buffer, size_t len_bytes) noexcept {
  if (!is_programs(buffer)) return misuse(kNoBuffer);
  if (len_bytes > buffer_of(buffer)->capacity_bytes) {
    return {TERN_TOO_LARGE, "the length is above the capacity of the buffer: allocate a larger one"};
  }
  buffer_of(buffer)->length_bytes = static_cast<uint32_t>(len_bytes);
  return to_c({});
}

tern_status tern_call_start(tern_endpoint* endpoint, tern_session session, uint16_t type, tern_msgbuf* request,
                            tern_msgbuf* response, tern_continuation then, void* context,
                            const tern_call_options* options, tern_call* call) noexcept {
  if (call != nullptr) *call = {0};
  if (tern::Status status = check(endpoint); !status.ok()) return to_c(status);
  if (!is_programs(request) || !is_programs(response)) return misuse(kNoBuffer);
  if (request == response) return misuse("the request and the response must be two different buffers");
  if (then == nullptr) return misuse("then is NULL: pass a continuation, which takes the buffers back");
  tern::CallOptions call_options;
  if (options != nullptr) {
    tern_call_options wanted;
    if (tern::Status status = read_options(options, 16, wanted); !status.ok()) return to_c(status);
    if (wanted.deadline_ns < 0) return to_c(kNegative);
    call_options.deadline = or_default(wanted.deadline_ns, call_options.deadline);
  }
  tern::MsgBuf sent = take(request);
  tern::MsgBuf space = take(response);
  const auto run = [then, context](tern::Completion& done) {
    tern_completion completion = {to_c(done.status), give(done.request), give(done.response), done.app_code};
    then(context, &completion);
  };
  const auto started =
      endpoint->endpoint->enqueue_request({session.name}, type, std::move(sent), std::move(space), run, call_options);
  if (!started.ok()) {
    (void)give(sent);
    (void)give(space);
    return to_c(started.status());
  }
  if (call != nullptr) *call = {(*started).value};
  return to_c({});
}

tern_status tern_call_cancel(tern_endpoint* endpoint, tern_call call) noexcept {
  if (tern::Status status = check(endpoint); !status.ok()) return to_c(status);
  return to_c(endpoint->endpoint->cancel({call.id}));
}
