"""tern from Python 3, over its C interface (<tern/tern.h>) by ctypes. Standard library only; one file, to be copied.

    import tern
    with tern.Nexus("tern://127.0.0.1:31850") as nexus, tern.Endpoint(nexus, transport="udp") as endpoint:
        endpoint.on_request(1, lambda request: request.respond(b"hello"))
        endpoint.run()

Messages are memoryviews of tern's own memory, so nothing is copied that the program does not copy. A view ends with its
buffer or request; slices of it and arrays over it must end before that. Errors of the C interface are raised as
tern.Error, whose text names the rule. Threads are those of docs/threads.md: the thread that runs an endpoint's loop
makes all its calls, except post() and stop(). A callback that raises ends the loop, and run() raises the exception, or
run_once(), close() or destroy(), whichever the callback runs in.

After Ctrl-C they and ask() raise KeyboardInterrupt when the library has returned. A callback is not interrupted; it
ends first. For this, an Endpoint that is created in the main thread replaces Python's own handler of SIGINT, and leaves
it replaced. A handler of the program stays. asyncio.run(), too, replaces only Python's own handler: create the Endpoint
inside of it. Other signals' handlers should call stop(), because an exception is lost where a callback begins.

The library is libtern_c.so.0.1, or what the environment variable TERN_LIBRARY names.
"""
import _signal  # signal itself makes enums of handlers, which takes ten times as long as an iteration of the loop
import ctypes
import itertools
import os
import threading
import time
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint16, \
    c_uint32, c_uint64, c_void_p

FOREVER = 2**63 - 1
CODES = ("OK", "PEER_UNREACHABLE", "SESSION_RESET", "DEADLINE", "CANCELLED", "REFUSED", "TOO_LARGE", "QUEUE_FULL",
         "NO_MEMORY", "WRONG_THREAD", "NO_RESPONSE", "MISUSE", "UNAVAILABLE")
(OK, PEER_UNREACHABLE, SESSION_RESET, DEADLINE, CANCELLED, REFUSED, TOO_LARGE, QUEUE_FULL, NO_MEMORY, WRONG_THREAD,
 NO_RESPONSE, MISUSE, UNAVAILABLE) = range(len(CODES))
CONNECTING, OPEN, ENDED = range(3)  # states of a session


# --- the structs and functions of <tern/tern.h> -----------------------------------------------------------------------

class Status(Structure):
    _fields_ = [("code", c_int32), ("message", c_char_p)]

    def __str__(self):
        return f"{CODES[self.code] if self.code < len(CODES) else self.code}: {self.message.decode()}"


class Options(Structure):
    """A struct whose first field is its size, made from keywords. Texts become zero-terminated ones."""

    def __init__(self, **fields):
        texts = {name: value.encode() for name, value in fields.items() if isinstance(value, str)}
        super().__init__(size=ctypes.sizeof(type(self)), **{**fields, **texts})
        for name, value in fields.items():
            if isinstance(value, int) and (getattr(self, name) or 0) != value:  # ctypes cuts off the higher bits
                raise ValueError(f"{name}={value} is out of range")


class SessionName(Structure):
    _fields_ = [("name", c_uint64)]


class LogEvent(Structure):
    """The argument of a log function: see tern_log_event. Its texts are valid until the function returns; str() copies."""
    _fields_ = [("kind", c_int32), ("severity", c_int32), ("time_ns", c_int64), ("nexus", c_char_p),
                ("endpoint", c_int32), ("is_client", c_int32), ("transport", c_char_p), ("session", SessionName),
                ("peer", c_char_p), ("status", Status), ("pause_ns", c_int64), ("packet_bytes", c_uint64),
                ("count", c_uint64), ("left_out", c_uint64)]

    def name(self):
        return _log_kind_name(self.kind).decode()

    def __str__(self):
        peer = f", peer {self.peer.decode()}" if self.peer else ""
        why = f": {self.status.message.decode()}" if self.status.code != OK else ""
        return f"{_log_severity_name(self.severity).decode()}: {self.nexus.decode()}: {self.name()}{peer}{why}"


