#!/usr/bin/python3
"""tern-top over the pages of two processes that call each other: what it prints is read as JSON and by Prometheus's own
parser; a third process reads while they run, and after they were killed.

Usage: tests/e2e/top_test.py BUILD_DIR
Needs Debian's python3-prometheus-client, and so Debian's Python; without it exit code 77.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError:
    print("SKIPPED: python3-prometheus-client is not installed (scripts/setup test)")
    sys.exit(77)

BUILD = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/release")
TOP = BUILD / "apps/top/tern-top"
CORPUS = pathlib.Path(__file__).resolve().parents[1] / "fuzz/corpus/page"
PATIENCE_S = 60


def top(*arguments):
    return subprocess.run([TOP, *arguments], capture_output=True, text=True, timeout=PATIENCE_S)


def read(*files):
    result = top("--once", "--json", *files)
    return json.loads(result.stdout)


def wait_for(is_true):
    """The first true result; fails after a time that no working program takes."""
    until = time.monotonic() + PATIENCE_S
    while not (result := is_true()):
        if time.monotonic() > until:
            raise AssertionError("waited in vain")
        time.sleep(0.05)
    return result


def group_of(pid):
    """The process group; None: there is no such process any more."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


class Pair:
    """A server and a client of the program latency, each with a page, until they are killed."""

    def __init__(self, page="shm"):
        common = [BUILD / "microbench/latency", "--transport=udp", "--seconds=1000", f"--page={page}"]
        ready, theirs = os.pipe()
        self.server = subprocess.Popen([*common, "--role=server", "--server=127.0.0.1:0", f"--ready_fd={theirs}"],
                                       pass_fds=[theirs], stdout=subprocess.DEVNULL)
        os.close(theirs)
        with os.fdopen(ready) as pipe:
            uri = pipe.readline().strip()
        assert uri, "the server has not started"
        self.client = subprocess.Popen([*common, "--role=client", f"--server={uri.removeprefix('tern://')}"], stdout=subprocess.DEVNULL)

    def pages(self):
        pids = {self.server.pid: "server", self.client.pid: "client"}
        return {pids[page["pid"]]: page for page in read()["pages"] if page["pid"] in pids}

    def busy_pages(self):
        """Both pages, once calls and their session are in them. Each process writes its own page, at its own time."""
        pages = self.pages()
        if len(pages) != 2 or not all(page["endpoints"] for page in pages.values()):
            return None
        client, server = (pages[side]["endpoints"][0] for side in ("client", "server"))
        has_news = client["counters"]["endpoint.calls_completed"] > 100 and server["counters"]["transport.packets_received"] > 0
        return pages if has_news and client["sessions"] and server["sessions"] else None

    def kill(self):
        for process in (self.client, self.server):
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()


class TopTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pair = Pair()
        cls.left = []

    @classmethod
    def tearDownClass(cls):
        cls.pair.kill()
        for page in cls.pair.pages().values():
            os.unlink(page["file"])

    def test_1_living_processes(self):
        first = wait_for(self.pair.busy_pages)
        for side in ("client", "server"):
            self.assertEqual(first[side]["life"], "alive")
            self.assertEqual(first[side]["program"], "latency")
            self.assertEqual(first[side]["endpoints"][0]["transport"], "udp")
            self.assertEqual(os.stat(first[side]["file"]).st_mode & 0o777, 0o600)
        client, server = (first[side]["endpoints"][0] for side in ("client", "server"))
        session = client["sessions"][0]
        self.assertEqual(session["side"], "client")
        self.assertEqual(session["state"], "open")
        self.assertEqual("tern://" + session["peer"], first["server"]["uri"])
        self.assertGreater(session["round_trip_us"], 0)
        self.assertGreaterEqual(session["round_trip_us"], session["round_trip_us_min"])
        self.assertEqual("tern://" + server["sessions"][0]["peer"], first["client"]["uri"])

        def has_grown():
            now = self.pair.pages()["client"]["endpoints"][0]
            return now if now["published_ns"] > client["published_ns"] else None
        later = wait_for(has_grown)
        for name, value in client["counters"].items():
            self.assertGreaterEqual(later["counters"][name], value, name)
        self.assertGreater(later["counters"]["endpoint.calls_completed"], client["counters"]["endpoint.calls_completed"])

    def test_2_prometheus(self):
        wait_for(self.pair.busy_pages)
        result = top("--prometheus")
        self.assertEqual(result.returncode, 0, result.stderr)
        families = {family.name: family for family in text_string_to_metric_families(result.stdout)}
        pids = {str(self.pair.client.pid), str(self.pair.server.pid)}

        def samples(name):
            return [s for s in families[name].samples if s.labels["pid"] in pids]
        self.assertEqual(families["tern_endpoint_calls_completed"].type, "counter")
        self.assertTrue(families["tern_endpoint_calls_completed"].documentation)
        calls = {s.labels["pid"]: s.value for s in samples("tern_endpoint_calls_completed")}
        self.assertEqual(set(calls), pids)
        self.assertGreater(calls[str(self.pair.client.pid)], 100)
        self.assertEqual(calls[str(self.pair.server.pid)], 0)
        self.assertEqual({s.value for s in samples("tern_up")}, {1})
        self.assertEqual(families["tern_session_round_trip_seconds"].type, "gauge")
        self.assertTrue(all(0 < s.value < PATIENCE_S for s in samples("tern_session_round_trip_seconds")))
        self.assertTrue(all(s.name.endswith("_total") for f in families.values() if f.type == "counter" for s in f.samples))
        # Every counter of the table is there.
        wanted = {"tern_" + name.replace(".", "_") for name in self.pair.pages()["client"]["endpoints"][0]["counters"]}
        self.assertEqual(wanted - set(families), set())

    def test_3_table_and_live_view(self):
        wait_for(self.pair.busy_pages)
        table = top("--once").stdout
        self.assertIn(f"{self.pair.client.pid} latency  alive", table)
        self.assertIn("smoothed", table)
        live = subprocess.Popen([TOP, "--interval=0.2"], stdout=subprocess.PIPE, text=True)
        try:
            seen = ""
            while "a second" not in seen:  # a rate, which needs two readings
                line = live.stdout.readline()
                self.assertTrue(line, "tern-top has ended")
                seen += line
            self.assertIn("\033[H", seen)
            self.assertIn("\033[J", seen + live.stdout.read(10000))
        finally:
            live.kill()
            live.stdout.close()
            live.wait()

    def test_4_killed_processes(self):
        before = wait_for(self.pair.busy_pages)
        self.pair.kill()
        after = self.pair.pages()
        for side in ("client", "server"):
            self.assertEqual(after[side]["life"], "dead")
            for name, value in before[side]["endpoints"][0]["counters"].items():
                self.assertGreaterEqual(after[side]["endpoints"][0]["counters"][name], value, name)
        self.assertTrue(after["client"]["endpoints"][0]["sessions"])
        families = {family.name: family for family in text_string_to_metric_families(top("--prometheus").stdout)}
        up = {s.labels["pid"]: s.value for s in families["tern_up"].samples}
        self.assertEqual(up[str(self.pair.client.pid)], 0)
        calls = families.get("tern_endpoint_calls_completed")
        self.assertFalse(calls and [s for s in calls.samples if s.labels["pid"] == str(self.pair.client.pid)])


class ProgramsTest(unittest.TestCase):
    """Every program that serves has the flag --page, and tern-top finds what it shows."""
    PROGRAMS = {"hello": ["--role=server", "--server=127.0.0.1:0"],
                "kv": ["--role=server", "--server=127.0.0.1:0", "--keys=1000"],
                "masstree": ["--role=server", "--server=127.0.0.1:0", "--keys=1000"],
                "raft_server": ["--id=1", "--replicas=1=127.0.0.1:0"],
                "bank": ["--branches=2", "--kill_seconds=0", "--seconds=1000"]}

    def test_programs_show_a_page(self):
        for name, arguments in self.PROGRAMS.items():
            program = BUILD / "apps" / name
            with self.subTest(name):
                if not program.exists():
                    self.skipTest(f"{program} is not built")
                process = subprocess.Popen([program, "--transport=udp", "--page=shm", *arguments],
                                           stdout=subprocess.DEVNULL, start_new_session=True)
                pages = []
                try:
                    def shown():
                        self.assertIsNone(process.poll(), "it has ended")
                        pages = [p for p in read()["pages"] if group_of(p["pid"]) == process.pid]
                        return pages if len(pages) == (2 if name == "bank" else 1) \
                            and all(page["endpoints"] for page in pages) else None
                    pages = wait_for(shown)
                    for page in pages:
                        self.assertEqual((page["life"], page["program"]), ("alive", name))
                        self.assertEqual(page["endpoints"][0]["transport"], "udp")
                finally:
                    process.terminate()
                    process.wait(PATIENCE_S)
                    for page in pages:  # bank kills its branches, whose pages stay
                        pathlib.Path(page["file"]).unlink(missing_ok=True)

    def test_page_that_cannot_be_made_is_reported(self):
        result = subprocess.run([BUILD / "apps/hello", "--transport=udp", "--page=/no/such/page"], capture_output=True,
                                text=True, timeout=PATIENCE_S, check=False)
        self.assertEqual((result.returncode, result.stdout.count("\n")), (0, 1), result.stderr)
        self.assertRegex(result.stderr, r"\Ahello: --page=/no/such/page: .*No such file or directory\n\Z")

    def test_processes_and_sides_of_one_program_do_not_share_a_file(self):
        for command in (["apps/hello", "--processes"], ["apps/bank"], ["apps/raft_cluster"],
                        ["microbench/latency"], ["apps/kv"], ["apps/masstree"]):
            program = BUILD / command[0]
            with self.subTest(command[0]):
                if not program.exists():
                    self.skipTest(f"{program} is not built")
                result = subprocess.run([program, *command[1:], "--page=/tmp/page"], capture_output=True, text=True,
                                        timeout=PATIENCE_S, check=False)
                self.assertEqual(result.returncode, 1)
                self.assertIn("use --page=shm", result.stderr)


