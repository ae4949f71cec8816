// Calls, requests, sessions and message buffers through the C interface.
#include <pthread.h>

#include "check.h"

enum { ECHO = 1, OWN_BUFFER, TAKEN, EMPTY, FAIL, FORGET, DROP, LATER, WORKER, REPLACED, ABSENT };

// --- handlers --------------------------------------------------------------------------------------------------------

static void echo(void *context, tern_request *request) {
  const size_t length = tern_request_length(request);
  void *space;
  (void)context;
  CHECK(tern_request_data(request) != NULL || length == 0);
  CHECK_OK(tern_request_response(request, length, &space));
  if (length > 0) memcpy(space, tern_request_data(request), length);
  CHECK_OK(tern_request_respond(request));
  // An answered request is invalid.
  CHECK_MISUSE(tern_request_respond(request), "has ended");
  CHECK_MISUSE(tern_request_response(request, 1, &space), "has ended");
  CHECK(space == NULL && tern_request_data(request) == NULL && tern_request_length(request) == 0);
}

static void answer_with_own_buffer(void *context, tern_request *request) {
  const struct pair *pair = context;
  const size_t length = tern_request_length(request);
  tern_msgbuf *reply = make_buffer(pair->server, length);
  memcpy(tern_msgbuf_data(reply), tern_request_data(request), length);
  CHECK_MISUSE(tern_request_respond_with(request, NULL), "the program does not own the buffer");
  CHECK_OK(tern_request_respond_with(request, reply));
  CHECK_MISUSE(tern_msgbuf_free(reply), "the program does not own the buffer");  // the buffer belongs to the library
  CHECK(tern_msgbuf_data(reply) == NULL);
}

static void answer_with_its_message(void *context, tern_request *request) {
  (void)context;
  const size_t length = tern_request_length(request);
  tern_msgbuf *message = NULL;
  CHECK_MISUSE(tern_request_take(request, NULL), "message is NULL");
  CHECK_OK(tern_request_take(request, &message));
  CHECK(tern_msgbuf_length(message) == length && tern_request_length(request) == 0);
  CHECK_OK(tern_request_respond_with(request, message));
  CHECK_MISUSE(tern_request_take(request, &message), "has ended");
  CHECK(message == NULL);
}

static void answer_nothing(void *context, tern_request *request) {
  (void)context;
  CHECK_OK(tern_request_respond(request));
}

static void fail_with_77(void *context, tern_request *request) {
  (void)context;
  CHECK_MISUSE(tern_request_fail(request, 0), "app_code is 0");
  CHECK_OK(tern_request_fail(request, 77));
  CHECK_MISUSE(tern_request_fail(request, 77), "has ended");
}

static void forget(void *context, tern_request *request) {
  (void)context;
  CHECK(tern_request_time_left(request) == TERN_FOREVER);
}

static void drop(void *context, tern_request *request) {
  (void)context;
  CHECK_OK(tern_request_drop(request));
  CHECK_MISUSE(tern_request_drop(request), "has ended");
}

static void replace_response(void *context, tern_request *request) {
  void *space;
  (void)context;
  CHECK_OK(tern_request_response(request, 1 << 20, &space));  // more than the preallocated space
  memset(space, 1, 1 << 20);
  CHECK_STATUS(tern_request_response(request, SIZE_MAX, &space), TERN_TOO_LARGE, "");
  CHECK_OK(tern_request_response(request, 3, &space));
  memcpy(space, "abc", 3);
  CHECK_OK(tern_request_respond(request));
}

/// The last request of a handler that keeps requests.
struct kept {
  tern_request *request;
  tern_session session;
  int64_t time_left;
};

