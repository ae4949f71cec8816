// Nexuses, endpoints, their loops, options and handles through the C interface.
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "check.h"

static void echo(void *context, tern_request *request) {
  const size_t length = tern_request_length(request);
  void *space;
  (void)context;
  CHECK_OK(tern_request_response(request, length, &space));
  if (length > 0) memcpy(space, tern_request_data(request), length);
  CHECK_OK(tern_request_respond(request));
}

static void count(void *context) { ++*(int *)context; }

CASE(names) {
  unsigned major, minor, patch;
  char rest;
  CHECK(sscanf(tern_version(), "%u.%u.%u%c", &major, &minor, &patch, &rest) == 3);
  int has_transport = 0;
  size_t index = 0;
  for (; tern_transport_name(index) != NULL; ++index)
    has_transport += strcmp(tern_transport_name(index), transport) == 0;
  CHECK(has_transport == 1 && index >= 2 && tern_transport_name(index + 1) == NULL);
  CHECK(strcmp(tern_transport_name(0), "shm") == 0);
  for (index = 0; tern_counter_name(index) != NULL; ++index) CHECK(tern_counter_name(index)[0] != '\0');
  CHECK(index > 20 && tern_counter_name(SIZE_MAX) == NULL);
}

CASE(numbers_in_words) {
  (void)transport;
  CHECK(strcmp(tern_code_name(TERN_OK), "ok") == 0);
  CHECK(strcmp(tern_code_name(TERN_DEADLINE), "deadline passed") == 0);
  CHECK(strcmp(tern_code_name(TERN_UNAVAILABLE), "unavailable") == 0);
  CHECK(strcmp(tern_log_kind_name(TERN_LOG_NEXUS_CREATED), "nexus_created") == 0);
  CHECK(strcmp(tern_log_kind_name(TERN_LOG_SESSION_LOST), "session_lost") == 0);
  CHECK(strcmp(tern_log_kind_name(TERN_LOG_TRANSPORT_FAILED), "transport_failed") == 0);
  CHECK(strcmp(tern_log_severity_name(TERN_LOG_WARNING), "warning") == 0);
  // Each value has its own words. Other numbers, whether wrong or of a later version, have none.
  const char *(*const names[])(int32_t) = {tern_code_name, tern_log_kind_name, tern_log_severity_name};
  const int32_t last[] = {TERN_UNAVAILABLE, TERN_LOG_TRACE_MISSING, TERN_LOG_ERROR};
  for (int of = 0; of < 3; ++of) {
    const char *const unknown = names[of](-1);
    CHECK(strncmp(unknown, "unknown", 7) == 0);
    for (int32_t a = 0; a <= last[of]; ++a) {
      CHECK(strcmp(names[of](a), unknown) != 0);
      for (int32_t b = 0; b < a; ++b) CHECK(strcmp(names[of](a), names[of](b)) != 0);
    }
    CHECK(strcmp(names[of](last[of] + 1), unknown) == 0);
    CHECK(strcmp(names[of](256), unknown) == 0 && strcmp(names[of](INT32_MIN), unknown) == 0);
  }
}

