#!/usr/bin/env python3
"""Programs that start a server process: what they say of its end, and that it ends with them.

Usage: processes_test.py BUILD_DIR [LIBRARY that aborts server processes at their end; without it, these cases are left out]
"""
import contextlib
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

SECONDS_MAX = 60
NOBODY = 65534

build_dir = None
aborting = None


def path_of(program):
    return os.path.join(build_dir, program)


def wait_for(get):
    """What get() returns as soon as it is true."""
    while True:
        if found := get():
            return found
        select.select([], [], [], 0.01)


def word_of(pid, word):
    with contextlib.suppress(OSError), open(f'/proc/{pid}/cmdline', 'rb') as file:
        return word in file.read().split(b'\0')
    return False


def server_of(process):
    """The process id of its server; None until the process has threads, which it starts when clients can reach the server."""
    if process.poll() is not None:
        raise AssertionError(f'it has ended with {process.returncode}')
    with open(f'/proc/{process.pid}/task/{process.pid}/children', encoding='utf-8') as file:
        servers = [int(child) for child in file.read().split() if word_of(child, b'--role=server')]
    has_threads = len(os.listdir(f'/proc/{process.pid}/task')) > 1
    return servers[0] if servers and has_threads else None


class AbortedServers(unittest.TestCase):
    def test_server_that_fails_at_its_end_is_a_failure(self):
        for words in (('microbench/latency', '--seconds=2'), ('apps/hello',), ('apps/kv', '--seconds=1', '--keys=100'),
                      ('apps/masstree', '--seconds=0.1', '--keys=1000')):
            if not os.path.exists(path_of(words[0])):
                continue
            with self.subTest(program=words[0]):
                done = subprocess.run([path_of(words[0]), '--transport=shm', '--wait=adaptive', '--processes', *words[1:]],
                                      capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
                                      env={**os.environ, 'LD_PRELOAD': aborting},
                                      preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
                self.assertIn('the server process ended by signal 6\n', done.stderr)
                self.assertEqual((done.returncode, done.stdout), (1, ''))


class FileCapabilities(unittest.TestCase):
    def test_server_with_file_capabilities_ends_with_its_parent(self):
        if os.geteuid() != 0 or shutil.which('setcap') is None:
            self.skipTest('needs root and setcap')
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            program = shutil.copy(path_of('microbench/latency'), folder)
            done = subprocess.run(['setcap', 'cap_net_raw+ep', program], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                self.skipTest(f'file capabilities do not work here: {done.stderr}')
            words = [program, '--transport=udp', '--wait=adaptive', '--processes', '--seconds=1000']
            with subprocess.Popen(words, stdout=subprocess.DEVNULL, cwd='/', user=NOBODY, group=NOBODY,
                                  extra_groups=[]) as process:
                try:
                    server = os.pidfd_open(wait_for(lambda: server_of(process)))
                finally:
                    process.kill()
                process.wait()
                ended, _, _ = select.select([server], [], [], SECONDS_MAX)
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(server, signal.SIGKILL)
                os.close(server)
                self.assertTrue(ended, 'the server process has outlived its parent')


if __name__ == '__main__':
    build_dir = os.path.abspath(sys.argv[1])
    aborting = sys.argv[2] if len(sys.argv) > 2 else None
    unittest.main(argv=[sys.argv[0], *([] if aborting else ['FileCapabilities'])])