static void keep(void *context, tern_request *request) {
  struct kept *kept = context;
  CHECK(kept->request == NULL);
  CHECK_MISUSE(tern_request_keep(request, NULL), "kept is NULL");
  CHECK_OK(tern_request_keep(request, &kept->request));
  tern_request *again = request;
  CHECK_MISUSE(tern_request_keep(request, &again), "has ended");
  CHECK_MISUSE(tern_request_keep(kept->request, &again), "kept already");
  CHECK(again == NULL);
  CHECK_MISUSE(tern_request_respond(request), "tern_request_keep()");
  kept->session = tern_request_session(kept->request);
  kept->time_left = tern_request_time_left(kept->request);
}

static void *answer_elsewhere(void *context) {
  echo(NULL, context);
  return NULL;
}

static pthread_t loop_thread;

static void echo_in_worker(void *context, tern_request *request) {
  CHECK(!pthread_equal(pthread_self(), loop_thread));
  echo(context, request);
}

static struct pair with_handlers(const char *transport, struct kept *kept) {
  static struct pair pair;
  make_pair(&pair, transport);
  const tern_handler_options in_worker = {.size = sizeof(in_worker), .worker = 1, .max_request_bytes = 1000};
  CHECK_OK(tern_endpoint_on_request(pair.server, ECHO, echo, NULL, NULL));
  CHECK_OK(tern_endpoint_on_request(pair.server, OWN_BUFFER, answer_with_own_buffer, &pair, NULL));
  CHECK_OK(tern_endpoint_on_request(pair.server, TAKEN, answer_with_its_message, NULL, NULL));
  CHECK_OK(tern_endpoint_on_request(pair.server, EMPTY, answer_nothing, NULL, NULL));
  CHECK_OK(tern_endpoint_on_request(pair.server, FAIL, fail_with_77, NULL, NULL));
  CHECK_OK(tern_endpoint_on_request(pair.server, FORGET, forget, NULL, NULL));
  CHECK_OK(tern_endpoint_on_request(pair.server, DROP, drop, NULL, NULL));
  CHECK_OK(tern_endpoint_on_request(pair.server, REPLACED, replace_response, NULL, NULL));
  CHECK_OK(tern_endpoint_on_request(pair.server, LATER, keep, kept, NULL));
  CHECK_OK(tern_endpoint_on_request(pair.server, WORKER, echo_in_worker, NULL, &in_worker));
  loop_thread = pthread_self();
  open_session(&pair);
  return pair;
}

static void check_echoed(struct call *call, size_t length) {
  CHECK_OK(call->status);
  CHECK(tern_msgbuf_length(call->response) == length);
  CHECK(length == 0 || memcmp(tern_msgbuf_data(call->response), tern_msgbuf_data(call->request), length) == 0);
  free_buffers(call);
}

static void check_fails(struct pair *pair, uint16_t type, size_t length, tern_code code, uint16_t app_code) {
  struct call call;
  run_call(pair, type, length, &call);
  CHECK_STATUS(call.status, code, "");
  CHECK(call.app_code == app_code);
  free_buffers(&call);
}

// --- cases -----------------------------------------------------------------------------------------------------------

CASE(messages_of_all_sizes_come_back) {
  struct pair pair = with_handlers(transport, NULL);
  const size_t lengths[] = {0, 1, 31, 1000, 5000, 100000, 3 << 20};
  for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); ++i) {
    struct call call;
    run_call(&pair, ECHO, lengths[i], &call);
    check_echoed(&call, lengths[i]);
    run_call(&pair, OWN_BUFFER, lengths[i], &call);
    check_echoed(&call, lengths[i]);
    run_call(&pair, TAKEN, lengths[i], &call);
    check_echoed(&call, lengths[i]);
  }
  destroy_pair(&pair);
}