CASE(nexus_options_are_checked) {
  tern_nexus *nexus, *other = (tern_nexus *)&nexus;
  tern_nexus_options options = {.size = sizeof(options), .worker_threads = 2, .liveness_timeout_ns = 1000000000};
  CHECK_OK(tern_nexus_create("tern://127.0.0.1:0", &options, &nexus));
  CHECK(strncmp(tern_nexus_uri(nexus), "tern://127.0.0.1:", 17) == 0);
  CHECK_STATUS(tern_nexus_create(tern_nexus_uri(nexus), NULL, &other), TERN_UNAVAILABLE, "");
  CHECK(other == NULL);
  CHECK_MISUSE(tern_nexus_create("127.0.0.1", NULL, &other), "");
  CHECK_MISUSE(tern_nexus_create(NULL, NULL, &other), "listen_uri is NULL");
  CHECK_MISUSE(tern_nexus_create("tern://127.0.0.1:0", NULL, NULL), "nexus is NULL");
  options.size = 8;
  CHECK_MISUSE(tern_nexus_create("tern://127.0.0.1:0", &options, &other), "sizeof");
  options.size = 0;
  CHECK_MISUSE(tern_nexus_create("tern://127.0.0.1:0", &options, &other), "sizeof");
  options.size = offsetof(tern_nexus_options, page) + sizeof(options.page) / 2;  // it would cut the pointer in two
  CHECK_MISUSE(tern_nexus_create("tern://127.0.0.1:0", &options, &other), "sizeof");
  options = (tern_nexus_options){.size = sizeof(options), .log_context = &nexus};
  CHECK_MISUSE(tern_nexus_create("tern://127.0.0.1:0", &options, &other), "options->log is NULL");
  options = (tern_nexus_options){.size = sizeof(options), .liveness_timeout_ns = -1};
  CHECK_MISUSE(tern_nexus_create("tern://127.0.0.1:0", &options, &other), "negative");

  // The struct of a later version is refused unless its additional fields are zero.
  struct {
    tern_nexus_options known;
    uint64_t unknown;
  } later = {.known = {.size = sizeof(later)}};
  CHECK_OK(tern_nexus_create("tern://127.0.0.1:0", &later.known, &other));
  CHECK_OK(tern_nexus_destroy(other));
  later.unknown = 1;
  CHECK_MISUSE(tern_nexus_create("tern://127.0.0.1:0", &later.known, &other), "older than the program");
  later.unknown = 0;
  later.known.size = SIZE_MAX - 7;  // a multiple of the alignment, as every size of a struct
  CHECK_MISUSE(tern_nexus_create("tern://127.0.0.1:0", &later.known, &other), "size is wrong");

  tern_endpoint *endpoint = make_endpoint(nexus, transport, 0);
  CHECK_MISUSE(tern_nexus_destroy(nexus), "has endpoints");
  CHECK_OK(tern_endpoint_destroy(endpoint));
  CHECK_OK(tern_nexus_destroy(nexus));
  CHECK_MISUSE(tern_nexus_destroy(nexus), "was destroyed");
  CHECK(tern_nexus_uri(nexus) == NULL);
}

static void *destroy_nexus(void *nexus) {
  static tern_status status;
  status = tern_nexus_destroy(nexus);
  return &status;
}

/// The nexus whose endpoint is being created, and the status of its destruction meanwhile.
struct early {
  tern_nexus *nexus;
  tern_status status;
};
static void destroy_early(void *context, const tern_log_event *event) {
  struct early *early = context;
  pthread_t thread;
  void *status;
  if (event->kind != TERN_LOG_ENDPOINT_CREATED) return;
  CHECK(pthread_create(&thread, NULL, destroy_nexus, early->nexus) == 0);
  CHECK(pthread_join(thread, &status) == 0);
  early->status = *(tern_status *)status;
}

CASE(nexus_is_not_destroyed_while_an_endpoint_is_created) {
  struct early early = {.status = {TERN_OK, "not called"}};
  const tern_nexus_options options = {.size = sizeof(options), .log = destroy_early, .log_context = &early};
  CHECK_OK(tern_nexus_create("tern://127.0.0.1:0", &options, &early.nexus));
  tern_endpoint *endpoint = make_endpoint(early.nexus, transport, 0);
  CHECK_MISUSE(early.status, "has endpoints");
  CHECK_OK(tern_endpoint_destroy(endpoint));
  CHECK_OK(tern_nexus_destroy(early.nexus));
}

/// A nexus that a thread destroys `delay_us` after it is together with another thread.
struct ending {
  pthread_barrier_t both;
  tern_nexus *nexus;
  useconds_t delay_us;
};
static void *destroy_later(void *context) {
  struct ending *ending = context;
  pthread_barrier_wait(&ending->both);
  if (ending->delay_us > 0) usleep(ending->delay_us);
  return destroy_nexus(ending->nexus);
}

