// A server and its client in two processes, through the C interface.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { REVERSE = 1, NEVER = 2, CALLS = 500, WINDOW = 8, LENGTH_MAX = 200000 };

static void reverse(void *context, tern_request *request) {
  const size_t length = tern_request_length(request);
  const unsigned char *from = tern_request_data(request);
  void *space;
  (void)context;
  CHECK_OK(tern_request_response(request, length, &space));
  for (size_t i = 0; i < length; ++i) ((unsigned char *)space)[i] = from[length - 1 - i];
  CHECK_OK(tern_request_respond(request));
}

static void keep_for_ever(void *context, tern_request *request) { CHECK_OK(tern_request_keep(request, context)); }

static tern_endpoint *server;
static void stop_server(int number) {
  (void)number;
  (void)tern_endpoint_stop(server);
}

/// The server's process: writes its URI to `uri_to`, and exits with 0 after a SIGTERM.
static int serve(const char *transport, int uri_to) {
  tern_nexus *nexus;
  tern_request *kept = NULL;
  CHECK_OK(tern_nexus_create("tern://127.0.0.1:0", NULL, &nexus));
  server = make_endpoint(nexus, transport, 3);
  CHECK_OK(tern_endpoint_on_request(server, REVERSE, reverse, NULL, NULL));
  CHECK_OK(tern_endpoint_on_request(server, NEVER, keep_for_ever, &kept, NULL));
  signal(SIGTERM, stop_server);
  dprintf(uri_to, "%s/3", tern_nexus_uri(nexus));
  close(uri_to);
  CHECK_OK(tern_endpoint_run(server, TERN_FOREVER));
  CHECK_OK(tern_endpoint_close(server, 0));
  CHECK_OK(tern_endpoint_destroy(server));
  if (kept != NULL) CHECK_OK(tern_request_drop(kept));
  CHECK_OK(tern_nexus_destroy(nexus));
  return 0;
}

static pid_t start_server(const char *transport, char *uri, size_t size) {
  int ends[2];
  CHECK(pipe(ends) == 0);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[0]);
    exit(serve(transport, ends[1]));
  }
  close(ends[1]);
  size_t length = 0;
  for (ssize_t got; (got = read(ends[0], uri + length, size - 1 - length)) > 0;) length += (size_t)got;
  close(ends[0]);
  uri[length] = '\0';
  CHECK(length > 0);
  return child;
}

static int exit_code_of(pid_t child) {
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void make_client(struct pair *pair, const char *transport, const char *uri) {
  *pair = (struct pair){0};
  CHECK_OK(tern_nexus_create("tern://127.0.0.1:0", NULL, &pair->nexus));
  pair->client = make_endpoint(pair->nexus, transport, 0);
  CHECK_OK(tern_session_open(pair->client, uri, NULL, &pair->session));
}

CASE(many_calls_are_answered) {
  char uri[256];
  struct pair pair;
  struct call calls[WINDOW] = {{0}};
  const pid_t child = start_server(transport, uri, sizeof(uri));
  make_client(&pair, transport, uri);
  unsigned random = 1;
  for (int i = 0; i < CALLS + WINDOW; ++i) {
    struct call *call = &calls[i % WINDOW];
    if (i >= WINDOW) {
      TURN_UNTIL(&pair, call->done);
      CHECK_OK(call->status);
      const size_t length = tern_msgbuf_length(call->request);
      const unsigned char *sent = tern_msgbuf_data(call->request), *back = tern_msgbuf_data(call->response);
      CHECK(tern_msgbuf_length(call->response) == length);
      for (size_t k = 0; k < length; ++k) CHECK(back[k] == sent[length - 1 - k]);
      free_buffers(call);
    }
    random = random * 1103515245 + 12345;
    const unsigned size = random >> 8;
    if (i < CALLS) start_call(&pair, REVERSE, i % 16 == 0 ? size % LENGTH_MAX : size % 1000, 0, call);
  }
  CHECK_OK(tern_endpoint_destroy(pair.client));
  CHECK_OK(tern_nexus_destroy(pair.nexus));
  kill(child, SIGTERM);
  CHECK(exit_code_of(child) == 0);
}

static void listen_to(void *context, const tern_session_event *event) {
  if (event->state == TERN_SESSION_ENDED) *(tern_status *)context = event->status;
}

CASE(death_of_server_ends_calls) {
  char uri[256];
  struct pair pair;
  struct call call;
  tern_status ended = {TERN_OK, NULL};
  const pid_t child = start_server(transport, uri, sizeof(uri));
  make_client(&pair, transport, uri);
  CHECK_OK(tern_endpoint_on_session_event(pair.client, listen_to, &ended));
  run_call(&pair, REVERSE, 10, &call);
  CHECK_OK(call.status);
  free_buffers(&call);
  start_call(&pair, NEVER, 10, 0, &call);
  for (int i = 0; i < 100; ++i) turn(&pair);
  CHECK(!call.done);
  kill(child, SIGKILL);
  CHECK(exit_code_of(child) == -SIGKILL);
  TURN_UNTIL(&pair, call.done && ended.message != NULL);
  CHECK(call.status.code == TERN_PEER_UNREACHABLE || call.status.code == TERN_SESSION_RESET);
  CHECK(ended.code == call.status.code);
  CHECK(strstr(ended.message, "reconnect") != NULL);  // the remedy
  free_buffers(&call);
  CHECK_OK(tern_endpoint_destroy(pair.client));
  CHECK_OK(tern_nexus_destroy(pair.nexus));
}

RUN_CASES({"many_calls_are_answered", many_calls_are_answered},
          {"death_of_server_ends_calls", death_of_server_ends_calls})
