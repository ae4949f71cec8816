// The outside view of a Nexus in a C program: the log sink, the page, and a session that reconnects, which both report.
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

enum { EVENTS_MAX = 64 };

/// The events that a sink has received, with copies of their texts.
struct log {
  pthread_mutex_t mutex;
  int count;
  struct {
    tern_log_event event;
    char nexus[80], transport[16], peer[80];
  } heard[EVENTS_MAX];
};

static void listen_to_log(void *context, const tern_log_event *event) {
  struct log *log = context;
  pthread_mutex_lock(&log->mutex);
  CHECK(log->count < EVENTS_MAX);
  log->heard[log->count].event = *event;
  snprintf(log->heard[log->count].nexus, sizeof(log->heard->nexus), "%s", event->nexus);
  snprintf(log->heard[log->count].transport, sizeof(log->heard->transport), "%s", event->transport);
  snprintf(log->heard[log->count].peer, sizeof(log->heard->peer), "%s", event->peer);
  ++log->count;
  pthread_mutex_unlock(&log->mutex);
}

/// Returns the index of the next event of this kind from `from` on; -1: none yet.
static int find(struct log *log, int32_t kind, int from) {
  int found = -1;
  pthread_mutex_lock(&log->mutex);
  for (int i = from; found < 0 && i < log->count; ++i) {
    if (log->heard[i].event.kind == kind) found = i;
  }
  pthread_mutex_unlock(&log->mutex);
  return found;
}

static int check_event(struct log *log, int32_t kind, int32_t severity, const char *nexus) {
  const int at = find(log, kind, 0);
  CHECK(at >= 0 && log->heard[at].event.severity == severity);
  CHECK(strcmp(log->heard[at].nexus, nexus) == 0);
  CHECK(log->heard[at].event.time_ns > 0 && log->heard[at].event.status.message != NULL);
  return at;
}

static tern_nexus *nexus_with(const char *uri, struct log *log, const char *page) {
  tern_nexus *nexus;
  const tern_nexus_options options = {
      .size = sizeof(options), .log = log != NULL ? listen_to_log : NULL, .log_context = log, .page = page};
  CHECK_OK(tern_nexus_create(uri, &options, &nexus));
  return nexus;
}

/// Appends the state of each event to `context`, as a digit.
static void listen_to_session(void *context, const tern_session_event *event) {
  char *const states = context;
  const size_t length = strlen(states);
  CHECK(length < 15);
  states[length] = (char)('0' + event->state);
  CHECK((event->state == TERN_SESSION_OPEN) == (event->status.code == TERN_OK));
}