CASE(nexus_is_destroyed_or_gets_the_endpoint) {
  struct ending ending;
  CHECK(pthread_barrier_init(&ending.both, NULL, 2) == 0);
  for (int i = 0; i < 200; ++i) {
    tern_endpoint *endpoint;
    pthread_t thread;
    void *destroyed;
    ending.delay_us = i % 2 == 0 ? (useconds_t)i : 0;
    const tern_endpoint_options options = {.size = sizeof(options), .transport = transport, .no_huge_pages = 1};
    CHECK_OK(tern_nexus_create("tern://127.0.0.1:0", NULL, &ending.nexus));
    CHECK(pthread_create(&thread, NULL, destroy_later, &ending) == 0);
    pthread_barrier_wait(&ending.both);
    const tern_status created = tern_endpoint_create(ending.nexus, &options, &endpoint);
    CHECK(pthread_join(thread, &destroyed) == 0);
    if (created.code == TERN_OK) {
      CHECK_MISUSE(*(tern_status *)destroyed, "has endpoints");
      CHECK_OK(tern_endpoint_destroy(endpoint));
      CHECK_OK(tern_nexus_destroy(ending.nexus));
    } else {
      CHECK_MISUSE(created, "destroyed");
      CHECK_OK(*(tern_status *)destroyed);
    }
  }
  CHECK(pthread_barrier_destroy(&ending.both) == 0);
}

static tern_status create_with(tern_nexus *nexus, tern_endpoint_options options) {
  tern_endpoint *endpoint = (tern_endpoint *)nexus;
  options.size = sizeof(options);
  const tern_status status = tern_endpoint_create(nexus, &options, &endpoint);
  CHECK((endpoint != NULL) == (status.code == TERN_OK));
  CHECK_OK(tern_endpoint_destroy(endpoint));
  return status;
}

