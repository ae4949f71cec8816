// tern_endpoint_on_request() and tern_request_*().
#include <tern/endpoint.h>
#include <tern/request.h>
#include <tern/tern.h>

#include <utility>

#include "c/buffers.h"
#include "c/convert.h"
#include "c/objects.h"

namespace tern::c {

constinit Objects<tern_request> requests;

namespace {

/// Ends the handle; using it is an error from now on. Must come after the last use of the request's data.
void end(tern_request* request) {
  request->kind.store(Kind::kNone, std::memory_order_relaxed);
  request->live = nullptr;
  if (!request->own) return;
  request->own.reset();
  requests.end(request);
}

}  // namespace
}  // namespace tern::c

using namespace tern::c;  // NOLINT(google-build-using-namespace): what follows are names of C

tern_status tern_endpoint_on_request(tern_endpoint* endpoint, uint16_t type, tern_handler handler, void* context,
                                     const tern_handler_options* options) noexcept {
  if (tern::Status status = check(endpoint); !status.ok()) return to_c(status);
  if (handler == nullptr) return misuse("handler is NULL: pass a function");
  tern_handler_options wanted;
  if (tern::Status status = read_options(options, 24, wanted); !status.ok()) return to_c(status);
  if (wanted.reserved != 0) return to_c(kReserved);
  tern::HandlerOptions handler_options;
  handler_options.worker = wanted.worker != 0;
  handler_options.max_request_bytes = or_default(wanted.max_request_bytes, handler_options.max_request_bytes);
  const auto run = [handler, context](tern::Request request) {
    tern_request object;
    object.live = &request;
    object.kind.store(Kind::kRequest, std::memory_order_relaxed);
    handler(context, &object);
    object.kind.store(Kind::kNone, std::memory_order_relaxed);
  };
  return to_c(endpoint->endpoint->on_request(type, run, handler_options));
}

const void* tern_request_data(const tern_request* request) noexcept {
  return check(request).ok() ? request->live->bytes().data() : nullptr;
}

size_t tern_request_length(const tern_request* request) noexcept {
  return check(request).ok() ? request->live->bytes().size() : 0;
}

tern_status tern_request_response(tern_request* request, size_t len_bytes, void** data) noexcept {
  if (data == nullptr) return misuse("data is NULL: pass the address of a variable for the place of the answer");
  *data = nullptr;
  if (tern::Status status = check(request); !status.ok()) return to_c(status);
  auto space = request->live->response(len_bytes);
  if (space.ok()) *data = space->data();
  return to_c(space.status());
}

tern_status tern_request_respond(tern_request* request) noexcept {
  if (tern::Status status = check(request); !status.ok()) return to_c(status);
  request->live->respond();
  end(request);
  return to_c({});
}

tern_status tern_request_respond_with(tern_request* request, tern_msgbuf* reply) noexcept {
  if (tern::Status status = check(request); !status.ok()) return to_c(status);
  if (!is_programs(reply)) return misuse(kNoBuffer);
  request->live->respond(take(reply));
  end(request);
  return to_c({});
}

tern_status tern_request_take(tern_request* request, tern_msgbuf** message) noexcept {
  if (message == nullptr) return misuse("message is NULL: pass the address of a variable for the message");
  *message = nullptr;
  if (tern::Status status = check(request); !status.ok()) return to_c(status);
  auto taken = request->live->take_message();
  if (taken) *message = give(*taken);
  return to_c(taken.status());
}

tern_status tern_request_fail(tern_request* request, uint16_t app_code) noexcept {
  if (tern::Status status = check(request); !status.ok()) return to_c(status);
  if (app_code == 0) return misuse("app_code is 0, which means a refusal by the library: use 1 to 65535");
  request->live->fail(app_code);
  end(request);
  return to_c({});
}

tern_status tern_request_drop(tern_request* request) noexcept {
  if (tern::Status status = check(request); !status.ok()) return to_c(status);
  end(request);  // the handler's own request is dropped when the handler returns
  return to_c({});
}

tern_status tern_request_keep(tern_request* request, tern_request** kept) noexcept {
  if (kept == nullptr) return misuse("kept is NULL: pass the address of a variable for the kept request");
  *kept = nullptr;
  if (tern::Status status = check(request); !status.ok()) return to_c(status);
  if (request->own) return misuse("the request was kept already");
  tern_request* const object = requests.make();
  if (object == nullptr) return {TERN_NO_MEMORY, "no memory for a request that is kept"};
  object->own.emplace(std::move(*request->live));
  object->live = &*object->own;
  object->kind.store(Kind::kRequest, std::memory_order_relaxed);
  end(request);
  *kept = object;
  return to_c({});
}

int64_t tern_request_time_left(const tern_request* request) noexcept {
  return check(request).ok() ? request->live->time_left().count() : 0;
}

int tern_request_is_cancelled(const tern_request* request) noexcept {
  return check(request).ok() && !request->live->is_cancelled() ? 0 : 1;
}

tern_session tern_request_session(const tern_request* request) noexcept {
  return {check(request).ok() ? request->live->session().name : tern::Session().name};
}
