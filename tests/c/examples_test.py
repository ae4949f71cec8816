#!/usr/bin/env python3
"""The examples over the C interface do what they say: hello servers and clients in C, Python, Rust and C++ understand
each other, over shm and udp; and tern.py does what its comments promise.

Usage: tests/c/examples_test.py BUILD_DIR
Without rustc, or without apps/hello, the pairs that need it are left out, and it says so.
"""
import gc
import math
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv[1]).resolve()
EXAMPLES = BUILD / "examples"
os.environ["TERN_LIBRARY"] = str(BUILD / "src/c/libtern_c.so")
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "examples/python"))
import tern  # noqa: E402  pylint: disable=wrong-import-position

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background starts with SIG_IGN

PYTHON = [sys.executable, "-B", ROOT / "examples/python/hello.py"]
C_PLUS_PLUS = BUILD / "apps/hello"
RUST = EXAMPLES / "rust/hello"

SERVERS = {  # for each server: the command, and its answer to "tests"
    "c": (lambda transport: [EXAMPLES / "c/hello_server", transport, "127.0.0.1:0"], "hello, tests"),
    "python": (lambda transport: [*PYTHON, "server", transport, "127.0.0.1:0"], "hello, tests"),
    "rust": (lambda transport: [RUST, "server", transport, "127.0.0.1:0"], "hello, tests"),
    "c++": (lambda transport: [C_PLUS_PLUS, "--role=server", f"--transport={transport}", "--server=127.0.0.1:0"],
            "hello"),
}
CLIENTS = {
    "c": lambda transport, uri: [EXAMPLES / "c/hello_client", transport, uri, "tests"],
    "python": lambda transport, uri: [*PYTHON, "client", transport, uri, "tests"],
    "rust": lambda transport, uri: [RUST, "client", transport, uri, "tests"],
}
MISSING = []
for name, program in (("rust", RUST), ("c++", C_PLUS_PLUS)):
    if not program.exists():
        hint = " (scripts/setup test installs rustc)" if name == "rust" else ""
        MISSING.append(f"{program} is not built{hint}")
        SERVERS.pop(name)
        CLIENTS.pop(name, None)


class Server:
    """A process that says "... at URI" in its first line. It ends with this object."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.uri = self.process.stdout.readline().strip().rpartition(" at ")[2]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        rest, _ = self.process.communicate(timeout=20)
        return self.process.returncode, rest


def run(command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


class Hello(unittest.TestCase):
    def test_all_languages_are_here(self):
        if MISSING:
            self.skipTest("; ".join(MISSING))

    def test_all_languages_understand_each_other(self):
        for transport in ("shm", "udp"):
            for server_name, (command, answer) in SERVERS.items():
                with Server(command(transport)) as server:
                    self.assertRegex(server.uri, r"^tern://127\.0\.0\.1:\d+$", (server_name, transport))
                    for client_name, client in CLIENTS.items():
                        with self.subTest(transport=transport, server=server_name, client=client_name):
                            ran = run(client(transport, server.uri))
                            self.assertEqual((ran.stdout, ran.returncode), (answer + "\n", 0), ran.stderr)
                    code, rest = server.stop()
                    self.assertEqual(code, -signal.SIGTERM if server_name == "rust" else 0, rest)
                    if server_name in ("c", "python"):
                        self.assertEqual(rest, f"served {len(CLIENTS)} requests\n")

    def test_clients_say_why_there_is_no_answer(self):
        for client_name, client in CLIENTS.items():
            with self.subTest(client_name):
                ran = run(client("pigeons", "tern://127.0.0.1:9"))
                self.assertEqual(ran.returncode, 1)
                self.assertIn("no transport is called 'pigeons'; choose from: shm, udp", ran.stderr)


ECHO, KEEP, FAIL, RAISE, FORGET, WORKER, LATE = range(1, 8)

# A program that ends its loop by an alarm whose handler raises, and in each round sends Ctrl-C afterwards. The times of
# the alarms are spread over those of some calls.
AFTER_ANOTHER_HANDLER = """
import signal, sys
sys.path.insert(0, sys.argv[1])
import tern

