// The common parts of the tests of the C interface: checks that end the program, and a server and its client in one
// thread. Each program is called as "NAME_test CASE TRANSPORT". CASE(name) at the start of a line is a case, which
// CMake finds.
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tern/tern.h>

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      abort();                                                                  \
    }                                                                           \
  } while (0)

/// Checks that the status has this code, and that its message contains this text.
#define CHECK_STATUS(call, expected, text) check_status((call), (expected), (text), #call, __FILE__, __LINE__)
#define CHECK_OK(call) CHECK_STATUS(call, TERN_OK, "ok")
#define CHECK_MISUSE(call, text) CHECK_STATUS(call, TERN_MISUSE, text)

static inline void check_status(tern_status status, tern_code expected, const char *text, const char *call,
                                const char *file, int line) {
  if (status.code == expected && status.message != NULL && strstr(status.message, text) != NULL) return;
  fprintf(stderr, "%s:%d: %s: code %d and \"%s\", expected %d and \"%s\"\n", file, line, call, (int)status.code,
          status.message != NULL ? status.message : "(null)", (int)expected, text);
  abort();
}

static inline double seconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

enum { PATIENCE_SECONDS = 60 };

/// A server and its client, on one nexus and in one thread.
struct pair {
  tern_nexus *nexus;
  tern_endpoint *server, *client;
  tern_session session;  ///< the client's session
};

static inline void turn(const struct pair *pair) {
  if (pair->server != NULL) CHECK_OK(tern_endpoint_run_once(pair->server, NULL));
  if (pair->client != NULL) CHECK_OK(tern_endpoint_run_once(pair->client, NULL));
}

/// Runs both loops until the condition holds.
#define TURN_UNTIL(pair, condition)                       \
  do {                                                    \
    const double end_ = seconds_now() + PATIENCE_SECONDS; \
    while (!(condition)) {                                \
      CHECK(seconds_now() < end_);                        \
      turn(pair);                                         \
    }                                                     \
  } while (0)

static inline tern_endpoint *make_endpoint(tern_nexus *nexus, const char *transport, uint16_t id) {
  const tern_endpoint_options options = {
      .size = sizeof(options), .transport = transport, .endpoint_id = id, .no_huge_pages = 1};
  tern_endpoint *endpoint;
  CHECK_OK(tern_endpoint_create(nexus, &options, &endpoint));
  return endpoint;
}

/// Makes a pair without a session, because handlers must be registered before the first turn.
static inline void make_pair(struct pair *pair, const char *transport) {
  CHECK_OK(tern_nexus_create("tern://127.0.0.1:0", NULL, &pair->nexus));
  pair->server = make_endpoint(pair->nexus, transport, 0);
  pair->client = make_endpoint(pair->nexus, transport, 1);
}

static inline void open_session(struct pair *pair) {
  CHECK_OK(tern_session_open(pair->client, tern_nexus_uri(pair->nexus), NULL, &pair->session));
}

static inline void destroy_pair(struct pair *pair) {
  CHECK_OK(tern_endpoint_destroy(pair->client));
  CHECK_OK(tern_endpoint_destroy(pair->server));
  CHECK_OK(tern_nexus_destroy(pair->nexus));
}

/// A call and its outcome. The buffers belong to the test again when `done` is set.
struct call {
  int done;
  tern_status status;
  uint16_t app_code;
  tern_msgbuf *request, *response;
  tern_call name;
};

static inline void on_done(void *context, tern_completion *completion) {
  struct call *call = context;
  ++call->done;
  call->status = completion->status;
  call->app_code = completion->app_code;
  call->request = completion->request;
  call->response = completion->response;
}

static inline tern_msgbuf *make_buffer(tern_endpoint *endpoint, size_t length) {
  tern_msgbuf *buffer;
  CHECK_OK(tern_msgbuf_alloc(endpoint, length, &buffer));
  CHECK(buffer != NULL && tern_msgbuf_length(buffer) == length && tern_msgbuf_capacity(buffer) >= length);
  return buffer;
}

/// Begins a call with `length` bytes of a pattern, and with space for as many in the response.
static inline void start_call(const struct pair *pair, uint16_t type, size_t length, int64_t deadline_ns,
                              struct call *call) {
  const tern_call_options options = {.size = sizeof(options), .deadline_ns = deadline_ns};
  *call = (struct call){.request = make_buffer(pair->client, length), .response = make_buffer(pair->client, length)};
  unsigned char *bytes = tern_msgbuf_data(call->request);
  for (size_t i = 0; i < length; ++i) bytes[i] = (unsigned char)(i * 7 + length);
  CHECK_OK(tern_call_start(pair->client, pair->session, type, call->request, call->response, on_done, call, &options,
                           &call->name));
  CHECK(call->name.id != 0);
}

static inline void free_buffers(struct call *call) {
  CHECK_OK(tern_msgbuf_free(call->request));
  CHECK_OK(tern_msgbuf_free(call->response));
}

/// Makes a call and waits for its end.
static inline void run_call(struct pair *pair, uint16_t type, size_t length, struct call *call) {
  start_call(pair, type, length, 0, call);
  TURN_UNTIL(pair, call->done);
  CHECK(call->done == 1);
}

struct test_case {
  const char *name;
  void (*run)(const char *transport);
};

static inline int run_case(const struct test_case *cases, size_t count, int argc, char **argv) {
  for (size_t i = 0; argc == 3 && i < count; ++i) {
    if (strcmp(cases[i].name, argv[1]) != 0) continue;
    cases[i].run(argv[2]);
    printf("%s over %s: passed\n", argv[1], argv[2]);
    return 0;
  }
  fprintf(stderr, "usage: %s CASE TRANSPORT\n", argv[0]);
  return 2;
}

#define CASE(name) static void name(const char *transport)
#define RUN_CASES(...)                                                  \
  int main(int argc, char **argv) {                                     \
    const struct test_case cases[] = {__VA_ARGS__};                     \
    return run_case(cases, sizeof(cases) / sizeof(*cases), argc, argv); \
  }
