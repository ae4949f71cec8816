#!/usr/bin/env python3
"""scripts/sim with a fake in place of the simulator."""
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'scripts', 'sim')


class Sim(unittest.TestCase):
    def test_interrupted_run_starts_no_more_programs(self):
        with tempfile.TemporaryDirectory() as folder:
            tests = os.path.join(folder, 'build', 'release', 'tests')
            os.makedirs(tests)
            os.mkdir(os.path.join(folder, 'scripts'))
            script, program = shutil.copy(SCRIPT, os.path.join(folder, 'scripts')), os.path.join(tests, 'sim_check')
            with open(program, 'w', encoding='utf-8') as file:
                file.write('#!/bin/sh\n: >"$0.$1"\nexec sleep 60\n')
            os.chmod(program, 0o755)
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
