// A client in C99: it asks a hello server once, and prints the answer.
// hello_client TRANSPORT URI [WHO]   as in: hello_client shm tern://127.0.0.1:31850 world
#include <stdio.h>
#include <string.h>

#include <tern/tern.h>

enum { HELLO = 1, ANSWER_BYTES_MAX = 64 };

struct call {
  tern_endpoint *endpoint;
  tern_status status;
};

// Runs once, whatever happens, and owns both buffers.
static void done(void *context, tern_completion *completion) {
  struct call *call = context;
  call->status = completion->status;
  if (call->status.code == TERN_OK) {
    printf("%.*s\n", (int)tern_msgbuf_length(completion->response),
           (const char *)tern_msgbuf_data(completion->response));
  }
  tern_msgbuf_free(completion->request);
  tern_msgbuf_free(completion->response);
  tern_endpoint_stop(call->endpoint);
}

static int fail(const char *what, tern_status status) {
  fprintf(stderr, "hello_client: %s: %s\n", what, status.message);
  return 1;
}

static int ask(tern_nexus *nexus, const char *transport, const char *uri, const char *who) {
  const tern_endpoint_options options = {.size = sizeof(options), .transport = transport};
  tern_endpoint *endpoint;
  tern_status status = tern_endpoint_create(nexus, &options, &endpoint);
  if (status.code != TERN_OK) return fail("no endpoint", status);

  tern_session session;
  tern_msgbuf *request, *response;
  status = tern_session_open(endpoint, uri, NULL, &session);  // calls may be made at once; they wait until it is open
  if (status.code != TERN_OK) return fail("no session", status);
  status = tern_msgbuf_alloc(endpoint, strlen(who), &request);
  if (status.code != TERN_OK) return fail("no buffer", status);
  status = tern_msgbuf_alloc(endpoint, ANSWER_BYTES_MAX, &response);
  if (status.code != TERN_OK) return fail("no buffer", status);
  memcpy(tern_msgbuf_data(request), who, strlen(who));

  struct call call = {.endpoint = endpoint};
  status = tern_call_start(endpoint, session, HELLO, request, response, done, &call, NULL, NULL);
  if (status.code != TERN_OK) return fail("the call was refused", status);
  status = tern_endpoint_run(endpoint, TERN_FOREVER);
  tern_endpoint_destroy(endpoint);  // runs `done` if it has not run yet
  if (status.code != TERN_OK) return fail("the loop has ended", status);
  return call.status.code == TERN_OK ? 0 : fail("no answer", call.status);
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: hello_client TRANSPORT URI [WHO]\n");
    return 2;
  }
  // A client's Nexus listens, too, on any port: of the loopback interface if the server is on this host.
  const int is_local = strncmp(argv[2], "tern://127.", 11) == 0;
  tern_nexus *nexus;
  const tern_status status = tern_nexus_create(is_local ? "tern://127.0.0.1:0" : "tern://0.0.0.0:0", NULL, &nexus);
  if (status.code != TERN_OK) return fail("no nexus", status);
  const int exit_code = ask(nexus, argv[1], argv[2], argc > 3 ? argv[3] : "world");
  tern_nexus_destroy(nexus);
  return exit_code;
}