LogListener = ctypes.CFUNCTYPE(None, c_void_p, POINTER(LogEvent))


class NexusOptions(Options):
    _fields_ = [("size", c_size_t), ("liveness_timeout_ns", c_int64), ("worker_threads", c_size_t),
                ("worker_queue_limit", c_size_t), ("peers_per_address_max", c_size_t),
                ("sessions_per_address_max", c_size_t), ("page", c_char_p), ("log", LogListener),
                ("log_context", c_void_p)]


class EndpointOptions(Options):
    _fields_ = [("size", c_size_t), ("transport", c_char_p), ("transport_options", c_char_p),
                ("receive_budget_bytes", c_size_t), ("response_budget_bytes", c_size_t),
                ("memory_limit_bytes", c_size_t), ("spin_ns", c_int64), ("report_delay_ns", c_int64),
                ("queue_limit", c_uint32), ("server_sessions_max", c_uint32),
                ("server_sessions_per_peer_max", c_uint32), ("credit_limit", c_uint32), ("wait", c_int32),
                ("congestion_control", c_int32), ("endpoint_id", c_uint16), ("no_huge_pages", c_uint8),
                ("giant_pages", c_uint8), ("reserved", c_uint32)]


class HandlerOptions(Options):
    _fields_ = [("size", c_size_t), ("max_request_bytes", c_size_t), ("worker", c_uint32), ("reserved", c_uint32)]


class SessionOptions(Options):
    _fields_ = [("size", c_size_t), ("connect_timeout_ns", c_int64), ("rate_bytes_per_sec", c_uint64),
                ("window", c_uint32), ("congestion_control", c_int32), ("reconnect_pause_ns", c_int64),
                ("reconnect_pause_max_ns", c_int64), ("reconnect", c_uint32), ("reserved", c_uint32)]


class CallOptions(Options):
    _fields_ = [("size", c_size_t), ("deadline_ns", c_int64)]


class SessionInfo(Options):
    _fields_ = [("size", c_size_t), ("state", c_int32), ("is_client", c_int32), ("retransmissions", c_uint64),
                ("round_trip_ns", c_int64), ("rate_bytes_per_sec", c_uint64), ("peer", c_char * 80)]


class TimerName(Structure):
    _fields_ = [("id", c_uint64)]


class CallName(Structure):
    _fields_ = [("id", c_uint64)]


class SessionEvent(Structure):
    _fields_ = [("session", SessionName), ("is_client", c_int32), ("state", c_int32), ("status", Status)]


class Completion(Structure):
    _fields_ = [("status", Status), ("request", c_void_p), ("response", c_void_p), ("app_code", c_uint16)]


Function = ctypes.CFUNCTYPE(None, c_void_p)
Handler = ctypes.CFUNCTYPE(None, c_void_p, c_void_p)
Listener = ctypes.CFUNCTYPE(None, c_void_p, POINTER(SessionEvent))
Continuation = ctypes.CFUNCTYPE(None, c_void_p, POINTER(Completion))

_library = ctypes.CDLL(os.environ.get("TERN_LIBRARY", "libtern_c.so.0.1"))


def _declare(result, name, *arguments):
    function = getattr(_library, name)
    function.restype, function.argtypes = result, arguments
    return function