CASE(outcomes_other_than_an_answer) {
  struct pair pair = with_handlers(transport, NULL);
  struct call call;
  run_call(&pair, EMPTY, 10, &call);
  CHECK_OK(call.status);
  CHECK(tern_msgbuf_length(call.response) == 0);
  free_buffers(&call);
  run_call(&pair, REPLACED, 10, &call);
  CHECK_OK(call.status);
  CHECK(tern_msgbuf_length(call.response) == 3 && memcmp(tern_msgbuf_data(call.response), "abc", 3) == 0);
  free_buffers(&call);
  call = (struct call){.request = make_buffer(pair.client, 5000), .response = make_buffer(pair.client, 0)};
  CHECK_OK(tern_call_start(pair.client, pair.session, ECHO, call.request, call.response, on_done, &call, NULL, NULL));
  TURN_UNTIL(&pair, call.done);
  CHECK_STATUS(call.status, TERN_TOO_LARGE, "");  // the response is longer than its buffer
  free_buffers(&call);
  check_fails(&pair, FAIL, 10, TERN_REFUSED, 77);
  check_fails(&pair, FORGET, 10, TERN_NO_RESPONSE, 0);
  check_fails(&pair, DROP, 10, TERN_NO_RESPONSE, 0);
  check_fails(&pair, ABSENT, 10, TERN_REFUSED, 0);
  check_fails(&pair, WORKER, 1001, TERN_TOO_LARGE, 0);
  run_call(&pair, WORKER, 1000, &call);
  check_echoed(&call, 1000);
  destroy_pair(&pair);
}

CASE(kept_request_is_answered_later) {
  struct kept kept = {0};
  struct pair pair = with_handlers(transport, &kept);
  struct call call;
  for (int by_thread = 0; by_thread < 2; ++by_thread) {
    start_call(&pair, LATER, 3000, 0, &call);
    TURN_UNTIL(&pair, kept.request != NULL);
    for (int i = 0; i < 100; ++i) turn(&pair);
    CHECK(!call.done && tern_request_length(kept.request) == 3000);
    CHECK(tern_request_is_cancelled(kept.request) == 0);
    if (by_thread) {
      pthread_t thread;
      CHECK(pthread_create(&thread, NULL, answer_elsewhere, kept.request) == 0);
      pthread_join(thread, NULL);
    } else {
      echo(NULL, kept.request);
    }
    TURN_UNTIL(&pair, call.done);
    check_echoed(&call, 3000);
    // The handle stays invalid.
    CHECK_MISUSE(tern_request_respond(kept.request), "has ended");
    CHECK(tern_request_is_cancelled(kept.request) == 1 && tern_request_time_left(kept.request) == 0);
    kept.request = NULL;
  }
  start_call(&pair, LATER, 1, 0, &call);
  TURN_UNTIL(&pair, kept.request != NULL);
  CHECK_OK(tern_request_drop(kept.request));
  TURN_UNTIL(&pair, call.done);
  CHECK_STATUS(call.status, TERN_NO_RESPONSE, "");
  free_buffers(&call);
  kept.request = NULL;

  // A request that outlives its endpoint.
  start_call(&pair, LATER, 10, 0, &call);
  TURN_UNTIL(&pair, kept.request != NULL);
  destroy_pair(&pair);
  CHECK(call.done == 1);
  CHECK_STATUS(call.status, TERN_CANCELLED, "");
  free_buffers(&call);  // after the end of their endpoint
  CHECK_OK(tern_request_fail(kept.request, 1));
}

CASE(deadline_and_cancel_end_calls) {
  struct kept kept = {0};
  struct pair pair = with_handlers(transport, &kept);
  struct call call;
  start_call(&pair, LATER, 10, 2000 * INT64_C(1000000), &call);
  TURN_UNTIL(&pair, kept.request != NULL);
  CHECK(kept.time_left > 0 && kept.time_left <= 2000 * INT64_C(1000000));
  TURN_UNTIL(&pair, call.done);
  CHECK_STATUS(call.status, TERN_DEADLINE, "");
  TURN_UNTIL(&pair, tern_request_is_cancelled(kept.request));
  CHECK_OK(tern_request_respond(kept.request));
  free_buffers(&call);
  kept.request = NULL;

  start_call(&pair, LATER, 10, 0, &call);
  TURN_UNTIL(&pair, kept.request != NULL);
  CHECK_OK(tern_call_cancel(pair.client, call.name));
  TURN_UNTIL(&pair, call.done);
  CHECK_STATUS(call.status, TERN_CANCELLED, "");
  CHECK_MISUSE(tern_call_cancel(pair.client, call.name), "no such call");
  TURN_UNTIL(&pair, tern_request_is_cancelled(kept.request));
  CHECK_OK(tern_request_drop(kept.request));
  free_buffers(&call);
  destroy_pair(&pair);
}