CASE(endpoint_options_are_checked) {
  tern_nexus *nexus;
  tern_endpoint *endpoint;
  const char *const setting = strcmp(transport, "udp") == 0 ? "datagram_bytes=1400,offload=false" : "ring_cells=512";
  CHECK_OK(tern_nexus_create("tern://127.0.0.1:0", NULL, &nexus));
  const tern_endpoint_options all = {.transport = transport,
                                     .transport_options = setting,
                                     .receive_budget_bytes = 1 << 20,
                                     .response_budget_bytes = 1 << 20,
                                     .spin_ns = 1,
                                     .report_delay_ns = 1000000,
                                     .queue_limit = 1,
                                     .server_sessions_max = 1,
                                     .server_sessions_per_peer_max = 1,
                                     .credit_limit = 2048,
                                     .wait = TERN_WAIT_POLL,
                                     .congestion_control = TERN_CC_DCTCP,
                                     .endpoint_id = 65535,
                                     .no_huge_pages = 1,
                                     .giant_pages = 1};
  CHECK_OK(create_with(nexus, all));
  CHECK_MISUSE(create_with(nexus, (tern_endpoint_options){.transport = "pigeons"}), "choose from: shm, udp");
  CHECK_MISUSE(create_with(nexus, (tern_endpoint_options){.transport = transport, .transport_options = "speed=9"}),
               "speed");
  const tern_endpoint_options small = {.transport = "udp", .transport_options = "datagram_bytes=5"};
  CHECK_MISUSE(create_with(nexus, small), "is not a number from 576 to 65000");
  CHECK_MISUSE(create_with(nexus, (tern_endpoint_options){.credit_limit = 2049}), "credit_limit");
  CHECK_MISUSE(create_with(nexus, (tern_endpoint_options){.wait = 4}), "TERN_WAIT");
  CHECK_MISUSE(create_with(nexus, (tern_endpoint_options){.wait = -1}), "TERN_WAIT");
  CHECK_MISUSE(create_with(nexus, (tern_endpoint_options){.congestion_control = 6}), "TERN_CC");
  CHECK_MISUSE(create_with(nexus, (tern_endpoint_options){.spin_ns = -1}), "negative");
  CHECK_MISUSE(create_with(nexus, (tern_endpoint_options){.reserved = 1}), "reserved");
  tern_endpoint_options wrong = all;
  wrong.size = sizeof(wrong) - 1;
  CHECK_MISUSE(tern_endpoint_create(nexus, &wrong, &endpoint), "sizeof");
  CHECK_MISUSE(tern_endpoint_create(nexus, NULL, NULL), "endpoint is NULL");

  CHECK_OK(tern_endpoint_create(nexus, NULL, &endpoint));  // all defaults, and the first transport
  CHECK_MISUSE(create_with(nexus, (tern_endpoint_options){.transport = transport}), "");  // the id is taken
  CHECK(tern_endpoint_link_bytes_per_sec(endpoint) > 0);
  tern_handler_options handler_options = {.size = 1};
  CHECK_MISUSE(tern_endpoint_on_request(endpoint, 1, echo, NULL, &handler_options), "sizeof");
  handler_options = (tern_handler_options){.size = sizeof(handler_options), .reserved = 1};
  CHECK_MISUSE(tern_endpoint_on_request(endpoint, 1, echo, NULL, &handler_options), "reserved");
  CHECK_MISUSE(tern_endpoint_on_request(endpoint, 4096, echo, NULL, NULL), "4095");
  CHECK_MISUSE(tern_endpoint_on_request(endpoint, 1, NULL, NULL, NULL), "handler is NULL");
  CHECK_OK(tern_endpoint_on_request(endpoint, 1, echo, NULL, NULL));
  CHECK_MISUSE(tern_endpoint_on_request(endpoint, 1, echo, NULL, NULL), "already");
  CHECK_OK(tern_endpoint_run_once(endpoint, NULL));
  CHECK_MISUSE(tern_endpoint_on_request(endpoint, 2, echo, NULL, NULL), "before the first");

  tern_session session = {1};
  tern_session_options session_options = {.size = sizeof(session_options), .window = 65};
  CHECK_MISUSE(tern_session_open(endpoint, "tern://127.0.0.1:1", &session_options, &session), "window");
  session_options = (tern_session_options){.size = sizeof(session_options), .congestion_control = -1};
  CHECK_MISUSE(tern_session_open(endpoint, "tern://127.0.0.1:1", &session_options, &session), "TERN_CC");
  session_options = (tern_session_options){.size = sizeof(session_options), .connect_timeout_ns = -1};
  CHECK_MISUSE(tern_session_open(endpoint, "tern://127.0.0.1:1", &session_options, &session), "negative");
  session_options = (tern_session_options){.size = sizeof(session_options), .reconnect_pause_ns = -1};
  CHECK_MISUSE(tern_session_open(endpoint, "tern://127.0.0.1:1", &session_options, &session), "negative");
  session_options = (tern_session_options){.size = sizeof(session_options), .reserved = 1};
  CHECK_MISUSE(tern_session_open(endpoint, "tern://127.0.0.1:1", &session_options, &session), "reserved");
  CHECK_MISUSE(tern_session_open(endpoint, "nowhere", NULL, &session), "");
  CHECK_MISUSE(tern_session_open(endpoint, NULL, NULL, &session), "uri is NULL");
  CHECK_MISUSE(tern_session_open(endpoint, "tern://127.0.0.1:1", NULL, NULL), "session is NULL");
  CHECK(session.name == UINT64_MAX);
  tern_session_info info = {.size = 8};
  CHECK_MISUSE(tern_session_inspect(endpoint, session, &info), "sizeof");
  CHECK_MISUSE(tern_session_inspect(endpoint, session, NULL), "info is NULL");
  info.size = sizeof(info);
  CHECK_OK(tern_session_inspect(endpoint, session, &info));
  CHECK(info.state == TERN_SESSION_ENDED);
  CHECK_OK(tern_endpoint_destroy(endpoint));

  // memory_limit_bytes limits the buffers.
  const tern_endpoint_options poor = {
      .size = sizeof(poor), .transport = transport, .memory_limit_bytes = 8 << 20, .no_huge_pages = 1};
  tern_msgbuf *buffer;
  CHECK_OK(tern_endpoint_create(nexus, &poor, &endpoint));
  CHECK_STATUS(tern_msgbuf_alloc(endpoint, 16 << 20, &buffer), TERN_NO_MEMORY, "memory_limit_bytes");
  CHECK_OK(tern_endpoint_destroy(endpoint));
  CHECK_OK(tern_nexus_destroy(nexus));
}

