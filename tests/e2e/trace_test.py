#!/usr/bin/env python3
"""Two traced processes: scripts/trace finds each call at both ends, in order, and scripts/plot draws the slowest one.

Usage: tests/e2e/trace_test.py BUILD_DIR
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/release")
LATENCY = BUILD / "microbench/latency"
SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
PATIENCE_S = 120
# Of a call of one packet, in the order in which they happen. `answered` may be on either side of handler_end.
STEPS = (("client", "enqueued", None), ("client", "started", None), ("client", "sent", "request"),
         ("server", "received", "request"), ("server", "handler_begin", None), ("server", "handler_end", None),
         ("server", "sent", "response"), ("client", "received", "response"), ("client", "completed", None),
         ("client", "continuation_begin", None), ("client", "continuation_end", None))


def run(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=PATIENCE_S,
                          check=False)


def step_of(line):
    return line["side"], line["trace"], line.get("packet_kind")


class TraceTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.folder = pathlib.Path(directory.name)

    def files_over(self, transport):
        """Traces of a server and a client, two processes."""
        done = run(LATENCY, f"--transport={transport}", "--processes", "--seconds=0.2", f"--trace={self.folder}")
        self.assertEqual(done.returncode, 0, done.stderr)
        files = sorted(self.folder.iterdir())
        self.assertEqual(len({file.name.split("-")[2] for file in files}), 2, files)  # tern-trace-PID-N
        for file in files:
            self.assertEqual(file.stat().st_mode & 0o777, 0o600)
        return files

    def trace(self, *arguments):
        done = run(SCRIPTS / "trace", *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return [json.loads(line) for line in done.stdout.splitlines()]

    def check_call(self, call):
        steps = [step_of(line) for line in call]
        places = [steps.index(step) for step in STEPS]
        # `sent` is recorded after the transport has taken the packet, which the other end may have by then.
        ends = [[place for (end, _, _), place in zip(STEPS, places) if end == side] for side in ("client", "server")]
        for order in (*ends, [place for (_, name, _), place in zip(STEPS, places) if name != "sent"]):
            self.assertEqual(order, sorted(order), steps)
        self.assertIn(("server", "answered", None), steps)
        for sent, received in ((2, 3), (6, 7)):
            self.assertEqual(call[places[sent]]["packet"], call[places[received]]["packet"])
        self.assertEqual(len({(line["session"], line["request"]) for line in call}), 1)

    def check_transport(self, transport):
        files = self.files_over(transport)
        calls = {}
        for line in self.trace(*files):
            if line["request"]:
                calls.setdefault((line["session"], line["request"]), []).append(line)
        whole = [call for call in calls.values()
                 if {("client", "enqueued", None), ("client", "continuation_end", None)} <= set(map(step_of, call))
                 and {("server", "received", "request"), ("server", "sent", "response")} <= set(map(step_of, call))]
        self.assertGreater(len(whole), 10)
        # A packet that was lost, or a duplicate, has further steps.
        plain = [call for call in whole if len(call) == len(STEPS) + 1]
        self.assertGreater(len(plain), 10)
        for call in plain:
            self.check_call(call)
        slowest = self.trace("--slowest", *files)
        self.assertIn(f'{slowest[0]["session"]}/{slowest[0]["request"]}', [f"{a}/{b}" for a, b in calls])
        spans = {"enqueued", "handler_begin", "completed"}
        self.assertLessEqual(spans, {line["trace"] for line in slowest})
        one = plain[0][0]
        self.check_call(self.trace(f'--call={one["session"]}/{one["request"]}', *files))
        return slowest

    def test_shm(self):
        self.check_transport("shm")

    def test_udp_and_its_timeline(self):
        slowest = self.check_transport("udp")
        call = self.folder / "call.jsonl"
        call.write_text("".join(json.dumps(line) + "\n" for line in slowest))
        done = run(SCRIPTS / "plot", f"--out={self.folder}", call)
        if "matplotlib is not installed" in done.stderr:
            self.skipTest(done.stderr.strip())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((self.folder / "timeline.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")

    def test_folder_that_does_not_exist_is_refused(self):
        done = run(LATENCY, "--transport=udp", "--trace=/nowhere/at/all")
        self.assertEqual(done.returncode, 1)
        self.assertIn("--trace=/nowhere/at/all is not a folder", done.stderr)

    def test_other_files_are_refused(self):
        wrong = self.folder / "wrong"
        wrong.write_bytes(b"TERNTRCE" + bytes(12))
        for arguments in ((wrong,), (self.folder / "none",)):
            done = run(SCRIPTS / "trace", *arguments)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