/// The events that a listener has received, for each side.
struct heard {
  int opened[2], ended[2];
  tern_status why[2];
};

static void listen_to(void *context, const tern_session_event *event) {
  struct heard *heard = context;
  const int side = event->is_client;
  CHECK(side == 0 || side == 1);
  if (event->state == TERN_SESSION_OPEN) {
    ++heard->opened[side];
  } else {
    CHECK(event->state == TERN_SESSION_ENDED);
    ++heard->ended[side];
    heard->why[side] = event->status;
  }
}

CASE(session_events_and_state) {
  struct pair pair;
  struct heard heard = {0};
  struct kept kept = {0};
  make_pair(&pair, transport);
  CHECK_OK(tern_endpoint_on_session_event(pair.server, listen_to, &heard));
  CHECK_OK(tern_endpoint_on_session_event(pair.client, listen_to, &heard));
  CHECK_MISUSE(tern_endpoint_on_session_event(pair.client, listen_to, &heard), "listener");
  CHECK_OK(tern_endpoint_on_request(pair.server, LATER, keep, &kept, NULL));
  const tern_session_options options = {.size = sizeof(options), .window = 2, .rate_bytes_per_sec = 100000000};
  CHECK_OK(tern_session_open(pair.client, tern_nexus_uri(pair.nexus), &options, &pair.session));
  tern_session_info info = {.size = sizeof(info)};
  CHECK_OK(tern_session_inspect(pair.client, pair.session, &info));
  CHECK(info.state == TERN_SESSION_CONNECTING && info.is_client == 1);
  struct call call;
  start_call(&pair, LATER, 10, 0, &call);
  TURN_UNTIL(&pair, kept.request != NULL && heard.opened[0] && heard.opened[1]);
  CHECK_OK(tern_session_inspect(pair.client, pair.session, &info));
  CHECK(info.state == TERN_SESSION_OPEN && info.is_client == 1 && info.size == sizeof(info));
  CHECK(info.rate_bytes_per_sec == 100000000);
  CHECK(strcmp(info.peer, tern_nexus_uri(pair.nexus) + strlen("tern://")) == 0);
  CHECK_OK(tern_session_inspect(pair.server, kept.session, &info));
  CHECK(info.state == TERN_SESSION_OPEN && info.is_client == 0);
  CHECK_MISUSE(tern_session_close(pair.server, kept.session), "");

  CHECK_OK(tern_session_close(pair.client, pair.session));
  TURN_UNTIL(&pair, call.done && heard.ended[0] && heard.ended[1]);
  CHECK_STATUS(call.status, TERN_CANCELLED, "");
  CHECK_STATUS(tern_session_close(pair.client, pair.session), TERN_SESSION_RESET, "");
  CHECK_OK(tern_session_inspect(pair.client, pair.session, &info));
  CHECK(info.state == TERN_SESSION_ENDED && info.peer[0] == '\0');
  for (int side = 0; side < 2; ++side) CHECK(heard.opened[side] == 1 && heard.ended[side] == 1);
  CHECK(tern_request_is_cancelled(kept.request) == 1);
  CHECK_OK(tern_request_drop(kept.request));
  free_buffers(&call);

  // No Nexus listens at this address.
  const tern_session_options hasty = {.size = sizeof(hasty), .connect_timeout_ns = 200 * INT64_C(1000000)};
  CHECK_OK(tern_session_open(pair.client, "tern://127.0.0.1:9", &hasty, &pair.session));
  start_call(&pair, LATER, 10, 0, &call);
  TURN_UNTIL(&pair, call.done && heard.ended[1] == 2);
  CHECK_STATUS(call.status, TERN_PEER_UNREACHABLE, "");
  CHECK(heard.why[1].code == TERN_PEER_UNREACHABLE && heard.opened[1] == 1);
  free_buffers(&call);
  destroy_pair(&pair);
}