/// Checks that each function reports the error of this handle, and changes nothing.
static void check_refused(tern_endpoint *endpoint, const char *text) {
  uint64_t value = 1;
  int descriptor = 1;
  int64_t due = 1;
  size_t packets = 1;
  tern_msgbuf *buffer = (tern_msgbuf *)&value;
  tern_session session = {1};
  tern_session_info info = {.size = sizeof(info)};
  const tern_call call = {1};
  tern_timer timer = {1};
  if (endpoint != NULL) CHECK_MISUSE(tern_endpoint_destroy(endpoint), text);
  CHECK_MISUSE(tern_endpoint_close(endpoint, 0), text);
  CHECK_MISUSE(tern_endpoint_run(endpoint, 0), text);
  CHECK_MISUSE(tern_endpoint_run_once(endpoint, &packets), text);
  CHECK_MISUSE(tern_endpoint_stop(endpoint), text);
  CHECK_MISUSE(tern_endpoint_descriptor(endpoint, &descriptor), text);
  CHECK_MISUSE(tern_endpoint_next_due(endpoint, &due), text);
  CHECK_MISUSE(tern_endpoint_post(endpoint, count, NULL), text);
  CHECK_MISUSE(tern_endpoint_after(endpoint, 0, count, NULL), text);
  CHECK_MISUSE(tern_timer_start(endpoint, 0, count, NULL, &timer), text);
  CHECK_MISUSE(tern_timer_cancel(endpoint, timer), text);
  CHECK(timer.id == 0);
  CHECK_MISUSE(tern_endpoint_counter(endpoint, "calls_completed", &value), text);
  CHECK_MISUSE(tern_endpoint_on_request(endpoint, 1, echo, NULL, NULL), text);
  CHECK_MISUSE(tern_endpoint_on_session_event(endpoint, NULL, NULL), text);
  CHECK_MISUSE(tern_session_open(endpoint, "tern://127.0.0.1:1", NULL, &session), text);
  CHECK_MISUSE(tern_session_close(endpoint, session), text);
  CHECK_MISUSE(tern_session_inspect(endpoint, session, &info), text);
  CHECK_MISUSE(tern_msgbuf_alloc(endpoint, 1, &buffer), text);
  CHECK_MISUSE(tern_call_start(endpoint, session, 1, NULL, NULL, on_done, NULL, NULL, NULL), text);
  CHECK_MISUSE(tern_call_cancel(endpoint, call), text);
  CHECK(packets == 0 && descriptor == -1 && due == TERN_FOREVER && value == 0 && buffer == NULL);
  CHECK(tern_endpoint_now(endpoint) == 0 && tern_endpoint_link_bytes_per_sec(endpoint) == 0);
}

CASE(wrong_handles_are_refused) {
  struct pair pair;
  tern_endpoint *endpoint;
  tern_request *kept;
  make_pair(&pair, transport);
  check_refused(NULL, "the endpoint is NULL");
  check_refused((tern_endpoint *)pair.nexus, "this is not an endpoint");
  CHECK_MISUSE(tern_endpoint_create(NULL, NULL, &endpoint), "the nexus is NULL");
  CHECK_MISUSE(tern_endpoint_create((tern_nexus *)pair.client, NULL, &endpoint), "this is not a nexus");
  CHECK_MISUSE(tern_nexus_destroy((tern_nexus *)pair.client), "this is not a nexus");
  CHECK(tern_nexus_uri(NULL) == NULL);
  CHECK_OK(tern_nexus_destroy(NULL));
  CHECK_OK(tern_endpoint_destroy(NULL));
  CHECK_OK(tern_msgbuf_free(NULL));
  CHECK_MISUSE(tern_msgbuf_resize(NULL, 1), "NULL");
  CHECK(tern_msgbuf_data(NULL) == NULL && tern_msgbuf_length(NULL) == 0 && tern_msgbuf_capacity(NULL) == 0);
  CHECK_MISUSE(tern_request_respond(NULL), "the request is NULL");
  CHECK_MISUSE(tern_request_respond_with(NULL, NULL), "the request is NULL");
  CHECK_MISUSE(tern_request_response(NULL, 1, (void **)&endpoint), "the request is NULL");
  CHECK_MISUSE(tern_request_response(NULL, 1, NULL), "data is NULL");
  CHECK_MISUSE(tern_request_fail(NULL, 1), "the request is NULL");
  CHECK_MISUSE(tern_request_drop(NULL), "the request is NULL");
  CHECK_MISUSE(tern_request_keep(NULL, &kept), "the request is NULL");
  CHECK(tern_request_data(NULL) == NULL && tern_request_length(NULL) == 0 && tern_request_is_cancelled(NULL) == 1);
  CHECK(tern_request_session(NULL).name == UINT64_MAX && tern_request_time_left(NULL) == 0);
  CHECK_MISUSE(tern_endpoint_post(pair.client, NULL, NULL), "function is NULL");
  CHECK_MISUSE(tern_endpoint_after(pair.client, 0, NULL, NULL), "function is NULL");
  CHECK_MISUSE(tern_endpoint_after(pair.client, -1, count, NULL), "negative");
  CHECK_MISUSE(tern_endpoint_run(pair.client, -1), "negative");
  CHECK_MISUSE(tern_endpoint_close(pair.client, -1), "negative");
  CHECK_MISUSE(tern_endpoint_descriptor(pair.client, NULL), "descriptor is NULL");
  CHECK_MISUSE(tern_endpoint_next_due(pair.client, NULL), "due_ns is NULL");
  CHECK_MISUSE(tern_endpoint_counter(pair.client, "calls_completed", NULL), "value is NULL");
  CHECK_MISUSE(tern_endpoint_on_session_event(pair.client, NULL, NULL), "listener is NULL");
  CHECK_MISUSE(tern_msgbuf_alloc(pair.client, 1, NULL), "buffer is NULL");

  // A destroyed endpoint stays invalid after others were made.
  endpoint = pair.client;
  CHECK_OK(tern_endpoint_destroy(endpoint));
  check_refused(endpoint, "was destroyed");
  for (int i = 0; i < 8; ++i) {
    pair.client = make_endpoint(pair.nexus, transport, 1);
    check_refused(endpoint, "was destroyed");
    CHECK_OK(tern_endpoint_destroy(pair.client));
  }
  pair.client = make_endpoint(pair.nexus, transport, 1);
  destroy_pair(&pair);
}