_version = _declare(c_char_p, "tern_version")
_log_kind_name = _declare(c_char_p, "tern_log_kind_name", c_int32)
_log_severity_name = _declare(c_char_p, "tern_log_severity_name", c_int32)
_transport_name = _declare(c_char_p, "tern_transport_name", c_size_t)
_counter_name = _declare(c_char_p, "tern_counter_name", c_size_t)
_nexus_create = _declare(Status, "tern_nexus_create", c_char_p, POINTER(NexusOptions), POINTER(c_void_p))
_nexus_destroy = _declare(Status, "tern_nexus_destroy", c_void_p)
_nexus_uri = _declare(c_char_p, "tern_nexus_uri", c_void_p)
_create = _declare(Status, "tern_endpoint_create", c_void_p, POINTER(EndpointOptions), POINTER(c_void_p))
_destroy = _declare(Status, "tern_endpoint_destroy", c_void_p)
_close = _declare(Status, "tern_endpoint_close", c_void_p, c_int64)
_run = _declare(Status, "tern_endpoint_run", c_void_p, c_int64)
_run_once = _declare(Status, "tern_endpoint_run_once", c_void_p, POINTER(c_size_t))
_stop = _declare(Status, "tern_endpoint_stop", c_void_p)
_descriptor = _declare(Status, "tern_endpoint_descriptor", c_void_p, POINTER(c_int))
_post = _declare(Status, "tern_endpoint_post", c_void_p, Function, c_void_p)
_timer_start = _declare(Status, "tern_timer_start", c_void_p, c_int64, Function, c_void_p, POINTER(TimerName))
_timer_cancel = _declare(Status, "tern_timer_cancel", c_void_p, TimerName)
_counter = _declare(Status, "tern_endpoint_counter", c_void_p, c_char_p, POINTER(c_uint64))
_on_request = _declare(Status, "tern_endpoint_on_request", c_void_p, c_uint16, Handler, c_void_p,
                       POINTER(HandlerOptions))
_on_session_event = _declare(Status, "tern_endpoint_on_session_event", c_void_p, Listener, c_void_p)
_request_data = _declare(c_void_p, "tern_request_data", c_void_p)
_request_length = _declare(c_size_t, "tern_request_length", c_void_p)
_request_response = _declare(Status, "tern_request_response", c_void_p, c_size_t, POINTER(c_void_p))
_respond = _declare(Status, "tern_request_respond", c_void_p)
_fail = _declare(Status, "tern_request_fail", c_void_p, c_uint16)
_drop = _declare(Status, "tern_request_drop", c_void_p)
_keep = _declare(Status, "tern_request_keep", c_void_p, POINTER(c_void_p))
_is_cancelled = _declare(c_int, "tern_request_is_cancelled", c_void_p)
_session_open = _declare(Status, "tern_session_open", c_void_p, c_char_p, POINTER(SessionOptions), POINTER(SessionName))
_session_close = _declare(Status, "tern_session_close", c_void_p, SessionName)
_session_inspect = _declare(Status, "tern_session_inspect", c_void_p, SessionName, POINTER(SessionInfo))
_alloc = _declare(Status, "tern_msgbuf_alloc", c_void_p, c_size_t, POINTER(c_void_p))
_free = _declare(Status, "tern_msgbuf_free", c_void_p)
_data = _declare(c_void_p, "tern_msgbuf_data", c_void_p)
_length = _declare(c_size_t, "tern_msgbuf_length", c_void_p)
_capacity = _declare(c_size_t, "tern_msgbuf_capacity", c_void_p)
_resize = _declare(Status, "tern_msgbuf_resize", c_void_p, c_size_t)
_call_start = _declare(Status, "tern_call_start", c_void_p, SessionName, c_uint16, c_void_p, c_void_p, Continuation,
                       c_void_p, POINTER(CallOptions), POINTER(CallName))
_call_cancel = _declare(Status, "tern_call_cancel", c_void_p, CallName)


# --- errors, views, callbacks -----------------------------------------------------------------------------------------

class Error(Exception):
    """An error of the library: `code` is an index into CODES, `app_code` the code of Request.fail()."""

    def __init__(self, status, app_code=0):
        super().__init__(f"{status} (app_code {app_code})" if app_code else str(status))
        self.code, self.app_code = status.code, app_code


def _check(status):
    if status.code != OK:
        raise Error(status)


def _uint16(value):
    """ctypes would cut off the higher bits."""
    if not 0 <= value <= 65535:
        raise ValueError(f"{value} is not a number from 0 to 65535")
    return value


def _size(value):
    if not 0 <= value <= c_size_t(-1).value:
        raise ValueError(f"{value} is not a number of bytes")
    return value


def _nanoseconds(seconds):
    try:
        value = int(seconds * 1e9)
    except OverflowError:  # of an infinite number
        raise ValueError(f"{seconds} seconds are out of range") from None
    if not -2**63 <= value <= FOREVER:
        raise ValueError(f"{seconds} seconds are out of range")
    return value