CASE(buffers_have_one_owner) {
  struct kept kept = {0};
  struct pair pair = with_handlers(transport, &kept);
  tern_msgbuf *buffer = make_buffer(pair.client, 100);
  CHECK((uintptr_t)tern_msgbuf_data(buffer) % 64 == 0);
  const size_t capacity = tern_msgbuf_capacity(buffer);
  CHECK_OK(tern_msgbuf_resize(buffer, capacity));
  CHECK(tern_msgbuf_length(buffer) == capacity);
  memset(tern_msgbuf_data(buffer), 1, capacity);
  CHECK_STATUS(tern_msgbuf_resize(buffer, capacity + 1), TERN_TOO_LARGE, "capacity");
  CHECK(tern_msgbuf_length(buffer) == capacity);
  CHECK_MISUSE(tern_msgbuf_free((tern_msgbuf *)((char *)buffer + 8)), "the program does not own the buffer");
  CHECK_OK(tern_msgbuf_free(buffer));
  CHECK_MISUSE(tern_msgbuf_free(buffer), "freed");
  CHECK_MISUSE(tern_msgbuf_resize(buffer, 1), "freed");
  CHECK(tern_msgbuf_data(buffer) == NULL && tern_msgbuf_length(buffer) == 0 && tern_msgbuf_capacity(buffer) == 0);
  CHECK_STATUS(tern_msgbuf_alloc(pair.client, ((size_t)1 << 30) + 1, &buffer), TERN_TOO_LARGE, "1 GiB");
  CHECK(buffer == NULL);

  // The buffers of a call belong to the library until the call ends.
  struct call call;
  start_call(&pair, LATER, 100, 0, &call);
  tern_msgbuf *const request = call.request, *const response = call.response;
  CHECK_MISUSE(tern_msgbuf_free(request), "a call has it until its continuation runs");
  CHECK(tern_msgbuf_data(response) == NULL);
  buffer = make_buffer(pair.client, 1);
  CHECK_MISUSE(tern_call_start(pair.client, pair.session, ECHO, request, buffer, on_done, NULL, NULL, NULL), "has it");
  CHECK_MISUSE(tern_call_start(pair.client, pair.session, ECHO, buffer, response, on_done, NULL, NULL, NULL), "has it");
  CHECK_MISUSE(tern_call_start(pair.client, pair.session, ECHO, buffer, buffer, on_done, NULL, NULL, NULL),
               "two different buffers");
  TURN_UNTIL(&pair, kept.request != NULL);
  echo(NULL, kept.request);
  TURN_UNTIL(&pair, call.done);
  CHECK(call.request == request && call.response == response);  // the same memory is returned, and may be used again
  call.done = 0;
  CHECK_OK(tern_call_start(pair.client, pair.session, ECHO, request, response, on_done, &call, NULL, NULL));
  TURN_UNTIL(&pair, call.done);
  check_echoed(&call, 100);
  CHECK_OK(tern_msgbuf_free(buffer));
  destroy_pair(&pair);
}