/// The work of a second thread with an endpoint that the first thread runs.
struct visitor {
  tern_endpoint *endpoint;
  int posted;
};

static void end_visit(void *context) {
  struct visitor *visitor = context;
  ++visitor->posted;
  CHECK_MISUSE(tern_endpoint_run(visitor->endpoint, 0), "");
  CHECK_MISUSE(tern_endpoint_run_once(visitor->endpoint, NULL), "");
  CHECK_MISUSE(tern_endpoint_close(visitor->endpoint, 0), "");
  CHECK_MISUSE(tern_endpoint_destroy(visitor->endpoint), "tern_endpoint_stop()");
  CHECK_OK(tern_endpoint_stop(visitor->endpoint));
}

static void *visit(void *context) {
  struct visitor *visitor = context;
  tern_msgbuf *buffer = make_buffer(visitor->endpoint, 10);
  int descriptor;
  CHECK_STATUS(tern_endpoint_run(visitor->endpoint, 0), TERN_WRONG_THREAD, "");
  CHECK_STATUS(tern_endpoint_run_once(visitor->endpoint, NULL), TERN_WRONG_THREAD, "");
  CHECK_STATUS(tern_endpoint_descriptor(visitor->endpoint, &descriptor), TERN_WRONG_THREAD, "");
  CHECK_STATUS(tern_endpoint_after(visitor->endpoint, 0, count, NULL), TERN_WRONG_THREAD, "");
  CHECK_STATUS(tern_timer_cancel(visitor->endpoint, (tern_timer){1}), TERN_WRONG_THREAD, "");
  CHECK_MISUSE(tern_endpoint_destroy(visitor->endpoint), "in this thread or another");
  CHECK_OK(tern_endpoint_post(visitor->endpoint, end_visit, visitor));
  CHECK_OK(tern_msgbuf_free(buffer));
  return NULL;
}

static void must_not_be_destroyed(void *context) {
  CHECK_MISUSE(tern_endpoint_destroy(context), "in this thread or another");
}

static pthread_t visiting;
static void begin_visit(void *context) { CHECK(pthread_create(&visiting, NULL, visit, context) == 0); }

