#!/usr/bin/env python3
"""Programs that start a server process: what they say of its end.

Usage: processes_test.py BUILD_DIR [LIBRARY that aborts server processes at their end; without it, these cases are left out]
"""
import os
import resource
import subprocess
import sys
import unittest

SECONDS_MAX = 60

build_dir = None
aborting = None


def path_of(program):
    return os.path.join(build_dir, program)


class AbortedServers(unittest.TestCase):
    def test_server_that_fails_at_its_end_is_a_failure(self):
        for words in (('microbench/latency', '--seconds=2'), ('apps/hello',), ('apps/kv', '--seconds=0.1', '--keys=100'),
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


if __name__ == '__main__':
    build_dir = os.path.abspath(sys.argv[1])
    aborting = sys.argv[2] if len(sys.argv) > 2 else None
    if aborting:
        unittest.main(argv=sys.argv[:1])
