// A server and its client in one endpoint. The program exits with 0 if its own call is answered.
#include <stdio.h>

#include <tern/tern.h>

static void answer(void *context, tern_request *request) {
  (void)context;
  tern_request_respond(request);
}

static void done(void *context, tern_completion *completion) {
  *(tern_status *)context = completion->status;
  tern_msgbuf_free(completion->request);
  tern_msgbuf_free(completion->response);
}

int main(void) {
  tern_nexus *nexus;
  tern_endpoint *endpoint = NULL;
  tern_session session;
  tern_msgbuf *request = NULL, *response = NULL;
  tern_status outcome = {-1, "no outcome"};
  tern_status status = tern_nexus_create("tern://127.0.0.1:0", NULL, &nexus);
  if (status.code == TERN_OK) status = tern_endpoint_create(nexus, NULL, &endpoint);
  if (status.code == TERN_OK) status = tern_endpoint_on_request(endpoint, 1, answer, NULL, NULL);
  if (status.code == TERN_OK) status = tern_session_open(endpoint, tern_nexus_uri(nexus), NULL, &session);
  if (status.code == TERN_OK) status = tern_msgbuf_alloc(endpoint, 1, &request);
  if (status.code == TERN_OK) status = tern_msgbuf_alloc(endpoint, 1, &response);
  if (status.code == TERN_OK)
    status = tern_call_start(endpoint, session, 1, request, response, done, &outcome, NULL, NULL);
  while (status.code == TERN_OK && outcome.code == -1) status = tern_endpoint_run(endpoint, 1000000);
  if (status.code == TERN_OK) status = outcome;
  tern_endpoint_destroy(endpoint);
  tern_nexus_destroy(nexus);
  printf("tern %s over %s from C: %s\n", tern_version(), tern_transport_name(0), status.message);
  return status.code;
}
