// The C interface of tern, for C99, C++ and every language that calls C. It is in a library of its own, libtern_c.so,
// which exports only tern_*. docs/c-interface.md has the rules that hold for all functions; in short:
//
// - A function that can fail returns a tern_status. Wrong arguments are TERN_MISUSE, with a message that names the
//   rule: a null pointer, a handle that was destroyed, a buffer that the library owns, an options struct of a wrong
//   size.
// - Options may be NULL. A field that is zero has its default. Set `size` to the size of the struct:
//   (tern_endpoint_options){.size = sizeof(tern_endpoint_options), .transport = "udp"}.
// - A callback gets the `context` that it was registered with, runs in the owner's loop unless its comment says
//   otherwise, and must not throw, unwind or longjmp out of itself.
// - Threads are those of the C++ interface (docs/threads.md): an endpoint has one owner thread, the thread that first
//   runs its loop. Only the owner may call functions of an endpoint, unless they say "any thread"; other threads get
//   TERN_WRONG_THREAD. Nothing checks it for tern_endpoint_now(), _next_due() and _counter().
// - Returned texts end with a zero byte. Passed texts are copied.
//
// A server:
//
//   static void hello(void *context, tern_request *request) {
//     void *answer;
//     if (tern_request_response(request, 5, &answer).code != TERN_OK) return;  // the client gets TERN_NO_RESPONSE
//     memcpy(answer, "hello", 5);
//     tern_request_respond(request);
//   }
//   tern_nexus_create("tern://0.0.0.0:31850", NULL, &nexus);
//   tern_endpoint_create(nexus, NULL, &endpoint);
//   tern_endpoint_on_request(endpoint, 1, hello, NULL, NULL);
//   tern_endpoint_run(endpoint, TERN_FOREVER);
//
// A client:
//
//   static void done(void *endpoint, tern_completion *c) {
//     if (c->status.code == TERN_OK) fwrite(tern_msgbuf_data(c->response), 1, tern_msgbuf_length(c->response), stdout);
//     tern_msgbuf_free(c->request);
//     tern_msgbuf_free(c->response);
//     tern_endpoint_stop(endpoint);
//   }
//   tern_nexus_create("tern://0.0.0.0:0", NULL, &nexus);
//   tern_endpoint_create(nexus, NULL, &endpoint);
//   tern_session_open(endpoint, "tern://SERVER:31850", NULL, &session);
//   tern_msgbuf_alloc(endpoint, 0, &request);
//   tern_msgbuf_alloc(endpoint, 64, &response);
//   tern_call_start(endpoint, session, 1, request, response, done, endpoint, NULL, NULL);
//   tern_endpoint_run(endpoint, TERN_FOREVER);
//
// examples/c has both in full.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define TERN_C_API __attribute__((visibility("default")))
#ifdef __cplusplus
#define TERN_C_NOEXCEPT noexcept
extern "C" {
#else
#define TERN_C_NOEXCEPT
#endif

/// As a time limit: no limit.
#define TERN_FOREVER INT64_MAX

/// The reason of a failure. Later versions may have more.
typedef int32_t tern_code;
enum {
  TERN_OK = 0,
  TERN_PEER_UNREACHABLE = 1,  ///< the peer does not answer within the liveness timeout
  TERN_SESSION_RESET = 2,     ///< the peer restarted, closed the session, or the session was never open
  TERN_DEADLINE = 3,          ///< the call's deadline passed before its response was complete
  TERN_CANCELLED = 4,         ///< cancelled by its owner
  TERN_REFUSED = 5,           ///< refused by the other side; tern_completion::app_code has its reason, if there is one
  TERN_TOO_LARGE = 6,         ///< larger than a protocol or option limit
  TERN_QUEUE_FULL = 7,    ///< a limit on waiting work or on sessions is reached, here or at the server: try again later
  TERN_NO_MEMORY = 8,     ///< the system has no memory for the operation
  TERN_WRONG_THREAD = 9,  ///< called from a thread that does not own the endpoint
  TERN_NO_RESPONSE = 10,  ///< the handler dropped the request without an answer
  TERN_MISUSE = 11,       ///< a rule of the interface was broken; the message names it
  TERN_UNAVAILABLE = 12   ///< this machine lacks something that is needed; the message names it
};

/// A code in words: "deadline passed". "unknown code": this library has no such code. Any thread.
TERN_C_API const char *tern_code_name(tern_code code) TERN_C_NOEXCEPT;

/// The result of a function. Returned by value.
typedef struct tern_status {
  tern_code code;       ///< TERN_OK, or the reason of the failure
  const char *message;  ///< for people: one sentence, never NULL, valid for ever
} tern_status;

/// One per process: finds peers, notices their death, has the worker threads. Any thread may use it.
typedef struct tern_nexus tern_nexus;
/// An endpoint over one transport, which one thread runs.
typedef struct tern_endpoint tern_endpoint;
/// The memory of one message. One side owns it at a time; the owner is the program or the library.
typedef struct tern_msgbuf tern_msgbuf;
/// A request that waits for its answer.
typedef struct tern_request tern_request;

/// A name of a session of one endpoint. After the session's end the name is never used for another session.
typedef struct tern_session {
  uint64_t name;  ///< opaque
} tern_session;

/// A name of an accepted call, for tern_call_cancel().
typedef struct tern_call {
  uint64_t id;  ///< opaque; no call has 0
} tern_call;

/// A name of a timer, for tern_timer_cancel(). It is never used for another timer of its endpoint.
typedef struct tern_timer {
  uint64_t id;  ///< opaque; no timer has 0
} tern_timer;

/// The version of the running library, such as "0.1.0". Any thread.
TERN_C_API const char *tern_version(void) TERN_C_NOEXCEPT;
/// The name of a transport in this library, such as "shm"; NULL if `index` is not less than their number. The first one
/// is the default. Any thread.
TERN_C_API const char *tern_transport_name(size_t index) TERN_C_NOEXCEPT;

// ---- Log ----

/// The kind of an event; LogKind in <tern/log.h> describes each. Later versions may have more.
enum {
  TERN_LOG_NEXUS_CREATED = 0,
  TERN_LOG_NEXUS_CLOSED = 1,    ///< the last event of a Nexus
  TERN_LOG_PAGE_MISSING = 2,    ///< there is no page: `status`
  TERN_LOG_PEER_DEAD = 3,       ///< a peer's Nexus no longer answers; `count` sessions with it end
  TERN_LOG_PEER_RESTARTED = 4,  ///< or had declared this one dead; `count` sessions with it end
  TERN_LOG_ENDPOINT_CREATED = 5,
  TERN_LOG_ENDPOINT_CLOSED = 6,  ///< the last event of an endpoint
  TERN_LOG_SESSION_OPENED = 7,
  TERN_LOG_SESSION_REFUSED = 8,        ///< by the server, at either end
  TERN_LOG_SESSION_FAILED = 9,         ///< it ended and was never open
  TERN_LOG_SESSION_LOST = 10,          ///< it was open and has ended, but not by its owner
  TERN_LOG_SESSION_CLOSED = 11,        ///< ended on purpose
  TERN_LOG_SESSION_RECONNECTING = 12,  ///< lost or not opened; the next attempt begins after `pause_ns`
  TERN_LOG_PATH_TOO_SMALL = 13,        ///< packets of `packet_bytes` do not pass
  TERN_LOG_PATH_PAIRED = 14,           ///< opened on one address and port pair, because of a NAT or firewall
  TERN_LOG_PATH_MOVED = 15,            ///< a client was found at another address
  TERN_LOG_TRANSPORT_FAULT = 16,       ///< a device has reported `count` events
  TERN_LOG_TRANSPORT_FAILED = 17,      ///< an endpoint's transport has failed for good
  TERN_LOG_TRACE_MISSING = 18          ///< no trace file could be written (RpcOptions::trace_folder of C++)
};

/// The importance of an event.
enum {
  TERN_LOG_INFO = 0,     ///< expected
  TERN_LOG_WARNING = 1,  ///< a peer or the network has failed, or a limit was reached; the endpoint goes on
  TERN_LOG_ERROR = 2     ///< this endpoint or Nexus can no longer work
};

/// An event. It is valid until the function returns, and so are its texts, except the status's message. Fields that the
/// kind does not use are 0 or empty. Later versions may have further fields.
typedef struct tern_log_event {
  int32_t kind;           ///< TERN_LOG_NEXUS_CREATED to TERN_LOG_TRACE_MISSING
  int32_t severity;       ///< TERN_LOG_INFO, TERN_LOG_WARNING or TERN_LOG_ERROR
  int64_t time_ns;        ///< of CLOCK_MONOTONIC
  const char *nexus;      ///< "HOST:PORT" at which the Nexus listens
  int32_t endpoint;       ///< its endpoint_id; -1: the event is of no endpoint
  int32_t is_client;      ///< 1: the endpoint has opened the session
  const char *transport;  ///< of the endpoint
  tern_session session;   ///< its name at the endpoint; the name UINT64_MAX: none
  const char *peer;       ///< "HOST:PORT" of the peer's Nexus
  tern_status status;     ///< the reason
  int64_t pause_ns;       ///< until the next attempt
  uint64_t packet_bytes;  ///< of a full packet with its header
  uint64_t count;         ///< its meaning depends on the kind
  uint64_t left_out;      ///< events of this kind left out before it: strangers can cause at most 100 a second
} tern_log_event;

/// Runs in the thread of the event: in an endpoint's loop or a call of its owner, in the management thread of the
/// Nexus, or in the thread that makes or destroys a Nexus or an endpoint. It must therefore be thread-safe and quick.
/// It may call every function that any thread may call, but must not destroy the Nexus; functions for the owner return
/// TERN_WRONG_THREAD inside it, in each thread.
typedef void (*tern_log_listener)(void *context, const tern_log_event *event);
/// A kind of event in words: "session_opened". "unknown": this library has no such kind. Any thread.
TERN_C_API const char *tern_log_kind_name(int32_t kind) TERN_C_NOEXCEPT;
/// A severity in words: "warning". Any thread.
TERN_C_API const char *tern_log_severity_name(int32_t severity) TERN_C_NOEXCEPT;

// ---- Nexus ----

/// For tern_nexus_create(). Zero: the default.
typedef struct tern_nexus_options {
  size_t size;                      ///< sizeof(tern_nexus_options)
  int64_t liveness_timeout_ns;      ///< a peer that is silent for this long is declared dead; default 500 ms
  size_t worker_threads;            ///< threads for worker handlers; default 1
  size_t worker_queue_limit;        ///< requests that may wait for a worker; default 4096
  size_t peers_per_address_max;     ///< client Nexuses of one IPv4 address or IPv6 /64; default 1024
  size_t sessions_per_address_max;  ///< sessions with clients of one IPv4 address or IPv6 /64; default 65536
  const char *page;                 ///< the file for tern-top: "shm" or a path; default: no file
  tern_log_listener log;  ///< is called for events of sessions, peers, endpoints and transport faults; default: none
  void *log_context;      ///< for `log`; must live as long as the Nexus
} tern_nexus_options;

/// Listens for other Nexuses at `listen_uri`, "tern://HOST:PORT". Port 0 takes any free port. The caller owns *nexus
/// and ends it with tern_nexus_destroy(); NULL on an error. TERN_UNAVAILABLE: the port is taken, or the address is not
/// this machine's. TERN_MISUSE, TERN_NO_MEMORY. Any thread.
TERN_C_API tern_status tern_nexus_create(const char *listen_uri, const tern_nexus_options *options,
                                         tern_nexus **nexus) TERN_C_NOEXCEPT;
/// Ends the Nexus and its threads. NULL does nothing. TERN_MISUSE: it has endpoints, or another thread creates one;
/// nothing has changed. Any thread.
TERN_C_API tern_status tern_nexus_destroy(tern_nexus *nexus) TERN_C_NOEXCEPT;
/// "tern://HOST:PORT" for peers on this host, with the real port. Valid as long as the Nexus. NULL: no such Nexus.
TERN_C_API const char *tern_nexus_uri(const tern_nexus *nexus) TERN_C_NOEXCEPT;

// ---- Endpoint ----

/// How the loop waits for work.
enum {
  TERN_WAIT_DEFAULT = 0,   ///< TERN_WAIT_ADAPTIVE
  TERN_WAIT_POLL = 1,      ///< never blocks: lowest latency, a whole CPU
  TERN_WAIT_ADAPTIVE = 2,  ///< spins for spin_ns, then blocks
  TERN_WAIT_BLOCK = 3      ///< blocks; polls only while packets come less than 30 us apart
};

/// Congestion controllers. docs/congestion.md says what each does.
enum {
  TERN_CC_DEFAULT = 0,         ///< of a session: its endpoint's; of an endpoint: its transport's
  TERN_CC_NONE = 1,            ///< as fast as the server's credits allow
  TERN_CC_TIMELY = 2,          ///< with eRPC's constants
  TERN_CC_PATCHED_TIMELY = 3,  ///< with the correction that makes shares equal
  TERN_CC_SWIFT = 4,           ///< a delay target, and windows in fractions of a packet
  TERN_CC_DCTCP = 5            ///< needs a network that marks (ECN)
};

/// For tern_endpoint_create(). Zero or NULL: the default. <tern/endpoint.h> describes each limit.
typedef struct tern_endpoint_options {
  size_t size;                            ///< sizeof(tern_endpoint_options)
  const char *transport;                  ///< a name of tern_transport_name(); default: the first
  const char *transport_options;          ///< "name=value,name=value", as in the programs' --transport_options
  size_t receive_budget_bytes;            ///< memory for large requests while they arrive; default 256 MiB
  size_t response_budget_bytes;           ///< memory for responses that clients have not reported yet; default 256 MiB
  size_t memory_limit_bytes;              ///< of all message memory; default: none
  int64_t spin_ns;                        ///< TERN_WAIT_ADAPTIVE: how long to spin after the last work; default 50 us
  int64_t report_delay_ns;                ///< clients report finished requests after this long; default 100 ms
  uint32_t queue_limit;                   ///< calls of a session that may wait for a free slot; default 4096
  uint32_t server_sessions_max;           ///< sessions of clients; default 1048576
  uint32_t server_sessions_per_peer_max;  ///< of one address; default: half of those, at most 65536
  uint32_t credit_limit;                  ///< 1 to 2048: full packets a client may have in flight; default: by load
  int32_t wait;                           ///< TERN_WAIT_*
  int32_t congestion_control;             ///< TERN_CC_*, for sessions with TERN_CC_DEFAULT
  uint16_t endpoint_id;                   ///< E in "tern://HOST:PORT/E"; ids are unique in a Nexus
  uint8_t no_huge_pages;                  ///< 1: normal pages, even if there are 2 MB pages
  uint8_t giant_pages;                    ///< 1: 1 GB pages, if there are some
  uint32_t reserved;                      ///< 0
} tern_endpoint_options;

/// Creates an endpoint of `nexus`. The caller owns *endpoint and ends it with tern_endpoint_destroy(); NULL on an
/// error. TERN_UNAVAILABLE: the transport does not run here; the message names the missing part. TERN_MISUSE: unknown
/// transport or option, value out of range, endpoint_id taken. TERN_NO_MEMORY. Any thread; the calling thread is the
/// first owner.
TERN_C_API tern_status tern_endpoint_create(tern_nexus *nexus, const tern_endpoint_options *options,
                                            tern_endpoint **endpoint) TERN_C_NOEXCEPT;
/// Ends the endpoint. Continuations of pending calls run here, with TERN_CANCELLED. NULL does nothing. TERN_MISUSE: its
/// loop is running, in this thread (this is a callback) or in another one; nothing has changed. The owner may call it,
/// or any thread once the owner no longer runs the loop. Pending posted functions and timers do not run.
TERN_C_API tern_status tern_endpoint_destroy(tern_endpoint *endpoint) TERN_C_NOEXCEPT;
/// Refuses new requests, runs the loop until all calls and requests have ended, for `drain_ns` at most, cancels the
/// others and ends all sessions. Then the endpoint can only be destroyed. TERN_MISUSE: from a callback.
TERN_C_API tern_status tern_endpoint_close(tern_endpoint *endpoint, int64_t drain_ns) TERN_C_NOEXCEPT;

/// Runs the loop until tern_endpoint_stop(), or for `duration_ns`. TERN_MISUSE: from a callback. TERN_UNAVAILABLE: the
/// transport has failed for good, and all sessions have ended.
TERN_C_API tern_status tern_endpoint_run(tern_endpoint *endpoint, int64_t duration_ns) TERN_C_NOEXCEPT;
/// Runs one iteration, without blocking. *packets, unless NULL, is the number of packets handled. Errors as of
/// tern_endpoint_run().
TERN_C_API tern_status tern_endpoint_run_once(tern_endpoint *endpoint, size_t *packets) TERN_C_NOEXCEPT;
/// Makes tern_endpoint_run() return after its present iteration. If the loop does not run, its next call returns after
/// its first iteration. Any thread, and signal handlers.
TERN_C_API tern_status tern_endpoint_stop(tern_endpoint *endpoint) TERN_C_NOEXCEPT;
/// A descriptor for a program's own epoll loop. It is readable when tern_endpoint_run_once() has work, timers included.
/// The endpoint owns it: do not close it. TERN_UNAVAILABLE, TERN_NO_MEMORY.
TERN_C_API tern_status tern_endpoint_descriptor(tern_endpoint *endpoint, int *descriptor) TERN_C_NOEXCEPT;
/// *due_ns is the time at which tern_endpoint_run_once() has work, on the clock of tern_endpoint_now(). Packets and
/// posted functions may come before. TERN_FOREVER: it waits only for these.
TERN_C_API tern_status tern_endpoint_next_due(tern_endpoint *endpoint, int64_t *due_ns) TERN_C_NOEXCEPT;

/// A posted function, or a timer's function. It runs at most once.
typedef void (*tern_function)(void *context);
/// Runs `function` in the owner's loop soon. Any thread. TERN_QUEUE_FULL: 65536 functions wait. TERN_NO_MEMORY.
/// TERN_SESSION_RESET: the endpoint is closed.
TERN_C_API tern_status tern_endpoint_post(tern_endpoint *endpoint, tern_function function,
                                          void *context) TERN_C_NOEXCEPT;
/// Runs `function` in the loop, `delay_ns` after tern_endpoint_now() or later. TERN_NO_MEMORY, TERN_SESSION_RESET.
TERN_C_API tern_status tern_endpoint_after(tern_endpoint *endpoint, int64_t delay_ns, tern_function function,
                                           void *context) TERN_C_NOEXCEPT;
/// Like tern_endpoint_after(). *timer, unless `timer` is NULL, is a name for tern_timer_cancel(); its id is 0 on an
/// error.
TERN_C_API tern_status tern_timer_start(tern_endpoint *endpoint, int64_t delay_ns, tern_function function,
                                        void *context, tern_timer *timer) TERN_C_NOEXCEPT;
/// Ends a timer: its function never runs, and the program may free its context. TERN_MISUSE, without effect: the
/// function has run or runs now, the timer was cancelled, or no timer has this name.
TERN_C_API tern_status tern_timer_cancel(tern_endpoint *endpoint, tern_timer timer) TERN_C_NOEXCEPT;
/// The time of this loop iteration in ns, on a clock that never goes back. 0: no such endpoint.
TERN_C_API int64_t tern_endpoint_now(const tern_endpoint *endpoint) TERN_C_NOEXCEPT;

/// The counter of this name (docs/counters.md): "calls_completed" of the endpoint, "transport.packets_sent" of another
/// part. TERN_MISUSE: no counter has this name.
TERN_C_API tern_status tern_endpoint_counter(const tern_endpoint *endpoint, const char *name,
                                             uint64_t *value) TERN_C_NOEXCEPT;
/// The name of a counter; NULL if `index` is not less than their number. Any thread.
TERN_C_API const char *tern_counter_name(size_t index) TERN_C_NOEXCEPT;
/// The speed of the link below, as the transport knows or assumes it. 0: no such endpoint. Any thread.
TERN_C_API uint64_t tern_endpoint_link_bytes_per_sec(const tern_endpoint *endpoint) TERN_C_NOEXCEPT;

// ---- Handlers ----

/// A handler. `request` ends with the answer, or when the handler returns; without an answer the client then gets
/// TERN_NO_RESPONSE. To answer later, call tern_request_keep(). After the handler has returned, `request` must not be
/// used: nothing detects that, and a later request of another client may have the same address.
typedef void (*tern_handler)(void *context, tern_request *request);

/// For tern_endpoint_on_request(). Zero: the default.
typedef struct tern_handler_options {
  size_t size;               ///< sizeof(tern_handler_options)
  size_t max_request_bytes;  ///< larger requests are refused (TERN_TOO_LARGE); default 8 MiB
  uint32_t worker;           ///< 1: run on a worker thread of the Nexus, several at a time, instead of in the loop
  uint32_t reserved;         ///< 0
} tern_handler_options;

/// Registers the handler of `type` (0 to 4095), once a type and before the first loop iteration; otherwise TERN_MISUSE.
/// TERN_NO_MEMORY. `context` must live as long as the endpoint.
TERN_C_API tern_status tern_endpoint_on_request(tern_endpoint *endpoint, uint16_t type, tern_handler handler,
                                                void *context, const tern_handler_options *options) TERN_C_NOEXCEPT;

/// The request message, without alignment; valid until the request ends. NULL: the request has ended.
TERN_C_API const void *tern_request_data(const tern_request *request) TERN_C_NOEXCEPT;
/// The length of the request message. 0: the request has ended.
TERN_C_API size_t tern_request_length(const tern_request *request) TERN_C_NOEXCEPT;
/// *data is memory for an answer of `len_bytes`, valid until the request ends; tern_request_respond() sends it. A
/// second call replaces the first. TERN_TOO_LARGE: above 1 GiB. TERN_NO_MEMORY.
TERN_C_API tern_status tern_request_response(tern_request *request, size_t len_bytes, void **data) TERN_C_NOEXCEPT;
/// Sends the memory of tern_request_response(), or an empty answer if there is none. Ends the request.
TERN_C_API tern_status tern_request_respond(tern_request *request) TERN_C_NOEXCEPT;
/// Sends `reply`, which the library owns from then on. Ends the request. TERN_MISUSE: nothing has changed. A buffer of
/// another endpoint is copied.
TERN_C_API tern_status tern_request_respond_with(tern_request *request, tern_msgbuf *reply) TERN_C_NOEXCEPT;
/// Takes the message of the request, to keep it, send it on or answer with it: the caller owns *message, and the
/// request has no message any more. NULL on an error. A message in one packet is copied once. A longer one is not
/// copied, except the first of a type over shm without memory_limit_bytes. TERN_NO_MEMORY: nothing has changed.
TERN_C_API tern_status tern_request_take(tern_request *request, tern_msgbuf **message) TERN_C_NOEXCEPT;
/// The client gets TERN_REFUSED and `app_code`, which is not 0. Ends the request.
TERN_C_API tern_status tern_request_fail(tern_request *request, uint16_t app_code) TERN_C_NOEXCEPT;
/// The client gets TERN_NO_RESPONSE. Ends the request.
TERN_C_API tern_status tern_request_drop(tern_request *request) TERN_C_NOEXCEPT;
/// Keeps a request for an answer after the handler has returned: *kept is the same request, and `request` has ended.
/// The program must end *kept by an answer or tern_request_drop(). Any thread may do that, one thread at a time, also
/// after the endpoint is gone. Pointers to the message become invalid; call tern_request_data() again. Memory of
/// tern_request_response() stays valid. TERN_NO_MEMORY: nothing has changed. TERN_MISUSE: the request was kept already.
TERN_C_API tern_status tern_request_keep(tern_request *request, tern_request **kept) TERN_C_NOEXCEPT;
/// The time until the client's deadline: zero or less after it, TERN_FOREVER if there is none, 0 if the request has
/// ended or is cancelled.
TERN_C_API int64_t tern_request_time_left(const tern_request *request) TERN_C_NOEXCEPT;
/// 1: no client waits for the answer, or the request has ended.
TERN_C_API int tern_request_is_cancelled(const tern_request *request) TERN_C_NOEXCEPT;
/// The client's session, for tern_session_inspect(). If the request has ended, the result names no session.
TERN_C_API tern_session tern_request_session(const tern_request *request) TERN_C_NOEXCEPT;

// ---- Sessions ----

/// States of a session.
enum {
  TERN_SESSION_CONNECTING = 0,  ///< calls wait until it is open
  TERN_SESSION_OPEN = 1,        ///< packets have passed both ways
  TERN_SESSION_ENDED = 2        ///< for ever; or there never was such a session
};

/// For tern_session_open(). Zero: the default.
typedef struct tern_session_options {
  size_t size;                     ///< sizeof(tern_session_options)
  int64_t connect_timeout_ns;      ///< after it, pending calls end with TERN_PEER_UNREACHABLE; default 2 s
  uint64_t rate_bytes_per_sec;     ///< a rate limit in place of a congestion controller; default: none
  uint32_t window;                 ///< 1 to 64 requests in flight, further ones wait; default 8
  int32_t congestion_control;      ///< TERN_CC_*
  int64_t reconnect_pause_ns;      ///< with reconnect: first pause, which each attempt doubles; default 10 ms
  int64_t reconnect_pause_max_ns;  ///< with reconnect: the longest pause, at least 1 ms and the first; default 1 s
  uint32_t reconnect;  ///< 1: connect again when the session is lost, refused or does not open; its calls still end
  uint32_t reserved;   ///< 0
} tern_session_options;

/// Begins a session with endpoint E of the Nexus at "tern://HOST:PORT/E" ("/E" may be left out for endpoint 0). Does
/// not wait for the network, but may wait for the name service. Calls may be made at once. TERN_MISUSE, TERN_NO_MEMORY.
/// TERN_UNAVAILABLE: the name is unknown, or the host cannot be reached from the address of the Nexus.
TERN_C_API tern_status tern_session_open(tern_endpoint *endpoint, const char *uri, const tern_session_options *options,
                                         tern_session *session) TERN_C_NOEXCEPT;
/// Ends a session of tern_session_open(). Pending calls end with TERN_CANCELLED in the next iteration.
/// TERN_SESSION_RESET: it has ended already.
TERN_C_API tern_status tern_session_close(tern_endpoint *endpoint, tern_session session) TERN_C_NOEXCEPT;

/// The present state of a session, from tern_session_inspect().
typedef struct tern_session_info {
  size_t size;                  ///< sizeof(tern_session_info), set by the caller
  int32_t state;                ///< TERN_SESSION_*
  int32_t is_client;            ///< 1: this endpoint has opened it; 0: a client has
  uint64_t retransmissions;     ///< retransmitted packets of the client
  int64_t round_trip_ns;        ///< smoothed; 0: not known yet
  uint64_t rate_bytes_per_sec;  ///< the congestion controller's present limit; UINT64_MAX: no limit
  char peer[80];  ///< "HOST:PORT" of the peer's Nexus; empty: no answer of the peer yet, or the session has ended
} tern_session_info;

/// Fills *info. If no session has this name, or the calling thread is not the owner, the state is TERN_SESSION_ENDED,
/// and the result is TERN_OK.
TERN_C_API tern_status tern_session_inspect(const tern_endpoint *endpoint, tern_session session,
                                            tern_session_info *info) TERN_C_NOEXCEPT;

/// The argument of a tern_session_listener. Valid until it returns. Later versions may have further fields.
typedef struct tern_session_event {
  tern_session session;  ///< its name at this endpoint
  int32_t is_client;     ///< 1: this endpoint has opened it; 0: a client has
  int32_t state;         ///< the new one, TERN_SESSION_*; TERN_SESSION_CONNECTING only with reconnect
  tern_status status;    ///< the reason, unless the state is TERN_SESSION_OPEN
} tern_session_event;

/// Called when sessions open and end. For the end of a session it is called exactly once, after the continuations of
/// the session's calls.
typedef void (*tern_session_listener)(void *context, const tern_session_event *event);
/// Registers the listener, once and before the first loop iteration; otherwise TERN_MISUSE. TERN_NO_MEMORY. `context`
/// must live as long as the endpoint.
TERN_C_API tern_status tern_endpoint_on_session_event(tern_endpoint *endpoint, tern_session_listener listener,
                                                      void *context) TERN_C_NOEXCEPT;

// ---- Message buffers ----

/// Allocates a buffer of `len_bytes` (up to 1 GiB), aligned to 64 bytes, with undefined content. The caller owns
/// *buffer until tern_msgbuf_free(), or until a call or an answer passes it to the library. NULL on an error.
/// TERN_TOO_LARGE, TERN_NO_MEMORY. Any thread; the owner is faster.
TERN_C_API tern_status tern_msgbuf_alloc(tern_endpoint *endpoint, size_t len_bytes,
                                         tern_msgbuf **buffer) TERN_C_NOEXCEPT;
/// Frees a buffer. NULL does nothing. TERN_MISUSE: the library owns it, or it was freed and its endpoint still exists.
/// Any thread, also after its endpoint is gone.
TERN_C_API tern_status tern_msgbuf_free(tern_msgbuf *buffer) TERN_C_NOEXCEPT;
/// The bytes of the message. NULL: the caller does not own the buffer.
TERN_C_API void *tern_msgbuf_data(tern_msgbuf *buffer) TERN_C_NOEXCEPT;
/// The length of the message. 0: the caller does not own the buffer.
TERN_C_API size_t tern_msgbuf_length(const tern_msgbuf *buffer) TERN_C_NOEXCEPT;
/// The largest length that tern_msgbuf_resize() accepts. 0: the caller does not own the buffer.
TERN_C_API size_t tern_msgbuf_capacity(const tern_msgbuf *buffer) TERN_C_NOEXCEPT;
/// Sets the length; the bytes stay as they are. TERN_TOO_LARGE: more than the capacity; nothing has changed.
TERN_C_API tern_status tern_msgbuf_resize(tern_msgbuf *buffer, size_t len_bytes) TERN_C_NOEXCEPT;

// ---- Calls ----

/// The outcome of a call. Valid until the continuation returns. Later versions may have further fields.
typedef struct tern_completion {
  tern_status status;     ///< TERN_OK, or the reason why there is no response
  tern_msgbuf *request;   ///< as it was sent. The continuation owns it, and must free, keep or reuse it
  tern_msgbuf *response;  ///< owned by the continuation, too; with TERN_OK, its length is that of the response
  uint16_t app_code;      ///< with TERN_REFUSED: the code of tern_request_fail(); 0: the library refused
} tern_completion;

/// Runs exactly once for an accepted call: in the loop, tern_endpoint_close() or tern_endpoint_destroy().
typedef void (*tern_continuation)(void *context, tern_completion *completion);

/// For tern_call_start(). Zero: the default.
typedef struct tern_call_options {
  size_t size;  ///< sizeof(tern_call_options)
  /// The call ends with TERN_DEADLINE this long after tern_endpoint_now(). 0: never. Below 0: TERN_MISUSE. A request
  /// whose tern_request_time_left() is 0 or less has no time for another call.
  int64_t deadline_ns;
} tern_call_options;

/// Sends `request` to the handler of `type`; the response is written to `response`, up to its capacity (a longer
/// response ends the call with TERN_TOO_LARGE). The library owns both buffers until `then` runs. *call, unless `call`
/// is NULL, is the call's name. On an error `then` never runs, and the caller keeps the buffers: TERN_SESSION_RESET
/// (the session has ended), TERN_QUEUE_FULL, TERN_NO_MEMORY, TERN_WRONG_THREAD, TERN_MISUSE (the caller does not own a
/// buffer, or it is of another endpoint).
TERN_C_API tern_status tern_call_start(tern_endpoint *endpoint, tern_session session, uint16_t type,
                                       tern_msgbuf *request, tern_msgbuf *response, tern_continuation then,
                                       void *context, const tern_call_options *options,
                                       tern_call *call) TERN_C_NOEXCEPT;
/// Ends a call early: its continuation runs soon, with TERN_CANCELLED, or with the outcome if the call had ended
/// already. TERN_MISUSE: the call has ended. TERN_NO_MEMORY: the call goes on.
TERN_C_API tern_status tern_call_cancel(tern_endpoint *endpoint, tern_call call) TERN_C_NOEXCEPT;

#ifdef __cplusplus
}
#endif