CASE(refused_call_leaves_buffers_with_caller) {
  struct pair pair = with_handlers(transport, NULL);
  tern_msgbuf *request = make_buffer(pair.client, 10), *response = make_buffer(pair.client, 10);
  tern_msgbuf *foreign = make_buffer(pair.server, 10);
  tern_call name = {1};
  const tern_session none = {12345};
  const tern_call_options late = {.size = sizeof(late), .deadline_ns = -1}, short_ = {.size = 8};
  CHECK_STATUS(tern_call_start(pair.client, none, ECHO, request, response, on_done, NULL, NULL, &name),
               TERN_SESSION_RESET, "");
  CHECK(name.id == 0);
  CHECK_MISUSE(tern_call_start(pair.client, pair.session, 4096, request, response, on_done, NULL, NULL, NULL), "4095");
  CHECK_MISUSE(tern_call_start(pair.client, pair.session, ECHO, foreign, response, on_done, NULL, NULL, NULL),
               "another");
  CHECK_MISUSE(tern_call_start(pair.client, pair.session, ECHO, request, response, NULL, NULL, NULL, NULL),
               "then is NULL");
  CHECK_MISUSE(tern_call_start(pair.client, pair.session, ECHO, request, NULL, on_done, NULL, NULL, NULL), "NULL");
  CHECK_MISUSE(tern_call_start(pair.client, pair.session, ECHO, request, response, on_done, NULL, &late, NULL),
               "negative");
  CHECK_MISUSE(tern_call_start(pair.client, pair.session, ECHO, request, response, on_done, NULL, &short_, NULL),
               "size");
  CHECK(tern_msgbuf_length(foreign) == 10 && tern_msgbuf_data(response) != NULL);
  struct call call = {0};
  CHECK_OK(tern_call_start(pair.client, pair.session, ECHO, request, response, on_done, &call, NULL, &name));
  TURN_UNTIL(&pair, call.done);
  CHECK_OK(call.status);
  free_buffers(&call);
  CHECK_OK(tern_msgbuf_free(foreign));
  destroy_pair(&pair);
}

CASE(waiting_calls_are_limited) {
  struct kept kept = {0};
  struct pair pair = with_handlers(transport, &kept);
  CHECK_OK(tern_endpoint_destroy(pair.client));
  const tern_endpoint_options options = {
      .size = sizeof(options), .transport = transport, .endpoint_id = 5, .queue_limit = 3, .no_huge_pages = 1};
  CHECK_OK(tern_endpoint_create(pair.nexus, &options, &pair.client));
  const tern_session_options narrow = {.size = sizeof(narrow), .window = 1};
  CHECK_OK(tern_session_open(pair.client, tern_nexus_uri(pair.nexus), &narrow, &pair.session));
  struct call calls[4];
  for (int i = 0; i < 3; ++i) start_call(&pair, ECHO, 10, 0, &calls[i]);
  tern_msgbuf *request = make_buffer(pair.client, 10), *response = make_buffer(pair.client, 10);
  tern_status status;
  int accepted = 0;
  do {  // another call may still get a slot
    status = tern_call_start(pair.client, pair.session, ECHO, request, response, on_done, &calls[3], NULL, NULL);
    if (status.code == TERN_OK) {
      calls[3] = (struct call){0};
      request = make_buffer(pair.client, 10);
      response = make_buffer(pair.client, 10);
      CHECK(++accepted <= 1);
    }
  } while (status.code == TERN_OK);
  CHECK_STATUS(status, TERN_QUEUE_FULL, "");
  for (int i = 0; i < 3 + accepted; ++i) {
    TURN_UNTIL(&pair, calls[i].done);
    CHECK_OK(calls[i].status);
    free_buffers(&calls[i]);
  }
  CHECK_OK(tern_msgbuf_free(request));
  CHECK_OK(tern_msgbuf_free(response));
  destroy_pair(&pair);
}

RUN_CASES({"messages_of_all_sizes_come_back", messages_of_all_sizes_come_back},
          {"outcomes_other_than_an_answer", outcomes_other_than_an_answer},
          {"kept_request_is_answered_later", kept_request_is_answered_later},
          {"deadline_and_cancel_end_calls", deadline_and_cancel_end_calls},
          {"session_events_and_state", session_events_and_state}, {"buffers_have_one_owner", buffers_have_one_owner},
          {"refused_call_leaves_buffers_with_caller", refused_call_leaves_buffers_with_caller},
          {"waiting_calls_are_limited", waiting_calls_are_limited})