class FilesTest(unittest.TestCase):
    def test_hostile_files_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            letter = pathlib.Path(folder) / "letter \"\\\n"
            letter.write_bytes(bytes(range(256)) * 100)
            result = top("--once", "--json", str(letter), folder + "/absent")
            self.assertEqual(result.returncode, 1)
            unreadable = json.loads(result.stdout)["unreadable"]
            self.assertEqual([entry["file"] for entry in unreadable], [str(letter), folder + "/absent"])
            self.assertIn("not a page", unreadable[0]["reason"])
            corpus = sorted(CORPUS.iterdir())
            for form in ("--json", "--prometheus", "--sessions=5"):
                result = top("--once", form, *map(str, corpus))
                self.assertEqual(result.returncode, 1, result.stderr)  # most are no pages
                self.assertTrue(all(c == "\n" or " " <= c <= "~" for c in result.stdout), form)
                if form == "--prometheus":
                    self.assertTrue(list(text_string_to_metric_families(result.stdout)))
                if form == "--json":
                    self.assertIn("half_written", [pathlib.Path(p["file"]).name for p in json.loads(result.stdout)["pages"]])

    def test_file_names_keep_their_characters(self):
        # An escape stands for each byte that is not part of a character: a surrogate's or an overlong form, a cut one.
        names = {"käse, 奶酪, \U0001f9c0".encode(): "käse, 奶酪, \U0001f9c0", b"\xff\xe5\xa5": "\xff\xe5\xa5",
                 b"\xed\xa0\x80": "\xed\xa0\x80", b"\xc0\xaf\xe0\x80\xaf": "\xc0\xaf\xe0\x80\xaf",
                 b"\xf4\x90\x80\x80": "\xf4\x90\x80\x80", "\x7f\x80é".encode(): "\x7f\x80é"}
        result = subprocess.run([TOP, "--once", "--json", *(b"/absent/" + name for name in names)], capture_output=True,
                                timeout=PATIENCE_S, check=False)
        files = [entry["file"] for entry in json.loads(result.stdout.decode())["unreadable"]]
        self.assertEqual(files, ["/absent/" + name for name in names.values()])

    def test_names_write_no_control_characters(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "\033]0;title\a\033[2J\n1 fake\x9b"
            page.write_bytes((CORPUS / "good").read_bytes())
            for arguments in (["--once"], ["--prometheus"]):
                result = top(*arguments, str(page), f"{page}.absent")
                self.assertEqual(result.returncode, 1)
                output = result.stdout + result.stderr
                self.assertTrue(all(c == "\n" or " " <= c <= "~" for c in output), repr(output))
                self.assertIn("?]0;title??[2J?1 fake?.absent: cannot read", output)

    def test_prometheus_reports_unreadable_pages(self):
        letter = CORPUS / "other_magic"
        result = top("--once", "--prometheus", str(letter))
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertEqual(result.stderr, f"tern-top: {letter}: this file is not a page of tern\n")
        # A page that the user has not named is left out, which is no failure of the program.
        letter = pathlib.Path(f"/dev/shm/tern-page.{os.geteuid()}.0.{os.getpid()}.letter")
        letter.write_bytes(b"a letter to somebody")
        try:
            result = top("--prometheus")
        finally:
            letter.unlink()
        self.assertEqual(result.returncode, 0)
        self.assertIn(f"tern-top: {letter}: this file is not a page of tern\n", result.stderr)

    def test_wrong_arguments_are_refused(self):
        for arguments in (["--interval=0"], ["--interval=x"], ["--sessions=-1"], ["--none"], ["--json", "--prometheus"]):
            result = top(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertIn("usage", result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
