#!/usr/bin/env python3
"""The flag --log of the programs: a client prints what happens to its session as JSON lines while its server is killed.

Usage: tests/e2e/log_test.py BUILD_DIR
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

BUILD = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/release")
LATENCY = BUILD / "microbench/latency"
HELLO = BUILD / "apps/hello"
DRIVER = BUILD / "microbench/instructions_driver"
PATIENCE_S = 60


def start_server():
    """The process, and HOST:PORT of its Nexus."""
    ready, theirs = os.pipe()
    server = subprocess.Popen([LATENCY, "--transport=udp", "--log", "--role=server", "--server=127.0.0.1:0",
                               f"--ready_fd={theirs}", "--seconds=1000"], pass_fds=[theirs],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    os.close(theirs)
    with os.fdopen(ready) as pipe:
        uri = pipe.readline().strip()
    assert uri, "the server has not started"
    return server, uri.removeprefix("tern://")


def events_of(lines):
    """The lines that are events. A program may print other lines on standard error."""
    return [json.loads(line) for line in lines if line.startswith('{"log":')]


class LogTest(unittest.TestCase):
    def test_client_logs_the_death_of_its_server(self):
        server, address = start_server()
        client = subprocess.Popen([LATENCY, "--transport=udp", "--log", "--role=client", f"--server={address}",
                                   "--seconds=1000"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            lines = []
            for line in client.stderr:
                lines.append(line)
                if '"session_opened"' in line:
                    break
            server.send_signal(signal.SIGKILL)
            _, rest = client.communicate(timeout=PATIENCE_S)
            theirs = events_of(server.communicate(timeout=PATIENCE_S)[1].splitlines())
        finally:
            for process in (server, client):
                process.kill()
                process.wait()
        events = events_of(lines + rest.splitlines())
        kinds = [event["log"] for event in events]
        for kind in ("nexus_created", "endpoint_created", "session_opened", "peer_dead", "session_lost",
                     "endpoint_closed", "nexus_closed"):
            self.assertIn(kind, kinds)
        opened = events[kinds.index("session_opened")]
        lost = events[kinds.index("session_lost")]
        self.assertEqual(opened["peer"], address)
        self.assertEqual(lost["peer"], address)
        self.assertEqual(lost["session"], opened["session"])
        self.assertEqual(lost["code"], "peer unreachable")
        self.assertEqual(lost["severity"], "warning")
        self.assertGreaterEqual(lost["time_ns"], opened["time_ns"])
        self.assertEqual(events[kinds.index("peer_dead")]["peer"], address)
        self.assertEqual([event["log"] for event in theirs][:2], ["nexus_created", "endpoint_created"])
        self.assertIn("session_opened", [event["log"] for event in theirs])

    def test_log_of_a_path_that_is_no_text(self):
        done = subprocess.run([HELLO, "--transport=udp", "--log", "--json", b"--page=/no/such\xff/page"],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        missing = [event for event in events_of(done.stderr.splitlines()) if event["log"] == "page_missing"]
        self.assertEqual(len(missing), 1)
        self.assertIn("\ufffd", missing[0]["reason"])
        self.assertEqual(json.loads(done.stdout)["bench"], "hello")

    @unittest.skipUnless(DRIVER.exists(), "sanitized builds have no drivers")
    def test_driver_of_both_ends_logs_its_sessions(self):
        done = subprocess.run([DRIVER, "--log", "--rpcs=1", "--sessions=1", "--window=1"], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        self.assertIn("session_opened", [event["log"] for event in events_of(done.stderr.splitlines())])


if __name__ == "__main__":
    unittest.main(verbosity=2)