def _view(address, length):
    return memoryview((c_uint8 * length).from_address(address)).cast("B") if length else memoryview(bytearray())


_ids = itertools.count(1)
_callbacks = {}  # the context of a callback, a number: its endpoint, and the function that it calls


def _register(endpoint, function):
    context = next(_ids)
    _callbacks[context] = (endpoint, function)
    endpoint._contexts.add(context)
    return context


def _forget(context):
    endpoint, _ = _callbacks.pop(context)
    endpoint._contexts.discard(context)


def _started(status, context):
    """Checks the status of a registration. If it was refused, the library never calls the function."""
    if status.code != OK:
        _forget(context)
        raise Error(status)


def _run_callback(context, is_last, *arguments):
    endpoint, function = _callbacks[context]
    if is_last:
        _forget(context)
    try:
        function(*arguments)
    except BaseException as error:  # pylint: disable=broad-except  # _run_in() raises it
        if endpoint._raised is None:
            endpoint._raised = error
    if endpoint._raised is not None:
        _stop(endpoint._handle)


_main_thread = threading.main_thread().ident  # Python handles signals in it
_running = None  # the endpoint whose callbacks the library may call in the main thread at present


def _on_interrupt(number, frame):
    """The handler of SIGINT. Python's own one would raise KeyboardInterrupt where a callback begins, and ctypes drops
    such an exception together with the callback. This one only notes it while the library may call back."""
    if _running is None:
        _signal.default_int_handler(number, frame)
    else:
        _running._raised = KeyboardInterrupt()


def _run_in(endpoint, function, *arguments):
    """Calls a function in which the library may call an endpoint's callbacks. Then raises what they have raised, and
    KeyboardInterrupt after Ctrl-C.

    Another signal's handler may raise an exception of its own at any call. So nothing is called between the change of
    _running and the try blocks, nor in the finally blocks: Python 3.10 and later handle signals only at calls, where
    functions begin, and at jumps back."""
    global _running  # pylint: disable=global-statement
    is_main, before = threading.get_ident() == _main_thread, _running  # before: this call is in another one's callback
    if is_main:
        _running = endpoint
    try:
        try:
            return function(*arguments)
        finally:
            if is_main:
                _running = before
    finally:
        if is_main:
            _running = before  # again, because an older Python can raise just before the first one
        if endpoint._raised is not None:
            raised, endpoint._raised = endpoint._raised, None
            raise raised


@Function
def _on_function(context):
    _run_callback(context, True)


@Handler
def _on_handler(context, request):
    argument = Request(request)
    _run_callback(context, False, argument)
    argument._release()


@Listener
def _on_event(context, event):
    heard = event.contents
    _run_callback(context, False, heard.session.name, bool(heard.is_client), heard.state, str(heard.status))


@Continuation
def _on_completion(context, completion):
    done = completion.contents
    status = Status(done.status.code, done.status.message)
    request, response = Buffer(done.request), Buffer(done.response)
    _run_callback(context, True, status, request, response, done.app_code)
    request.free()  # unless the callback has used it again
    response.free()


# --- the interface ----------------------------------------------------------------------------------------------------

def version():
    return _version().decode()


def transports():
    names = itertools.takewhile(lambda name: name is not None, map(_transport_name, itertools.count()))
    return [name.decode() for name in names]


class Nexus:
    """One per process. Options are those of tern_nexus_options, such as page="shm". Destroy its endpoints first.
    log(event) is called for events of sessions and peers, in the thread of the event."""

    _logs = {}  # by handle: the library calls them until destroy(), even if the program has forgotten the Nexus

    def __init__(self, listen_uri="tern://127.0.0.1:0", log=None, **options):
        self._handle = c_void_p()
        if log is not None:
            options["log"] = LogListener(lambda _, event: log(event.contents))
        _check(_nexus_create(listen_uri.encode(), byref(NexusOptions(**options)), byref(self._handle)))
        Nexus._logs[self._handle.value] = options.get("log")
        self.uri = _nexus_uri(self._handle).decode()

    def destroy(self):
        _check(_nexus_destroy(self._handle))
        if self._handle:
            del Nexus._logs[self._handle.value]
        self._handle = c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.destroy()