CASE(loop_runs_and_stops) {
  struct pair pair;
  make_pair(&pair, transport);
  const double begin = seconds_now();
  CHECK_OK(tern_endpoint_run(pair.client, 20 * INT64_C(1000000)));
  CHECK(seconds_now() - begin >= 0.019);
  CHECK_OK(tern_endpoint_stop(pair.client));  // a stop before the loop: the loop makes one turn
  CHECK_OK(tern_endpoint_run(pair.client, TERN_FOREVER));

  struct visitor visitor = {.endpoint = pair.client};
  // Posted within the loop, so that the loop runs by then.
  CHECK_OK(tern_endpoint_post(pair.client, begin_visit, &visitor));
  CHECK_OK(tern_endpoint_run(pair.client, TERN_FOREVER));
  pthread_join(visiting, NULL);
  CHECK(visitor.posted == 1);

  // Functions run at their time. After the end of the endpoint no function runs.
  int ran = 0, never = 0;
  const int64_t now = tern_endpoint_now(pair.client);
  int64_t due;
  CHECK(now > 0);
  CHECK_OK(tern_endpoint_after(pair.client, 5000000, count, &ran));
  CHECK_OK(tern_endpoint_next_due(pair.client, &due));
  CHECK(due <= now + 50000000);
  TURN_UNTIL(&pair, ran == 1);
  CHECK(tern_endpoint_now(pair.client) >= now + 5000000);
  CHECK_OK(tern_endpoint_after(pair.client, 3600 * INT64_C(1000000000), count, &never));
  CHECK_OK(tern_endpoint_post(pair.server, count, &never));
  CHECK_OK(tern_endpoint_destroy(pair.server));
  CHECK_OK(tern_endpoint_close(pair.client, 0));
  CHECK_STATUS(tern_endpoint_post(pair.client, count, &never), TERN_SESSION_RESET, "");
  CHECK_STATUS(tern_endpoint_after(pair.client, 1, count, &never), TERN_SESSION_RESET, "");
  CHECK_OK(tern_endpoint_destroy(pair.client));
  CHECK_OK(tern_nexus_destroy(pair.nexus));
  CHECK(never == 0);
}

static void *call_in_wrong_thread(void *context) {
  struct visitor *visitor = context;
  for (int i = 0; i < 300000; ++i) {
    CHECK_STATUS(tern_endpoint_run_once(visitor->endpoint, NULL), TERN_WRONG_THREAD, "");
  }
  CHECK_OK(tern_endpoint_post(visitor->endpoint, end_visit, visitor));
  return NULL;
}

/// Calls of other threads are refused, and the loop counts as running all the same.
CASE(running_endpoint_is_not_destroyed) {
  struct pair pair;
  make_pair(&pair, transport);
  CHECK_OK(tern_endpoint_run(pair.client, 0));  // this thread is the owner
  struct visitor visitor = {.endpoint = pair.client};
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, call_in_wrong_thread, &visitor) == 0);
  while (visitor.posted == 0) {
    CHECK_OK(tern_endpoint_post(pair.client, must_not_be_destroyed, pair.client));
    CHECK_OK(tern_endpoint_run(pair.client, 1000));
  }
  pthread_join(thread, NULL);
  destroy_pair(&pair);
}

CASE(cancelled_timer_never_runs) {
  struct pair pair;
  make_pair(&pair, transport);
  int first = 0, second = 0, third = 0;
  tern_timer timers[3] = {{1}, {1}, {1}};
  CHECK_OK(tern_timer_start(pair.client, 1000000, count, &first, &timers[0]));
  CHECK_OK(tern_timer_start(pair.client, 1000000, count, &second, &timers[1]));
  CHECK_OK(tern_timer_start(pair.client, 2000000, count, &third, NULL));
  CHECK(timers[0].id != 0 && timers[1].id != 0 && timers[0].id != timers[1].id);
  CHECK_OK(tern_timer_cancel(pair.client, timers[0]));
  CHECK_MISUSE(tern_timer_cancel(pair.client, timers[0]), "timer");
  TURN_UNTIL(&pair, third == 1);
  CHECK(first == 0 && second == 1);
  CHECK_MISUSE(tern_timer_cancel(pair.client, timers[1]), "timer");  // the timer has already run
  CHECK_MISUSE(tern_timer_cancel(pair.client, (tern_timer){0}), "timer");
  CHECK_OK(tern_timer_start(pair.client, 1000000, count, &first, &timers[2]));
  CHECK(timers[2].id != timers[0].id && timers[2].id != timers[1].id);
  CHECK_MISUSE(tern_timer_start(pair.client, -1, count, NULL, &timers[2]), "negative");
  CHECK(timers[2].id == 0);
  CHECK_MISUSE(tern_timer_start(pair.client, 0, NULL, NULL, NULL), "function is NULL");
  destroy_pair(&pair);
}

