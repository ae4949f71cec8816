#!/usr/bin/env python3
"""scripts/sim with a fake in place of the simulator."""
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'scripts', 'sim')


@contextlib.contextmanager
def tree(program_text):
    """A tree with the script, and with a shell script in place of the simulator. Yields the script and the folder of the
    simulator."""
    with tempfile.TemporaryDirectory() as folder:
        tests = os.path.join(folder, 'build', 'release', 'tests')
        os.makedirs(tests)
        os.mkdir(os.path.join(folder, 'scripts'))
        program = os.path.join(tests, 'sim_check')
        with open(program, 'w', encoding='utf-8') as file:
            file.write('#!/bin/sh\n' + program_text)
        os.chmod(program, 0o755)
        yield shutil.copy(SCRIPT, os.path.join(folder, 'scripts')), tests


class Sim(unittest.TestCase):
    def run_with(self, program_text, *flags):
        with tree(program_text) as (script, _):
            return subprocess.run([script, '--no-build', '--jobs=2', *flags], capture_output=True, text=True, timeout=60)

    def test_runs_are_summed_and_a_broken_promise_is_named(self):
        done = self.run_with('echo "20 runs, 7 calls (1 of them not answered), 9 packets: fine"\n', '--seeds=40')
        self.assertEqual((done.returncode, done.stderr), (0, ''))
        self.assertRegex(done.stdout, r'\A40 runs, 14 calls, 18 packets in .*\nevery promise was kept\n\Z')
        done = self.run_with('echo "BROKEN: repeat with: x --seed=7" >&2; exit 1\n', '--seeds=20')
        self.assertEqual((done.returncode, done.stderr), (1, ''))
        self.assertIn('seed 7 breaks a promise', done.stdout)

    def test_options_that_the_program_does_not_know_break_no_promise(self):
        done = self.run_with('echo "usage: sim_check" >&2; exit 2\n', '--only=foo', '--seeds=100')
        self.assertEqual((done.returncode, done.stdout), (2, ''))
        self.assertEqual(done.stderr, 'usage: sim_check\nscripts/sim: sim_check does not know these options\n')

    def test_runs_without_a_length_are_refused(self):
        for flag in ('--minutes=0', '--minutes=-1', '--minutes=nan', '--seconds=0', '--seconds=-1', '--seconds=1001', '--seeds=0',
                     '--jobs=0'):
            with self.subTest(flag=flag):
                done = self.run_with('exit 1\n', flag)
                self.assertEqual((done.returncode, done.stdout), (2, ''))
                self.assertIn('error: ', done.stderr)
        done = self.run_with('exit 1\n', '--minutes=1e-12')
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, 'scripts/sim: --minutes is too short for a run\n')

    def test_interrupted_run_starts_no_more_programs(self):
        with tree(': >"$0.$1"\nexec sleep 60\n') as (script, tests):
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
            with subprocess.Popen([script, '--no-build', '--seeds=1000', '--jobs=1'], stderr=subprocess.PIPE, text=True,
                                  start_new_session=True) as process:
                while len(os.listdir(tests)) < 2:
                    self.assertIsNone(process.poll())
                    time.sleep(0.01)
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does
                said = process.communicate(timeout=30)[1]
            self.assertEqual((process.returncode, said), (130, 'scripts/sim: interrupted\n'))
            self.assertEqual(sorted(os.listdir(tests)), ['sim_check', 'sim_check.--seeds=1-20'])


if __name__ == '__main__':
    unittest.main()