def alarm(*_):
    raise TimeoutError

def program():
    lost = 0
    with tern.Nexus() as nexus, tern.Endpoint(nexus, transport="shm", no_huge_pages=1) as endpoint:
        for round_ in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.001 + round_ * 1e-7)
                while True:
                    CALL
            except TimeoutError:
                pass
            try:
                signal.raise_signal(signal.SIGINT)
                lost += 1
            except KeyboardInterrupt:
                pass
    print(lost, "of 300 lost")

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGALRM, alarm)
program()
"""


class Python(unittest.TestCase):
    """A server and its client on two endpoints of this process: the server's loop runs in a thread."""

    def setUp(self):
        self.nexus = tern.Nexus()
        self.kept, self.forgotten, self.views, self.heard = [], [], [], []
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()
        self.assertTrue(self.ready.wait(20))
        self.client = tern.Endpoint(self.nexus, transport="shm", endpoint_id=1, no_huge_pages=1)
        self.client.on_session_event(lambda *event: self.heard.append(event))
        self.session = self.client.open_session(self.nexus.uri, window=4)

    def serve(self):
        with tern.Endpoint(self.nexus, transport="shm", no_huge_pages=1) as self.server:
            def echo(request):
                self.views.append(request.view)
                request.respond(request.view)
            self.server.on_request(ECHO, echo)
            self.server.on_request(WORKER, lambda request: request.respond(threading.current_thread().name.encode()),
                                   worker=1)
            self.server.on_request(KEEP, lambda request: self.kept.append(request.keep()))
            self.server.on_request(FAIL, lambda request: request.fail(9))
            self.server.on_request(FORGET, self.forgotten.append)
            self.server.on_request(LATE, self.answer_late)
            self.server.on_request(RAISE, lambda request: 1 // 0)
            self.ready.set()
            self.raised = None
            while True:
                try:
                    return self.server.run()
                except ZeroDivisionError as error:
                    self.raised = error

    def answer_late(self, request):
        """Answers the request that an earlier handler has forgotten, and then its own."""
        try:
            self.forgotten[0].respond(b"for another client")
        except tern.Error as error:
            request.respond(str(error).encode())

    def tearDown(self):
        self.client.destroy()
        self.server.stop()
        self.thread.join()
        self.assertEqual(self.server._contexts | self.client._contexts, set())  # no callback is kept
        self.nexus.destroy()

    def test_messages_are_views_that_end(self):
        self.assertEqual(self.session.ask(ECHO, b"abc"), b"abc")
        self.assertEqual(self.session.ask(ECHO, b""), b"")
        self.assertEqual(self.session.ask(ECHO, bytes(range(256)) * 4000, 1 << 20), bytes(range(256)) * 4000)
        with self.assertRaises(ValueError):
            bytes(self.views[0])  # the view's request has ended
        request = self.client.alloc(4)
        view = request.view
        view[:] = b"1234"
        request.resize(2)
        with self.assertRaises(ValueError):
            bytes(view)
        self.assertEqual((bytes(request.view), request.capacity() >= 4), (b"12", True))
        self.assertEqual(self.client.counters()["calls_completed"], 3)
        self.assertEqual(self.session.info().state, tern.OPEN)
        self.assertEqual([event[1:3] for event in self.heard], [(True, tern.OPEN)])

    def test_buffers_move_into_a_call_and_come_back(self):
        request, response, rounds = self.client.alloc(8), self.client.alloc(8), []
        request.view[:] = b"12345678"

        def again(status, request, response, app_code):
            rounds.append((status.code, bytes(response.view), app_code))
            if len(rounds) == 100:
                self.client.stop()
                return
            request.view[0:1] = bytes([len(rounds)])
            self.session.call(ECHO, request, response, again)

        self.session.call(ECHO, request, response, again)
        with self.assertRaises(ValueError):
            bytes(request.view)
        with self.assertRaisesRegex(tern.Error, "the program does not own the buffer"):
            self.session.call(ECHO, request, response, again)
        self.client.run(30)
        self.assertEqual(rounds[1:], [(tern.OK, bytes([n]) + b"2345678", 0) for n in range(1, 100)])

    def test_other_outcomes(self):
        with self.assertRaises(tern.Error) as refused:
            self.session.ask(FAIL, b"")
        self.assertEqual((refused.exception.code, refused.exception.app_code), (tern.REFUSED, 9))
        with self.assertRaisesRegex(tern.Error, "^NO_RESPONSE"):
            self.session.ask(FORGET, b"abc")
        with self.assertRaises(ValueError):
            bytes(self.forgotten[0].view)
        self.assertRegex(self.session.ask(LATE, b""), b"^MISUSE")
        with self.assertRaisesRegex(tern.Error, "^DEADLINE"):
            self.session.ask(KEEP, b"", deadline=2)
        self.assertNotEqual(self.session.ask(WORKER, b"").decode(), self.thread.name)
        # The loop raises a handler's exception, and the client is told that there is no answer.
        with self.assertRaisesRegex(tern.Error, "^NO_RESPONSE"):
            self.session.ask(RAISE, b"")
        self.assertEqual(self.session.ask(ECHO, b"on"), b"on")
        self.assertIsInstance(self.raised, ZeroDivisionError)
        with self.assertRaisesRegex(tern.Error, "MISUSE: .*choose from: shm, udp"):
            tern.Endpoint(self.nexus, transport="pigeons")
        request = self.kept.pop()
        with self.assertRaises(ValueError):
            request.fail(65536 + 9)
        request.drop()

    def test_numbers_that_do_not_fit_are_refused(self):
        for number in (-1, 65536 + ECHO):
            with self.assertRaises(ValueError):
                self.client.on_request(number, print)
            with self.assertRaises(ValueError):
                self.session.ask(number, b"")
            with self.assertRaises(ValueError):
                tern.Endpoint(self.nexus, transport="shm", endpoint_id=number)

    def test_exceptions_of_callbacks_in_close_and_destroy_are_raised(self):
        for end in (lambda endpoint: endpoint.close(0), tern.Endpoint.destroy):
            endpoint = tern.Endpoint(self.nexus, transport="shm", endpoint_id=2, no_huge_pages=1)
            session = endpoint.open_session(self.nexus.uri)
            session.call(ECHO, endpoint.alloc(1), endpoint.alloc(1), lambda *_: 1 // 0)
            with self.assertRaises(ZeroDivisionError):
                end(endpoint)
            endpoint.destroy()
            self.assertEqual(endpoint._contexts, set())

    def test_request_is_answered_by_another_thread(self):
        def answer_when_kept():
            while not self.kept:
                threading.Event().wait(0.001)
            request = self.kept.pop()
            request.response(3)[:] = bytes(request.view)[::-1]
            request.respond()
        thread = threading.Thread(target=answer_when_kept)
        thread.start()
        self.assertEqual(self.session.ask(KEEP, b"abc"), b"cba")
        thread.join()

    def test_posted_functions_and_timers_run_in_the_loop(self):
        order = []
        self.client.after(0.02, lambda: (order.append("timer"), self.client.stop()))
        self.client.post(lambda: order.append("posted"))
        self.client.run()
        self.assertEqual(order, ["posted", "timer"])
        self.client.post(lambda: 1 // 0)
        with self.assertRaises(ZeroDivisionError):
            self.client.run(5)
        self.client.after(3600, lambda: None)  # never runs
        timer = self.client.after(0.001, lambda: order.append("cancelled"))
        self.client.cancel_timer(timer)
        with self.assertRaisesRegex(tern.Error, "^MISUSE"):
            self.client.cancel_timer(timer)
        self.client.after(0.01, self.client.stop)
        self.client.run()
        self.assertEqual(order, ["posted", "timer"])
        self.assertGreaterEqual(self.client.fileno(), 0)
        self.assertGreaterEqual(self.client.run_once(), 0)

    def test_failed_calls_register_nothing_and_sizes_are_not_cut_off(self):
        for seconds in (math.inf, -math.inf, math.nan, 1e10):
            with self.assertRaises(ValueError):
                self.client.after(seconds, print)
            with self.assertRaises(ValueError):
                self.client.run(seconds)
            with self.assertRaises(ValueError):
                self.client.close(seconds)
            with self.assertRaises(ValueError):
                self.session.ask(ECHO, b"", deadline=seconds)
        buffer = self.client.alloc(3)
        for length in (2**64 + 3, -1):
            with self.assertRaises(ValueError):
                self.client.alloc(length)
            with self.assertRaises(ValueError):
                buffer.resize(length)

    def interrupt_and(self, function):
        """Sends a SIGINT when the client's loop runs, and then calls function(). Python handles the signal where the next
        callback begins. Returns the thread that does it."""
        runs = threading.Event()

        def interrupt():
            runs.wait()
            time.sleep(0.02)  # until the loop is in the library again
            os.kill(os.getpid(), signal.SIGINT)
            function()
        self.client.post(runs.set)
        thread = threading.Thread(target=interrupt)
        thread.start()
        return thread

    def test_ctrl_c_in_callbacks_of_run_is_not_lost(self):
        for round_ in range(5):
            called = []
            thread = self.interrupt_and(lambda called=called: self.client.post(lambda: called.append(1)))
            with self.assertRaises(KeyboardInterrupt, msg=f"round {round_}"):
                self.client.run(5)
            thread.join()
            self.client.run(0.05)
            self.assertEqual(called, [1])  # the callback was not dropped

    def test_ctrl_c_in_ask_is_not_lost(self):
        def answer():
            while not self.kept:
                threading.Event().wait(0.001)
            self.kept.pop().respond(b"abc")
        # Without the first signal, the second one ends ask().
        watchdog = threading.Timer(10, os.kill, (os.getpid(), signal.SIGINT))
        watchdog.start()
        self.addCleanup(watchdog.cancel)
        begin = time.monotonic()
        thread = self.interrupt_and(answer)
        with self.assertRaises(KeyboardInterrupt):
            self.session.ask(KEEP, b"abc")
        thread.join()
        self.assertLess(time.monotonic() - begin, 5)
        self.assertEqual(self.session.ask(ECHO, b"abc"), b"abc")

    def test_ctrl_c_in_run_once_close_and_destroy_is_not_lost(self):
        for end in (lambda endpoint: endpoint.run_once(), lambda endpoint: endpoint.close(0), tern.Endpoint.destroy):
            endpoint = tern.Endpoint(self.nexus, transport="shm", endpoint_id=2, no_huge_pages=1)
            session, outcome = endpoint.open_session(self.nexus.uri), []
            handler = signal.getsignal(signal.SIGINT)

            def interrupt(*_):
                signal.raise_signal(signal.SIGINT)
                outcome.append(1)
            endpoint.post(interrupt)
            session.call(KEEP, endpoint.alloc(1), endpoint.alloc(1), interrupt)
            with self.assertRaises(KeyboardInterrupt):
                end(endpoint)
            self.assertNotEqual(outcome, [])  # the callback went on
            self.assertIs(signal.getsignal(signal.SIGINT), handler)
            try:
                endpoint.destroy()
            except KeyboardInterrupt:  # by its last callback
                pass

    def test_ctrl_c_after_a_loop_inside_of_another_one_is_not_lost(self):
        inner, order = tern.Endpoint(self.nexus, transport="shm", endpoint_id=2, no_huge_pages=1), []

        def run_inner():
            inner.post(lambda: signal.raise_signal(signal.SIGINT))
            with self.assertRaises(KeyboardInterrupt):
                inner.run(5)
            order.append("inner")
            signal.raise_signal(signal.SIGINT)
            order.append("outer")  # the callback went on
        self.client.post(run_inner)
        with inner, self.assertRaises(KeyboardInterrupt):
            self.client.run(5)
        self.assertEqual(order, ["inner", "outer"])
        with self.assertRaises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
            order.append("here")
        self.assertEqual(order, ["inner", "outer"])  # outside of the loops it comes at once

    def test_ctrl_c_is_not_lost_after_another_handler_has_raised(self):
        for call in ("endpoint.run_once()", "endpoint.run(1e-6)"):
            with self.subTest(call):
                ran = run([sys.executable, "-B", "-c", AFTER_ANOTHER_HANDLER.replace("CALL", call),
                           ROOT / "examples/python"])
                self.assertEqual((ran.stdout, ran.stderr, ran.returncode), ("0 of 300 lost\n", "", 0))

    def test_endpoint_of_the_main_thread_replaces_only_pythons_own_handler_of_ctrl_c(self):
        def create():
            tern.Endpoint(self.nexus, transport="shm", endpoint_id=2, no_huge_pages=1).destroy()
        self.addCleanup(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
        for handler in (signal.SIG_IGN, lambda *_: None, signal.default_int_handler):
            signal.signal(signal.SIGINT, handler)
            thread = threading.Thread(target=create)
            thread.start()
            thread.join()
            self.assertIs(signal.getsignal(signal.SIGINT), handler)
            create()
            self.assertEqual(signal.getsignal(signal.SIGINT) is handler, handler is not signal.default_int_handler)

    def test_program_with_its_own_handler_of_ctrl_c_keeps_it(self):
        heard = []

        def handler(*_):
            heard.append(1)
            self.client.stop()
        before = signal.signal(signal.SIGINT, handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        self.client.post(lambda: signal.raise_signal(signal.SIGINT))
        self.client.run(10)
        self.assertEqual(heard, [1])
        self.assertIs(signal.getsignal(signal.SIGINT), handler)

    def test_stop_when_the_time_of_a_run_is_over_ends_no_later_run(self):
        def stop_late():
            time.sleep(0.05)
            self.client.stop()
        self.client.post(stop_late)
        self.client.run(0.02)
        begin = time.monotonic()
        self.client.run(0.1)
        self.assertGreaterEqual(time.monotonic() - begin, 0.1)

    def test_stop_in_a_run_that_an_exception_ends_ends_no_later_run(self):
        def stop_and_fail():
            self.client.stop()
            raise KeyError("mine")
        self.client.post(stop_and_fail)
        with self.assertRaises(KeyError):
            self.client.run(10)
        begin = time.monotonic()
        self.client.run(0.1)
        self.assertGreaterEqual(time.monotonic() - begin, 0.1)

    def test_stop_during_ask_ends_the_next_run(self):
        self.client.post(self.client.stop)
        self.assertEqual(self.session.ask(ECHO, b"abc"), b"abc")
        self.client.run()

    def test_stop_after_a_loop_has_ended_by_itself_ends_the_next_one(self):
        self.client.run(0.01)
        self.client.stop()
        self.client.run(0)  # has no time to see it
        self.client.run()


class Log(unittest.TestCase):
    def test_function_hears_of_sessions(self):
        heard, texts = [], []

        def log(event):
            heard.append((event.name(), event.endpoint, event.status.code))
            texts.append(str(event))
        with tern.Nexus(log=log) as nexus, tern.Endpoint(nexus, transport="udp", endpoint_id=3) as endpoint:
            session = endpoint.open_session("tern://127.0.0.1:9", connect_timeout_ns=50_000_000)
            with self.assertRaisesRegex(tern.Error, "^PEER_UNREACHABLE"):
                session.ask(1, b"")
        self.assertEqual(heard, [("nexus_created", -1, tern.OK), ("endpoint_created", 3, tern.OK),
                                 ("session_failed", 3, tern.PEER_UNREACHABLE), ("endpoint_closed", 3, tern.OK),
                                 ("nexus_closed", -1, tern.OK)])
        self.assertRegex(texts[2], r"^warning: 127\.0\.0\.1:\d+: session_failed.*: .+")

    def test_function_is_called_after_the_program_has_forgotten_the_nexus(self):
        heard = []
        endpoint = tern.Endpoint(tern.Nexus(log=lambda event: heard.append(event.name())), transport="udp")
        gc.collect()
        with endpoint:
            session = endpoint.open_session("tern://127.0.0.1:9", connect_timeout_ns=50_000_000)
            with self.assertRaisesRegex(tern.Error, "^PEER_UNREACHABLE"):
                session.ask(1, b"")
        self.assertIn("session_failed", heard)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