class Endpoint:
    """An endpoint and its loop. Options are those of tern_endpoint_options, such as transport="udp"."""

    def __init__(self, nexus, **options):
        self._handle, self._contexts, self._raised, self._is_stopped = c_void_p(), set(), None, False
        if threading.get_ident() == _main_thread and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
            _signal.signal(_signal.SIGINT, _on_interrupt)
        _check(_create(nexus._handle, byref(EndpointOptions(**options)), byref(self._handle)))

    def destroy(self):
        """Pending calls end here with CANCELLED; pending timers and posted functions never run."""
        _run_in(self, self._destroy_now)

    def _destroy_now(self):
        _check(_destroy(self._handle))
        self._handle = c_void_p()
        for context in list(self._contexts):
            _forget(context)

    def close(self, seconds=1.0):
        """Waits until calls and requests have ended, for at most `seconds`. Ctrl-C does not end the wait earlier."""
        _check(_run_in(self, _close, self._handle, _nanoseconds(seconds)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.destroy()

    def on_request(self, request_type, handler, **options):
        """handler(request); options are those of tern_handler_options, such as worker=1."""
        request_type, options = _uint16(request_type), HandlerOptions(**options)
        context = _register(self, handler)
        _started(_on_request(self._handle, request_type, _on_handler, context, byref(options)), context)

    def on_session_event(self, listener):
        """listener(session, is_client, state, text)"""
        context = _register(self, listener)
        _started(_on_session_event(self._handle, _on_event, context), context)

    def open_session(self, uri, **options):
        """Options are those of tern_session_options. Calls may be made at once."""
        name = SessionName()
        _check(_session_open(self._handle, uri.encode(), byref(SessionOptions(**options)), byref(name)))
        return Session(self, name)

    def alloc(self, length):
        handle = c_void_p()
        _check(_alloc(self._handle, _size(length), byref(handle)))
        return Buffer(handle.value)

    def run(self, seconds=None):
        """Runs the loop until stop(), or for `seconds`. A stop() before it ends it at once. Ctrl-C is noticed within a
        tenth of a second."""
        end = None if seconds is None else time.monotonic() + _nanoseconds(seconds) / 1e9
        if end is not None and seconds <= 0:
            return  # a stop() before it is for the next run
        try:
            while not self._is_stopped and (end is None or time.monotonic() < end):
                self._run_briefly(0.1 if end is None else min(0.1, end - time.monotonic()))
        finally:
            self._is_stopped = False  # also after an exception, or if the time is over: it ends no later run()

    def _run_briefly(self, seconds):
        """Runs the loop for at most this time. Python handles signals after it."""
        _check(_run_in(self, _run, self._handle, max(0, _nanoseconds(seconds))))

    def run_once(self):
        """Runs one iteration without waiting. Returns the number of packets."""
        packets = c_size_t()
        _check(_run_in(self, _run_once, self._handle, byref(packets)))
        return packets.value

    def stop(self):
        """Any thread."""
        self._is_stopped = True
        _check(_stop(self._handle))

    def fileno(self):
        """For select and asyncio: readable when run_once() has work."""
        descriptor = c_int()
        _check(_descriptor(self._handle, byref(descriptor)))
        return descriptor.value

    def post(self, function):
        """Runs function() in the loop. Any thread."""
        context = _register(self, function)
        _started(_post(self._handle, _on_function, context), context)

    def after(self, seconds, function):
        """Runs function() in the loop after this time. Returns a timer for cancel_timer()."""
        delay_ns, name = _nanoseconds(seconds), TimerName()
        context = _register(self, function)
        _started(_timer_start(self._handle, delay_ns, _on_function, context, byref(name)), context)
        return context, name

    def cancel_timer(self, timer):
        """After this the timer's function never runs. MISUSE: it has run, or was cancelled."""
        context, name = timer
        _check(_timer_cancel(self._handle, name))
        _forget(context)

    def counters(self):
        values, value = {}, c_uint64()
        for name in itertools.takewhile(lambda name: name is not None, map(_counter_name, itertools.count())):
            _check(_counter(self._handle, name, byref(value)))
            values[name.decode()] = value.value
        return values


class Buffer:
    """A message buffer. A call takes it; its continuation has another Buffer over the same memory."""

    def __init__(self, handle):
        self._handle = handle
        self._look()

    def _look(self):
        self.view = _view(_data(self._handle), _length(self._handle))

    def resize(self, length):
        _check(_resize(self._handle, _size(length)))
        self.view.release()
        self._look()

    def capacity(self):
        return _capacity(self._handle)

    def free(self):
        if self._handle is not None:
            _check(_free(self._leave()))

    def _leave(self):
        handle, self._handle = self._handle, None
        self.view.release()
        return handle

    def __del__(self):
        self.free()


class Session:
    def __init__(self, endpoint, name):
        self._endpoint, self._name = endpoint, name

    def call(self, request_type, request, response, then, deadline=None):
        """then(status, request, response, app_code) runs once, with both Buffers, which are freed afterwards unless it
        has used them again. If the call is refused, the caller keeps the Buffers. Returns a name for cancel()."""
        options, name = CallOptions(deadline_ns=0 if deadline is None else max(1, _nanoseconds(deadline))), CallName()
        request_type = _uint16(request_type)
        context = _register(self._endpoint, then)
        _started(_call_start(self._endpoint._handle, self._name, request_type, request._handle, response._handle,
                             _on_completion, context, byref(options), byref(name)), context)
        request._handle = response._handle = None  # first of all: the call has them, even if a view is still in use
        request.view.release()
        response.view.release()
        return name

    def cancel(self, name):
        _check(_call_cancel(self._endpoint._handle, name))

    def ask(self, request_type, message, answer_bytes_max=1024, deadline=None):
        """Sends bytes, runs the loop until the answer is here, and returns its bytes. Copies both."""
        outcome = []

        def done(status, _, response, app_code):
            outcome.append((status, app_code, bytes(response.view) if status.code == OK else b""))
            _stop(self._endpoint._handle)  # not stop(), which would end a later run() if this one raises

        def exchange():
            request = self._endpoint.alloc(len(message))
            request.view[:] = message
            self.call(request_type, request, self._endpoint.alloc(answer_bytes_max), done, deadline)
            while not outcome:
                self._endpoint._run_briefly(0.1)

        _run_in(self._endpoint, exchange)  # all of it: no Ctrl-C comes between the call and the change of its buffers
        status, app_code, answer = outcome[0]
        if status.code != OK:
            raise Error(status, app_code)
        return answer

    def info(self):
        info = SessionInfo()
        _check(_session_inspect(self._endpoint._handle, self._name, byref(info)))
        return info

    def close(self):
        _check(_session_close(self._endpoint._handle, self._name))


class Request:
    """The argument of a handler. Without an answer by the time the handler returns, the client gets NO_RESPONSE; keep()
    is for an answer that comes later, from any thread."""

    def __init__(self, handle):
        self._handle, self._space = handle, None
        self.view = _view(_request_data(handle), _request_length(handle))

    def response(self, length):
        """Memory for the answer, which respond() without a message sends."""
        length = _size(length)
        if self._space is not None:
            self._space.release()  # its memory is replaced
        space = c_void_p()
        _check(_request_response(self._handle, length, byref(space)))
        self._space = _view(space.value, length)
        return self._space

    def respond(self, message=None):
        if message is not None:
            self.response(len(message))[:] = message
        self._end(_respond(self._handle))

    def fail(self, app_code):
        self._end(_fail(self._handle, _uint16(app_code)))

    def drop(self):
        self._end(_drop(self._handle))

    def keep(self):
        kept = c_void_p()
        self._end(_keep(self._handle, byref(kept)))
        return Request(kept.value)

    def is_cancelled(self):
        return bool(_is_cancelled(self._handle))

    def _end(self, status):
        _check(status)
        self._release()

    def _release(self):
        self._handle = None  # it may become the handle of another request
        self.view.release()
        if self._space is not None:
            self._space.release()