CASE(descriptor_wakes_foreign_loop) {
  struct pair pair;
  struct call call;
  make_pair(&pair, transport);
  CHECK_OK(tern_endpoint_on_request(pair.server, 1, echo, NULL, NULL));
  open_session(&pair);
  start_call(&pair, 1, 100, 0, &call);
  struct pollfd ready[2] = {{.events = POLLIN}, {.events = POLLIN}};
  CHECK_OK(tern_endpoint_descriptor(pair.server, &ready[0].fd));
  CHECK_OK(tern_endpoint_descriptor(pair.client, &ready[1].fd));
  size_t packets = 0;
  turn(&pair);
  while (!call.done) {
    CHECK(poll(ready, 2, PATIENCE_SECONDS * 1000) > 0);
    for (int i = 0; i < 2; ++i) {
      size_t handled;
      if (!(ready[i].revents & POLLIN)) continue;
      CHECK_OK(tern_endpoint_run_once(i == 0 ? pair.server : pair.client, &handled));
      packets += handled;
    }
  }
  CHECK_OK(call.status);
  CHECK(packets > 0);
  free_buffers(&call);
  uint64_t value;
  CHECK_OK(tern_endpoint_counter(pair.client, "calls_completed", &value));
  CHECK(value == 1);
  CHECK_OK(tern_endpoint_counter(pair.server, "requests_handled", &value));
  CHECK(value == 1);
  CHECK_OK(tern_endpoint_counter(pair.server, "calls_failed", &value));
  CHECK(value == 0);
  uint64_t sent = 0;
  CHECK_OK(tern_endpoint_counter(pair.client, "packets_sent", &sent));
  CHECK_OK(tern_endpoint_counter(pair.client, "transport.packets_sent", &value));
  CHECK(value > 0 && value <= sent);
  CHECK_OK(tern_endpoint_counter(pair.client, "network.queue_bytes_max", &value));  // the last counter of the table
  CHECK(value == 0);
  for (size_t i = 0; tern_counter_name(i) != NULL; ++i) {
    CHECK_OK(tern_endpoint_counter(pair.client, tern_counter_name(i), &value));
  }
  CHECK_MISUSE(tern_endpoint_counter(pair.client, "calls", &value), "no counter");
  CHECK_MISUSE(tern_endpoint_counter(pair.client, NULL, &value), "name is NULL");
  destroy_pair(&pair);
}

/// A continuation that runs in tern_endpoint_destroy(), where the handle is still valid.
struct last {
  struct call call;
  tern_endpoint *endpoint;
};
static void on_last(void *context, tern_completion *completion) {
  struct last *last = context;
  on_done(&last->call, completion);
  free_buffers(&last->call);
  CHECK_MISUSE(tern_endpoint_run(last->endpoint, 0), "destroyed");
  CHECK_MISUSE(tern_endpoint_destroy(last->endpoint), "");
  CHECK_STATUS(tern_endpoint_post(last->endpoint, count, NULL), TERN_SESSION_RESET, "");
}

CASE(destruction_ends_calls) {
  struct pair pair;
  make_pair(&pair, transport);
  struct last last = {.endpoint = pair.client};
  open_session(&pair);
  CHECK_OK(tern_call_start(pair.client, pair.session, 1, make_buffer(pair.client, 1), make_buffer(pair.client, 1),
                           on_last, &last, NULL, NULL));
  destroy_pair(&pair);
  CHECK(last.call.done == 1);
  CHECK_STATUS(last.call.status, TERN_CANCELLED, "");
}

RUN_CASES({"names", names}, {"numbers_in_words", numbers_in_words},
          {"cancelled_timer_never_runs", cancelled_timer_never_runs},
          {"nexus_options_are_checked", nexus_options_are_checked},
          {"nexus_is_not_destroyed_while_an_endpoint_is_created", nexus_is_not_destroyed_while_an_endpoint_is_created},
          {"nexus_is_destroyed_or_gets_the_endpoint", nexus_is_destroyed_or_gets_the_endpoint},
          {"endpoint_options_are_checked", endpoint_options_are_checked},
          {"wrong_handles_are_refused", wrong_handles_are_refused}, {"loop_runs_and_stops", loop_runs_and_stops},
          {"running_endpoint_is_not_destroyed", running_endpoint_is_not_destroyed},
          {"descriptor_wakes_foreign_loop", descriptor_wakes_foreign_loop},
          {"destruction_ends_calls", destruction_ends_calls})