CASE(log_tells_of_a_session_that_reconnects) {
  struct log log = {.mutex = PTHREAD_MUTEX_INITIALIZER};
  char states[16] = "";
  tern_nexus *const near = nexus_with("tern://127.0.0.1:0", &log, NULL);
  tern_nexus *far = nexus_with("tern://127.0.0.1:0", NULL, NULL);
  char near_address[80], far_uri[80];
  snprintf(near_address, sizeof(near_address), "%s", tern_nexus_uri(near) + strlen("tern://"));
  snprintf(far_uri, sizeof(far_uri), "%s", tern_nexus_uri(far));

  struct pair pair = {.server = make_endpoint(far, transport, 0), .client = make_endpoint(near, transport, 1)};
  CHECK_OK(tern_endpoint_on_session_event(pair.client, listen_to_session, states));
  const tern_session_options options = {
      .size = sizeof(options), .reconnect = 1, .reconnect_pause_ns = 1000000, .reconnect_pause_max_ns = 20000000};
  CHECK_OK(tern_session_open(pair.client, far_uri, &options, &pair.session));
  TURN_UNTIL(&pair, strcmp(states, "1") == 0);

  CHECK_OK(tern_endpoint_destroy(pair.server));
  CHECK_OK(tern_nexus_destroy(far));
  pair.server = NULL;
  TURN_UNTIL(&pair, strncmp(states, "10", 2) == 0);
  far = nexus_with(far_uri, NULL, NULL);
  pair.server = make_endpoint(far, transport, 0);
  TURN_UNTIL(&pair, strcmp(states, "101") == 0);
  CHECK_OK(tern_session_close(pair.client, pair.session));
  TURN_UNTIL(&pair, strcmp(states, "1012") == 0);
  CHECK_OK(tern_endpoint_destroy(pair.client));
  CHECK_OK(tern_nexus_destroy(near));
  CHECK_OK(tern_endpoint_destroy(pair.server));
  CHECK_OK(tern_nexus_destroy(far));

  int at = check_event(&log, TERN_LOG_NEXUS_CREATED, TERN_LOG_INFO, near_address);
  CHECK(at == 0 && log.heard[at].event.endpoint == -1 && log.heard[at].transport[0] == '\0');
  CHECK(log.heard[at].event.session.name == UINT64_MAX);
  at = check_event(&log, TERN_LOG_ENDPOINT_CREATED, TERN_LOG_INFO, near_address);
  CHECK(log.heard[at].event.endpoint == 1 && strcmp(log.heard[at].transport, transport) == 0);
  at = check_event(&log, TERN_LOG_SESSION_OPENED, TERN_LOG_INFO, near_address);
  CHECK(log.heard[at].event.session.name == pair.session.name && log.heard[at].event.is_client == 1);
  CHECK(strcmp(log.heard[at].peer, far_uri + strlen("tern://")) == 0);
  const int lost = check_event(&log, TERN_LOG_SESSION_RECONNECTING, TERN_LOG_WARNING, near_address);
  CHECK(lost > at && log.heard[lost].event.session.name == pair.session.name);
  CHECK(log.heard[lost].event.status.code != TERN_OK && log.heard[lost].event.pause_ns > 0);
  CHECK(find(&log, TERN_LOG_SESSION_OPENED, lost) > lost);
  at = check_event(&log, TERN_LOG_SESSION_CLOSED, TERN_LOG_INFO, near_address);
  CHECK(find(&log, TERN_LOG_SESSION_LOST, 0) < 0);
  CHECK(find(&log, TERN_LOG_ENDPOINT_CLOSED, at) > at);
  CHECK(log.heard[log.count - 1].event.kind == TERN_LOG_NEXUS_CLOSED);
}

CASE(page_is_written_where_it_is_asked_for) {
  char folder[] = "/tmp/tern-c-XXXXXX", path[64];
  CHECK(mkdtemp(folder) != NULL);
  snprintf(path, sizeof(path), "%s/page", folder);
  struct log log = {.mutex = PTHREAD_MUTEX_INITIALIZER};
  tern_nexus *nexus = nexus_with("tern://127.0.0.1:0", &log, path);
  tern_endpoint *endpoint = make_endpoint(nexus, transport, 0);
  struct stat found;
  uint64_t missing;
  CHECK(stat(path, &found) == 0 && found.st_size >= 256 << 10 && (found.st_mode & 07777) == 0600);
  CHECK_OK(tern_endpoint_counter(endpoint, "page_missing", &missing));
  CHECK(missing == 0 && find(&log, TERN_LOG_PAGE_MISSING, 0) < 0);
  CHECK_OK(tern_endpoint_destroy(endpoint));
  CHECK_OK(tern_nexus_destroy(nexus));
  CHECK(unlink(path) == 0 && rmdir(folder) == 0);

  // The page's folder no longer exists: the Nexus works, and reports why there is no page.
  nexus = nexus_with("tern://127.0.0.1:0", &log, path);
  endpoint = make_endpoint(nexus, transport, 0);
  CHECK_OK(tern_endpoint_counter(endpoint, "page_missing", &missing));
  CHECK(missing == 1);
  const int at = find(&log, TERN_LOG_PAGE_MISSING, 0);
  CHECK(at >= 0 && log.heard[at].event.status.code != TERN_OK);
  CHECK_OK(tern_endpoint_destroy(endpoint));
  CHECK_OK(tern_nexus_destroy(nexus));
}

RUN_CASES({"log_tells_of_a_session_that_reconnects", log_tells_of_a_session_that_reconnects},
          {"page_is_written_where_it_is_asked_for", page_is_written_where_it_is_asked_for})
