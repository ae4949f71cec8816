// A server in C99: it answers "hello, WHO" to each request of type 1, until it is interrupted.
// hello_server [TRANSPORT [HOST:PORT]]   default: shm 127.0.0.1:31850; port 0 takes any free port, which it prints
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <tern/tern.h>

enum { HELLO = 1 };  // a request type: client and server agree on it

static tern_endpoint *endpoint;

static void stop(int signal_number) {
  (void)signal_number;
  tern_endpoint_stop(endpoint);  // one of the functions that a signal handler may call
}

static void answer(void *context, tern_request *request) {
  static const char greeting[] = "hello, ";
  const size_t who = tern_request_length(request);
  unsigned long *served = context;
  void *space;
  if (tern_request_response(request, sizeof(greeting) - 1 + who, &space).code != TERN_OK) {
    tern_request_fail(request, 1);
    return;
  }
  memcpy(space, greeting, sizeof(greeting) - 1);
  if (who > 0) memcpy((char *)space + sizeof(greeting) - 1, tern_request_data(request), who);
  tern_request_respond(request);
  ++*served;
}

static int fail(const char *what, tern_status status) {
  fprintf(stderr, "hello_server: %s: %s\n", what, status.message);
  return 1;
}

int main(int argc, char **argv) {
  unsigned long served = 0;  // outlives the endpoint, whose handler uses it
  char listen[256];
  snprintf(listen, sizeof(listen), "tern://%s", argc > 2 ? argv[2] : "127.0.0.1:31850");
  const tern_endpoint_options options = {.size = sizeof(options), .transport = argc > 1 ? argv[1] : "shm"};

  tern_nexus *nexus;
  tern_status status = tern_nexus_create(listen, NULL, &nexus);
  if (status.code != TERN_OK) return fail("no nexus", status);
  status = tern_endpoint_create(nexus, &options, &endpoint);
  if (status.code != TERN_OK) return fail("no endpoint", status);
  status = tern_endpoint_on_request(endpoint, HELLO, answer, &served, NULL);
  if (status.code != TERN_OK) return fail("no handler", status);

  signal(SIGINT, stop);
  signal(SIGTERM, stop);
  printf("serving over %s at %s\n", options.transport, tern_nexus_uri(nexus));
  fflush(stdout);
  status = tern_endpoint_run(endpoint, TERN_FOREVER);
  if (status.code != TERN_OK) return fail("the loop has ended", status);

  signal(SIGINT, SIG_DFL);  // before the endpoint is destroyed, because the signal handler uses it
  signal(SIGTERM, SIG_DFL);
  tern_endpoint_destroy(endpoint);
  tern_nexus_destroy(nexus);
  printf("served %lu requests\n", served);
  return 0;
}
