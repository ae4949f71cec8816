#!/usr/bin/env python3
"""scripts/demo with stand-ins for setup, cmake, timeout and the programs that it runs. They note the locale that they have."""
import os
import shutil
import stat
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

HELLO = '''case "$*" in
  --list_transports) printf 'shm\\tmemory ()\\n' ;;
  *--role=server*) echo tern://127.0.0.1:4321 >&3; exec sleep 60 ;;
  *) echo hello ;;
esac
'''
LATENCY = '''echo '{"metrics": {"p50_us": 1.234, "p99_us": 2.5, "p999_us": 12}}'
'''
RATE = '''echo '{"metrics": {"rate_mrps": 4.5}}'
'''
# Notes its limits, and runs the command.
TIMEOUT = '''echo "$1" >>"$NOTES/limits"
shift
exec "$@"
'''


class Demo(unittest.TestCase):
    def run_with(self, *arguments, setup='', error=None):
        """The output of a run, the limits of the commands that have one, and the locales of the programs. With `error`, the
        run must fail and say so."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (('scripts/setup', setup), ('bin/cmake', ''), ('bin/timeout', TIMEOUT),
                               ('build/release/apps/hello', HELLO), ('build/release/microbench/latency', LATENCY),
                               ('build/release/microbench/small_rpc_rate', RATE)):
                path = os.path.join(folder, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, 'w', encoding='utf-8') as file:
                    file.write(f'#!/bin/sh\necho "$LC_ALL" >>"$NOTES/locales"\n{text}')
                os.chmod(path, stat.S_IRWXU)
            shutil.copy(os.path.join(ROOT, 'scripts', 'demo'), os.path.join(folder, 'scripts'))
            environment = {**os.environ, 'PATH': os.path.join(folder, 'bin') + ':' + os.environ['PATH'], 'NOTES': folder,
                           'LC_ALL': 'de_DE.UTF-8'}
            done = subprocess.run([os.path.join(folder, 'scripts', 'demo'), *arguments], env=environment,
                                  capture_output=True, text=True, check=False, timeout=60)
            if error:
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(error, done.stderr)
                return None
            self.assertEqual(done.returncode, 0, done.stderr)
            notes = []
            for name in ('limits', 'locales'):
                with open(os.path.join(folder, name), encoding='utf-8') as file:
                    notes.append(file.read().split())
            return done.stdout, *notes

    def test_table_has_the_programs_figures(self):
        output, _, _ = self.run_with()
        self.assertRegex(output, r'(?m)^shm +1\.23 +2\.50 +12\.00 +4\.500$')

    def test_failed_setup_ends_the_demo_and_names_the_option(self):
        self.run_with(setup='exit 1', error='scripts/demo --no-setup')

    def test_no_setup_runs_without_setup(self):
        output, _, _ = self.run_with('--no-setup', '1', setup='exit 1')
        self.assertRegex(output, r'(?m)^shm +1\.23 ')

    def test_numbers_have_a_point_in_every_locale(self):
        self.assertEqual(set(self.run_with()[2]), {'C'})

    def test_measurements_have_two_minutes_more_than_their_length(self):
        for seconds in ('1', '200', '08', '0.5'):
            _, limits, _ = self.run_with(seconds)
            limits = [int(text) for text in limits if text != '30']  # without the hello client's
            self.assertEqual(len(limits), 2)
            for limit in limits:
                self.assertTrue(120 <= limit - float(seconds) <= 121, limits)


if __name__ == '__main__':
    unittest.main()
